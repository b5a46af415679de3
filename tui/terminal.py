"""The standard streams and the terminal: opening, writing, and their loss.

Every verb can rely on stdin, stdout and stderr: they are open, and accept every text. The loss of their reader causes no
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

from ..presets.sanitize import LONGEST, as_message, clean_text

POLLS_TERMINALS = sys.platform == "linux"
"""poll(2) of macOS does not support terminals."""
GONE = 141
"""Exit status if the reader of stdout has closed it, as a shell reports it for SIGPIPE."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
PROGRAM = "distui"
_COMMAND = re.compile(rf"`{PROGRAM}(?=[ `])")


def complete() -> None:
    """Open standard streams that the caller has closed.

    Otherwise a file or socket of distui would get their number, and receive their output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # this is the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters outside the locale's encoding become \xd7
            stream.reconfigure(errors="backslashreplace")


def leave_in_order() -> None:
    """Make SIGTERM and SIGHUP end a verb as Ctrl-C does, so that it removes its temporary files; nohup is respected."""
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
    """Return `text` with "`distui …`" as the user's shell finds the program; unchanged for files and pipes."""
    if not stream.isatty():
        return text
    return _COMMAND.sub(lambda _: f"`{program()}", text)


def complain(text: str, details: Iterable[str] = ()) -> None:
    """Write a message and its details to stderr; control characters in quoted text are removed.

    If stderr is not writable, only the exit status reports the failure.
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
    """Print a verb's result as JSON, or as lines without control characters. `document` may consist of structs."""
    if as_json:
        import msgspec  # `--help` does without it

        text = json.dumps(msgspec.to_builtins(document))
    else:
        text = "\n".join(clean_text(line, LONGEST) for line in lines)
    sys.stdout.write(f"{text}\n")


def confirmed(question: str, otherwise: str) -> bool:
    """Ask the user; print `otherwise` and return False unless the answer is yes."""
    sys.stderr.write(f"{question}Really? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    complain(otherwise)
    return False


def guarded(verb: Callable[[], int]) -> int:
    """Return the exit status of `verb` after flushing stdout, or GONE if stdout has no reader."""
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
    """Discard buffered output, so that the interpreter's exit cannot fail on it."""
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
    """Return why the cockpit cannot be shown here, in one sentence; None if it can.

    All three streams must be the terminal: stderr shows the screen, and stdin receives the keys.
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
    """Whether the locale names a character set other than UTF-8. An unset locale does not count.

    Python itself sets LC_CTYPE in the `env` of this process if the locale is C (PEP 538).
    """
    named = [env.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG")]
    if not named[0] and named[1] in ("C.UTF-8", "C.utf8", "UTF-8") and named[2] in ("C", "POSIX"):
        named[1] = ""
    locale = next(filter(None, named), "")
    return locale in ("C", "POSIX") or (
        "." in locale and not re.search(r"\.utf-?8\b", locale, re.IGNORECASE)
    )


_POSITION = re.compile(rb"\x1b\[\d+;\d+R")


def take_answers(descriptor: int, number: int, seconds: float) -> int:
    """Read input until the terminal has sent `number` cursor positions; return how many arrived.

    Input that a program does not read before it ends goes to the shell.
    """
    deadline, data = time.monotonic() + seconds, b""
    with contextlib.suppress(OSError):
        while len(_POSITION.findall(data)) < number and (left := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left)[0] or not (read := os.read(descriptor, 4096)):
                break
            data += read
    return len(_POSITION.findall(data))


def hung_up(descriptor: int) -> bool:
    """Whether the other end of the terminal is closed."""
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


def unread(descriptor: int) -> bool:
    """Whether the other end of a pipe, a socket or a terminal is closed. Raises OSError."""
    poll = select.poll()
    poll.register(descriptor, 0)  # poll(2) always reports errors and hang-ups
    gone = select.POLLHUP | select.POLLERR | select.POLLNVAL
    return any(event & gone for _, event in poll.poll(0))


def piped_stdout() -> int | None:
    """Return the descriptor of stdout if it is a pipe or a socket, whose reader may close it."""
    try:
        number = sys.stdout.fileno()
        mode = os.fstat(number).st_mode
    except OSError:  # a file in memory
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def end_if_hung_up(status: int) -> None:
    """End this process immediately if its terminal is closed.

    There is no screen to restore. An orderly exit would write to it: Textual's writer fails on that, and the exit waits
    for the writer. The viewer holds no data that could be lost.
    """
    if sys.__stdin__ is not None and hung_up(sys.__stdin__.fileno()):
        os._exit(status)


def has_job_control() -> bool:
    """Whether the parent is a shell that resumes a stopped job: a process of this session in another process group."""
    try:
        parent = os.getppid()
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:
        return False
