"""The measured values of a GPU, one row each. All lists of them use this order.

To add a value, add a row here and a field to `Gpu` in model.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .gpu_words import recovery_words, throttle_words
from .quantity import (
    Compared,
    Curve,
    MetricFamily,
    NvmlActivity,
    NvmlCall,
    NvmlField,
    NvmlRate,
    OtelSpelling,
    Quantity,
    TableColumn,
    Tier,
)

# --- NVML ---

ALL_LINKS = 0xFFFFFFFF
"""scopeId of an NVLink field that sums over all links (nvml.h)."""
MEMORY_V2 = 0x02000028
"""nvmlMemory_v2, which has no name in older nvidia-ml-py."""
CLOCK_SM, CLOCK_MEMORY = 1, 2
SENSOR_GPU = 0
UNCORRECTED, VOLATILE = 1, 0
PCIE_CEILING = 130e9
"""Bytes per second above every current PCIe link (generation 6, 16 lanes)."""
NVLINK_CEILING = 2e12 / 1024
"""KiB per second above all NVLinks of one GPU together."""

_MEMORY = (("nvmlDeviceGetMemoryInfo", MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
"""Newest first: version 1 counts the driver's reserved memory as used."""
_REMAPPED_ROWS = (("nvmlDeviceGetRemappedRows",),)
# Field ids by their numbers in nvml.h: older nvidia-ml-py lacks names for some.
_pcie_rate = partial(NvmlRate, ceiling=PCIE_CEILING)
_nvlink_rate = partial(NvmlRate, ceiling=NVLINK_CEILING, scale=1024, scope=ALL_LINKS)


def _scaled(unit: float) -> Callable[[float], float]:
    return lambda value: round(value * unit, 3)


# --- exports: DCGM's names, and OpenTelemetry's hardware conventions ---

MIB = 1 << 20
SENSOR = "hw.sensor_location"
"""Attribute of a metric that the conventions assign to a sensor, a component of the GPU."""
_GPU = (("hw.type", "gpu"), ("hw.vendor", "NVIDIA"))


def _dcgm(name: str, about: str, unit: str, otel: OtelSpelling, divisor: int = 1) -> MetricFamily:
    """Return a gauge with its name in DCGM's exporter; `unit` in words."""
    spelling = otel._replace(about=otel.about or about, attributes=otel.attributes or _GPU)
    return MetricFamily(name, f"{about}, {unit}.", "gauge", spelling, divisor)


def _bytes(name: str, about: str, otel: str) -> MetricFamily:
    return _dcgm(name, about, "in MiB", OtelSpelling(otel, "By", "updowncounter", MIB), MIB)


def _celsius(name: str, about: str, sensor: str) -> MetricFamily:
    spelling = OtelSpelling("hw.temperature", "Cel", attributes=((SENSOR, sensor),), about="Temperature")
    return _dcgm(name, about, "in degrees Celsius", spelling)


def _megahertz(name: str, about: str, otel: str) -> MetricFamily:
    return _dcgm(name, about, "in MHz", OtelSpelling(otel, "Hz", times=10**6))


def _share(name: str, about: str, otel: str) -> MetricFamily:
    return _dcgm(name, about, "from 0 to 1", OtelSpelling(otel, "1"), 100)


def _traffic(name: str, verb: str, link: str, direction: str) -> MetricFamily:
    spelling = OtelSpelling(
        f"distui.gpu.{link.lower()}.throughput",
        "By/s",
        attributes=(*_GPU, ("network.io.direction", direction)),
        about=f"Sent or received over {link}",
    )
    return _dcgm(name, f"{verb} over {link}", "in bytes per second", spelling)


# --- the rows ---

NO_GPU = "this node has no GPU that NVML serves"
NO_GPM = "NVML serves it on Hopper and newer GPUs"

_gpu = partial(Quantity, why=NO_GPU)

GPU: tuple[Quantity, ...] = (
    _gpu(
        "util",
        "%",
        NvmlCall((("nvmlDeviceGetUtilizationRates",),), lambda use: float(use.gpu)),
        curve=Curve(
            "gpu.util", "GPU utilisation", "GPU util", high=100, compared=Compared(7, 8, "median", "more")
        ),
        column=TableColumn("util", "GPU utilisation, %", width=4, priority=2),
        export=_dcgm(
            "DCGM_FI_DEV_GPU_UTIL",
            "GPU utilization",
            "in percent",
            OtelSpelling("hw.gpu.utilization", "1", divisor=100),
        ),
    ),
    _gpu(
        "mem_used",
        "B",
        NvmlCall(_MEMORY, lambda memory: int(memory.used)),
        limit="gpu.mem_total",
        curve=Curve("gpu.mem", "GPU memory", compared=Compared(0, 12, "peak", "less")),
        column=TableColumn("mem", "GPU memory used and total", width=9, priority=3, high_is_bad=True),
        export=_bytes("DCGM_FI_DEV_FB_USED", "Used GPU memory", "hw.gpu.memory.usage"),
    ),
    _gpu(
        "mem_total",
        "B",
        NvmlCall(_MEMORY, lambda memory: int(memory.total)),
        export=_bytes("DCGM_FI_DEV_FB_TOTAL", "GPU memory", "hw.gpu.memory.limit"),
    ),
    _gpu(
        "temp_c",
        "°C",
        NvmlCall(
            (("nvmlDeviceGetTemperatureV", SENSOR_GPU), ("nvmlDeviceGetTemperature", SENSOR_GPU)),
            _scaled(1.0),
        ),
        curve=Curve("gpu.temp", "GPU temperature", low=None),
        column=TableColumn("temp", "GPU temperature, °C", width=4, priority=11, high_is_bad=True),
        export=_celsius("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU", "gpu"),
    ),
    _gpu(
        "mem_temp_c",
        "°C",
        NvmlField(82, _scaled(1.0)),
        column=TableColumn(
            "mem_temp", "memory temperature, °C", width=4, priority=30, title="HBM", optional=True
        ),
        export=_celsius("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of its memory", "memory"),
    ),
    _gpu(
        "power_w",
        "W",
        NvmlCall((("nvmlDeviceGetPowerUsage",),), _scaled(1e-3)),
        limit="gpu.power_limit_w",
        curve=Curve("gpu.power", "GPU power", compared=Compared(0, 9, "median")),
        column=TableColumn("power", "GPU power and its limit, W", width=8, priority=12),
        export=_dcgm("DCGM_FI_DEV_POWER_USAGE", "Power", "in W", OtelSpelling("hw.power", "W")),
    ),
    _gpu("power_limit_w", "W", NvmlCall((("nvmlDeviceGetEnforcedPowerLimit",),), _scaled(1e-3)), Tier.SLOW),
    _gpu("energy_j", "J", NvmlField(83, _scaled(1e-3))),
    _gpu(
        "sm_mhz",
        "MHz",
        NvmlCall((("nvmlDeviceGetClockInfo", CLOCK_SM),)),
        curve=Curve("gpu.sm_mhz", "SM clock"),
        column=TableColumn("clock", "SM clock, GHz", width=5, priority=13),
        export=_megahertz("DCGM_FI_DEV_SM_CLOCK", "Clock of the SMs", "distui.gpu.sm.clock"),
    ),
    _gpu(
        "mem_mhz",
        "MHz",
        NvmlCall((("nvmlDeviceGetClockInfo", CLOCK_MEMORY),)),
        export=_megahertz("DCGM_FI_DEV_MEM_CLOCK", "Clock of its memory", "distui.gpu.memory.clock"),
    ),
    _gpu(
        "throttle",
        "",
        NvmlCall(
            (("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)),
            throttle_words,
        ),
        column=TableColumn("throttle", "what holds the clocks back", width=8, priority=14, words=True),
    ),
    _gpu(
        "throttled_percent",
        "%",
        curve=Curve("gpu.throttled", "clocks capped", high=100),
        column=TableColumn(
            "capped",
            "% of the last period in which clocks were power- or thermal-limited",
            width=6,
            priority=15,
        ),
    ),
    _gpu(
        "sm_active",
        "%",
        NvmlActivity(2),
        why=NO_GPM,
        curve=Curve("gpu.sm_active", "SM activity", "SM active", high=100),
        column=TableColumn(
            "sm", "SM active, % (NVML serves it on Hopper and newer)", width=4, priority=20, title="SM"
        ),
        export=_share(
            "DCGM_FI_PROF_SM_ACTIVE", "Share of cycles with a warp on an SM", "distui.gpu.sm.active"
        ),
    ),
    _gpu(
        "tensor_active",
        "%",
        NvmlActivity(5),
        why=NO_GPM,
        curve=Curve("gpu.tensor_active", "tensor core activity", "tensor active", high=100),
        column=TableColumn("tensor", "tensor cores active, % (Hopper and newer)", width=6, priority=21),
        export=_share(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "Share of cycles with busy tensor cores",
            "distui.gpu.tensor.active",
        ),
    ),
    _gpu(
        "dram_active",
        "%",
        NvmlActivity(10),
        why=NO_GPM,
        curve=Curve("gpu.dram_active", "GPU memory bandwidth", "DRAM active", high=100),
        column=TableColumn(
            "dram", "memory bandwidth used, % (Hopper and newer)", width=4, priority=22, title="DRAM"
        ),
        export=_share(
            "DCGM_FI_PROF_DRAM_ACTIVE", "Share of the memory's bandwidth in use", "distui.gpu.dram.active"
        ),
    ),
    _gpu(
        "pcie_tx_bps",
        "B/s",
        _pcie_rate(197),
        curve=Curve("gpu.pcie_tx", "PCIe sent", "PCIe out"),
        export=_traffic("DCGM_FI_PROF_PCIE_TX_BYTES", "Sent", "PCIe", "transmit"),
    ),
    _gpu(
        "pcie_rx_bps",
        "B/s",
        _pcie_rate(198),
        curve=Curve("gpu.pcie_rx", "PCIe received", "PCIe in"),
        column=TableColumn(
            "pcie",
            "PCIe traffic, both ways, bytes/s",
            width=5,
            priority=24,
            title="PCIe",
            plus="pcie_tx_bps",
        ),
        export=_traffic("DCGM_FI_PROF_PCIE_RX_BYTES", "Received", "PCIe", "receive"),
    ),
    _gpu(
        "nvlink_tx_bps",
        "B/s",
        _nvlink_rate(138),
        curve=Curve("gpu.nvlink_tx", "NVLink sent", "NVLink out"),
        export=_traffic("DCGM_FI_PROF_NVLINK_TX_BYTES", "Sent", "NVLink", "transmit"),
    ),
    _gpu(
        "nvlink_rx_bps",
        "B/s",
        _nvlink_rate(139),
        curve=Curve("gpu.nvlink_rx", "NVLink received", "NVLink in"),
        column=TableColumn(
            "nvlink",
            "NVLink traffic, both ways, bytes/s",
            width=6,
            priority=23,
            title="NVLink",
            plus="nvlink_tx_bps",
        ),
        export=_traffic("DCGM_FI_PROF_NVLINK_RX_BYTES", "Received", "NVLink", "receive"),
    ),
    _gpu(
        "ecc_uncorrected",
        "",
        NvmlCall((("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),)),
        Tier.SLOW,
        column=TableColumn(
            "ecc", "uncorrected ECC errors", width=4, priority=31, title="ECC", optional=True
        ),
    ),
    _gpu("remap_pending", "", NvmlCall(_REMAPPED_ROWS, lambda rows: bool(rows[2])), Tier.SLOW),
    _gpu("remap_failed", "", NvmlCall(_REMAPPED_ROWS, lambda rows: bool(rows[3])), Tier.SLOW),
    _gpu("pcie_replays", "", NvmlCall((("nvmlDeviceGetPcieReplayCounter",),)), Tier.SLOW),
    _gpu("pcie_gen", "", NvmlCall((("nvmlDeviceGetCurrPcieLinkGeneration",),)), Tier.SLOW),
    _gpu("pcie_width", "", NvmlCall((("nvmlDeviceGetCurrPcieLinkWidth",),)), Tier.SLOW),
    _gpu("recovery", "", NvmlField(230, recovery_words), Tier.SLOW),
    _gpu("mig", "", NvmlCall((("nvmlDeviceGetMigMode",),), lambda mode: bool(mode[0])), Tier.SLOW),
)
