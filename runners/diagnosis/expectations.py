"""Compare the facts from NCCL's logs with plan and hardware: unread variables, slow transports, other networks."""

from __future__ import annotations

import ipaddress
import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from ...presets.finding import Finding
from ...presets.nccl import catalogue, suggestion
from ...presets.plan import Plan
from ...presets.plurals import plural
from ..run.model import Gpu
from . import nccl_facts
from .nccl_facts import Communicator, NcclFacts, NcclNode, Pair, requests_sockets, speed
from .view import View

READ_AT_INIT = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"})
"""Variables that every NCCL reads and logs while it creates its first communicator of several ranks."""
SILENT = ("NCCL_DEBUG", "NCCL_RAS", "NCCL_SET_THREAD_NAME", "NCCL_CONF_FILE", "NCCL_NO_CACHE")
"""Prefixes of variables that NCCL reads without logging them."""


def unread(facts: Iterable[NcclFacts], plan: Plan | None, whole: bool) -> Iterator[Finding]:
    """Report variables that NCCL did not read, if it logs reads. `whole`: every node has completed a communicator."""
    envs = [node.env for each in facts for node in each.nodes]
    if plan is None or not whole or not envs or not all(envs):
        return  # NCCL logs reads only with ENV in NCCL_DEBUG_SUBSYS
    read = dict(ChainMap(*reversed(envs)))
    for name in sorted(plan.env.keys() - read.keys()):
        if name.startswith("NCCL_") and not name.startswith(SILENT):
            yield _variable_finding(name, plan.env[name], read)


def _variable_finding(name: str, value: str, read: Mapping[str, str]) -> Finding:
    listed = name in catalogue()
    near = suggestion(name)
    alarm = name in READ_AT_INIT or bool(near)
    if near:
        why = f"it looks like {near}"
    elif not listed:
        why = "no NCCL is known to read it"
    elif alarm:
        why = "it was set too late, or the processes do not see it"
    else:
        why = "it is read only where it is needed"
    names = sorted(read)
    more = f" and {len(names) - 8} others" if len(names) > 8 else ""
    return Finding(
        f"expect-env:{name}",
        "warning" if alarm else "note",
        f"NCCL has not read {name}: {why}",
        role="cause" if alarm else "hint",
        remedy=f"Write {near}." if near else "See `distui lint`, and set it in the preset or with --nccl.",
        evidence=(f"the plan sets {name}={value}", f"NCCL logs that it read {', '.join(names[:8])}{more}"),
    )


SETTLED_S = 20.0
"""Seconds before ranks that have not met are more than late starters."""
LATE_S = 60.0
"""Seconds that replace SETTLED_S if the subnet is the only evidence."""
VIRTUAL = re.compile(r"lo$|docker|veth|virbr|br-|cni|flannel|cali|tunl|ip6tnl")
"""Interfaces that rarely lead to another machine."""
COMPLETE = frozenset({"complete", "connected", "running", "destroyed"})
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatements:
    """The facts of one node's logs that are compared with other nodes."""

    number: int
    facts: NcclFacts
    node: NcclNode | None
    """The node in NCCL's logs; None if they name no host or several."""
    several: bool
    """Whether a communicator spans nodes."""
    complete: bool
    """Whether at least one communicator spans nodes, and all ranks here have completed all of those."""
    since: float | None
    """Unix time of the first report about the oldest communicator that ranks here have not completed."""
    own: tuple[Finding, ...]
    """Findings that need no comparison with other nodes."""

    def line(self, what: str) -> list[str]:
        """Return the evidence line for a property of the host; [] without one."""
        return _quoted(self.facts, f"{what}:{self.node.host if self.node else ''}")


class Expectations:
    """Findings from all nodes' facts. Decodes each document once and keeps each node's newest."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[bytes, NodeStatements | None]] = {}

    def find(self, view: View) -> Iterable[Finding]:
        """Return the findings of all nodes."""
        statements = [*filter(None, self._all(view))]
        if not statements:
            return ()
        findings = [*chain(*(_weighed(each, view) for each in statements))]
        nodes = [each for each in statements if each.node is not None]
        network = list(_networks(nodes))
        odd = {finding.node for finding in network}
        findings += network
        findings += chain(*(_sockets(node, view) for node in nodes if node.number not in odd))
        findings += _interfaces(nodes, view)
        findings += _versions(nodes, view)
        return findings + list(unread([each.facts for each in statements], view.plan, _whole(statements)))

    def _all(self, view: View) -> Iterator[NodeStatements | None]:
        for number, node in view.state.nodes.items():
            if node.nccl is None:
                continue
            kept = self._newest.get(number)
            if kept is None or kept[0] != node.nccl:
                kept = self._newest[number] = (node.nccl, _read_statements(number, node.nccl))
            yield kept[1]


def _weighed(stated: NodeStatements, view: View) -> Iterator[Finding]:
    """Yield findings from one node's logs, with a severity that depends on its GPUs."""
    node = view.state.nodes[stated.number]
    level = view.plan.env.get("NCCL_NET_GDR_LEVEL", "") if view.plan is not None else ""
    for finding in stated.own:
        if finding.id == "expect-gdr" and (_is_local(level) or _are_geforce(node.gpus)):
            continue
        if finding.id == "expect-p2p" and _have_nvlink(node.gpus):
            finding = replace(finding, severity="warning", role="cause")
        yield finding


def _is_local(level: str) -> bool:
    """Whether a value of NCCL_NET_GDR_LEVEL switches GPUDirect RDMA off."""
    return level.upper() in ("0", "LOC")


def _are_geforce(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and all("GeForce" in gpu.name for gpu in gpus)


def _have_nvlink(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and all(gpu.nvlink_tx_bps is not None for gpu in gpus)


def _read_statements(number: int, document: bytes) -> NodeStatements | None:
    try:
        facts = nccl_facts.decode(document)
    except msgspec.MsgspecError:
        return None
    wide = [*filter(_spans_nodes, facts.communicators)]
    waiting = [comm.seen for comm in facts.communicators if comm.seen and "started" in comm.stages.values()]
    node = facts.nodes[0] if len(facts.nodes) == 1 else None
    own = () if node is None else (*gpudirect(facts, node, number), *slow_pairs(facts, node, number))
    return NodeStatements(
        number=number,
        facts=facts,
        node=node,
        several=bool(wide),
        complete=bool(wide) and all(map(_complete, wide)),
        since=min(waiting, default=None),
        own=own,
    )


def _spans_nodes(comm: Communicator) -> bool:
    return comm.nnodes is not None and comm.nnodes > 1


def _complete(comm: Communicator) -> bool:
    return bool(comm.stages) and all(stage in COMPLETE for stage in comm.stages.values())


def _whole(nodes: list[NodeStatements]) -> bool:
    """Whether each node's ranks have completed a communicator of several ranks, so that NCCL has read its variables."""
    return all(
        any(_complete(comm) and (comm.nranks or 0) > 1 for comm in own.facts.communicators) for own in nodes
    )


def _finding(
    name: str, severity: str, text: str, node: int | None, remedy: str, evidence: Iterable[str]
) -> Finding:
    role = "hint" if severity == "note" else "cause"
    return Finding(name, severity, text, role=role, node=node, remedy=remedy, evidence=tuple(evidence))


def _sockets(stated: NodeStatements, view: View) -> Iterator[Finding]:
    """Report TCP between nodes although RDMA devices exist."""
    node = stated.node
    assert node is not None
    plan = view.plan.env if view.plan is not None else {}
    devices = node.devices or tuple(sorted(node.hcas))
    if not stated.several or node.networks != ("Socket",) or not devices:
        return
    if requests_sockets(node.env) or requests_sockets(plan):
        return
    names = ", ".join(devices[:4])
    if len(devices) > 4:
        names += ", …"
    yield _finding(
        "expect-network",
        "warning",
        f"{node.host} talks to other nodes over TCP, although it has RDMA devices: many times slower",
        stated.number,
        "See why NCCL did not take them: the container needs /dev/infiniband, libibverbs and an unlimited memlock; "
        "NCCL_IB_HCA must name them; on EFA the aws-ofi-nccl plugin must be found.",
        [*stated.line("network"), f"active ports on {node.host}: {names}"],
    )


def _networks(nodes: list[NodeStatements]) -> Iterator[Finding]:
    """Report nodes with another network than most. If it is one against one, report the one with TCP."""
    chosen = {
        each.number: each.node.networks[0].partition(" over ")[0]
        for each in nodes
        if each.node is not None and len(each.node.networks) == 1
    }
    if not any(each.several for each in nodes) or len(set(chosen.values())) < 2:
        return
    counted = Counter(chosen.values())
    usual = max(counted, key=lambda name: (counted[name], name != "Socket", name))
    other = next(each for each in nodes if chosen.get(each.number) == usual)
    for each in nodes:
        if each.node is None or chosen.get(each.number, usual) == usual:
            continue
        yield _finding(
            "expect-same-network",
            "warning",
            f"{each.node.host} took the network {chosen[each.number]}, and other nodes {usual}",
            each.number,
            "Compare devices, drivers, plugins and NCCL_NET, NCCL_IB_* of this node with those of another.",
            [*each.line("network"), *other.line("network"), *_devices(each)],
        )


def _devices(stated: NodeStatements) -> list[str]:
    assert stated.node is not None
    names = ", ".join(stated.node.devices[:4])
    return [f"active RDMA ports on {stated.node.host}: {names}"] if names else []


def _interfaces(nodes: list[NodeStatements], view: View) -> Iterator[Finding]:
    """Report bootstrap interfaces that cannot reach other nodes, while the ranks have not met."""
    if len(view.state.nodes) < 2 and not any(each.several for each in nodes):
        return
    usual = _usual(nodes)
    for each in nodes:
        if each.node is None or each.since is None or not each.node.bootstrap:
            continue
        why, evidence = _doubt(each, nodes, usual, view.now - each.since)
        if why:
            yield _finding(
                "expect-interface",
                "warning",
                f"{each.node.host} meets the other nodes over {each.node.bootstrap}, {why}",
                each.number,
                "Pin the interface that the nodes share: NCCL_SOCKET_IFNAME=<name>, or exclude with ^docker,lo,veth.",
                evidence,
            )


def _doubt(
    stated: NodeStatements, nodes: Iterable[NodeStatements], usual: str, waited: float
) -> tuple[str, list[str]]:
    """Return why the interface may not reach other nodes, and the evidence; "" if it may. `waited`: in seconds."""
    address, evidence = _address(stated), stated.line("bootstrap")
    name = stated.node.bootstrap if stated.node is not None else ""
    if waited > SETTLED_S and (why := _unreachable(name, address)):
        return why, evidence
    if waited > LATE_S and (why := _elsewhere(address, usual)):
        other = next((each.line("bootstrap") for each in nodes if _part(_address(each)) == usual), [])
        return why, evidence + other
    return "", []


def _address(stated: NodeStatements) -> Address | None:
    text = stated.node.bootstrap.partition(":")[2].partition("%")[0] if stated.node else ""
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
    """Return the first half of an IPv4 address, which names the site: smaller subnets are often routed to each other."""
    return ".".join(str(address).split(".")[:2]) if isinstance(address, ipaddress.IPv4Address) else ""


def _usual(nodes: Iterable[NodeStatements]) -> str:
    """Return the part that the addresses of more than half of at least three nodes share, else ""."""
    addresses = [address for each in nodes if (address := _address(each)) is not None]
    counts = Counter(_part(address) for address in addresses)
    (part, count), *_ = counts.most_common() or [("", 0)]
    return part if len(addresses) > 2 and 2 * count > len(addresses) else ""


def _elsewhere(address: Address | None, usual: str) -> str:
    part = _part(address)
    return f"and the others are in {usual}.0.0/16" if usual and part and part != usual else ""


def _versions(nodes: list[NodeStatements], view: View) -> Iterator[Finding]:
    """Report nodes of one job with different NCCL releases."""
    if any(name == "version-mismatch" and node is not None for name, _, node in view.state.findings):
        return  # NCCL's own finding covers it
    firsts: dict[str, NodeStatements] = {}
    counts = Counter[str]()
    for each in nodes:
        if each.node is not None and len(each.node.versions) == 1:
            release = each.node.versions[0].partition("+")[0]
            firsts.setdefault(release, each)
            counts[release] += 1
    if len(counts) < 2:
        return
    ordered = counts.most_common(3)
    text = ", ".join(f"{name} on {plural(count, 'node')}" for name, count in ordered)
    yield _finding(
        "version-mismatch",
        "warning" if _have_met(nodes) else "error",
        f"the nodes have loaded different releases of NCCL: {text}",
        None,
        "Make image, LD_LIBRARY_PATH and LD_PRELOAD the same on all nodes.",
        chain(*(firsts[name].line("version") for name, _ in ordered)),
    )


def _have_met(nodes: Iterable[NodeStatements]) -> bool:
    """Whether communicators span nodes, and all ranks have completed them."""
    wide = [each for each in nodes if each.several]
    return bool(wide) and all(each.complete for each in wide)


LEAST_RANKS = 4
"""Minimum number of ranks on a node that shows which one is different."""


def gpudirect(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
    """Report RDMA that never uses GPU memory directly. One direction is normal: see NCCL_NET_GDR_READ."""
    if not (node.devices or node.hcas) or _is_local(node.env.get("NCCL_NET_GDR_LEVEL", "")):
        return
    kinds = _ib_lines(facts)
    has_ranks = any(any(comm.hosts.values()) for comm in facts.communicators)
    if not has_ranks or not kinds or any(kind.endswith("/GDRDMA") for kind in kinds):
        return
    loaded = [f"nvidia_peermem is loaded on {node.host}"] if node.peermem else []
    yield Finding(
        "expect-gdr",
        "warning",
        f"{node.host} sends over RDMA through host memory: GPUDirect RDMA is off",
        node=number,
        remedy="Load nvidia_peermem (or a kernel and driver with dma-buf), and see that GPUs and NICs share PCIe "
        "switches: `nvidia-smi topo -m`. GeForce cards cannot do it at all.",
        evidence=(*[*chain(*kinds.values())][:2], *loaded),
    )


def _ib_lines(facts: NcclFacts) -> dict[str, list[str]]:
    """Return the first line about each kind of connection over InfiniBand or RoCE."""
    kinds: dict[str, list[str]] = {}
    for comm in facts.communicators:
        for pair in comm.pairs:
            if pair.kind.startswith("NET/IB"):
                kinds.setdefault(pair.kind, _quoted(facts, f"pair:{comm.id}:{pair.kind}"))
    return kinds


def slow_pairs(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
    """Report a GPU that other GPUs of its node cannot reach by P2P although they reach each other."""
    for comm in facts.communicators:
        own = set(comm.hosts.get(node.host, ()))
        if len(own) < LEAST_RANKS:
            continue
        worst = _worst_kinds(comm.pairs, own)
        slow = {ends: kind for ends, kind in worst.items() if not kind.startswith("P2P")}
        fast = worst.keys() - slow.keys()
        shared = set.intersection(*map(set, slow)) if slow else set()
        beyond = set(chain(*fast)) - shared
        if shared and len(fast) >= len(slow) and len(beyond) >= LEAST_RANKS - 2:
            yield _odd(facts, comm, node, number, slow, min(shared))
            return


def _worst_kinds(pairs: Iterable[Pair], own: Set[int]) -> dict[tuple[int, int], str]:
    """Return the slowest transport between each two of these ranks."""
    worst: dict[tuple[int, int], str] = {}
    for pair in pairs:
        if pair.source in own and pair.target in own:
            ends = min(pair.source, pair.target), max(pair.source, pair.target)
            if speed(pair.kind) >= speed(worst.get(ends, "P2P")):
                worst[ends] = pair.kind
    return worst


def _odd(
    facts: NcclFacts,
    comm: Communicator,
    node: NcclNode,
    number: int,
    slow: Mapping[tuple[int, int], str],
    rank: int,
) -> Finding:
    kind = max(slow.values(), key=speed)
    pairs = ", ".join(f"{a} and {b}" for a, b in sorted(slow)[:3])
    nvlink = bool(comm.nvls)
    return Finding(
        "expect-p2p",
        "warning" if nvlink else "note",
        f"ranks {pairs} of {node.host} are connected over {kind}, and the other GPUs there by P2P",
        role="cause" if nvlink else "hint",
        rank=rank if len(slow) > 1 else None,
        node=number,
        remedy="Compare this GPU with the others: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`; where GPUs sit on two "
        "sockets without NVLink it is as it should be.",
        evidence=tuple(
            line
            for name in dict.fromkeys(slow.values())
            for line in _quoted(facts, f"pair:{comm.id}:{name}")
        ),
        ranks=tuple(sorted({rank for ends in slow for rank in ends})),
    )


def _quoted(facts: NcclFacts, key: str) -> list[str]:
    fact = facts.raw.get(key)
    return [f"{fact.file}:{fact.line}: {fact.text}"] if fact else []
