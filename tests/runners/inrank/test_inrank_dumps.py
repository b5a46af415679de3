"""What a rank tells of its flight recorders and its memory; CUDA is a double, for there is none on a test machine."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from distui.runners.diagnosis import rank_dumps
from distui.runners.inrank import memory_dump

SCRIPT = """
import json, sys, time
import torch, torch.distributed as dist
from distui.runners.inrank import collectives as dumps
try:
    dumps.flight()
except RuntimeError as error:
    early = str(error)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
other = dist.new_group([0])
def step():
    dist.all_reduce(torch.ones(20))
dist.barrier(group=other)
for _ in range(300):
    step()
for _ in range(3000):  # gloo notes the end of a collective in a thread of its own
    told = json.loads(dumps.flight())
    if all(entry["retired"] for one in told["recorders"] for entry in one["entries"]):
        break
    time.sleep(0.02)
print(json.dumps({"early": early, "told": told, "inductor": "torch._inductor.codecache" in sys.modules}))
"""


@pytest.mark.real
@pytest.mark.torch
def test_a_recorder_as_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    assert "no process group yet" in said["early"]
    assert not said["inductor"], "a dump imports no compiler into the training"
    told = said["told"]
    assert told["members"] == {"0": [0], "1": [0]}
    entries = [entry for one in told["recorders"] for entry in one["entries"]]
    assert [entry["profiling_name"] for entry in entries[:2]] == ["gloo:barrier", "gloo:all_reduce"]
    assert len(entries) == 129, "the newest, and the last of the group that is seldom used"
    assert sum(one["left_out"] for one in told["recorders"]) == 172
    assert entries[-1]["frames"][0]["name"] == "step"
    groups = {group.name: group for group in rank_dumps.merged_recorders({0: json.dumps(told)})}
    assert [(part.called, part.completed) for part in groups["0"].parts] == [(300, 300)]
    assert [(part.called, part.completed) for part in groups["1"].parts] == [(1, 1)]


def cuda(monkeypatch: pytest.MonkeyPatch, started: bool = True) -> list[int]:
    """torch with CUDA, as far as a dump asks; what was asked to be recorded."""
    stats = {"reserved_bytes.all.peak": 10, "reserved_bytes.all.current": 8, "segment.all.peak": 3}
    recorded: list[int] = []

    def keep(max_entries: int) -> None:
        recorded.append(max_entries)

    memory = SimpleNamespace(_snapshot=lambda: {"segments": [1]}, _record_memory_history=keep)
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: started,
        device_count=lambda: 2,
        memory_stats=lambda device: stats if device == 1 else {"reserved_bytes.all.peak": 0},
        get_device_properties=lambda device: SimpleNamespace(total_memory=80),
        memory=memory,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(memory_dump, "_recording", False)
    return recorded


def test_memory_of_the_devices_that_are_used_and_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = cuda(monkeypatch)
    monkeypatch.setenv("DISTUI_RANK_FILES", str(tmp_path / "rank-3"))
    told = json.loads(memory_dump.memory())
    assert list(told["cuda"]) == ["1"]
    assert told["cuda"]["1"]["reserved_bytes.all.current"] == 8
    assert told["cuda"]["1"]["total_bytes"] == 80
    assert "segment.all.peak" not in told["cuda"]["1"]
    assert 0 < told["rss_bytes"] <= told["max_rss_bytes"]
    assert told["recording"] is False
    (path,) = tmp_path.iterdir()
    assert told["snapshot"] == str(path)
    assert path.name.startswith("rank-3.memory-")
    assert pickle.loads(path.read_bytes()) == {"segments": [1]}
    assert "recorded from now on" in memory_dump.record()
    assert recorded == [100_000]
    assert json.loads(memory_dump.memory())["recording"] is True


def test_a_snapshot_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch)
    monkeypatch.setenv("DISTUI_RANK_FILES", "/nonexistent/rank-0")
    told = json.loads(memory_dump.memory())
    assert "snapshot" not in told
    assert told["snapshot_error"].endswith("could not be written: No such file or directory")


def test_a_rank_that_has_not_used_cuda_does_not_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = cuda(monkeypatch, started=False)
    assert json.loads(memory_dump.memory())["note"] == memory_dump.NO_CUDA
    with pytest.raises(RuntimeError, match="no CUDA in this rank"):
        memory_dump.record()
    assert recorded == []
