"""What `--adopt` has applied in this process, why it stops, and where in the script. Standard library only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

STEP_FRAMES = 6
"""Frames between the hook of a step and its caller, with wrappers of learning-rate schedulers between."""


class AdoptionError(BaseException):
    """Why the preset cannot be applied, as one sentence for the user.

    Not an Exception: a script that catches Exception would go on and train without the preset.
    """


class Adopted:
    """What was applied in this process, for the hook's report."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """One sentence per call of the script: "ddp applied at train.py:28: gradient_as_bucket_view"."""
        self.divided: Callable[[], tuple[str, str] | None] = lambda: None
        """The strategy and the sizes of what is divided over the ranks so far; None if nothing is."""

    def described(self) -> tuple[set[str], str]:
        """Strategies that no wrapper object proves, and everything as one sentence; "" if nothing was applied."""
        divided = self.divided()
        if divided is None:
            return set(), "; ".join(dict.fromkeys(self.calls))
        strategy, sizes = divided
        return {strategy}, "; ".join(dict.fromkeys([*self.calls, sizes]))


adopted = Adopted()


def frames() -> Iterator[FrameType]:
    """The frames of this thread, from the caller of the caller outwards."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _libraries() -> tuple[str, str]:
    """Folders of torch and of distui."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or "torch"
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.dirname(torch) + os.sep, own + os.sep


def where() -> str:
    """File and line of the script that is running: the innermost frame outside of torch, distui and Python.

    Of this thread, else of the main one, which waits while autograd computes on a GPU.
    """
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    return _script_line(sys._getframe(1)) or _script_line(main) or "the script"


def _script_line(frame: FrameType | None) -> str:
    libraries, standard = _libraries(), os.path.dirname(os.__file__) + os.sep
    while frame is not None:
        path = frame.f_code.co_filename
        in_python = path.startswith(standard) and "site-packages" not in path  # copy, pickle, contextlib
        if os.path.isabs(path) and not path.startswith(libraries) and not in_python:
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def called_by_script() -> bool:
    """Whether the script itself calls the function that asks."""
    return not sys._getframe(2).f_code.co_filename.startswith(_libraries())


def gives_closure(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether optimizer.step() gets a closure; the optimizer itself is the first of `args`."""
    return len(args) > 1 or kwargs.get("closure") is not None


def initialising() -> bool:
    """Whether torch makes this step itself, with a learning rate of 0, to have states to load a checkpoint into."""
    for count, frame in enumerate(frames()):
        if count == STEP_FRAMES:
            break
        if frame.f_code.co_name == "_init_optim_state":
            return True
    return False


initialising._torchdynamo_disable = True  # type: ignore[attr-defined]
