"""A place of its own for each measurement: directories, the commands to compare, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from . import machine

T = TypeVar("T")
BIN = Path(sys.executable).parent
RANKS = Path(__file__).with_name("ranks")
EXAMPLE = Path(__file__).parents[2] / "presets" / "examples" / "chargpt.py"
POLL_S = 0.002


class NotReached(Exception):
    """Something that a measurement waits for did not come; the text says what."""


def wait_for(what: str, look: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Look again and again until there is something. Raises NotReached."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NotReached(f"{what}: not after {seconds:g} s")
        time.sleep(POLL_S)
    return found


class Place:
    """State directory, socket directory and environment of one measurement."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamps = root / "stamps"
        self.stamps.mkdir()
        self.mark = f"BENCH_PLACE={root}"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("DISTUI_")}
        self.env |= {
            "BENCH_PLACE": str(root),
            "BENCH_STAMPS": str(self.stamps),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "DISTUI_SOCKET_DIR": str(root / "s"),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def start(self, argv: list[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to a file of this place."""
        with (self.root / "output").open("ab") as output:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**self.env, **env}, cwd=self.root, start_new_session=True,
            )  # fmt: skip

    def distui(self, *words: str, seconds: float = 120.0) -> str:
        """Run the command line and return its stdout. Raises NotReached with its stderr."""
        done = subprocess.run(
            [BIN / "distui", *words], env=self.env, cwd=self.root, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NotReached(f"distui {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def status(self, run: str) -> dict[str, Any]:
        """`distui status --json`."""
        found: dict[str, Any] = json.loads(self.distui("status", run, "--json"))
        return found

    def launch(self, run: str, words: list[str], options: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """`distui launch ddp … --detach`, not waited for."""
        return self.start([*_distui("launch", "ddp"), "--name", run, "--detach", *options, "--", *words])

    def same_env(self, words: list[str], options: tuple[str, ...] = ()) -> dict[str, str]:
        """What distui would put into the ranks' environment, less what is about distui itself."""
        plan = json.loads(self.distui("plan", "ddp", "--json", *options, "--", *words))
        return {name: value for name, value in plan["env"].items() if not name.startswith("DISTUI_")}

    def run_dir(self, run: str) -> Path:
        """The directory of a run of this place."""
        found = sorted((self.root / "state" / "distui" / "runs").glob(f"*-{run}-*"))
        if not found:
            raise NotReached(f"{run} has no run directory")
        return found[-1]

    def agent(self, run: str) -> int:
        """Pid of a run's agent, waited for."""

        def look() -> int | None:
            try:
                return int(json.loads((self.run_dir(run) / "agent.json").read_text())["pid"])
            except (OSError, NotReached):
                return None

        return wait_for(f"the agent of {run}", look, 20)

    def new_stamps(self, seen: set[str], count: int, seconds: float = 120.0) -> float:
        """Wait for `count` ranks to have made their first step; the monotonic time of the last one."""

        def look() -> float | None:
            new = {path.name for path in self.stamps.glob("first-*")} - seen
            if len(new) < count:
                return None
            seen.update(new)
            return max(int((self.stamps / name).read_text()) for name in new) / 1e9

        return wait_for(f"the first step of {count} ranks", look, seconds)

    def close(self) -> None:
        """End everything that was started here, by its pid, and remove the files."""
        for number, seconds in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            deadline = time.monotonic() + seconds
            for pid in machine.marked(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, number)
            while any(machine.marked(self.mark)) and time.monotonic() < deadline:
                time.sleep(0.05)
        shutil.rmtree(self.root, ignore_errors=True)


def _distui(*words: str) -> list[str]:
    return [str(BIN / "distui"), *words]


def torchrun(nproc: int, words: list[str], *options: str) -> list[str]:
    """The bare command that distui is compared with."""
    return [str(BIN / "torchrun"), "--nproc-per-node", str(nproc), *options, *words]


def stamped(*words: str) -> list[str]:
    """The example under the stamping wrapper: the same on both sides."""
    return [str(RANKS / "stamped.py"), str(EXAMPLE), *words]


@contextlib.contextmanager
def a_place(env: Mapping[str, str] | None = None) -> Iterator[Place]:
    """A place that is left clean."""
    place = Place(Path(tempfile.mkdtemp(prefix="dbench-")))
    place.env.update(env or {})
    try:
        yield place
    finally:
        place.close()
