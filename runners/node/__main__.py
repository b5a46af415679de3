"""`python -m distui.runners.node job RUN [NODE] | start RUN NODE | probe`: the program that `node.sh` executes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ... import __version__
from ...presets.node_plans import part_id, part_run8
from ..run import clock, file_io, run_directories
from ..run.errors import RunError
from ..run.machine import gpus_here
from ..run.wire.client import stem
from . import agentless, boot, job, job_document
from .node_part import runner_lives

START_SECONDS = 60.0
END_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for a job without an agent."""
MOST_INPUT = 16 << 20


def main(argv: list[str]) -> int:
    """Return the exit code of the verb; 2 with a sentence for wrong arguments, or if nothing was started."""
    try:
        if argv == ["probe"]:
            sys.stdout.write(probe() + "\n")
            return 0
        if argv[:1] == ["job"] and len(argv) in (2, 3):
            return job.job(argv[1], int(argv[2]) if len(argv) == 3 else None)
        if argv[:1] == ["start"] and len(argv) == 3:
            return start(argv[1], int(argv[2]))
    except RunError as error:
        sys.stderr.write(f"distui: {error}\n")
        return 2
    sys.stderr.write(boot.USAGE)
    return 2


def probe() -> str:
    """Return one line of JSON: Python, cores, GPUs, home, host name, machine, and the version of distui."""
    return json.dumps(
        {
            "python": sys.executable,
            "cores": len(os.sched_getaffinity(0)),
            "gpus": gpus_here(),
            "home": str(Path.home()),
            "hostname": platform.node(),
            "machine": platform.machine(),
            "distui": __version__,
        }
    )


def start(run: str, node: int) -> int:
    """Start a node's job without a scheduler, detached, from the document on stdin; return 0 once its agent answers.

    A job whose agent does not answer is ended with all its processes. Raises RunError.
    """
    given = job_document.read_start(sys.stdin.buffer.read(MOST_INPUT), run)
    job_document.write_document(given.job)
    part = part_id(run, node)
    log, had_ranks = job_document.path_of(run).with_name(f"{part}.log"), _has_ranks(part)
    try:
        with open(log, "ab", opener=file_io.opener) as file:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __package__, "job", run, str(node)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, **given.env},
            )
        if not _answers(process, part_run8(given.job.run8, node), log):
            _end(process, part, node, keep_ranks=had_ranks)
            raise RunError(
                f"no agent came up within {START_SECONDS:.0f} s, and the job was ended: see {log}"
            )
    except OSError as error:
        raise RunError(str(error)) from None
    return 0


def _answers(process: subprocess.Popen[bytes], run8: str, log: Path) -> bool:
    """Wait until the agent answers; return False after START_SECONDS.

    Raises RunError with the last line of a job that ended before.
    """
    deadline = clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probing:
            if probing.connect_ex(f"{stem(run8)}.sock") == 0:
                return True
        if process.poll() is not None:
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if last.startswith("distui: "):
                raise RunError(last.removeprefix("distui: "))
            raise RunError(f"the job ended at once: see {log}")
        time.sleep(0.05)
    return False


def _has_ranks(part: str) -> bool:
    entry = run_directories.at(run_directories.runs_dir() / part)
    return entry is not None and runner_lives(entry)


def _end(process: subprocess.Popen[bytes], part: str, node: int, keep_ranks: bool) -> None:
    """End the process group of a job, and what it has started in other sessions: the agent and its ranks.

    `keep_ranks`: the ranks are older than this job, and live on.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    path = run_directories.runs_dir() / part
    if not keep_ranks and path.is_dir():
        asyncio.run(agentless.forced_stop(path, node=node, grace_s=END_SECONDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
