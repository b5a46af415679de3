"""Background work of the cockpit: its exceptions become lines on the screen, and the cockpit goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from textual.app import App
from textual.dom import DOMNode
from textual.signal import Signal
from textual.worker import Worker

from ..runners.run import clock
from ..runners.run.parts import Parts, failure, printed

SHOWN_S = 60.0
"""Seconds that such a line stays; an equal line is not repeated within that time."""
MOST_PRINTED = 20
"""Maximum number of tracebacks printed at exit."""

T = TypeVar("T")


class BackgroundWork:
    """Owns the background work of all screens, and shows its failures."""

    def __init__(self, app: App[None]) -> None:
        self.parts = Parts(self._failed)
        self.tracebacks: dict[str, None] = {}
        """Unique tracebacks of raised exceptions."""
        self._app = app
        self._shown: dict[str, float] = {}
        """Lines on the screen, with the monotonic time of their first display."""

    def _failed(self, name: str, error: BaseException, follows: str) -> None:
        if len(self.tracebacks) < MOST_PRINTED:
            self.tracebacks[printed(error)] = None
        finding = failure(name, error, follows, None, "please report it")
        text = f"{finding.text} ({finding.id}); its traceback is printed when the cockpit ends"
        now = clock.monotonic()
        self._shown = {each: at for each, at in self._shown.items() if now - at < SHOWN_S}
        if text not in self._shown:
            self._shown[text] = now
            self._app.notify(text, severity="error", markup=False, timeout=SHOWN_S)

    def print_tracebacks(self) -> None:
        """Print the tracebacks after the terminal is restored."""
        for text in self.tracebacks:
            sys.stderr.write(text)


class WorkingApp(Protocol):
    """An app with background work."""

    work: BackgroundWork


class OwnedSignal(Signal[T]):
    """A signal whose subscribers' exceptions are reported; Textual's own signal drops them."""

    def subscribe(self, node: DOMNode, callback: Callable[[T], Any], immediate: bool = False) -> None:
        """See Signal.subscribe."""
        super().subscribe(node, lambda data: call(node, _name(node), callback, data), immediate)


def call(node: DOMNode, name: str, function: Callable[..., object], *arguments: object) -> None:
    """Call a recurring function; its exceptions are reported. See `Parts.call`."""
    _owner(node).call(name, function, *arguments)


def background(
    node: DOMNode, name: str, work: Coroutine[Any, Any, Any], *, exclusive: bool = False
) -> Worker[None]:
    """Run a coroutine in the background for the lifetime of a screen or widget.

    `exclusive` cancels earlier work of this name.
    """
    return node.run_worker(_owner(node).guard(name, work), group=name, exclusive=exclusive)


async def after(seconds: float, function: Callable[[], object]) -> None:
    """Wait, then call a function."""
    await asyncio.sleep(seconds)
    function()


def keep_running(node: DOMNode, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part in place of an earlier one of this name, and restart it if it raises. See `Parts.start`."""
    node.run_worker(_owner(node).keep_running(name, factory), group=name, exclusive=True)


def stop(node: DOMNode, name: str) -> None:
    """Cancel a screen's or widget's work of this name."""
    node.workers.cancel_group(node, name)


def _name(node: DOMNode) -> str:
    return node.id or type(node).__name__


def _owner(node: DOMNode) -> Parts:
    app = node if isinstance(node, App) else node.app
    return cast(WorkingApp, app).work.parts
