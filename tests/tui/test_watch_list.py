"""`distui watch` with several jobs: one line each."""

from __future__ import annotations

import argparse

import pytest

from distui.runners.watch.foreign_jobs import Output, RankProcess, Scan, WatchedJob
from distui.tui.verbs import watch

NO_OUTPUT = Output(None, "a terminal")


def job(pid: int, ranks: int) -> WatchedJob:
    processes = {
        rank: RankProcess(rank, rank, pid + rank, 7, ("python", "train.py"), {}, NO_OUTPUT, NO_OUTPUT)
        for rank in range(ranks)
    }
    return WatchedJob(str(pid), "torchrun", frozenset(), "/w", ranks, None, processes, 5.0)


def test_a_job_of_one_rank_is_listed_in_the_singular(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "scan", lambda: Scan(9.0, {"a": job(100, 1), "b": job(200, 2)}))
    assert watch.watch(argparse.Namespace(pid=None, json=False, ascii=False)) == 0
    shown = [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.splitlines()[:2]]
    assert shown == ["1 rank  started by torchrun", "2 ranks  started by torchrun"]
