"""Progress of a training: the training line of `distui status` and of the cockpit's header. Pure.

Every number comes from the script's reports (`RunState.training`) or is computed from them here, and has its source.
An unknown value is None. Rates are None once the steps have stopped. After the end the last values stay, without an ETA.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from msgspec import Struct, field

from ...presets.signal_patterns import FIELDS
from ..run.formatting import NA, duration_exact, elapsed, step_text
from ..run.freshness import Freshness, freshness, is_late
from ..run.model import RankPhase, RunPhase
from ..run.samples import RankSample, TrainingSample
from ..run.state import RunState
from ..run.under_way import stopping
from .mfu import computed
from .quantities import RATES

STEPS_SOURCE = "hook: optimizer steps"


class Progress(Struct, frozen=True, kw_only=True):
    """The training line. Times in seconds, rates per second, `mfu` in percent."""

    step: int | None = None
    """Step by the script's count, else the slowest rank's optimizer steps since its process began: see `sources`."""
    total: int | None = None
    fraction: float | None = None
    """Fraction of `total` that is done, 0 to 1; None unless the script itself counts the steps."""
    eta_s: float | None = None
    """Remaining steps × recent step time; None if one of them is unknown, or once the steps have stopped."""
    still_s: float | None = None
    """Seconds since the newest step, once the steps have stopped."""
    usual_s: float | None = None
    """Usual seconds per step, once the steps have stopped."""
    epoch: float | None = None
    epoch_step: int | None = None
    """Step within the current epoch."""
    epoch_total: int | None = None
    """Number of steps of an epoch."""
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    tokens_s: float | None = None
    samples_s: float | None = None
    step_s: float | None = None
    mfu: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    """Other values by the script's own names."""
    not_finite: Mapping[str, str] = field(default_factory=dict)
    """Field or value name → "nan", "inf" or "-inf" if that is its newest value."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field → its source."""
    at: float | None = None
    """Unix time of the script's newest report."""
    age_s: float | None = None
    """Seconds since `at`."""
    earlier: bool = False
    """Whether all values are from the previous attempt, because the current attempt has no report yet."""


def progress(state: RunState, now: float, dim: bool = False) -> Progress:
    """Compute the training line of a run at unix time `now`; `dim`: use old values too, for a viewer that dims them."""
    samples, measured = current(state), _samples(state, now, dim)
    fields, sources = _reported(samples)
    if "mfu" not in fields and (own := _computed(state, samples)) is not None:
        fields["mfu"], sources["mfu"] = own
    at = max((sample.at for sample in samples), default=None)
    earlier = _is_earlier(state, at)
    script_s = fields.get("step_s")
    if not earlier:
        _add_counted(fields, sources, state, measured)
    advance = _advance(state, now, measured)
    pace_s = fields.get("step_s") if script_s is None else script_s
    if not advance.goes_on or earlier:
        fields |= dict.fromkeys(RATES)
        pace_s = None
    fraction, eta = (None, None) if earlier else _outlook(state, now, at, fields, sources, pace_s)
    return Progress(
        **fields,
        fraction=fraction,
        eta_s=eta,
        still_s=advance.still_s,
        usual_s=advance.usual_s,
        values=dict(ChainMap(*(sample.values for sample in samples))),
        not_finite=_not_finite(samples, fields),
        sources=sources,
        at=at,
        age_s=elapsed(at, now),
        earlier=earlier,
    )


def _is_earlier(state: RunState, at: float | None) -> bool:
    """Whether the newest report is from before the newest attempt, which still runs."""
    return at is not None and at < state.attempt_began and not state.phase.ended


def _not_finite(samples: Iterable[TrainingSample], fields: Mapping[str, Any]) -> dict[str, str]:
    """Non-finite values that no rank reports as a number; the lowest rank's text wins."""
    texts = ChainMap(*(sample.not_finite for sample in samples))
    return {name: text for name, text in texts.items() if fields.get(name) is None}


def current(state: RunState) -> list[TrainingSample]:
    """Return the newest sample of each rank, in rank order; until its first report, the previous attempt's."""
    samples = [sample for _, sample in sorted(state.training.items())]
    began = state.attempt_began
    return [sample for sample in samples if sample.at >= began] or samples


def _reported(samples: Iterable[TrainingSample]) -> tuple[dict[str, Any], dict[str, str]]:
    """Each field's value from the lowest rank that reports it, and its source."""
    fields: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for sample in samples:
        for name in FIELDS:
            value = getattr(sample, name)
            if name in sources or (value is None and name not in sample.not_finite):
                continue
            sources[name] = sample.sources.get(name, "")
            if value is not None:
                fields[name] = value
    return fields, sources


def _computed(state: RunState, samples: Iterable[TrainingSample]) -> tuple[float, str] | None:
    """MFU of a run on several nodes, which no single node can compute."""
    return next((own for sample in samples if (own := computed(state, sample)) is not None), None)


def _add_counted(
    fields: dict[str, Any], sources: dict[str, str], state: RunState, samples: Iterable[RankSample]
) -> None:
    """Add the steps that the hooks count, if the script does not report them, and the pace that they measure.

    The pace is that of the table and the charts, also if the script reports one.
    """
    last = filter(None, (rank.sample for rank in state.ranks.values()))
    steps = [sample.step for sample in last if sample.step is not None]
    if "step" not in fields and steps:
        fields["step"], sources["step"] = min(steps), STEPS_SOURCE
    paces = [sample.step_s for sample in samples if sample.step_s is not None]
    if paces:
        fields["step_s"], sources["step_s"] = fmean(paces), STEPS_SOURCE


def _outlook(
    state: RunState,
    now: float,
    at: float | None,
    fields: Mapping[str, Any],
    sources: Mapping[str, str],
    pace_s: float | None,
) -> tuple[float | None, float | None]:
    """Fraction of the steps that are done, and seconds until the end, if the script itself counts the steps.

    `pace_s`: seconds per step as the script counts, which may be several per optimizer step.
    """
    step, total = fields.get("step"), fields.get("total")
    if step is None or not total or sources["step"] == STEPS_SOURCE:
        return None, None
    return min(1.0, step / total), _eta(state, now, at, total - step, pace_s)


def _eta(state: RunState, now: float, at: float | None, left: int, step_s: float | None) -> float | None:
    """Seconds until the end, minus those since the newest report."""
    if step_s is None or at is None or left < 0 or state.phase is not RunPhase.RUNNING:
        return None
    return max(0.0, left * step_s - max(0.0, now - at))


class Advance(NamedTuple):
    """Whether a training advances."""

    goes_on: bool
    """Whether its rates are current. After the end they are those of the end."""
    still_s: float | None = None
    """Seconds since the newest step, if the steps have stopped. If this is None and `goes_on` False, it is unknown."""
    usual_s: float | None = None
    """Usual seconds per step, if the steps have stopped."""


def advance_of(state: RunState, now: float) -> Advance:
    """Judge by the steps that the hooks count, or without hooks by the script's reports."""
    return _advance(state, now, _samples(state, now, dim=False))


def _advance(state: RunState, now: float, samples: Sequence[RankSample]) -> Advance:
    if state.phase.ended:
        return Advance(True)
    if not _is_measured(state, samples):
        return Advance(False)
    if stopping(state, now) is not None:
        return Advance(False)
    usual_s, still_s = _median(sample.usual_s for sample in samples), _shortest_stop(samples)
    if hung(state):
        newest_s = _since_newest(state, now)
        return Advance(False, still_s if newest_s is None else newest_s, usual_s)
    if any(sample.step_s is not None for sample in samples):
        return Advance(True)
    return _advance_by_reports(state, now) if still_s is None else Advance(False, still_s, usual_s)


def _shortest_stop(samples: Iterable[RankSample]) -> float | None:
    """Seconds since the newest step of the ranks whose steps have stopped."""
    return min((sample.still_s for sample in samples if sample.still_s is not None), default=None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _is_measured(state: RunState, samples: Iterable[RankSample]) -> bool:
    """Whether ranks run, and their samples are fresh or they have none at all."""
    running = [rank for rank in state.ranks.values() if rank.phase is RankPhase.RUNNING]
    return bool(running and (samples or all(rank.sample is None for rank in running)))


def _advance_by_reports(state: RunState, now: float) -> Advance:
    """Judge by the script's reports."""
    newest = max(current(state), key=lambda sample: sample.at, default=None)
    if newest is None or newest.at < state.attempt_began:
        return Advance(False)
    if freshness(newest.at, now, newest.every_s) is Freshness.HOLDS:
        return Advance(True)
    return Advance(False, None if newest.every_s is None else elapsed(newest.at, now))


def _samples(state: RunState, now: float, dim: bool) -> list[RankSample]:
    """Return the samples of the running ranks; after the end the last samples of all ranks."""
    usable = (Freshness.HOLDS, Freshness.OLD) if dim else (Freshness.HOLDS,)
    is_usable: dict[float, bool] = {}  # by time: ranks of a node are sampled together
    samples = []
    for rank in state.ranks.values():
        if rank.sample is None:
            continue
        if rank.sampled not in is_usable:
            is_usable[rank.sampled] = state.phase.ended or freshness(rank.sampled, now) in usable
        if is_usable[rank.sampled] and (rank.phase is RankPhase.RUNNING or state.phase.ended):
            samples.append(rank.sample)
    return samples


def _since_newest(state: RunState, now: float) -> float | None:
    """Seconds since the newest optimizer step or report."""
    steps = [rank.pulse.last_step for rank in state.ranks.values() if rank.pulse is not None]
    reports = [sample.at for sample in current(state)]
    return elapsed(max(filter(None, (*steps, *reports)), default=None), now)


def hung(state: RunState) -> bool:
    """Whether a running run seems to hang, by a finding that needs action."""
    alarms = (finding.id for finding in state.findings.values() if finding.alarm)
    return not state.phase.ended and any(name.startswith("hang-") for name in alarms)


def parts(line: Progress, pause: str = "") -> list[tuple[str, str]]:
    """Return pairs (field, text) of the known values, the most important first. `pause`: why the steps have stopped.

    Example: ("step", "step 18,420 / 50,000"). After a restart, until its first report, the first text has a prefix:
    "before the restart: step 400 / 2,000".
    """
    texts = [
        ("step", _step_text(line)),
        ("fraction", _text(line.fraction, percent_text)),
        ("eta_s", _text(line.eta_s, lambda value: f"ETA {duration_exact(value)}")),
        ("still_s", _still_text(line, pause)),
        ("loss", _loss_text(line)),
        ("tokens_s", _text(line.tokens_s, lambda value: f"{rate_text(value)} tok/s")),
        ("samples_s", _text(line.samples_s, lambda value: f"{rate_text(value)} samples/s")),
        ("mfu", _text(line.mfu, "MFU {:.3g} %".format)),
        ("step_s", _text(line.step_s, lambda value: f"{step_text(value)}/step")),
        ("epoch", _epoch_text(line)),
        ("lr", f"lr {value_text(line, 'lr')}"),
        ("grad_norm", f"grad norm {value_text(line, 'grad_norm')}"),
    ]
    shown = [(name, text) for name, text in texts if text and not text.endswith(NA)]
    if line.earlier and shown:
        shown[0] = shown[0][0], f"before the restart: {shown[0][1]}"
    return shown


def _still_text(line: Progress, pause: str) -> str:
    """Return "no step for 6 s, usually 0.6 s" once the next step is late."""
    if line.still_s is None:
        return ""
    words = f"no step for {duration_exact(line.still_s)}"
    if line.usual_s is None:
        return words
    if not is_late(line.still_s, line.usual_s):
        return ""
    return f"{words}: {pause}" if pause else f"{words}, usually {step_text(line.usual_s)}"


def _loss_text(line: Progress) -> str:
    """Return "loss 2.311", with its age once the steps have stopped."""
    text = f"loss {value_text(line, 'loss')}"
    if text.endswith(NA) or line.still_s is None or line.age_s is None:
        return text
    return f"{text} · {duration_exact(line.age_s)} ago"


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


def percent_text(fraction: float) -> str:
    """Format a fraction, never rounded up: "37 %", "0.8 %", "< 0.1 %"."""
    tenths = int(1000 * fraction)
    if tenths >= 10 or fraction <= 0:
        return f"{tenths // 10} %"
    return f"{tenths / 10:.1f} %" if tenths else "< 0.1 %"


def _step_text(line: Progress) -> str:
    if line.step is None:
        return "" if line.total is None else f"step {NA}"
    return f"step {line.step:,}" + ("" if line.total is None else f" / {line.total:,}")


def _epoch_text(line: Progress) -> str:
    """Return "epoch 4: 1,130 / 2,502", with the step within the epoch if the script prints it."""
    epoch = "" if line.epoch is None else f"epoch {line.epoch:.4g}"
    if line.epoch_step is None:
        return epoch
    total = "" if line.epoch_total is None else f" / {line.epoch_total:,}"
    return f"{epoch or 'in this epoch'}: {line.epoch_step:,}{total}"


def value_text(line: Progress, name: str) -> str:
    """Format a field or value, even if not finite: "2.311", "NaN", "inf"; "n/a" if unknown."""
    value = getattr(line, name) if name in FIELDS else line.values.get(name)
    if value is None:
        word = line.not_finite.get(name, NA)
        return "NaN" if word == "nan" else word
    return f"{value:.4g}"


def rate_text(rate: float) -> str:
    """Format a rate: "8,782", "91.2k", "1.25M"."""
    if not rate < 1e15:
        return f"{rate:.3g}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if rate >= limit:
            size = 1e3 if unit == "k" else limit
            return f"{rate / size:.3g}{unit}" if rate < 1000 * size else f"{rate / size:.0f}{unit}"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def source_text(line: Progress) -> str:
    """Fields by their source: "loss, lr, step by wandb; tokens_s by output: …"; "" if nothing is known."""
    by_source: dict[str, list[str]] = {}
    for name in FIELDS:
        if source := line.sources.get(name):
            by_source.setdefault(source, []).append(name)
    return "; ".join(f"{', '.join(names)} by {source}" for source, names in by_source.items())
