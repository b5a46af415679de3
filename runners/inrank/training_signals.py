"""Read the numbers that a script logs to its trackers: loss, learning rate, throughput and others.

Each tracker's logging function is wrapped right after its module is loaded; this module imports no tracker. The wrapped
function is called first, and its result or exception is returned unchanged. The agent gets names and values unchanged,
and decides which of them is the loss.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .control import private
from .import_watch import PATCH_ERRORS, untraced, wrap_imported

MOST_NAMES = 128
"""Most names that are kept per tracker, the first ones of the script."""
LONGEST_NAME = 100
UNREADABLE = (*PATCH_ERRORS, ArithmeticError)
"""Exceptions that the conversion of a value may raise."""
INFINITIES = {float("inf"): "inf", float("-inf"): "-inf"}

Read = Callable[["TrainingSignals", "dict[str, Any]"], None]
"""Takes the values from the arguments of one call, by name."""


class Tracker:
    """The newest values of one tracker."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[float, int | None, float]] = {}
        """Name → value, the script's step or None, unix time."""
        self.bad: dict[str, int | None] = {}
        """Name → first step of the current run of values that are not finite."""
        self.reached: int | None = None
        self.total: int | None = None
        self.epoch: float | None = None
        """Step, total steps and epoch of the trainer's counters; None if it has no such counter."""

    def put(self, name: str, value: float, step: int | None, now: float) -> None:
        if name not in self.values and len(self.values) >= MOST_NAMES:
            return
        self.values[name] = value, step, now
        if math.isfinite(value):
            self.bad.pop(name, None)
        else:
            self.bad.setdefault(name, step)

    def as_json(self) -> dict[str, Any]:
        """Return the values in a form for JSON."""
        values = {
            name: [_finite(value), step, at] for name, (value, step, at) in self.values.copy().items()
        }
        return {
            "values": values,
            "bad": self.bad.copy(),
            "reached": self.reached,
            "total": self.total,
            "epoch": self.epoch,
        }


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else INFINITIES.get(value, "nan")


class TrainingSignals:
    """The values that this rank's script logs, by tracker."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each report."""
        self.trackers: dict[str, Tracker] = {}
        self.file = ""
        """Path of a file for all reports, for `distui plan --try`; "" for none."""

    def put(
        self,
        tracker: str,
        values: Any,
        step: Any = None,
        synchronous: bool = False,
        **counters: Any,
    ) -> None:
        """Keep the numbers among `values`, a dict. `synchronous`: the tracker has already waited for values on a GPU."""
        if not isinstance(values, dict):
            return
        now, at = time.time(), _count(step)
        kept = self.trackers.setdefault(tracker, Tracker())
        for name, value in _flat(values):
            number = number_of(value, synchronous)
            if number is not None and isinstance(name, str) and len(name) <= LONGEST_NAME:
                kept.put(name, number, at, now)
        for counter, value in counters.items():
            if value is not None:
                setattr(kept, counter, value)
        self.version += 1
        if self.file:
            with open(self.file, "a", opener=private) as file:
                file.write(json.dumps(self.since(0)) + "\n")

    def since(self, version: int) -> dict[str, Any] | None:
        """Return all values if there is a report after that version, else None."""
        if version == self.version:
            return None
        now = self.version  # read first: a report during this call is sent again
        return {
            "version": now,
            "trackers": {name: tracker.as_json() for name, tracker in self.trackers.copy().items()},
        }

    def arm(self) -> None:
        """Wrap the functions in LOGGING, each once its module is imported."""
        for module, owner, function, read in LOGGING:
            wrap_imported(module, owner, function, functools.partial(self._logging, read=read))

    def _logging(self, theirs: Callable[..., Any], read: Read) -> Callable[..., Any]:
        """Return a wrapper that reads the arguments after each call."""
        signature = inspect.signature(theirs)

        @untraced
        @functools.wraps(theirs)
        def logged(*args: Any, **named: Any) -> Any:
            result = theirs(*args, **named)
            with contextlib.suppress(*UNREADABLE):
                read(self, signature.bind(*args, **named).arguments)
            return result

        return logged


def _flat(values: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield names and values; those of an inner dict as "outer.inner"."""
    for name, value in list(values.items()):
        if not isinstance(value, dict):
            yield name, value
            continue
        for key, each in list(value.items())[:MOST_NAMES]:
            yield "%s.%s" % (name, key), each


def _dict(tracker: str, values: str, synchronous: bool = False) -> Read:
    """Return a reader of a function with a dict of values, in this argument, and a step."""

    def read(signals: TrainingSignals, given: dict[str, Any]) -> None:
        signals.put(tracker, given[values], given.get("step"), synchronous)

    return read


def _scalar(tracker: str, name: str, value: str, step: str) -> Read:
    """Return a reader of a function with a name, a value and a step, in these arguments."""

    def read(signals: TrainingSignals, given: dict[str, Any]) -> None:
        signals.put(tracker, {given[name]: given[value]}, given.get(step), synchronous=True)

    return read


def _scalars(signals: TrainingSignals, given: dict[str, Any]) -> None:
    """Read SummaryWriter.add_scalars."""
    values = {"%s/%s" % (given["main_tag"], tag): value for tag, value in given["tag_scalar_dict"].items()}
    signals.put("tensorboard", values, given.get("global_step"), synchronous=True)


def _transformers(signals: TrainingSignals, given: dict[str, Any]) -> None:
    """Read Trainer.log."""
    state = given["self"].state
    step = _count(state.global_step)
    counters = {
        "reached": step,
        "total": _count(state.max_steps) or None,
        "epoch": number_of(state.epoch, False),
    }
    signals.put("transformers", given["logs"], step, False, **counters)


def _lightning(signals: TrainingSignals, given: dict[str, Any]) -> None:
    """Read _LoggerConnector.log_metrics, which every logger of Lightning gets its values from."""
    trainer = given["self"].trainer
    step, reached = given.get("step"), _count(trainer.global_step)
    counters = {
        "reached": reached,
        "total": _count(trainer.max_steps) or _batches(trainer),
        "epoch": number_of(trainer.current_epoch, False),
    }
    synchronous = bool(trainer.loggers)  # without loggers Lightning itself waits for no value on the GPU
    signals.put("lightning", given["metrics"], reached if step is None else step, synchronous, **counters)


def _batches(trainer: Any) -> int | None:
    """Return the optimizer steps of all epochs; None until Lightning knows the batches per epoch."""
    epochs, batches = trainer.max_epochs, trainer.num_training_batches
    if not isinstance(epochs, int) or epochs < 1 or not isinstance(batches, (int, float)):
        return None
    if not math.isfinite(batches) or batches < 1:
        return None
    each = trainer.accumulate_grad_batches
    return epochs * math.ceil(batches / each) if isinstance(each, int) and each > 0 else None


_BOARD = _scalar("tensorboard", "tag", "scalar_value", "global_step")
_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"
LOGGING: tuple[tuple[str, str, str, Read], ...] = (
    ("wandb.sdk.wandb_run", "Run", "log", _dict("wandb", "data", synchronous=True)),
    ("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar", _BOARD),
    ("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalars", _scalars),
    ("tensorboardX.writer", "SummaryWriter", "add_scalar", _BOARD),
    ("tensorboardX.writer", "SummaryWriter", "add_scalars", _scalars),
    ("mlflow.tracking.fluent", "", "log_metrics", _dict("mlflow", "metrics", synchronous=True)),
    ("mlflow.tracking.client", "MlflowClient", "log_metric", _scalar("mlflow", "key", "value", "step")),
    ("trackio.run", "Run", "log", _dict("trackio", "metrics")),
    ("transformers.trainer", "Trainer", "log", _transformers),
    ("accelerate.accelerator", "Accelerator", "log", _dict("accelerate", "values")),
    ("lightning.fabric.fabric", "Fabric", "log_dict", _dict("lightning", "metrics", synchronous=True)),
    ("lightning_fabric.fabric", "Fabric", "log_dict", _dict("lightning", "metrics", synchronous=True)),
    ("lightning.pytorch." + _CONNECTOR, "_LoggerConnector", "log_metrics", _lightning),
    ("pytorch_lightning." + _CONNECTOR, "_LoggerConnector", "log_metrics", _lightning),
)
"""Module, class or "", function, and its reader. mlflow.log_metric calls the client's function."""


def _count(value: Any) -> int | None:
    number = number_of(value, False)
    return int(number) if number is not None and math.isfinite(number) and number >= 0 else None


def number_of(value: Any, synchronous: bool) -> float | None:
    """Convert a value to a number; None if it is no number, or if its conversion would wait for a GPU.

    `synchronous`: the tracker has already waited.
    """
    kind = type(value)
    try:
        if kind is float or kind is int:
            return float(value)
        library = kind.__module__.partition(".")[0]
        if library == "numpy":
            is_number = value.size == 1 and value.dtype.kind in "fiu"
        elif library == "torch":
            is_number = _is_number_of_torch(value, synchronous)
        else:
            is_number = False
        return float(value.item()) if is_number else None
    except UNREADABLE:
        return None


def _is_number_of_torch(value: Any, synchronous: bool) -> bool:
    if hasattr(value, "device_mesh") or value.numel() != 1 or value.dtype.is_complex:
        return False
    return synchronous or value.device.type == "cpu"
