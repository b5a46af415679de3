"""The sampler: a child process that queries the NVIDIA driver for its parent only.

`python -m distui.runners.telemetry.sampler --interval SECONDS` writes one JSON event per line to stdout: a `GpuTick` per
interval, a `FindingRaised` for an Xid error. It reads cheap values every second, expensive ones less often. It ends when
its stdin ends, so with its parent, even during a hung driver call. Exit status 3: no driver library or no GPU; 1: the
driver failed; in both cases the last line is a `GpuTick` with the reason.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from ..run import clock
from ..run.model import Event, FindingRaised, GpuTick
from ..run.parts import ONCE, failure
from ..run.samples import Gpu
from .counters import Counter
from .gpu_quantities import CLOCK_SM, GPU
from .gpu_words import NO_DRIVER, SHORTEST_S, xid_finding
from .nvml import (
    Driver,
    DriverFailed,
    GpmMetrics,
    GpuLost,
    NoDriver,
    NvmlDevice,
    Xids,
)
from .quantity import NvmlActivity, NvmlCall, NvmlField, NvmlRate, Tier

# Nanoseconds of lowered clocks for power or heat; newer drivers add the kind of heat, and the power brake.
HELD_POWER, HELD_THERMAL, HELD_SW_THERMAL, HELD_HW_THERMAL, HELD_BRAKE = 74, 75, 269, 270, 271
HELD_FIELDS = (HELD_POWER, HELD_THERMAL, HELD_SW_THERMAL, HELD_HW_THERMAL, HELD_BRAKE)
GPM_VARIABLE = "DISTUI_GPM"
"""Set to 0 to leave the hardware counters to another reader such as DCGM: only one reader gets true values."""
HELD_CEILING = 5e9
"""Upper bound of a reason's nanoseconds per second; more is a counter error."""

BY_TIER = {tier: [quantity for quantity in GPU if quantity.tier is tier] for tier in Tier}
ACTIVITIES = [each.nvml.id for each in GPU if isinstance(each.nvml, NvmlActivity)]


def _field_ids(tier: Tier) -> list[int | tuple[int, int]]:
    """Fields of a tier's quantities, which NVML reads in one call."""
    ids: list[int | tuple[int, int]] = [*HELD_FIELDS] if tier is Tier.FAST else []
    for quantity in BY_TIER[tier]:
        source = quantity.nvml
        if isinstance(source, NvmlField):
            ids.append(source.id)
        elif isinstance(source, NvmlRate):
            ids.append(source.id if source.scope is None else (source.id, source.scope))
    return ids


FIELD_IDS = {tier: _field_ids(tier) for tier in Tier}


class DriverGpus:
    """All GPUs of a driver; `sample` keeps the last values of tiers that it does not read."""

    def __init__(self, driver: Driver) -> None:
        self._gpus = [_SampledGpu(driver, index) for index in range(driver.count)]

    @property
    def devices(self) -> dict[int, NvmlDevice]:
        """The reachable devices, by NVML index."""
        return {gpu.index: gpu.device for gpu in self._gpus if gpu.device is not None}

    def sample(self, tiers: Iterable[Tier], now: float) -> tuple[Gpu, ...]:
        """Read `tiers` of every GPU; `now` in monotonic seconds."""
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
            each.field: Counter(each.nvml.ceiling) for each in GPU if isinstance(each.nvml, NvmlRate)
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
        for tier in Tier:
            if tier in tiers:
                self._read(device, tier, now)
        self._complete = True

    def _read(self, device: NvmlDevice, tier: Tier, now: float) -> None:
        ids = FIELD_IDS[tier]
        reading = _Reading(device, device.fields(ids) if ids else {})
        for quantity in BY_TIER[tier]:
            if isinstance(quantity.nvml, NvmlRate):
                self._values[quantity.field] = self._rate(
                    quantity.field, quantity.nvml, reading.fields, now
                )
            elif isinstance(quantity.nvml, NvmlCall | NvmlField):
                self._values[quantity.field] = reading.value(quantity.nvml)
        if tier is Tier.FAST:
            self._values |= self._activity(device)
            self._values["throttled_percent"] = self._throttled(reading.fields, now)
        if tier is Tier.PROCS:
            self._values |= _procs(device)

    def _rate(
        self, name: str, source: NvmlRate, fields: dict[int, tuple[int, int]], now: float
    ) -> float | None:
        value, bits = fields.get(source.id, (None, 64))
        return _scaled(self._counters[name].rate(value, now, bits=bits), source.scale)

    def _throttled(self, fields: dict[int, tuple[int, int]], now: float) -> float | None:
        """Percent of the time since the last sample; several reasons may hold at once."""
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
        values = self._gpm.read(ACTIVITIES)
        return {
            each.field: _scaled(values.get(each.nvml.id), 1.0)
            for each in GPU
            if isinstance(each.nvml, NvmlActivity)
        }


class _Reading:
    """One pass over a GPU. Calls each function only once, even for several quantities."""

    def __init__(self, device: NvmlDevice, fields: dict[int, tuple[int, int]]) -> None:
        self._device = device
        self.fields = fields
        self._answers: dict[object, Any] = {}

    def value(self, source: NvmlCall | NvmlField) -> Any:
        """Return a source's value, None if the driver does not report it; raise GpuLost if the GPU is lost."""
        if isinstance(source, NvmlField):
            answer = _whole(self.fields.get(source.id))
        elif source.calls in self._answers:
            answer = self._answers[source.calls]
        else:
            answer = self._answers[source.calls] = self._device.first(*source.calls)
        return None if answer is None else source.convert(answer)


def _fixed(device: NvmlDevice) -> dict[str, Any]:
    """Values that are constant while the driver is loaded."""
    return {
        "uuid": device.ask("nvmlDeviceGetUUID") or "",
        "name": device.ask("nvmlDeviceGetName") or "GPU",
        "max_sm_mhz": device.ask("nvmlDeviceGetMaxClockInfo", CLOCK_SM),
    }


def _procs(device: NvmlDevice) -> dict[str, Any]:
    procs = device.first(
        ("nvmlDeviceGetComputeRunningProcesses_v3",), ("nvmlDeviceGetComputeRunningProcesses_v2",)
    )
    if procs is None:
        return {"pids": None, "pid_mem": None}
    # A computing process holds memory: some containers' drivers return 0 for an unknown value.
    return {
        "pids": tuple(int(proc.pid) for proc in procs),
        "pid_mem": tuple(int(proc.usedGpuMemory) if proc.usedGpuMemory else None for proc in procs),
    }


def _whole(field: tuple[int, int] | None) -> int | None:
    return None if field is None else field[0]


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value * unit, 3)


XID_S = 10.0
"""Minimum seconds between two reports of one Xid on one GPU; each report has a count."""


class LineWriter:
    """Writes whole lines to one file descriptor from several threads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: Event) -> None:
        """Write one event; exit the process if the reader has closed the pipe."""
        line = memoryview(self._encode(event) + b"\n")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._handle, line) :]
            except BrokenPipeError:
                os._exit(0)


def main(argv: list[str]) -> int:
    """Sample until stdin ends, and return the exit status."""
    interval = _interval(argv)
    if interval is None:
        name = "python -m distui.runners.telemetry.sampler"
        print(f"usage: {name} --interval SECONDS, at least {SHORTEST_S}", file=sys.stderr)
        return 2
    # Output of a driver library must not get into the protocol.
    writer = LineWriter(os.dup(1))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        driver = Driver()
    except NoDriver as error:
        writer.write(GpuTick(gpus=(), problem=str(error)))
        return NO_DRIVER
    except DriverFailed as error:
        writer.write(GpuTick(gpus=(), problem=str(error)))
        return 1
    _sample(driver, writer, interval)
    return 0


def _interval(argv: list[str]) -> float | None:
    """Seconds from `--interval SECONDS`; None for other arguments."""
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
        # Rather a little early than a whole interval late.
        tiers = [tier for tier in Tier if now >= due[tier] - interval / 2]
        sample = gpus.sample(tiers, now)
        due |= {tier: now + tier.value for tier in tiers if tier is not Tier.FAST}
        if not watched:
            watched = True
            xids = Xids(driver, gpus.devices)
            threading.Thread(target=_watch_xids, args=(xids, writer), daemon=True).start()
        writer.write(GpuTick(gpus=sample, driver=driver.version))
        time.sleep(max(interval / 10, interval - (clock.monotonic() - now)))


def _watch_xids(xids: Xids, writer: LineWriter) -> None:
    """Write Xid errors, in a separate thread that no other code watches."""
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
