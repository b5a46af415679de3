"""A user of their own for one test: own directories and sockets, `distui` in this process, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest
from patience import HANG_S

from distui.runners.run import file_io
from distui.tui.cli import main

DISTUI = str(Path(sys.executable).with_name("distui"))
EXAMPLES = Path(__file__).parents[2] / "presets" / "examples"


class Text(io.StringIO):
    """A standard stream in memory, which may say that it is a terminal."""

    def __init__(self, text: str = "", terminal: bool = False) -> None:
        super().__init__(text)
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def isatty(self) -> bool:
        return self._terminal


class Done:
    """What one verb said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self) -> Any:
        """stdout as one JSON value."""
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> str:
        """Assert that it was refused with `code` in one sentence that holds `words`; the sentence."""
        assert self.code == code, (self.code, self.err, self.out)
        assert "Traceback" not in self.err + self.out, self.err
        said = self.err.strip().splitlines()
        assert len(said) == 1, self.err
        assert said[0].startswith("distui: "), said[0]
        for word in words:
            assert word in said[0], (word, said[0])
        return said[0]

    def fine(self) -> Done:
        """Assert that it did what it should; itself."""
        assert self.code == 0, (self.code, self.err, self.out)
        assert "Traceback" not in self.err, self.err
        return self


class World:
    """One user's directories, and every process that was started under them."""

    def __init__(self, program: str = DISTUI) -> None:
        self.program = program
        """The `distui` that this user types."""
        self.root = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))  # short: socket paths hold 108 bytes
        self.state, self.config = self.root / "state", self.root / "config"
        self.sockets, self.work = self.root / "s", self.root / "work"
        for path in (self.state, self.config, self.work):
            path.mkdir()
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("DISTUI_", "XDG_", "TORCHELASTIC_"))
        }
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "NCCL_DEBUG", "PYTHONPATH"):
            kept.pop(name, None)
        self.env = {
            **kept,
            "HOME": str(self.root),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CONFIG_HOME": str(self.config),
            "DISTUI_SOCKET_DIR": str(self.sockets),
            "OMP_NUM_THREADS": "1",
        }

    @property
    def runs(self) -> Path:
        """Where this user's run directories are."""
        return Path(self.env.get("XDG_STATE_HOME", self.root / ".local" / "state")) / "distui" / "runs"

    def start(
        self, *words: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start `distui WORDS…`; the caller ends it."""
        return subprocess.Popen(
            [self.program, *words], env={**self.env, **(env or {})},
            **{"cwd": self.work, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
               "stderr": subprocess.PIPE, **options},
        )  # fmt: skip

    def binary(self, *words: str, env: Mapping[str, str] | None = None, **options: Any) -> Done:
        """Run `distui WORDS…` as a process to its end; `options` are those of Popen."""
        process = self.start(*words, env=env, **options)
        try:
            out, err = process.communicate(timeout=HANG_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Done(
            process.returncode,
            (out or b"").decode("utf-8", "replace"),
            (err or b"").decode("utf-8", "replace"),
        )

    def distui(self, *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None,
               stdin: str = "", terminal: bool = False, out: TextIO | None = None, **options: Any) -> Done:  # fmt: skip
        """Run `distui WORDS…` to its end in this process, with an environment, folder and streams of its own.

        `terminal`: all three streams say that they are one. `out`: stdout, if that is not in memory. Where another
        program is meant, and in other threads, it is a process; so it is with `options`, which are those of Popen.
        """
        if self.program != DISTUI or options or threading.current_thread() is not threading.main_thread():
            return self.binary(*words, env=env, cwd=cwd or self.work, **options)
        out, err = out or Text(terminal=terminal), Text(terminal=terminal)
        typed = self.shell(words, env or {}, cwd or self.work, Text(stdin, terminal))
        with typed, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main([*words])
            except SystemExit as end:  # argparse's own way out
                code = int(end.code or 0)
        return Done(code, out.getvalue() if isinstance(out, Text) else "", err.getvalue())

    @contextlib.contextmanager
    def shell(
        self, words: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: io.StringIO
    ) -> Iterator[None]:
        """Make this process one that this user's shell has started with `words`; undone afterwards."""
        kept, folder, loop = dict(os.environ), os.getcwd(), asyncio._get_running_loop()
        mask = file_io.umask()
        streams = sys.argv, sys.stdin
        sys.argv, sys.stdin = [self.program, *words], stdin
        os.environ.clear()
        os.environ.update({**self.env, **env})
        os.chdir(cwd)
        asyncio._set_running_loop(None)  # a verb has a loop of its own
        try:
            yield
        finally:
            asyncio._set_running_loop(loop)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(kept)
            sys.argv, sys.stdin = streams
            os.umask(mask)

    def python(self, code: str, *words: str) -> Done:
        """`python -c CODE WORDS…` as this user, with distui importable."""
        done = subprocess.run(
            [sys.executable, "-c", code, *words], env=self.env, cwd=self.work, capture_output=True, text=True,
            timeout=HANG_S, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)

    def script(self, name: str, text: str) -> str:
        """A file in the working directory; its name there."""
        (self.work / name).write_text(text)
        return name

    def run(self, *words: str, env: Mapping[str, str] | None = None) -> Run:
        """Start a run: `words` is a launch or exec command line without --detach and --json."""
        at = words.index("--") if "--" in words else len(words)
        done = self.distui(*words[:at], "--detach", "--json", *words[at:], env=env).fine()
        about = done.json()
        return Run(self, about["run"], about["name"], Path(about["path"]))

    def newest_run(self) -> Run:
        """The run that was started last."""
        about = self.distui("ls", "--json").fine().json()[0]
        return Run(self, about["run"], about["name"], Path(about["path"]))

    def ddp(self, *options: str, ranks: int = 2, steps: int = 0) -> Run:
        """Start the plain DDP example; by default it trains until it is stopped."""
        args = ("--steps", str(steps), "--step-delay", "0.02")
        script = str(EXAMPLES / "plain_ddp.py")
        return self.run("launch", "ddp", "--nproc-per-node", str(ranks), *options, "--", script, *args)

    def execute(self, text: str, *options: str, name: str = "job") -> Run:
        """Start `distui exec` of a Python script with this text."""
        script = self.script(f"{name}.py", text)
        return self.run("exec", "--name", name, *options, "--", sys.executable, "-u", script)

    def processes(self) -> dict[int, str]:
        """Every living process of this user, by its environment: pid → command line."""
        return having(f"HOME={self.root}")

    def close(self) -> None:
        """Stop every run, end by pid whatever is left, and fail if anything was."""
        if self.processes():
            self.stop_all()
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)
        assert not left, f"left behind: {left}"

    def stop_all(self) -> None:
        """`distui stop` for every run there is; one that has ended answers that it has."""
        for path in sorted(self.runs.glob("*/journal.jsonl")):
            self.distui("stop", path.parent.name, "--yes", "--grace", "2")

    def left(self) -> dict[int, str]:
        """Wait until no process of this user is left; those that stay."""
        until(lambda: not self.processes())
        return self.processes()


class Run:
    """A run that was started detached."""

    def __init__(self, world: World, run: str, name: str, path: Path) -> None:
        self.world, self.id, self.name, self.path = world, run, name, path

    def distui(self, verb: str, *words: str, **options: Any) -> Done:
        """`distui VERB RUN WORDS…`."""
        return self.world.distui(verb, self.id, *words, **options)

    def wait(self, until: str = "done", timeout: float = HANG_S) -> int:
        """`distui wait`: its exit code. Fails if the state does not come, with the run's status."""
        done = self.world.distui(
            "wait", self.id, "--until", until, "--timeout", f"{max(timeout, HANG_S):g}"
        )
        assert "after" not in done.err, (done.err, self.describe())
        return done.code

    def healthy(self) -> Run:
        """Wait until every rank made a step (torchrun) or runs (a command); itself."""
        assert self.wait("healthy") == 0, self.describe()
        return self

    def prints(self) -> bool:
        """Wait for the first line of a log; False where none came."""
        return until(lambda: self.distui("logs").out)

    def status(self) -> dict[str, Any]:
        """`status --json`."""
        found: dict[str, Any] = self.world.distui("status", self.id, "--json").fine().json()
        return found

    def events(self) -> list[dict[str, Any]]:
        """`events --json`: every event of the journal."""
        return [
            json.loads(line)
            for line in self.world.distui("events", self.id, "--json").fine().out.splitlines()
        ]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind, without their envelopes."""
        return [told["event"] for told in self.events() if told["event"]["type"] == kind]

    def pids(self) -> list[int]:
        """Pids of the ranks, by rank."""
        return [rank["pid"] for rank in self.status()["ranks"]]

    def agent_pid(self) -> int:
        """Pid of the agent that serves it, or served it last."""
        return int(json.loads((self.path / "agent.json").read_text())["pid"])

    def runner_pid(self) -> int:
        """Pid of its runner."""
        return int(json.loads((self.path / "runner.json").read_text())["pid"])

    def marked(self) -> dict[int, str]:
        """Living processes that carry this run's marker."""
        return having(f"DISTUI_RUN_ID={self.id}")

    def stop(self, *options: str) -> Done:
        """`distui stop --yes`."""
        return self.distui("stop", "--yes", *options)

    def file(self, name: str) -> bytes:
        """A file of the run directory; b"" when it is not there."""
        path = self.path / name
        return path.read_bytes() if path.exists() else b""

    def eventually(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first status of which `wanted` is true. Fails if none comes."""
        found: dict[str, Any] = {}

        def look() -> object:
            nonlocal found
            found = self.status()
            return wanted(found)

        assert until(look, every=0.1), self.describe()
        return found

    def describe(self) -> str:
        """How it stands, for the message of a failed assertion."""
        said = self.world.distui("status", self.id).out
        logs = {
            name: self.file(name)[-2000:].decode("utf-8", "replace") for name in ("agent.log", "runner.log")
        }
        return f"{said}\n{logs}"


def until(wanted: Callable[[], object], every: float = 0.05) -> bool:
    """Ask again every so many seconds until it is true; False if it is not within HANG_S.

    For what other processes do and no event reports.
    """
    end = time.monotonic() + HANG_S
    while not wanted():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def having(entry: str) -> dict[int, str]:
    """Living processes that were started with this `NAME=VALUE`: pid → command line. Zombies are none."""
    needle, found = entry.encode(), {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and alive(int(name)):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                found[int(name)] = b" ".join(words).decode("utf-8", "replace").strip()
    found.pop(os.getpid(), None)
    return found


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def gone(pid: int) -> bool:
    """Wait for any process to end; False if it does not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], HANG_S)[0])
    finally:
        os.close(descriptor)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal one process, and where that ends it wait for its end."""
    os.kill(pid, number)
    if number == signal.SIGKILL:
        assert gone(pid), pid


def removed(path: Path, into: Path) -> None:
    """Remove a folder at once, in whatever processes write below it: it is moved into another folder first."""
    aside = Path(tempfile.mkdtemp(dir=into)) / path.name
    path.rename(aside)
    shutil.rmtree(aside)


def contents(folder: Path) -> bytes:
    """What is in every file below a folder; what is gone when its turn comes is left out."""
    held = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            held += [path.read_bytes()] if path.is_file() else []
    return b"\n".join(held)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process now, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def world() -> Iterator[World]:
    """A fresh user; closed, and checked for what is left, after the test."""
    world = World()
    try:
        yield world
    finally:
        world.close()
