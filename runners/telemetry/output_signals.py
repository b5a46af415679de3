"""Training signals in a rank's output: a line in, signals out, each with the pattern that matched. Pure.

Most frameworks write "name value" pairs in one of a few styles, so one parser of pairs is enough. SIGNATURES recognizes
frameworks by other parts of the line, and defines their short names ("tps" of torchtitan is per GPU). BAR reads
progress bars of tqdm and Lightning. A line counts as the training's if it has a loss, or steps with a throughput. The
loss of an evaluation stays a value with its own name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...presets.sanitize import clean_text
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
    r"\d{1,3}%\s?\|[^|]*\|\s*(?P<n>\d+)/(?P<total>\d+)\s*"
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
    """Signals of a progress bar. A training's bar contains a loss; a bar of one epoch counts within the epoch."""
    desc, post = bar.string[: bar.start()].rpartition("|")[2].rstrip()[-LONGEST_TITLE:], bar["post"]
    evaluates = EVALUATES.search(desc) is not None
    pairs = [*_pairs(desc + " "), *_pairs(post)]
    source = "output: Lightning" if "v_num" in post else "output: tqdm"
    made = [_made(pair, source, evaluates, {}) for pair in pairs]
    if evaluates or not any(each.field == "loss" for each in made):
        return [each for each in made if not each.field and _worth(each.name)] if evaluates else []
    within = "epoch" in desc.lower()
    counted = [
        each
        for each in made
        if each.field and not (within and each.field in ("step", "total") and "global" not in each.name)
    ]
    if not within and not any(each.field == "step" for each in made):
        counted.append(ReportedValue("step", "n", float(bar["n"]), source))
        counted.append(ReportedValue("total", "total", float(bar["total"]), source))
    if bar["rate"] != "?" and float(bar["rate"]) > 0:
        rate = float(bar["rate"])
        counted.append(ReportedValue("step_s", "rate", rate if bar["unit"] == "s/it" else 1 / rate, source))
    return counted + [each for each in made if not each.field and _worth(each.name)][:MOST_VALUES]


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
    for count, number in enumerate(_NUMBER.finditer(text)):
        if count >= MOST_PAIRS or number.start() < begin:
            continue
        before = text[begin : number.start()]
        evaluates = evaluates or _evaluates(before)
        ratio = _RATIO.match(text, number.end())
        label = _LABEL.search(_label_part(before))
        name, unit, sep = (
            ("", "", "") if label is None else (label["label"], label["unit"] or "", label["sep"])
        )
        after = (number["unit"] or "").strip()
        end = number.end()
        if _names_the_next(name, after):
            after, end = "", number.end("value")
        if number["value"][-1:].isalpha() and not (sep or meaning(name).field):
            continue  # "nan" as a word, as in "number of nan iterations"
        begin = end if ratio is None else ratio.end()
        if name or after:
            total = None if ratio is None else ratio["total"]
            yield _Pair(name.strip("[] "), unit, number["value"], after, total, sep, evaluates)


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
    means, value = _means(pair, names), _value(pair)
    own, field = pair.label, means.field
    if evaluates and field == "loss" and not EVALUATED.search(own.lower()):
        own = "eval loss"
    if (
        field in ("loss", "tokens_s", "samples_s", "step_s")
        and evaluates
        and "train" not in pair.label.lower()
    ):
        field = ""
    if field in ("step", "total") and not value.is_integer():
        field = ""
    if field == "loss" and not pair.sep and pair.value.isdigit():
        field = ""  # "Train loss 64998 0.30": the number is the step
    value *= means.scale
    if field and not plausible(field, value, means.order == 0):
        field = ""
    return ReportedValue(field, own, value, source, order=means.order, per_gpu=means.per_gpu)


def _value(pair: _Pair) -> float:
    scale = (
        {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}.get(pair.after[:1], 1.0)
        if pair.after not in ("ms",)
        else 1.0
    )
    return float(pair.value.replace(",", "")) * scale


def _means(pair: _Pair, names: Mapping[str, Name]) -> Name:
    after = pair.after.lower()
    if after.endswith("mfu"):
        return Name("mfu")
    if after.endswith(
        ("/s", "/sec", "/second", "per s", "per sec", "per second", "/gpu", "/device")
    ) and after not in ("it/s",):
        rate = meaning(re.sub(r"^[kmg]?\s*(?=[a-z]{3})", "", after))
        if rate.field:
            return rate
    if after in ("it/s", "s/it"):
        return Name("step_s", order=5) if after == "s/it" else OWN
    if after.startswith(("ms/", "s/")):
        return Name("step_s", SECONDS[after.partition("/")[0]])
    label = pair.label.lower().replace("[", " ").replace("]", " ").strip()
    special = names.get(label)
    if special is None and label in _PAIRED:
        special = _PAIRED[label]
    unit = pair.unit or ("%" if after == "%" else "")
    if special is None:
        special = meaning(label, unit or after)
        words = label.split()
        while not special.field and len(words) > 1 and words[0] in FILLERS:
            words = words[1:]
            special = meaning(" ".join(words), unit or after)
    if special.field == "step_s" and special.scale == 1.0:
        scale = SECONDS.get(after) or SECONDS.get(unit)
        return special._replace(scale=scale) if scale is not None else OWN
    return special


def _line(text: str) -> list[ReportedValue]:
    signature = next((each for each in SIGNATURES if each.word in text and each.pattern.search(text)), None)
    names = signature.names if signature is not None else {}
    pairs = list(_pairs(text))
    source = f"output: {signature.name if signature is not None else _style(pairs)}"
    made = [(_made(pair, source, pair.evaluates, names), pair) for pair in pairs]
    fields = {each.field for each, _ in made if each.field}
    if not _trains(fields, made, signature):
        return _evaluation(made)
    within = _within_epoch([(each.field, pair.total) for each, pair in made])
    read: list[ReportedValue] = []
    for each, pair in made:
        if each.field == "step" and pair.total is not None and within:
            continue
        if each.field:
            read.append(each)
            if each.field == "step" and pair.total is not None:
                read.append(ReportedValue("total", "total", float(pair.total.replace(",", "")), source))
    return read + _evaluation(made)


def _within_epoch(fields: list[tuple[str, str | None]]) -> bool:
    """Whether the steps count within an epoch, as in "Epoch [1/10], Step [100/600]"."""
    names = [name for name, _ in fields]
    ratio = any(name == "step" and total for name, total in fields)
    return ratio and "epoch" in names and names.index("epoch") < names.index("step")


def _style(pairs: list[_Pair]) -> str:
    seps = [pair.sep for pair in pairs if pair.label and meaning(pair.label).field]
    sep = max((":", "=", ""), key=seps.count) if seps else ""
    return {"": "key value", ":": "key: value", "=": "key=value"}[sep]


def _trains(fields: set[str], made: list[tuple[ReportedValue, _Pair]], signature: Signature | None) -> bool:
    """Whether the line belongs to the training."""
    if signature is not None and signature.complete and fields & {"step", "samples_s"}:
        return True
    if "loss" in fields:
        # A single loss needs a separator between name and value: "loss 5" may be part of any sentence.
        return len(fields) > 1 or any(each.field == "loss" and pair.sep for each, pair in made)
    if "step" in fields and len(made) <= FEW and fields & {"lr", "epoch"}:
        return not _within_epoch([(each.field, pair.total) for each, pair in made]) and (
            "lr" in fields or any(pair.total for _, pair in made)
        )
    if len(made) == 1 and fields & {"lr", "grad_norm", "tokens_s"}:
        return "/" in made[0][1].label and made[0][1].sep == "="  # a tracker's name on a separate line
    return "step" in fields and bool(fields & {"tokens_s", "samples_s", "grad_norm", "mfu"})


def _evaluation(made: list[tuple[ReportedValue, _Pair]]) -> list[ReportedValue]:
    """Values of evaluations, with their own names."""
    kept = [each for each, pair in made if not each.field and pair.label and _worth(each.name)]
    return [each._replace(name=clean_text(each.name)) for each in kept[:MOST_VALUES]]


def _worth(name: str) -> bool:
    return EVALUATED.search(name.lower()) is not None and not _COSTS.search(name.lower())
