"""Asking SkyPilot: the child process, and what its text means."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from distui.presets.sanitize import clean_lines
from distui.runners.hub.launch_stages import Stages
from distui.runners.hub.sky_cloud import described, may_cost, misfit
from distui.runners.hub.sky_process import (
    PYTHON,
    Candidate,
    Sky,
    SkyError,
    SkyGoneError,
    interpreter,
    parse,
    plain,
    price,
)
from distui.runners.run.model import Stage

from .children import Pipes, Programs

LAUNCHED = """\
\x1b[0m⚙︎ Launching on Slurm distui\x1b[0m (gpu).
\x1b[2m└── \x1b[0m\x1b[2mInstances are up.\x1b[0m
\x1b[0m\x1b[32m✓ Cluster launched: tc.\x1b[0m\x1b[0m  \x1b[2mView logs: \x1b[1msky logs --provision tc\x1b[0m\x1b[0m
\x1b[0m⚙︎ Syncing files.
  \x1b[2mSyncing (to 2 nodes): /tmp/scratch -> ~/.distui/x\x1b[0m
\x1b[0m\x1b[32m✓ Synced file_mounts.\x1b[0m\x1b[0m  \x1b[2mView logs: sky api logs -l sky-1/file_mounts.log\x1b[0m
\x1b[0m\x1b[32m✓ Setup detached.\x1b[0m\x1b[0m
\x1b[0m⚙︎ Job submitted, ID: 17
"""
"""What SkyPilot 0.14.1 printed for a launch on two Slurm nodes."""

SLURM = """\
Considered resources (2 nodes):
----------------------------------------------------------------------------
 INFRA            INSTANCE   vCPUs   Mem(GB)   GPUS     COST ($)   CHOSEN   
----------------------------------------------------------------------------
 Slurm (distui)   -          2       2         H100:2   0.00       \x1b[32m   ✔\x1b[0m     
----------------------------------------------------------------------------
"""  # noqa: W291 - as SkyPilot pads it
CLOUDS = """\
Considered resources (2 nodes):
------------------------------------------------------------------------------------------------------
 INFRA                INSTANCE              vCPUs   Mem(GB)   GPUS         COST ($)   CHOSEN   
------------------------------------------------------------------------------------------------------
 GCP (us-central1-a)  a2-ultragpu-8g        96      1360      A100-80GB:8  80.44         ✔     
 AWS (us-east-1)      p4de.24xlarge[Spot]   96      1152      A100-80GB:8  81.93               
 Kubernetes (ctx 1)   -                     8       64        A100-80GB:8  0.00                
------------------------------------------------------------------------------------------------------
"""  # noqa: W291


def test_a_launch_text_becomes_stages() -> None:
    stages = Stages()
    events = [event for line in clean_lines(LAUNCHED.encode()) for event in stages.line(line)]
    told = [(event.stage, event.state) for event in events]
    assert told == [
        (Stage.PROVISION, "begun"),
        (Stage.PROVISION, "begun"),
        (Stage.PROVISION, "done"),
        (Stage.SYNC, "begun"),
        (Stage.SYNC, "begun"),
        (Stage.SYNC, "done"),
        (Stage.SETUP, "begun"),
        (Stage.SETUP, "begun"),
    ]
    assert events[0].text == "Launching on Slurm distui (gpu)"
    assert stages.job == 17


def test_stages_never_go_back() -> None:
    stages = Stages()
    list(stages.reach(Stage.SETUP))
    assert list(stages.line("⚙︎ Launching on AWS")) == []
    assert [event.stage for event in stages.fail("no room")] == [Stage.SETUP]


def test_a_word_that_skypilot_changes_costs_nothing() -> None:
    assert list(Stages().line("Something new in 0.15")) == []


def test_the_optimizers_table() -> None:
    assert parse(SLURM) == [Candidate("slurm/distui", "", "2", "2", "H100:2", None, True)]
    assert parse(CLOUDS) == [
        Candidate("gcp/us-central1-a", "a2-ultragpu-8g", "96", "1360", "A100-80GB:8", 80.44, True),
        Candidate("aws/us-east-1", "p4de.24xlarge[Spot]", "96", "1152", "A100-80GB:8", 81.93, False),
        Candidate("k8s/ctx1", "", "8", "64", "A100-80GB:8", None, False),
    ]


def test_a_table_that_is_not_understood_says_nothing() -> None:
    assert parse("") == []
    assert parse(CLOUDS.replace("COST ($)", "PRICE")) == []
    shifted = CLOUDS.replace("a2-ultragpu-8g        96", "a2-ultragpu-8g-with-a-longer-name 96")
    assert all(one.infra != "gcp/us-central1-a" for one in parse(shifted))


def test_prices() -> None:
    cells = {"80.44": 80.44, "0.00": None, "-": None, "1,000.0": None, "$3.1": None, "": None}
    assert {cell: price(cell) for cell in cells} == cells


CAUSES = [
    ("ResourcesUnavailableError", "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 1.0", "quota is used up"),
    (
        "ResourcesUnavailableError",
        "InsufficientInstanceCapacity: we have no p5",
        "no such nodes are free",
    ),
    (
        "ResourcesUnavailableError",
        "Catalog does not contain any instances satisfying",
        "has such nodes",
    ),
    ("ResourcesUnavailableError", "Task requires aws which is not enabled.", "`sky check` shows why"),
    ("ApiServerConnectionError", "Could not connect", "`sky api start`"),
    ("NoCloudAccessError", "x", "`sky check` shows why for each"),
    ("ClientError", "An error occurred (AuthFailure)", "was not let in"),
    ("ResourcesMismatchError", "4 != 2", "another --cluster"),
    ("ValueError", "\x1b[1mbad\x1b[0m\n thing", "SkyPilot says: bad thing"),
    ("ValueError", "", "failed without a message (ValueError)"),
    (
        "ConnectionError",
        "HTTPSConnectionPool(host='raw.githubusercontent.com', port=443): Max retries exceeded with url: /c.csv",
        "could not fetch its catalogue of prices",
    ),
    (
        "ConnectionError",
        "HTTPConnectionPool(host='127.0.0.1', port=46580): Max retries exceeded with url: /api",
        "API server went away",
    ),
]


def test_causes_are_plain() -> None:
    for kind, text, sentence in CAUSES:
        assert sentence in plain(kind, text)
        assert "\x1b" not in plain(kind, text)
        assert "\n" not in plain(kind, text)


ABOUT = {
    "state": "UP", "nodes": 2, "hosts": ["job2-c1", "job2-c2"], "resources": "2x(cpus=2)", "infra": "slurm/lab/gpu",
    "since": 1795194999, "autostop_min": None, "down": False, "ours": True, "user": "me", "managed": False,
}  # fmt: skip


def test_a_cluster_described() -> None:
    cluster = described(ABOUT, {"total": 5.0, "seconds": 1800.0}, "tc", 3)
    assert (cluster.name, cluster.infra, cluster.job, cluster.price_per_hour) == (
        "tc",
        "slurm/lab/gpu",
        3,
        10.0,
    )
    assert described(ABOUT, None, "tc").price_per_hour is None


def test_a_cluster_that_does_not_fit() -> None:
    assert misfit(ABOUT, "tc", 2) is None
    assert "has 2 nodes, and this run wants 4" in str(misfit(ABOUT, "tc", 4))
    assert "is bob's" in str(misfit({**ABOUT, "ours": False, "user": "bob"}, "tc", 2))


def test_what_is_left_is_said_with_how_to_be_rid_of_it() -> None:
    for state in ("UP", "INIT", "STOPPED"):
        assert "`distui down train`" in may_cost("tc", state, "train")
        assert "bill" in may_cost("tc", state, "train")


def test_which_python_has_skypilot(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "sky"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nimport sys\n")
    script.chmod(0o755)
    path = {"PATH": str(script.parent)}
    assert interpreter(path) == sys.executable
    script.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    assert interpreter(path) == sys.executable
    script.write_text("#!/bin/sh\necho\n")
    assert interpreter(path) == sys.executable, "nothing is known: this one"
    assert interpreter({**path, PYTHON: "/elsewhere/python"}) == "/elsewhere/python"


@pytest.mark.real
async def test_a_python_without_skypilot_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, sys.executable)
    with pytest.raises(SkyError, match=r"has no SkyPilot: .* -m pip install 'skypilot>=0\.14,<0\.15'"):
        await Sky().call("version")


async def test_a_python_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Programs(monkeypatch)
    monkeypatch.setenv(PYTHON, "/nowhere/python")
    with pytest.raises(SkyError, match="/nowhere/python cannot be executed"):
        await Sky().start()


@pytest.mark.parametrize("line", [b"[]", b"3", b'{"id": []}', b"no JSON"])
async def test_a_child_that_writes_no_answers_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    async def child(words: tuple[str, ...], pipes: Pipes) -> int:
        await pipes.stdin.readline()
        pipes.stdout.write(line + b"\n")
        await pipes.stdin.read()
        return 0

    Programs(monkeypatch).put(sys.executable, child)
    monkeypatch.setenv(PYTHON, sys.executable)
    with pytest.raises(SkyGoneError, match="ended with exit status -9: ask again"):
        await asyncio.wait_for(Sky().start(), 5.0)


@pytest.fixture
async def sky(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Sky]:
    """A child in a Python that has SkyPilot, in a home of its own. None of these tests wakes an API server."""
    cache = os.environ.get("DISTUI_RIG_CACHE") or Path.home() / ".cache/distui-rig"
    python = os.environ.get(PYTHON) or str(Path(cache, "venv/bin/python"))
    if not Path(python).exists():
        pytest.skip(f"no SkyPilot here: {PYTHON} names a Python that has it")
    monkeypatch.setenv(PYTHON, python)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Sky()
    yield found
    await found.close()


async def refused(sky: Sky, key: str) -> SkyError:
    """What SkyPilot says of a task with a key that it does not have, before it asks its API server."""
    with pytest.raises(SkyError) as caught:
        await sky.call("candidates", config={key: 1})
    return caught.value


@pytest.mark.real
async def test_a_real_skypilot_answers(sky: Sky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions at once each get their answer; nothing of the user's shadows its modules; its end is orderly."""
    (tmp_path / "yaml.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    answers = await asyncio.gather(*(refused(sky, f"key_{number}") for number in range(20)))
    assert all(f"'key_{number}'" in answer.detail for number, answer in enumerate(answers))
    with pytest.raises(SkyError, match="no_such_verb"):
        await sky.call("no_such_verb")
    assert (await sky.call("version"))["version"].startswith("0.14.")
    process = sky._process
    assert process is not None
    await sky.close()
    assert process.returncode == 0


@pytest.mark.real
async def test_a_child_that_dies_is_started_again(sky: Sky) -> None:
    await sky.start()
    process = sky._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    asked = asyncio.create_task(sky.call("version"))
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(SkyGoneError, match="ask again"):
        await asked
    assert (await sky.call("version"))["supported"]
    assert sky._process is not process
