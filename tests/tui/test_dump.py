"""What ranks answered to a dump, as lines: stacks, flight recorders, memory."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
import scripted as play
from each import for_each

from distui.runners.diagnosis.rank_memory import memory_values
from distui.runners.diagnosis.stack_text import SourceLines, frame_of
from distui.runners.reports.dump_report import together
from distui.runners.run.model import CommandDone
from distui.runners.run.state import RunState
from distui.tui.cli import main
from distui.tui.rows import dumps
from distui.tui.rows.glyphs import plain, row_width

GIB = 1 << 30


def stack(*frames: tuple[int, str]) -> str:
    lines = [f'  File "/srv/train.py", line {line} in {name}' for line, name in frames]
    return "\n".join(["Thread 0x01 (most recent call first):", *lines, ""])


def test_equal_stacks_are_told_once_and_the_others_show_where_they_part() -> None:
    texts = {str(rank): stack((50, "step"), (90, "<module>")) for rank in range(64)}
    texts["5"] = texts["9"] = stack((33, "load"), (90, "<module>"))
    assert plain(dumps.merged_rows("stacks", texts)) == [
        "62 ranks: 0-4, 6-8, 10-63",
        "▏   step      /srv/train.py:50",
        "▏   <module>  /srv/train.py:90",
        "",
        "2 ranks: 5, 9",
        "▏ › load      /srv/train.py:33",
        "▏   <module>  /srv/train.py:90",
        "",
        "▏ your code   › where the ranks diverge",
    ]
    assert plain(dumps.merged_rows("stacks", {"0": ""})) == ["rank 0", "    no Python runs there"]


def test_the_culprit_comes_first_though_more_ranks_wait() -> None:
    texts = {str(rank): stack((50, "step")) for rank in range(8)} | {"5": stack((33, "load"))}
    assert plain(dumps.stack_rows(texts, 80))[0] == "7 ranks: 0-4, 6-7"
    first, place, *_ = plain(dumps.stack_rows(texts, 80, culprits={5}))
    assert first == "rank 5"
    assert place.split() == ["▏", "›", "load", "/srv/train.py:33"]


def frames(*places: str) -> str:
    lines = [f'  File "{path}", line {line} in {name}' for path, line, name in map(str.split, places)]
    return "\n".join(["Thread 0x01 (most recent call first):", *lines, ""])


DEEP = {
    "0": frames(
        "/opt/conda/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py 3252 all_reduce",
        "/opt/conda/lib/python3.12/contextlib.py 81 inner",
        "/data/me/projects/language-models/experiments/2026-11/llama/train.py 410 optimizer_step_with_a_long_name",
        "/data/me/projects/language-models/experiments/2026-11/llama/train.py 512 <module>",
    )
}


@for_each("width", [56, 66, 80, 110, 186])
def test_stacks_take_the_width_and_keep_the_end_of_paths(width: int) -> None:
    rows = dumps.stack_rows(DEEP, width, lambda frame: f"source of {frame.line}")
    lines = plain(rows)
    assert max(map(row_width, rows)) <= width
    own = [line for line in lines if line.startswith("▏") and "your code" not in line]
    assert any("train.py:410" in line for line in own)
    assert "train.py:512" in "".join(own)
    assert "distributed_c10d.py:3252" in lines[1]
    assert not lines[1].startswith("▏")
    assert "site-packages" not in lines[1]
    assert not lines[2].startswith("▏"), "the standard library is not the user's"
    assert any("source of 410" in line for line in own)
    if width >= 110:
        assert "/data/me/projects/language-models/experiments/2026-11/llama/train.py:410" in "".join(own)
    if width >= 186:
        assert "torch/distributed/distributed_c10d.py:3252" in lines[1]
        assert "source of 3252" in lines[1], "beside, where there is room"
        assert "/data/me/projects/language-models/experiments/2026-11/llama/train.py:410" in lines[3]


def test_other_threads_follow_the_main_ones_without_those_of_distui() -> None:
    def answer(*names: str) -> str:
        head = "Thread 0x02 (most recent call first):"
        others = [f'{head}\n  File "{name}", line 7 in work' for name in names]
        return "\n\n".join([*others, stack((50, "step"))])

    texts = {
        "0": answer("/srv/feed.py", "/usr/lib/python3.12/threading.py"),
        "1": answer("/srv/feed.py", "/opt/distui/runners/inrank/control.py"),
    }
    assert plain(dumps.merged_rows("stacks", texts)) == [
        "2 ranks: 0-1",
        "▏   step  /srv/train.py:50",
        "",
        "2 other threads of ranks 0, 1",
        "▏   work  /srv/feed.py:7",
        "",
        "another thread of rank 0",
        "    work  /usr/lib/python3.12/threading.py:7",
        "",
        "▏ your code",
    ]


@for_each(
    ("path", "own"),
    [
        ("/srv/train.py", True),
        ("train.py", True),
        ("/srv/torch/train.py", True),
        ("/v/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.12/threading.py", False),
        ("/opt/pytorch/torch/nn/modules/module.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("/data/me/.distui/runners/inrank/hook.py", False),
    ],
)
def test_whose_frame_it_is(path: str, own: bool) -> None:
    assert frame_of(f"{path}:7 f").own is own


def test_a_source_line_is_shown_only_as_the_ranks_loaded_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\n    time.sleep(1)  # \x1b[31m\n")
    frame = frame_of(f"{script}:2 <module>")
    state = RunState().apply_all(play.stamped(play.running()))
    began = state.attempts[-1].began
    os.utime(script, (began - 5, began - 5))
    for node in state.nodes.values():
        node.host = platform.node()
    assert SourceLines(state).of(frame) == "time.sleep(1)  # \x1b[31m"
    rows = plain(dumps.stack_rows({"0": frames(f"{script} 2 <module>")}, 150, SourceLines(state).of))
    assert "time.sleep(1)  #" in rows[1]
    assert "\x1b" not in rows[1]
    assert SourceLines(state).of(frame._replace(line=9)) == ""
    assert SourceLines(state).of(frame._replace(path=str(tmp_path))) == ""
    os.utime(script, (began + 5, began + 5))  # edited since
    assert SourceLines(state).of(frame) == ""
    os.utime(script, (began - 5, began - 5))
    next(iter(state.nodes.values())).host = "elsewhere"
    assert SourceLines(state).of(frame) == ""


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
    assert "only NCCL's collectives, not gloo's" in said, "torch 2.7 has no recorder for gloo"


def test_where_torch_only_counts_the_dump_has_the_counts() -> None:
    kinds = [{"kind": kind, "entries": list[str]()} for kind in ("nccl", "fr")]

    def answer(called: int) -> str:
        group = {"name": "0", "desc": "default_pg", "enqueued": called, "completed": -1, "backend": "nccl2"}
        return json.dumps({"recorders": kinds, "counted": [group]})

    hint = "TORCH_DIST_USE_NCCL2=0, or the backend nccl-legacy, is recorded call by call."
    assert dumps.flight({0: answer(42), 1: answer(41), 2: answer(42)}) == [
        "Group 0 (default_pg): this torch only counts what its backend nccl2 does",
        "    ranks  called",
        "    0, 2       42",
        "    1          41",
        hint,
    ]
    both = json.loads(recorder(7, done=True)) | {"counted": json.loads(answer(3))["counted"]}
    lines = dumps.flight({0: json.dumps(both)})
    assert lines[0] == "Group 0 (default_pg): 1 ranks known", "what is recorded comes first"
    assert lines[-5:-3] == ["", "Group 0 (default_pg): this torch only counts what its backend nccl2 does"]
    assert lines[-1] == hint


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
            "--record lets the next ones show a curve:"
        ),
        "    rank 0: /n/rank-0.memory-1.pickle",
        "Rank 1: no CUDA in this rank.",
    ]
    assert "--record" not in "\n".join(dumps.memory({0: cuda(snapshot="/n/a", recording=True)}))
    (values,) = memory_values({3: cuda()})
    assert (values["rank"], values["devices"]["0"]["fragmentation"], values["devices"]["0"]["retries"]) == (
        3,
        0.1,
        2,
    )


def test_the_screen_has_the_same_table_and_what_cannot_be_read_as_it_came() -> None:
    texts = {"0": cuda(), "1": cuda()}
    assert plain(dumps.dump_rows("memory", texts, 80)) == plain(dumps.merged_rows("memory", texts))
    for odd in ("[]", '{"cuda": 3}', '{"rss_bytes": "much"}', "no hook answers"):
        assert plain(dumps.dump_rows("memory", {"0": odd}, 80)) == ["rank 0", f"  {odd}"]
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
