"""What the preset and the hardware promise against what NCCL did.

Each node's facts are looked at once, when they come; what is compared between nodes is little. Where a line is missing
that would say so, nothing is said: most of it is only there at NCCL_DEBUG=INFO.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import structs

from ...model import Finding
from .. import live
from ..facts import Communicator, Facts, Node
from .channels import gpudirect, slow_pairs
from .variables import unread
from .view import View

SETTLED_S = 20.0
"""Ranks of which one has not met the others after so long are waiting for more than a late starter."""
LATE_S = 60.0
"""The same where only the subnet speaks for it."""
VIRTUAL = re.compile(r"lo$|docker|veth|virbr|br-|cni|flannel|cali|tunl|ip6tnl")
"""Interfaces that seldom lead to another machine."""
COMPLETE = frozenset({"complete", "connected", "running", "destroyed"})
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What one node's logs say, as far as it is compared with others."""

    number: int
    facts: Facts
    node: Node | None
    """As NCCL names it; None where it named no host, or several."""
    several: bool
    """Whether a communicator spans nodes."""
    complete: bool
    """Whether all ranks of this node have completed all communicators that span nodes, and there is one."""
    since: float | None
    """Unix time at which the first communicator was seen whose ranks here have not met the others yet."""
    own: tuple[Finding, ...]
    """What is found without a look at other nodes."""

    def line(self, what: str) -> list[str]:
        """The line of the host's statement, where there is one."""
        host = self.node.host if self.node else ""
        known = self.facts.raw.get(f"{what}:{host}")
        return [f"{known.file}:{known.line}: {known.text}"] if known else []


_kept: dict[tuple[str, int], tuple[bytes, Said | None]] = {}
"""By run and node: the newest document and what it says. Only to save time: the same document says the same."""
KEPT = 4096


def find(view: View) -> Iterable[Finding]:
    """See the module."""
    said = [one for one in _all(view) if one is not None]
    if not said:
        return ()
    found = [finding for one in said for finding in _weighed(one, view)]
    nodes = [one for one in said if one.node is not None]
    network = list(_networks(nodes))
    alone = {finding.node for finding in network}
    found += network
    found += [one for node in nodes if node.number not in alone for one in _sockets(node, view)]
    found += _interfaces(nodes, view)
    found += _versions(nodes, view)
    return found + list(unread([one.facts for one in said], view.plan, _whole(said)))


def _weighed(one: Said, view: View) -> Iterator[Finding]:
    """What a node's logs alone let expect, by what is known of its GPUs."""
    node = view.state.nodes[one.number]
    level = view.plan.env.get("NCCL_NET_GDR_LEVEL", "") if view.plan is not None else ""
    for finding in one.own:
        if finding.id == "expect-gdr" and (
            level.upper() in ("0", "LOC") or (node.gpus and all("GeForce" in gpu.name for gpu in node.gpus))
        ):
            continue
        if (
            finding.id == "expect-p2p"
            and node.gpus
            and all(gpu.nvlink_tx_bps is not None for gpu in node.gpus)
        ):
            finding = structs.replace(finding, severity="warn", role="cause")
        yield finding


def _all(view: View) -> Iterator[Said | None]:
    if len(_kept) > KEPT:
        _kept.clear()
    for number, node in view.state.nodes.items():
        if node.nccl is None:
            continue
        key = view.state.run, number
        known = _kept.get(key)
        if known is None or known[0] is not node.nccl:
            known = _kept[key] = (node.nccl, _said(number, node.nccl))
        yield known[1]


def _said(number: int, document: bytes) -> Said | None:
    try:
        facts = live.decode(document)
    except msgspec.MsgspecError:
        return None
    wide = [one for one in facts.communicators if (one.nnodes or 1) > 1]
    waiting = [one.seen for one in facts.communicators if one.seen and "started" in one.stages.values()]
    node = facts.nodes[0] if len(facts.nodes) == 1 else None
    own = () if node is None else (*gpudirect(facts, node, number), *slow_pairs(facts, node, number))
    return Said(
        number=number,
        facts=facts,
        node=node,
        several=bool(wide),
        complete=bool(wide) and all(_complete(one) for one in wide),
        since=min(waiting, default=None),
        own=own,
    )


def _complete(one: Communicator) -> bool:
    return bool(one.stages) and all(stage in COMPLETE for stage in one.stages.values())


def _whole(said: list[Said]) -> bool:
    """Whether each node's ranks have completed a communicator of several: what is read at init has been read."""
    return all(
        any(_complete(one) and (one.nranks or 0) > 1 for one in each.facts.communicators) for each in said
    )


def _finding(
    name: str, severity: str, text: str, node: int | None, remedy: str, evidence: Iterable[str]
) -> Finding:
    role = "hint" if severity == "info" else "cause"
    return Finding(name, severity, text, role, None, node, remedy, tuple(evidence))


# ---- networks


def asked_for_sockets(env: Mapping[str, str]) -> bool:
    """Whether somebody wanted TCP."""
    return env.get("NCCL_IB_DISABLE", "0") not in ("0", "") or env.get("NCCL_NET", "").lower() == "socket"


def _sockets(one: Said, view: View) -> Iterator[Finding]:
    """Between nodes TCP, and RDMA devices are there."""
    node = one.node
    assert node is not None
    plan = view.plan.env if view.plan is not None else {}
    devices = node.devices or tuple(sorted(node.hcas))
    if not one.several or node.networks != ("Socket",) or not devices:
        return
    if asked_for_sockets(node.env) or asked_for_sockets(plan):
        return
    names = ", ".join(devices[:4]) + ", …" * (len(devices) > 4)
    yield _finding(
        "expect-network",
        "warn",
        f"{node.host} talks to other nodes over TCP, although it has RDMA devices: many times slower",
        one.number,
        "See why NCCL did not take them: the container needs /dev/infiniband, libibverbs and an unlimited memlock; "
        "NCCL_IB_HCA must name them; on EFA the aws-ofi-nccl plugin must be found.",
        [*one.line("network"), f"active ports on {node.host}: {names}"],
    )


def _networks(said: list[Said]) -> Iterator[Finding]:
    """Nodes of which few took another network than most; where it is one against one, it is the one with TCP."""
    chosen = {
        one.number: one.node.networks[0].partition(" over ")[0]
        for one in said
        if one.node is not None and len(one.node.networks) == 1
    }
    if not any(one.several for one in said) or len(set(chosen.values())) < 2:
        return
    counted = Counter(chosen.values())
    usual = max(counted, key=lambda name: (counted[name], name != "Socket", name))
    other = next(one for one in said if chosen.get(one.number) == usual)
    for one in said:
        if one.node is None or chosen.get(one.number, usual) == usual:
            continue
        yield _finding(
            "expect-same-network",
            "warn",
            f"{one.node.host} took the network {chosen[one.number]}, and other nodes {usual}",
            one.number,
            "Compare devices, drivers, plugins and NCCL_NET, NCCL_IB_* of this node with those of another.",
            [*one.line("network"), *other.line("network"), *_devices(one)],
        )


def _devices(one: Said) -> list[str]:
    assert one.node is not None
    names = ", ".join(one.node.devices[:4])
    return [f"active RDMA ports on {one.node.host}: {names}"] if names else []


# ---- interfaces


def _interfaces(said: list[Said], view: View) -> Iterator[Finding]:
    """Interfaces of the bootstrap over which other nodes cannot be reached, while the ranks have not met."""
    if len(view.state.nodes) < 2 and not any(one.several for one in said):
        return
    usual = _usual([address for one in said if (address := _address(one)) is not None])
    for one in said:
        if one.node is None or one.since is None or not one.node.bootstrap:
            continue
        waited, address = view.now - one.since, _address(one)
        why = _unreachable(one.node.bootstrap, address) if waited > SETTLED_S else ""
        evidence = one.line("bootstrap")
        if not why and waited > LATE_S and (why := _elsewhere(address, usual)):
            evidence += next((it.line("bootstrap") for it in said if _part(_address(it)) == usual), [])
        if why:
            yield _finding(
                "expect-interface",
                "warn",
                f"{one.node.host} meets the other nodes over {one.node.bootstrap}, {why}",
                one.number,
                "Pin the interface that the nodes share: NCCL_SOCKET_IFNAME=<name>, or exclude with ^docker,lo,veth.",
                evidence,
            )


def _address(one: Said) -> Address | None:
    text = one.node.bootstrap.partition(":")[2].partition("%")[0] if one.node else ""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _unreachable(name: str, address: Address | None) -> str:
    if address is not None and address.is_loopback:
        return "a loopback address that no other node can reach"
    if address is not None and address.is_link_local:
        return "a link-local address that other nodes can seldom reach"
    return "a virtual interface that seldom leads to another machine" if VIRTUAL.match(name) else ""


def _part(address: Address | None) -> str:
    """The half of an IPv4 address that names the site: smaller subnets are often routed to each other."""
    return ".".join(str(address).split(".")[:2]) if isinstance(address, ipaddress.IPv4Address) else ""


def _usual(addresses: list[Address]) -> str:
    """Where more than half of at least three nodes are; "" where there is no such place."""
    found = Counter(_part(one) for one in addresses)
    (part, count), *_ = found.most_common() or [("", 0)]
    return part if len(addresses) > 2 and 2 * count > len(addresses) else ""


def _elsewhere(address: Address | None, usual: str) -> str:
    part = _part(address)
    return f"and the others are in {usual}.0.0/16" if usual and part and part != usual else ""


# ---- versions


def _versions(said: list[Said], view: View) -> Iterator[Finding]:
    """Nodes of one job that have loaded different releases of NCCL."""
    if any(name == "version-mismatch" and node is not None for name, _, node in view.state.findings):
        return  # NCCL itself has said so
    release = {
        one.number: one.node.versions[0].partition("+")[0]
        for one in said
        if one.node is not None and len(one.node.versions) == 1
    }
    if len(set(release.values())) < 2:
        return
    ordered = Counter(release.values()).most_common()
    firsts = [next(one for one in said if release.get(one.number) == name) for name, _ in ordered[:3]]
    text = ", ".join(f"{name} on {count} node{'s' * (count != 1)}" for name, count in ordered[:3])
    done = any(one.several for one in said) and all(one.complete for one in said if one.several)
    yield _finding(
        "version-mismatch",
        "warn" if done else "error",
        f"the nodes have loaded different releases of NCCL: {text}",
        None,
        "Make image, LD_LIBRARY_PATH and LD_PRELOAD the same on all nodes.",
        [line for one in firsts for line in one.line("version")],
    )
