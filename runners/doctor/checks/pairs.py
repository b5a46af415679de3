"""From the two rounds of all-reduces to findings."""

from __future__ import annotations

from collections.abc import Sequence

from ....presets.finding import Finding, Severity
from ..look import sentence
from ..pairing import Result, State, Verdict, usual, verdict

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
    "dead": "Look at its network, firewall and driver, or leave it out.",
    "wrong": "Try NCCL_P2P_DISABLE=1; look at ACS, the IOMMU and the memory of the GPUs; leave it out until then.",
    "slow": "Look at its clocks, its cable and what else runs there, or leave it out.",
}
BETWEEN: dict[State, str] = {
    "dead": "Look for a firewall, a wrong interface (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME) or a switch between them.",
    "wrong": "Try NCCL_P2P_DISABLE=1; look at ACS and the IOMMU.",
    "slow": "Look at the switch and the cables between them.",
}


def check(names: Sequence[str], first: Sequence[Result], second: Sequence[Result]) -> list[Finding]:
    """Who is dead, wrong or slow. `names`: of the members by number."""
    if not first:
        return []
    said = verdict(first, second)
    results = [*first, *second]
    if said.nothing_works:
        return [
            Finding(
                id="D-PAIRS", severity="error", where="", value=f"0 of {len(results)} pairs",
                text=sentence(f"No pair of nodes could reduce anything: {first[0].problem}"),
                remedy="Look for a firewall between all of them, or a wrong GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME.",
            )
        ]  # fmt: skip
    reference = usual(first) or usual(second)
    found = [_node(names, member, how, results, reference) for member, how in said.nodes.items()]
    return found + _links(names, said, results, reference)


def _node(
    names: Sequence[str], member: int, how: State, results: Sequence[Result], reference: float | None
) -> Finding:
    name = names[member]
    tried = [one for one in results if member in one.members and (one.bandwidth is None) == (how == "dead")]
    partners = ", ".join(names[other] for one in tried for other in one.members if other != member)
    id_, severity = NODE[how]
    text = {
        "dead": sentence(f"{name} could reduce with nobody it was paired with ({partners}): {_why(tried)}"),
        "wrong": f"{name} gets wrong sums with everybody it could reduce with ({partners}).",
        "slow": f"{name} is slow with everybody it could reduce with ({partners}).",
    }[how]
    return Finding(
        id=id_, severity=severity, where=name, value=_value(tried[-1], reference), text=text,
        remedy=REMEDIES[how],
    )  # fmt: skip


def _links(
    names: Sequence[str], said: Verdict, results: Sequence[Result], reference: float | None
) -> list[Finding]:
    found = []
    for members, how in said.links.items():
        both = " and ".join(names[member] for member in members)
        one = next(result for result in results if result.members == members)
        only = len(names) == 2
        others = "" if only else ", and each of them does so with others"
        text = {
            "dead": sentence(f"{both} cannot reduce with each other{others}: {one.problem}"),
            "wrong": f"{both} get wrong sums with each other{others}.",
            "slow": f"{both} are slow with each other{others}.",
        }[how]
        id_, severity = LINK[how]
        found.append(
            Finding(
                id=id_, severity=severity, where=both.replace(" and ", ", "),
                value=_value(one, reference), text=text, remedy=BETWEEN[how],
            )
        )  # fmt: skip
    return found


def _why(tried: Sequence[Result]) -> str:
    return next((one.problem for one in reversed(tried) if one.problem), "it did not say why")


def _value(one: Result, reference: float | None) -> str:
    if one.bandwidth is None:
        return "n/a"
    usual_ = "" if reference is None else f", the others {reference / 1e9:.2f} GB/s"
    return f"{one.bandwidth / 1e9:.2f} GB/s{usual_}"
