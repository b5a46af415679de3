"""Whose a line is: prefixes of launchers and shippers, and the names of files."""

from __future__ import annotations

import re

from each import for_each

from distui.runners.diagnosis.file_names import LocalRanks, Whose, older_attempts, owners
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.line_formats import LEARNED, SHIPPED, TAGS
from distui.runners.diagnosis.log_findings import LogFinding
from distui.runners.diagnosis.prefixes import learned, unshipped, writer
from distui.runners.diagnosis.reading import Reading

TRACE = [
    "step 1 loss 2.0", "step 2 loss 1.9", "Traceback (most recent call last):",
    '  File "/app/train.py", line 33, in <module>', "    main()",
    '  File "/app/train.py", line 21, in main', '    x = batch["labels"]', "KeyError: 'labels'",
]  # fmt: skip


def first(lines: list[str], name: str = "a.log") -> LogFinding:
    reading = Reading()
    reading.open(name)
    reading.learn(lines)
    reading.feed(lines)
    told = judge(reading).first
    assert told is not None
    assert told.text == "A rank raised KeyError: 'labels' at train.py:21."
    return told


PREFIXES: list[tuple[str, int | None, str]] = [
    ("", None, ""),
    ("[default3]:", 3, ""),
    ("[trainer3]:", 3, ""),
    ("[0]:", 0, ""),
    ("[rank3]: ", 3, ""),
    ("[trainer 3/8] ", 3, ""),
    ("[job1,3]<stderr>: ", 3, ""),
    ("gpu-b:3 ", 3, "gpu-b"),
    ("gpu-b.local (rank 3): ", 3, "gpu-b.local"),
    ("[gpu-b rank 3] ", 3, "gpu-b"),
    ("| 17723664{:02}000 | ", None, ""),
    ("  [rank3]: ", 3, ""),
    ("<info>    [2026-03-01T12:00:07.123456Z] 8a2b3c4d || [rank3]: ", 3, ""),
    ("[2026-03-01 12:00:{:02}Z] [8a2b3c4d] || ", None, ""),
    ("[default1]:[rank3]: ", 3, ""),
    ("[RANK 3] ", 3, ""),
    ("[rank: 3] ", 3, ""),
    ("Rank 3: ", 3, ""),
    ("3: ", 3, ""),
    (" 3: ", 3, ""),
    ("[3] ", 3, ""),
    ("12:00:{:02} ", None, ""),
    ("12:00:{:02},123 ", None, ""),
    ("7:{:02} ", None, ""),
    ("12:00:{:02} gpu-b: 3: ", None, "gpu-b"),
    ("gpu-b: ", None, "gpu-b"),
    ("10.0.0.4: ", None, "10.0.0.4"),
    ("2026-03-01 12:00:{:02} 10.0.0.4 [3] ", None, "10.0.0.4"),
    ("gpu-b: [rank3]: ", 3, "gpu-b"),
    ("gpu-b: 3: ", None, "gpu-b"),
    ("(RayTrainWorker pid=4021, ip=10.0.0.4) ", None, "10.0.0.4"),
    ("(RayTrainWorker pid=4021) ", None, ""),
    ("(RayTrainWorker pid=4021) [rank3]: ", 3, ""),
    ("(worker3, rank=3, pid=4711, ip=10.0.0.4) ", None, "10.0.0.4"),
    ("(worker3, rank=3, pid=4711, ip=10.0.0.4) [rank9]: ", 9, "10.0.0.4"),
    ("[pod/train-3/main] ", None, "train-3"),
    ("[pod/train-3/main] 2026-03-01T12:00:{:02}.123456789Z ", None, "train-3"),
    ("train-worker-3 pytorch ", None, "train-worker-3"),
    ("worker-3  | ", None, "worker-3"),
    ("algo-1-x7f3q  | ", None, "algo-1-x7f3q"),
    ("[1,3]<stderr>:", 3, ""),
    ("[1,3]<stderr>: ", 3, ""),
    ("[prterun-gpu-a-71@1,3]<stderr>: ", 3, ""),
    ("[1,mpirank:3,algo-2]<stderr>:", 3, "algo-2"),
    ("Sun Mar  1 12:00:{:02} 2026[1,3]<stderr>:", 3, ""),
    ("trainer/3 ", 3, ""),
    ("trainer/0 [3]:", 3, "trainer/0"),
    ("2026-03-01T12:00:{:02}.123456789Z stderr F ", None, ""),
    ("2026-03-01T12:00:{:02}.123456789Z stderr F [rank3]: ", 3, ""),
    ("Mar  1 12:00:{:02} gpu-b python[4711]: ", None, "gpu-b"),
    ("<13>Mar  1 12:00:{:02} gpu-b python[4711]: [rank3]: ", 3, "gpu-b"),
    ("2026-03-01T12:00:{:02}+0000 gpu-b python[4711]: ", None, "gpu-b"),
    ("2026-03-01T12:00:{:02}.123456+01:00 gpu-b torchrun[4711]: ", None, "gpu-b"),
    ("Sun 2026-03-01 12:00:{:02} UTC gpu-b torchrun[4711]: ", None, "gpu-b"),
    ("17723664{:02}.123456 gpu-b torchrun[4711]: ", None, "gpu-b"),
    ("<13>1 2026-03-01T12:00:{:02}.123Z gpu-b python 4711 - - ", None, "gpu-b"),
    ('<13>1 2026-03-01T12:00:{:02}.123Z gpu-b python 4711 x [a@1 b="c"] ', None, "gpu-b"),
    ("2026-03-01T12:00:{:02}.1234567Z ", None, ""),
    ("2026-03-01T12:00:{:02}.123000+00:00 train/train-3/abcdef ", None, "train/train-3/abcdef"),
    ("INFO 03-01 12:00:{:02} [engine.py:487] ", None, ""),
    ("704.7s\t{:02}\t", None, ""),
    ("(VllmWorker rank=3 pid=4711) ", 3, ""),
    ("(node-2, pid=4711) ", None, "node-2"),
    ("(raylet) ", None, ""),
    ("⟨train-3⟩ ", None, "train-3"),
    ("2026-03-01T12:00:{:02}Z ⟨train-3 rank 3⟩ ", 3, "train-3"),
    ("⟨rank 3⟩ ", 3, ""),
]


@for_each(("prefix", "rank", "host"), PREFIXES)
def test_prefixes_of_launchers_and_shippers(prefix: str, rank: int | None, host: str) -> None:
    """All lines have one writer, at another second each."""
    told = first([prefix.format(at) + line for at, line in enumerate(TRACE)])
    assert (told.rank, told.host) == (rank, host)


def test_every_format_of_the_table_has_an_example_here() -> None:
    lines = [case[0].format(7) + TRACE[0] for case in PREFIXES]
    lines += [unshipped(line) for line in lines]
    missing = [
        each.name for each in (*SHIPPED, *TAGS) if not any(re.match(each.pattern, line) for line in lines)
    ]
    assert missing == []
    for pattern, _ in LEARNED:
        assert any(pattern.match(line) for line in lines), pattern


@for_each("form", ["{0}: ", "[{0}] ", "[default{0}]:", "[1,{0}]<stderr>:", "w{0}  | ", "[pod/t-{0}/main] "])
def test_lines_of_several_ranks_among_each_other(form: str) -> None:
    other = [*TRACE[:-1], "ValueError: other"]
    lines = [
        form.format(rank) + text
        for four in zip(TRACE, other, TRACE, TRACE, strict=True)
        for rank, text in enumerate(four)
    ]
    reading = Reading()
    reading.open("a.log")
    reading.learn(lines)
    reading.feed(lines)
    texts = {one.text: one.count for one in judge(reading).findings}
    assert texts == {
        "A rank raised KeyError: 'labels' at train.py:21.": 3,
        "A rank raised ValueError: other at train.py:21.": 1,
    }


@for_each(
    "lines",
    [
        ["Epoch: 1", "Loss: 2", "Epoch: 2", "Loss: 1"],
        [f"{at}: step" for at in range(20)],
        [f"step {at} loss 2" for at in range(20)],
        [f"pre-training step {at}" for at in range(20)],
        ["2026-03-01 12:00:07 INFO trainer: x"] * 9,
        ["one line"],
        ["", ""],
    ],
)
def test_what_only_looks_like_a_prefix(lines: list[str]) -> None:
    assert learned(lines) is None
    assert {writer(line, None)[:4] for line in lines} == {(None, "", None, "")}


@for_each(
    ("line", "rank"),
    [
        ("  [rank3]: Traceback (most recent call last):", 3),
        (
            "<info>    [2026-03-01T12:00:07.123456Z] 8a2b3c4d || [rank3]: Traceback (most recent call last):",
            3,
        ),
        ("[2026-03-01T12:00:07Z] [8a2b3c4d] || Traceback (most recent call last):", None),
        ("[2026-03-01T12:00:07.123456Z] 8a2b3c4d || Traceback (most recent call last):", None),
    ],
)
def test_prefixes_that_a_page_and_determined_write(line: str, rank: int | None) -> None:
    wrote = writer(line, None)
    assert (wrote.rank, wrote.text) == (rank, TRACE[2])


def test_local_ranks_are_those_of_the_job_where_lines_say_which() -> None:
    """The log of node 1: torchrun's own prefix has the local rank, torch's the other."""
    lines = [f"[default1]:{line}" for line in TRACE]
    assert first(lines).rank == 1
    assert first([*lines, "[default0]:[rank8]:[E301 12:00:00.1 x.cpp:1] failed to do it"]).rank == 9
    conflict = ["[default0]:[rank8]: x failed", "[default0]:[rank4]: x failed"]
    assert first([*lines, *conflict]).rank is None


def test_which_process_of_ray_is_which_rank() -> None:
    lines = [
        "(TorchTrainer pid=70) Started distributed worker processes: ",
        "(TorchTrainer pid=70) - (node_id=8a, ip=10.0.0.4, pid=4021) world_rank=3, local_rank=1, node_rank=1",
        *(f"(RayTrainWorker pid=4021, ip=10.0.0.4) {line}" for line in TRACE),
    ]
    assert first(lines).rank == 3
    lines[:2] = [
        "(RayTrainWorker pid=4021, ip=10.0.0.4) Setting up process group for: env:// [rank=5, world_size=8]"
    ]
    assert first(lines).rank == 5


ELASTIC = "logs/none_x7f3q/attempt_0/{}/std{}.log"


@for_each(
    ("names", "expected"),
    [
        (["rank7.log"], [Whose(7)]),
        (["/tmp/nccl_trace_rank_3"], [Whose(3)]),
        (["logs.tar.gz:node0/rank1.log"], [Whose(1, "node0")]),
        (["job_123_4.out"], [Whose(4)]),
        (["train-4711-12.err"], [Whose(12)]),
        (["slurm-4711_3.out"], [None]),  # of an array
        (["train_2026_03.log"], [None]),
        (["train-2026-03-01.log"], [None]),
        (["slurm-4711.out"], [None]),
        (["train.log", "train.log.1", "train.log.2"], [None] * 3),
        (["log_0.txt", "log_1.txt"], [Whose(0), Whose(1)]),
        (["log_0.txt"], [None]),
        (["step_0.log", "step_1.log"], [None, None]),
        (["0/out.log", "1/out.log"], [Whose(0), Whose(1)]),
        (["gpu-a/train.log", "gpu-b/train.log"], [Whose(host="gpu-a"), Whose(host="gpu-b")]),
        (["x/gpu-a/rank0.log", "x/gpu-b/rank1.log"], [Whose(0, "gpu-a"), Whose(1, "gpu-b")]),
        (
            ["a/0.log", "a/1.log", "b/0.log", "b/1.log"],
            [Whose(0, "a", "a"), Whose(1, "a", "a"), Whose(0, "b", "b"), Whose(1, "b", "b")],
        ),
        (["train/a.log", "eval.log"], [None, None]),
        (["rank_0/a.log", "rank_1/a.log"], [Whose(0), Whose(1)]),
        (["ip-10-0-0-4.log"], [Whose(host="ip-10-0-0-4")]),
        ([ELASTIC.format(0, "out"), ELASTIC.format(1, "err")], [Whose(at, "", "logs/none_x7f3q") for at in (0, 1)]),
        ([f"ns_train-3_{'0' * 8}-aaaa-bbbb-cccc-{'0' * 12}/main/0.log"], [Whose(host="train-3")]),
        ([f"train-3_ns_main-{'0f' * 32}.log"], [Whose(host="train-3")]),
    ],
)  # fmt: skip
def test_what_names_of_files_say(names: list[str], expected: list[Whose | None]) -> None:
    told = owners(names)
    assert [told.get(name) for name in names] == expected


def test_only_the_newest_attempt_is_read() -> None:
    names = [f"x/{run}/attempt_{at}/0/stderr.log" for run, at in (("a", 0), ("a", 1), ("b", 0))]
    assert older_attempts(names) == {names[0]}


def test_local_ranks_of_two_nodes_are_not_guessed() -> None:
    local = LocalRanks()
    local.add("a", 1)
    assert local.rank("a", 1) == 1
    local.add("b", 1, 9)
    assert (local.rank("a", 1), local.rank("b", 1), local.rank("b", 0)) == (None, 9, 8)
    assert set(local.ranks()) == {9}
    local.add("b", 1, 10)
    assert local.rank("b", 1) is None


def test_who_is_missing_among_the_files() -> None:
    reading = Reading()
    watchdog = (
        "[E301 12:10:09.1 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=21, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600060 milliseconds"
    )
    for rank in range(4):
        reading.open(f"job_123_{rank}.out")
        reading.feed(["step 1"] if rank == 3 else [watchdog.format(rank)])
    told = judge(reading).first
    assert told is not None
    assert told.text.startswith("Rank 3 did not come")
