"""Tables of how frameworks write training output: their lines, progress bars, positions and short names.

A new format is a row here. A name that means the same in every format is a row of `signal_names`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .signal_names import OWN, UNSURE, Name


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """How to recognize the lines of a framework, and the meaning of its names."""

    name: str
    word: str
    """Text in each such line, tested first because the test is cheap."""
    pattern: re.Pattern[str]
    names: Mapping[str, Name] = field(default_factory=dict)
    """Names in lower case; "" for a number that only has a unit."""
    complete: bool = False
    """Whether its lines also count without a loss."""
    long: bool = False
    """Whether its lines are longer than other lines with signals."""


SIGNATURES = (
    Signature(
        "torchtitan",
        " tps: ",
        re.compile(r"\bloss: .*\bmemory: .*\btps: "),
        {"tps": Name("tokens_s", per_gpu=True)},
    ),
    Signature("Megatron-LM", "iteration ", re.compile(r"\biteration\s+\d+/\s*\d+ \|"), complete=True),
    Signature(
        "nanoGPT",
        ", time ",
        re.compile(r"\biter \d+: loss \S+, time "),
        {"time": Name("step_s", order=UNSURE)},
    ),
    Signature("nanochat", " lrm: ", re.compile(r"\| lrm: "), {"dt": Name("step_s", order=UNSURE)}),
    Signature(
        "llm.c",
        "tok/s",
        re.compile(r"\bstep +\d+/\d+ \| loss .*tok/s"),
        {"norm": Name("grad_norm"), "": Name("step_s", order=UNSURE)},
    ),
    Signature(
        "DeepSpeed",
        "=",
        re.compile(r"\bstep=\d+, skipped=\d+|SamplesPerSec="),
        {"currsamplespersec": Name("samples_s"), "samplespersec": Name("samples_s", order=1)},
        complete=True,
    ),
    Signature(
        "DeepSpeed",
        "iter time (s)",
        re.compile(r"\bsteps: \d+ loss: "),
        {"iter time": Name("step_s", order=UNSURE)},
    ),
    Signature(
        "HF dict", "{'", re.compile(r"\{'(?:loss|eval_loss|grad_norm|train_runtime|learning_rate)': ")
    ),
    Signature("Keras bar", "] - ", re.compile(r"\[=*>?\.*\] - ")),
    Signature(
        "verl",
        "step:",
        re.compile(r"\bstep:\d+ - [\w-]+/"),
        {
            "timing_s/step": Name("step_s"),
            "perf/time_per_step": Name("step_s", order=1),
            "perf/throughput": Name("tokens_s", per_gpu=True),
        },
        complete=True,
        long=True,
    ),
    Signature(
        "open_clip",
        "Batch (t)",
        re.compile(r"\bBatch \(t\): "),
        {
            "batch": Name("step_s"),
            "": Name("samples_s", order=9),
        },
    ),
    Signature(
        "ESPnet",
        "epoch:train:",
        re.compile(r"epoch:train:\d+-\d+batch: "),
        {
            "iter_time": OWN,
            "train_time": Name("step_s"),
            "optim0_lr0": Name("lr"),
            "lr_0": Name("lr", order=1),
        },
    ),
    Signature("timm", "/s", re.compile(r"\bTime: [\d.]+s, +[\d.]+/s"), {"": Name("samples_s", order=9)}),
    Signature("MaxText", "seconds: ", re.compile(r"\bstep: \d+, seconds: "), {"seconds": Name("step_s")}),
    Signature(
        "Marian",
        " : Up. ",
        re.compile(r"\bEp\. \d+ : Up\. \d+ : "),
        {"ep.": Name("epoch"), "up.": Name("step"), "cost": Name("loss"), "l.r.": Name("lr")},
        complete=True,
    ),
    Signature(
        "JSON record",
        'loss"',
        re.compile(r'"(?:name|metric|key|tag)": "(?:train[/_])?loss".*"value": '),
        {"value": Name("loss")},
    ),
    Signature(
        "rl_games", "fps step: ", re.compile(r"^fps step: .* epoch: \d+/\d+ frames: "), complete=True
    ),
    Signature(
        "NeMo Automodel", "/gpu)", re.compile(r"\btps [\d,.]+\([\d,.]+/gpu\)"), {"tps": Name("tokens_s")}
    ),
    Signature("Coqui", "> ", re.compile(r"^\s*\| > \w+: ?[-\d]"), complete=True),
    Signature(
        "composer",
        "Train ",
        re.compile(r"^\s*Train [\w./-]+: [-+.\deE]+$"),
        {"train time/batch": OWN},
        True,
    ),
)
"""In order of precedence; the first match counts."""


class Position(NamedTuple):
    """Pattern of a place in the training, such as "Epoch [4/100] [1130/2502]". Its groups are fields."""

    word: str
    """Text in each such line."""
    pattern: re.Pattern[str]
    complete: bool = False
    """Whether a line also counts without a loss."""
    heading: bool = False
    """Whether the lines below count within that epoch."""


_SHARE = r"(?:\s*\(\s*\d{1,3}(?:\.\d*)?%\))?"
_WITHIN = rf"\[\s*(?P<epoch_step>\d+)\s*/\s*(?P<epoch_total>\d+){_SHARE}\s*\]"
POSITIONS = (
    Position(
        "[TRAIN]",
        re.compile(r"\[TRAIN\]\s+epoch: (?P<epoch>\d+)(?:/\d+)?, iter: (?P<step>\d+)/(?P<total>\d+)\b"),
    ),
    Position(
        "]",
        re.compile(
            r"\b(?:[Ee]poch|EPOCH|[Tt]rain)(?:\s?\((?:train|TRAIN)\))?\s?:?\s*\[?\s*(?P<epoch>\d+)(?:\s*/\s*\d+)?\s*\]?"
            rf"{_SHARE}(?:\s*[,:|-])?\s*{_WITHIN}"
        ),
    ),
    Position(
        "]",
        re.compile(
            r"\b(?:Iter(?:ation)?(?:\s?\(train\))?|Training):?\s*\[\s*(?P<step>\d+)\s*/\s*(?P<total>\d+)\s*\]"
        ),
    ),
    Position(
        "poch",
        re.compile(
            r"\b[Ee]poch:?\s+(?P<epoch>\d+)(?:/\d+)?\s*[:|,]\s+(?P<epoch_step>\d+)\s?/\s*(?P<epoch_total>\d+)(?![\w./])"
        ),
    ),
    Position(" batches", re.compile(r"(?<![\w.])(?P<epoch_step>\d+)\s?/\s*(?P<epoch_total>\d+) batches\b")),
    Position("]", re.compile(rf"(?<=\d)\s+{_WITHIN}\s*$")),
    Position("batch=", re.compile(r"^\s*\[batch=(?P<step>\d+)/(?P<total>\d+)\]:?\s*$"), complete=True),
    Position(
        "poch",
        re.compile(r"^\s*(?:[Ee]poch|EPOCH):?\s*\[?(?P<epoch>\d+)(?:\s*/\s*\d+)?\]?:?\s*$"),
        complete=True,
        heading=True,
    ),
    Position(
        " of epoch ",
        re.compile(
            r"\b(?:it|iter|iteration|step|batch) (?P<epoch_step>\d+)/(?P<epoch_total>\d+) of epoch (?P<epoch>\d+)"
        ),
    ),
    Position(
        "poch",
        re.compile(r"\b[Ee]poch:? (?P<epoch>\d+)(?:/\d+)? \((?P<epoch_step>\d+)/(?P<epoch_total>\d+)\)"),
    ),
    Position(
        "][",
        re.compile(r"^\W*\[(?P<epoch>\d+)/\d+\]\s*\[\s*(?P<epoch_step>\d+)\s*/\s*(?P<epoch_total>\d+)\]"),
    ),
    Position(
        "|Iter",
        re.compile(
            r"\bEpoch(?P<epoch>\d+)/\d+\|Iter(?P<step>\d+)\((?P<epoch_step>\d+)/(?P<epoch_total>\d+)\)"
        ),
    ),
    Position("% (", re.compile(r"(?<![\w.])\d{1,3}(?:\.\d*)?% \((?P<step>\d+)/(?P<total>\d+)\)")),
    Position("[Train](", re.compile(r"\[Train\]\((?P<step>\d+)/(?P<total>\d+)\)")),
    Position(
        " epoch: [",
        re.compile(r"\b(?P<epoch>\d+) epoch: \[(?P<epoch_step>\d+)/(?P<epoch_total>\d+)"),
    ),
    Position("Train Epoch", re.compile(r"\bTrain Epoch: (?P<epoch>\d+) \[\d+%\]\s*$"), complete=True),
    Position(
        "earning iteration",
        re.compile(r"^\s*Learning iteration (?P<step>\d+)/(?P<total>\d+)\s*$"),
        complete=True,
    ),
    Position(
        "Step ", re.compile(r"^[=#* -]+Step (?P<step>\d+)\s?/\s?(?P<total>\d{3,})[=#* -]+$"), complete=True
    ),
    Position(
        "Progress on:train",
        re.compile(r"\bProgress on:train (?P<step>[\d.]+[kM]?)it/(?P<total>[\d.]+[kM]?)it\b"),
        complete=True,
    ),
    Position("epoch:train:", re.compile(r"\b(?P<epoch>\d+)epoch:train:\d+-(?P<epoch_step>\d+)batch\b")),
    Position("TRAIN Batch", re.compile(r"\bTRAIN Batch (?P<epoch>\d+)/(?P<epoch_step>\d+) ")),
)
"""In order of precedence; the first match counts."""

REINFORCEMENT = re.compile(r"\breturns?\b|reward|episod", re.IGNORECASE)
"""Names of values of reinforcement learning, next to which a step is the training's."""
TRAINS = re.compile(r"\b[Tt]rain(?:ing)?\b[\s,:\])]*[Ee]poch")
"""Words on a line whose epoch and step are the training's."""
INFERENCE = re.compile(r"generat|prompt|prefill|decod|rollout|infer", re.IGNORECASE)
"""Names of rates that are not the training's."""
METERS = re.compile(r"\bdata(?:_time|_cost)?\b|\beta\b", re.IGNORECASE)
"""Names next to which METER_NAMES count."""
METER_NAMES = {"time": Name("step_s", order=UNSURE), "batch_time": Name("step_s", order=UNSURE)}
"""Names of meters, on a line with a position or with the time of the data."""

TQDM = re.compile(
    r"\d{1,3}%\s?(?:\|[^|]*\|)?\s*(?P<n>\d{1,15})/(?P<total>\d{1,15})\s*"
    r"\[[\d:]+<[\d:?]*(?:,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]{1,8}/s|s/[A-Za-z]{1,8})(?![\w/]))?(?P<post>[^\]]*)\]?"
)
"""A bar of tqdm, from its percentage on."""
OPEN_TQDM = re.compile(
    r"(?<![\w.])(?P<n>\d{1,15})(?:it|steps?|batch(?:es)?|ba) "
    r"\[[\d:]+,\s*(?P<rate>[\d.]+|\?)\s?(?P<unit>[A-Za-z]{1,8}/s|s/[A-Za-z]{1,8})(?![\w/])(?P<post>[^\]]*)\]"
)
"""A bar of tqdm without a total, from its count on."""
OPEN_WORDS = ("it [", "step [", "steps [", "batch [", "batches [", "ba [")
"""Texts of which a bar without a total has one."""
RICH = re.compile(r"[━╸╺]{3}[━╸╺ ]*(?P<post>[^━╸╺\n]*)$")
"""A bar of rich, from its first character on."""
RICH_COUNT = re.compile(r"(?<![\d:./])(?P<n>\d{1,15})\s?/\s?(?P<total>\d{1,15})(?![\w/:.])")
RICH_RATE = re.compile(
    r"(?<![\w.])(?P<rate>\d+(?:\.\d*)?)\s?(?P<unit>it/s|s/it|steps?/s|s/step|batch(?:es)?/s|s/batch)\b"
)
KERAS = re.compile(r"^\s*(?P<n>\d{1,15})/(?P<total>\d{1,15})\s+(?:━[━ ]*|\[=*>?\.*\])(?=\s)")
"""A bar of Keras, which is always within an epoch."""
EPOCH_FIRST = re.compile(r"^\s*(?P<epoch>\d+)/\d+(?:\s+[\d.]+[GM]B?\s|\s\* Epoch \(train\))")
"""Title of a bar that begins with the epoch: of Ultralytics, before the GPU memory, and of Catalyst."""

OF_EPOCHS = re.compile(r"\W*(?:(?:train(?:ing)?\W+)?epochs|epoch)\W*", re.IGNORECASE)
"""Title of a bar that counts epochs."""
OF_TRAINING = re.compile(
    r"(?=.*(?:train|step|iter|epoch))"
    r"(?:(?:train(?:ing)?|global|optimi[sz]er|total|steps?|iter(?:ation)?s?|batch(?:es)?|epochs?|of|model|rank|gpu)(?![a-z])|[\d\W_])+",
    re.IGNORECASE,
)
"""Title of a bar that is a training's, even without a loss."""
STEP_UNITS = frozenset(
    ("it", "iter", "iters", "step", "steps", "batch", "batches", "b", "ba", "update", "updates")
)
EPOCH_UNITS = frozenset(("epoch", "epochs", "ep"))

PLURAL = 20
"""Order of names such as "iters", which may also be a number of steps in a configuration."""
PAIRED = {
    "norm": Name("grad_norm", order=9),
    "dt": Name("step_s", order=UNSURE),
    "step_avg": Name("step_s", order=UNSURE),
    "steps": Name("step", order=PLURAL),
    "iterations": Name("step", order=PLURAL),
    "iters": Name("step", order=PLURAL),
    "total_timesteps": Name("step", order=15),
    "ep": Name("epoch", order=5),
    "epochs": Name("epoch", order=6),
    "batch": Name("epoch_step", order=5),
    "mb": Name("epoch_step", order=6),
    "minibatch": Name("epoch_step", order=6),
}
"""Names that have this meaning only in output, on a line that is the training's."""
