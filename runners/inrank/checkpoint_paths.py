"""The functions of libraries that save checkpoints, and the path that a call of each writes."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Callable, Mapping
from typing import Any

MOST_LOOKED_AT, DEEPEST = 64, 3
"""Limits of the search for a tensor: entries per mapping, and nesting depth."""
Find = Callable[[inspect.BoundArguments], "str | None"]
"""Returns the path that a call writes; None if the call saves no checkpoint."""


def _path_of(value: Any) -> str | None:
    """Return the path of a path-like object or of an open file; else None."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value) or None
    name = getattr(value, "name", None)
    return name if isinstance(name, str) and hasattr(value, "write") else None


def _argument(name: str) -> Find:
    """Return a Find for calls with the path in this argument."""

    def find(bound: inspect.BoundArguments) -> str | None:
        path = _path_of(bound.arguments.get(name))
        return path if not isinstance(path, bytes) else os.fsdecode(path)

    return find


def _of_torch(bound: inspect.BoundArguments) -> str | None:
    """Return the path if torch.save gets a checkpoint: a module, or a mapping with tensors."""
    saved = bound.arguments.get("obj")
    return None if _is_tensor(saved) or not _holds_tensors(saved, DEEPEST) else _argument("f")(bound)


def _of_dcp(bound: inspect.BoundArguments) -> str | None:
    """Return `checkpoint_id`, else the path of the storage writer."""
    path = _path_of(bound.arguments.get("checkpoint_id"))
    return path or _path_of(getattr(bound.arguments.get("storage_writer"), "path", None))


def _of_deepspeed(bound: inspect.BoundArguments) -> str | None:
    """Return the folder of the tag; DeepSpeed's default tag has the step."""
    folder, tag = _path_of(bound.arguments.get("save_dir")), bound.arguments.get("tag")
    engine = bound.arguments.get("self")
    tag = tag or "global_step%s" % getattr(engine, "global_steps", "")
    return None if folder is None else os.path.join(folder, str(tag))


def _of_accelerate(bound: inspect.BoundArguments) -> str | None:
    """Return `output_dir`, else the numbered folder of the project configuration."""
    path = _path_of(bound.arguments.get("output_dir"))
    if path is not None:
        return path
    project = getattr(bound.arguments.get("self"), "project_configuration", None)
    folder = _path_of(getattr(project, "project_dir", None))
    if folder is None:
        return None
    return os.path.join(folder, "checkpoints", "checkpoint_%s" % getattr(project, "iteration", 0))


def _of_trainer(bound: inspect.BoundArguments) -> str | None:
    """Return the folder that the Trainer of transformers creates for its step."""
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
"""Module, class or "", function, its name in reports, and a Find for its path."""


def _holds_tensors(value: Any, depth: int) -> bool:
    """Return whether this is a tensor, a module, or a mapping with a tensor. Optimizer states nest three deep."""
    if _is_tensor(value) or hasattr(value, "state_dict"):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        entries = list(itertools.islice(value.values(), MOST_LOOKED_AT))
        return any(_holds_tensors(entry, depth - 1) for entry in entries)
    return False


def _is_tensor(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")
