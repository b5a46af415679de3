"""Man pages: of distui and of each verb, with every option, three examples and the exit codes; groff takes them."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from each import for_each

from distui.tui.cli import main, parser
from distui.tui.manual import pages
from distui.tui.verb_guide import MEANINGS, exit_codes
from distui.tui.verb_table import VERBS as DECLARED

TOP = parser()
VERBS = TOP.verbs
PAGES = pages(TOP.verbs, TOP, "1.2.3")


def shown(page: str) -> str:
    """As a reader sees it, without line breaks."""
    text = re.sub(r"^\\.(?:BR?|SH|SS|TP|nh|TH|PP) ?", "", page, flags=re.MULTILINE)
    for roff, plain in (
        ("\\fB", ""),
        ("\\fI", ""),
        ("\\fR", ""),
        ("\\-", "-"),
        ("\\(dq", '"'),
        ("\\(ga", "`"),
    ):
        text = text.replace(roff, plain)
    return " ".join(text.replace("\\&", "").replace("\\e", "\\").split())


def test_there_is_a_page_of_each_verb() -> None:
    assert PAGES.keys() == {"distui.1", *(f"distui-{name}.1" for name in VERBS)}
    for name in VERBS:
        assert f"distui-{name} (1)" in shown(PAGES["distui.1"])
    assert all(f"{code} {text}" in shown(PAGES["distui.1"]) for code, text in MEANINGS.items())


@for_each("name", sorted(VERBS))
def test_a_page_has_all_that_help_has(name: str) -> None:
    text = shown(PAGES[f"distui-{name}.1"])
    for action in VERBS[name]._actions:
        if action.help is not argparse.SUPPRESS:
            assert all(flag in text for flag in action.option_strings), action
            assert " ".join((action.help or "").replace("%%", "%").split()) in text
    assert all(f"distui {line} {about}" in text for line, about in DECLARED[name].examples.items())
    assert all(f"{code} {meaning}" in text for code, meaning in exit_codes(name).items())


def test_nothing_in_a_text_is_a_request() -> None:
    top = argparse.ArgumentParser(prog="distui", description=".so /etc/passwd")
    verb = argparse.ArgumentParser(prog="distui ls", description="'x \\n(.g")
    verb.add_argument("--odd", help=".de x")
    made = pages({**VERBS, "ls": verb}, top, "1")
    assert "\n\\&.so /etc/passwd\n" in made["distui.1"]
    assert "\n\\&.de x\n" in made["distui-ls.1"]
    assert "\\n(" not in made["distui-ls.1"].replace("\\en(", "")


@pytest.mark.real
def test_groff_takes_every_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    assert main(["man", "--dir", str(tmp_path / "man1")]) == 0
    assert f"{len(PAGES)} pages written in {tmp_path / 'man1'}" in capsys.readouterr().out
    files = sorted(map(str, (tmp_path / "man1").glob("*.1")))
    assert len(files) == len(PAGES)
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-Kutf8", *files], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "DISTUI-LAUNCH(1)" in done.stdout


def test_a_page_in_a_pipe_is_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man", "stop"]) == 0
    assert capsys.readouterr().out.startswith('.TH "DISTUI\\-STOP" "1"')
    assert main(["man", "stpo"]) == 2
    assert "did you mean `distui stop`?" in capsys.readouterr().err
