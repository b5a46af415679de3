"""The pulse of real ranks: what their hooks, the kernel and a signal tell of them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distui.runners.inrank.collectives import Collectives, inputs
from distui.runners.model import Pulse
from distui.runners.state import RunState

from .inrank_rig import Asking, Driven, driven, eventually, launch, rank

GLOO = """
import time, torch
import torch.distributed as dist

def load():
    time.sleep(600)

dist.init_process_group("gloo")
tensor = torch.ones(4)
for _ in range(20):
    dist.all_reduce(tensor)
if dist.get_rank() == 1:
    load()
dist.all_reduce(tensor)
"""
HELD = """
import ctypes, os, time

def held_in_c():
    ctypes.PyDLL(None).sleep(60)  # keeps the lock of the interpreter

time.sleep(2)
while os.environ["RANK"] == "1":
    held_in_c()
time.sleep(600)
"""


def pulse(state: RunState, rank: int) -> Pulse | None:
    """The newest pulse of a rank."""
    return state.ranks[rank].pulse if rank in state.ranks else None


def names(taken: Pulse) -> list[str]:
    """Functions of its stack, innermost first."""
    return [site.name for site in taken.stack]


async def pulsed(run: Driven, rank: int, wanted: Callable[[Pulse], object], seconds: float = 40.0) -> Pulse:
    """The first pulse of a rank of which `wanted` is true."""
    await run.until(lambda s: (taken := pulse(s, rank)) is not None and wanted(taken), seconds)
    taken = pulse(run.state, rank)
    assert taken is not None
    return taken


@pytest.mark.torch
async def test_who_waits_and_who_is_missing_is_seen_with_file_and_line(own_directories: Path) -> None:
    script = own_directories / "train.py"
    script.write_text(GLOO)
    async with driven(launch(script)) as run:
        waits = await pulsed(run, 0, lambda taken: taken.active and taken.active[0].sites)
        missing = await pulsed(run, 1, lambda taken: taken.recent and taken.samples == 10)
        one = waits.active[0]
        assert (one.group, one.seq, one.op, one.what, one.done) == (
            "0",
            21,
            "all_reduce",
            "Float[4]",
            False,
        )
        assert (one.started, one.p2p) == (None, False)
        assert [(site.file, site.line) for site in one.sites] == [(str(script), len(GLOO.splitlines()))]
        assert [(group.name, group.ranks, group.enqueued, group.completed) for group in waits.groups] == [
            ("0", (), 21, 20)
        ]
        assert [each.seq for each in waits.recent] == list(range(1, 21))
        assert [bool(each.sites) for each in waits.recent] == [False] * 12 + [True] * 8
        assert (waits.hook, waits.recorder, waits.torch, waits.world_size) == (True, True, True, "2")
        assert (missing.active, missing.groups[0].enqueued) == ((), 20)
        assert names(missing)[0] == "load"
        assert "sleep(600)" in GLOO.splitlines()[missing.stack[0].line - 1]
        assert (missing.sites, missing.samples) == (1, 10)
        assert missing.cpu_s is not None
        assert missing.process_s is not None
        assert missing.process_s >= missing.cpu_s > 0
        assert missing.read_bytes is not None
        assert missing.master is not None
        assert missing.pid is not None
        os.kill(missing.pid, signal.SIGSTOP)
        stopped = await pulsed(run, 1, lambda taken: taken.state == "T")
        assert not stopped.hook
        os.kill(missing.pid, signal.SIGCONT)
        await pulsed(run, 1, lambda taken: taken.hook)


async def test_who_holds_the_interpreter_in_c_is_silent_and_shows_its_stack_by_signal(
    own_directories: Path,
) -> None:
    script = own_directories / "train.py"
    script.write_text(HELD)
    async with driven(launch(script)) as run:
        silent = await pulsed(run, 1, lambda taken: not taken.hook and taken.stack)
        assert names(silent)[0] == "held_in_c"
        assert "PyDLL" in HELD.splitlines()[silent.stack[0].line - 1]
        assert silent.state == "S"
        answers = await pulsed(run, 0, lambda taken: taken.hook)
        assert answers.torch is False
        assert answers.recorder is None


async def test_without_hooks_the_kernel_tells_what_it_knows(own_directories: Path) -> None:
    script = own_directories / "train.py"
    script.write_text("import time; time.sleep(600)")
    async with driven(launch(script, hook=False)) as run:
        told = await pulsed(run, 0, lambda taken: taken.state == "S")
        assert (told.hook, told.stack, told.torch, told.world_size) == (False, (), None, "2")
        assert told.master is not None
        assert told.process_s is not None


ALONE = """
import gc, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.environ['DISTUI_RANK_FILES']}.store", rank=0, world_size=1)
part = dist.new_group([0])
tensor = torch.ones(2, 3)
def step():
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=part)
for _ in range(70):
    step()
sys.stdin.readline()
step()
print("stepped", flush=True)
sys.stdin.readline()
print("torch._inductor" in sys.modules, hasattr(torch, "__dict__") and "_inductor" in vars(torch), gc.isenabled(),
      flush=True)
dist.destroy_process_group()
print("left", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(own_directories: Path) -> Path:
    """A directory with a short path, for sockets."""
    path = own_directories / "rank"
    path.mkdir()
    return path


@pytest.mark.torch
def test_a_look_at_all_collectives_leaves_nothing_behind(place: Path) -> None:
    with rank(place, ALONE) as started:
        asking, stdin = Asking(started.socket), started.process.stdin
        assert stdin is not None
        eventually(lambda: asking.ask("pulse").get("groups"))
        taken = asking.ask("pulse", whole=True, sites=True)
        eventually(lambda: asking.ask("pulse")["groups"][0]["enqueued"] == 70)
        taken = asking.ask("pulse", samples=3, whole=True, sites=True)
        assert [(group["name"], group["ranks"], group["completed"]) for group in taken["groups"]] == [
            ("0", [], 70), ("1", [0], 70),
        ]  # fmt: skip
        assert (len(taken["recent"]), taken["active"], taken["samples"], taken["sites"]) == (64, [], 3, 1)
        newest = taken["recent"][-1]
        assert (newest["group"], newest["seq"], newest["what"]) == ("1", 70, "Float[2, 3]")
        assert [site[2] for site in newest["sites"]] == ["step", "<module>"]
        assert "sites" not in asking.ask("pulse", whole=True)["recent"][-1]
        stdin.write(b"go\n")
        stdin.flush()
        eventually(lambda: "stepped" in started.read("out"))
        brief = asking.ask("pulse")
        assert (brief["whole"], brief["recent"], brief["groups"][1]["enqueued"]) == (False, [], 71)
        stdin.write(b"go\n")
        stdin.flush()
        eventually(lambda: "left" in started.read("out"))
        assert "False False True" in started.read("out")
        assert "groups" not in asking.ask("pulse", whole=True)
        asking.close()
        assert started.ends() == 0
        assert started.read("err") == ""


def entry(number: int, name: str, **more: Any) -> dict[str, Any]:
    """An entry as an NCCL build records it; no such build is on a machine without a GPU."""
    return {
        "pg_id": 3, "process_group": ("0", "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{name}", "time_created_ns": number * 10**9, "input_sizes": [[8]],
        "input_dtypes": ["BFloat16"], "state": "completed", "retired": True, "is_p2p": False, "frames": [], **more,
    }  # fmt: skip


class Recorder:
    """torch with NCCL's recorder, and one of gloo that has the same group."""

    def __init__(self, *entries: dict[str, Any], enqueued: int, completed: int) -> None:
        self.entries, self.counts = entries, (enqueued, completed)

    def status(self) -> dict[str, Any]:
        one = dict(zip(("last_enqueued_collective", "last_completed_collective"), self.counts, strict=True))
        return {"pg_status": {"3": one}}

    def _dump_nccl_trace(self, entries: bool, stacks: bool, active: bool) -> bytes:
        return pickle.dumps(dict(self.status(), entries=list(self.entries)))

    def _dump_nccl_trace_json(self, entries: bool) -> bytes:
        return json.dumps(self.status()).encode()

    def _dump_fr_trace(self, entries: bool, stacks: bool, active: bool) -> bytes:
        return pickle.dumps(
            {"entries": [entry(1, "x", profiling_name="gloo:barrier", input_sizes=[], pg_id=0)]}
        )

    def _dump_fr_trace_json(self, entries: bool) -> bytes:
        return json.dumps({}).encode()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorder], dict[str, Any]]:
    """A look at such a torch."""
    world = SimpleNamespace(
        pg_names={1: "0"}, pg_group_ranks={1: {0: 0}}, pg_backend_config={1: "cpu:gloo,cuda:nccl"}
    )

    def look(recorder: Recorder) -> dict[str, Any]:
        core = SimpleNamespace(_distributed_c10d=recorder)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=core, __file__="/x/torch/__init__.py"))
        monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_initialized=lambda: True))
        monkeypatch.setitem(
            sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world)
        )
        return Collectives().look(True, True)

    return look


Look = Callable[[Recorder], dict[str, Any]]


def test_of_nccl_the_state_tells_and_gloos_part_of_the_group_counts_for_itself(looked: Look) -> None:
    waits = entry(3, "all_gather", state="scheduled", retired=False, frames=[
        {"filename": "/x/torch/distributed/c10d.py", "line": 5, "name": "all_gather"},
        {"filename": "/y/train.py", "line": 7, "name": "step"},
    ])  # fmt: skip
    # The watchdog has not come to the second one, but its kernel has ended.
    told = looked(
        Recorder(
            entry(1, "all_reduce"), entry(2, "all_reduce", retired=False), waits, enqueued=3, completed=1
        )
    )
    (one,) = told["active"]
    assert (one["group"], one["seq"], one["op"], one["started"]) == ("0", 3, "all_gather", None)
    assert one["sites"] == [["/y/train.py", 7, "step"]]
    assert [(group["name"], group["enqueued"], group["completed"]) for group in told["groups"]] == [
        ("0", 3, 2), ("0/gloo", 1, 1),
    ]  # fmt: skip
    assert [(each["group"], each["seq"], each["what"], each["started"]) for each in told["recent"]] == [
        ("0", 1, "BFloat16[8]", True), ("0/gloo", 1, "", None), ("0", 2, "BFloat16[8]", True),
    ]  # fmt: skip


def test_members_of_a_coalesced_call_are_done_with_it(looked: Look) -> None:
    pair: dict[str, Any] = {"state": "scheduled", "retired": False, "p2p_seq_id": 4, "is_p2p": True}
    entries = [
        entry(0, "send", **pair),
        entry(0, "recv", **pair),
        entry(0, "coalesced", p2p_seq_id=4, is_p2p=True),
    ]
    told = looked(Recorder(*entries, enqueued=4, completed=4))
    assert told["active"] == []
    assert [(each["op"], each["seq"], each["p2p"]) for each in told["recent"][1:3]] == [
        ("recv", 4, True),
        ("coalesced", 4, True),
    ]
    entries[-1].update(state="started", retired=False)
    told = looked(Recorder(*entries, enqueued=4, completed=3))
    assert [(each["op"], each["started"]) for each in told["active"]] == [("coalesced", True)]


def test_inputs_are_said_shortly() -> None:
    assert inputs([], []) == ""
    assert inputs([[2, 3], [2, 3], [1]], ["Float", "Float", "Long"]) == "Float[2, 3] ×2 Long[1]"
    assert inputs([[n] for n in range(6)], ["Int"]) == "Int[0] Int[1] Int[2] Int[3] and 2 more"
