"""`start RUN NODE`: the job of a node where nobody else starts one, detached from whoever asked for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from ...presets.plan import part_id, part_run8
from .. import file_io
from ..errors import RunError
from ..wire.client import socket_dir
from . import job_document

START_SECONDS = 60.0
MOST_INPUT = 16 << 20


def start(run: str, node: int) -> int:
    """Start it with the document on stdin and wait until its agent answers; 0. Raises RunError."""
    given = job_document.started(sys.stdin.buffer.read(MOST_INPUT), run)
    job_document.write(given.job)
    log = job_document.path_of(run).with_name(f"{part_id(run, node)}.log")
    with open(log, "ab", opener=file_io.opener) as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __package__, "job", run, str(node)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env={**os.environ, **given.env},
        )  # fmt: skip
    return _await(process, str(socket_dir() / f"{part_run8(given.job.run8, node)}.sock"), log)


def _await(process: subprocess.Popen[bytes], path: str, log: Path) -> int:
    """0 once the agent answers. Raises RunError with what the job said when it ended instead."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if _answers(path):
            return 0
        if process.poll() is not None:
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if last.startswith("distui: "):
                raise RunError(last.removeprefix("distui: "))
            raise RunError(f"the job ended at once: see {log}")
        time.sleep(0.05)
    raise RunError(f"no agent came up within {START_SECONDS:.0f} s: see {log}")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def main(argv: list[str]) -> int:
    """Exit code: 0 started, 2 with a sentence when not."""
    try:
        return start(argv[0], int(argv[1]))
    except (RunError, OSError) as error:
        sys.stderr.write(f"distui: {error}\n")
        return 2
