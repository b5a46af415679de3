"""The action table, the user's keymap, and the `:` command line."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from each import for_each

from distui.runners.run.commands import Dump, Restart, SetNccl, Signal, Stop
from distui.tui.keymap_file import load_keymap
from distui.tui.keys import ACTIONS, MUTATING, PANES, SCOPES, key_text
from distui.tui.rows.command_line import parse
from distui.tui.rows.footer import footer_row
from distui.tui.rows.idle_keys import Situation, idle_keys
from distui.tui.rows.key_list import KeyEntry, best_first
from distui.tui.rows.typed_commands import CommandError


def test_ids_are_unique_and_every_scope_has_a_heading() -> None:
    ids = [action.id for action in ACTIONS]
    assert len(ids) == len(set(ids))
    assert {action.scope for action in ACTIONS} == set(SCOPES)
    assert {pane for action in ACTIONS for pane in action.panes} <= set(PANES)


def test_idle_keys_are_keys() -> None:
    nothing = Situation(False, True, False, False, False, False, 0, False)
    ended = Situation(True, False, False, False, False, False, 0, False)
    assert idle_keys(nothing) | idle_keys(ended) <= {action.id for action in ACTIONS}
    assert "restart" in idle_keys(nothing) - idle_keys(ended)


def test_names_are_short_and_begin_with_a_verb() -> None:
    assert [
        action.text for action in ACTIONS if len(action.text) > 32 or not action.text[0].isupper()
    ] == []
    assert [action.text for action in ACTIONS if not set(":;,").isdisjoint(action.text)] == []


def test_no_key_means_two_things_in_one_place() -> None:
    reach = {"app": {"app", "run", "list", "move"}, "run": {"run", "list", "move"}}
    for scope, others in reach.items():
        mine = [
            (key, action.id) for action in ACTIONS if action.scope == scope for key in action.key.split(",")
        ]
        theirs = {
            key: action.id for action in ACTIONS if action.scope in others for key in action.key.split(",")
        }
        assert [(key, name) for key, name in mine if theirs[key] != name] == []


def test_what_changes_a_run_is_marked() -> None:
    assert {"restart", "stop", "nccl", "profile", "launch", "rerun", "remove", "note", "tags"} == MUTATING


@for_each(
    ("typed", "first"),
    [
        ("res", "Restart worker group"),
        ("stacks", "Show stacks"),
        ("w", "Show stacks"),  # its key
        ("back", "Go back in time"),
        ("in time", "Go back in time"),
        ("past", "Go back in time"),
        ("ten minutes", "Go back in time by ten minutes"),
        ("10m", "Go back in time by ten minutes"),
        ("next err", "Go to next or first error"),
        ("fol", "Follow the log"),
        ("frz", "Freeze the screen"),
        ("zzz", ""),
    ],
)
def test_the_best_match_is_first(typed: str, first: str) -> None:
    entries = [KeyEntry(key_text(action.key), action.text, also=action.also) for action in ACTIONS]
    found = best_first(typed, entries)
    assert (entries[found[0]].text if found else "") == first


KEYS = [("help", "?", "help"), ("leave", "q", "quit"), ("sort", "s", "sort"), ("command", ":", "command")]


@for_each(
    ("width", "wanted"),
    [
        (60, " ? help  q quit  s sort  : command"),
        (34, " ? help  q quit  s sort  : command"),
        (33, " ? help  q quit  …  : command"),
        (20, " …  : command"),
        (8, " …"),
    ],
)
def test_the_footer_ends_with_the_command_line(width: int, wanted: str) -> None:
    row = footer_row(KEYS, width)
    text = "".join(text for text, _ in row.cells)
    assert text.rstrip() == wanted
    assert [text[span.first : span.after] for span in row.spans if span.action == "command"] in (
        [": command"],
        [],
    )


def test_a_keymap_may_be_flat_or_nested(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('stop = "K"\n"log.follow" = "ctrl+f"\n[log]\nstream = "ctrl+o"\n')
    assert load_keymap(path) == ({"stop": "K", "log.follow": "ctrl+f", "log.stream": "ctrl+o"}, [])


@for_each(
    ("text", "wanted"),
    [
        ('stopp = "X"\n', "did you mean stop?"),
        ("stop = 3\n", "needs a key as text"),
        ("stop = \n", "is not TOML"),
    ],
)
def test_a_bad_keymap_is_one_sentence_and_no_crash(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    keymap, problems = load_keymap(path)
    assert keymap == {}
    assert len(problems) == 1
    assert wanted in problems[0]
    assert str(path) in problems[0]


@for_each(
    ("text", "wanted"),
    [
        ('stop = "q"\n', ["q of stop is also the key of leave"]),
        ('stop = "Y,q"\nleave = "Y"\n', ["Y of leave is also the key of stop"]),
        ('"runs.sort" = "x"\n', []),  # x stops a run, and no run is open there
        ('stop = "K"\n"log.follow" = "F"\n', ["F of log.follow is also the key of log.fold"]),
        ('"curves.mark" = "n"\nhelp = "question_mark"\n', []),
    ],
)
def test_a_key_that_another_action_has_is_told(tmp_path: Path, text: str, wanted: list[str]) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    _, problems = load_keymap(path)
    assert problems == [f"{path}: {clause}: give one of them another" for clause in wanted]


def test_no_keymap_is_no_problem(tmp_path: Path) -> None:
    assert load_keymap(tmp_path / "none.toml") == ({}, [])


def ask(line: str, marked: frozenset[int] = frozenset()) -> object:
    numbers = count(1)
    asked = parse(line, lambda: f"c{next(numbers)}", marked)
    return asked.command if asked.command is not None else asked.action


@for_each(
    ("line", "wanted"),
    [
        ("restart", Restart(id="c1")),
        (
            "restart env LR=1 NAME='a b' unset OLD",
            Restart(id="c1", env={"LR": "1", "NAME": "a b"}, unset=("OLD",)),
        ),
        ("restart LR=", Restart(id="c1", env={"LR": ""})),
        ("stop", Stop(id="c1")),
        ("nccl info coll,net for 30", SetNccl(id="c1", level="INFO", subsys="COLL,NET", seconds=30.0)),
        ("nccl WARN rank 3 rank 4 restart", SetNccl(id="c1", level="WARN", ranks=(3, 4), restart=True)),
        ("signal sigusr1 2", Signal(id="c1", signal="SIGUSR1", ranks=(2,))),
        ("dump stacks rank 1", Dump(id="c1", what="stacks", ranks=(1,))),
        ("quit", "leave"),
        ("", ""),
    ],
)
def test_the_command_line_speaks_the_shells_verbs(line: str, wanted: object) -> None:
    assert ask(line) == wanted


def test_marked_ranks_are_meant_where_none_is_named() -> None:
    marked = frozenset({2, 1})
    assert ask("nccl INFO", marked) == SetNccl(id="c1", level="INFO", ranks=(1, 2))
    assert ask("dump memory", marked) == Dump(id="c1", what="memory", ranks=(1, 2))
    assert ask("nccl INFO rank 7", marked) == SetNccl(id="c1", level="INFO", ranks=(7,))
    assert ask("nccl INFO for 2m") == SetNccl(id="c1", level="INFO", seconds=120.0)


@for_each(
    ("line", "wanted"),
    [
        ("restrat", "did you mean restart?"),
        ("restart env LR", "'LR' is not K=V"),
        ("restart env RANK=4", "RANK is computed for each rank by the launcher"),
        ("restart unset DISTUI_HOOK", "DISTUI_HOOK is distui's own"),
        ("restart 'x", "cannot read"),
        ("stop now", "takes nothing"),
        ("nccl", "a level is missing"),
        ("nccl LOUD", "LOUD"),
        ("nccl INFO COL", "COLL"),
        ("nccl INFO for", "a number is missing"),
        ("nccl INFO for never", "no time above 0"),
        ("nccl INFO for nan", "no time above 0"),
        ("nccl INFO rank x", "not a rank"),
        ("nccl INFO COLL NET", "cannot read 'NET'"),
        ("signal", "needs a name"),
        ("dump", "needs what"),
        ("dump core", "needs what"),
    ],
)
def test_nonsense_is_answered_with_one_sentence(line: str, wanted: str) -> None:
    with pytest.raises(CommandError) as caught:
        ask(line)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)
