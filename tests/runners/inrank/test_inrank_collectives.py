"""What is read out of a flight recorder of torch, where no machine without a GPU has one."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from each import for_each

from distui.runners.inrank import collectives as reading
from distui.runners.inrank.collectives import Collectives, counted, flight, inputs


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
        return Collectives().sample(True, True)

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


def test_a_group_that_waits_is_looked_at_whole_without_being_asked(looked: Look) -> None:
    recorder = Recorder(entry(1, "all_reduce"), enqueued=1, completed=1)
    looked(recorder)
    collectives = Collectives()
    wholes = []
    for counts in ((1, 1), (1, 1), (2, 1), (3, 1), (3, 1), (3, 3), (3, 3)):
        recorder.counts = counts
        wholes.append(collectives.sample(False, False)["whole"])
    # The first one meets the group; then only one in which it waits as in the look before.
    assert wholes == [True, False, False, False, True, False, False]


def test_a_group_whose_entries_are_all_done_does_not_wait_whatever_the_counts_say(looked: Look) -> None:
    """gloo has several threads: where the last but one completes last, its number stays."""
    entries = [entry(1, "all_reduce"), entry(2, "all_reduce")]
    recorder = Recorder(*entries, enqueued=2, completed=1)
    looked(recorder)
    collectives, counts, wholes = Collectives(), [], []
    for _ in range(4):
        told = collectives.sample(False, False)
        wholes.append(told["whole"])
        counts.append([group["completed"] for group in told["groups"] if group["name"] == "0"])
    assert wholes == [True, False, False, False]
    assert counts == [[2]] * 4
    recorder.counts = (3, 1)  # it waits now, and its entry is there
    recorder.entries = (*entries, entry(3, "all_reduce", state="started", retired=False))
    wholes = [collectives.sample(False, False)["whole"] for _ in range(3)]
    assert wholes == [False, True, True]


@for_each(
    ("used", "recorder"), [(["ProcessGroupGloo"], False), (["ProcessGroupGloo", "ProcessGroupNCCL"], True)]
)
def test_a_torch_that_records_nccl_alone_has_no_recorder_for_gloo(
    monkeypatch: pytest.MonkeyPatch, looked: Look, used: list[str], recorder: bool
) -> None:
    older = Recorder(enqueued=0, completed=0)
    monkeypatch.setattr(reading, "RECORDERS", ("nccl",))
    monkeypatch.setattr(reading, "backends", lambda: used)
    assert looked(older)["recorder"] is recorder


class ProcessGroupNCCL2:
    """By its name and its count, torch's own."""

    def _get_sequence_number_for_group(self) -> int:
        return 41


def test_a_backend_that_torch_does_not_record_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        group_desc, _device_types = "default_pg", ("cuda",)

        def __init__(self, backend: object) -> None:
            self._backend = backend

        def _get_backend(self, device: str) -> object:
            return self._backend

    whole, part, gloo = Group(ProcessGroupNCCL2()), Group(ProcessGroupNCCL2()), Group(object())
    world = SimpleNamespace(
        pg_names={whole: "0", part: "3", gloo: "4"},
        pg_group_ranks={whole: {0: 0, 1: 1}, part: {1: 0, 0: 1}},
    )
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))
    counts = {"desc": "default_pg", "enqueued": 41, "completed": -1, "backend": "nccl2"}
    assert counted(["nccl", "fr"]) == [
        {"name": "0", "ranks": (), **counts},
        {"name": "3", "ranks": (0, 1), **counts},
    ]
    assert counted(["nccl", "fr", "nccl2"]) == [], "from 2.15 on it is recorded"


def test_without_a_recorder_nothing_is_told(monkeypatch: pytest.MonkeyPatch, looked: Look) -> None:
    looked(Recorder(enqueued=0, completed=0))
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert Collectives().sample(True, True) == {"recorder": False}
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=object()))
    )
    assert Collectives().sample(True, True) == {"recorder": False}


class PerBackend(Recorder):
    """torch 2.15, of which this has the documented signature: a backend has a recorder of its own."""

    def _dump_fr_trace(self, entries: bool, stacks: bool, active: bool, backend: str = "gloo") -> bytes:
        """_dump_fr_trace(includeCollectives, includeStackTraces, onlyActive, backend: str = "gloo") -> bytes"""
        if backend == "nccl-lazy":
            raise ValueError("Unknown backend: nccl-lazy")
        if backend == "gloo":
            return super()._dump_fr_trace(entries, stacks, active)
        own = [
            entry(1, "x", profiling_name="nccl2:all_reduce", pg_id=5),
            entry(2, "x", profiling_name="nccl2:all_gather", pg_id=5, state="scheduled", retired=False),
        ]
        counts = {"last_enqueued_collective": 2, "last_completed_collective": 1}
        return pickle.dumps({"entries": own, "pg_status": {"5": counts}})

    def _dump_nccl_trace(self, entries: bool, stacks: bool, active: bool) -> bytes:
        return pickle.dumps({"entries": [], "pg_status": {}})

    def _dump_nccl_trace_json(self, entries: bool) -> bytes:
        return json.dumps({}).encode()


def test_a_backend_that_records_for_itself_is_asked_by_its_name(looked: Look) -> None:
    torch = PerBackend(enqueued=0, completed=0)
    told = looked(torch)
    (waits,) = told["active"]
    assert (waits["group"], waits["seq"], waits["op"], waits["done"]) == ("0", 2, "all_gather", False)
    assert {(group["name"], group["enqueued"], group["completed"]) for group in told["groups"]} == {
        ("0/gloo", 1, 1), ("0", 2, 1),
    }  # fmt: skip
    recorders = json.loads(flight())["recorders"]
    assert [(each["kind"], len(each["entries"])) for each in recorders] == [
        ("nccl", 0),
        ("fr", 1),
        ("nccl2", 2),
    ]


def test_a_torch_that_does_not_know_such_a_backend_is_not_asked_for_it(looked: Look) -> None:
    assert {group["name"] for group in looked(Recorder(entry(1, "all_reduce"), enqueued=1, completed=1))["groups"]} == {
        "0", "0/gloo",
    }  # fmt: skip
