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
from ..run.samples import Gpu
from . import nccl_facts
from .nccl_facts import Communicator, NcclFacts, NcclNode, Pair, preference, requests_sockets
from .view import View

READ_AT_INIT = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO"})
"""Variables that every NCCL reads and logs while it creates its first communicator of several ranks."""
SILENT = ("NCCL_DEBUG", "NCCL_RAS", "NCCL_SET_THREAD_NAME", "NCCL_CONF_FILE", "NCCL_NO_CACHE")
"""Prefixes of variables that NCCL reads without logging them."""
SETTLED_S = 20.0
"""Seconds before ranks that have not met are more than late starters."""
LATE_S = 60.0
"""Seconds that replace SETTLED_S if the subnet is the only evidence."""
VIRTUAL = re.compile(r"lo$|docker|veth|virbr|br-|cni|flannel|cali|tunl|ip6tnl")
"""Interfaces that rarely lead to another machine."""
COMPLETE = frozenset({"complete", "connected", "running", "destroyed"})
LEAST_RANKS = 4
"""Minimum number of ranks on a node that shows which one is different."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLogs:
    """One node's logs, for the comparison with other nodes."""

    number: int
    facts: NcclFacts
    node: NcclNode
    """The only host that the logs name."""
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
        return _quoted(self.facts, f"{what}:{self.node.host}")

    @property
    def address(self) -> Address | None:
        try:
            return ipaddress.ip_address(self.node.bootstrap.partition(":")[2].partition("%")[0])
        except ValueError:
            return None

    @property
    def site(self) -> str:
        """First half of its IPv4 address, which names the site: smaller subnets are often routed to each other."""
        address = self.address
        return ".".join(str(address).split(".")[:2]) if isinstance(address, ipaddress.IPv4Address) else ""

    @property
    def network(self) -> str:
        """Its network between nodes; "" if it uses none or several."""
        return self.node.networks[0].partition(" over ")[0] if len(self.node.networks) == 1 else ""


class Expectations:
    """Findings from all nodes' facts. Decodes each document once and keeps each node's newest."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[bytes, NcclFacts, NodeLogs | None]] = {}

    def find(self, view: View) -> Iterable[Finding]:
        """Return the findings of all nodes."""
        newest = list(self._all(view))
        facts = [each for each, _ in newest]
        nodes = [node for _, node in newest if node is not None]
        network = list(_networks(nodes))
        odd = {finding.node for finding in network}
        return [
            *chain(*(_weighed(each, view) for each in nodes)),
            *network,
            *chain(*(_sockets(each, view) for each in nodes if each.number not in odd)),
            *_interfaces(nodes, view),
            *_versions(nodes, view),
            *unread(facts, view.plan),
        ]

    def _all(self, view: View) -> Iterator[tuple[NcclFacts, NodeLogs | None]]:
        for number, node in view.state.nodes.items():
            if node.nccl is None:
                continue
            kept = self._newest.get(number)
            if kept is None or kept[0] != node.nccl:
                try:
                    facts = nccl_facts.decode(node.nccl)
                except msgspec.MsgspecError:
                    continue
                kept = self._newest[number] = (node.nccl, facts, _node_logs(number, facts))
            yield kept[1:]


def _node_logs(number: int, facts: NcclFacts) -> NodeLogs | None:
    if len(facts.nodes) != 1:
        return None
    (node,) = facts.nodes
    wide = [comm for comm in facts.communicators if comm.nnodes is not None and comm.nnodes > 1]
    waiting = [comm.seen for comm in facts.communicators if comm.seen and "started" in comm.stages.values()]
    return NodeLogs(
        number=number,
        facts=facts,
        node=node,
        several=bool(wide),
        complete=bool(wide) and all(map(_complete, wide)),
        since=min(waiting, default=None),
        own=(*_gpudirect(facts, node, number), *_slow_pairs(facts, node, number)),
    )


def _complete(comm: Communicator) -> bool:
    return bool(comm.stages) and all(stage in COMPLETE for stage in comm.stages.values())


def unread(facts: Sequence[NcclFacts], plan: Plan | None) -> Iterator[Finding]:
    """Report variables that NCCL did not read, if it logs reads and every node has completed a communicator."""
    envs = [node.env for each in facts for node in each.nodes]
    if plan is None or not all(map(_has_read_variables, facts)) or not envs or not all(envs):
        return  # NCCL logs reads only with ENV in NCCL_DEBUG_SUBSYS
    read = dict(ChainMap(*reversed(envs)))
    for name in sorted(plan.env.keys() - read.keys()):
        if name.startswith("NCCL_") and not name.startswith(SILENT):
            yield _unread_variable(name, plan.env[name], sorted(read))


def _has_read_variables(facts: NcclFacts) -> bool:
    """Whether the node's ranks have completed a communicator of several ranks."""
    return any(_complete(comm) and (comm.nranks or 0) > 1 for comm in facts.communicators)


def _unread_variable(name: str, value: str, read: Sequence[str]) -> Finding:
    near = suggestion(name)
    alarm = name in READ_AT_INIT or bool(near)
    if near:
        why = f"it looks like {near}"
    elif name not in catalogue():
        why = "no NCCL is known to read it"
    elif alarm:
        why = "it was set too late, or the processes do not see it"
    else:
        why = "it is read only where it is needed"
    more = f" and {len(read) - 8} others" if len(read) > 8 else ""
    return Finding(
        f"expect-env:{name}",
        "warning" if alarm else "note",
        f"NCCL has not read {name}: {why}",
        role="cause" if alarm else "hint",
        remedy=f"Write {near}." if near else "See `distui lint`, and set it in the preset or with --nccl.",
        evidence=(f"the plan sets {name}={value}", f"NCCL logs that it read {', '.join(read[:8])}{more}"),
    )


def _weighed(logs: NodeLogs, view: View) -> Iterator[Finding]:
    """Yield findings from one node's logs, with a severity that depends on its GPUs."""
    gpus = view.state.nodes[logs.number].gpus
    level = view.plan.env.get("NCCL_NET_GDR_LEVEL", "") if view.plan is not None else ""
    for finding in logs.own:
        if finding.id == "expect-gdr" and (_is_local(level) or _are_geforce(gpus)):
            continue
        if finding.id == "expect-p2p" and _have_nvlink(gpus):
            finding = replace(finding, severity="warning", role="cause")
        yield finding


def _is_local(level: str) -> bool:
    """Whether a value of NCCL_NET_GDR_LEVEL switches GPUDirect RDMA off."""
    return level.upper() in ("0", "LOC")


def _are_geforce(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and all("GeForce" in gpu.name for gpu in gpus)


def _have_nvlink(gpus: Sequence[Gpu]) -> bool:
    return bool(gpus) and all(gpu.nvlink_tx_bps is not None for gpu in gpus)


def _warning(name: str, text: str, node: int | None, remedy: str, evidence: Iterable[str]) -> Finding:
    return Finding(name, "warning", text, node=node, remedy=remedy, evidence=tuple(evidence))


def _sockets(logs: NodeLogs, view: View) -> Iterator[Finding]:
    """Report TCP between nodes although RDMA devices exist."""
    node = logs.node
    plan = view.plan.env if view.plan is not None else {}
    devices = node.devices or tuple(sorted(node.hcas))
    if not logs.several or node.networks != ("Socket",) or not devices:
        return
    if requests_sockets(node.env) or requests_sockets(plan):
        return
    names = ", ".join(devices[:4])
    if len(devices) > 4:
        names += ", …"
    yield _warning(
        "expect-network",
        f"{node.host} talks to other nodes over TCP, although it has RDMA devices: many times slower",
        logs.number,
        "See why NCCL did not take them: the container needs /dev/infiniband, libibverbs and an unlimited memlock; "
        "NCCL_IB_HCA must name them; on EFA the aws-ofi-nccl plugin must be found.",
        [*logs.line("network"), f"active ports on {node.host}: {names}"],
    )


def _networks(nodes: Sequence[NodeLogs]) -> Iterator[Finding]:
    """Report nodes with another network than most. If it is one against one, report the one with TCP."""
    chosen = [each for each in nodes if each.network]
    counted = Counter(each.network for each in chosen)
    if len(counted) < 2 or not any(each.several for each in nodes):
        return
    usual = max(counted, key=lambda name: (counted[name], name != "Socket", name))
    other = next(each for each in chosen if each.network == usual)
    for each in chosen:
        if each.network != usual:
            yield _odd_network(each, other)


def _odd_network(logs: NodeLogs, other: NodeLogs) -> Finding:
    ports = ", ".join(logs.node.devices[:4])
    active = [f"active RDMA ports on {logs.node.host}: {ports}"] if ports else []
    return _warning(
        "expect-same-network",
        f"{logs.node.host} took the network {logs.network}, and other nodes {other.network}",
        logs.number,
        "Compare devices, drivers, plugins and NCCL_NET, NCCL_IB_* of this node with those of another.",
        [*logs.line("network"), *other.line("network"), *active],
    )


def _interfaces(nodes: Sequence[NodeLogs], view: View) -> Iterator[Finding]:
    """Report bootstrap interfaces that cannot reach other nodes, while the ranks have not met."""
    if len(view.state.nodes) < 2 and not any(each.several for each in nodes):
        return
    usual = _usual_site(nodes)
    for each in nodes:
        why, evidence = _doubt(each, nodes, usual, view.now)
        if why:
            yield _warning(
                "expect-interface",
                f"{each.node.host} meets the other nodes over {each.node.bootstrap}, {why}",
                each.number,
                "Pin the interface that the nodes share: NCCL_SOCKET_IFNAME=<name>, or exclude with ^docker,lo,veth.",
                evidence,
            )


def _doubt(logs: NodeLogs, nodes: Iterable[NodeLogs], usual: str, now: float) -> tuple[str, list[str]]:
    """Return why the interface may not reach other nodes, and the evidence; "" if it may."""
    if logs.since is None or not logs.node.bootstrap:
        return "", []
    waited = now - logs.since
    if waited > SETTLED_S and (why := _unreachable(logs)):
        return why, logs.line("bootstrap")
    if waited > LATE_S and usual and logs.site not in ("", usual):
        other = next(each for each in nodes if each.site == usual)
        return f"and the others are in {usual}.0.0/16", [*logs.line("bootstrap"), *other.line("bootstrap")]
    return "", []


def _unreachable(logs: NodeLogs) -> str:
    """Return why an interface does not reach other nodes; "" if it may."""
    address = logs.address
    if address is not None and address.is_loopback:
        return "a loopback address that no other node can reach"
    if address is not None and address.is_link_local:
        return "a link-local address that other nodes can seldom reach"
    if VIRTUAL.match(logs.node.bootstrap):
        return "a virtual interface that seldom leads to another machine"
    return ""


def _usual_site(nodes: Iterable[NodeLogs]) -> str:
    """Return the site of more than half of at least three nodes with an address, else ""."""
    sites = [each.site for each in nodes if each.address is not None]
    if len(sites) < 3:
        return ""
    ((site, count),) = Counter(sites).most_common(1)
    return site if 2 * count > len(sites) else ""


def _versions(nodes: Sequence[NodeLogs], view: View) -> Iterator[Finding]:
    """Report nodes of one job with different NCCL releases."""
    if any(name == "version-mismatch" and node is not None for name, _, node in view.state.findings):
        return  # NCCL's own finding covers it
    by_release = _by_release(nodes)
    if len(by_release) < 2:
        return
    ordered = sorted(by_release.items(), key=lambda item: -len(item[1]))[:3]
    text = ", ".join(f"{release} on {plural(len(those), 'node')}" for release, those in ordered)
    finding = _warning(
        "version-mismatch",
        f"the nodes have loaded different releases of NCCL: {text}",
        None,
        "Make image, LD_LIBRARY_PATH and LD_PRELOAD the same on all nodes.",
        chain(*(those[0].line("version") for _, those in ordered)),
    )
    yield finding if _have_met(nodes) else replace(finding, severity="error")


def _have_met(nodes: Iterable[NodeLogs]) -> bool:
    """Whether communicators span nodes, and all ranks have completed them."""
    wide = [each for each in nodes if each.several]
    return bool(wide) and all(each.complete for each in wide)


def _by_release(nodes: Iterable[NodeLogs]) -> dict[str, list[NodeLogs]]:
    """Return the nodes with a single version of NCCL by its release."""
    by_release: dict[str, list[NodeLogs]] = {}
    for each in nodes:
        if len(each.node.versions) == 1:
            by_release.setdefault(each.node.versions[0].partition("+")[0], []).append(each)
    return by_release


def _gpudirect(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
    """Report RDMA that never uses GPU memory directly. One direction is normal: see NCCL_NET_GDR_READ."""
    if not (node.devices or node.hcas) or _is_local(node.env.get("NCCL_NET_GDR_LEVEL", "")):
        return
    kinds = _ib_lines(facts)
    has_ranks = any(any(comm.hosts.values()) for comm in facts.communicators)
    if not has_ranks or not kinds or any(kind.endswith("/GDRDMA") for kind in kinds):
        return
    loaded = [f"nvidia_peermem is loaded on {node.host}"] if node.peermem else []
    yield _warning(
        "expect-gdr",
        f"{node.host} sends over RDMA through host memory: GPUDirect RDMA is off",
        number,
        "Load nvidia_peermem (or a kernel and driver with dma-buf), and see that GPUs and NICs share PCIe "
        "switches: `nvidia-smi topo -m`. GeForce cards cannot do it at all.",
        [*[*chain(*kinds.values())][:2], *loaded],
    )


def _ib_lines(facts: NcclFacts) -> dict[str, list[str]]:
    """Return the first line about each kind of connection over InfiniBand or RoCE."""
    kinds: dict[str, list[str]] = {}
    for comm in facts.communicators:
        for pair in comm.pairs:
            if pair.kind.startswith("NET/IB"):
                kinds.setdefault(pair.kind, _quoted(facts, f"pair:{comm.id}:{pair.kind}"))
    return kinds


def _slow_pairs(facts: NcclFacts, node: NcclNode, number: int) -> Iterator[Finding]:
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
            yield _odd_gpu(facts, comm, node, number, slow, min(shared))
            return


def _worst_kinds(pairs: Iterable[Pair], own: Set[int]) -> dict[tuple[int, int], str]:
    """Return the slowest transport between each two of these ranks."""
    worst: dict[tuple[int, int], str] = {}
    for pair in pairs:
        if pair.source in own and pair.target in own:
            ends = min(pair.source, pair.target), max(pair.source, pair.target)
            if preference(pair.kind) >= preference(worst.get(ends, "P2P")):
                worst[ends] = pair.kind
    return worst


def _odd_gpu(
    facts: NcclFacts,
    comm: Communicator,
    node: NcclNode,
    number: int,
    slow: Mapping[tuple[int, int], str],
    rank: int,
) -> Finding:
    kind = max(slow.values(), key=preference)
    pairs = ", ".join(f"{a} and {b}" for a, b in sorted(slow)[:3])
    nvlink = bool(comm.nvls)
    lines = (_quoted(facts, f"pair:{comm.id}:{name}") for name in dict.fromkeys(slow.values()))
    return Finding(
        "expect-p2p",
        "warning" if nvlink else "note",
        f"ranks {pairs} of {node.host} are connected over {kind}, and the other GPUs there by P2P",
        role="cause" if nvlink else "hint",
        rank=rank if len(slow) > 1 else None,
        node=number,
        remedy="Compare this GPU with the others: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`; where GPUs sit on two "
        "sockets without NVLink it is as it should be.",
        evidence=tuple(chain(*lines)),
        ranks=tuple(sorted(set(chain(*slow)))),
    )


def _quoted(facts: NcclFacts, key: str) -> list[str]:
    fact = facts.raw.get(key)
    return [f"{fact.file}:{fact.line}: {fact.text}"] if fact else []
