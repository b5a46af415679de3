"""A launch without a cockpit rings the terminal it was typed in, wherever its output goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from each import for_each

from distui.tui import due_alerts

from .runs import World

OSC = b"\x1b]9;distui: night: it failed, and nothing restarts it. "


@pytest.fixture
def terminal(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the terminal gets; the settings have it rung by a run that fails."""
    folder = world.config / "distui"
    folder.mkdir(mode=0o700)
    (folder / "settings.toml").write_text('[notify]\nsend = ["terminal:gave-up"]\n')
    for name in ("TMUX", "STY", "VTE_VERSION"):
        world.env.pop(name, None)
    world.env["TERM_PROGRAM"] = "WezTerm"
    path = tmp_path / "terminal"
    path.touch()
    monkeypatch.setattr(due_alerts, "TERMINAL", str(path))
    return path


@pytest.mark.real
@for_each(("option", "rings"), [("--json", 1), ("--notify=off", 0)])
def test_a_run_that_fails_rings_unless_it_is_not_to(
    world: World, terminal: Path, option: str, rings: int
) -> None:
    terminal.write_bytes(b"")
    done = world.distui("exec", "--name", "night", option, "--", "false")
    assert done.code == 1
    assert "\x1b" not in done.out + done.err
    assert terminal.read_bytes().count(OSC) == rings


def test_a_test_rings_whoever_sits_there(world: World, terminal: Path) -> None:
    assert world.distui("notify", "test", "terminal").fine().out.startswith("terminal: sent in ")
    assert terminal.read_bytes().startswith(b"\x1b]9;distui: a test. Sent by ")
    terminal.unlink()
    done = world.distui("notify", "test", "terminal")
    assert (done.code, done.out) == (1, "terminal: not sent: there is no terminal here\n")
