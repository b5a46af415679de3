"""Scenarios for the fake driver: text for the file that DISTUI_FAKE_NVML_SCENARIO names. Format: fake_nvml.c."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 1 << 30

_STEADY = """\
sys count {count}
sys driver 570.172.08
* name {name}
* util 0
* mem_total {memory}
* mem_reserved {reserved}
* mem_used 0
* power_mw 120000
* power_limit_mw 700000
* temp 34
* mem_temp 40
* sm_mhz 345
* mem_mhz 2619
* max_sm_mhz 1980
* reasons 1
* pcie_gen 5
* pcie_width 16
* pcie_replays 0
* ecc_uncorrected 0
* remap_pending 0
* remap_failed 0
* recovery 0
* mig 0
"""

_BUSY = """\
* util wave:88:100:17
* mem_used wave:{low}:{high}:60
* power_mw wave:520000:690000:23
* temp wave:58:71:90
* mem_temp wave:70:84:90
* sm_mhz wave:1650:1980:29
* reasons 0
* energy_mj grow:520000:690000:23
* pcie_tx_bytes grow:400000000:2600000000:13
* pcie_rx_bytes grow:300000000:1900000000:19
* nvlink_tx_kib grow:60000000:180000000:11
* nvlink_rx_kib grow:60000000:180000000:11
* gpm 1
* gpm.2 wave:70:92:17
* gpm.5 wave:30:55:17
* gpm.10 wave:35:60:13
* held_power_ns grow:0:120000000:31
* held_thermal_ns 0
"""


def idle(count: int = 8, name: str = "NVIDIA H100 80GB HBM3", memory: int = 80 * GIB) -> str:
    """`count` GPUs that do nothing; `memory` in bytes each."""
    return _STEADY.format(count=count, name=name, memory=memory, reserved=memory // 160)


def busy(count: int = 8, name: str = "NVIDIA H100 80GB HBM3", memory: int = 80 * GIB) -> str:
    """`count` GPUs that train: every value moves, each GPU at a phase of its own."""
    return idle(count, name, memory) + _BUSY.format(low=int(memory * 0.78), high=int(memory * 0.86))


def busy_gpu(gpu: int, memory: int = 80 * GIB) -> str:
    """Lines: one GPU among idle ones trains."""
    lines = _BUSY.format(low=int(memory * 0.78), high=int(memory * 0.86)).splitlines(keepends=True)
    return "".join(line.replace("*", str(gpu), 1) for line in lines)


def process(gpu: int, pid: int, size: int) -> str:
    """A line: process `pid` holds `size` bytes on `gpu`."""
    return f"{gpu} proc {pid} {size}\n"


def throttled(gpu: int, reasons: int = 0x48) -> str:
    """Lines: the clocks of `gpu` are held down (by default by heat, in hardware)."""
    return (
        f"{gpu} reasons {reasons}\n{gpu} sm_mhz 1005\n{gpu} temp 91\n{gpu} held_thermal_ns grow:1e9:1e9:9\n"
    )


def xid(gpu: int, number: int, code: int) -> str:
    """A line: Xid `code` on `gpu`; `number` grows with each event of a GPU."""
    return f"{gpu} xid {number} {code}\n"


def lost(gpu: int) -> str:
    """A line: the driver no longer reaches `gpu`."""
    return f"{gpu} lost 1\n"


def hang(function: str, gpu: int | str = "*") -> str:
    """A line: `function` does not return for `gpu` until the line is gone."""
    return f"{gpu} hang.{function} 1\n"


def answer(function: str, code: int, gpu: int | str = "*") -> str:
    """A line: `function` answers this nvmlReturn_t for `gpu`."""
    return f"{gpu} ret.{function} {code}\n"


def write(path: str | Path, text: str) -> None:
    """Put a scenario in place at once, so that no reader sees half of it."""
    new = Path(f"{path}.new")
    new.write_text(text)
    os.replace(new, path)
