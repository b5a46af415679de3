"""Torch's own dumps of the flight recorder: what they show, and that a hostile one does nothing."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import HANG_S

from distui.runners.diagnosis import recorder_dumps
from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.recorder_dumps import DumpError, is_dump, loaded, rank_of_dump
from distui.runners.run.errors import RunError
from distui.tui.cli import main

SITE = {"name": "step", "filename": "/srv/job/train.py", "line": 50}


def entry(
    seq: int, op: str = "all_reduce", size: int = 20, done: bool = True, pg: int = 0
) -> dict[str, Any]:
    return {
        "pg_id": pg, "process_group": (str(pg), "default_pg"), "is_p2p": False, "collective_seq_id": seq,
        "profiling_name": f"nccl:{op}", "state": "completed" if done else "started", "retired": done,
        "input_sizes": [[size]], "input_dtypes": ["Float"], "time_created_ns": (1_700_000_000 + seq) * 10**9,
        "frames": [SITE],
    }  # fmt: skip


def dump(*entries: dict[str, Any], ranks: str = "[0, 1, 2]") -> dict[str, Any]:
    return {
        "version": "2.10", "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}}, "entries": list(entries),
    }  # fmt: skip


def told(tmp_path: Path, dumps: dict[int, dict[str, Any]], logs: dict[str, str] | None = None) -> Verdict:
    for rank, each in dumps.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(each, 2))
    for name, text in (logs or {}).items():
        (tmp_path / name).write_text(text)
    return judge(read_all([("job", tmp_path)]))


DONE = [entry(seq) for seq in range(1, 6)]


def test_the_rank_that_did_not_join(tmp_path: Path) -> None:
    waits = dump(*DONE, entry(6, done=False))
    verdict = told(tmp_path, {0: waits, 1: dump(*DONE), 2: waits})
    assert verdict.failed
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.rank, verdict.first.ranks) == ("rank-absent", 1, (1,))
    assert verdict.first.text == (
        "Rank 1 did not join #6 all_reduce Float[20] at /srv/job/train.py:50 step, in which ranks 0, 2 wait."
    )
    assert verdict.first.lines[0].file == "job/nccl_trace_rank_0"


@for_each(
    ("other", "what"),
    [
        (entry(6, size=21, done=False), "all_reduce Float[21]"),
        (entry(6, "broadcast", done=False), "broadcast Float[20]"),
    ],
)  # fmt: skip
def test_ranks_that_call_something_else(tmp_path: Path, other: dict[str, Any], what: str) -> None:
    waits = dump(*DONE, entry(6, done=False))
    verdict = told(tmp_path, {0: waits, 1: dump(*DONE, other), 2: waits})
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.ranks) == ("coll-mismatch", (1,))
    assert f"{what} at /srv/job/train.py:50 step (rank 1)" in verdict.first.text


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    waits = dump(*DONE, entry(6, done=False))
    verdict = told(tmp_path, {0: waits, 2: waits})
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.rank) == ("rank-absent", 1)
    assert verdict.first.text.endswith("; of rank 1 there is no dump.")


def test_healthy_dumps_say_nothing(tmp_path: Path) -> None:
    verdict = told(tmp_path, {rank: dump(*DONE) for rank in range(3)})
    assert (verdict.first, verdict.failed, verdict.findings) == (None, False, ())


def test_all_wait(tmp_path: Path) -> None:
    verdict = told(tmp_path, {rank: dump(*DONE, entry(6, done=False)) for rank in range(3)})
    assert [(each.id, each.role) for each in verdict.findings] == [("collective-stuck", "hint")]


def test_beside_a_log_that_shows_the_cause_they_are_symptoms(tmp_path: Path) -> None:
    waits = dump(*DONE, entry(6, done=False))
    trace = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in f\nKeyError: 1\n'
    verdict = told(tmp_path, {0: waits, 1: dump(*DONE), 2: waits}, {"rank1.log": trace})
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.rank) == ("died-exception", 1)
    assert [each.id for each in verdict.victims] == ["rank-absent"]


def test_other_ways_to_keep_a_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waits, gone = dump(*DONE, entry(6, done=False)), dump(*DONE)
    (tmp_path / "trace_0.gz").write_bytes(gzip.compress(pickle.dumps(waits)))
    (tmp_path / "trace_1").write_text(json.dumps(gone))
    (tmp_path / "trace_2").write_bytes(pickle.dumps(waits, 5))
    assert main(["diagnose", *(str(path) for path in sorted(tmp_path.iterdir()))]) == 1
    assert capsys.readouterr().out.startswith("First cause: rank-absent (rank 1): Rank 1 did not join #6 ")


def test_ranks_of_names() -> None:
    assert rank_of_dump("/tmp/nccl_trace_rank_12") == 12
    assert rank_of_dump("x/fr3.pickle") == 3
    assert rank_of_dump("trace") is None


def test_of_a_long_dump_little_is_kept() -> None:
    recorders = recorder_dumps.Recorders()
    data = pickle.dumps(dump(*(entry(seq) for seq in range(1, 2_001))), 2)
    recorders.add(0, "x", data)
    (group,) = recorders._groups.values()
    assert (len(group.members[0].calls), group.members[0].called) == (recorder_dumps.KEPT, 2_000)


# ---- what is hostile


class Payload:
    """Calls something where pickle.loads reads it."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.args


def within(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(dump() | {"more": value}, protocol)


@for_each("protocol", [2, 3, 4, 5])
@for_each("how", ["os.system", "eval", "class", "method"])
def test_nothing_is_executed(tmp_path: Path, protocol: int, how: str) -> None:
    mark = tmp_path / "executed"
    value: Any = {
        "os.system": Payload(os.system, f"touch {mark}"),
        "eval": Payload(eval, f"open({str(mark)!r}, 'w')"),
        "class": tmp_path,
        "method": Payload("x".join, ["a"]),
    }[how]
    data = within(value, protocol)
    assert is_dump(data[:8192])
    with pytest.raises(DumpError):
        loaded(data)
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    with pytest.raises(RunError, match="is not a dump of a flight recorder that can be read"):
        read_all([("nccl_trace_rank_0", tmp_path / "nccl_trace_rank_0")])
    assert not mark.exists()


HOSTILE = {
    "a text of 4 GiB": b"\x80\x02}X\x09\x00\x00\x00pg_configX\xff\xff\xff\xff",
    "bytes of 8 EiB": b"\x80\x04}X\x09\x00\x00\x00pg_config\x8e" + b"\xff" * 7 + b"\x7f",
    "an extension": b"\x80\x02}X\x09\x00\x00\x00pg_config\x82\x01s.",
    "persistent": b"\x80\x02}X\x09\x00\x00\x00pg_configPx\ns.",
    "global": b"\x80\x02}X\x09\x00\x00\x00pg_configcos\nsystem\ns.",
    "a set": b"\x80\x04}X\x09\x00\x00\x00pg_config\x8fs.",
    "no end": b"\x80\x02}X\x09\x00\x00\x00pg_config",
    "an empty stack": b"\x80\x02}X\x09\x00\x00\x00pg_config0000000.",
    "a list": b"\x80\x02]X\x09\x00\x00\x00pg_configa.",
    "keys that are numbers": b"\x80\x02}X\x09\x00\x00\x00pg_config}\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x10Nss.",
}


@for_each("name", HOSTILE)
def test_hostile_pickles(name: str) -> None:
    assert is_dump(HOSTILE[name])
    with pytest.raises(DumpError) as raised:
        loaded(HOSTILE[name])
    assert "\n" not in str(raised.value)


def test_a_place_in_a_table_of_32_gib() -> None:
    """Python's unpickler in C makes the whole table."""
    assert loaded(b"\x80\x02}X\x09\x00\x00\x00pg_configNr\xff\xff\xff\x7fs.") == {"pg_config": None}


def test_what_stands_for_more_than_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that hold each other: twelve of them are 2^48."""
    monkeypatch.setattr(recorder_dumps, "MOST_VALUES", 200_000)
    value: Any = []
    for _ in range(12):
        value = [value] * 16
    with pytest.raises(DumpError, match="it holds too much"):
        loaded(within(value))
    value = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(DumpError, match="it holds too much"):
        loaded(within(value))
    deep = b"\x80\x02}X\x09\x00\x00\x00pg_config" + b"]" * 100_000 + b"a" * 99_999 + b"s."
    with pytest.raises(DumpError, match="it holds too much"):
        loaded(deep)
    with pytest.raises(DumpError):
        loaded(b'{"version":' + b"[" * 100_000)


def test_steps_and_bytes_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorder_dumps, "MOST_STEPS", 1000)
    with pytest.raises(DumpError, match="more than 1,000 steps"):
        loaded(within(list(range(1000))))
    monkeypatch.setattr(recorder_dumps, "MOST_BYTES", 1 << 20)
    (tmp_path / "nccl_trace_rank_0").write_bytes(within("x" * (2 << 20)))
    (tmp_path / "a.log").write_text("step 1\n")
    reading = read_all([("job", tmp_path)])
    assert list(reading.unread) == [
        "job/nccl_trace_rank_0 is not a dump of a flight recorder that can be read (it has more than 1 MiB)"
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["entries", "pg_status", "pg_config", "members", "recorders"]), VALUES, max_size=5
    ),
    st.dictionaries(st.sampled_from(list(entry(1))), VALUES, max_size=6),
)
def test_dumps_of_any_content(top: dict[str, Any], one: dict[str, Any]) -> None:
    for value in (dump() | top, dump(entry(1) | one, entry(2))):
        recorders = recorder_dumps.Recorders()
        try:
            recorders.add(0, "a", pickle.dumps(value))
            recorders.add(1, "b", pickle.dumps(dump(*DONE)))
        except DumpError:
            continue
        list(recorders.hits())


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 200))
def test_pickles_that_are_damaged(noise: bytes, at: int) -> None:
    data = pickle.dumps(dump(*DONE[:2]), 2)
    for damaged in (data[:at] + noise + data[at + len(noise) :], data[: len(data) - at], data[:20] + noise):
        try:
            loaded(damaged)
        except DumpError:
            pass


# ---- the real recorder

SCRIPT = """
import os, pickle, sys, threading, time, torch, torch.distributed as dist
from torch._C import _distributed_c10d
dist.init_process_group("gloo")
rank, tensor = dist.get_rank(), torch.ones(20)
for _ in range(5):
    dist.all_reduce(tensor)
def wait():
    dist.all_reduce(tensor)
if rank != 1:
    threading.Thread(target=wait, daemon=True).start()
def waits():
    entries = pickle.loads(_distributed_c10d._dump_fr_trace())["entries"]
    return len(entries) == 6 - (rank == 1) and all(entry["retired"] for entry in entries[:5])
for _ in range(600):
    if waits():
        break
    time.sleep(0.05)
open(f"{sys.argv[1]}/nccl_trace_rank_{rank}", "wb").write(_distributed_c10d._dump_fr_trace())
open(f"{sys.argv[0]}.{rank}", "w").close()
while not all(os.path.exists(f"{sys.argv[0]}.{other}") for other in range(3)):
    time.sleep(0.05)
os._exit(0)
"""


@pytest.mark.real
@pytest.mark.torch
def test_dumps_of_the_real_recorder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, folder = tmp_path / "job.py", tmp_path / "dumps"
    script.write_text(SCRIPT)
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", script, folder],
        env=os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"},
        check=True, timeout=HANG_S, capture_output=True,
    )  # fmt: skip
    data = (folder / "nccl_trace_rank_0").read_bytes()
    assert {step.name for step, _, _ in pickletools.genops(data)} <= {
        *recorder_dumps._STEPS,
        "SETITEM",
        "SETITEMS",
    }
    if not pickle.loads(data)["entries"]:
        pytest.skip("this torch records no collectives of gloo")
    verdict = judge(read_all([("dumps", folder)]))
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.ranks) == ("rank-absent", (1,))
    assert verdict.first.text.startswith("Rank 1 did not join #6 all_reduce Float[20] at ")
