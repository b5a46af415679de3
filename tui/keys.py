"""The table of actions, the source of keys, footer, help, palette, `--readonly` and the user's keymap."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct
from textual.binding import Binding
from textual.keys import format_key

from ..presets import trusted_files
from ..presets.finding import PresetError, did_you_mean
from .rows import glyphs
from .rows.glyphs import Row, fit


class Action(Struct, frozen=True):
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
        return self.action.partition("(")[0].rpartition(".")[2]

    @property
    def target(self) -> str:
        """The action as Textual runs it: `RunScreen.action_forward` passes it on to a part of the screen."""
        target = target_of(self.action)
        is_passed_on = target != self.action and self.scope not in ("run", "replay")
        return f"screen.{target}" if is_passed_on else target

    @property
    def method(self) -> str:
        """The name of the method that Textual calls, without "action_"."""
        return self.target.partition("(")[0]


def target_of(action: str) -> str:
    """Return an action as the run screen runs it."""
    part, _, call = action.partition(".")
    return f"forward({part!r}, {call!r})" if part in PARTS else action


PARTS = ("run", "log", "table", "curves", "heat", "nccl")
"""Parts of the run screen with their own actions, wherever the focus is."""

ACTIONS: tuple[Action, ...] = (
    Action("leave", "q", "leave", "leave; the run goes on", "app", "leave"),
    Action("suspend", "ctrl+z", "suspend_cockpit", "suspend the cockpit; `fg` brings it back, the run goes on", "app"),
    Action("help", "question_mark,f1", "help", "this help", "app", "help"),
    Action("palette", "ctrl+p", "command_palette", "command palette", "app"),
    Action("command", "colon", "run.command", "command line: restart env K=V, nccl INFO, stop, down", "run"),
    Action("launch", "ctrl+n", "launch", "new run", "app", "new run", mutates=True),
    Action("finding", "enter", "zoom", "the log line that it is based on, else the rank's log", "findings",
           "log"),
    Action("statement", "enter", "zoom", "the log line that it is read from", "statements", "line"),
    Action("event", "enter", "zoom", "the whole screen as it was at that time; esc goes back to live", "events",
           "that time"),
    Action("columns", "a", "columns", "choose the columns: which, in which order, sorted by what; kept", "tables",
           "columns"),
    Action("curves.log", "enter", "screen.pane('log')", "the log", "curves", "log"),
    Action("curves.choose", "a", "choose", "choose what is drawn: type to search the metrics", "curves", "metrics"),
    Action("curves.form", "b", "form", "one band, a line per node, or ranks × time", "curves", "form"),
    Action("curves.mark", "e", "mark(1)", "to the next restart, finding, checkpoint or NCCL_DEBUG change", "curves"),
    Action("curves.mark_back", "E", "mark(-1)", "to the one before", "curves"),
    Action("communicator", "c", "nccl.communicator(1)", "the next communicator", "statements", "next"),
    Action("communicator.back", "C", "nccl.communicator(-1)", "the communicator before", "statements"),
    Action("runs", "R", "runs", "list of runs; esc goes back to the run", "app"),
    Action("theme", "t", "theme", "next theme: dark, light, the terminal's own colours", "app"),
    Action("pane.overview", "1", "pane('overview')", "overview", "run"),
    Action("pane.ranks", "2", "pane('ranks')", "rank table", "run"),
    Action("pane.log", "3", "pane('log')", "log", "run"),
    Action("pane.curves", "4", "pane('curves')", "curves: metrics over time", "run"),
    Action("pane.nccl", "5", "pane('nccl')", "NCCL: nodes, communicators, transports, rings, init", "run"),
    Action("diagnose", "6,i", "pane('findings')", "findings, worst first, with their evidence and remedies", "run"),
    Action("pane.events", "7", "pane('events')", "attempts; events, commands, checkpoints, newest first", "run"),
    Action("stacks", "w", "run.stacks", "stacks of the marked ranks, or all; equal stacks are merged", "run"),
    Action("back", "escape", "back", "back: to live, to the opened line, filter off, all ranks, overview", "run"),
    Action("restart", "r", "run.restart", "restart the worker group; reconnect now; launch an ended run again", "run",
           "restart", mutates=True),
    Action("stop", "x", "run.stop", "stop the run", "run", "stop", mutates=True),
    Action("nccl", "d", "run.nccl", "NCCL_DEBUG: level, subsystems, for how long", "run", "NCCL", mutates=True),
    Action("profile", "P", "run.profile",
           "record steps of the marked ranks, or all, with torch.profiler, and sum them up", "run", mutates=True),
    Action("filter", "slash", "log.filter", "filter the log by a regular expression", "run", "filter"),
    Action("log.follow", "f", "log.follow", "follow the log's end; scrolling up stops it", "run", "follow"),
    Action("log.stream", "v", "log.stream", "stream: all, out, err, nccl; of several nodes launch and service", "run",
           "stream"),
    Action("log.next", "n", "log.hit(1)", "next hit", "run"),
    Action("log.previous", "N", "log.hit(-1)", "previous hit", "run"),
    Action("log.error", "e", "log.error(-1)", "the newest error or warning in the log, then the one above", "run",
           "error"),
    Action("log.error_below", "E", "log.error(1)", "the error or warning below", "run"),
    Action("log.times", "T", "log.times", "times of log lines: of day, since the start, since the line above, off",
           "run"),
    Action("log.wrap", "W", "log.wrap", "wrap long log lines, or cut them", "run"),
    Action("log.fold", "F", "log.fold", "equal log lines of many ranks as one, or each", "run"),
    Action("log.rule", "M", "log.rule", "draw a rule with the time below the newest log line", "run"),
    Action("log.copy", "y", "log.copy", "copy the line or the marked lines: clipboard and file", "run"),
    Action("log.pager", "o", "log.pager", "open the log in $PAGER", "run"),
    Action("sort", "s", "table.sort", "sort the ranks by the next column", "run", "sort"),
    Action("sort.reverse", "S", "table.reverse", "reverse the order", "run"),
    Action("metric", "m", "heat.metric", "heat map: util, mem, power, temp, step time", "run", "metric"),
    Action("window.longer", "minus", "curves.window(1)", "curves: a longer time", "run"),
    Action("window.shorter", "plus", "curves.window(-1)", "curves: a shorter time", "run"),
    Action("live", "equals_sign", "curves.window(0)", "back to live, and the window as at first", "run"),
    Action("time.back", "left_square_bracket", "curves.time(-1)",
           "time: one dot of the curves back, for the whole screen", "run"),
    Action("time.on", "right_square_bracket", "curves.time(1)", "time: one dot forward", "run"),
    Action("time.far_back", "left_curly_bracket", "curves.time(-10)", "time: ten dots back", "run"),
    Action("time.far_on", "right_curly_bracket", "curves.time(10)", "time: ten dots forward", "run"),
    Action("play", "space", "run.play", "play, and hold", "replay", "play"),
    Action("play.slower", "less_than_sign", "app.speed(-1)", "play slower", "run"),
    Action("play.faster", "greater_than_sign", "app.speed(1)", "play faster", "run"),
    Action("log_scale", "L", "curves.log_scale", "curves: logarithmic scale on and off", "run"),
    Action("pause", "p", "pause", "freeze the screen; the run goes on", "run"),
    Action("shell", "exclamation_mark", "shell", "shell on the rank's node", "run"),
    Action("mark", "space", "mark", "mark the rank or the line, and go down", "list"),
    Action("zoom", "enter", "zoom", "the rank's own log; in a list: open", "list"),
    Action("runs.filter", "slash", "screen.filter_runs", "filter the runs while typing: words, or state:failed", "runs",
           "filter"),
    Action("runs.sort", "s", "sort_runs", "sort by the next column; a click on a heading does it, too", "runs", "sort"),
    Action("runs.reverse", "S", "reverse_runs", "reverse the order", "runs"),
    Action("runs.rerun", "r", "rerun", "launch form, filled from this run", "runs", "rerun", mutates=True),
    Action("runs.remove", "X,delete", "remove", "remove the marked runs, or this one", "runs", "remove", mutates=True),
    Action("runs.note", "n", "note", "a note on the marked runs, or this one; empty removes it", "runs", "note",
           mutates=True),
    Action("runs.tags", "T", "tags", "tags of the marked runs, or this one: +good -bad", "runs", "tags", mutates=True),
    Action("runs.prune", "P", "prune", "mark the runs that ended over 30 days ago, except the newest 20", "runs"),
    Action("move.up", "up,k", "cursor(-1)", "up", "move"),
    Action("move.down", "down,j", "cursor(1)", "down", "move"),
    Action("move.left", "left,h", "sideways(-8)", "left", "move"),
    Action("move.right", "right,l", "sideways(8)", "right", "move"),
    Action("move.page_up", "pageup,ctrl+u", "page(-1)", "a page up", "move"),
    Action("move.page_down", "pagedown,ctrl+d", "page(1)", "a page down", "move"),
    Action("move.top", "home,g", "end(False)", "to the top", "move"),
    Action("move.bottom", "end,G", "end(True)", "to the bottom", "move"),
)  # fmt: skip

SCOPES = {
    "app": "everywhere",
    "run": "on a run",
    "replay": "in a replay",
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


def keymap_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the user's keys: `${XDG_CONFIG_HOME:-~/.config}/distui/keys.toml`."""
    return trusted_files.base("XDG_CONFIG_HOME", environ) / "distui" / "keys.toml"


def load_keymap(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the user's keys by action id, and a sentence for each problem in the file."""
    if not os.path.lexists(path):
        return {}, []
    from ..presets import load  # most users have no such file

    try:
        table, passed = load.read_own(path)
    except PresetError as error:
        why = str(error).removeprefix(str(path)).strip(" .:")
        return {}, [f"{path} is not TOML that can be read ({why}): the default keys are used"]
    if table is None:
        return {}, [f"{sentence} The default keys are used." for sentence in passed]
    ids = {action.id for action in ACTIONS}
    good: dict[str, str] = {}
    wrong: list[str] = []
    for name, key in _flatten(table).items():
        if name in ids and isinstance(key, str):
            good[name] = key
        else:
            wrong.append(_complaint(path, name, ids))
    return good, wrong + [f"{path}: {text}: give one of them another" for text in _clashes(good)]


def _clashes(keymap: Mapping[str, str]) -> Iterator[str]:
    """Yield a clause for each of the user's keys that has another meaning in the same scope."""
    done: set[str] = set()
    for action in (action for action in ACTIONS if action.id in keymap):
        done.add(action.id)
        mine = set(keymap[action.id].split(","))
        for other in ACTIONS:
            if other.id in done or other.action == action.action or not _meet(action.scope, other.scope):
                continue
            # Shared default keys are intended: the inner scope gets the key.
            both = set(action.key.split(",")) & set(other.key.split(","))
            for key in sorted((mine & set(keymap.get(other.id, other.key).split(","))) - both):
                yield f"{key_text(key)} of {action.id} is also the key of {other.id}"


def _meet(scope: str, other: str) -> bool:
    """Whether keys of both scopes work in one place."""
    both = {scope, other}
    return scope == other or bool(both & {"app", "list", "move"}) or ("run" in both and "runs" not in both)


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten a table: `[log] follow = "F"` and `"log.follow" = "F"` are equivalent."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _complaint(path: Path, name: str, ids: set[str]) -> str:
    if name in ids:
        return f'{path}: {name} needs a key as text, such as "F"'
    meant = did_you_mean(name, sorted(ids))
    return f"{path}: there is no action {name!r}" + (f"; {meant}" if meant else "")


def help_rows(readonly: bool, keymap: dict[str, str] | None = None) -> list[Row]:
    """Return every key by scope; those that `--readonly` disables are marked."""
    changed = keymap or {}
    rows: list[Row] = []
    for scope, heading in SCOPES.items():
        rows += [((f" {heading}", "head"),)]
        for action in ACTIONS:
            if action.scope != scope:
                continue
            gone = readonly and action.mutates
            keys = key_text(changed.get(action.id, action.key))
            note = "  (not in --readonly)" if gone else ""
            row: Row = (
                (f"  {fit(keys, 12)} ", "dim" if gone else "accent"),
                (action.text + note, "dim" if gone else "text"),
            )
            rows.append(row)
        rows.append(())
    return rows + _legend()


def _legend() -> list[Row]:
    return [
        ((" glyphs", "head"),),
        *(
            ((f"  {glyph}  ", style), (text, "text"))
            for glyph, style, text in (
                (glyphs.OK, "ok", "running, or ended well"),
                (glyphs.WARN, "warn", "a warning"),
                (glyphs.BAD, "bad", "failed, killed or lost"),
                (glyphs.STALE, "stale", "not started yet, or no data for 3 s"),
                (glyphs.MISSING, "stale", "no value, or an outdated one"),
            )
        ),
        (("  n/a", "stale"), ("  unknown; never shown as 0", "text")),
        (),
        ((" What changes a run asks first: Enter cancels, y confirms.", "dim"),),
        ((" Keys are changed in ~/.config/distui/keys.toml,", "dim"),),
        ((" by the ids in docs/cockpit.md.", "dim"),),
    ]
