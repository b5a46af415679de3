"""The end of a run is always reported: by its agent, by a courier after it, or by the next launch."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import pytest
from msgspec import structs

from distui.runners.node import courier
from distui.runners.notify import couriers, sending
from distui.runners.notify.delivery import FILE, records
from distui.runners.notify.messages import Text
from distui.runners.notify.notice_rules import Notice, Rules
from distui.runners.notify.sending import SendOutcome
from distui.runners.notify.unreported import unattended, unreported
from distui.runners.run import clock, file_io, launch_record

from .fake_runner import FakeRunners
from .served import FakeGpus, Served, own_directories, planned, served

SETTINGS = '[notify.channels.team]\ntype = "webhook"\nurl = "http://127.0.0.1:9/x"\n'
REFUSED = SendOutcome(False, "127.0.0.1: Connection refused", again=True)


class Network:
    """What notices are sent over, and what has arrived."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.outcome = REFUSED
        self.sent: list[Text] = []
        self.couriers: list[list[Path]] = []
        patch.setattr(sending, "send", self._send)
        patch.setattr(couriers, "start", lambda dirs, lookup: self.couriers.append(list(dirs)))

    async def _send(self, way: object, text: Text, *_: object) -> SendOutcome:
        await asyncio.sleep(0.1)
        if self.outcome.ok:
            self.sent.append(text)
        return self.outcome


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@asynccontextmanager
async def calling(
    base: Path, rules: str = "all", env: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[Served, FakeRunners]]:
    """A run that calls on the way `team`; `env`: of its launch."""
    settings = base / "config" / "distui" / "settings.toml"
    settings.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    settings.touch(mode=0o600)
    settings.write_text(SETTINGS)
    (base / "train.py").write_text("import torch\n")
    plan, record = planned(base / "train.py", env=dict(env))
    record = structs.replace(record, fingerprints=launch_record.fingerprints(dict(env), base))
    runners = FakeRunners()
    async with served(
        dataclasses.replace(plan, notify=(f"team:{rules}",)), record, runners, FakeGpus
    ) as run:
        await run.hooked()
        yield run, runners


async def ends(run: Served, runners: FakeRunners) -> float:
    """Have the run succeed; seconds until its agent has left."""
    began = clock.monotonic()
    runners.newest.finishes()
    await run.until(lambda state: state.phase.ended)
    await run.link.close()
    await run.agent.served.parts.wait("socket", 600.0)
    return clock.monotonic() - began


async def test_a_network_that_is_away_when_the_run_ends_delays_its_report_and_nothing_else(
    network: Network,
) -> None:
    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            assert await ends(run, runners) < 5.0, "the agent has left"
            assert network.couriers == [[run.path]]
        assert unattended() == [run.path]
        (finding,) = unreported(run.agent.served.entry)
        assert (finding.id, finding.severity) == ("notify-failed", "warning")
        assert finding.text == (
            "the end of the run is not reported on the channel team: 127.0.0.1: Connection refused; "
            "the next launch tries it again"
        )
        delivering = asyncio.create_task(courier.deliver(run.path, lambda name: None))
        await asyncio.sleep(600.0)
        assert unreported(run.agent.served.entry)[0].text.endswith("; it is tried again")
        await courier.deliver(run.path, lambda name: None)  # a second courier leaves it to the first
        network.outcome = SendOutcome(True)
        await delivering
        assert [text.title for text in network.sent] == ["t: it has succeeded"]
        assert unreported(run.agent.served.entry) == []
        assert unattended() == []


async def test_what_leaves_on_a_way_has_no_value_of_a_secret_of_the_launch(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.outcome = SendOutcome(True)
    monkeypatch.setenv("DB_PASSWORD", "swordfish42")
    failure = {"type": "ModuleNotFoundError", "text": "No module named 'swordfish42'", "step": 0}
    with own_directories() as base:
        async with calling(base, "gave-up", env={"DB_PASSWORD": "swordfish42"}) as (run, runners):
            runners.newest.writes(1, json.dumps(failure), "exc")
            runners.newest.exits(1, 1)
            await run.until(lambda state: state.phase.ended)
            await run.agent.served.parts.wait("socket", 600.0)
        assert [text.title for text in network.sent] == ["t: it failed, and nothing restarts it"]
        assert "rank 1 finds no module named ***" in network.sent[0].body
        assert b"swordfish42" not in (run.path / FILE).read_bytes()


async def test_an_end_that_cannot_be_reported_is_given_up_and_said(network: Network) -> None:
    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            await ends(run, runners)
        began = clock.monotonic()
        await courier.deliver(run.path, lambda name: None)
        assert clock.monotonic() - began > 1600.0
        assert [record.state for record in records(run.path)][-1] == "failed"
        (finding,) = unreported(run.agent.served.entry)
        assert finding.text.endswith("127.0.0.1: Connection refused; it is given up after 9 failures")


async def test_the_end_is_reported_though_the_rules_fail(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[Notice]:
        raise LookupError

    network.outcome = SendOutcome(True)
    with own_directories() as base:
        async with calling(base) as (run, runners):
            monkeypatch.setattr(Rules, "judge", broken)
            await ends(run, runners)
    assert "t: it has succeeded" in [text.title for text in network.sent]


async def test_a_way_that_fails_is_a_finding_of_a_live_run_within_seconds_and_is_cleared(
    network: Network,
) -> None:
    with own_directories() as base:
        async with calling(base, "first-step") as (run, _):
            began = clock.monotonic()
            await run.until(lambda state: ("notify-failed", None, None) in state.findings)
            assert clock.monotonic() - began < 10.0
            finding = run.state.findings["notify-failed", None, None]
            assert (
                finding.text
                == "notifications are not sent on the channel team: 127.0.0.1: Connection refused"
            )
            network.outcome = SendOutcome(True)
            await run.until(lambda state: not state.findings)


async def test_settings_that_cannot_be_read_at_the_end_delay_its_report(network: Network) -> None:
    network.outcome = SendOutcome(True)
    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            settings = base / "config" / "distui" / "settings.toml"
            text = settings.read_text()
            settings.write_text(text[:10])  # an editor writes it at this moment
            await ends(run, runners)
        assert network.sent == []
        assert "is not TOML" in records(run.path)[-1].why
        settings.write_text(text)
        await courier.deliver(run.path, lambda name: None)
        assert [text.title for text in network.sent] == ["t: it has succeeded"]


async def test_the_end_is_reported_though_the_disk_was_too_full_to_note_it(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> BinaryIO:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            with monkeypatch.context() as patch:
                patch.setattr(file_io, "appending", full)
                await ends(run, runners)
            assert network.couriers == [[run.path]]
        assert not (run.path / FILE).exists()
        network.outcome = SendOutcome(True)
        for _ in range(2):
            await courier.deliver(run.path, lambda name: None)
        assert [text.title for text in network.sent] == ["t: it has succeeded"]


async def test_the_copy_of_a_run_directory_reports_nothing(network: Network) -> None:
    with own_directories() as base:
        async with calling(base, "succeeded") as (run, runners):
            await ends(run, runners)
        shutil.copytree(run.path, run.path.with_name("a-copy"))
        assert unattended() == [run.path]
