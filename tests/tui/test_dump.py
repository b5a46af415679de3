"""What ranks answered to a dump, as lines: stacks, flight recorders, memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distui.runners.model import CommandDone
from distui.tui.cli import main
from distui.tui.rows import dumps
from distui.tui.rows.glyphs import plain
from distui.tui.verbs.diagnose import together

GIB = 1 << 30


def stack(*frames: tuple[int, str]) -> str:
    lines = [f'  File "/srv/train.py", line {line} in {name}' for line, name in frames]
    return "\n".join(["Thread 0x01 (most recent call first):", *lines, ""])


def test_equal_stacks_are_told_once_and_the_others_show_where_they_part() -> None:
    texts = {str(rank): stack((50, "step"), (90, "<module>")) for rank in range(64)}
    texts["5"] = texts["9"] = stack((33, "load"), (90, "<module>"))
    assert plain(dumps.merged_rows("stacks", texts)) == [
        "62 ranks here: 0-4, 6-8, 10-63",
        "    step      /srv/train.py:50",
        "    <module>  /srv/train.py:90",
        "",
        "2 ranks here: 5, 9",
        "  › load      /srv/train.py:33",
        "    <module>  /srv/train.py:90",
    ]
    assert plain(dumps.merged_rows("stacks", {"0": ""})) == ["rank 0 alone", "    no Python runs there"]


def recorder(seq: int, *, done: bool, size: int = 20) -> str:
    entry = {
        "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "is_p2p": False,
        "profiling_name": "gloo:all_reduce", "state": "scheduled", "retired": done, "input_sizes": [[size]],
        "input_dtypes": ["Float"], "time_created_ns": 1_700_000_000 * 10**9,
        "frames": [{"filename": "/srv/train.py", "line": 50, "name": "step"}],
    }  # fmt: skip
    return json.dumps({"entries": [entry], "pg_status": {"0": {}}, "comm_lib_version": ""})


def test_flight_recorders_are_one_table_a_group() -> None:
    texts = {0: recorder(42, done=False), 1: recorder(42, done=False), 2: recorder(41, done=True)}
    assert dumps.flight(texts) == [
        "Group 0 (default_pg): 3 ranks known",
        "    ranks  called  completed  newest call",
        "    0, 1       42         41  all_reduce Float[20]  /srv/train.py:50 step",
        "    2          41         41  all_reduce Float[20]  /srv/train.py:50 step",
        "    Furthest behind is rank 2.",
        (
            "    Ranks 0, 1 wait in #42 all_reduce Float[20] (/srv/train.py:50 step) "
            "since 22:13:20 UTC; rank 2 has not called it."
        ),
    ]
    differs = dumps.flight({0: recorder(7, done=False), 1: recorder(7, done=False, size=21)})
    assert differs[-1] == (
        "    First difference in size: #7: all_reduce Float[20] at /srv/train.py:50 step (rank 0); "
        "all_reduce Float[21] at /srv/train.py:50 step (rank 1)."
    )
    assert dumps.flight({0: '{"entries": []}'}) == ["No rank has called a collective yet."]
    both = json.dumps({"recorders": [{"kind": kind, "entries": []} for kind in ("nccl", "fr")]})
    assert dumps.flight({0: both}) == ["No rank has called a collective yet."]
    older = json.dumps({"recorders": [{"version": "2.4", "kind": "nccl", "entries": []}]})
    (said,) = dumps.flight({0: older, 1: older})
    assert "what gloo does is n/a" in said, "torch 2.7 has no recorder for gloo"


def cuda(**more: Any) -> str:
    stats = {
        "allocated_bytes.all.current": 30 * GIB, "reserved_bytes.all.current": 40 * GIB,
        "allocated_bytes.all.peak": 35 * GIB, "reserved_bytes.all.peak": 40 * GIB,
        "inactive_split_bytes.all.current": 4 * GIB, "num_ooms": 0, "num_alloc_retries": 2, "total_bytes": 80 * GIB,
    }  # fmt: skip
    return json.dumps({"rss_bytes": GIB, "max_rss_bytes": 2 * GIB, "cuda": {"0": stats}} | more)


def test_memory_is_a_row_a_device() -> None:
    here = json.dumps({"rss_bytes": GIB, "max_rss_bytes": GIB, "note": "no CUDA in this rank"})
    lines = dumps.memory({0: cuda(snapshot="/n/rank-0.memory-1.pickle"), 1: here})
    assert lines == [
        "rank  resident     peak  GPU  allocated  reserved  peak alloc.  peak res.  split  OOMs",
        "   0   1.0 GiB  2.0 GiB    0   30.0 GiB  40.0 GiB     35.0 GiB   40.0 GiB    10%     0",
        "   1   1.0 GiB  1.0 GiB  n/a        n/a       n/a          n/a        n/a    n/a   n/a",
        "",
        (
            "Snapshots on the ranks' nodes, for https://pytorch.org/memory_viz; "
            "`distui dump RUN memory --record` lets the next ones show a curve:"
        ),
        "    rank 0: /n/rank-0.memory-1.pickle",
        "Rank 1: no CUDA in this rank.",
    ]
    assert "--record" not in "\n".join(dumps.memory({0: cuda(snapshot="/n/a", recording=True)}))
    (values,) = dumps.memory_values({3: cuda()})
    assert (values["rank"], values["devices"]["0"]["fragmentation"], values["devices"]["0"]["retries"]) == (
        3,
        0.1,
        2,
    )


def test_the_screen_has_the_same_table_and_what_cannot_be_read_as_it_came() -> None:
    texts = {"0": cuda(), "1": cuda()}
    assert plain(dumps.dump_rows("memory", texts)) == plain(dumps.merged_rows("memory", texts))
    for odd in ("[]", '{"cuda": 3}', '{"rss_bytes": "much"}', "no hook answers"):
        assert plain(dumps.dump_rows("memory", {"0": odd})) == ["rank 0", f"  {odd}"]
        with pytest.raises(ValueError, match=r"\w"):
            dumps.merged_rows("memory", {"0": odd})


def test_answers_to_parts_of_a_question_are_one() -> None:
    one = CommandDone("a", True, "stacks of ranks 0, 1; rank 2 is gone", {"0": "x", "1": "y"})
    other = CommandDone("b", True, "stacks of rank 32", {"32": "z"})
    refused = CommandDone("c", False, "gpu-c does not answer")
    assert together([one]) is one
    whole = together([one, other, refused])
    assert (whole.ok, list(whole.data)) == (True, ["0", "1", "32"])
    assert whole.text == "3 ranks answered; rank 2 is gone; gpu-c does not answer"
    assert together([refused, refused]).text == "gpu-c does not answer"
    assert not together([refused, refused]).ok


def test_record_is_for_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "any", "stacks", "--record"]) == 2
    assert "--record is for memory" in capsys.readouterr().err
