"""The standard streams and the terminal: opened, written to, lost.

Every verb can rely on stdin, stdout and stderr: they are there, and take every text. The loss of their reader is no
traceback.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from ..presets.plurals import plural
from ..presets.sanitize import LONGEST, as_message, clean_text

POLLS_TERMINALS = sys.platform == "linux"
"""poll(2) of macOS takes no terminals."""
GONE = 141
"""Exit status when the reader of stdout went away, as a shell gives it for SIGPIPE."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PROGRAM = "distui"
_COMMAND = re.compile(rf"`{PROGRAM}(?=[ `])")


def complete() -> None:
    """Open what the caller had closed: a file or socket of ours would get its number, and be written to."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the locale's encoding lacks is printed as \xd7
            stream.reconfigure(errors="backslashreplace")


def leave_in_order() -> None:
    """Have SIGTERM and SIGHUP end a verb as Ctrl-C does, so that what it made for itself goes; nohup stays nohup."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def program() -> str:
    """Return the word that starts this distui in the user's shell: `distui` if PATH leads to it, else its path."""
    running = sys.argv[0]
    if os.path.basename(running) != PROGRAM:  # `python -m distui.tui`
        running = os.path.join(os.path.dirname(sys.executable), PROGRAM)
    if not os.path.exists(running):
        return PROGRAM
    on_path = shutil.which(PROGRAM)
    if on_path is not None and os.path.realpath(on_path) == os.path.realpath(running):
        return PROGRAM
    try:
        path, relative = os.path.abspath(running), os.path.relpath(running)
    except OSError:  # the working directory was removed
        return shlex.quote(running)
    if os.sep not in relative:
        relative = os.path.join(os.curdir, relative)
    return shlex.quote(min(relative, path, key=len))


def working_directory() -> str:
    """Return the working directory; "" if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def typeable(text: str, stream: TextIO) -> str:
    """Return `text` with its commands, "`distui …`", as the user's shell finds them; unchanged for files and pipes."""
    if not stream.isatty():
        return text
    return _COMMAND.sub(lambda _: f"`{program()}", text)


def complain(text: str, details: Iterable[str] = ()) -> None:
    """Write a message to stderr, and its details below it; nothing that it quotes acts on the terminal.

    Where stderr cannot be written to, the exit status has to do.
    """
    lines = [
        f"distui: {as_message(clean_text(typeable(text, sys.stderr), LONGEST))}",
        *(f"  {clean_text(typeable(line, sys.stderr), LONGEST)}" for line in details),
    ]
    try:
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except OSError:
        _silence()


def answer(as_json: bool, document: object, lines: Iterable[str]) -> None:
    """Print what a verb has found: as JSON, or as lines of which nothing acts on the terminal."""
    text = json.dumps(document) if as_json else "\n".join(map(clean_text, lines))
    sys.stdout.write(f"{text}\n")


def confirmed(question: str, otherwise: str) -> bool:
    """Whether the user, being asked, says yes; else `otherwise` is said."""
    sys.stderr.write(f"{question}Really? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    complain(otherwise)
    return False


def guarded(verb: Callable[[], int]) -> int:
    """The exit status of `verb`, with all that it printed written, or GONE where nobody reads it."""
    try:
        try:
            return verb()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _silence()
        return GONE
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _silence()
        complain(f"cannot write to standard output: {error.strerror}")
        return 1


def _silence() -> None:
    """What stays in buffers goes nowhere, also when the interpreter writes it at its end."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(devnull, stream.fileno())
    os.close(devnull)


def interactive() -> bool:
    """Whether all three streams are a terminal."""
    return not _redirected()


def _redirected() -> list[str]:
    streams = (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr))
    return [name for name, stream in streams if stream is None or not stream.isatty()]


def complaint() -> str | None:
    """Why the cockpit cannot be shown here, one sentence; None when it can.

    All three must be the terminal: the screen is drawn on stderr, and keys come from stdin.
    """
    if missing := _redirected():
        return (
            f"the cockpit needs a terminal, and there is no terminal on {' and '.join(missing)}: "
            "`distui status` and `distui logs` print text"
        )
    if os.environ.get("TERM", "") in ("", "dumb"):
        term = os.environ.get("TERM") or "not set"
        return f"the cockpit needs a terminal that can draw, and TERM is {term}: set TERM, or use `distui status`"
    return None


def draws_ascii_alone(env: Mapping[str, str]) -> bool:
    """Whether the locale names a character set that is not UTF-8. One that is not set at all says nothing.

    The `env` of this process has a LC_CTYPE that Python sets by itself where the locale is C (PEP 538).
    """
    named = [env.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if not named[0] and named[1] in ("C.UTF-8", "C.utf8", "UTF-8") and named[2] in ("C", "POSIX"):
        named[1] = ""
    locale = next(filter(None, named), "")
    return locale in ("C", "POSIX") or (
        "." in locale and not re.search(r"\.utf-?8\b", locale, re.IGNORECASE)
    )


class SecondScreen:
    """The terminal's second screen, as `watch` and `less` use it."""

    def __init__(self, stream: TextIO, rest: str) -> None:
        """`rest`: where the lines are for which there is no room."""
        self._stream, self._rest, self._entered = stream, rest, False

    def show(self, text: str) -> None:
        """Fill it with as much of a text as it has room for."""
        columns, rows = shutil.get_terminal_size()
        lines = text.splitlines()
        if len(lines) > rows:
            lines = [
                *lines[: rows - 1],
                f"… {plural(len(lines) - rows + 1, 'line')} more: {self._rest}",
            ]
        enter = "" if self._entered else "\x1b[?1049h\x1b[?25l"
        self._entered = True
        body = "".join(f"\x1b[{row};1H{line[:columns]}\x1b[K" for row, line in enumerate(lines, 1))
        self._stream.write(f"{enter}{body}\x1b[J")
        self._stream.flush()

    def leave(self) -> None:
        """Go back to the first screen, which is as it was."""
        if self._entered:
            self._stream.write("\x1b[?25h\x1b[?1049l")
            self._stream.flush()


_POSITION = re.compile(rb"\x1b\[\d+;\d+R")


def take_answers(descriptor: int, number: int, seconds: float) -> int:
    """Read what a terminal sends until it has answered so often where its cursor is; how many answers came.

    What is not read by the end of a program is typed into the shell behind it.
    """
    deadline, data = time.monotonic() + seconds, b""
    with contextlib.suppress(OSError):
        while len(_POSITION.findall(data)) < number and (left := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0] or not (read := os.read(descriptor, 4096)):
                break
            data += read
    return len(_POSITION.findall(data))


class Waiting:
    """Waits until descriptors can be read: by poll(2), or select(2) where poll takes no terminals."""

    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors
        self._poll = select.poll() if POLLS_TERMINALS else None
        if self._poll is not None:
            for descriptor in descriptors:
                self._poll.register(descriptor, select.POLLIN)

    def __call__(self, patience_ms: float | None) -> dict[int, int]:
        """Descriptors with events of poll(2), after that many milliseconds at most; None: as long as it takes."""
        if self._poll is not None:
            return dict(self._poll.poll(patience_ms))
        seconds = None if patience_ms is None else patience_ms / 1000
        return dict.fromkeys(select.select(self._descriptors, [], [], seconds)[0], select.POLLIN)


def hung_up(descriptor: int) -> bool:
    """Whether the other end of the terminal has gone."""
    if not POLLS_TERMINALS:
        try:
            termios.tcgetattr(descriptor)
        except termios.error:
            return True
        return False
    try:
        return unread(descriptor)
    except OSError:
        return True


def unread(descriptor: int, seconds: float = 0.0) -> bool:
    """Whether the other end of a pipe, a socket or a terminal has gone, or goes within that time. Raises OSError."""
    poll = select.poll()
    poll.register(descriptor, 0)  # which leaves what poll(2) always says
    gone = select.POLLHUP | select.POLLERR | select.POLLNVAL
    return any(event & gone for _, event in poll.poll(seconds * 1000))


def piped_stdout() -> int | None:
    """The descriptor of stdout where that is a pipe or a socket, whose reader may go."""
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except OSError:  # a file in memory
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def pause(seconds: float) -> None:
    """Wait before more is printed. Raises BrokenPipeError as soon as the reader of stdout has gone."""
    number = piped_stdout()
    if number is None:
        time.sleep(seconds)
    elif unread(number, seconds):
        raise BrokenPipeError


def end_if_hung_up(status: int) -> None:
    """End this process at once where its terminal has gone.

    There is no screen to restore, and an orderly end would write to it: Textual's writer dies on that and the
    end waits for the writer. The viewer holds nothing that could be lost.
    """
    if sys.__stdin__ is not None and hung_up(sys.__stdin__.fileno()):
        os._exit(status)


def has_job_control() -> bool:
    """Whether the parent is a shell that continues a stopped job: one of this session, in a group of its own."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:
        return False
