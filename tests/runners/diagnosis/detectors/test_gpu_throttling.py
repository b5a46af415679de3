"""A GPU that heat or its hardware holds back: reported after half a minute, once, on one node and on several."""

from __future__ import annotations

from each import for_each

from distui.presets.finding import Finding
from distui.runners.diagnosis.detectors import Judging
from distui.runners.run.model import Event, FindingRaised, RankPhase, RankPlace, RunPhase, Stamped
from distui.runners.run.samples import Gpu, RankSample
from distui.runners.run.state import Attempt, Node, Rank, RunState

HOT = ("power cap", "thermal (hardware)")
T = 1000.0


class Throttled:
    """Ranks 0 and 1 on GPUs 4 and 5; the judging of their run, and the findings that hold."""

    def __init__(self, nodes: int) -> None:
        places = tuple(RankPlace(rank, rank, node=rank if nodes > 1 else 0) for rank in range(2))
        self.state = RunState(attempts=[Attempt(1, T, "launch", 2, {}, places)], phase=RunPhase.RUNNING)
        for place in places:
            sample = RankSample(place.rank, gpu=4 + place.rank)
            self.state.ranks[place.rank] = Rank(place, RankPhase.RUNNING, sample=sample)
            self.state.nodes[place.node] = Node(place.node)
        self.told: list[str] = []
        self.now = T
        self.judging = Judging(self.state, None, self.emit)

    def emit(self, event: Event) -> None:
        if isinstance(event, FindingRaised):
            self.told.append(event.finding.text)
        self.state.apply(Stamped(self.now, event))

    def sample(self, at: float, words: tuple[str, ...]) -> None:
        """Sample both GPUs, of which rank 1's has these clock reasons, and judge."""
        self.now = at
        for node in self.state.nodes.values():
            node.gpus, node.gpu_sampled = (), at
        for number, rank in self.state.ranks.items():
            node = self.state.nodes[rank.place.node]
            index, reasons = 4 + number, words if number else ()
            gpu = Gpu(index, f"GPU-{index}", "H100", util=31.0, temp_c=91.0, throttle=reasons)
            node.gpus = (*node.gpus, gpu)
        self.judging.judge(at)

    @property
    def findings(self) -> list[Finding]:
        return [each for each in self.state.findings.values() if each.id.startswith("gpu-throttled")]


@for_each(("nodes", "where", "node"), [(1, "", 0), (2, " of node 1", 1)])
def test_a_gpu_that_its_hardware_holds_back_for_half_a_minute(nodes: int, where: str, node: int) -> None:
    it = Throttled(nodes)
    for second in range(30):
        it.sample(T + second, HOT)
    assert it.findings == []
    for second in range(30, 60):
        it.sample(T + second, HOT if second % 4 else ())
    (found,) = it.findings
    assert (found.id, found.rank, found.node, found.since) == ("gpu-throttled:gpu5", 1, node, T)
    assert found.text == (
        f"GPU 5{where} is throttled by its hardware: thermal (hardware) at 90 °C, for 30 s or longer (rank 1)"
    )
    assert len(it.told) == 1, "short interruptions change nothing"
    for second in range(60, 75):
        it.sample(T + second, ("power cap",))
    assert it.findings == [], "a power cap is a choice"


def test_a_straggler_with_that_gpu_is_not_reported_twice() -> None:
    it = Throttled(1)
    slow = Finding("straggler", "warning", "rank 1 holds the others up: thermal throttling", rank=1)
    it.emit(FindingRaised(slow))
    for second in range(60):
        it.sample(T + second, HOT)
    assert it.findings == []
