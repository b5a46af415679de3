"""Training signals in a rank's output: a line in, signals out, each with the pattern that matched. Pure.

Most frameworks write "name value" pairs in one of a few styles, so one parser of pairs is enough. SIGNATURES recognizes
frameworks by other parts of the line, and defines their short names ("tps" of torchtitan is per GPU). BAR reads
progress bars of tqdm and Lightning. A line counts as the training's if it has a loss, or steps with a throughput. The
loss of an evaluation stays a value with its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from .signal_names import OWN, SECONDS, Name, ReportedValue, meaning, plausible

LONGEST = 1000
"""Maximum characters of a line that are read."""
LONGEST_TITLE = 80
"""Maximum characters of a progress bar's title, before the percentage."""
LONGEST_LABEL = 48
"""Maximum characters before a number that may contain its name."""
MOST_PAIRS = 60
"""Maximum pairs of a line; a line with more is a configuration."""
FEW = 6
"""Maximum pairs of a line that counts with a step but without a loss."""
MOST_VALUES = 8
"""Maximum other values per line."""
SEGMENTS = 4
"""Maximum states, from the end, of a line that a progress bar overwrote."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_PREFIX = re.compile(
    r"^\s*(?:\[(?:rank|default|Rank )?\d+\]:?|(?:rank )?\d{1,5}: (?=\D)|\((?:pid|\w+ pid)=[^)]*\))\s*"
)
"""Prefix of the writer: "[rank0]:", "[default3]:", "0: " of srun, "(RayTrainWorker pid=7, ip=…)"."""
_MAY = re.compile(r"loss|step|iter|tok|epoch|it/s|s/it", re.IGNORECASE)
"""Quick test: most lines do not match, and have no signal."""
_CONFIG = re.compile(r"^\s*\S{0,60}(?:Namespace|Config|Arguments|Args)\(")

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
    r"|[-+]?(?:nan|NaN|NAN|inf|Inf|Infinity)(?![A-Za-z])"
)
_THINGS = r"(?:tok(?:en)?s?|samples?|images?|imgs?|examples?|seqs?|sequences?)"
_UNIT = (
    r"\s?%\s?(?:(?:bf16|fp16|fp8)\s)?MFU|\s?%"
    rf"|\s?[kKMG]?\s?{_THINGS}\s?(?:/|per )\s?s(?:ec(?:ond)?)?(?:/(?:gpu|GPU|device))?\b"
    r"|\s?it/s\b|\s?s/it\b|\s?(?:ms|s|sec)/(?:step|iter(?:ation)?)\b|\s?ms\b|s\b|\s?sec(?:onds?)?\b|[kKM]\b|/s\b"
)
_NUMBER = re.compile(rf"(?<![\w.])(?P<value>{NUMBER})(?P<unit>{_UNIT})?(?(unit)(?!\w|\s*[:=])|(?!\w))")
_LABEL = re.compile(
    r"(?P<label>[A-Za-z][\w./ -]*?|\[[A-Za-z][\w ./-]*\])\s*"
    r"(?:\((?P<unit>[^()]{1,12})\))?[\"']?\s*(?P<sep>[:=]?)\s*[\"'\[({]*$"
)
_RATIO = re.compile(r"\s*(?:/|of)\s*(?P<total>\d{1,3}(?:,\d{3})+|\d+)(?![\w.]|:\d)")
_CUT = re.compile(
    r".*(?:[|,;<>\t]|[)}]\s|[\"'\[{](?=[A-Za-z])|\((?=[A-Za-z])(?!\w{1,8}\)\s*[:=\[]*\s*$)|\s-\s|\s{2,}|(?<=[a-z\d])[:=](?=\s*[A-Za-z]))",
    re.DOTALL,
)
"""Text before the label of a number, up to the last delimiter."""
EVALUATES = re.compile(
    r"(?<![\w/.-])(?:eval(?:uat\w+)?|val(?:id(?:at\w+)?)?|test(?:ing)?|dev)(?![\w/.-])", re.IGNORECASE
)
_COUNTED = re.compile(r"(?:step|iter|epoch|batch)")
"""Text after a word of evaluation if the whole line is an evaluation's: "valid step:10 loss: …"."""
EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:eval|val|valid|validation|test|dev|acc|accuracy|ppl|perplexity|bpb|reward)(?:[^a-z]|$)|val(?:id)?_|acc"
)
"""Names of values to keep."""
_COSTS = re.compile(r"runtime|per_sec|_time\b|duration")
"""Names of an evaluation's costs, in contrast to its results."""
FILLERS = frozenset(
    ("completed", "current", "at", "the", "train", "training", "batch", "running", "global")
)
"""Words before a name that do not change its meaning."""
BAR = re.compile(
    r"\d{1,3}%\s?\|[^|]*\|\s*(?P<n>\d{1,15})/(?P<total>\d{1,15})\s*"
    r"\[[\d:]+<[\d:?]*,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>it/s|s/it)(?P<post>[^\]]*)\]?"
)


class Signature(NamedTuple):
    """How to recognize the lines of a framework, and the meaning of its names."""

    name: str
    word: str
    """Text in each such line, tested first because the test is cheap."""
    pattern: re.Pattern[str]
    names: Mapping[str, Name] = {}
    complete: bool = False
    """Whether its lines also count without a loss."""


SIGNATURES = (
    Signature(
        "torchtitan",
        " tps: ",
        re.compile(r"\bloss: .*\bmemory: .*\btps: "),
        {
            "tps": Name("tokens_s", per_gpu=True),
        },
    ),
    Signature("Megatron-LM", "iteration ", re.compile(r"\biteration\s+\d+/\s*\d+ \|"), complete=True),
    Signature("nanoGPT", ", time ", re.compile(r"\biter \d+: loss \S+, time "), {"time": Name("step_s")}),
    Signature("nanochat", " lrm: ", re.compile(r"\| lrm: "), {"dt": Name("step_s")}),
    Signature(
        "llm.c", "tok/s", re.compile(r"\bstep +\d+/\d+ \| loss .*tok/s"), {"norm": Name("grad_norm")}
    ),
    Signature(
        "DeepSpeed",
        "=",
        re.compile(r"\bstep=\d+, skipped=\d+|SamplesPerSec="),
        {
            "currsamplespersec": Name("samples_s"),
            "samplespersec": Name("samples_s", order=1),
        },
        complete=True,
    ),
    Signature(
        "HF dict", "{'", re.compile(r"\{'(?:loss|eval_loss|grad_norm|train_runtime|learning_rate)': ")
    ),
    Signature("Keras bar", "] - ", re.compile(r"\[=*>?\.*\] - ")),
)
"""In order of precedence; the first match counts."""
_PAIRED = {
    "norm": Name("grad_norm", order=9),
    "dt": Name("step_s"),
    "step_avg": Name("step_s", order=2),
    "steps": Name("step", order=20),
    "iterations": Name("step", order=21),
}
"""Names that have this meaning only on a line with a loss."""
_STYLES = {":": "key: value", "=": "key=value", "": "key value"}
"""Most frequent separator of a line → name of the source."""
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_PER_SECOND = ("/s", "/sec", "/second", "per s", "per sec", "per second", "/gpu", "/device")
_EVALUATED_TOO = ("loss", "tokens_s", "samples_s", "step_s")
"""Fields that an evaluation prints by the same names."""


def is_candidate(text: str) -> bool:
    """Whether a piece of output may have a signal; cheap."""
    return _MAY.search(text) is not None


def signals(line: str) -> list[ReportedValue]:
    """Signals in one line of output; [] for none. Their times are 0, because only the reader knows them."""
    read: list[ReportedValue] = []
    for segment in line[-SEGMENTS * LONGEST :].split("\r")[-SEGMENTS:]:
        text = _ANSI.sub("", segment)[:LONGEST]
        if _MAY.search(text) is not None and _CONFIG.match(text) is None:
            read += _segment(_PREFIX.sub("", text, count=1))
    return read


def _segment(text: str) -> list[ReportedValue]:
    bar = BAR.search(text) if "%|" in text or "% |" in text else None
    if bar is None:
        return _line(text)
    return [*_bar(bar), *_line(text[bar.end() :])]


def _bar(bar: re.Match[str]) -> list[ReportedValue]:
    """Signals of a progress bar. A training's bar contains a loss."""
    desc, post = bar.string[: bar.start()].rpartition("|")[2].rstrip()[-LONGEST_TITLE:], bar["post"]
    evaluates = EVALUATES.search(desc) is not None
    source = "output: Lightning" if "v_num" in post else "output: tqdm"
    made = [_made(pair, source, evaluates, {}) for pair in (*_pairs(desc + " "), *_pairs(post))]
    if evaluates:
        return _evaluation(made)
    if all(each.field != "loss" for each in made):
        return []
    return [*_counted(bar, made, source, "epoch" in desc.lower()), *_evaluation(made)]


def _counted(
    bar: re.Match[str], made: list[ReportedValue], source: str, within: bool
) -> Iterator[ReportedValue]:
    """Yield the training's fields. `within`: the bar is of one epoch, so that it counts within the epoch."""
    counts = False
    for each in made:
        if within and each.field in ("step", "total") and "global" not in each.name:
            continue
        counts = counts or each.field == "step"
        if each.field:
            yield each
    if not (within or counts):
        yield ReportedValue("step", "n", float(bar["n"]), source)
        yield ReportedValue("total", "total", float(bar["total"]), source)
    rate = 0.0 if bar["rate"] == "?" else float(bar["rate"])
    if rate > 0:
        yield ReportedValue("step_s", "rate", rate if bar["unit"] == "s/it" else 1 / rate, source)


class _Pair(NamedTuple):
    label: str
    unit: str
    value: str
    after: str
    """Unit after the value."""
    total: str | None
    sep: str
    evaluates: bool
    """Whether the text before the pair is about an evaluation."""


def _pairs(text: str) -> Iterator[_Pair]:
    """Yield each number with the name before it."""
    begin, evaluates = 0, False
    for number in islice(_NUMBER.finditer(text), MOST_PAIRS):
        if number.start() < begin:
            continue
        before = text[begin : number.start()]
        evaluates = evaluates or _evaluates(before)
        name, unit, sep = _name(before)
        if number["value"][-1].isalpha() and not sep and not meaning(name).field:
            continue  # "nan" as a word, as in "number of nan iterations"
        after, total, begin = _after(text, number, name)
        if name or after:
            yield _Pair(name.strip("[] "), unit, number["value"], after, total, sep, evaluates)


def _after(text: str, number: re.Match[str], name: str) -> tuple[str, str | None, int]:
    """Return the unit and the total after a number with this name, and the end of both in the text."""
    unit, end = (number["unit"] or "").strip(), number.end()
    ratio = _RATIO.match(text, end)
    if _names_the_next(name, unit):
        unit, end = "", number.end("value")
    return (unit, None, end) if ratio is None else (unit, ratio["total"], ratio.end())


def _name(before: str) -> tuple[str, str, str]:
    """Name, unit and separator in the text before a number."""
    label = _LABEL.search(_label_part(before))
    return ("", "", "") if label is None else (label["label"], label["unit"] or "", label["sep"])


def _names_the_next(name: str, unit: str) -> bool:
    """Whether an apparent unit is the name of the next number: "loss 1.95 tokens/s 1234"."""
    return "/" in unit and meaning(name).field in ("loss", "lr", "grad_norm", "step", "epoch")


def _label_part(before: str) -> str:
    """Part at the end of a text that can be the name of the next number."""
    before = before[-LONGEST_LABEL:]
    plain = before.rstrip()
    ended = plain.rstrip(":= \"'[({")
    cut = _CUT.match(ended + " " if ended.endswith("]") else ended)
    start = cut.end() if cut is not None and cut.end() <= len(ended) else 0
    if ended.endswith("]") and "[" in ended:
        start = ended.rfind("[")
    return before[start:]


def _evaluates(before: str) -> bool:
    """Whether a word of evaluation applies to the rest of the line, instead of naming one value."""
    match = EVALUATES.search(before)
    if match is None:
        return False
    rest = before[match.end() :].strip().lower()
    if _COUNTED.match(rest):
        return True
    # "val loss 1.2" names only one value; the rest of the line may be the training's again.
    return not re.fullmatch(r"[a-z@\d]{1,12}\s*[:=]?", rest) or match.start() == 0


def _made(pair: _Pair, source: str, evaluates: bool, names: Mapping[str, Name]) -> ReportedValue:
    """Convert a pair to a signal; a pair of an evaluation becomes a value."""
    means = _means(pair, names)
    field, name = means.field, pair.label
    value = float(pair.value.replace(",", "")) * _FACTORS.get(pair.after[:1], 1.0) * means.scale
    if evaluates and field == "loss" and not EVALUATED.search(name.lower()):
        name = "eval loss"
    if field and not (
        _of_training(pair, field, value, evaluates) and plausible(field, value, means.order == 0)
    ):
        field = ""
    return ReportedValue(field, name, value, source, order=means.order, per_gpu=means.per_gpu)


def _of_training(pair: _Pair, field: str, value: float, evaluates: bool) -> bool:
    """Whether a pair with a field's name can be that field of the training."""
    if field in ("step", "total"):
        return value.is_integer()
    if field == "loss" and not pair.sep and pair.value.isdigit():
        return False  # "Train loss 64998 0.30": the number is the step
    return not evaluates or field not in _EVALUATED_TOO or "train" in pair.label.lower()


def _means(pair: _Pair, names: Mapping[str, Name]) -> Name:
    after = pair.after.lower()
    by_unit = _by_unit(after) if after else None
    if by_unit is not None:
        return by_unit
    label = pair.label.lower().replace("[", " ").replace("]", " ").strip()
    means = names.get(label) or _PAIRED.get(label) or _by_words(label, pair.unit or after)
    if means.field == "step_s" and means.scale == 1.0:
        scale = SECONDS.get(after) or SECONDS.get(pair.unit)
        return OWN if scale is None else means._replace(scale=scale)
    return means


def _by_unit(unit: str) -> Name | None:
    """Meaning of a number by the unit after it; None if the name decides."""
    if unit.endswith("mfu"):
        return Name("mfu")
    if unit == "it/s":
        return OWN
    if unit == "s/it":
        return Name("step_s", order=5)
    if unit.startswith(("ms/", "s/")):
        return Name("step_s", SECONDS[unit.partition("/")[0]])
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
        means = meaning(" ".join(words), unit)
    return means


_Made = list[tuple[ReportedValue, _Pair]]
"""A line's signals, each with its pair."""


def _line(text: str) -> list[ReportedValue]:
    signature = next((each for each in SIGNATURES if each.word in text and each.pattern.search(text)), None)
    pairs = list(_pairs(text))
    names, by = ({}, _style(pairs)) if signature is None else (signature.names, signature.name)
    source = f"output: {by}"
    made = [(_made(pair, source, pair.evaluates, names), pair) for pair in pairs]
    evaluation = _evaluation(each for each, _ in made)
    return [*_training(made, source), *evaluation] if _trains(made, signature) else evaluation


def _training(made: _Made, source: str) -> Iterator[ReportedValue]:
    within = _within_epoch(made)
    for each, pair in made:
        counted = pair.total if each.field == "step" else None
        if each.field and not (within and counted):
            yield each
            if counted:
                yield ReportedValue("total", "total", float(counted.replace(",", "")), source)


def _within_epoch(made: _Made) -> bool:
    """Whether the steps count within an epoch, as in "Epoch [1/10], Step [100/600]"."""
    fields = [each.field for each, _ in made]
    if "epoch" not in fields or "step" not in fields or fields.index("step") < fields.index("epoch"):
        return False
    return any(each.field == "step" and pair.total for each, pair in made)


def _style(pairs: list[_Pair]) -> str:
    separators = [pair.sep for pair in pairs if pair.label and meaning(pair.label).field]
    return _STYLES[max(_STYLES, key=separators.count)] if separators else "key value"


def _trains(made: _Made, signature: Signature | None) -> bool:
    """Whether the line belongs to the training."""
    fields = {each.field for each, _ in made if each.field}
    if signature is not None and signature.complete and fields & {"step", "samples_s"}:
        return True
    if "loss" in fields:
        return len(fields) > 1 or _separates_loss(made)
    if len(made) == 1:
        return bool(fields & {"lr", "grad_norm", "tokens_s"}) and _is_of_tracker(made[0][1])
    return "step" in fields and _steps(made, fields)


def _separates_loss(made: _Made) -> bool:
    """Whether a separator is between the loss and its name: "loss 5" may be part of any sentence."""
    return any(each.field == "loss" and pair.sep for each, pair in made)


def _is_of_tracker(pair: _Pair) -> bool:
    """Whether a pair on a separate line is a tracker's: "optim/lr = 3e-4"."""
    return "/" in pair.label and pair.sep == "="


def _steps(made: _Made, fields: set[str]) -> bool:
    """Whether a line with steps and without a loss belongs to the training."""
    if len(made) <= FEW and fields & {"lr", "epoch"}:
        return not _within_epoch(made) and ("lr" in fields or any(pair.total for _, pair in made))
    return bool(fields & {"tokens_s", "samples_s", "grad_norm", "mfu"})


def _evaluation(made: Iterable[ReportedValue]) -> list[ReportedValue]:
    """Values of evaluations, with their own names."""
    return [each for each in made if not each.field and _worth(each.name)][:MOST_VALUES]


def _worth(name: str) -> bool:
    return EVALUATED.search(name.lower()) is not None and not _COSTS.search(name.lower())
