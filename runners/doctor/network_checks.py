"""Check the network of a node: interfaces, names, addresses, ports. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...presets.finding import Finding
from ...presets.secrets import mask_text
from .examined_node import ExaminedNode

SLOW_MBPS = 1000
"""A billion 16-bit gradients take 16 s at 1 Gb/s, in one direction."""
DNS_SLOW_S = 2.0
"""A resolver with a silent first server waits 5 s (resolv.conf(5)), and torch resolves more than once."""
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check_network(node: ExaminedNode) -> Iterator[Finding]:
    yield from _interface(node)
    yield from _interface_names(node)
    yield from _names(node)
    yield from _port(node)


def _interface(node: ExaminedNode) -> Iterator[Finding]:
    face = node.interface
    if not node.several:
        return
    if face is None:
        text = "No network interface but loopback is up."
        yield node.finding(
            "D-NIC-NONE", "error", text, "none", "Bring one up (ip link), or use the host's network."
        )
    elif face["mbps"] and face["mbps"] <= SLOW_MBPS:
        text = f"{face['name']}, by which the node is reached, is slow for training on several nodes."
        remedy = "Use a faster network: name its interface in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."
        yield node.finding("D-NIC-SLOW", "warning", text, f"{face['mbps']} Mb/s", remedy)


def _interface_names(node: ExaminedNode) -> Iterator[Finding]:
    env, faces = node.settings, node.get("interfaces") or ()
    up = [face["name"] for face in faces if face["up"] and face["addresses"]]
    for name in IFNAMES:
        if env.get(name) and not chosen(env[name], up, prefix=name.startswith("NCCL")):
            yield node.finding(
                "D-NIC-IFNAME",
                "error",
                f"{name} fits no interface of this node that is up and has an address.",
                f"{name}={env[name]}",
                f"Name one of {', '.join(up) or 'those that will be there'}, or unset it.",
            )


def chosen(text: str, names: list[str], prefix: bool) -> list[str]:
    """Return the interfaces that a list selects. NCCL's words are prefixes; `^` excludes, `=` requires full names."""
    out, exact = False, not prefix
    if prefix:
        out, text = text.startswith("^"), text.removeprefix("^")
        exact, text = text.startswith("="), text.removeprefix("=")
    words = [word.partition(":")[0] for word in text.split(",") if word]
    fits = [
        name for name in names if any(name == word if exact else name.startswith(word) for word in words)
    ]
    return [name for name in names if (name in fits) != out]


def _names(node: ExaminedNode) -> Iterator[Finding]:
    own = node.get("dns", "own")
    if own is None:
        return
    yield from _own_addresses(node, own)
    if own["seconds"] > DNS_SLOW_S:
        text = f"Resolving its own name took {own['seconds']:.1f} s: a name server does not answer."
        yield node.finding(
            "D-DNS-SLOW", "warning", text, f"{own['seconds']:.1f} s", "Check /etc/resolv.conf."
        )


def _own_addresses(node: ExaminedNode, own: Mapping[str, Any]) -> Iterator[Finding]:
    name, ips = own["name"], own["addresses"]
    hosts = f"Write its own address and {name} into /etc/hosts."
    if not ips:
        text = f"Its own name {name} has no address ({own['problem']}): gloo then takes the loopback."
        yield node.finding("D-DNS-OWN", "error" if node.several else "warning", text, name, hosts)
    elif all(loopback(address) for address in ips):
        trap = node.several and not node.get("env", "GLOO_SOCKET_IFNAME")
        text = (
            f"Its own name {name} resolves to the loopback (Debian writes 127.0.1.1): gloo listens there"
            + (", where no other node reaches it." if node.several else ".")
        )
        remedy = f"{hosts} Or set GLOO_SOCKET_IFNAME to its interface."
        yield node.finding("D-DNS-LOOPBACK", "warning" if trap else "note", text, ", ".join(ips), remedy)


def loopback(address: str) -> bool:
    """Whether an address is a loopback address. Of names, only "localhost" is."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def _port(node: ExaminedNode) -> Iterator[Finding]:
    port = node.get("port")
    if port is None or port["free"]:
        return
    owner = port.get("owner")
    whose = f"pid {owner['pid']}: {mask_text(owner['command'])}" if owner else "another user's process"
    number = port["port"]
    if port["problem"] == "Permission denied":
        text, whose = f"Port {number} may only be opened by root.", port["problem"]
    else:
        text = f"Port {number} is in use: ranks would connect to another program there, and wait."
    yield node.finding(
        "D-PORT-BUSY", "error", text, whose, "End that process, or launch with another --port."
    )


def addresses(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Report nodes whose address is useless for the others, which are different machines."""
    if len({node.get("boot") for node in nodes}) < 2:
        return []
    text = "It is reached by its loopback, which on the other nodes is their own."
    remedy = "Name it as the others reach it; of the first, --head-addr gives the address."
    return [
        node.finding("D-ADDRESS", "error", text, node.address, remedy)
        for node in nodes
        if loopback(node.address or "")
    ]


def reach(
    node: ExaminedNode, head: str, address: str, port: int, answer: Mapping[str, Any]
) -> Iterator[Finding]:
    """Report a node's problems with reaching the head. `answer`: its answer to "connect"."""
    if not answer["ok"]:
        text = f"It cannot connect to {head} at {address}:{port} ({answer['problem']}): its ranks would wait forever."
        remedy = (
            "Open the port in the firewall between them, or give the head's other address with --head-addr."
        )
        yield node.finding("D-PORT-UNREACHABLE", "error", text, answer["problem"], remedy)
    named = answer.get("resolved")
    if named and not named["addresses"]:
        text = f"It does not know {named['name']}, the name of {head} ({named['problem']}); a launch uses its address."
        yield node.finding("D-DNS-HEAD", "note", text, named["name"], "Add it to DNS or /etc/hosts.")
    elif named and all(loopback(own) for own in named["addresses"]):
        text = f"For it {named['name']}, the name of {head}, is the loopback; a launch uses its address."
        yield node.finding(
            "D-DNS-HEAD", "note", text, ", ".join(named["addresses"]), "Correct its /etc/hosts."
        )
