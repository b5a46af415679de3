"""Commands that verbs print for the user's shell are found there."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from distui.tui.terminal import complain, program, typeable


class Tty(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that runs: in an environment of its own below the working directory, and not on PATH."""
    path = executable(tmp_path / "work" / ".venv" / "bin" / "distui")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "argv", [str(path), "attach"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return path


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_its_path_where_path_does_not_lead_to_it(installed: Path) -> None:
    assert program() == ".venv/bin/distui"


def test_its_path_where_another_distui_is_on_path(installed: Path, tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "distui")
    assert program() == ".venv/bin/distui"


def test_its_name_where_path_leads_to_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "distui").symlink_to(installed)
    assert program() == "distui"


def test_the_whole_path_from_far_away(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = tmp_path.joinpath(*"abcdefghijklmnopqrstuvwxyz")
    far.mkdir(parents=True)
    monkeypatch.chdir(far)
    assert program() == str(installed)


def test_a_name_alone_is_no_path_for_a_shell(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(installed.parent)
    assert program() == "./distui"


def test_a_path_with_a_space_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = executable(tmp_path / "my runs" / "distui")
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert program() == "'my runs/distui'"


def test_python_m_leads_to_the_command_beside_python(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tui/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(installed.with_name("python")))
    assert program() == ".venv/bin/distui"
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert program() == "distui"


def test_only_commands_and_only_on_a_terminal(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "`distui attach a` opens it, `distui` lists; `pip install distui`, `ssh HOST distui ls`"
    assert typeable(text, io.StringIO()) == text
    assert typeable(text, Tty()) == (
        "`.venv/bin/distui attach a` opens it, `.venv/bin/distui` lists; `pip install distui`, `ssh HOST distui ls`"
    )
    stderr = Tty()
    monkeypatch.setattr(sys, "stderr", stderr)
    complain("run a is live: `distui stop a` ends it")
    assert "`.venv/bin/distui stop a` ends it" in stderr.getvalue()
