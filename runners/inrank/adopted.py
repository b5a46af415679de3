"""What `--adopt` has applied in this process, why it stops, and where in the script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

STEP_FRAMES = 6
"""Frames between the hook of a step and its caller, with wrappers of learning-rate schedulers between."""


class AdoptionError(BaseException):
    """What keeps the preset from being applied, as one sentence for the user.

    No Exception: scripts that go on behind `except Exception` would train without what was refused.
    """


class Adopted:
    """What was applied in this process, for the hook's report."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """Of each call of the script's: "ddp applied at train.py:28: gradient_as_bucket_view"."""
        self.sharded: Callable[[], tuple[str, str] | None] = lambda: None
        """What is divided over the ranks by now: the strategy and its sizes; None where nothing is."""
        self.leaves_out: Callable[[Any], bool] = lambda _: False
        """Whether this step of an optimizer is one that accumulation leaves out."""

    def described(self) -> tuple[set[str], str]:
        """Strategies that only show here, and all of it as a sentence; "" where nothing was applied."""
        divided = self.sharded()
        texts = [*self.calls, *(divided[1:] if divided else ())]
        return ({divided[0]} if divided else set()), "; ".join(dict.fromkeys(texts))


adopted = Adopted()


def _inside() -> tuple[str, str]:
    """Folders of torch and of distui, whose code is not the script's."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or "torch"
    return os.path.dirname(torch) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep


def where() -> str:
    """File and line of the script's own that is executed: the innermost frame outside of torch, distui and Python."""
    inside, standard = _inside(), os.path.dirname(os.__file__) + os.sep
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        library = path.startswith(standard) and "site-packages" not in path  # copy, pickle, contextlib
        if os.path.isabs(path) and not path.startswith(inside) and not library:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script"


def own_call() -> bool:
    """Whether the function that asks was called by the script itself."""
    return not sys._getframe(2).f_code.co_filename.startswith(_inside())


def gives_closure(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether step(), called with these, computes gradients by itself; the optimizer is the first of `args`."""
    return len(args) > 1 or kwargs.get("closure") is not None


def initialising() -> bool:
    """Whether torch itself makes this step, with a learning rate of 0, to get a state to load a checkpoint into."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(STEP_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "_init_optim_state":
            return True
        frame = frame.f_back
    return False


initialising._torchdynamo_disable = True  # type: ignore[attr-defined]
