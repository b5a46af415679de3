"""The cockpit as a process in a real terminal: how it starts, and how it ends."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
import scripted as play
from each import for_each
from patience import HANG_S

from distui.runners.run.errors import RunError
from distui.tui import lending
from distui.tui.terminal import draws_ascii_alone, take_answers
from distui.tui.verbs import cockpit

STAGE = Path(__file__).with_name("stage.py")
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A child in a pty of its own, as its session's controlling terminal."""

    def __init__(self, run_dir: Path, width: int = 120, height: int = 40) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ.update(
                TERM="xterm-256color",
                COLORTERM="truecolor",
                TEXTUAL_ANIMATIONS="none",
                DISTUI_ORIENTATION="off",
            )
            os.execv(sys.executable, [sys.executable, str(STAGE), str(run_dir)])
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.output = b""
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)

    def read_until(self, wanted: bytes) -> None:
        """Read until `wanted` is on the screen."""
        self.read_while(lambda text: wanted.decode() not in text)

    def read_while(self, shown: Callable[[str], bool]) -> None:
        """Read as long as the screen is so."""
        end = time.monotonic() + HANG_S
        while shown("\n".join(self.screen.display)):
            assert time.monotonic() < end, self.output[-2000:]
            self.read(0.05)

    def read(self, seconds: float) -> int:
        """Read what comes within this time; returns how many bytes that were."""
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                try:
                    data = os.read(self.master, 1 << 16)
                except OSError:
                    return count
                self.output += data
                self._stream.feed(data)
                count += len(data)
        return count

    def wait(self) -> int:
        """Its exit status as the shell tells it."""
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            self.read(0.05)
        raise AssertionError(f"still running: {self.output[-500:]!r}")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.master >= 0:
            os.close(self.master)


@contextmanager
def on_stage(tmp_path: Path) -> Iterator[Terminal]:
    play.write_logs(tmp_path)
    stage = Terminal(tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.mark.real
@for_each("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal_and_is_the_exit_status(
    tmp_path: Path, number: signal.Signals
) -> None:
    with on_stage(tmp_path) as stage:
        stage.read_until(b"RUNNING")
        os.kill(stage.pid, number)
        assert stage.wait() == 128 + number
        assert stage.output.rfind(LEAVE_SCREEN) > stage.output.rfind(ENTER_SCREEN)


@pytest.mark.real
def test_keys_work_after_an_escape_and_leaving_restores_the_terminal(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        stage.read_until(b"RUNNING")
        os.write(stage.master, b"/")
        stage.read_until(b"words, or rank:0-7")
        os.write(stage.master, b"\x1b")
        stage.read_while(lambda text: "words, or rank:0-7" in text)
        os.write(stage.master, b"q")
        assert stage.wait() == 0
        after = stage.output.rpartition(LEAVE_SCREEN)[2]
        assert b"minigpt goes on" in after


def test_answers_of_the_terminal_are_not_left_for_the_shell() -> None:
    read, write = os.pipe()
    answer = b"\x1b[7;1R"
    threading.Timer(0.05, os.write, (write, answer)).start()
    os.write(write, b"j" + answer)
    assert take_answers(read, 2, HANG_S) == 2
    assert take_answers(read, 1, 0.0) == 0
    os.close(write)
    assert take_answers(read, 1, HANG_S) == 0, "the terminal has gone"
    os.close(read)


def test_the_locale_decides_between_ascii_and_utf_8() -> None:
    def plain(**env: str) -> bool:
        return draws_ascii_alone(env)

    assert plain(LC_ALL="C")
    assert plain(LANG="C", LC_CTYPE="C.UTF-8"), "Python's own, where the locale is C"
    assert plain(LANG="POSIX")
    assert plain(LANG="de_DE.ISO-8859-1")
    assert not plain(LANG="C.UTF-8")
    assert not plain(LC_ALL="", LANG="en_US.utf8")
    assert not plain(LANG="C", LC_ALL="en_US.UTF-8")
    assert not plain(), "a container, whose terminal is UTF-8 nevertheless"


@pytest.mark.real
def test_a_terminal_that_goes_away_ends_the_cockpit(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        stage.read_until(b"RUNNING")
        os.close(stage.master)
        stage.master = -1
        end = time.monotonic() + HANG_S
        while not os.waitpid(stage.pid, os.WNOHANG)[0]:
            assert time.monotonic() < end, "it spins without a terminal"
            time.sleep(0.02)
        stage.pid = 0


def test_without_a_terminal_it_refuses_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        RunError, match=r"^the cockpit needs a terminal, and there is no terminal on .*text$"
    ):
        cockpit.show("r-1a2b3c4d", False, False)
    assert capsys.readouterr() == ("", "")


def test_a_shell_is_local_here_and_ssh_elsewhere() -> None:
    assert lending.shell_argv("", {"SHELL": "/bin/zsh"}) == ("/bin/zsh",)
    assert lending.shell_argv("far.example", {}) == ("ssh", "-t", "far.example")
    assert lending.pager_argv(Path("/x"), {}) == ["less", "+G", "/x"]
    assert lending.pager_argv(Path("/x"), {"PAGER": "most -w"}) == ["most", "-w", "/x"]


def test_copied_lines_are_for_this_user_only(tmp_path: Path) -> None:
    path = lending.keep_copy("secret", {"XDG_STATE_HOME": str(tmp_path)})
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text() == "secret\n"
