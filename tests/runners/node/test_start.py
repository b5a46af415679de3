"""`node start` without an answering agent: nothing of the job is left, in its process group and in other sessions."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator

import pytest
from nodes_rig import Cluster, until
from patience import HANG_S

from distui.runners.node import __main__ as node_main
from distui.runners.run.errors import RunError
from distui.runners.run.model import RunPhase

pytestmark = pytest.mark.real
STUBBORN = """#!/bin/sh
trap '' TERM
echo $$ >{here}/job
sh -c 'trap "" TERM; while :; do sleep 1; done' &
while :; do sleep 1; done
"""
"""A job that ignores SIGTERM, with a child that does, too, and no agent."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(1)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    given = {"job": {**made.document, "addresses": made.addresses}, "env": {}}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(given).encode())))
    monkeypatch.setattr(node_main, "END_SECONDS", 0.5)
    try:
        yield made
    finally:
        made.close()


def test_a_job_that_ignores_sigterm_is_killed_with_its_children(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = cluster.root / "stub"
    stub.write_text(STUBBORN.format(here=cluster.root))
    stub.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stub))
    monkeypatch.setattr(node_main, "START_SECONDS", 1.0)
    with pytest.raises(RunError, match="no agent came up within 1 s, and the job was ended: see /"):
        node_main.start(cluster.record.run, 0)
    assert (cluster.root / "job").exists(), "it has run"
    until(lambda: not cluster.processes(), HANG_S, lambda: str(cluster.processes()))


def test_an_agent_that_never_answers_is_ended_with_its_ranks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_main, "START_SECONDS", 8.0)
    monkeypatch.setattr(node_main, "part_run8", lambda run8, node: "ffffffff")
    with pytest.raises(RunError, match="no agent came up within 8 s"):
        node_main.start(cluster.record.run, 0)
    assert not cluster.processes()
    ended = cluster.now(0)
    assert not ended.attempts or ended.phase is RunPhase.STOPPED
