"""Background work of the cockpit: what it raises is a line on the screen, and the cockpit goes on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from textual.app import App
from textual.dom import DOMNode

from ..runners.parts import Parts, failure

SHOWN_S = 60.0
"""How long such a line stays."""


class BackgroundApp(App[None]):
    """Owns what runs in the background of all screens."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts(self._part_failed)
        self._tracebacks: list[str] = []

    def _part_failed(self, name: str, error: BaseException, follows: str) -> None:
        self._tracebacks.append("".join(traceback.format_exception(error)))
        finding = failure(name, error, follows, None, "please report it")
        text = f"{finding.text}; its traceback is printed when the cockpit ends"
        self.notify(text, severity="error", markup=False, timeout=SHOWN_S)

    def print_tracebacks(self) -> None:
        """Print what was raised, once the terminal is given back."""
        for text in dict.fromkeys(self._tracebacks):
            sys.stderr.write(text)


def background(
    node: DOMNode, name: str, work: Coroutine[Any, Any, Any], *, exclusive: bool = False
) -> None:
    """Do something in the background for as long as a screen or a widget lives.

    `exclusive`: instead of what it does under this name now.
    """
    node.run_worker(_owner(node).guard(name, work), group=name, exclusive=exclusive)


def keep_running(node: DOMNode, name: str, factory: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a part instead of an earlier one of this name; one that raises is started again. See `Parts.start`."""
    node.run_worker(_owner(node).keep_running(name, factory), group=name, exclusive=True)


def _owner(node: DOMNode) -> Parts:
    app = node if isinstance(node, App) else node.app
    assert isinstance(app, BackgroundApp)
    return app.parts
