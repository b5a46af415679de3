"""The bytes that a real terminal gets as a run fails: without focus, with it, inside tmux, and if nobody wants them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .runs import DISTUI, World
from .screen import Screen

CRASHES = """
import os, time
print("step 1 loss 2.0", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise ValueError("broken")
"""
BLUR, FOCUS = "\x1b[O", "\x1b[I"
OSC = b"\x1b]9;distui: night: it failed, and nothing restarts it. "
TERMINAL = {"TERM_PROGRAM": "WezTerm"}


def configure(world: World, rule: str) -> None:
    """Let a terminal be rung where `rule` holds, in a shell that does not say which terminal it is."""
    folder = world.config / "distui"
    folder.mkdir(mode=0o700)
    (folder / "settings.toml").write_text(f'[notify]\nsend = ["terminal:{rule}"]\n')
    for name in ("TMUX", "STY", "VTE_VERSION", "TERM_PROGRAM"):
        world.env.pop(name, None)


@pytest.fixture
def night(world: World) -> World:
    """A run that waits for its failure."""
    configure(world, "gave-up")
    assert world.execute(CRASHES, name="night").wait("running") == 0
    return world


@contextlib.contextmanager
def shown(world: World, *argv: str, **env: str) -> Iterator[Screen]:
    screen = Screen(argv or (DISTUI, "attach", "night"), {**world.env, **env}, world.work)
    try:
        screen.until("step 1 loss 2.0")
        yield screen
    finally:
        screen.close()


def turned(screen: Screen, *focus: str) -> None:
    """Tell the cockpit that it gets or loses the focus, and wait until it knows: keys have their turn after that."""
    screen.press(*focus, ":")
    screen.until("Tab lists")
    screen.press("escape")
    screen.until(lambda text: "Tab lists" not in text)


def fail(world: World, screen: Screen, rung: bytes = b"") -> bytes:
    """Let the run fail: what the terminal got until that was on the screen (and it was `rung`), and some time after."""
    before = len(screen.written)
    (world.work / "go").touch()
    screen.until("failed")
    screen.until(lambda _: rung in screen.written[before:])
    for _ in range(15):
        screen.read(0.1)
    return bytes(screen.written[before:])


@pytest.mark.real
def test_a_terminal_without_the_focus_is_rung(night: World) -> None:
    with shown(night, **TERMINAL) as screen:
        assert b"\x1b[?1004h" in screen.written
        turned(screen, BLUR)
        data = fail(night, screen, OSC)
    assert data.count(OSC) == 1
    assert data.count(b"\x1b\\\a") == 1


@pytest.mark.long
def test_a_terminal_with_the_focus_is_left_alone(night: World) -> None:
    with shown(night, **TERMINAL) as screen:
        turned(screen, BLUR, FOCUS)
        data = fail(night, screen)
    assert b"\a" not in data
    assert b"\x1b]9;" not in data


@pytest.mark.long
def test_a_terminal_is_left_alone_where_the_run_is_not_to_ring(world: World, night: World) -> None:
    world.distui("stop", "night", "--yes").fine()
    assert world.execute(CRASHES, "--notify", "off", name="quiet").wait("running") == 0
    with shown(world, DISTUI, "attach", "quiet", **TERMINAL) as screen:
        turned(screen, BLUR)
        data = fail(world, screen)
    assert b"\a" not in data


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize("focused", [False, True])
def test_inside_tmux_the_terminal_around_it_is_rung(night: World, focused: bool) -> None:
    conf = night.root / "tmux.conf"
    conf.write_text(
        "set -g allow-passthrough on\nset -g focus-events on\nset -g status off\nset -sg escape-time 0\n"
    )
    server = str(night.root / "tmux.sock")
    words = ("tmux", "-S", server, "-f", str(conf), "new-session", DISTUI, "attach", "night")
    try:
        with shown(night, *words, LC_ALL="C.UTF-8") as screen:
            turned(screen, FOCUS if focused else BLUR)
            data = fail(night, screen, b"" if focused else OSC)
    finally:
        subprocess.run(
            ["tmux", "-S", server, "kill-server"], check=False, capture_output=True, env=night.env
        )
    assert data.count(OSC) == (not focused)
    assert (b"\a" in data) is not focused
    assert b"Ptmux" not in data


@pytest.mark.parametrize(
    ("words", "rings"),
    [
        pytest.param("> out 2> err < /dev/null", 1, marks=pytest.mark.long),
        pytest.param("--json > out 2> err", 1, marks=pytest.mark.long),
        pytest.param("--notify off > out 2> err", 0, marks=pytest.mark.long),
        pytest.param("--detach > out 2> err", 0, marks=pytest.mark.long),
    ],
)
def test_a_launch_without_a_cockpit_rings_the_terminal_it_was_typed_in(
    world: World, words: str, rings: int
) -> None:
    """Wherever its output goes; also of a run that has failed before anybody could follow it."""
    configure(world, "gave-up")
    options, mark, rest = words.partition(">")
    line = f"{DISTUI} exec --name night {options} -- false {mark}{rest}; stty tostop; {DISTUI} wait night > waited"
    screen = Screen(("sh", "-c", line), {**world.env, **TERMINAL}, world.work)
    try:
        screen.ended()
    finally:
        screen.close()
    assert screen.written.count(OSC) == rings
    assert screen.written.count(b"\a") == rings
    kept = (world.work / "out").read_bytes() + (world.work / "err").read_bytes()
    assert b"\x1b" not in kept


@pytest.mark.long
def test_a_launch_in_the_background_rings_and_is_not_stopped_by_it(world: World) -> None:
    configure(world, "succeeded")
    words = (
        f"stty tostop; {DISTUI} exec --name night -- true > out 2> err < /dev/null & wait $!; echo code $?"
    )
    screen = Screen(("bash", "-mc", words), {**world.env, **TERMINAL}, world.work)
    try:
        screen.until("code 0")
    finally:
        screen.close()
    assert screen.written.count(b"\x1b]9;distui: night: it has succeeded") == 1


@pytest.mark.long
def test_a_test_rings_whoever_sits_there(world: World) -> None:
    screen = Screen((DISTUI, "notify", "test", "terminal"), {**world.env, **TERMINAL}, Path(os.getcwd()))
    try:
        assert screen.ended() == 0
    finally:
        screen.close()
    assert screen.written.count(b"\x1b]9;distui: a test. Sent by ") == 1
