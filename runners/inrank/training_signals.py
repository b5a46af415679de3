"""Read the numbers that a script logs to its trackers: loss, learning rate, throughput and others.

Each tracker's logging function is wrapped right after its module is loaded; this module imports no tracker. The wrapped
function is called first, and its result or exception is returned unchanged. A disabled tracker is read, too. The agent
gets names and values unchanged, and decides which of them is the loss.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .import_watch import MISTAKES, when_imported

MOST_NAMES = 128
"""Most names that are kept per tracker, the first ones of the script."""
LONGEST_NAME = 100
UNREADABLE = (*MISTAKES, ArithmeticError)
"""Exceptions that the conversion of a value may raise."""
NAMES = {float("inf"): "inf", float("-inf"): "-inf"}

Read = Callable[[tuple[Any, ...], "dict[str, Any]"], None]
"""Reads the positional and named arguments of one call."""


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

    def carried(self) -> dict[str, Any]:
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
    return value if math.isfinite(value) else NAMES.get(value, "nan")


class TrainingSignals:
    """The values that this rank's script logs, by tracker."""

    def __init__(self) -> None:
        self.version = 0
        """Increases with each report."""
        self.trackers: dict[str, Tracker] = {}

    def put(
        self,
        tracker: str,
        values: Mapping[Any, Any],
        step: Any = None,
        synchronous: bool = False,
        **counters: Any,
    ) -> None:
        """Keep the numbers among `values`. `synchronous`: the tracker has already waited for values on a GPU."""
        now, at = time.time(), _count(step)
        kept = self.trackers.get(tracker)
        if kept is None:
            kept = self.trackers[tracker] = Tracker()
        for name, value in list(values.items()):
            if isinstance(value, dict):
                inner = {"%s.%s" % (name, key): each for key, each in list(value.items())[:MOST_NAMES]}
                flat = inner.items()
            else:
                flat = {name: value}.items()
            for key, each in flat:
                number = number_of(each, synchronous)
                if number is not None and isinstance(key, str) and len(key) <= LONGEST_NAME:
                    kept.put(key, number, at, now)
        for counter, value in counters.items():
            if value is not None:
                setattr(kept, counter, value)
        self.version += 1

    def since(self, version: int) -> dict[str, Any] | None:
        """Return all values if there is a report after that version, else None."""
        if version == self.version:
            return None
        now = self.version  # read first: a report during this call is sent again
        return {
            "version": now,
            "trackers": {name: tracker.carried() for name, tracker in self.trackers.copy().items()},
        }

    def arm(self) -> None:
        """Wrap the functions of all known trackers once they are imported."""
        for module, act in (
            ("wandb.sdk.wandb_run", self._wandb),
            ("wandb.sdk.lib.noop_run", self._wandb_noop),
            ("wandb.sdk.wandb_init", self._wandb_init),
            ("torch.utils.tensorboard.writer", self._tensorboard),
            ("tensorboardX.writer", self._tensorboard),
            ("mlflow.tracking.fluent", self._mlflow),
            ("mlflow.tracking.client", self._mlflow_client),
            ("trackio.run", self._trackio),
            ("transformers.trainer", self._transformers),
            ("accelerate.accelerator", self._accelerate),
            ("lightning.fabric.fabric", self._fabric),
            ("lightning_fabric.fabric", self._fabric),
            *(
                ("%s.trainer.connectors.logger_connector.logger_connector" % name, self._lightning)
                for name in LIGHTNING
            ),
        ):
            when_imported(module, act)

    # --- one method per tracker: wraps its logging function and finds the arguments ---

    def _wandb(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("wandb", args[1:], named, "data", synchronous=True)

        wrap(module.Run, "log", read)

    def _wandb_noop(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("wandb", args[1:], named, "data")

        wrap(module.NoopRun, "log", read)

    def _wandb_init(self, module: ModuleType) -> None:
        """Wrap `log` of a disabled run, which older versions set when they create the run."""

        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("wandb", args, named, "data")

        def made(run: Any) -> None:
            theirs = vars(run).get("log")
            if callable(theirs):
                wrap(run, "log", read)
                wandb = sys.modules.get("wandb")
                if getattr(wandb, "log", None) == theirs:
                    wandb.log = run.log  # type: ignore[union-attr]

        wrap_result(getattr(module, "_WandbInit", None), "make_disabled_run", made)

    def _tensorboard(self, module: ModuleType) -> None:
        def scalar(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            tag, value, step = _words(args[1:], named, ("tag", "scalar_value", "global_step"))
            self.put("tensorboard", {tag: value}, step, synchronous=True)

        def several(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            main, values, step = _words(args[1:], named, ("main_tag", "tag_scalar_dict", "global_step"))
            flat = {"%s/%s" % (main, tag): value for tag, value in list(values.items())}
            self.put("tensorboard", flat, step, synchronous=True)

        wrap(module.SummaryWriter, "add_scalar", scalar)
        wrap(module.SummaryWriter, "add_scalars", several)

    def _mlflow(self, module: ModuleType) -> None:
        def several(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("mlflow", args, named, "metrics", synchronous=True)

        wrap(module, "log_metrics", several)

    def _mlflow_client(self, module: ModuleType) -> None:
        """Wrap the client's function, which `mlflow.log_metric` calls, too."""

        def scalar(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            names = ("run_id", "key", "value", "timestamp", "step")
            _, key, value, _, step = _words(args[1:], named, names)
            self.put("mlflow", {key: value}, step, synchronous=True)

        wrap(module.MlflowClient, "log_metric", scalar)

    def _trackio(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("trackio", args[1:], named, "metrics")

        wrap(module.Run, "log", read)

    def _transformers(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            trainer, values = args[0], _words(args[1:], named, ("logs",))[0]
            state = trainer.state
            step, total = _count(state.global_step), _count(state.max_steps)
            epoch = number_of(state.epoch, False)
            self.put("transformers", values, step, reached=step, total=total or None, epoch=epoch)

        wrap(module.Trainer, "log", read)

    def _accelerate(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("accelerate", args[1:], named, "values")

        wrap(module.Accelerator, "log", read)

    def _fabric(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._dict("lightning", args[1:], named, "metrics", synchronous=True)

        wrap(module.Fabric, "log_dict", read)

    def _lightning(self, module: ModuleType) -> None:
        def read(args: tuple[Any, ...], named: dict[str, Any]) -> None:
            trainer = args[0].trainer
            values, step = _words(args[1:], named, ("metrics", "step"))
            reached = _count(trainer.global_step)
            total = _count(trainer.max_steps)
            logs = bool(trainer.loggers)
            self.put(
                "lightning",
                values,
                reached if step is None else step,
                synchronous=logs,
                reached=reached,
                total=total if total and total > 0 else _batches(trainer),
                epoch=number_of(trainer.current_epoch, False),
            )

        wrap(module._LoggerConnector, "log_metrics", read)

    def _dict(
        self,
        tracker: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
        first: str,
        synchronous: bool = False,
    ) -> None:
        """Keep the values of a function with the arguments dictionary and step."""
        values, step = _words(args, named, (first, "step"))
        if isinstance(values, dict):
            self.put(tracker, values, step, synchronous=synchronous)


LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


def _batches(trainer: Any) -> int | None:
    """Return the optimizer steps of all epochs; None until Lightning knows the batches per epoch."""
    epochs, batches = trainer.max_epochs, trainer.num_training_batches
    if not isinstance(epochs, int) or epochs < 1 or not isinstance(batches, (int, float)):
        return None
    if not math.isfinite(batches) or batches < 1:
        return None
    each = trainer.accumulate_grad_batches
    return epochs * math.ceil(batches / each) if isinstance(each, int) and each > 0 else None


def _words(args: tuple[Any, ...], named: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    """Return arguments by position or by name; None for a missing one."""
    return [args[at] if at < len(args) else named.get(name) for at, name in enumerate(names)]


def _count(value: Any) -> int | None:
    number = number_of(value, False)
    return int(number) if number is not None and math.isfinite(number) and number >= 0 else None


def number_of(value: Any, synchronous: bool) -> float | None:
    """Convert a value to a number; None if it is no number, or if its conversion would wait for a GPU.

    `synchronous`: the tracker has already waited.
    """
    kind = type(value)
    if kind is float or kind is int:
        with contextlib.suppress(OverflowError):
            return float(value)
        return None
    if kind is bool or kind is str or value is None:
        return None
    home = kind.__module__.partition(".")[0]
    try:
        if home == "numpy" and value.size == 1 and value.dtype.kind in "fiu":
            return float(value.item())
        if (
            home == "torch"
            and hasattr(value, "numel")
            and not hasattr(value, "device_mesh")
            and (
                value.numel() == 1
                and not value.dtype.is_complex
                and (synchronous or value.device.type == "cpu")
            )
        ):
            return float(value.item())
    except UNREADABLE:
        pass
    return None


def wrap(owner: Any, name: str, read: Read) -> None:
    """Wrap a function or method: call `read` with the arguments after each call."""
    theirs = getattr(owner, name)

    @functools.wraps(theirs)
    def logged(*args: Any, **named: Any) -> Any:
        result = theirs(*args, **named)
        with contextlib.suppress(*UNREADABLE):
            read(args, named)
        return result

    logged._torchdynamo_disable = True  # type: ignore[attr-defined]
    setattr(owner, name, logged)


def wrap_result(owner: Any, name: str, made: Callable[[Any], None]) -> None:
    """Wrap a method, if it exists: call `made` with the result of each call."""
    theirs = getattr(owner, name, None)
    if theirs is None:
        return

    @functools.wraps(theirs)
    def called(*args: Any, **named: Any) -> Any:
        result = theirs(*args, **named)
        with contextlib.suppress(*UNREADABLE):
            made(result)
        return result

    setattr(owner, name, called)
