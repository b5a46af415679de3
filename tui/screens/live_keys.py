"""The keys that act now: footer, help and palette offer these, in the order of the table of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from msgspec import Struct, field
from textual.dom import DOMNode
from textual.screen import Screen

from ..keys import ACTIONS, Action, key_text


class KeyContext(Struct, frozen=True):
    """What a screen knows about its keys."""

    pane: str = ""
    """The pane with the focus, as in `Action.panes`."""
    idle: frozenset[str] = frozenset()
    """Ids of actions that would do nothing now."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Other words for actions, by id."""


@runtime_checkable
class HasKeys(Protocol):
    """A screen that tells the context of its keys."""

    def key_context(self) -> KeyContext: ...


class LiveKey(Struct, frozen=True):
    """A key that acts now."""

    action: Action
    key: str
    """Its usual notation."""
    text: str
    """Verb and noun."""
    word: str
    """Word in the footer; "" for none."""
    of_pane: bool
    """Whether it belongs to the focused pane."""
    node: DOMNode
    """The namespace in which its Textual action runs."""
    call: str


def context_of(screen: Screen[object]) -> KeyContext:
    return screen.key_context() if isinstance(screen, HasKeys) else KeyContext()


def live_keys(screen: Screen[object]) -> list[LiveKey]:
    """Return the enabled keys of the focus, the screen and the app that would do something."""
    context = context_of(screen)
    bound = {
        entry.binding.id: entry
        for entry in reversed(screen.active_bindings.values())
        if entry.enabled and entry.binding.id not in context.idle
    }
    live: list[LiveKey] = []
    for action in ACTIONS:
        entry = bound.get(action.id)
        if entry is None or not _has_action(entry.node, action):
            continue
        other = context.words.get(action.id, "")
        live.append(
            LiveKey(
                action,
                _first_key(action, entry.binding.key),
                other.capitalize() or action.text,
                other or action.footer,
                action.scope not in ("app", "run", "move") or context.pane in action.panes,
                entry.node,
                entry.binding.action,
            )
        )
    return live


def _has_action(node: DOMNode, action: Action) -> bool:
    """Whether the widget with the binding has the action; an action with a target runs elsewhere."""
    return "." in action.action or hasattr(node, f"action_{action.name}")


def _first_key(action: Action, key: str) -> str:
    """Return the first key of the table, or the user's own."""
    own = action.key.split(",")
    return key_text(own[0] if key in own else key)
