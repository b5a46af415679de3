"""One table of launch options: the command line, the form and docs/cli.md say the same.

With DISTUI_WRITE=1 the table in docs/cli.md is written anew.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest
from each import for_each

from distui.presets.launch_option import ALL, LaunchOption
from distui.presets.request import OPTIONS, REQUEST_OPTIONS, options
from distui.runners.api import arguments
from distui.runners.launch.launch_form import LaunchForm
from distui.runners.launch.option_values import PARSERS
from distui.runners.launch.words import READERS
from distui.tui.cli import parser
from distui.tui.mcp.answers import Refused
from distui.tui.mcp.launch_words import option_words
from distui.tui.rows.form_fields import OPTION
from distui.tui.rows.form_fields import fields as form_fields

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN, END = "<!-- launch options: written by the tests -->\n", "<!-- end -->"


def row(option: LaunchOption) -> str:
    takes = f" {option.takes}" * bool(option.takes)
    spelled = ", ".join(
        f"`{flag}{takes * (flag == option.flags[-1] or len(flag) == 2)}`" for flag in option.flags
    )
    text = f"{option.summary}. {option.more}".rstrip() if option.more else option.summary
    return " | ".join(["", *(cell.replace("|", "\\|") for cell in (spelled, text)), ""]).strip()


def table() -> str:
    """The options, together with those that the same verbs take."""
    lines = []
    for verbs in dict.fromkeys(option.verbs for option in OPTIONS):
        lines += [f"Options of {', '.join(verbs)}:", "", "| option | means |", "|---|---|"]
        lines += [row(option) for option in OPTIONS if option.verbs == verbs]
        lines += [""]
    return "\n".join(lines)


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}{table()}{END}{tail}"
    if os.environ.get("DISTUI_WRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, (
        "write it anew: DISTUI_WRITE=1 pytest tests/tui/test_launch_options.py"
    )


@for_each("verb", ["launch", "plan", "lint", "exec", "candidates", "doctor"])
def test_a_verb_takes_its_options_and_no_other(verb: str) -> None:
    actions = parser(verb).verbs[verb]._option_string_actions
    for option in OPTIONS:
        for flag in option.flags:
            if option in options(verb):
                assert actions[flag].help == option.summary
            elif verb in ALL:
                assert flag not in actions, f"{verb} takes {flag}, and the table says that it does not"


def test_every_field_of_the_form_that_is_an_option_says_what_the_option_says() -> None:
    shown = {field.name: field for field in form_fields(None)}
    for name, option in REQUEST_OPTIONS.items():
        row = shown.get(option.form or OPTION + name)
        if option.label or not (option.form or option.alone):
            assert row is not None
            assert row.help.startswith(option.plain_sentences)
            assert "](" not in row.help
            assert row.label == (option.label or option.flags[-1])


def test_every_front_end_has_every_option() -> None:
    """Command line, MCP, Python and the form; the page is compared above, a rerun in test_rerun_plans.py."""
    rows = {row.name for row in form_fields(None)}
    of_form = {field.name for field in fields(LaunchForm)}
    actions = parser("launch").verbs["launch"]._option_string_actions
    of_type = {name for name, kind in arguments.TYPES.items() if kind in arguments.OF_TYPE}
    for name, option in REQUEST_OPTIONS.items():
        flag = option.flags[0]
        assert actions[flag].dest == option.name
        written = [f"{flag}=x"] if option.takes else [flag]
        assert option_words("launch", written, control=True) == written
        assert name in arguments.ARGUMENTS.keys() | of_type
        assert option.form in of_form if option.form else option.alone != (OPTION + name in rows)


def test_words_for_reading_a_value_exist_and_flags_are_unique() -> None:
    assert {option.parse for option in OPTIONS} <= set(PARSERS)
    assert {option.read for option in OPTIONS} <= set(READERS)
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(flags) == len(set(flags))


def test_a_model_cannot_have_plan_start_anything() -> None:
    with pytest.raises(Refused, match="plan has no option '--try'"):
        option_words("plan", ["--try", "3"], control=True)
