"""All-reduces of pairs: which pairs to try, and which node or link is to blame."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...presets.finding import Finding, Severity
from ...presets.sanitize import sentence
from ..run.formatting import NA

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
        "wrong": f"{name} gets wrong sums with every node that it could reduce with ({partners}).",
        "slow": f"{name} is slow with every node that it could reduce with ({partners}).",
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
        others = "" if only else ", but each of them works with others"
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
