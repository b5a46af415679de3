"""A profile of a real rank, asked for at its hook: what it writes, and that the script never suffers from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .inrank_rig import Asking, Rank, eventually, rank

LOOP = """
import select, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
def steps():
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        yield
"""
PLAIN = LOOP + "for _ in steps():\n    train()\nprint('fine', flush=True)\n"
pytestmark = pytest.mark.torch


@contextmanager
def asked(tmp_path: Path, script: str, **env: str) -> Iterator[tuple[Rank, Asking]]:
    folder = tmp_path / "node-0" / "attempt-001"
    folder.mkdir(parents=True)
    with rank(folder, script, **env) as process:
        asking = Asking(process.socket)
        asking.hear()
        try:
            eventually(lambda: "ready" in process.read("out"))
            yield process, asking
        finally:
            asking.close()


def training(asking: Asking) -> int:
    """Steps so far, once there are some."""
    eventually(lambda: asking.ask("profilable").get("count"))
    return int(asking.ask("profilable")["count"])


def arm(asking: Asking, folder: str = "one", steps: int = 3, ahead: int = 50) -> int:
    """Ask for a profile; the first step of it. Where the script was there before the request, it is asked for anew."""
    while True:
        first = training(asking) + ahead
        answer = asking.ask("profile", first=first, steps=steps, folder=folder)
        if "late" not in answer:
            break
    assert "count" in answer, answer
    return first


def outcome(asking: Asking) -> dict[str, Any]:
    """The last answer about a profile."""
    while (answer := asking.ask("profiled")).get("state") in ("armed", "warm", "recording"):
        time.sleep(0.01)
    return answer


def marks(path: str) -> list[str]:
    events = json.loads(Path(path).read_text())["traceEvents"]
    return [event["name"] for event in events if str(event.get("name")).startswith("distui.step#")]


@pytest.mark.real
def test_the_steps_that_were_asked_for_are_recorded_and_training_goes_on(tmp_path: Path) -> None:
    with asked(tmp_path, PLAIN) as (process, asking):
        first = arm(asking)
        answer = outcome(asking)
        assert answer["file"] == str(tmp_path / "node-0" / "profiles" / "one" / "rank-0.json")
        assert marks(answer["file"]) == [f"distui.step#{first + after}" for after in (-1, 0, 1, 2)]
        assert Path(answer["file"]).stat().st_mode & 0o777 == 0o600
        again = arm(asking, "two", steps=1)
        assert marks(outcome(asking)["file"]) == [f"distui.step#{again - 1}", f"distui.step#{again}"]
        before = training(asking)
        eventually(lambda: training(asking) > before + 5)
        assert process.ends() == 0
        assert process.read("out") == "ready\nfine\n"
        assert process.read("err") == ""


REFUSING = (
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    + LOOP
    + """
plain = torch.profiler._KinetoProfile.prepare_trace
def broken(self):
    torch.profiler._KinetoProfile.prepare_trace = plain
    raise RuntimeError("no counters")
torch.profiler._KinetoProfile.prepare_trace = broken
for _ in steps():
    train()
print("fine", flush=True)
"""
)


@pytest.mark.long
def test_what_cannot_be_is_refused_with_the_reason_and_costs_the_script_nothing(tmp_path: Path) -> None:
    with asked(tmp_path, REFUSING) as (process, asking):
        arm(asking)
        assert outcome(asking)["error"] == "torch.profiler failed: RuntimeError: no counters"
        count = training(asking)
        assert "late" in asking.ask("profile", first=count, steps=1, folder="one")
        far = count + 10**9
        assert "1 to 100 steps" in asking.ask("profile", first=far, steps=0, folder="one")["error"]
        assert "error" in asking.ask("profile", first=far, steps=1, folder="../out")
        assert "count" in asking.ask("profile", first=far, steps=1, folder="one")
        other = Asking(process.socket)
        other.hear()
        assert "under way" in other.ask("profilable")["error"]
        assert "under way" in other.ask("profile", first=far, steps=1, folder="two")["error"]
        assert "no profile was asked for" in other.ask("profiled")["error"]
        asking.close()  # who asked is gone, and with it the request
        eventually(lambda: "count" in other.ask("profilable"))
        arm(other, "three")
        assert "rank-0.json could not be written: " in outcome(other)["error"]
        eventually(lambda: "count" in other.ask("profilable"))
        other.close()
        assert process.ends() == 0
        assert process.read("out") == "ready\nfine\n"
        assert process.read("err") == ""
        assert list(tmp_path.glob("node-0/profiles/*/*")) == [], "no piece of a trace is left"


WATCHED = LOOP + (
    "for _ in steps():\n    train()\n    print(int(torch.autograd.profiler._is_profiler_enabled), flush=True)\n"
)


@pytest.mark.long
def test_whoever_leaves_while_it_records_leaves_no_profiler_behind_and_the_end_then_is_no_crash(
    tmp_path: Path,
) -> None:
    with asked(tmp_path, WATCHED) as (process, asking):
        arm(asking, steps=100)
        eventually(lambda: "1" in process.read("out"))
        asking.close()
        eventually(lambda: process.read("out").rstrip().endswith("0"))
        other = Asking(process.socket)
        other.hear()
        arm(other, "two", steps=100)
        eventually(lambda: process.read("out").rstrip().endswith("1"))
        assert process.ends() == 0
        other.close()
        assert process.read("err") == ""


OWN = (
    LOOP
    + """
from torch.profiler import ProfilerActivity, profile, schedule
ready = []
def own(**more):
    return profile(activities=[ProfilerActivity.CPU], on_trace_ready=lambda p: ready.append(len(p.events())), **more)
for _ in steps():
    train()
    if torch.autograd.profiler._is_profiler_enabled:
        with own():
            train()
        break
running = own(schedule=schedule(wait=0, warmup=200, active=2, repeat=1))
running.start()
for _ in steps():
    train()
    running.step()
running.stop()
print("own", len(ready), flush=True)
"""
)


@pytest.mark.long
def test_a_profile_of_the_scripts_own_goes_first(tmp_path: Path) -> None:
    """One that begins while ours records, and one beside which ours does not begin."""
    with asked(tmp_path, OWN) as (process, asking):
        arm(asking, steps=100)
        assert "in use by the script itself" in outcome(asking)["error"]
        eventually(lambda: process.read("out").count("ready") == 2)
        first = training(asking) + 20  # the script's own warms up
        answer = asking.ask("profile", first=first, steps=1, folder="one")
        assert "in use by the script itself" in answer["error"]
        eventually(lambda: training(asking) > first + 240)
        arm(asking)
        assert "file" in outcome(asking)
        assert process.ends() == 0
        assert "own 2" in process.read("out")
        assert all("USDT" in line for line in process.read("err").splitlines()), (
            "as Kineto began for the script"
        )


COMPILED = (
    LOOP.replace("def train", "@torch.compile(backend='eager')\ndef train")
    + """
for number, _ in enumerate(steps()):
    train()
    if number == 5:
        before = dict(torch._dynamo.utils.counters["stats"])
        print("compiled", flush=True)
print("anew" if before != torch._dynamo.utils.counters["stats"] else "as before", flush=True)
"""
)


@pytest.mark.long
def test_a_compiled_step_is_profiled_and_not_compiled_anew(tmp_path: Path) -> None:
    with asked(tmp_path, COMPILED) as (process, asking):
        eventually(lambda: "compiled" in process.read("out"))
        warned = process.read("err")
        arm(asking)
        assert "file" in outcome(asking)
        assert process.ends() == 0
        assert process.read("out") == "ready\ncompiled\nas before\n"
        assert process.read("err") == warned
