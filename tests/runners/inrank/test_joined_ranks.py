"""Ranks below a launcher of another kind whose end nobody saw: the command answers for them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distui.runners.inrank.joined_ranks import JoinedRanks
from distui.runners.inrank.worker_group import WorkerGroup


@pytest.mark.parametrize(("code", "states"), [(0, ["succeeded"]), (1, [])])
def test_a_command_that_ends_well_answers_for_ranks_whose_end_nobody_saw(
    code: int, states: list[str]
) -> None:
    """Ray kills its workers when their work is done, and the raylet that would have their exit codes is gone then."""
    reported: list[dict[str, Any]] = []
    group = SimpleNamespace(
        began=threading.Event(), failed=threading.Event(), restart=threading.Event(), ending=False,
        stopping=False, attempt=1, run_dir="", report=lambda kind, **fields: reported.append(fields),
    )  # fmt: skip
    joined = JoinedRanks(cast(WorkerGroup, group), lambda own: None)
    about = {"attempt": 1, "rank": 1, "local_rank": 1, "pid": 7}
    for rank, state, exit_code in ((0, "failed", 1), (1, "lost", None)):
        joined._newest[rank] = {**about, "rank": rank, "state": state, "exit_code": exit_code}
    joined.see_off(0.0, code)
    assert [change["state"] for change in reported] == states
    assert all(change["exit_code"] is None and change["rank"] == 1 for change in reported)
