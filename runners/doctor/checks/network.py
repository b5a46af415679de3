"""Interfaces, names and ports of a node."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....presets.finding import Finding
from ..look import Look

SLOW_MBPS = 1000
"""Gradients of a billion parameters in 16 bit take 16 s at 1 Gb/s, one way."""
DNS_SLOW_S = 2.0
"""A resolver whose first server is silent waits 5 s (resolv.conf(5)); torch asks more than once."""
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check(look: Look) -> Iterator[Finding]:
    """One node's network."""
    yield from _interfaces(look)
    yield from _names(look)
    yield from _port(look)


def _interfaces(look: Look) -> Iterator[Finding]:
    faces = look.get("interfaces") or []
    face = look.interface
    if look.several and face is None:
        text = "No network interface but loopback is up."
        yield look.finding(
            "D-NIC-NONE", "error", text, "none", "Bring one up (ip link), or use the host's network."
        )
    if look.several and face is not None and (face["mbps"] or SLOW_MBPS + 1) <= SLOW_MBPS:
        text = f"{face['name']}, by which the node is reached, is slow for training on several nodes."
        remedy = "Use a faster network: name its interface in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME."
        yield look.finding("D-NIC-SLOW", "warning", text, f"{face['mbps']} Mb/s", remedy)
    env = dict(look.get("env") or {})
    for said in (look.get("nccl_conf") or {}).values():
        env = {**said, **env}
    up = [one["name"] for one in faces if one["up"] and one["addresses"]]
    for name in IFNAMES:
        if env.get(name) and not chosen(env[name], up, prefix=name.startswith("NCCL")):
            yield look.finding(
                "D-NIC-IFNAME", "error", f"{name} fits no interface of this node that is up and has an address.",
                f"{name}={env[name]}", f"Name one of {', '.join(up) or 'those that will be there'}, or unset it.",
            )  # fmt: skip


def chosen(text: str, names: list[str], prefix: bool) -> list[str]:
    """Interfaces that a list chooses. NCCL's words are beginnings; `^` leaves out, `=` asks for whole names."""
    out, exact = False, not prefix
    if prefix:
        out, text = text.startswith("^"), text.removeprefix("^")
        exact, text = text.startswith("="), text.removeprefix("=")
    words = [word.partition(":")[0] for word in text.split(",") if word]
    fits = [
        name for name in names if any(name == word if exact else name.startswith(word) for word in words)
    ]
    return [name for name in names if name not in fits] if out else fits


def _names(look: Look) -> Iterator[Finding]:
    own = look.get("dns", "own")
    if own is None:
        return
    name, found = own["name"], own["addresses"]
    hosts = f"Write its own address and {name} into /etc/hosts."
    if not found:
        text = f"Its own name {name} has no address ({own['problem']}): gloo then takes the loopback."
        yield look.finding("D-DNS-OWN", "error" if look.several else "warning", text, name, hosts)
    elif all(loopback(address) for address in found):
        named = (look.get("env") or {}).get("GLOO_SOCKET_IFNAME")
        trap = look.several and not named
        text = (
            f"Its own name {name} leads to the loopback (Debian writes 127.0.1.1): gloo listens there"
            + (", where no other node reaches it." if look.several else ".")
        )
        remedy = f"{hosts} Or set GLOO_SOCKET_IFNAME to its interface."
        yield look.finding("D-DNS-LOOPBACK", "warning" if trap else "note", text, ", ".join(found), remedy)
    if own["seconds"] > DNS_SLOW_S:
        text = f"Looking up its own name took {own['seconds']:.1f} s: a name server does not answer."
        yield look.finding(
            "D-DNS-SLOW", "warning", text, f"{own['seconds']:.1f} s", "Look at /etc/resolv.conf."
        )
    back = look.get("dns", "reverse")
    if look.several and back is not None and back["name"] is None:
        text = (
            f"Its address {back['address']} has no name ({back['problem']}): some logs show addresses only."
        )
        yield look.finding("D-DNS-REVERSE", "note", text, back["address"])


def loopback(address: str) -> bool:
    """Whether an address is this machine's own; a name is none."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def _port(look: Look) -> Iterator[Finding]:
    port = look.get("port")
    if port is None or port["free"]:
        return
    owner = port.get("owner")
    whose = f"pid {owner['pid']}: {owner['command']}" if owner else "another user's process"
    number = port["port"]
    if port["problem"] == "Permission denied":
        text, whose = f"Port {number} may only be opened by root.", port["problem"]
    else:
        text = f"Port {number} is in use: ranks would meet a stranger there, and wait."
    yield look.finding(
        "D-PORT-BUSY", "error", text, whose, "End that process, or launch with another --port."
    )


def addresses(looks: Sequence[Look]) -> list[Finding]:
    """Nodes whose address is of no use to the others, which are other machines."""
    if len({look.get("boot") for look in looks}) < 2:
        return []
    text = "It is reached by its loopback, where the other nodes find themselves."
    remedy = "Name it as the others know it; of the first, --head-addr gives the address."
    return [
        look.finding("D-ADDRESS", "error", text, look.address, remedy)
        for look in looks
        if loopback(look.address or "")
    ]


def reach(look: Look, head: str, address: str, port: int, said: Mapping[str, Any]) -> Iterator[Finding]:
    """How a node reaches the head: `said` is its answer to "connect"."""
    if not said["ok"]:
        text = f"It cannot connect to {head} at {address}:{port} ({said['problem']}): its ranks would wait in vain."
        remedy = (
            "Open the port in the firewall between them, or give the head's other address with --head-addr."
        )
        yield look.finding("D-PORT-UNREACHABLE", "error", text, said["problem"], remedy)
    named = said.get("resolved")
    if named and not named["addresses"]:
        text = f"It does not know {named['name']}, the name of {head} ({named['problem']}); a launch uses its address."
        yield look.finding("D-DNS-HEAD", "note", text, named["name"], "Add it to DNS or /etc/hosts.")
    elif named and all(loopback(found) for found in named["addresses"]):
        text = f"For it {named['name']}, the name of {head}, is the loopback; a launch uses its address."
        yield look.finding(
            "D-DNS-HEAD", "note", text, ", ".join(named["addresses"]), "Correct its /etc/hosts."
        )
