"""The actions of `actions.toml`, the source of keys, footer, help, palette, `--readonly` and the user's keymap."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import resources

from msgspec import Struct
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
    """Description for help and palette."""
    scope: str
    """The scope of its key: one of SCOPES."""
    footer: str = ""
    """Word in the footer; "" hides it there."""
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

    @property
    def method(self) -> str:
        """The name of the method that Textual calls, without "action_"."""
        return self.target.partition("(")[0]


def name_of(action: str) -> str:
    """Return the name of an action without its target and arguments."""
    return action.partition("(")[0].rpartition(".")[2]


def target_of(action: str) -> str:
    """Return an action as the run screen runs it."""
    part, _, call = action.partition(".")
    return f"forward({part!r}, {call!r})" if part in PARTS else action


PARTS = ("run", "log", "table", "curves", "heat", "nccl")
"""Parts of the run screen with their own actions, wherever the focus is."""


def _read_actions() -> Iterator[Action]:
    text = resources.files(__package__).joinpath("actions.toml").read_text("utf-8")
    for scope, actions in tomllib.loads(text).items():
        for id, fields in actions.items():
            yield Action(id=id, scope=scope, **fields)


ACTIONS = tuple(_read_actions())

SCOPES = {
    "app": "everywhere",
    "run": "on a run",
    "list": "in the rank table, the log and the run list",
    "tables": "in the rank and GPU tables",
    "findings": "in the findings",
    "statements": "on the NCCL screen",
    "events": "in the events",
    "curves": "in the curves (← → and home move the time, end is live)",
    "runs": "in the list of runs",
    "move": "moving (tab and shift+tab change the pane)",
}
"""Headings of the help, in its order."""

MUTATING = frozenset(action.name for action in ACTIONS if action.mutates)
"""Names of the Textual actions that `--readonly` disables."""

_NAMES = {"escape": "esc", "pageup": "PgUp", "pagedown": "PgDn"}


def bindings(*scopes: str) -> list[Binding]:
    """Return Textual bindings of the given scopes; each has its id, so that a keymap can change it."""
    return [
        Binding(
            action.key,
            action.target,
            action.footer or action.text,
            show=bool(action.footer),
            id=action.id,
            tooltip=action.text,
        )
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
