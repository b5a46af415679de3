"""How runs end, and what remains of them; a lock for viewers that may only look."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from patience import HANG_S

from distui.runners.model import Hello, Stop
from distui.runners.wire.client import SocketLink, encode

from .runs import World

pytestmark = pytest.mark.torch


@pytest.mark.long
def test_a_foreground_launch_says_each_cause_once_and_its_times_never_go_back(world: World) -> None:
    """Of a script that fails in the same way each time it is started."""
    script = world.script("bad.py", "print('begins')\nraise ValueError('no such luck')\n")
    words = ("--nproc-per-node", "2", "--restarts", "3", "--quiet")
    done = world.distui("launch", "ddp", *words, "--", script)
    assert done.code == 1
    told, _, report = done.err.partition("\n\n")
    moments = re.findall(r"^\d\d:\d\d:\d\d", told, re.MULTILINE)
    assert len(moments) > 3
    seconds = [sum(int(part) * 60**at for at, part in enumerate(each.split(":")[::-1])) for each in moments]
    assert all((later - earlier) % 86400 < 43200 for earlier, later in pairwise(seconds)), told
    cause = re.compile(r"rank \d raised ValueError: no such luck")
    attempts = re.findall(r"^\S+  (attempt \d) failed: ", told, re.MULTILINE)
    assert attempts == ["attempt 1", "attempt 2"], "the second failure is the same"
    assert len(cause.findall(told)) == len(attempts), told
    assert "  gave up: failed in the same way twice\n" in done.err
    assert len(cause.findall(report)) == len(attempts), (
        "in the ledger, and of the newest below it: " + report
    )
    assert "\ngave up: failed in the same way twice\n" in report


@pytest.mark.real
async def test_readonly_is_a_lock_in_the_agent_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A viewer that asked to look only cannot change the run, whatever it sends."""
    run = world.execute("import time; time.sleep(600)")
    assert run.wait("running") == 0
    for name in ("XDG_STATE_HOME", "DISTUI_SOCKET_DIR"):
        monkeypatch.setenv(name, world.env[name])
    link = await SocketLink.connect(Path(json.loads(run.file("agent.json"))["socket"]), readonly=True)
    seen = [stamped async for stamped in link.events(follow=False)]
    assert seen
    await link.close()
    reader, writer = await asyncio.open_unix_connection(json.loads(run.file("agent.json"))["socket"])
    writer.write(encode(Hello(readonly=True, telemetry=False)) + encode(Stop("s1")))
    while b"read-only" not in (line := await asyncio.wait_for(reader.readline(), HANG_S)):
        assert line, "the agent hung up"
    writer.close()
    assert run.status()["state"] == "running"
    assert not run.of("CommandReceived")
