"""`python -m tests.flakes`: run one tier many times, also on a busy machine, and print a table for testing.md.

python -m tests.flakes --tier test --runs 8                # a quiet machine
python -m tests.flakes --tier test --runs 6 --busy 4       # four busy loops beside it
python -m tests.flakes --tier test --runs 1 --stop         # processes of the run stop at random for 0.3 to 3 s
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
STOP_S = (0.3, 3.0)
"""Shortest and longest time for which a process is stopped."""
PAUSE_S = (0.2, 2.0)
"""Shortest and longest time between two stops."""
MARKER = "DISTUI_FLAKES"
"""In the environment of each process of a run: the process id of this program."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a tier ended."""

    seconds: float
    exit_code: int
    output: str

    @property
    def closing_line(self) -> str:
        """That of pytest."""
        closing = [
            line for line in self.output.splitlines() if re.search(r"\d+ (passed|failed|error)", line)
        ]
        return closing[-1] if closing else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if any run failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.flakes", description=__doc__)
    parser.add_argument("--tier", default="test", help="a target of the Makefile: test, test-real")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the tests")
    parser.add_argument("--stop", action="store_true", help="stop random processes of the run")
    options = parser.parse_args(argv)
    outcomes = []
    for number in range(1, options.runs + 1):
        with _busy_loops(options.busy):
            outcome = _run(options.tier, options.stop)
        outcomes.append(outcome)
        print(
            f"{number}: {outcome.seconds:.0f} s, exit code {outcome.exit_code}: {outcome.closing_line}",
            flush=True,
        )
        if outcome.exit_code:
            print(outcome.output, flush=True)
    print(_row(options, outcomes))
    return int(any(outcome.exit_code for outcome in outcomes))


def _run(tier: str, stop: bool) -> Outcome:
    began = time.monotonic()
    process = subprocess.Popen(
        ["make", tier],
        cwd=ROOT,
        env={**os.environ, MARKER: str(os.getpid())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ended = threading.Event()
    stopper = threading.Thread(target=_stop_at_random, args=(ended,))
    if stop:
        stopper.start()
    output, _ = process.communicate()
    ended.set()
    if stop:
        stopper.join()
    return Outcome(time.monotonic() - began, process.returncode, output)


@contextlib.contextmanager
def _busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _stop_at_random(ended: threading.Event) -> None:
    """Stop one process of the run after the other until the run has ended."""
    chance = random.Random()
    while not ended.wait(chance.uniform(*PAUSE_S)):
        pids = _pids_of_the_run()
        if not pids:
            continue
        pid = chance.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            ended.wait(chance.uniform(*STOP_S))
            os.kill(pid, signal.SIGCONT)


def _pids_of_the_run() -> list[int]:
    """Processes that carry the marker, agents and ranks included, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARKER) == str(os.getpid()):
                found.append(process.pid)
    return found


def _row(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> str:
    """A row of the table in docs/development/testing.md."""
    seconds = [outcome.seconds for outcome in outcomes]
    beside = f"{options.busy} busy loops" if options.busy else "nothing"
    if options.stop:
        beside += ", stops at random"
    failed = sum(outcome.exit_code != 0 for outcome in outcomes)
    median, longest = statistics.median(seconds), max(seconds)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    times = f"{median:.0f} s | {longest:.0f} s"
    return f"| {today} | `make {options.tier}` | {beside} | {len(outcomes)} | {failed} | {times} |"


if __name__ == "__main__":
    sys.exit(main())
