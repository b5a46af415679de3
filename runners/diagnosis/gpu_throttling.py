"""GPUs whose clocks are held back by heat or by the power supply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from ...presets.finding import Finding
from ..run.formatting import spans_text
from ..run.samples import Gpu
from ..run.state import Node
from .straggler import ID as STRAGGLER
from .view import View

LEAST_S = 30.0
"""Seconds of throttling before a finding."""
GAP_S = 10.0
"""Seconds without throttling that end it: a hot GPU goes back and forth."""
OF_HARDWARE = ("hardware slowdown", "power brake")
"""Clock reasons that come from the hardware, next to those that contain "thermal". A power cap is a choice."""
ID = "gpu-throttled:gpu"

_Place = tuple[int, int]
"""Node, and index of the GPU on it."""


class GpuThrottles:
    """Reports GPUs of the run that are throttled for LEAST_S. It keeps when that began."""

    def __init__(self) -> None:
        self._began: dict[_Place, float] = {}
        self._last: dict[_Place, float] = {}
        """Time of the newest sample that shows it; both times are the node's own."""

    def find(self, view: View) -> Iterable[Finding]:
        """Report throttled GPUs, unless the rank on it is already reported as a straggler, with this reason."""
        slow = {finding.rank for finding in view.state.findings.values() if finding.id == STRAGGLER}
        ranks = _ranks_of_gpus(view)
        for number, node in view.state.nodes.items():
            for gpu in self._throttled(number, node):
                users = ranks.get((number, gpu.index), [])
                if users and slow.isdisjoint(users):
                    yield from self._findings(view, number, gpu, users)

    def _throttled(self, number: int, node: Node) -> Iterator[Gpu]:
        """Yield the GPUs of a node that have been throttled for long enough by the newest sample."""
        now = node.gpu_sampled
        for gpu in node.gpus:
            place = number, gpu.index
            if hardware_reasons(gpu):
                self._began.setdefault(place, now)
                self._last[place] = now
            elif now - self._last.get(place, 0.0) >= GAP_S:
                self._began.pop(place, None)
            if now - self._began.get(place, now) >= LEAST_S:
                yield gpu

    def _findings(self, view: View, number: int, gpu: Gpu, ranks: list[int]) -> Iterator[Finding]:
        """Yield the finding about a GPU: the present one, or a new one."""
        name, fields, reasons = f"{ID}{gpu.index}", view.rank_fields(ranks), hardware_reasons(gpu)
        before = view.state.findings.get((name, fields["rank"], fields["node"]))
        if before is not None or not reasons:
            yield from filter(None, [before])
            return
        where = f" of {view.host(number)}" if view.has_several_nodes() else ""
        heat = "" if gpu.temp_c is None else f" at {5 * round(gpu.temp_c / 5)} °C"
        yield Finding(
            id=name,
            severity="warning",
            text=f"GPU {gpu.index}{where} is throttled by its hardware: {', '.join(reasons)}{heat}, "
            f"for {LEAST_S:.0f} s or longer ({spans_text('rank', ranks)})",
            remedy="check cooling and power supply of the node (nvidia-smi -q -d PERFORMANCE), or leave the node out",
            since=self._began[number, gpu.index],
            **fields,
        )


def hardware_reasons(gpu: Gpu) -> list[str]:
    """Return the clock reasons that come from heat or from the hardware."""
    return [word for word in gpu.throttle or () if "thermal" in word or word in OF_HARDWARE]


def _ranks_of_gpus(view: View) -> dict[_Place, list[int]]:
    """Return the ranks on each GPU."""
    ranks = defaultdict[_Place, list[int]](list)
    for number, rank in view.state.ranks.items():
        if rank.sample is not None and rank.sample.gpu is not None:
            ranks[rank.place.node, rank.sample.gpu].append(number)
    return ranks
