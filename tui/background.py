"""Background work of the cockpit: what it raises is a line on the screen, and the cockpit goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from textual.app import App
from textual.dom import DOMNode
from textual.signal import Signal
from textual.worker import Worker

from ..runners import clock
from ..runners.parts import Parts, failure, printed

SHOWN_S = 60.0
"""How long such a line stays; the same one is not shown again before."""
MOST_PRINTED = 20
"""Tracebacks that are printed at the end."""

T = TypeVar("T")


class BackgroundApp(App[None]):
    """Owns what runs in the background of all screens."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts(self._part_failed)
        self.tracebacks: dict[str, None] = {}
        """What was raised, each once."""
        self._shown: dict[str, float] = {}
        """Lines that are on the screen, and since when by the monotonic clock."""

    def on_mount(self) -> None:
        self.parts.watch_loop(asyncio.get_running_loop())

    def _part_failed(self, name: str, error: BaseException, follows: str) -> None:
        if len(self.tracebacks) < MOST_PRINTED:
            self.tracebacks[printed(error)] = None
        finding = failure(name, error, follows, None, "please report it")
        text = f"{finding.text} ({finding.id}); its traceback is printed when the cockpit ends"
        now = clock.monotonic()
        self._shown = {each: at for each, at in self._shown.items() if now - at < SHOWN_S}
        if text not in self._shown:
            self._shown[text] = now
            self.notify(text, severity="error", markup=False, timeout=SHOWN_S)

    def print_tracebacks(self) -> None:
        """Print what was raised, once the terminal is given back."""
        for text in self.tracebacks:
            sys.stderr.write(text)


class OwnedSignal(Signal[T]):
    """A signal each of whose subscribers is a part: what it raises is reported, where Textual would drop it."""

    def subscribe(self, node: DOMNode, callback: Callable[[T], Any], immediate: bool = False) -> None:
        """See Signal.subscribe."""
        super().subscribe(node, lambda data: call(node, _name(node), callback, data), immediate)


def call(node: DOMNode, name: str, function: Callable[..., object], *arguments: object) -> None:
    """Call a function that has its turn again and again. See `Parts.call`."""
    _owner(node).call(name, function, *arguments)


def background(
    node: DOMNode, name: str, work: Coroutine[Any, Any, Any], *, exclusive: bool = False
) -> Worker[None]:
    """Do something in the background for as long as a screen or a widget lives.

    `exclusive`: instead of what it does under this name now.
    """
    return node.run_worker(_owner(node).guard(name, work), group=name, exclusive=exclusive)


async def after(seconds: float, function: Callable[[], object]) -> None:
    """Wait, and call a function."""
    await asyncio.sleep(seconds)
    function()


def keep_running(node: DOMNode, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part instead of an earlier one of this name; one that raises is started again. See `Parts.start`."""
    node.run_worker(_owner(node).keep_running(name, factory), group=name, exclusive=True)


def stop(node: DOMNode, name: str) -> None:
    """Cancel what a screen or a widget does under this name."""
    node.workers.cancel_group(node, name)


def _name(node: DOMNode) -> str:
    return node.id or type(node).__name__


def _owner(node: DOMNode) -> Parts:
    app = node if isinstance(node, App) else node.app
    assert isinstance(app, BackgroundApp)
    return app.parts
