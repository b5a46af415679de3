"""Training signals in a rank's output: a line in, signals out, each with the pattern that matched. Pure.

Most frameworks write "name value" pairs in one of a few styles, so one parser of pairs is enough. `output_formats` has
the rest as tables: signatures of frameworks with their short names ("tps" of torchtitan is per GPU), positions such as
"Epoch [4/100] [1130/2502]", and progress bars. A line counts as the training's if it has a loss, or steps with a
throughput or a step time. The loss of an evaluation stays a value with its own name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from .output_bars import Bar, bar_in
from .output_formats import (
    INFERENCE,
    METER_NAMES,
    METERS,
    PAIRED,
    PLURAL,
    POSITIONS,
    REINFORCEMENT,
    SIGNATURES,
    TRAINS,
    Position,
    Signature,
)
from .output_pairs import EVALUATES, MOST_PAIRS, Pair, pairs_of
from .output_tables import as_line
from .signal_names import (
    COUNTS,
    OWN,
    SECONDS,
    UNSURE,
    WITHIN,
    Name,
    ReportedValue,
    is_sure,
    meaning,
    plausible,
)

LONGEST = 1000
"""Maximum characters of a line that are read."""
LONGEST_KNOWN = 6000
"""Maximum characters that are read of a line with a long signature."""
MOST_KNOWN = 400
"""Maximum pairs of a line with a long signature."""
FEW = 6
"""Maximum pairs of a line that counts with a step but without a loss."""
MOST_VALUES = 8
"""Maximum other values per line."""
SEGMENTS = 4
"""Maximum states, from the end, of a line that a progress bar overwrote."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_PREFIX = re.compile(
    r"^\s*(?:\[(?:rank|default|Rank )?\d+\]:?|(?:rank )?\d{1,5}: (?=\D)|\((?:pid|\w+ pid)=[^)]*\))?\s*"
    r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?:?\s+)?"
)
"""Prefix of the writer, "[rank0]:", "[default3]:", "0: " of srun, "(RayTrainWorker pid=7, ip=…)", and a time."""
_MAY = re.compile(r"loss|step|iter|tok|epoch|batch|/s|s/it|learning", re.IGNORECASE)
"""Quick test: most lines do not match, and have no signal."""
_CONFIG = re.compile(r"^\s*\S{0,60}(?:Namespace|Config|Arguments|Args)\(")

EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval|val|valid|validation|test|dev|acc|accuracy|ppl|perplexity|bpb|reward)(?:[^a-z]|$)|val(?:id)?_|acc"
)
"""Names of values to keep."""
_COSTS = re.compile(r"runtime|per_sec|_time\b|duration")
"""Names of an evaluation's costs, in contrast to its results."""
FILLERS = frozenset(
    (
        *("completed", "finished", "current", "running", "global", "total", "train", "training", "batch"),
        *("at", "the", "with", "in", "info", "model"),
    )
)
"""Words before a name that do not change its meaning."""
HEADING = "output: heading"
"""Source of an epoch on a separate line."""
_STYLES = {":": "key: value", "=": "key=value", "": "key value"}
"""Most frequent separator of a line → name of the source."""
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_PER_SECOND = ("/s", "/sec", "/second", "per s", "per sec", "per second", "/gpu", "/device")
_EVALUATED_TOO = ("loss", "tokens_s", "samples_s", "step_s")
"""Fields that an evaluation prints by the same names."""
_LOSS_BEFORE = re.compile(r"""['"]loss['"]: """)
_STEPS_PER_SECOND = re.compile(r"(?:it|iter(?:ation)?|step|batch|update)(?:e?s)?/s(?:ec(?:ond)?)?")


def is_candidate(text: str) -> bool:
    """Whether a piece of output may have a signal; cheap."""
    return _MAY.search(text) is not None


def signals(line: str, before: str = "") -> list[ReportedValue]:
    """Signals in one line or table of output; [] for none. Their times are 0, because only the reader knows them.

    `before`: the line with signals before it. A progress bar without a title and a loss counts only below a loss.
    """
    below_loss = _LOSS_BEFORE.search(before) is not None
    read: list[ReportedValue] = []
    if "\n" in line:
        return _line(as_line(_ANSI.sub("", line[:LONGEST_KNOWN])))
    if len(line) > LONGEST_KNOWN:
        line = line[-SEGMENTS * LONGEST :]
    for segment in line.split("\r")[-SEGMENTS:]:
        text = _ANSI.sub("", segment)[:LONGEST_KNOWN]
        if _MAY.search(text) is not None and _CONFIG.match(text) is None:
            read += _segment(_PREFIX.sub("", text, count=1), below_loss)
    return read


def _segment(text: str, below_loss: bool) -> list[ReportedValue]:
    bar = bar_in(text)
    if bar is None:
        return _line(text)
    rest = _line(text[bar.end :])
    if bar.kind == "Keras bar":
        return [*_place_of(bar, "output: Keras bar"), *rest] if rest else []
    return [*_bar(bar, below_loss), *rest]


def _bar(bar: Bar, below_loss: bool) -> list[ReportedValue]:
    """Signals of a progress bar. A training's bar has a loss, or a training's title, or is below a loss."""
    source = f"output: {bar.kind}"
    evaluates = EVALUATES.search(bar.title) is not None
    pairs = [*pairs_of(bar.title + " "), *pairs_of(bar.values)]
    made = [_made(pair, source, evaluates) for pair in pairs]
    if evaluates:
        return _evaluation(made)
    has_loss = any(each.field == "loss" for each in made)
    if not (has_loss or bar.is_of_training or (below_loss and not bar.title.strip())):
        return []
    return [*_counted(bar, made, source), *_evaluation(made)]


def _counted(bar: Bar, made: list[ReportedValue], source: str) -> Iterator[ReportedValue]:
    """Yield the training's fields of a bar and its values."""
    has_step = False
    for each in made:
        if each.field in COUNTS and not _is_own_count(bar, each):
            continue
        has_step = has_step or each.field == "step"
        if each.field:
            yield each
    if not (has_step and bar.counts == "steps"):
        yield from _place_of(bar, source)
    if bar.epoch is not None:
        yield ReportedValue("epoch", "epoch", bar.epoch, source)
    if bar.step_s > 0:
        yield ReportedValue("step_s", "rate", bar.step_s, source)


def _is_own_count(bar: Bar, value: ReportedValue) -> bool:
    """Whether a count among a bar's values is another one than the bar's."""
    return bar.counts == "steps" or "global" in value.name or value.value > max(bar.n + 1, bar.total)


_BAR_FIELDS = {
    "steps": ("step", "total"),
    "steps of an epoch": ("epoch_step", "epoch_total"),
    "epochs": ("epoch", ""),
    "": ("", ""),
}


def _place_of(bar: Bar, source: str) -> Iterator[ReportedValue]:
    n, total = _BAR_FIELDS[bar.counts]
    if n:
        yield ReportedValue(n, "n", float(bar.n), source)
    if total and bar.total:
        yield ReportedValue(total, "total", float(bar.total), source)


def _made(
    pair: Pair, source: str, evaluates: bool, signature: Signature | None = None, metered: bool = False
) -> ReportedValue:
    """Convert a pair to a signal; a pair of an evaluation becomes a value."""
    means = _means(pair.label, pair.unit, pair.after, signature, metered)
    field, name = means.field, pair.label
    value = means.converted(float(pair.value.replace(",", "")) * _FACTORS.get(pair.after[:1], 1.0))
    if evaluates and field == "loss" and not EVALUATED.search(name.lower()):
        name = "eval loss"
    if field and not (
        _of_training(pair, field, value, evaluates) and plausible(field, value, is_sure(means))
    ):
        field = ""
    return ReportedValue(field, name, value, source, order=means.order, per_gpu=means.per_gpu)


_NO_UNIT = ("loss", "lr", "step", "epoch", "epoch_step", "grad_norm")
_NOT_ITS_UNIT = ("ms", "s", "sec", "secs", "seconds", "%")


def _of_training(pair: Pair, field: str, value: float, evaluates: bool) -> bool:
    """Whether a pair with a field's name can be that field of the training."""
    if field in _NO_UNIT and pair.after in _NOT_ITS_UNIT:
        return False
    if field in COUNTS:
        return value.is_integer()
    if field == "tokens_s" and INFERENCE.search(pair.label):
        return False
    if field == "loss" and not pair.sep and pair.value.isdigit():
        return False  # "Train loss 64998 0.30": the number is the step
    return not evaluates or field not in _EVALUATED_TOO or "train" in pair.label.lower()


_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|[\[\]]")
"""Boundaries between the words of a name such as "LearningRate"."""


@functools.lru_cache(maxsize=4096)
def _means(name: str, unit: str, after: str, signature: Signature | None, metered: bool) -> Name:
    """Meaning of a name with the unit in parentheses and the one after the number."""
    after = after.lower()
    by_unit = _by_unit(after) if after else None
    if by_unit is not None:
        return by_unit
    unit = "" if unit == "data" else unit
    label = name.lower().replace("[", " ").replace("]", " ").strip()
    unit = unit or after
    means = (
        _special(label, signature, metered)
        or PAIRED.get(label)
        or _by_words(_CAMEL.sub(" ", name).lower(), unit)
    )
    if not means.field and "/s" in unit:
        return _by_unit(unit.lower()) or OWN
    if means.field == "step_s" and means.order == UNSURE and unit:
        scale = SECONDS.get(unit)
        return OWN if scale is None else Name("step_s", scale, order=2)
    return means


def _special(label: str, signature: Signature | None, metered: bool) -> Name | None:
    """Meaning of a name on a line of a framework, or of meters."""
    if signature is not None and label in signature.names:
        return signature.names[label]
    return METER_NAMES.get(label) if metered else None


def _by_unit(unit: str) -> Name | None:
    """Meaning of a number by the unit after it; None if the name decides."""
    if unit.endswith("mfu"):
        return Name("mfu")
    if _STEPS_PER_SECOND.fullmatch(unit):
        return Name("step_s", order=5, inverse=True)
    if unit.startswith(("ms/", "s/", "sec/", "secs/")):
        return Name("step_s", SECONDS[unit.partition("/")[0]], order=5 if unit == "s/it" else 0)
    if unit.endswith(_PER_SECOND):
        rate = meaning(re.sub(r"^[kmg]?\s*(?=[a-z]{3})", "", unit))
        if rate.field:
            return rate
    return None


def _by_words(label: str, unit: str) -> Name:
    """Meaning of a name without the words before it that do not change it."""
    means = meaning(label, unit)
    words = label.split()
    while not means.field and len(words) > 1 and words[0] in FILLERS:
        words = words[1:]
        means = PAIRED.get(words[0], OWN) if len(words) == 1 else OWN
        means = means if means.field else meaning(" ".join(words), unit)
    return means


_Made = list[tuple[ReportedValue, Pair]]
"""A line's signals, each with its pair."""


def _line(text: str) -> list[ReportedValue]:
    signature = next((each for each in SIGNATURES if each.word in text and each.pattern.search(text)), None)
    if signature is None or not signature.long:
        text = text[:LONGEST]
    position, place, text = _position(text)
    pairs = list(pairs_of(text, MOST_KNOWN if signature is not None and signature.long else MOST_PAIRS))
    metered = position is not None or METERS.search(text) is not None
    source = f"output: {_style(pairs) if signature is None else signature.name}"
    made = [(_made(pair, source, pair.evaluates, signature, metered), pair) for pair in pairs]
    evaluation = _evaluation(each for each, _ in made)
    if not _trains(text, made, signature, position):
        return evaluation
    if position is not None and position.heading:
        source = HEADING
    placed = [ReportedValue(field, field, value, source, order=-1) for field, value in place.items()]
    return [*_training(made, set(place)), *placed, *evaluation]


def _position(text: str) -> tuple[Position | None, dict[str, float], str]:
    """Return a line's position, its fields, and the rest of the text."""
    for each in POSITIONS:
        match = each.pattern.search(text) if each.word in text else None
        if match is None:
            continue
        before = text[: match.start()]
        if EVALUATES.search(before):
            return None, {}, text
        fields = {name: _count(value) for name, value in match.groupdict().items() if value is not None}
        if "poch" in before and "epoch" not in fields:
            fields = {WITHIN.get(name, name): value for name, value in fields.items()}
        return each, fields, f"{before} | {text[match.end() :]}"
    return None, {}, text


def _count(text: str) -> float:
    """Convert a count such as "1.20k"."""
    factor = _FACTORS.get(text[-1], 1.0)
    return float(text.rstrip("kM")) * factor


def _training(made: _Made, placed: set[str]) -> Iterator[ReportedValue]:
    """Yield the training's fields. `placed`: fields that the line's position has."""
    within = _within_epoch(made)
    seen = set[tuple[str, int, str]]()
    after_epoch = "epoch" in placed
    for each, pair in made:
        uncounted = each.field == "epoch_step" and pair.total is None and not after_epoch
        after_epoch = each.field == "epoch"
        key = (each.field, each.order, each.name)
        if not each.field or uncounted or key in seen:  # "loss[loss=0.23], tot_loss[loss=0.25]"
            continue
        seen.add(key)
        for value in _with_total(each, pair, within):
            if value.field not in placed:
                yield value


def _with_total(each: ReportedValue, pair: Pair, within: bool) -> tuple[ReportedValue, ...]:
    """Return a value, or for a count its two values: the count and the total."""
    if pair.total is None or each.field not in ("step", "epoch_step"):
        return (each,)
    total = each._replace(field="total", value=float(pair.total.replace(",", "")))
    if each.field == "step" and not (within and not _is_global(pair)):
        return each, total
    return each._replace(field="epoch_step"), total._replace(field="epoch_total")


def _within_epoch(made: _Made) -> bool:
    """Whether the steps count within an epoch, as in "Epoch [1/10], Step [100/600]"."""
    steps = [pair for each, pair in made if each.field == "step"]
    counted = [pair for pair in steps if pair.total]
    if any(map(_is_global, steps)):
        return not all(map(_is_global, counted))
    if not counted:
        return False
    fields = [each.field for each, _ in made]
    return "epoch" in fields and fields.index("epoch") < fields.index("step")


def _is_global(pair: Pair) -> bool:
    return "global" in pair.label.lower()


def _style(pairs: list[Pair]) -> str:
    separators = [pair.sep for pair in pairs if pair.label and meaning(pair.label).field]
    return _STYLES[max(_STYLES, key=separators.count)] if separators else "key value"


def _trains(text: str, made: _Made, signature: Signature | None, position: Position | None) -> bool:
    """Whether the line belongs to the training."""
    fields = {each.field for each, _ in made if each.field}
    if signature is not None and signature.complete and fields:
        return True
    if position is not None and _is_of_training(position, made, fields):
        return True
    if len(made) == 1:
        return _is_whole(text, *made[0])
    if "loss" in fields:
        return len(fields) > 1 or _separates_loss(made)
    if any(rule <= fields for rule in _ENOUGH):
        return True
    has_count = "step" in fields or "epoch_step" in fields
    return has_count and _counts_training_steps(text, made, fields)


def _is_of_training(position: Position, made: _Made, fields: set[str]) -> bool:
    """Whether a line with a position such as "[3/100]" also has a value that only the training has."""
    return position.complete or bool(fields & {"loss", "lr", *_SPEEDS}) or _names_a_loss(made)


_SPEEDS = ("step_s", "tokens_s", "samples_s")
_ENOUGH = (
    {"lr", "tokens_s"},
    {"lr", "samples_s"},
    {"epoch", "tokens_s"},
    {"epoch", "samples_s"},
    {"step", "tokens_s"},
    {"step", "samples_s"},
    {"step", "grad_norm"},
    {"step", "mfu"},
    {"step", "lr", "step_s"},
    {"step", "epoch", "step_s"},
)
"""Fields that only a line of the training has together, even without a loss."""


def _is_whole(text: str, value: ReportedValue, pair: Pair) -> bool:
    """Whether a line with one number is a report of it, and no sentence or setting that has it."""
    if value.field == "loss":
        return bool(pair.sep) or re.fullmatch(r"\s*train[_ ]loss -?\d+\.\d+\s*", text) is not None
    if value.field == "step_s" and pair.sep and value.order != UNSURE:
        return re.search(r"step|iter|batch", pair.label, re.IGNORECASE) is not None
    if value.field == "lr" and pair.label.lower().startswith("current"):
        return True
    tracked = "/" in pair.label and pair.sep == "="
    return tracked and value.field in ("lr", "grad_norm", "tokens_s", "samples_s")


def _separates_loss(made: _Made) -> bool:
    """Whether a separator is between the loss and its name: "loss 5" may be part of any sentence."""
    return any(each.field == "loss" and pair.sep for each, pair in made)


def _names_a_loss(made: _Made) -> bool:
    """Whether a value of the training is the loss of a part: "Loss_D", "gen loss"."""
    return any("loss" in each.name.lower() and not pair.evaluates for each, pair in made)


def _counts_training_steps(text: str, made: _Made, fields: set[str]) -> bool:
    """Whether a line with steps and without a loss belongs to the training."""
    has_total = any(pair.total for each, pair in made if each.field in ("step", "epoch_step"))
    has_global = any(_is_global(pair) for _, pair in made)
    if has_total and ("step_s" in fields or has_global or _names_a_loss(made)):
        return True
    if has_global and any(REINFORCEMENT.search(pair.label) for _, pair in made):
        return True
    if "epoch" in fields and TRAINS.search(text):
        return True
    return _is_short_report(made, fields, has_total)


def _is_short_report(made: _Made, fields: set[str], has_total: bool) -> bool:
    """Whether a line of few values has a step next to a learning rate, or next to an epoch that it does not count in."""
    has_step = any(each.field == "step" and each.order < PLURAL for each, _ in made)
    if not has_step or len(made) > FEW:
        return False
    if "lr" in fields:
        return True
    return "epoch" in fields and has_total and not _within_epoch(made)


def _evaluation(made: Iterable[ReportedValue]) -> list[ReportedValue]:
    """Values of evaluations, with their own names."""
    return [each for each in made if not each.field and _worth(each.name)][:MOST_VALUES]


@functools.lru_cache(maxsize=4096)
def _worth(name: str) -> bool:
    return EVALUATED.search(name.lower()) is not None and not _COSTS.search(name.lower())
