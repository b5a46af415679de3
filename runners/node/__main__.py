"""`python -m distui.runners.node job RUN [NODE] | start RUN NODE | probe`: the program that `node.sh` executes."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

from ... import __version__
from ...presets.node_plans import part_id, part_run8
from ..run import clock, file_io
from ..run.errors import RunError
from ..run.machine import gpus_here
from ..run.wire.client import stem
from . import boot, job, job_document

START_SECONDS = 60.0
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

    Raises RunError.
    """
    given = job_document.read_start(sys.stdin.buffer.read(MOST_INPUT), run)
    job_document.write_document(given.job)
    log = job_document.path_of(run).with_name(f"{part_id(run, node)}.log")
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
        _await(process, part_run8(given.job.run8, node), log)
    except OSError as error:
        raise RunError(str(error)) from None
    return 0


def _await(process: subprocess.Popen[bytes], run8: str, log: Path) -> None:
    """Wait until the agent answers. Raises RunError with the last line of a job that ended before."""
    deadline = clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probing:
            if probing.connect_ex(f"{stem(run8)}.sock") == 0:
                return
        if process.poll() is not None:
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if last.startswith("distui: "):
                raise RunError(last.removeprefix("distui: "))
            raise RunError(f"the job ended at once: see {log}")
        time.sleep(0.05)
    raise RunError(f"no agent came up within {START_SECONDS:.0f} s: see {log}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
