"""What a run tells others: its state as samples, and samples as text for Prometheus. Pure.

Each metric has two spellings: that of Prometheus, with GPUs as DCGM names them, and that of OpenTelemetry's semantic
conventions, which otlp_values.py uses.

The text is the Prometheus text format (0.0.4), which node_exporter's textfile collector reads: gauges and counters,
without timestamps. It is not OpenMetrics, where a counter has another name in its TYPE line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..freshness import Freshness, freshness
from ..model import Gpu, RankPhase, RankSample, RunPhase, TrainingSample
from ..progress import RATES, advance_of
from ..state import Node, Rank, RunState


class OtelSpelling(NamedTuple):
    """A metric by OpenTelemetry's conventions; without one of their own as their translation to Prometheus needs it."""

    name: str
    unit: str = ""
    """In UCUM."""
    kind: str = "gauge"
    """"gauge", "counter" or "updowncounter"."""
    times: int = 1
    divisor: int = 1
    """By what a sample's value is multiplied and divided for the unit."""
    attributes: tuple[tuple[str, str], ...] = ()
    """Of all its points."""
    of_attempt: bool = False
    """Whether a counter begins anew with each attempt."""
    about: str = ""
    """Where several families are one metric."""


class MetricFamily(NamedTuple):
    """One metric. `name` ends in its unit if it has one, and that of a counter in `_total`."""

    name: str
    about: str
    kind: str = "gauge"
    otel: OtelSpelling | None = None
    """None: its labels are attributes of OpenTelemetry's resource."""


class MetricSample(NamedTuple):
    family: MetricFamily
    labels: tuple[tuple[str, str], ...]
    value: float


_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "cores": "{cpu}"}
"""OpenTelemetry's of those of Prometheus."""


def _own(
    name: str,
    otel: str,
    about: str,
    unit: str = "",
    *,
    otel_unit: str = "",
    otel_kind: str = "gauge",
    of_attempt: bool = False,
) -> MetricFamily:
    """A metric that no convention has."""
    kind = "counter" if otel_kind == "counter" else "gauge"
    spelling = OtelSpelling(otel, otel_unit or _UNITS.get(unit, ""), otel_kind, of_attempt=of_attempt)
    return MetricFamily(name, about, kind, spelling)


RUN_INFO = MetricFamily("distui_run_info", "1, with the name, preset, launcher and host of the run.")
RUN_STATE = _own(
    "distui_run_state", "distui.run.state", "1 for the state that the run is in, 0 for the others."
)
START_TIME = _own(
    "distui_run_start_time_seconds", "distui.run.start_time", "Unix time at which the run began.", "seconds"
)
ATTEMPT = _own("distui_run_attempt", "distui.run.attempt", "Number of the current attempt, from 1 on.")
FAILURES = _own(
    "distui_run_failures_total",
    "distui.run.failures",
    "Failures that the restart policy counted.",
    otel_unit="{failure}",
    otel_kind="counter",
)
EXIT_CODE = _own("distui_run_exit_code", "distui.run.exit_code", "Exit code of a run that has ended.")
FINDINGS = _own(
    "distui_run_findings",
    "distui.run.findings",
    "Findings that hold now, by severity.",
    otel_unit="{finding}",
    otel_kind="updowncounter",
)
RANKS = _own(
    "distui_ranks",
    "distui.ranks",
    "Ranks of the current attempt on this node, by state.",
    otel_unit="{rank}",
    otel_kind="updowncounter",
)
RANK_INFO = _own("distui_rank_info", "distui.rank.info", "1, with the local rank and GPU of the rank.")

_OF_RANK: tuple[tuple[MetricFamily, Callable[[RankSample], float | None]], ...] = (
    (
        _own(
            "distui_rank_steps_total",
            "distui.rank.steps",
            "Optimizer steps since the rank's process began.",
            otel_unit="{step}",
            otel_kind="counter",
            of_attempt=True,
        ),
        lambda it: it.step,
    ),
    (
        _own(
            "distui_rank_step_duration_seconds",
            "distui.rank.step.duration",
            "Mean time of a step, while steps go on.",
            "seconds",
        ),
        lambda it: it.step_s,
    ),
    (
        _own(
            "distui_rank_collective_wait_ratio",
            "distui.rank.collective.wait",
            "Share of time waited for other ranks in collectives.",
            "ratio",
        ),
        lambda it: _share(it.wait_percent),
    ),
    (
        _own(
            "distui_rank_cpu_cores",
            "distui.rank.cpu.cores",
            "CPU time of the rank and its children, in cores.",
            "cores",
        ),
        lambda it: _share(it.cpu_percent),
    ),
    (
        _own(
            "distui_rank_memory_usage_bytes",
            "distui.rank.memory.usage",
            "Resident memory of the rank.",
            "bytes",
            otel_kind="updowncounter",
        ),
        lambda it: it.rss_bytes,
    ),
    (
        _own(
            "distui_rank_gpu_memory_usage_bytes",
            "distui.rank.gpu.memory.usage",
            "GPU memory of the rank's process.",
            "bytes",
            otel_kind="updowncounter",
        ),
        lambda it: it.gpu_mem,
    ),
    (
        _own(
            "distui_rank_output_age_seconds",
            "distui.rank.output.age",
            "Time since the rank wrote any output.",
            "seconds",
        ),
        lambda it: it.log_age_s,
    ),
)

_OF_TRAINING = {
    "loss": _own(
        "distui_training_loss",
        "distui.training.loss",
        "Newest loss that the script reports, also NaN and Inf.",
    ),
    "lr": _own("distui_training_learning_rate", "distui.training.learning_rate", "Newest learning rate."),
    "grad_norm": _own(
        "distui_training_gradient_norm", "distui.training.gradient_norm", "Newest norm of the gradients."
    ),
    "tokens_s": _own(
        "distui_training_tokens_per_second",
        "distui.training.tokens_per_second",
        "Tokens a second of the whole job.",
        otel_unit="{token}/s",
    ),
    "samples_s": _own(
        "distui_training_samples_per_second",
        "distui.training.samples_per_second",
        "Samples a second of the whole job.",
        otel_unit="{sample}/s",
    ),
    "mfu": _own(
        "distui_training_mfu_ratio", "distui.training.mfu", "Model FLOPs utilisation, from 0 to 1.", "ratio"
    ),
    "epoch": _own("distui_training_epoch", "distui.training.epoch", "Epoch as the script counts."),
    "step": _own("distui_training_step", "distui.training.step", "Step as the script counts."),
    "total": _own(
        "distui_training_steps_planned",
        "distui.training.steps_planned",
        "Steps after which the training is over.",
    ),
}
_DIVISORS = {"mfu": 100}

_MIB = 1 << 20
SENSOR = "hw.sensor_location"
"""Attribute of a metric that the conventions give to a sensor, a component of the GPU."""
_GPU = (("hw.type", "gpu"), ("hw.vendor", "NVIDIA"))
_SENT, _RECEIVED = ((*_GPU, ("network.io.direction", way)) for way in ("transmit", "receive"))
_PCIE, _NVLINK = ("distui.gpu.pcie.throughput", "By/s"), ("distui.gpu.nvlink.throughput", "By/s")
_OF_GPU: tuple[tuple[str, str, str, str, int, OtelSpelling], ...] = (
    (
        "util",
        "DCGM_FI_DEV_GPU_UTIL",
        "GPU utilization",
        ", in percent",
        1,
        OtelSpelling("hw.gpu.utilization", "1", divisor=100, attributes=_GPU),
    ),
    (
        "mem_used",
        "DCGM_FI_DEV_FB_USED",
        "Used GPU memory",
        ", in MiB",
        _MIB,
        OtelSpelling("hw.gpu.memory.usage", "By", "updowncounter", _MIB, attributes=_GPU),
    ),
    (
        "mem_total",
        "DCGM_FI_DEV_FB_TOTAL",
        "GPU memory",
        ", in MiB",
        _MIB,
        OtelSpelling("hw.gpu.memory.limit", "By", "updowncounter", _MIB, attributes=_GPU),
    ),
    (
        "power_w",
        "DCGM_FI_DEV_POWER_USAGE",
        "Power",
        ", in W",
        1,
        OtelSpelling("hw.power", "W", attributes=_GPU),
    ),
    (
        "temp_c",
        "DCGM_FI_DEV_GPU_TEMP",
        "Temperature of the GPU",
        ", in degrees Celsius",
        1,
        OtelSpelling("hw.temperature", "Cel", attributes=((SENSOR, "gpu"),), about="Temperature"),
    ),
    (
        "mem_temp_c",
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Temperature of its memory",
        ", in degrees Celsius",
        1,
        OtelSpelling("hw.temperature", "Cel", attributes=((SENSOR, "memory"),), about="Temperature"),
    ),
    (
        "sm_mhz",
        "DCGM_FI_DEV_SM_CLOCK",
        "Clock of the SMs",
        ", in MHz",
        1,
        OtelSpelling("distui.gpu.sm.clock", "Hz", times=10**6, attributes=_GPU),
    ),
    (
        "mem_mhz",
        "DCGM_FI_DEV_MEM_CLOCK",
        "Clock of its memory",
        ", in MHz",
        1,
        OtelSpelling("distui.gpu.memory.clock", "Hz", times=10**6, attributes=_GPU),
    ),
    (
        "sm_active",
        "DCGM_FI_PROF_SM_ACTIVE",
        "Share of cycles with a warp on an SM",
        ", from 0 to 1",
        100,
        OtelSpelling("distui.gpu.sm.active", "1", attributes=_GPU),
    ),
    (
        "tensor_active",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of cycles with busy tensor cores",
        ", from 0 to 1",
        100,
        OtelSpelling("distui.gpu.tensor.active", "1", attributes=_GPU),
    ),
    (
        "dram_active",
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Share of the memory's bandwidth in use",
        ", from 0 to 1",
        100,
        OtelSpelling("distui.gpu.dram.active", "1", attributes=_GPU),
    ),
    (
        "pcie_tx_bps",
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "Sent over PCIe",
        ", in bytes per second",
        1,
        OtelSpelling(*_PCIE, attributes=_SENT, about="Sent or received over PCIe"),
    ),
    (
        "pcie_rx_bps",
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "Received over PCIe",
        ", in bytes per second",
        1,
        OtelSpelling(*_PCIE, attributes=_RECEIVED, about="Sent or received over PCIe"),
    ),
    (
        "nvlink_tx_bps",
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        "Sent over NVLink",
        ", in bytes per second",
        1,
        OtelSpelling(*_NVLINK, attributes=_SENT, about="Sent or received over NVLink"),
    ),
    (
        "nvlink_rx_bps",
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "Received over NVLink",
        ", in bytes per second",
        1,
        OtelSpelling(*_NVLINK, attributes=_RECEIVED, about="Sent or received over NVLink"),
    ),
)
"""Field of a GPU, DCGM's name of it, what it is, DCGM's unit and by what to divide for it, OpenTelemetry's spelling."""
_GPU_FAMILIES = tuple(
    (field, MetricFamily(name, f"{about}{unit}.", otel=otel._replace(about=otel.about or about)), divisor)
    for field, name, about, unit, divisor, otel in _OF_GPU
)

_STATES = tuple(phase for phase in RunPhase if phase is not RunPhase.EXPORTED)


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / 100


def samples_of(state: RunState, run: str, node: int, now: float) -> list[MetricSample]:
    """What is known now of a run, as its agent on one node sees it; what is unknown is left out.

    Of a run that has ended only what stays true. `run`: its id; `now`: unix time by the node's clock.
    """
    base = (("run", run), ("node", str(node)))
    samples = list(_of_run(state, node, base))
    if state.phase.ended:
        return samples
    ranks = state.ranks_of(node)
    counts = {phase: sum(rank.phase is phase for rank in ranks) for phase in RankPhase}
    if ranks:
        samples += [
            MetricSample(RANKS, (*base, ("state", str(each))), count) for each, count in counts.items()
        ]
    began = state.attempts[-1].began if state.attempts else 0.0
    goes_on = advance_of(state, now).goes_on
    used = set[int]()
    for rank in ranks:
        samples += _of_rank(rank, base, now)
        training = state.training.get(rank.place.rank)
        if rank.phase is RankPhase.RUNNING and training is not None and training.at >= began:
            samples += _of_training(training, base, goes_on)
        if rank.phase is RankPhase.RUNNING and rank.sample is not None and rank.sample.gpu is not None:
            used.add(rank.sample.gpu)
    seen = state.nodes.get(node)
    if seen is not None and freshness(seen.gpu_sampled, now) is Freshness.HOLDS:
        for gpu in seen.gpus:
            samples += _of_gpu(gpu, base, seen) if gpu.index in used and not gpu.lost else ()
    return samples


def facts_of(state: RunState, node: int) -> dict[str, str]:
    """Name, preset, launcher and host of a run, as far as they are known."""
    plan, there = state.plan, state.nodes.get(node)
    facts = {
        "name": state.name,
        "preset": "" if plan is None else plan.preset,
        "launcher": "" if plan is None else plan.launcher,
        "host": "" if there is None else there.host,
    }
    return {key: text for key, text in facts.items() if text}


def _of_run(state: RunState, node: int, base: tuple[tuple[str, str], ...]) -> Iterator[MetricSample]:
    yield MetricSample(RUN_INFO, (*base, *facts_of(state, node).items()), 1)
    for phase in _STATES:
        yield MetricSample(RUN_STATE, (*base, ("state", str(phase))), int(state.phase is phase))
    if state.began:
        yield MetricSample(START_TIME, base, state.began)
    if state.attempts:
        yield MetricSample(ATTEMPT, base, state.attempt)
    yield MetricSample(FAILURES, base, state.failures)
    if state.phase.ended and state.exit_code is not None:
        yield MetricSample(EXIT_CODE, base, state.exit_code)
    severities = [finding.severity for finding in state.findings.values()]
    for severity in ("error", "warning"):
        yield MetricSample(FINDINGS, (*base, ("severity", severity)), severities.count(severity))


def _of_rank(rank: Rank, base: tuple[tuple[str, str], ...], now: float) -> Iterator[MetricSample]:
    labels, sample = (*base, ("rank", str(rank.place.rank))), rank.sample
    gpu = () if sample is None or sample.gpu is None else (("gpu", str(sample.gpu)),)
    yield MetricSample(RANK_INFO, (*labels, ("local_rank", str(rank.place.local_rank)), *gpu), 1)
    if sample is None or rank.phase is not RankPhase.RUNNING:
        return
    if freshness(rank.sampled, now) is not Freshness.HOLDS:
        return
    for family, value_of in _OF_RANK:
        value = value_of(sample)
        if value is not None:
            yield MetricSample(family, labels, value)


def _of_training(
    training: TrainingSample, base: tuple[tuple[str, str], ...], goes_on: bool
) -> Iterator[MetricSample]:
    """`goes_on`: whether the training advances, without which its rates are none of now."""
    labels = (*base, ("rank", str(training.rank)))
    for field, family in _OF_TRAINING.items():
        if field in RATES and not goes_on:
            continue
        text = training.not_finite.get(field)
        value = getattr(training, field) if text is None else float(text)
        if value is not None:
            yield MetricSample(family, labels, value / _DIVISORS.get(field, 1))


def _of_gpu(gpu: Gpu, base: tuple[tuple[str, str], ...], node: Node) -> Iterator[MetricSample]:
    labels = (
        *base,
        ("gpu", str(gpu.index)),
        ("UUID", gpu.uuid),
        ("device", f"nvidia{gpu.index}"),
        ("modelName", gpu.name),
        *((("Hostname", node.host),) if node.host else ()),
    )
    for field, family, divisor in _GPU_FAMILIES:
        value = getattr(gpu, field)
        if value is not None:
            yield MetricSample(family, labels, value / divisor)


FAMILIES = (
    RUN_INFO,
    RUN_STATE,
    START_TIME,
    ATTEMPT,
    FAILURES,
    EXIT_CODE,
    FINDINGS,
    RANKS,
    RANK_INFO,
    *(family for family, _ in _OF_RANK),
    *_OF_TRAINING.values(),
    *(family for _, family, _ in _GPU_FAMILIES),
)
"""All that there are, in the order of the text."""

_UNPRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f\ud800-\udfff]")


def text_of(samples: Iterable[MetricSample]) -> bytes:
    """The text of a file. The samples of a family are together, as the format wants it."""
    by_family: dict[str, list[MetricSample]] = {family.name: [] for family in FAMILIES}
    for sample in samples:
        by_family[sample.family.name].append(sample)
    lines: list[str] = []
    for of_family in filter(None, by_family.values()):
        family = of_family[0].family
        lines += [f"# HELP {family.name} {family.about}", f"# TYPE {family.name} {family.kind}"]
        lines += [
            f"{family.name}{{{_labels(dict(sample.labels))}}} {_number(sample.value)}"
            for sample in of_family
        ]
    return "\n".join([*lines, ""]).encode()


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())


def printable(text: str) -> str:
    """Control characters and halves of surrogate pairs are U+FFFD: parsers differ about them."""
    return _UNPRINTABLE.sub("\ufffd", text)


def _escaped(text: str) -> str:
    text = printable(text)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(float(value))
