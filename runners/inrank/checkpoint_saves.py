"""Reports the checkpoints that a rank saves: what, where, when, how long it took, how many bytes.

The functions that save are wrapped right after their library was loaded, and behave as before. One JSON object a line
goes into a file beside the rank's logs, when a save begins and when it is done: so a save that never ended can be
recognised, and nothing is lost while no agent listens.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from .control import private
from .import_watch import MISTAKES, when_imported

MOST_LOOKED_AT, DEEPEST = 64, 3
"""Entries of each mapping that are looked at for a tensor, and how deep."""
STEP_NAMES = ("step", "global_step", "iter_num", "iteration", "iter", "steps")
"""Entries of a saved mapping that number it; the first that is there."""

Find = Callable[[inspect.BoundArguments], "str | None"]
"""The path that a call saves to; None where the call saves no checkpoint."""


class Saves:
    """Wraps what saves checkpoints. `steps`: optimizer steps that this process has made so far."""

    def __init__(self, path: str, steps: Callable[[], int]) -> None:
        """`path`: of the file that gets the reports; made with the first."""
        self._path, self._steps, self._rank = path, steps, os.getpid()
        self._within = threading.local()
        """A save within a save is part of it."""
        self._writing = threading.Lock()

    def move(self, path: str) -> None:
        """Report to this file from now on: of this process, which may be a fork."""
        self._path, self._rank, self._writing = path, os.getpid(), threading.Lock()

    def arm(self) -> None:
        """Wrap whatever is imported from now on."""
        for module, owner, name, source, find in TARGETS:
            when_imported(module, functools.partial(self._wrap, owner, name, source, find))

    def _wrap(self, owner: str, name: str, source: str, find: Find, module: ModuleType) -> None:
        holder = getattr(module, owner) if owner else module
        theirs = getattr(holder, name)
        setattr(holder, name, self.saving(theirs, source, find))

    def saving(self, theirs: Callable[..., Any], source: str, find: Find) -> Callable[..., Any]:
        """`theirs`, reported. What it returns and raises stays what it is."""
        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def save(*args: Any, **named: Any) -> Any:
            report = self._begin(signature, args, named, source, find)
            if report is None:
                return theirs(*args, **named)
            self._within.save, state = True, "failed"
            try:
                done = theirs(*args, **named)
                state = "done"
            finally:
                self._within.save = False
                if state == "failed":
                    self._write(dict(report, state=state, end=time.time()))
            self._finish(report, done)
            return done

        save._torchdynamo_disable = True  # type: ignore[attr-defined]
        return save

    def _begin(
        self,
        signature: inspect.Signature,
        args: tuple[Any, ...],
        named: dict[str, Any],
        source: str,
        find: Find,
    ) -> dict[str, Any] | None:
        if getattr(self._within, "save", False) or os.getpid() != self._rank:
            return None
        report = None
        with contextlib.suppress(*MISTAKES):
            bound = signature.bind(*args, **named)
            path = find(bound)
            if path is not None and not _is_device(path):
                report = {
                    "path": os.path.abspath(path),
                    "source": source,
                    "begin": time.time(),
                    "count": self._steps(),
                    "step": _step_in(bound.arguments),
                }
                self._write(dict(report, state="began"))
        return report

    def _finish(self, report: dict[str, Any], done: Any) -> None:
        """An asynchronous save is done when its future is."""
        add = getattr(done, "add_done_callback", None)
        if add is None:
            nested = getattr(done, "upload_completion", None)  # AsyncSaveResponse of torch's newer releases
            add = getattr(nested, "add_done_callback", None)
        if add is None:
            self._done(report)
            return
        with contextlib.suppress(*MISTAKES):
            add(lambda future: self._done(report, failed=future.exception() is not None))

    def _done(self, report: dict[str, Any], failed: bool = False) -> None:
        with contextlib.suppress(*MISTAKES):
            file = None
            if os.path.isfile(report["path"]):  # it may be renamed afterwards: the inode stays
                about = os.stat(report["path"])
                file = [about.st_dev, about.st_ino, about.st_size]
            self._write(dict(report, state="failed" if failed else "done", end=time.time(), file=file))

    def _write(self, report: Mapping[str, Any]) -> None:
        """Append a line; a full disk loses it, and nothing else."""
        line = json.dumps(report) + "\n"
        with contextlib.suppress(OSError), self._writing, open(self._path, "a", opener=private) as file:
            file.write(line)


def _path_of(value: Any) -> str | None:
    """Where a save to this goes: a path, or a file that is open under one."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value) or None
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and hasattr(value, "write") else None


def _is_device(path: str) -> bool:
    """Whether nothing stays of what is written there: /dev/null, a pipe."""
    return os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))


def _argument(name: str) -> Find:
    """The path is this argument."""

    def find(bound: inspect.BoundArguments) -> str | None:
        path = _path_of(bound.arguments.get(name))
        return path if not isinstance(path, bytes) else os.fsdecode(path)

    return find


def _of_torch(bound: inspect.BoundArguments) -> str | None:
    """Scripts save anything with torch.save: a module or a mapping that holds tensors is a checkpoint."""
    saved = bound.arguments.get("obj")
    return None if _is_tensor(saved) or not _holds_tensors(saved, DEEPEST) else _argument("f")(bound)


def _of_dcp(bound: inspect.BoundArguments) -> str | None:
    """`checkpoint_id`, else where the writer of the call writes."""
    path = _path_of(bound.arguments.get("checkpoint_id"))
    return path or _path_of(getattr(bound.arguments.get("storage_writer"), "path", None))


def _of_deepspeed(bound: inspect.BoundArguments) -> str | None:
    """The folder of the tag, which DeepSpeed names after the step where the caller does not."""
    folder, tag = _path_of(bound.arguments.get("save_dir")), bound.arguments.get("tag")
    engine = bound.arguments.get("self")
    tag = tag or "global_step%s" % getattr(engine, "global_steps", "")
    return None if folder is None else os.path.join(folder, str(tag))


def _of_accelerate(bound: inspect.BoundArguments) -> str | None:
    """`output_dir`, else the folder that the project's configuration numbers."""
    path = _path_of(bound.arguments.get("output_dir"))
    if path is not None:
        return path
    project = getattr(bound.arguments.get("self"), "project_configuration", None)
    folder = _path_of(getattr(project, "project_dir", None))
    if folder is None:
        return None
    return os.path.join(folder, "checkpoints", "checkpoint_%s" % getattr(project, "iteration", 0))


def _of_trainer(bound: inspect.BoundArguments) -> str | None:
    """The folder that the Trainer of transformers makes for its step."""
    trainer = bound.arguments.get("self")
    folder = _path_of(getattr(getattr(trainer, "args", None), "output_dir", None))
    step = getattr(getattr(trainer, "state", None), "global_step", None)
    return None if folder is None or step is None else os.path.join(folder, "checkpoint-%s" % step)


TARGETS: tuple[tuple[str, str, str, str, Find], ...] = (
    ("torch.serialization", "", "save", "torch.save", _of_torch),
    ("torch.distributed.checkpoint.state_dict_saver", "", "save", "dcp", _of_dcp),
    ("torch.distributed.checkpoint.state_dict_saver", "", "async_save", "dcp", _of_dcp),
    ("safetensors.torch", "", "save_file", "safetensors", _argument("filename")),
    ("safetensors.torch", "", "save_model", "safetensors", _argument("filename")),
    (
        "transformers.modeling_utils",
        "PreTrainedModel",
        "save_pretrained",
        "save_pretrained",
        _argument("save_directory"),
    ),
    ("transformers.trainer", "Trainer", "_save_checkpoint", "transformers", _of_trainer),
    ("accelerate.accelerator", "Accelerator", "save_state", "accelerate", _of_accelerate),
    ("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint", "deepspeed", _of_deepspeed),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint", "lightning", _argument("filepath")),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint", "lightning", _argument("filepath")),
)
"""Module, class or "", function, its name in reports, and where it saves to."""


def _holds_tensors(value: Any, depth: int) -> bool:
    """Whether this is a module, or a mapping with a tensor in it; optimizer states nest three deep."""
    if _is_tensor(value) or hasattr(value, "state_dict"):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        entries = list(value.values()) if len(value) <= MOST_LOOKED_AT else _first(value.values())
        return any(_holds_tensors(entry, depth - 1) for entry in entries)
    return False


def _first(values: Any) -> list[Any]:
    return [value for _, value in zip(range(MOST_LOOKED_AT), values)]


def _is_tensor(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _step_in(arguments: Mapping[str, Any]) -> int | None:
    """The step that a saved mapping names itself."""
    saved = arguments.get("obj", arguments.get("state_dict"))
    if not isinstance(saved, Mapping):
        return None
    for name in STEP_NAMES:
        step = saved.get(name)
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            return step
    return None
