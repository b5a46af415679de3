"""The actions of `actions.toml`, the source of keys, footer, help, palette, `--readonly` and the user's keymap."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources

from msgspec import Struct, convert
from textual.binding import Binding
from textual.keys import format_key


class Action(Struct, frozen=True):
    """One row of `actions.toml`."""

    id: str
    """Stable name, used in `keys.toml`."""
    key: str
    """Key, or several joined by commas, in Textual's names."""
    action: str
    """Textual action, or one of a part of the run screen, such as `log.hit(1)`; see PARTS."""
    text: str
    """Verb and noun, for help, palette and documentation."""
    scope: str
    """The scope of its key: one of SCOPES."""
    also: str = ""
    """Other words by which a search finds it."""
    footer: str = ""
    """Word in the footer; "" hides it there."""
    panes: tuple[str, ...] = ()
    """Panes that it is about; the footer has it only there. () for all panes."""
    mutates: bool = False
    """Whether it changes a run: it then needs a confirmation, and is disabled by `--readonly`."""

    @property
    def name(self) -> str:
        """The name without target and arguments, for `Permissions.allowed`."""
        return name_of(self.action)

    @property
    def target(self) -> str:
        """The action as Textual runs it: `RunScreen.action_forward` passes it on to a part of the screen."""
        target = target_of(self.action)
        is_passed_on = target != self.action and self.scope != "run"
        return f"screen.{target}" if is_passed_on else target

    def is_shown_in(self, pane: str) -> bool:
        """Whether the footer of a pane has room for it."""
        return not self.panes or pane in self.panes


def name_of(action: str) -> str:
    """Return the name of an action without its target and arguments."""
    return action.partition("(")[0].rpartition(".")[2]


def target_of(action: str) -> str:
    """Return an action as the run screen runs it."""
    part, _, call = action.partition(".")
    return f"forward({part!r}, {call!r})" if part in PARTS else action


PARTS = ("run", "log", "table", "curves", "map", "nccl")
"""Parts of the run screen with their own actions, wherever the focus is."""


def _read_actions() -> Iterator[Action]:
    text = resources.files(__package__).joinpath("actions.toml").read_text("utf-8")
    for scope, actions in tomllib.loads(text).items():
        for id, fields in actions.items():
            yield convert({"id": id, "scope": scope, **fields}, Action)


ACTIONS = tuple(_read_actions())

SCOPES = {
    "findings": "Findings",
    "statements": "NCCL",
    "events": "Events",
    "curves": "Curves",
    "list": "Ranks, log, runs",
    "map": "Map",
    "run": "Run",
    "runs": "List of runs",
    "app": "Everywhere",
    "move": "Moving",
}
"""Headings of the help, in its order."""

PANES = {
    "ranks": "Ranks",
    "gpus": "GPUs",
    "map": "Map",
    "launch": "Launch",
    "ended": "Summary",
    "strip": "Ranks × time",
    "curves": "Curves",
    "log": "Log",
    "nccl": "NCCL",
    "findings": "Findings",
    "events": "Events",
    "wrong": "Findings",
    "card": "Run",
    "runs": "List of runs",
}
"""Names of the panes that can have the focus."""

MUTATING = frozenset(action.name for action in ACTIONS if action.mutates)
"""Names of the Textual actions that `--readonly` disables."""

_NAMES = {"escape": "esc", "pageup": "PgUp", "pagedown": "PgDn"}


def bindings(*scopes: str) -> list[Binding]:
    """Return Textual bindings of the given scopes; each has its id, so that a keymap can change it."""
    return [
        Binding(action.key, action.target, action.text, id=action.id)
        for action in ACTIONS
        if action.scope in scopes
    ]


def key_text(key: str) -> str:
    """Return a key, or keys joined by commas, in their usual notation: `^p`, `?`, `G`."""
    return " ".join(map(_name, key.split(",")))


def _name(key: str) -> str:
    if key.startswith("ctrl+"):
        return f"^{key.removeprefix('ctrl+')}"
    sign = format_key(key)
    return sign if sign.isascii() and len(sign) == 1 else _NAMES.get(key, key)
