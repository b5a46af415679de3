"""Runs that no process serves: the next launch has their ends reported, once each, and starts the agents they need."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from distui.presets.plan_json import plan_to_json
from distui.runners.agent.node_agent import Agent
from distui.runners.node import courier
from distui.runners.notify import couriers
from distui.runners.notify.delivery import FILE, NoticeRecord, records, summaries
from distui.runners.notify.notice_rules import Notice
from distui.runners.notify.sending import SendOutcome
from distui.runners.notify.unreported import unattended, unreported
from distui.runners.run import clock, daemon, environment, file_io, run_directories
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.history import REPORT
from distui.runners.run.host_processes import StartMode
from distui.runners.run.journal import END_FILE
from distui.runners.run.model import (
    AttemptStarted,
    CommandReceived,
    Event,
    RankPlace,
    RunCreated,
    RunEnded,
    RunPhase,
    Stamped,
)
from distui.runners.run.run_directories import AGENT_LOCK, Entry
from distui.runners.run.run_record import summarise
from distui.runners.run.wire.client import ensure_socket_dir

from .served import FakeGpus, own_directories, planned
from .test_end_is_reported import SETTINGS, Network, calling, ends
from .test_end_is_reported import network as network


def left_behind(base: Path, *events: Event, name: str = "earlier") -> Path:
    """An earlier run that calls on the way `team`, whose journal has these events, and that no process serves."""
    settings = base / "config" / "distui" / "settings.toml"
    settings.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    settings.touch(mode=0o600)
    settings.write_text(SETTINGS)
    (base / "train.py").write_text("import torch\n")
    plan, record = planned(base / "train.py")
    plan = dataclasses.replace(plan, notify=("team:gave-up", "terminal:all"))
    run = record.run.replace("-t-", f"-{name}-")
    document = json.dumps(plan_to_json(plan)).replace(record.run, run)
    record = structs.replace(record, run=run, name=name)
    path = run_directories.create(record, document.encode(), {})
    chronicle = Chronicle(path)
    for event in (RunCreated(run, name, record.host, summarise(plan)), *events):
        chronicle.emit(event)
        if isinstance(event, AttemptStarted):
            (path / "node-0" / f"attempt-{event.attempt:03d}").mkdir(parents=True)
    chronicle.journal.close()
    return path


def noted(path: Path, *lines: tuple[str, str, float]) -> None:
    """What is noted of a run's notices. `lines`: rule, state and age of each."""
    notice = Notice("gave-up", "gave-up:1", "it failed, and nothing restarts it", clock.now())
    with (path / FILE).open("wb") as file:
        for rule, state, age in lines:
            record = NoticeRecord(clock.now() - age, "team", "gave-up:1", state, rule, notice=notice)
            file.write(msgspec.json.encode(record) + b"\n")


BEGAN = AttemptStarted(1, "launch", 1, (RankPlace(0, 0, 0, None),), {})
FAILED = RunEnded(RunPhase.FAILED, 1, "rank 0 raised ValueError")
LOST = "earlier: it is lost"
WEEK_S = 7 * 86400.0


async def test_the_next_launch_has_a_courier_deliver_what_others_have_left(network: Network) -> None:
    network.outcome = SendOutcome(True)
    states: dict[str, Sequence[tuple[str, str, float]]] = {
        "due": [("gave-up", "due", 3600.0)],
        "cut-off": [("gave-up", "due", 3600.0), ("gave-up", "trying", 3600.0)],
        "sent": [("gave-up", "due", 60.0), ("gave-up", "sent", 60.0)],
        "too-old": [("gave-up", "due", WEEK_S + 60.0)],
        "never-noted": [],
    }
    with own_directories() as base:
        paths = {name: left_behind(base, BEGAN, FAILED, name=name) for name in states}
        for name, lines in states.items():
            noted(paths[name], *lines)
        async with calling(base):
            await asyncio.sleep(1.0)
        (found,) = network.couriers
        assert set(found) == {paths[name] for name in ("due", "cut-off", "never-noted")}
        assert [each.is_open(clock.now()) for each in summaries(records(paths["too-old"]))] == [False]


async def test_a_run_that_ended_long_ago_is_not_read_again(network: Network) -> None:
    with own_directories() as base:
        path = left_behind(base, BEGAN, FAILED)
        assert unattended() == [path]
        os.utime(path / END_FILE, (0, clock.now() - WEEK_S - 60.0))
        assert unattended() == []


async def test_a_lost_run_is_reported_once_and_again_if_it_is_lost_again(network: Network) -> None:
    network.outcome = SendOutcome(True)
    with own_directories() as base:
        path = left_behind(base, BEGAN)
        entry = run_directories.served(path)
        assert entry is not None
        (finding,) = unreported(entry)
        assert finding.text == (
            "the end of the run is not reported on the channel team; the next launch reports it"
        )
        assert unattended() == [path]
        for _ in range(3):
            await courier.attend(path, lambda name: None)
        assert [text.title for text in network.sent] == [LOST]
        assert "neither agent nor runner lives" in network.sent[0].body
        assert "ago" not in network.sent[0].body, "when it ended is not known"
        assert (unattended(), unreported(entry)) == ([], [])
        chronicle = Chronicle(path)
        chronicle.replay()
        chronicle.emit(structs.replace(BEGAN, attempt=2, cause="restart"))
        chronicle.journal.close()
        await courier.attend(path, lambda name: None)
        assert [text.title for text in network.sent] == [LOST, LOST]


async def test_a_lost_run_whose_name_another_one_has_by_now_is_called_by_its_id(network: Network) -> None:
    network.outcome = SendOutcome(True)
    with own_directories() as base:
        path = left_behind(base, BEGAN)
        await asyncio.sleep(1.0)
        left_behind(base, BEGAN, FAILED)
        await courier.attend(path, lambda name: None)
        (text,) = network.sent
        assert text.title == f"{path.name}: it is lost"
        assert text.body.count(f"`distui restart {path.name}`") == 1
        assert text.attach == f"distui attach {path.name}"


async def test_a_run_that_never_began_or_was_being_stopped_is_no_news(network: Network) -> None:
    with own_directories() as base:
        left_behind(base, name="refused")
        left_behind(base, BEGAN, CommandReceived("1", "stop requested", "stop"), name="stopped")
        shutil.copytree(left_behind(base, BEGAN, name="mine"), base / "copy")
        shutil.rmtree(run_directories.runs_dir() / next(run_directories.runs_dir().glob("*-mine-*")).name)
        (base / "copy").rename(run_directories.runs_dir() / "20260101-000000-theirs-00000000")
        assert unattended() == []


async def test_an_end_that_the_runner_reported_to_no_agent_is_reported_after_the_next_launch(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.outcome = SendOutcome(True)
    started: list[tuple[Entry, Mapping[str, str]]] = []
    monkeypatch.setattr(courier, "start_agent", lambda *given: started.append(given))
    with own_directories() as base:
        path = left_behind(base, BEGAN)
        environment.write(path, {"TEAM_WEBHOOK": "http://127.0.0.1:9/x", "HF_TOKEN": "x"})
        (path / REPORT).write_bytes(msgspec.json.encode(Stamped(clock.now(), FAILED)) + b"\n")
        async with calling(base):
            await asyncio.sleep(1.0)
        assert network.couriers == [[path]]
        settings = base / "config" / "distui" / "settings.toml"
        settings.write_text('[notify.channels.team]\ntype = "webhook"\nurl_env = "TEAM_WEBHOOK"\n')
        shell = {"TEAM_WEBHOOK": "http://127.0.0.1:9/x", "HF_TOKEN": "of another run"}
        await courier.attend(path, shell.get)
        ((entry, secrets),) = started
        assert (entry.path, secrets) == (path, {"TEAM_WEBHOOK": "http://127.0.0.1:9/x"})
        ensure_socket_dir()
        await Agent(entry, daemon.load(entry), StartMode.READ, gpu_source=FakeGpus).run(lambda: None)
        of_earlier = [text.title for text in network.sent if text.title.startswith("earlier")]
        assert of_earlier == ["earlier: it failed, and nothing restarts it"]
        assert len(network.couriers) == 1, "an agent that reads sees to no other run"
        assert unattended() == []


async def test_a_runner_without_an_agent_gets_one_whether_or_not_the_run_calls(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = file_io.Identity(1, 0, file_io.boot_id(), platform.node(), "", "torchrun")
    monkeypatch.setattr(run_directories, "runner", lambda entry: who)
    with own_directories() as base:
        path = left_behind(base, BEGAN)
        noted(path, ("gave-up", "sent", 60.0))
        assert unattended() == [path]
        with (path / AGENT_LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert unattended() == [], "an agent serves it"


async def test_a_run_that_is_over_at_once_sees_to_the_others_before_its_agent_leaves(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> list[Path]:
        time.sleep(0.02)
        return [Path("/earlier")]

    monkeypatch.setattr(couriers, "unattended", slow)
    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            await ends(run, runners)
    assert [Path("/earlier")] in network.couriers
