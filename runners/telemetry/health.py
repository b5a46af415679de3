"""What is wrong with a GPU, from one sample of it. Pure. For Xid errors see `words.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ..model import Event, Finding, FindingCleared, FindingRaised, Gpu

Key = tuple[str, int | None, int | None]


class Rule(NamedTuple):
    """One thing that can be wrong; `text` and `remedy` are sentences, `text` about "GPU <index>"."""

    id: str
    severity: str
    holds: Callable[[Gpu], bool]
    text: str
    remedy: str


RULES = (
    Rule(
        "gpu-lost",
        "error",
        lambda gpu: gpu.lost,
        "GPU {0.index} is lost: the driver no longer reaches it",
        "restart without this node; the GPU needs a reset, mostly a reboot",
    ),
    Rule(
        "gpu-ecc",
        "error",
        lambda gpu: bool(gpu.ecc_uncorrected),
        "GPU {0.index} counts {0.ecc_uncorrected} uncorrected ECC errors since the driver was loaded",
        "results since then may be wrong; reset the GPU and watch whether the errors come back",
    ),
    Rule(
        "gpu-remap-failed",
        "error",
        lambda gpu: gpu.remap_failed is True,
        "GPU {0.index} could not replace a broken memory row",
        "have the GPU exchanged",
    ),
    Rule(
        "gpu-remap-pending",
        "warn",
        lambda gpu: gpu.remap_pending is True,
        "GPU {0.index} will replace a broken memory row at its next reset",
        "reset the GPU before the next run",
    ),
    Rule(
        "gpu-recovery",
        "warn",
        lambda gpu: gpu.recovery is not None,
        "the driver asks for GPU {0.index}: {0.recovery}",
        "do that when the run has ended",
    ),
)


def judge(gpus: Iterable[Gpu], node: int | None = None) -> tuple[Finding, ...]:
    """The findings that hold for these GPUs now; ids end in ":gpu<index>"."""
    return tuple(
        Finding(
            f"{rule.id}:gpu{gpu.index}", rule.severity, rule.text.format(gpu), node=node, remedy=rule.remedy
        )
        for gpu in gpus
        for rule in RULES
        if rule.holds(gpu)
    )


def changes(raised: Mapping[Key, Finding], now: Iterable[Finding]) -> list[Event]:
    """Events that lead from the findings raised before to those that hold now.

    A finding whose words changed (a count grew) is raised anew.
    """
    current = {key(finding): finding for finding in now}
    cleared = [FindingCleared(*one) for one in raised if one not in current]
    return [*cleared, *(FindingRaised(one) for at, one in current.items() if raised.get(at) != one)]


def key(finding: Finding) -> Key:
    """What `RunState` knows a finding by."""
    return finding.id, finding.rank, finding.node
