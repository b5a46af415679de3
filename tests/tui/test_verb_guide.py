"""Every verb has three examples that its parser takes and the exit codes that it gives; other programs' habits work."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
from each import for_each

from distui.tui import verb_table
from distui.tui.cli import parsed, parser, split_rest
from distui.tui.command_words import ALIKE, WrongUsage, option_refusal, understood, verb_refusal
from distui.tui.verb_guide import MEANINGS, exit_codes, guide_text

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
VERBS = parser().verbs


def meant(line: str) -> argparse.Namespace:
    words, rest = split_rest(shlex.split(line.partition(" >")[0]))
    own, _ = understood(words, rest, lambda word: word.endswith(".py"))
    return parsed(own)


@for_each("verb", sorted(VERBS))
def test_a_verb_has_three_examples_that_are_understood(verb: str) -> None:
    examples = verb_table.VERBS[verb].examples
    assert len(examples) == 3
    for line, about in examples.items():
        assert line.split()[0] == verb
        assert meant(line).declaration is verb_table.VERBS[verb]
        assert about
        assert not about.endswith(".")
    text = VERBS[verb].format_help()
    assert text.endswith(guide_text(verb))
    assert all(f"\n  distui {line}" in text for line in examples)


@for_each("verb", sorted(VERBS))
def test_a_help_has_the_exit_codes_of_the_table(verb: str) -> None:
    table = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    documented = {
        int(code) for code in re.findall(r"\b\d+\b", " ".join(re.findall(r"^\| ([\d, ]+) \|", table, re.M)))
    }
    assert documented == MEANINGS.keys()
    assert {0, 2} <= exit_codes(verb).keys() <= documented
    assert all(
        f"\n  {code:<4} {text}\n" in VERBS[verb].format_help() for code, text in exit_codes(verb).items()
    )


@for_each(
    ("line", "name", "value"),
    [
        ("stop night -y", "yes", True), ("restart night -y", "yes", True), ("signal night USR1 -y", "yes", True),
        ("rm night -y", "yes", True), ("prune --failed -y", "yes", True), ("down night -y c", "yes", "c"),
        ("logs night -n 50", "tail", 50), ("logs night -f", "follow", True), ("logs night -t", "timestamps", True),
        ("logs night -r 3", "rank", [3]), ("dump night stacks -r 3", "rank", [3]), ("status -w", "watch", True),
        ("nccl night INFO -r 0-2 -r 5", "rank", [0, 1, 2, 5]), ("metrics night -r 2", "rank", [2]),
        ("events -f", "follow", True), ("export night x.tar.gz -f", "force", True),
        ("prune --keep 3 -n", "dry_run", True),
        ("launch ddp -n -- train.py", "dry_run", True), ("launch ddp -m train", "module", True),
        ("status --watch night", "run", "night"), ("logs --time_stamps night", "", None),
        ("restart night --save_first --env_from_shell A", "from_shell", ["A"]),
        ("prune --older_than=1d", "older_than", 86400),
        ("wait night --json", "json", True), ("demo --json --nproc_per_node 4", "nproc_per_node", "4"),
    ],
)  # fmt: skip
def test_short_options_and_underscores(line: str, name: str, value: object) -> None:
    if not name:
        with pytest.raises(WrongUsage, match="did you mean --timestamps"):
            meant(line)
    else:
        assert getattr(meant(line), name) == value


def test_words_of_other_programs_lead_to_a_verb() -> None:
    assert ALIKE.keys() <= VERBS.keys()
    assert not VERBS.keys() & {word for words in ALIKE.values() for word in words}
    assert "did you mean `distui ls`?" in verb_refusal("ps", VERBS)
    assert "did you mean `distui stop`?" in verb_refusal("KILL", VERBS)
    assert "did you mean `distui status`?" in verb_refusal("Status", VERBS)


def test_an_option_of_an_example_is_no_suggestion() -> None:
    """--lr is the script's, in an example of launch."""
    assert "did you mean" not in option_refusal(
        ["--lrr"], "distui launch", VERBS["launch"].format_options()
    )
