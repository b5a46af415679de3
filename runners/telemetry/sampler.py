"""The sampler: a child process that asks the NVIDIA driver, and serves nobody but its parent.

`python -m distui.runners.telemetry.sampler --interval SECONDS` writes one JSON event a line to stdout: a
`GpuTick` each interval, a `FindingRaised` for an Xid error. What is cheap is asked every second, what is dear more
rarely. It ends when its stdin does, that is, with its parent, even while a driver call hangs. Exit status 3: no driver
library or no GPU; 1: the driver failed; in both cases the last line is a `GpuTick` that says why.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from .. import clock
from ..model import Event, FindingRaised, Gpu, GpuTick
from ..parts import ONCE, failure
from .counters import Counter
from .gpu_words import NO_DRIVER, SHORTEST_S, recovery_words, throttle_words, xid_finding
from .nvml import (
    ALL_LINKS,
    MEMORY_V2,
    Driver,
    DriverFailed,
    GpmMetrics,
    GpuLost,
    NoDriver,
    NvmlDevice,
    Xids,
)

# Field ids, clocks and sensors by their numbers in nvml.h: older nvidia-ml-py do not name all of them.
MEMORY_TEMP, ENERGY_MJ, PCIE_TX, PCIE_RX, RECOVERY = 82, 83, 197, 198, 230
NVLINK_TX, NVLINK_RX = 138, 139
# Nanoseconds for which power or heat held the clocks back; of newer drivers also which heat, and the power brake.
HELD_POWER, HELD_THERMAL, HELD_SW_THERMAL, HELD_HW_THERMAL, HELD_BRAKE = 74, 75, 269, 270, 271
HELD_FIELDS = (HELD_POWER, HELD_THERMAL, HELD_SW_THERMAL, HELD_HW_THERMAL, HELD_BRAKE)
GPM_SM_UTIL, GPM_ANY_TENSOR_UTIL, GPM_DRAM_BW_UTIL = 2, 5, 10
GPM_METRICS = {
    GPM_SM_UTIL: "sm_active",
    GPM_ANY_TENSOR_UTIL: "tensor_active",
    GPM_DRAM_BW_UTIL: "dram_active",
}
GPM_VARIABLE = "DISTUI_GPM"
"""0 in it: the hardware's counters are left to others, as to DCGM; only one reader at a time gets true values."""
FAST_FIELDS = (
    MEMORY_TEMP,
    ENERGY_MJ,
    (NVLINK_TX, ALL_LINKS),
    (NVLINK_RX, ALL_LINKS),
    PCIE_TX,
    PCIE_RX,
    *HELD_FIELDS,
)
CLOCK_SM, CLOCK_MEM = 1, 2
SENSOR_GPU = 0
UNCORRECTED, VOLATILE = 1, 0

PCIE_CEILING = 130e9
"""Bytes a second that no PCIe link of today exceeds (generation 6, 16 lanes)."""
HELD_CEILING = 5e9
"""Nanoseconds a second that a reason cannot hold the clocks back."""
NVLINK_CEILING = 2e12 / 1024
"""KiB a second that no GPU's NVLinks together exceed."""


class Tier(enum.Enum):
    """What is asked together; the value is its period in seconds."""

    FAST = 1.0
    PROCS = 2.0
    SLOW = 30.0


class DriverGpus:
    """All GPUs of a driver; `sample` keeps the last values of the tiers that it does not ask."""

    def __init__(self, driver: Driver) -> None:
        self._gpus = [_SampledGpu(driver, index) for index in range(driver.count)]

    @property
    def devices(self) -> dict[int, NvmlDevice]:
        """The devices that were reached, by NVML index."""
        return {gpu.index: gpu.device for gpu in self._gpus if gpu.device is not None}

    def sample(self, tiers: Iterable[Tier], now: float) -> tuple[Gpu, ...]:
        """Ask `tiers` of every GPU; `now` in monotonic seconds."""
        wanted = frozenset(tiers)
        return tuple(gpu.sample(wanted, now) for gpu in self._gpus)


class _SampledGpu:
    """One GPU with its newest values."""

    def __init__(self, driver: Driver, index: int) -> None:
        self._driver = driver
        self.index = index
        self.device: NvmlDevice | None = None
        self._gpm: GpmMetrics | None = None
        self._fixed: dict[str, Any] = {"uuid": "", "name": "GPU"}
        self._values: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self._values.clear()
        self._counters = {
            "pcie_tx_bps": Counter(PCIE_CEILING),
            "pcie_rx_bps": Counter(PCIE_CEILING),
            "nvlink_tx_bps": Counter(NVLINK_CEILING),
            "nvlink_rx_bps": Counter(NVLINK_CEILING),
        }
        self._held = {field: Counter(HELD_CEILING) for field in HELD_FIELDS}
        if self._gpm is not None:
            self._gpm.close()
            self._gpm = None
        self._complete = False

    def sample(self, tiers: frozenset[Tier], now: float) -> Gpu:
        try:
            self._ask(tiers if self._complete else frozenset(Tier), now)
        except GpuLost:
            self._forget()
            text = "the driver no longer reaches this GPU"
            return Gpu(self.index, **self._fixed, lost=True, error=text)
        error = self.device.error if self.device is not None else None
        return Gpu(self.index, **self._fixed, **self._values, error=error)

    def _ask(self, tiers: frozenset[Tier], now: float) -> None:
        if self.device is None:
            device = self._driver.device(self.index)
            self._fixed = _fixed(device)
            self.device = device
        device = self.device
        device.error = None
        if Tier.FAST in tiers:
            fields = device.fields(FAST_FIELDS)
            self._values |= _fast(device) | self._rates(fields, now) | self._activity(device)
            self._values["throttled_percent"] = self._throttled(fields, now)
        if Tier.PROCS in tiers:
            self._values |= _procs(device)
        if Tier.SLOW in tiers:
            self._values |= _slow(device)
        self._complete = True

    def _rates(self, fields: dict[int, tuple[int, int]], now: float) -> dict[str, Any]:
        rates: dict[str, Any] = {
            "mem_temp_c": _scaled(_whole(fields.get(MEMORY_TEMP)), 1.0),
            "energy_j": _scaled(_whole(fields.get(ENERGY_MJ)), 1e-3),
        }
        for name, field, unit in (
            ("pcie_tx_bps", PCIE_TX, 1),
            ("pcie_rx_bps", PCIE_RX, 1),
            ("nvlink_tx_bps", NVLINK_TX, 1024),
            ("nvlink_rx_bps", NVLINK_RX, 1024),
        ):
            value, bits = fields.get(field, (None, 64))
            rates[name] = _scaled(self._counters[name].rate(value, now, bits=bits), unit)
        return rates

    def _throttled(self, fields: dict[int, tuple[int, int]], now: float) -> float | None:
        """Percent of the time since the sample before; several reasons may hold at once."""
        shares = {
            field: rate
            for field, counter in self._held.items()
            if (rate := counter.rate(_whole(fields.get(field)), now)) is not None
        }
        heat = shares.get(HELD_THERMAL, 0.0)
        heat = max(heat, shares.get(HELD_SW_THERMAL, 0.0) + shares.get(HELD_HW_THERMAL, 0.0))
        together = shares.get(HELD_POWER, 0.0) + heat + shares.get(HELD_BRAKE, 0.0)
        return round(min(100.0, together / 1e7), 1) if shares else None

    def _activity(self, device: NvmlDevice) -> dict[str, Any]:
        if os.environ.get(GPM_VARIABLE) == "0":
            return {}
        if self._gpm is None:
            self._gpm = GpmMetrics(device)
        values = self._gpm.read([*GPM_METRICS])
        return {name: _scaled(values.get(metric), 1.0) for metric, name in GPM_METRICS.items()}


def _fixed(device: NvmlDevice) -> dict[str, Any]:
    """What does not change while the driver is loaded."""
    return {
        "uuid": device.ask("nvmlDeviceGetUUID") or "",
        "name": device.ask("nvmlDeviceGetName") or "GPU",
        "max_sm_mhz": device.ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
    }


def _fast(device: NvmlDevice) -> dict[str, Any]:
    use = device.ask("nvmlDeviceGetUtilizationRates")
    # Version 1 of the memory call counts what the driver keeps for itself as used.
    memory = device.first(("nvmlDeviceGetMemoryInfo", MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
    reasons = device.first(
        ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
    )
    return {
        "util": None if use is None else float(use.gpu),
        "mem_used": None if memory is None else int(memory.used),
        "mem_total": None if memory is None else int(memory.total),
        "power_w": _scaled(device.ask("nvmlDeviceGetPowerUsage"), 1e-3),
        "temp_c": _scaled(
            device.first(
                ("nvmlDeviceGetTemperatureV", SENSOR_GPU), ("nvmlDeviceGetTemperature", SENSOR_GPU)
            ),
            1.0,
        ),
        "sm_mhz": device.ask("nvmlDeviceGetClockInfo", CLOCK_SM),
        "mem_mhz": device.ask("nvmlDeviceGetClockInfo", CLOCK_MEM),
        "throttle": None if reasons is None else throttle_words(reasons),
    }


def _procs(device: NvmlDevice) -> dict[str, Any]:
    procs = device.first(
        ("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetComputeRunningProcesses_v2",)
    )
    if procs is None:
        return {"pids": None, "pid_mem": None}
    # A process that computes holds memory: 0 is what some containers' drivers give for "unknown".
    return {
        "pids": tuple(int(proc.pid) for proc in procs),
        "pid_mem": tuple(int(proc.usedGpuMemory) if proc.usedGpuMemory else None for proc in procs),
    }


def _slow(device: NvmlDevice) -> dict[str, Any]:
    rows = device.ask("nvmlDeviceGetRemappedRows")
    mig = device.ask("nvmlDeviceGetMigMode")
    action = device.fields((RECOVERY,)).get(RECOVERY)
    return {
        "power_limit_w": _scaled(device.ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        "ecc_uncorrected": device.ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "pcie_replays": device.ask("nvmlDeviceGetPcieReplayCounter"),
        "pcie_gen": device.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": device.ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "recovery": None if action is None else recovery_words(action[0]),
        "mig": None if mig is None else bool(mig[0]),
    }


def _whole(field: tuple[int, int] | None) -> int | None:
    return None if field is None else field[0]


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value * unit, 3)


XID_S = 10.0
"""The same Xid of the same GPU is reported again at most this often (seconds), with a count."""


class LineWriter:
    """Whole lines to one file descriptor, from several threads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: Event) -> None:
        """Write one event; the process exits when nobody reads any more."""
        line = memoryview(self._encode(event) + b"\n")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._handle, line) :]
            except BrokenPipeError:
                os._exit(0)


def main(argv: list[str]) -> int:
    """Sample until stdin ends; the exit status."""
    interval = _interval(argv)
    if interval is None:
        name = "python -m distui.runners.telemetry.sampler"
        print(f"usage: {name} --interval SECONDS, at least {SHORTEST_S}", file=sys.stderr)
        return 2
    # A driver library that prints must not print into the protocol.
    writer = LineWriter(os.dup(1))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        driver = Driver()
    except NoDriver as error:
        writer.write(GpuTick(gpus=(), took_ms=0.0, problem=str(error)))
        return NO_DRIVER
    except DriverFailed as error:
        writer.write(GpuTick(gpus=(), took_ms=0.0, problem=str(error)))
        return 1
    _sample(driver, writer, interval)
    return 0


def _interval(argv: list[str]) -> float | None:
    """Seconds from `--interval SECONDS`; None when that is not what stands there."""
    try:
        option, text = argv
        seconds = float(text)
    except ValueError:
        return None
    return seconds if option == "--interval" and SHORTEST_S <= seconds < 3600 else None


def _sample(driver: Driver, writer: LineWriter, interval: float) -> None:
    gpus = DriverGpus(driver)
    due = dict.fromkeys(Tier, float("-inf"))
    watched = False
    while True:
        now = clock.monotonic()
        # A little early rather than a whole interval late.
        tiers = [tier for tier in Tier if now >= due[tier] - interval / 2]
        sample = gpus.sample(tiers, now)
        due |= {tier: now + tier.value for tier in tiers if tier is not Tier.FAST}
        took = clock.monotonic() - now
        if not watched:
            watched = True
            xids = Xids(driver, gpus.devices)
            threading.Thread(target=_watch_xids, args=(xids, writer), daemon=True).start()
        writer.write(GpuTick(gpus=sample, took_ms=round(took * 1e3, 3), driver=driver.version))
        time.sleep(max(interval / 10, interval - (clock.monotonic() - now)))


def _watch_xids(xids: Xids, writer: LineWriter) -> None:
    """In a thread of its own, which nobody else watches."""
    try:
        _write_xids(xids, writer)
    except Exception as error:  # noqa: BLE001  # the border of a part: whatever it raises is reported
        writer.write(FindingRaised(failure("gpu-errors", error, ONCE, None, "please report it")))


def _write_xids(xids: Xids, writer: LineWriter) -> None:
    written: dict[tuple[int | None, int], float] = {}
    times: dict[tuple[int | None, int], int] = {}
    for gpu, code in xids.wait():
        now, xid = clock.monotonic(), (gpu, code)
        times[xid] = times.get(xid, 0) + 1
        if now - written.get(xid, float("-inf")) >= XID_S:
            written[xid] = now
            writer.write(FindingRaised(xid_finding(code, gpu, times[xid])))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
