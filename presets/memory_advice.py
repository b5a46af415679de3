"""What to change when a model does not fit, and the model's sizes as a script tells them. Pure."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from .finding import PlanError
from .memory import VOCABULARY, Estimate, Format, Shape, estimate, needed, shape, survey
from .model import Batch
from .strategies import MemoryStrategy

# -----------------------------------------------------------------------------------------------------------
# What to try when a model does not fit on the GPUs: each tried in the estimate before it is said. Pure.


SHORTEST = 128
"""Positions below which no shorter sequence is tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """One change, and the simplest strategy that fits with it."""

    change: str
    """What to do, the beginning of a sentence."""
    options: str
    """Of `distui advise`, to see its table; "" where there are none."""
    estimate: Estimate | None
    """None: of ZeRO-3 on more GPUs."""

    @property
    def text(self) -> str:
        """A sentence."""
        if self.estimate is None:
            return f"{self.change}."
        how = f"{self.change} ({self.options})" if self.options else self.change
        return f"{how}: {self.estimate.strategy.title} fits, with `{self.estimate.strategy.words}`."


def on_gpus(estimates: list[Estimate]) -> Estimate | None:
    """The simplest that fits with everything on the GPUs."""
    return next((row for row in estimates if row.fits and not row.host and not row.disk), None)


def remedies(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> list[Remedy]:
    """Changes after which something fits without host memory or disk, the cheapest first; [] where none helps."""
    return list(_tried(model, form, per_node, nodes, limit))


def _tried(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Iterator[Remedy]:
    def simplest(changed: Shape, passes: int = 1) -> Estimate | None:
        rows = survey(changed, form, per_node, nodes, limit)
        if passes > 1:
            rows = [
                _accumulating(row, changed, form, per_node * nodes, passes) for row in rows if _can(row)
            ]
        return on_gpus(rows)

    again = replace(model, recompute=True)
    helped = False
    if not model.recompute and (fit := simplest(again)):
        helped = True
        yield Remedy(change="Compute activations again in backward", options="--recompute", estimate=fit)
    for changed in (model,) if helped or model.recompute else (model, again):
        remedy = _smaller(changed, simplest)
        if remedy:
            helped = True
            yield remedy
            break
    if not helped and (remedy := _shorter(again, simplest, "" if model.recompute else " --recompute")):
        yield remedy
    if more := _more(model, form, per_node, nodes, limit):
        yield more


def _smaller(model: Shape, simplest: Callable[[Shape, int], Estimate | None]) -> Remedy | None:
    """The batch in as few passes as will do."""
    for passes in _divisors(model.micro_batch):
        size = model.micro_batch // passes
        if fit := simplest(replace(model, micro_batch=size), passes):
            options = f"--micro-batch {size}" + " --recompute" * model.recompute
            return Remedy(
                change=f"Accumulate gradients over {passes} passes", options=options, estimate=fit
            )
    return None


def _shorter(model: Shape, simplest: Callable[[Shape], Estimate | None], also: str) -> Remedy | None:
    """The longest sequence that fits, one at a time."""
    seq = model.seq // 2
    while seq >= SHORTEST:
        if fit := simplest(replace(model, seq=seq, micro_batch=1)):
            options = f"--seq {seq}" + " --micro-batch 1" * (model.micro_batch > 1) + also
            return Remedy(change="Take shorter sequences", options=options, estimate=fit)
        seq //= 2
    return None


def _more(model: Shape, form: Format, per_node: int, nodes: int, limit: float) -> Remedy | None:
    """More of the same GPUs, as it is or with as little as possible kept."""
    for changed in (model, replace(model, recompute=True, micro_batch=1)):
        ranks = needed(changed, form, limit)
        if ranks is not None and ranks > per_node * nodes:
            least = (
                "" if changed == model else ", with one sequence at a time and activations computed again"
            )
            machines = f" ({-(-ranks // per_node)} nodes)" if ranks > per_node else ""
            change = f"Take more GPUs: ZeRO-3 fits on {ranks} such{machines}{least}"
            return Remedy(change=change, options="", estimate=None)
    return None


def _can(row: Estimate) -> bool:
    """Whether the strategy may accumulate: a pipeline does so by itself."""
    return row.strategy.preset.mesh.pp == 1


def _accumulating(plain: Estimate, model: Shape, form: Format, ranks: int, passes: int) -> Estimate:
    """The same strategy with several passes a step."""
    old = plain.strategy
    preset = replace(old.preset, batch=Batch(accumulation=passes))
    words = f"{old.words} --set batch.accumulation={passes}"
    strategy = MemoryStrategy(key=old.key, title=old.title, words=words, why=old.why, preset=preset)
    return estimate(strategy, model, form, ranks, plain.limit)


def _divisors(number: int) -> list[int]:
    """Those above 1, the smallest first."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)} - {1})


# -----------------------------------------------------------------------------------------------------------
# A model that a script defines, as advice reads it: which one, built with what, and what was counted. Pure.


_ARGS = "write NAME=VALUE,NAME=VALUE, as in layers=3,width=96"
_DEFINES = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
    ast.AugAssign, ast.Pass, ast.Assert, ast.Raise,
)  # fmt: skip
"""Statements with which a module defines things."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What a model built on the meta device has."""

    name: str
    """Of the class or function."""
    parameters: int
    trainable: int
    layers: int
    """Outermost members of module lists, which are what FSDP gathers one by one."""
    hidden: int | None
    vocab: int | None
    largest: int
    """Parameters of the largest tensor."""
    largest_layer: int
    embedding: int
    blocks: int
    """Parameters of all layers."""
    head: int
    """Parameters of the rest."""

    @property
    def text(self) -> str:
        """ "CharGPT: 353,792 parameters: embedding 18,432, 3 layers 335,520 (the largest 111,840), rest 12,608"."""
        layers = f"{self.layers} layers {self.blocks:,} (the largest {self.largest_layer:,})"
        frozen = self.parameters - self.trainable
        text = f"{self.name}: {self.parameters:,} parameters: embedding {self.embedding:,}, {layers}, rest {self.head:,}"
        return text + (f"; {frozen:,} are frozen, and counted as if trained" if frozen else "")


def parse_script(text: str) -> tuple[str, str | None]:
    """Path and name of "PATH[:NAME]". Raises PlanError."""
    path, colon, name = text.rpartition(":")
    if not colon or "/" in name or name.endswith(".py"):
        path, name = text, ""
    if not path or (name and not name.isidentifier()) or (colon and path != text and not name):
        raise PlanError(
            f"--script {text}: write PATH, or PATH:NAME of a class or function in it, as in train.py:Model."
        )
    return path, name or None


def parse_model_args(text: str) -> dict[str, object]:
    """The values of "layers=3,width=96,activation=gelu". Raises PlanError."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError):
        call = None
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        raise PlanError(f"--model-args {text}: {_ARGS}.")
    values: dict[str, object] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise PlanError(f"--model-args {text}: {_ARGS}.")
        values[keyword.arg] = _value(text, keyword.value)
    return values


def _value(text: str, node: ast.expr) -> object:
    """A literal, or a word as it stands. Raises PlanError."""
    if isinstance(node, ast.Name):
        return node.id
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is no plain value; {_ARGS}.") from None
    if not isinstance(value, bool | int | float | str | list | tuple | dict | None):
        raise PlanError(f"--model-args {text}: {ast.unparse(node)} is no plain value; {_ARGS}.")
    return value


def acts_on_import(source: str | bytes) -> str | None:
    """Why a script must not be imported to look at its model, as the end of a sentence; None where it may be.

    A script that does things at its top level, and has no `if __name__ == "__main__":`, would train.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"is not Python that can be read ({error.args[0] if error.args else type(error).__name__})"
    if any(isinstance(node, ast.If) and _names_main(node.test) for node in body):
        return None
    line = next(_acting(body), None)
    if line is None:
        return None
    return f'would run when it is read (line {line}): put what trains under `if __name__ == "__main__":`'


def _names_main(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _acting(body: Iterable[ast.stmt]) -> Iterator[int]:
    """Lines of statements that do more than define."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(node, "handlers", [])]
            for part in parts:
                yield from _acting(part)
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Await):
            continue
        elif not isinstance(node, _DEFINES):
            yield node.lineno


def shape_of(
    counted: Counted, layers: int | None = None, hidden: int | None = None, vocab: int | None = None
) -> Shape:
    """The counted model; what is given wins. Raises PlanError where it does not look like a transformer."""
    layers, hidden = layers or counted.layers, hidden or counted.hidden
    if not layers or not hidden:
        missing = " and ".join(
            f"--{name}" for name, value in (("layers", layers), ("hidden", hidden)) if not value
        )
        raise PlanError(
            f"{counted.name} has no list of layers that looks like a transformer: give {missing} for its activations."
        )
    outside = counted.parameters - counted.blocks if counted.layers else None
    usual = shape(counted.parameters, layers, hidden, vocab or counted.vocab or VOCABULARY)
    return replace(usual, outside=outside, largest=counted.largest)


def counted_from(answer: Mapping[str, object]) -> Counted:
    """What the training environment's interpreter answered. Raises PlanError."""
    try:
        return Counted(**answer)  # type: ignore[arg-type]
    except TypeError:
        raise PlanError(
            "The training environment's interpreter answered something else than a model's sizes."
        ) from None
