"""The changes of `--adopt` in this process, its refusals, and the line of the script. Standard library only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from ..import_watch import untraced

STEP_FRAMES = 6
"""Most frames between the hook of a step and its caller, including wrappers of learning-rate schedulers."""


class AdoptionError(BaseException):
    """The reason why the preset cannot be applied, as one sentence for the user.

    Not an Exception: a script that catches Exception would continue to train without the preset.
    """


class Adopted:
    """The applied changes in this process, for the hook's report."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """One sentence per call of the script: "ddp applied at train.py:28: gradient_as_bucket_view"."""
        self.divided: Callable[[], tuple[str, str] | None] = lambda: None
        """Return the strategy and the sizes of the divided states so far; None if none is divided."""

    def described(self) -> tuple[set[str], str]:
        """Return strategies that no wrapper object proves, and all changes as one sentence ("" without changes)."""
        divided = self.divided()
        if divided is None:
            return set(), "; ".join(dict.fromkeys(self.calls))
        strategy, sizes = divided
        return {strategy}, "; ".join(dict.fromkeys([*self.calls, sizes]))


adopted = Adopted()


def frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, from the caller's caller outwards."""
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
    """Return file and line of the script: the innermost frame outside of torch, distui and Python's library.

    If this thread has none, use the main thread: it waits while autograd computes on a GPU in this one.
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


def registered_by_script() -> bool:
    """Whether the script directly calls the replaced function of torch (see call.py) that calls this one's caller."""
    return not sys._getframe(3).f_code.co_filename.startswith(_libraries())


def gives_closure(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether optimizer.step() gets a closure; the optimizer itself is the first of `args`."""
    return len(args) > 1 or kwargs.get("closure") is not None


@untraced
def initialising() -> bool:
    """Whether torch makes this step itself, with a learning rate of 0, to have states to load a checkpoint into."""
    for count, frame in enumerate(frames()):
        if count == STEP_FRAMES:
            break
        if frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict":
            return True
    return False
