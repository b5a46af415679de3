"""Scripts' names for training signals: which name is the loss, which the throughput, and their units. Pure.

One table serves trackers' names and words of log lines, so that "train/loss", "Train Loss" and "training_loss" are one
field in every source. A name that is not in the table is a value with the script's own name.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from ...presets.sanitize import clean_text


class Name(NamedTuple):
    """Meaning of a name."""

    field: str
    """Field of TrainingSample; "" for a value with the script's own name."""
    scale: float = 1.0
    """Factor to the field's unit."""
    order: int = 0
    """Precedence among the names of one field; the lowest counts."""
    per_gpu: bool = False
    """True for a rate per GPU instead of per job."""
    inverse: bool = False
    """True for steps per second, whose field is seconds per step."""

    def converted(self, value: float) -> float:
        """Convert a value to the field's unit."""
        if self.inverse:
            return 1 / value if value > 0 else 0.0
        return value * self.scale


class ReportedValue(NamedTuple):
    field: str
    """Field of TrainingSample; "" for a value with the script's own name."""
    name: str
    value: float
    """The value, possibly not finite."""
    source: str
    at: float = 0.0
    """Unix time."""
    order: int = 0
    since: int | None = None
    """First step of the current series of values that are not finite."""
    per_gpu: bool = False


OWN = Name("")
COUNTS = ("step", "total", "epoch_step", "epoch_total")
"""Fields with whole numbers."""
WITHIN = {"step": "epoch_step", "total": "epoch_total"}
"""Fields of the whole training → those of an epoch."""
_NAMES = {
    "loss": """
        loss train_loss training_loss loss_train loss_training train_loss_step lm_loss train_lm_loss
        batch_loss train_batch_loss loss_step global_loss loss_metrics_global_avg_loss avg_loss
        average_loss mean_loss running_loss current_loss nll_loss ce_loss train_ce_loss cross_entropy_loss
        mlm_loss reduced_train_loss cross_entropy train_cross_entropy train_crossentropyloss total_loss
        train_total_loss loss_total loss_train_total train_loss_train_total xent step_loss avr_loss loss_mean
        loss_avg loss_avg_rank all_loss train_all_loss losses_train_all_loss actor_loss pg_loss actor_pg_loss policy_loss
    """,
    "step": """
        global_step step train_global_step trainer_global_step train_step optimizer_step iteration iter
        iter_num it num_updates update batch_idx global_step_max_steps
        training_global_step step_num
    """,
    "total": "max_steps total_steps num_steps train_steps max_iters num_iterations max_step",
    "lr": """
        lr learning_rate train_lr train_learning_rate optim_lr lr_group_0 lr_0 lr_pg0 actor_lr lr_pg_0
        train_lr_pg_0 learning_rate_group0 optim_learning_rate_group0 current_lr
    """,
    "grad_norm": """
        grad_norm gradient_norm train_grad_norm gnorm global_grad_norm grad_norm_total total_grad_norm
        gradnorm grad_2_norm optim_grad_norm grad_total_norm
    """,
    "epoch": "epoch train_epoch current_epoch training_epoch epch epoch_num",
}
"""Field → its names in order of precedence."""
EXACT: dict[str, Name] = {
    name: Name(field, order=at) for field, names in _NAMES.items() for at, name in enumerate(names.split())
}
LAST = 99
"""Order of what counts only if nothing else does."""
UNSURE = 50
"""Order of a step time without a unit."""
_BY_OPTIMIZER = re.compile(
    r"lr_(?:fused|decoupled)?(?:adamw?|sgd|lion|muon|adafactor|lamb|rmsprop|adagrad)(?:_pg1|_group0)?"
)
"""Names from Lightning's LearningRateMonitor."""
_A_SECOND = r"(?:(?:_?per_?|_)s(?:ec(?:ond)?s?)?|sec)"
_RATE = re.compile(
    r"(?:train_|training_|perf_|throughput_|speed_|avg_|(?P<device>device_))*(?P<what>tokens?|toks?|words?|samples?|images?|imgs?|examples?|seqs?|sequences?|sent(?:ence)?s?)"
    rf"{_A_SECOND}(?P<gpu>_(?:per_)?(?:gpu|device|rank|chip|dev)s?)?"
)
_EACH = r"(?:step|iter(?:ation)?|it|batch|update)"
_STEP_TIME = re.compile(
    rf"(?:train_|perf_|avg_)*(?:{_EACH}_(?:time|cost|duration)|time(?:_per)?_{_EACH}|per_step_time|sec_per_it|updt"
    r"|train_step_timing_in|elapsed_time_per_iteration|time_metrics_end_to_end)(?:_(?P<unit>ms|s|sec|secs|seconds|milliseconds))?"
    rf"|(?P<before>ms|s|sec|secs|seconds)(?:_per)?_{_EACH}"
)
_STEP_RATE = re.compile(
    rf"(?:train_|training_|perf_|throughput_|speed_|device_|global_)*(?:{_EACH}|batche|iter)s?{_A_SECOND}|ups"
)
_RATES = ("speed", "train_speed", "throughput", "rate")
"""Names of steps per second, if their unit says so."""
MOST_WITHOUT_UNIT_S = 60.0
"""Maximum step time without a unit: a larger number may be milliseconds."""
SECONDS = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
}
_UNIT = re.compile(r"[(\[]([^()\[\]]*)[)\]]$")
_BETWEEN = re.compile(r"[^a-z0-9]+")
PERCENT = ("%", "percent", "pct")
_PER_GPU = ("tgs", "tokens_per_gpu_per_second")
"""Names of tokens per second and GPU, like torchtitan's "throughput(tps)"."""


@functools.lru_cache(maxsize=4096)
def meaning(name: str, unit: str = "") -> Name:
    """Meaning of a name with the unit that follows the value or the name."""
    text = name.strip().lower()
    in_name = _UNIT.search(text)
    if in_name is not None:
        text, unit = text[: in_name.start()], in_name[1].strip()
    plain = _BETWEEN.sub("_", text).strip("_")
    exact = EXACT.get(plain)
    if exact is not None:
        return exact
    words = plain.split("_")
    if "mfu" in words:
        sure = unit in PERCENT or words[-1] in PERCENT
        return Name("mfu", order=0 if sure else 1)
    if plain in _PER_GPU or (plain, unit) == ("throughput", "tps"):
        return Name("tokens_s", per_gpu=True)
    if _BY_OPTIMIZER.fullmatch(plain):
        return Name("lr", order=LAST)
    means = _rate(plain) or _step_time(plain, unit) or _step_rate(plain, unit)
    if means is not None:
        return means
    first, _, rest = plain.partition("_")
    means = meaning(rest, unit) if rest and first in ("train", "losses") else OWN
    return means if first == "train" or means.field == "loss" else OWN


def _rate(name: str) -> Name | None:
    if name == "wps":
        return Name("tokens_s", order=LAST)
    rate = _RATE.fullmatch(name)
    if rate is None:
        return None
    field = "tokens_s" if rate["what"].startswith(("tok", "word")) else "samples_s"
    per_gpu = bool(rate["gpu"] or rate["device"])
    return Name(field, order=1 if per_gpu else 0, per_gpu=per_gpu)


def _step_time(name: str, unit: str) -> Name | None:
    timed = _STEP_TIME.fullmatch(name)
    if timed is None:
        return None
    unit = timed["unit"] or timed["before"] or unit
    if not unit:
        return Name("step_s", order=UNSURE)
    scale = SECONDS.get(unit)
    return None if scale is None else Name("step_s", scale)


def _step_rate(name: str, unit: str) -> Name | None:
    """Meaning of steps per second by the name, or by the unit of a speed."""
    by_unit = name in _RATES and _STEP_RATE.fullmatch(_BETWEEN.sub("_", unit)) is not None
    return Name("step_s", order=5, inverse=True) if by_unit or _STEP_RATE.fullmatch(name) else None


def signal(
    name: str, value: float, source: str, at: float = 0.0, since: int | None = None
) -> ReportedValue:
    """Convert a value with a script's name to a signal."""
    means = meaning(name)
    field, value = means.field, means.converted(value)
    if field and not plausible(field, value, is_sure(means)):
        field = ""
    return ReportedValue(field, name, value, source, at, means.order, since, means.per_gpu)


def is_sure(means: Name) -> bool:
    """Whether the unit of a value with this meaning is known."""
    return means.order == 0 if means.field == "mfu" else means.order != UNSURE


def plausible(field: str, value: float, sure: bool = True) -> bool:
    """Whether a field can have that value. `sure`: whether the unit is known; otherwise an MFU of 0.4 may mean 40 %."""
    if not math.isfinite(value):
        return field in ("loss", "grad_norm")
    if field in COUNTS:
        return value >= 0 and value < 2**53
    if field == "mfu":
        return (0 if sure else 1) < value <= 100
    if field == "step_s" and not sure:
        return 0 < value <= MOST_WITHOUT_UNIT_S
    if field in ("tokens_s", "samples_s", "step_s"):
        return value > 0
    return field not in ("epoch", "lr", "grad_norm") or value >= 0


# --- reports of a rank's hook ---


class TrackerValues(Struct):
    """The newest values that one tracker received; see inrank/training_signals.py."""

    values: dict[str, tuple[float | str, int | None, float]] = {}
    """Name → (value or "nan", "inf", "-inf"; its step; unix time)."""
    bad: dict[str, int | None] = {}
    reached: int | None = None
    total: int | None = None
    epoch: float | None = None


class Reported(Struct):
    """Reports of a rank's script, by tracker."""

    version: int = 0
    trackers: dict[str, TrackerValues] = {}


TRACKERS = ("transformers", "lightning", "accelerate", "wandb", "tensorboard", "mlflow", "trackio")
"""Trackers in order of precedence; those that count steps themselves come first."""
WORDS = {
    "transformers": "HF Trainer",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "mlflow": "MLflow",
}
"""Display names of sources, if different."""


def of_trackers(reported: Reported) -> Iterator[ReportedValue]:
    """Yield a script's reports, in order of the trackers' precedence."""
    ordered = sorted(reported.trackers.items(), key=lambda item: (*TRACKERS, item[0]).index(item[0]))
    for tracker, values in ordered:
        yield from _of_tracker(WORDS.get(tracker, clean_text(tracker)), values)


def _of_tracker(source: str, tracker: TrackerValues) -> Iterator[ReportedValue]:
    at = max((moment for _, _, moment in tracker.values.values()), default=0.0)
    for field, counted in (("step", tracker.reached), ("total", tracker.total), ("epoch", tracker.epoch)):
        if counted is not None and plausible(field, counted):
            yield ReportedValue(field, field, float(counted), source, at, -1)
    leads: list[tuple[bool, int, int, float]] = []
    for name, (value, step, moment) in tracker.values.items():
        each = signal(name, _number(value), source, moment, since=tracker.bad.get(name))
        yield each
        if each.field in ("loss", "lr", "grad_norm") and step is not None:
            leads.append((each.field != "loss", each.order, step, moment))
    if leads:
        _, _, step, moment = min(leads, key=lambda lead: lead[:2])
        if plausible("step", step):
            yield ReportedValue("step", AXIS, float(step), source, moment, LAST)


AXIS = "(axis)"
"""Name of a step that is a tracker's x axis: it may count epochs."""


def _number(value: float | str) -> float:
    if isinstance(value, float):
        return value
    return float(value) if value in ("nan", "inf", "-inf") else math.nan


def best(signals: Iterable[ReportedValue]) -> dict[str, ReportedValue]:
    """Field → its best signal: from the first source, the lowest order; the newest of equals."""
    chosen: dict[str, ReportedValue] = {}
    for each in signals:
        there = chosen.get(each.field) if each.field else None
        if each.field and (there is None or (there.source == each.source and each.order <= there.order)):
            chosen[each.field] = each
    return chosen
