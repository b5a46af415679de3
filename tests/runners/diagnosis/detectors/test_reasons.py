"""Why a rank is slow, from what sets it apart; what holds for all ranks alike is no reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from each import for_each
from msgspec.structs import replace

from distui.runners.diagnosis.slow_reasons import Reason, reasons
from distui.runners.diagnosis.view import View
from distui.runners.run.pulse import RankThread, Site
from distui.runners.run.samples import Gpu, Host, RankSample

from .hang_rig import STEP, Made, series
from .lag_rig import LOADER, STACK, Training

SLOW = 5
"""The rank in question, on the second of two nodes with four GPUs each."""


def joined(
    own: dict[str, Any] | None = None,
    usual: dict[str, Any] | None = None,
    *,
    sample: dict[str, Any] | None = None,
    samples: dict[str, Any] | None = None,
    host: dict[str, Any] | None = None,
    hosts: dict[str, Any] | None = None,
    stacks: dict[int, Sequence[Site]] | None = None,
) -> list[Reason]:
    """The reasons of rank 5, with fields of its GPU, process and node, and of those of the others."""
    training = Training(ranks=8, nodes=2, stacks=stacks or {})
    state = training.state()
    for number, rank in state.ranks.items():
        fields = (sample if number == SLOW else samples) or {}
        rank.sample = RankSample(number, gpu=number % 4, **fields)
    for number, node in state.nodes.items():
        node.metrics = Host(cores=64, **((host if number == 1 else hosts) or {}))
        node.gpus = tuple(
            Gpu(
                index,
                f"{number}-{index}",
                "H100",
                util=99.0,
                **((own if (number, index) == (1, 1) else usual) or {}),
            )
            for index in range(4)
        )
    history = training.history() if stacks else {}
    return reasons(View(state=state, plan=None, now=0.0, history=history), SLOW)


def texts(found: list[Reason]) -> list[str]:
    return [one.text for one in found]


@for_each(("halts", "named"), [(0, False), (1, False), (2, True), (8, True)])
def test_a_rank_that_is_stopped_and_continued(halts: int, named: bool) -> None:
    pulses = [
        replace(pulse, state="T" if number < halts else "S") for number, pulse in enumerate(series(1, STEP))
    ]
    made = Made().add(series(0, STEP), pulses)
    found = [reason.kind for reason in reasons(made.view, 1)]
    assert ("stopped" in found) == named
    assert "stopped" not in [reason.kind for reason in reasons(made.view, 0)]


def test_nothing_known_is_no_reason() -> None:
    assert joined() == []
    empty = View(state=Training().state(), plan=None, now=0.0, history={})
    assert reasons(empty, 1) == []
    assert reasons(empty, 77) == []


@for_each(
    ("busy", "named", "text"),
    [
        (0.9, True, "its thread spin in spin() uses CPU time, which the others do not"),
        (0.9, False, "other threads of it use CPU time, which the others do not"),
        (0.3, True, ""),
    ],
)
def test_a_thread_that_takes_the_gil(busy: float, named: bool, text: str) -> None:
    threads = (RankThread("spin", (Site("/job/train.py", 20, "spin"),)),) if named else ()
    made = Made(ranks=3).add(
        series(0, STEP, share=0.5, others=0.1),
        series(1, STEP, share=0.5, others=0.1),
        series(2, STEP, share=0.5, others=busy, threads=threads),
    )
    assert texts(reasons(made.view, 2)) == ([text] if text else [])


USUAL = {"sm_mhz": 1700, "throttle": ()}


@for_each(
    ("own", "text"),
    [
        ({"sm_mhz": 1100, "throttle": ("power cap",)}, "power cap, 1.1 of 1.7 GHz"),
        (
            {"sm_mhz": 1100, "throttle": ("thermal (hardware)",), "temp_c": 91.0},
            "thermal throttling at 90 °C, 1.1 of 1.7 GHz",
        ),
        ({"sm_mhz": 1100, "throttle": ("idle",)}, "low clocks, 1.1 of 1.7 GHz"),
        ({"sm_mhz": 1100}, "low clocks, 1.1 of 1.7 GHz"),
    ],
)
def test_low_clocks(own: dict[str, Any], text: str) -> None:
    assert texts(joined(own, USUAL)) == [text]


@for_each("own", [{"sm_mhz": 1690, "throttle": ("power cap",)}, {"throttle": ("power cap",)}])
def test_a_power_cap_without_lower_clocks_is_no_reason(own: dict[str, Any]) -> None:
    assert joined(own, USUAL) == []


def test_low_clocks_everywhere_are_no_reason() -> None:
    same = {"sm_mhz": 1100, "throttle": ("power cap",)}
    assert joined(same, same) == []


@for_each(
    ("own", "usual", "text"),
    [
        (
            {"pcie_width": 4, "pcie_gen": 5},
            {"pcie_width": 16, "pcie_gen": 5},
            "PCIe x4 where others have x16",
        ),
        (
            {"pcie_width": 16, "pcie_gen": 3},
            {"pcie_width": 16, "pcie_gen": 5},
            "PCIe gen 3 where others have gen 5",
        ),
        ({"remap_pending": True}, {}, "its memory has memory errors (ECC)"),
        ({"ecc_uncorrected": 3}, {}, "its memory has memory errors (ECC)"),
        ({"pcie_replays": 5000}, {"pcie_replays": 2}, "PCIe replays"),
    ],
)
def test_links_and_memory(own: dict[str, Any], usual: dict[str, Any], text: str) -> None:
    assert texts(joined(own, usual)) == [text]


@for_each(
    ("sample", "samples", "text"),
    [
        ({"throttled_percent": 80.0}, {"throttled_percent": 0.0}, "its cgroup's CPU quota holds it back"),
        ({"throttled_percent": 80.0}, {}, "its cgroup's CPU quota holds it back"),
        ({"throttled_percent": 80.0}, {"throttled_percent": 78.0}, None),
        ({"throttled_percent": 5.0}, {}, None),
        ({"cpus": "3"}, {"cpus": "0-63"}, "it is bound to core 3 only, the others have more"),
        ({"cpus": "3"}, {"cpus": "3"}, None),
        ({"cpus": "0-63"}, {"cpus": "0-63"}, None),
        ({"read_bps": 200e6}, {"read_bps": 1e6}, "it reads from storage where the others do not"),
        ({"read_bps": 200e6}, {"read_bps": 190e6}, None),
        ({"read_bps": 1e6}, {"read_bps": 0.0}, None),
    ],
)
def test_the_process(sample: dict[str, Any], samples: dict[str, Any], text: str | None) -> None:
    assert texts(joined(sample=sample, samples=samples)) == ([] if text is None else [text])


def test_a_core_that_is_shared_with_another_rank() -> None:
    training = Training(ranks=4)
    state = training.state()
    for number, cores in enumerate(("0", "2", "2", "1")):
        state.ranks[number].sample = RankSample(number, cpus=cores)
    (one,) = reasons(View(state=state, plan=None, now=0.0, history={}), 1)
    assert one.text == "it shares core 2 with rank 2"


def test_little_page_cache_is_evidence_of_reading() -> None:
    (one,) = joined(
        sample={"read_bps": 200e6}, samples={"read_bps": 0.0}, host={"page_cache": 1, "mem_total": 100}
    )
    assert one.evidence == "little of the node's memory is page cache"


@for_each(
    ("host", "hosts", "text"),
    [
        (
            {"steal_percent": 12.0},
            {"steal_percent": 0.1},
            "the hypervisor takes CPU time from the node (CPU steal)",
        ),
        ({"steal_percent": 12.0}, {"steal_percent": 11.0}, None),
        ({"nic_errors": 400}, {"nic_errors": 0}, "the node's interfaces count network errors"),
        ({"nic_errors": 0}, {"nic_errors": 0}, None),
        ({"load1": 200.0}, {"load1": 20.0}, "the node is short of cores"),
        ({"load1": 200.0}, {"load1": 190.0}, None),
    ],
)
def test_the_node(host: dict[str, Any], hosts: dict[str, Any], text: str | None) -> None:
    assert texts(joined(host=host, hosts=hosts)) == ([] if text is None else [text])


def test_a_single_node_that_is_short_of_cores_slows_all_its_ranks_alike() -> None:
    state = Training(ranks=2).state()
    state.nodes[0].metrics = Host(cores=2, load1=9.0, cpu_stall_percent=80.0)
    assert reasons(View(state=state, plan=None, now=0.0, history={}), 1) == []


SAVING = (Site("/job/train.py", 70, "log_images"), *STACK)


@for_each(
    ("stack", "text"),
    [
        (LOADER, "it waits for its data loader (data.py:12 __getitem__)"),
        (SAVING, "it is often at train.py:70 log_images"),
    ],
)
def test_where_it_is_and_the_others_are_not(stack: tuple[Site, ...], text: str) -> None:
    assert texts(joined(stacks={SLOW: stack})) == [text]
    assert joined(stacks=dict.fromkeys(range(8), stack)) == []


def test_the_strongest_comes_first() -> None:
    found = joined(
        {"sm_mhz": 900, "throttle": ("power cap",), "pcie_width": 8},
        USUAL | {"pcie_width": 16},
        host={"load1": 200.0},
        hosts={"load1": 1.0},
    )
    assert texts(found) == [
        "power cap, 0.9 of 1.7 GHz",
        "PCIe x8 where others have x16",
        "the node is short of cores",
    ]
    assert all(one.remedy for one in found)
    assert all(one.kind in one.text for one in found)
