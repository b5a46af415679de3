"""Check networks: interfaces and names of each node, pairs of nodes, differences between nodes. Pure."""

from __future__ import annotations

import ipaddress
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...presets.finding import Finding, Severity, sentence
from ...presets.secrets import mask_text
from ..run.formatting import NA, agreeing, listed
from .node_checks import CLOCK_S, GIB, ExaminedNode

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
    back = node.get("dns", "reverse")
    if node.several and back is not None and back["name"] is None:
        text = (
            f"Its address {back['address']} has no name ({back['problem']}): some logs show addresses only."
        )
        yield node.finding("D-DNS-REVERSE", "note", text, back["address"])


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


# --- pairs: the groups that try an all-reduce, and the conclusions ------------------------------------------------
# Two rounds, as in DLRover's node check. In the first, each node is in one pair, and an odd node joins a pair. In the
# second, each node of a bad pair tries with a node of a good pair. A node that is bad in both rounds is the culprit. If
# both are good with others, the link between them is the culprit.

SLOW = 2.0
"""A pair is slow if the median pair is more than this many times faster."""
State = Literal["good", "slow", "wrong", "dead"]
STATES: tuple[State, ...] = ("good", "slow", "wrong", "dead")
"""States from best to worst."""
Members = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    members: Members
    size: int
    """Bytes that were reduced."""
    seconds: float | None = None
    """Seconds of one all-reduce on its slowest member; None without one."""
    right: bool = True
    problem: str = ""
    """Reason why there was no all-reduce, with the member that reported it."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second on each member's link (nccl-tests' bus bandwidth), comparable for two and three members."""
        if self.seconds is None:
            return None
        count = len(self.members)
        return 2 * (count - 1) / count * self.size / max(self.seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Blame:
    """Bad members, by number, and bad groups."""

    nodes: dict[int, State]
    links: dict[Members, State]
    """Groups that are bad although each member works with others, or that cannot be narrowed down."""
    nothing_works: bool = False
    """Whether more than two members tried and none succeeded, so that no member can be singled out."""


def first_round(count: int) -> list[Members]:
    """Return the pairs (0,1), (2,3)…. The last member of an odd number makes a pair a triple."""
    if count < 2:
        return []
    pairs: list[Members] = [(at, at + 1) for at in range(0, count - 1, 2)]
    if count % 2:
        pairs[-1] = (*pairs[-1], count - 1)
    return pairs


def usual(results: Iterable[Result]) -> float | None:
    """Return the median bandwidth of successful results; of two the higher. None without any."""
    bandwidths = [result.bandwidth for result in results if result.bandwidth is not None and result.right]
    return statistics.median_high(bandwidths) if bandwidths else None


def state(result: Result, reference: float | None) -> State:
    """Return the state of a group. `reference`: the usual bandwidth."""
    if result.bandwidth is None:
        return "dead"
    if not result.right:
        return "wrong"
    return "slow" if reference is not None and result.bandwidth * SLOW < reference else "good"


def second_round(first: Sequence[Result]) -> list[list[Members]]:
    """Return groups that resolve the open questions of the first round. Those of one list share no member."""
    reference = usual(first)
    good: list[int] = []
    suspects: list[int] = []
    for result in first:
        members = good if state(result, reference) == "good" else suspects
        members += result.members
    if good:
        pairs = [(suspect, good[at % len(good)]) for at, suspect in enumerate(suspects)]
    elif len(suspects) == 3:
        pairs = [(suspects[0], suspects[1]), (suspects[0], suspects[2]), (suspects[1], suspects[2])]
    elif len(suspects) > 3:
        half = len(suspects) // 2
        pairs = [(suspects[at], suspects[at + half]) for at in range(half)]
        pairs += [(suspects[-1], suspects[0])] if len(suspects) % 2 else []
    else:
        pairs = []
    return _waves(pairs)


def _waves(pairs: Sequence[tuple[int, int]]) -> list[list[Members]]:
    """Split the pairs into waves, so that no member is in two pairs of one wave."""
    waves: list[list[Members]] = []
    for pair in pairs:
        for wave in waves:
            if not any(member in group for group in wave for member in pair):
                wave.append(pair)
                break
        else:
            waves.append([pair])
    return waves


def verdict(first: Sequence[Result], second: Sequence[Result]) -> Blame:
    reference = usual(first) or usual(second)
    states = [(result.members, state(result, reference)) for result in (*first, *second)]
    outcomes: dict[int, list[State]] = defaultdict(list)
    for members, how in states:
        for member in members:
            outcomes[member].append(how)
    suspects = {member: found for member, found in sorted(outcomes.items()) if "good" not in found}
    if len(suspects) == len(outcomes) > 2:
        return Blame({}, {}, nothing_works=True)
    nodes = {member: _member_state(found) for member, found in suspects.items() if len(found) > 1}
    return Blame(nodes, _bad_links(states, nodes))


def _member_state(outcomes: Sequence[State]) -> State:
    """Return the worst outcome. A member that reduced with another is not dead: in failed groups, the other may be."""
    alive = [how for how in outcomes if how != "dead"]
    return max(alive or outcomes, key=STATES.index)


def _bad_links(states: Sequence[tuple[Members, State]], nodes: Mapping[int, State]) -> dict[Members, State]:
    """Return the bad groups that no member explains. A pair is more exact than its triple."""
    links: dict[Members, State] = {}
    for members, how in states:
        if how != "good" and not _explained(members, how, nodes):
            links[members] = how
    for members in list(links):
        if any(set(other) < set(members) for other in links):
            del links[members]
    return links


def _explained(members: Members, how: State, nodes: Mapping[int, State]) -> bool:
    """Whether one member of a group is as bad as the group."""
    return any(STATES.index(nodes.get(member, "good")) >= STATES.index(how) for member in members)


NODE: dict[State, tuple[str, Severity]] = {
    "dead": ("D-PAIR-DEAD", "error"),
    "wrong": ("D-PAIR-WRONG", "error"),
    "slow": ("D-PAIR-SLOW", "warning"),
}
LINK: dict[State, tuple[str, Severity]] = {
    "dead": ("D-LINK-DEAD", "error"),
    "wrong": ("D-LINK-WRONG", "error"),
    "slow": ("D-LINK-SLOW", "warning"),
}
REMEDIES: dict[State, str] = {
    "dead": "Check its network, firewall and driver, or leave it out.",
    "wrong": "Try NCCL_P2P_DISABLE=1; check ACS, the IOMMU and the memory of the GPUs; leave it out until then.",
    "slow": "Check its clocks, its cable and what else runs there, or leave it out.",
}
BETWEEN: dict[State, str] = {
    "dead": "Check for a firewall, a wrong interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) or a switch between them.",
    "wrong": "Try NCCL_P2P_DISABLE=1; check ACS and the IOMMU.",
    "slow": "Check the switch and the cables between them.",
}


def check_pairs(names: Sequence[str], first: Sequence[Result], second: Sequence[Result]) -> list[Finding]:
    """Report dead, wrong or slow members and links. `names`: of the members by number."""
    if not first:
        return []
    blame = verdict(first, second)
    results = [*first, *second]
    if blame.nothing_works:
        return [
            Finding(
                id="D-PAIRS",
                severity="error",
                where="",
                value=f"0 of {len(results)} pairs",
                text=sentence(f"No pair of nodes could reduce anything: {first[0].problem}"),
                remedy="Check for a firewall between all of them, or a wrong GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME.",
            )
        ]
    reference = usual(first) or usual(second)
    findings = [_node(names, member, how, results, reference) for member, how in blame.nodes.items()]
    return findings + _links(names, blame, results, reference)


def _node(
    names: Sequence[str], member: int, how: State, results: Sequence[Result], reference: float | None
) -> Finding:
    name = names[member]
    own = [result for result in results if member in result.members]
    tried = [result for result in own if (result.bandwidth is None) == (how == "dead")]
    partners = ", ".join(names[other] for result in tried for other in result.members if other != member)
    id_, severity = NODE[how]
    text = {
        "dead": sentence(f"{name} could reduce with none of its partners ({partners}): {_why(tried)}"),
        "wrong": f"{name} gets wrong sums with everybody it could reduce with ({partners}).",
        "slow": f"{name} is slow with everybody it could reduce with ({partners}).",
    }[how]
    return Finding(
        id=id_,
        severity=severity,
        where=name,
        value=_value(tried[-1], reference),
        text=text,
        remedy=REMEDIES[how],
    )


def _links(
    names: Sequence[str], blame: Blame, results: Sequence[Result], reference: float | None
) -> list[Finding]:
    findings = []
    for members, how in blame.links.items():
        both = " and ".join(names[member] for member in members)
        result = next(result for result in results if result.members == members)
        only = len(names) == 2
        others = "" if only else ", and each of them does so with others"
        text = {
            "dead": sentence(f"{both} cannot reduce with each other{others}: {result.problem}"),
            "wrong": f"{both} get wrong sums with each other{others}.",
            "slow": f"{both} are slow with each other{others}.",
        }[how]
        id_, severity = LINK[how]
        findings.append(
            Finding(
                id=id_,
                severity=severity,
                where=both.replace(" and ", ", "),
                value=_value(result, reference),
                text=text,
                remedy=BETWEEN[how],
            )
        )
    return findings


def _why(tried: Sequence[Result]) -> str:
    return next((result.problem for result in reversed(tried) if result.problem), "no reason was reported")


def _value(result: Result, reference: float | None) -> str:
    if result.bandwidth is None:
        return NA
    usual_ = "" if reference is None else f", the others {reference / 1e9:.2f} GB/s"
    return f"{result.bandwidth / 1e9:.2f} GB/s{usual_}"


# --- differences: properties that nodes of one run must have in common ----------------------------------------------

Value = object
Row = tuple[str, Severity, str, Callable[[ExaminedNode], Value], str, str]
MOST_NAMED = 6


def _training(name: str) -> Callable[[ExaminedNode], Value]:
    return lambda node: node.get("training", name)


def _nccl(node: ExaminedNode) -> str | None:
    """Return NCCL's settings. The environment overrides NCCL's files."""
    if node.get("env") is None:
        return None
    settings = {
        name: value for name, value in node.settings.items() if name.startswith(("NCCL_", "TORCH_NCCL_"))
    }
    return " ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "none"


def _mtu(node: ExaminedNode) -> Value:
    face = node.interface
    return None if face is None else face["mtu"]


def _minor(node: ExaminedNode) -> str | None:
    version = node.get("training", "python")
    return None if version is None else ".".join(str(version).split(".")[:2])


def _memory(node: ExaminedNode) -> str | None:
    """Return the memory in steps of 8 GiB: the firmware's share varies a little."""
    size = node.get("memory")
    return None if size is None else f"{8 * round(size / GIB / 8)} GiB"


def _loaded(node: ExaminedNode) -> str | None:
    loaded = node.get("gpudirect", "peermem")
    if loaded is None or not node.gpus:
        return None
    return "loaded" if loaded else "not loaded"


SAME = "Make the environments the same: one image, or one shared home."
LIKE = "Use like nodes."
ROWS: tuple[Row, ...] = (
    ("D-DIFF-TORCH", "error", "torch {}", _training("torch"), "Different versions of torch may be incompatible.", SAME),
    ("D-DIFF-CUDA", "error", "CUDA {} in torch", _training("cuda"), "They are built for different CUDA.", SAME),
    ("D-DIFF-NCCL", "error", "NCCL {}", _training("nccl"), "NCCL refuses ranks of another version.", SAME),
    ("D-DIFF-PYTHON", "warning", "Python {}", _minor, "Pickled objects of one may not load in another.", SAME),
    ("D-DIFF-DRIVER", "warning", "driver {}", lambda node: node.driver, "Different drivers have made NCCL fail.",
     "Install the same driver on all."),
    ("D-DIFF-GPUS", "warning", "GPUs: {}", lambda node: node.models,
     "Each step waits for the slowest, and torchrun starts as many on each.",
     f"{LIKE[:-1]}, or give --nproc-per-node."),
    ("D-DIFF-IB", "warning", "active InfiniBand ports: {}", lambda node: node.ports,
     "A ring is as wide as its narrowest node.",
     "Check the ports of the others (ibstat)."),
    ("D-DIFF-PEERMEM", "warning", "nvidia_peermem {}", _loaded, "A link with GPUDirect at one end is slow, or fails.",
     "modprobe nvidia_peermem on the others."),
    ("D-DIFF-MTU", "warning", "MTU {}", _mtu, "Packets too large for the other side are lost, and connections hang.",
     "Set the same MTU (ip link set dev NAME mtu N)."),
    ("D-DIFF-NCCL-ENV", "warning", "NCCL settings: {}", _nccl, "Ranks that choose differently hang or fail.",
     "Set them the same everywhere, best with --nccl at the launch."),
    ("D-DIFF-ARCH", "warning", "{} processors", lambda node: node.get("machine"), "One environment seldom serves both.",
     LIKE),
    ("D-DIFF-CORES", "note", "{} cores", lambda node: node.get("cores"), "Data loading is slower on some.", ""),
    ("D-DIFF-MEMORY", "note", "{} of memory", _memory, "What fits on one may not fit on another.", ""),
    ("D-DIFF-KERNEL", "note", "kernel {}", lambda node: node.get("kernel"), "Mostly harmless.", ""),
)  # fmt: skip
"""ID, severity, format of a value, the value, why it matters, remedy."""


def check_differences(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Report every difference. Unknown values do not count."""
    if len(nodes) < 2:
        return []
    findings = []
    for id_, severity, phrase, of, why, remedy in ROWS:
        text = differs(phrase, {node.name: of(node) for node in nodes})
        if text:
            findings.append(
                Finding(
                    id=id_, severity=severity, where="", value=text, text=f"{text}. {why}", remedy=remedy
                )
            )
    return [*findings, *_clocks(nodes), *_machines(nodes)]


def differs(phrase: str, values: Mapping[str, Value]) -> str:
    """Return the nodes with each value, the most frequent last; "" if all values are equal or unknown."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        if value is not None:
            groups.setdefault(str(value), []).append(name)
    if len(groups) < 2:
        return ""
    *few, (usual, others) = sorted(groups.items(), key=lambda pair: len(pair[1]))
    phrases = [
        f"{_who(names)} {agreeing(names, 'has', 'have')} {phrase.format(value)}" for value, names in few
    ]
    if len(others) > 1:
        return f"{', '.join(phrases)}, the other {len(others)} have {usual}"
    return f"{', '.join(phrases)}, {others[0]} has {usual}"


def _who(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMED:
        return listed(names, MOST_NAMED)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _clocks(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Compare the nodes' clocks with each other. A difference from this machine's clock does not matter here."""
    clocks = [(node.ahead_s, node.doubt_s, node.name) for node in nodes if node.ahead_s is not None]
    if len(clocks) < 2:
        return []
    (low, doubt, late), (high, other, early) = min(clocks), max(clocks)
    if high - low - doubt - other <= CLOCK_S:
        return []
    value = f"{high - low:.1f} s"
    text = f"The clock of {early} is {value} ahead of that of {late}: the order of events is not known."
    remedy = "Start chrony or systemd-timesyncd on all."
    return [Finding(id="D-DIFF-CLOCK", severity="warning", where="", value=value, text=text, remedy=remedy)]


def _machines(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.get("boot"):
            groups.setdefault(node.get("boot"), []).append(node.name)
    return [
        Finding(
            id="D-SAME-MACHINE",
            severity="note",
            where="",
            value=f"{len(names)} nodes",
            text=f"{_who(names)} are one machine: they share its cores, memory and GPUs.",
            remedy="Name each machine once, unless you are trying things out.",
        )
        for names in groups.values()
        if len(names) > 1
    ]
