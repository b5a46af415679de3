"""Real jobs that distui did not start."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import patience
import pytest

MARKER = "WATCH_TEST"

RANK = """
import os, signal, sys
ready, forks = sys.argv[1], int(sys.argv[2])
print("rank", os.environ["RANK"], "begins", flush=True)
for _ in range(forks):
    if os.fork() == 0:
        signal.pause()
with open(ready, "w") as file:
    file.write(os.environ["RANK"] + " ")
signal.pause()
"""


class Jobs:
    """Starts jobs, waits for their ranks, and leaves nothing behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ready = folder / "ready"
        self.script = folder / "train.py"
        self.script.write_text(RANK)
        os.mkfifo(self.ready)
        # Open for reading and writing: neither end waits for the other, and there is no end of file.
        self._fifo = os.open(self.ready, os.O_RDWR | os.O_NONBLOCK)
        self._marker = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        argv: list[str],
        env: Mapping[str, str] | None = None,
        stdout: str | None = None,
        user: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own; stderr goes to a pipe, stdout to a file of that name."""
        whole = {"PATH": os.environ["PATH"], "HOME": str(self.folder), MARKER: self._marker, **(env or {})}
        with open(self.folder / (stdout or "stdout"), "wb") as out:
            child = subprocess.Popen(
                argv,
                env=whole,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
                user=user,
            )
        self._started.append(child)
        return child

    def rank(self, forks: int = 0, **env: str) -> subprocess.Popen[bytes]:
        """Start one rank of a plain Python job."""
        argv = [sys.executable, str(self.script), str(self.ready), str(forks)]
        own = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": self._marker,
            "MASTER_PORT": "1",
        }
        return self.start(argv, own | env)

    def await_ranks(self, count: int) -> None:
        """Wait until so many more ranks have said that they are up."""
        said, until = b"", time.monotonic() + patience.HANG_S
        while len(said.split()) < count:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._fifo], [], [], left)[0]:
                raise TimeoutError(f"only {len(said.split())} of {count} ranks came up")
            said += os.read(self._fifo, 100)

    def stop(self) -> None:
        for child in self._started:
            child.kill()
            child.wait(10)
            if child.stderr is not None:
                child.stderr.close()
        for pid in self._left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self._fifo)

    def _left(self) -> list[int]:
        """Processes that carry this test's marker."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                data = Path(f"/proc/{entry}/environ").read_bytes() if entry.isdigit() else b""
            except OSError:
                continue
            if f"{MARKER}={self._marker}".encode() in data:
                found.append(int(entry))
        return found


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """A place to start jobs from; every process is ended afterwards."""
    jobs = Jobs(tmp_path)
    yield jobs
    jobs.stop()


def kill(pid: int) -> None:
    """SIGKILL a process, also one that is no child, and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([descriptor], [], [], patience.HANG_S)[0], f"process {pid} does not end"
    finally:
        os.close(descriptor)
