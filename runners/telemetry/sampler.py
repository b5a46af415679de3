"""The sampler: a child process that talks to the NVIDIA driver and to nobody else.

`python -m distui.runners.telemetry.sampler --interval SECONDS` writes one JSON event a line to stdout: a
`GpuTick` each interval, a `FindingRaised` for an Xid error. It ends when its stdin does, that is, with its
parent, even while a driver call hangs. Exit status 3: no driver library or no GPU; 1: the driver failed;
in both cases the last line is a `GpuTick` that says why.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import msgspec

from ..model import Event, FindingRaised, GpuTick
from .driver_watchdog import NO_DRIVER, SHORTEST_S
from .gpu_health import xid_finding
from .gpu_samples import DriverGpus, Tier
from .nvml import Driver, DriverFailed, NoDriver, Xids

XID_S = 10.0
"""The same Xid of the same GPU is told again at most this often (seconds), with a count."""


class LineWriter:
    """Whole lines to one file descriptor, from several threads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._encode = msgspec.json.Encoder().encode

    def write(self, event: Event) -> None:
        """Write one event; the process ends where nobody reads any more."""
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
        now = time.monotonic()
        # A little early rather than a whole interval late.
        tiers = [tier for tier in Tier if now >= due[tier] - interval / 2]
        sample = gpus.sample(tiers, now)
        due |= {tier: now + tier.value for tier in tiers if tier is not Tier.FAST}
        took = time.monotonic() - now
        if not watched:
            watched = True
            xids = Xids(driver, gpus.devices)
            threading.Thread(target=_write_xids, args=(xids, writer), daemon=True).start()
        writer.write(GpuTick(gpus=sample, took_ms=round(took * 1e3, 3), driver=driver.version))
        time.sleep(max(interval / 10, interval - (time.monotonic() - now)))


def _write_xids(xids: Xids, writer: LineWriter) -> None:
    written: dict[tuple[int | None, int], float] = {}
    times: dict[tuple[int | None, int], int] = {}
    for gpu, code in xids.wait():
        now, xid = time.monotonic(), (gpu, code)
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
