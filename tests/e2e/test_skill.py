"""SKILL.md has the form of a skill, and its commands and exit codes are those of the command line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from distui.tui.cli import parser, split_rest

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "tui/mcp/SKILL.md").read_text(encoding="utf-8")


def test_the_page_has_the_form_of_a_skill() -> None:
    match = re.match(r"---\nname: (\S+)\ndescription: (.+)\n---\n", SKILL)
    assert match is not None
    assert re.fullmatch(r"[a-z0-9-]{1,64}", match[1])
    assert len(match[2]) <= 1024
    assert len(SKILL.splitlines()) < 120, "it is read whole by a model: short"


def test_its_exit_codes_are_those_of_the_command_line() -> None:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+)", table, re.MULTILINE)}
    mine = {int(code) for code in re.findall(r"\b(\d+) [`\w]", SKILL.partition("## Exit codes")[2])}
    assert mine <= listed
    assert mine >= listed - {130}


def test_its_commands_exist_with_their_options() -> None:
    """Those of its code blocks, and those between backquotes."""
    blocks = re.findall(r"```sh\n(.*?)```", SKILL, re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`(distui [^`\n]+)`", re.sub(r"```.*?```", "", SKILL, flags=re.DOTALL))
    listed = [line for line in [*lines, *spans] if line and line != "distui VERB --help"]
    assert len(listed) > 25
    for line in listed:
        program, *words = shlex.split(line)
        assert program == "distui", line
        own, rest = split_rest(words)
        options = parser().parse_args(own)
        assert rest is None or (options.declaration and options.declaration.has_command), line
