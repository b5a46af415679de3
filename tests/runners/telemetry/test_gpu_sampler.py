"""The sampler process on real nvidia-ml-py, in front of a fake driver."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
import patience
import pytest
from each import for_each
from gpu_rig import Rig, needs_compiler, sampler, scenario, tick_of, until

from distui.runners.run.model import FindingRaised, GpuTick
from distui.runners.telemetry.gpu_words import NO_DRIVER
from distui.runners.telemetry.nvml import Xids
from distui.runners.telemetry.sampler import LineWriter, _watch_xids

pytestmark = needs_compiler

WORKS = "* util 93\n* mem_used 1073741824\n* power_mw 456789\n* temp 61\n* reasons 0\n"
STEADY = scenario.idle(2) + WORKS


@pytest.mark.real
def test_values_arrive_in_their_units_and_what_is_dear_is_asked_for_rarely(tmp_path: Path) -> None:
    lines = (
        "1 mem_temp 77\n1 energy_mj 5000000\n1 ecc_uncorrected 4\n1 remap_pending 1\n1 recovery 1\n"
        "2 reasons 0x84\n2 mem_reserved 100\n3 reasons 0x8001\n"
    )
    text = scenario.idle(5) + WORKS + lines + scenario.process(1, 4711, 2048) + scenario.lost(4)
    rig = Rig(tmp_path, text)
    first, second, third, fourth, gone = rig.tick(5)
    assert (first.index, first.uuid) == (0, "GPU-00000000-0000-4000-8000-000000000000")
    assert first.name == "NVIDIA H100 80GB HBM3"
    assert (first.util, first.mem_used, first.mem_total) == (93.0, 1 << 30, 80 << 30)
    assert (first.power_w, first.power_limit_w, first.temp_c) == (456.789, 700.0, 61.0)
    assert (first.sm_mhz, first.mem_mhz, first.max_sm_mhz) == (345, 2619, 1980)
    assert (first.throttle, first.recovery, first.pids, first.mig) == ((), None, (), False)
    assert (first.pcie_gen, first.pcie_width, first.pcie_replays) == (5, 16, 0)
    assert (second.mem_temp_c, second.energy_j) == (77.0, 5000.0)
    assert (second.ecc_uncorrected, second.remap_pending, second.remap_failed) == (4, True, False)
    assert second.recovery == "GPU reset"
    assert (second.pids, second.pid_mem) == ((4711,), (2048,))
    assert (third.throttle, third.mem_used) == (("power cap", "power brake"), 1 << 30)
    assert fourth.throttle == ("idle", "reason 0x8000")
    assert (gone.lost, gone.uuid) == (True, ""), "from the start"
    calls = rig.calls()
    assert calls.count("nvmlDeviceGetUtilizationRates") >= 5 * 4
    assert calls.count("nvmlDeviceGetTotalEccErrors") == calls.count("nvmlDeviceGetName") == 4
    assert calls.count("nvmlInitWithFlags") == 1
    assert "nvmlDeviceGetPcieThroughput" not in calls


@pytest.mark.real
def test_what_the_driver_does_not_serve_is_none_and_asked_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, "sys count 1\n* name Old\n* util 5\n")
    (gpu,) = rig.tick(8)
    assert (gpu.util, gpu.name) == (5.0, "Old")
    for field in (
        "mem_used",
        "mem_total",
        "power_w",
        "temp_c",
        "mem_temp_c",
        "throttle",
        "pcie_tx_bps",
        "mig",
    ):
        assert getattr(gpu, field) is None
    assert gpu.error is None
    calls = rig.calls()
    assert calls.count("nvmlDeviceGetPowerUsage") == 1
    assert calls.count("nvmlDeviceGetUtilizationRates") >= 8


@pytest.mark.real
def test_functions_that_an_old_driver_lacks_or_refuses(tmp_path: Path) -> None:
    absent = (
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetFieldValues",
    )
    text = STEADY + "* mem_reserved 100\n* reasons 0x44\n" + scenario.process(0, 7, 9)
    gpu = Rig(tmp_path, text, absent).tick(3)[0]
    assert gpu.mem_used == (1 << 30) + 100  # version 1 counts the driver's own memory
    assert (gpu.temp_c, gpu.throttle, gpu.pids) == (61.0, ("power cap", "thermal (hardware)"), (7,))
    assert gpu.mem_temp_c is None
    refused = STEADY + "* mem_reserved 100\n" + scenario.answer("nvmlDeviceGetMemoryInfo_v2", 25)
    assert Rig(tmp_path, refused).tick()[0].mem_used == (1 << 30) + 100


@pytest.mark.real
def test_counters_become_rates_and_a_reset_becomes_unknown(tmp_path: Path) -> None:
    counters = "* pcie_tx_bytes {}\n* nvlink_rx_kib {}\n"
    rig = Rig(tmp_path, STEADY + counters.format(5_000_000_000, 10))
    with rig.sampling() as events:
        assert tick_of(events)[0].pcie_tx_bps is None
        assert tick_of(events)[0].pcie_tx_bps == 0.0
        rig.set(STEADY + counters.format(5_400_000_000, 1_000_010))
        event = until(events, lambda one: isinstance(one, GpuTick) and bool(one.gpus[0].pcie_tx_bps))
        assert isinstance(event, GpuTick)
        gpu = event.gpus[0]
        assert gpu.pcie_tx_bps is not None
        assert gpu.nvlink_rx_bps == pytest.approx(gpu.pcie_tx_bps * 1_024_000_000 / 400_000_000, rel=1e-4)
        rig.set(STEADY + counters.format(3, 0))
        until(events, lambda one: isinstance(one, GpuTick) and one.gpus[0].pcie_tx_bps is None)
        until(events, lambda one: isinstance(one, GpuTick) and one.gpus[0].pcie_tx_bps == 0.0)


@pytest.mark.real
def test_a_lost_gpu_leaves_the_others_alone_and_comes_back(tmp_path: Path) -> None:
    """A function that fails for a while loses its own value only."""
    rig = Rig(tmp_path, STEADY)
    with rig.sampling() as events:
        tick_of(events)
        rig.set(STEADY + scenario.lost(1) + scenario.answer("nvmlDeviceGetPowerUsage", 999, 0))
        event = until(events, lambda one: isinstance(one, GpuTick) and one.gpus[1].lost)
        assert isinstance(event, GpuTick)
        good, gone = event.gpus
        assert (good.lost, good.util) == (False, 93.0)
        assert (good.power_w, good.error) == (None, "PowerUsage: Unknown Error")
        assert (gone.util, gone.mem_used, gone.error) == (
            None,
            None,
            "the driver no longer reaches this GPU",
        )
        assert gone.uuid
        rig.set(STEADY)
        event = until(events, lambda one: isinstance(one, GpuTick) and not one.gpus[1].lost)
        assert isinstance(event, GpuTick)
        assert (event.gpus[1].util, event.gpus[1].power_limit_w) == (93.0, 700.0)
        event = until(events, lambda one: isinstance(one, GpuTick) and one.gpus[0].error is None)
        assert isinstance(event, GpuTick)
        assert event.gpus[0].power_w == 456.789


@pytest.mark.real
def test_an_xid_is_told_in_words_even_while_a_driver_call_hangs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, STEADY + scenario.xid(0, 1, 31))
    with rig.sampling() as events:
        tick_of(events)
        rig.set(STEADY + scenario.hang("nvmlDeviceGetUtilizationRates") + scenario.xid(1, 1, 79))
        event = until(events, lambda one: isinstance(one, FindingRaised))
    assert isinstance(event, FindingRaised)
    assert event.finding.id == "xid-79:gpu1"  # and not the one from before the start
    assert event.finding.text == "Xid 79 on GPU 1: the GPU fell off the bus"


@pytest.mark.real
@for_each(
    ("lines", "words", "status"),
    [
        (scenario.answer("nvmlInitWithFlags", 9), "kernel driver is not loaded", 1),
        (scenario.answer("nvmlInitWithFlags", 18), "differ in version", 1),
        ("sys count 0\n", "sees none", NO_DRIVER),
    ],
)
def test_a_driver_that_does_not_start_says_why(tmp_path: Path, lines: str, words: str, status: int) -> None:
    with sampler(Rig(tmp_path, scenario.idle(1) + lines).environment) as child:
        assert child.stdout is not None
        tick = msgspec.json.decode(child.stdout.read(), type=GpuTick)
        assert child.wait(patience.HANG_S) == status
    assert tick.problem is not None
    assert words in tick.problem


@pytest.mark.real
def test_it_ends_with_its_parent_although_the_driver_hangs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, STEADY + scenario.hang("nvmlInitWithFlags"))
    with sampler(rig.environment) as child:
        while not rig.trace.exists():
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)  # Ctrl-C in the agent's terminal is not for it
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(patience.HANG_S) == 0


@pytest.mark.real
def test_activity_comes_from_two_samples_that_are_given_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path, STEADY + "* gpm 1\n* gpm.2 71.5\n* gpm.5 40.25\n")
    with rig.sampling() as events:
        ticks = [tick_of(events) for _ in range(8)]
        first, later = ticks[0][0], ticks[-1][1]
        assert (first.sm_active, first.tensor_active) == (None, None)  # one sample says nothing
        assert (later.sm_active, later.tensor_active, later.dram_active) == (71.5, 40.25, None)
        rig.set(STEADY + "1 lost 1\n* gpm 1\n* gpm.2 50\n")
        while not tick_of(events)[1].lost:
            pass
        while tick_of(events)[0].sm_active != 50:
            pass
    calls = rig.calls()
    assert calls.count("nvmlGpmSampleAlloc") == 4
    assert calls.count("nvmlGpmSampleFree") == 2  # of the GPU that is lost
    assert calls.count("nvmlGpmQueryDeviceSupport") == 2


@pytest.mark.long
@for_each(
    ("lines", "absent", "most"),
    [
        ("* gpm 1\n* ret.nvmlGpmSampleGet 4\n", (), {"nvmlGpmSampleGet": 2}),  # no permission
        ("* gpm 1\n* ret.nvmlGpmSampleGet 999\n", (), {"nvmlGpmSampleGet": 6, "nvmlGpmSampleFree": 4}),
        ("* gpm 1\n* ret.nvmlGpmMetricsGet 3\n", (), {"nvmlGpmMetricsGet": 2, "nvmlGpmSampleFree": 4}),
        ("* gpm 1\n* ret.nvmlGpmMetricsGet 999\n", (), {"nvmlGpmMetricsGet": 6, "nvmlGpmSampleFree": 4}),
        ("* gpm 1\n", ("nvmlGpmQueryDeviceSupport",), {"nvmlGpmSampleAlloc": 0}),
    ],
)
def test_activity_that_is_not_to_be_had_is_none_and_not_asked_for_ever(
    tmp_path: Path, lines: str, absent: tuple[str, ...], most: dict[str, int]
) -> None:
    rig = Rig(tmp_path, STEADY + lines, absent)
    gpu = rig.tick(14)[0]
    assert (gpu.sm_active, gpu.tensor_active, gpu.dram_active, gpu.util) == (None, None, None, 93.0)
    calls = rig.calls()
    assert {name: calls.count(name) for name in most} == most


@pytest.mark.real
def test_the_time_in_which_the_clocks_were_held_back(tmp_path: Path) -> None:
    lines = (
        "0 held_power_ns grow:250000000:250000000:9\n0 held_thermal_ns 5\n1 held_power_ns 7\n"
        "2 held_power_ns grow:9e8:9e8:9\n2 held_sw_thermal_ns grow:9e8:9e8:9\n"
    )
    with Rig(tmp_path, scenario.idle(4) + lines).sampling() as events:
        _, *ticks = [tick_of(events) for _ in range(12)]
    held, free, over, unknown = zip(
        *ticks, strict=True
    )  # one sample may have been late within its interval
    assert median(gpu.throttled_percent or 0.0 for gpu in held) == pytest.approx(25, abs=8)
    assert {gpu.throttled_percent for gpu in free} == {0}
    assert median(gpu.throttled_percent or 0.0 for gpu in over) == 100.0
    assert {gpu.throttled_percent for gpu in unknown} == {None}


def test_a_watch_over_gpu_errors_that_fails_is_a_finding() -> None:
    class Broken(Xids):
        def __init__(self) -> None:
            pass

        def wait(self, timeout_ms: int = 1000) -> Iterator[tuple[int | None, int]]:
            raise LookupError("no such event")

    read, write = os.pipe()
    _watch_xids(Broken(), LineWriter(write))
    os.close(write)
    with open(read, "rb") as lines:
        event = msgspec.json.decode(lines.read(), type=FindingRaised)
    assert event.finding.id == "part-failed:gpu-errors"
    assert event.finding.text.endswith("(it is not tried again): LookupError: no such event")
