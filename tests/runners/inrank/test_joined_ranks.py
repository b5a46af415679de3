"""Ranks below a launcher of another kind whose end nobody saw: the command answers for them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from each import for_each

from distui.runners.inrank import joined_ranks
from distui.runners.inrank.joined_ranks import JoinedRanks
from distui.runners.inrank.worker_group import WorkerGroup


def joined_in(run_dir: Path, reported: list[dict[str, Any]]) -> JoinedRanks:
    """Ranks of the first attempt of a run, and where the changes go that are reported."""
    group = SimpleNamespace(
        began=threading.Event(), failed=threading.Event(), restart=threading.Event(), ending=False,
        stopping=False, attempt=1, node=0, run_dir=str(run_dir),
        report=lambda kind, **fields: reported.append(fields),
        directory=lambda number: str(run_dir / "node-0" / f"attempt-{number:03}"),
    )  # fmt: skip
    joined = JoinedRanks(cast(WorkerGroup, group), lambda own: None)
    joined.begin({})
    return joined


@for_each(("code", "states"), [(0, ["succeeded"]), (1, [])])
def test_a_command_that_ends_well_answers_for_ranks_whose_end_nobody_saw(
    tmp_path: Path, code: int, states: list[str]
) -> None:
    """Ray kills its workers when their work is done, and the raylet that would have their exit codes is gone then."""
    reported: list[dict[str, Any]] = []
    joined = joined_in(tmp_path, reported)
    about = {"attempt": 1, "rank": 1, "local_rank": 1, "pid": 7}
    for rank, state, exit_code in ((0, "failed", 1), (1, "lost", None)):
        joined._newest[rank] = {**about, "rank": rank, "state": state, "exit_code": exit_code}
    joined.see_off(0.0, code)
    assert [change["state"] for change in reported] == states
    assert all(change["exit_code"] is None and change["rank"] == 1 for change in reported)


TABLE = """\
E1126 09:40:07.113 4242 site-packages/torch/distributed/elastic/multiprocessing/api.py:986] failed \
(exitcode: -9) local_rank: 1 (pid: 71) of binary: /usr/bin/python3
============================================================
job.py FAILED
Failures:
[1]:
  time      : 2026-11-26_09:40:07
  rank      : 2 (local_rank: 2)
  exitcode  : 3 (pid: 72)
  error_file: <N/A>
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 71)
  traceback : Signal 9 (SIGKILL) received by PID 71
"""


def test_torchrun_prints_the_exit_codes_that_it_was_quicker_to_take(tmp_path: Path) -> None:
    """The rank that fails is the first cause also where nobody else saw its exit code."""
    reported: list[dict[str, Any]] = []
    joined = joined_in(tmp_path, reported)
    directory = tmp_path / "node-0" / "attempt-001"
    directory.mkdir(parents=True)
    (directory / "command.err").write_text(TABLE)
    for rank in range(4):
        about = {"attempt": 1, "rank": rank, "local_rank": rank, "pid": 70 + rank}
        joined._newest[rank] = {**about, "state": "stopped" if rank == 0 else "lost", "exit_code": None}
    joined.see_off(0.0, 1)
    ends = {change["pid"]: (change["state"], change["exit_code"], change["signal"]) for change in reported}
    assert ends == {71: ("killed", -9, "SIGKILL"), 72: ("failed", 3, None)}
    assert joined._newest[3]["state"] == "lost", "nobody wrote how that one ended"


@pytest.mark.real
@pytest.mark.skipif(
    tuple(map(int, platform.release().split("-")[0].split(".")[:2])) < (6, 15),
    reason="the kernel keeps no exit code of a process that was reaped",
)
@for_each(("ending", "code"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(7)", 7)])
def test_the_kernel_keeps_the_exit_code_of_a_process_that_was_reaped(ending: str, code: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import os; {ending}"])
    watched = os.pidfd_open(child.pid)
    try:
        child.wait(30)
        assert joined_ranks._kept_code(watched) == code
    finally:
        os.close(watched)
