"""Every background part of an agent is broken on a live run, one after the other: it is named, and starts again."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from distui.runners.agent.log_tails import Tails
from distui.runners.diagnosis.detectors import Judging
from distui.runners.run.commands import ReadLog, ReadMetrics, Restart
from distui.runners.run.samples import Gpu
from distui.runners.telemetry import export_settings

from .breakable import BreakableParts, install
from .fake_runner import FakeRunners
from .served import FakeGpus, doubled, own_directories, planned, served

PARTS = {
    "checkpoints", "diagnosis", "gpus", "hook-0", "hook-1", "log-cap", "log-flood", "logs", "metrics-export",
    "metrics-push", "notify-delivery", "notify-rules", "pulses", "py-spy", "sampling", "signal-patterns",
    "socket", "spot-notice", "supervision",
}  # fmt: skip
"""All parts of an agent whose settings and plan ask for everything. `relay`: see test_hub_part_failures.py."""
SETTINGS = """
[notify.channels.call]
type = "command"
command = ["true"]
[export]
openmetrics_dir = "{folder}"
otlp_endpoint = "http://127.0.0.1:9"
"""


class OneGpu(FakeGpus):
    gpus = (Gpu(0, "GPU-0", "H100"),)


async def test_each_part_of_an_agent_that_fails_is_named_and_starts_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch)
    monkeypatch.setattr(export_settings, "is_installed", lambda: False)
    monkeypatch.setenv("DISTUI_METADATA", "aws 127.0.0.1:9")
    with own_directories() as base:
        settings = base / "config" / "distui" / "settings.toml"
        settings.parent.mkdir(parents=True, mode=0o700)
        settings.touch(mode=0o600)
        settings.write_text(SETTINGS.format(folder=base))
        (base / "train.py").write_text("import torch\n")
        plan, record = planned(base / "train.py", signals=("loss=(?P<loss>.*)",))
        plan = dataclasses.replace(plan, notify=("call:spot-notice",), log_cap=1 << 20)
        async with served(plan, record, FakeRunners(), OneGpu) as run:
            await run.hooked()
            parts = run.agent.served.parts
            assert isinstance(parts, BreakableParts)
            assert set(parts.starts) == PARTS
            for name in sorted(PARTS):
                await parts.fail(name)
                assert parts.starts[name] == 2, name
                finding = run.state.findings[f"part-failed:{name}", None, 0]
                assert finding.text == f"internal error in {name} (it starts again in 1 s): Fault: {name}"
                assert "agent.log" in finding.remedy
            assert (await run.send(Restart("r"))).ok
            await run.hooked()
            assert run.state.attempt == 2
    log = capsys.readouterr().err
    assert [name for name in PARTS if f"doubles.breakable.Fault: {name}\n" not in log] == []


async def test_a_run_ends_in_order_though_the_diagnosis_and_the_logs_fail_at_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("no such group")

    async with doubled() as (run, runners):
        await run.hooked()
        await asyncio.sleep(5.0)  # the logs are being read
        monkeypatch.setattr(Judging, "judge", broken)
        monkeypatch.setattr(Tails, "end", broken)
        runners.newest.finishes()
        await run.until(lambda state: state.phase.ended)
        assert (str(run.state.phase), run.state.exit_code) == ("succeeded", 0)
        assert ("part-failed:diagnosis", None, 0) in run.state.findings
        assert ("part-failed:logs", None, 0) in run.state.findings
    assert capsys.readouterr().err.count("LookupError: no such group") >= 2


async def test_a_request_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise LookupError("no such rank")

    async with doubled() as (run, _):
        await run.hooked()
        monkeypatch.setattr(run.agent.commands, "carry_out", broken)
        monkeypatch.setattr(run.agent.server, "_read_window", broken)
        monkeypatch.setattr(run.agent.server, "_read_curves", broken)
        done = await run.send(Restart("r"))
        assert not done.ok
        assert done.text.startswith("it is unknown if that was done: an internal error")
        assert "agent.log" in (await run.link.read_log(ReadLog("runner.log", 0))).error
        assert "agent.log" in (await run.link.read_metrics(ReadMetrics("m", 0.0, 1.0))).error
        named = {
            "part-failed:request-Restart",
            "part-failed:request-ReadLog",
            "part-failed:request-ReadMetrics",
        }
        assert named <= {name for name, _, _ in run.state.findings}
