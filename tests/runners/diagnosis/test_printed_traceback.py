"""Tracebacks as people have them: cut, boxed, coloured, in groups and tables, behind words, carried by others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.log_text import without_codes
from distui.runners.diagnosis.reading import Reading
from distui.runners.inrank.printed_traceback import PrintedTraceback, begins

HEAD = "Traceback (most recent call last):"
FRAMES = [
    '  File "/app/train.py", line 33, in <module>', "    main()", '  File "/app/train.py", line 21, in main',
    '    x = batch["labels"]', "        ~~~~~^^^^^^^^^^",
]  # fmt: skip
TRACE = [HEAD, *FRAMES, "KeyError: 'labels'"]
RIGHT = "A rank raised KeyError: 'labels' at train.py:21."
BOX = [
    "╭─────────────────── Traceback (most recent call last) ────────────────────╮",
    "│ /app/train.py:33 in <module>                                             │",
    "│                                                                          │",
    "│ ❱ 33     main()                                                          │",
    "│ /app/train.py:21 in main                                                 │",
    "│ ╭───────── locals ──────────╮                                            │",
    "│ │ batch = {'x': 1}          │                                            │",
    "│ ╰───────────────────────────╯                                            │",
    "╰──────────────────────────────────────────────────────────────────────────╯",
    "KeyError: 'labels'",
]
GROUP = [
    "  + Exception Group Traceback (most recent call last):", '  |   File "/app/train.py", line 33, in <module>',
    "  |     main()", "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    "  +-+---------------- 1 ----------------", "    | Traceback (most recent call last):",
    '    |   File "/app/train.py", line 21, in main', '    |     x = batch["labels"]', "    | KeyError: 'labels'",
    "    +------------------------------------",
]  # fmt: skip
TABLE = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "/app/train.py FAILED", "-" * 60,
    "Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-01_12:00:07", "  host      : gpu-b",
    "  rank      : 3 (local_rank: 3)", "  exitcode  : 1 (pid: 4711)", "  error_file: /tmp/x/error.json",
]  # fmt: skip
OF_TORCHRUN = [HEAD, '  File "/usr/bin/torchrun", line 8, in <module>', "    sys.exit(main())", *TABLE]


def verdict(lines: Sequence[str]) -> Verdict:
    reading = Reading()
    reading.open("a.log")
    reading.feed(["step 1 loss 2.0", *map(without_codes, lines)])
    return judge(reading)


def headline(lines: Sequence[str]) -> str:
    told = verdict(lines)
    assert told.failed
    return told.first.text if told.first else ""


FORMS = {
    "whole": TRACE,
    "without its head": TRACE[1:],
    "cut at the start": FRAMES[1:] + TRACE[-1:],
    "from a frame on": FRAMES[2:] + TRACE[-1:],
    "a box": BOX,
    "a box without its head": BOX[3:],
    "without indentation": [line.strip() for line in TRACE],
    "without indentation or head": [line.strip() for line in FRAMES] + TRACE[-1:],
    "a box of a rank": [f"[rank3]: {line}" for line in BOX],
    "a group": GROUP,
    "a table": [f"| {line:<70} |" for line in TRACE],
    "an ERROR line": ["2026-03-01 12:00:07,123 - root - ERROR - Training failed: " + HEAD, *TRACE[1:]],
    "one line": ["ERROR - " + r"\n".join(TRACE)],
    "behind a bar": ["  3%|▎         | 30/1000 [00:10<05:00,  3.2it/s]" + HEAD, *TRACE[1:]],
    "colours of 3.13": [
        HEAD, '  File \x1b[35m"/app/train.py"\x1b[0m, line \x1b[35m21\x1b[0m, in \x1b[35mmain\x1b[0m',
        '    x = \x1b[31mbatch\x1b[0m\x1b[1;31m["labels"]\x1b[0m', "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'labels'\x1b[0m",
    ],
    "loguru": [
        "2026-03-01 12:00:07.123 | ERROR    | __main__:main:21 - failed", HEAD, "",
        '  File "/app/train.py", line 33, in <module>', "    main()", "    └ <function main at 0x7f>", "",
        '> File "/app/train.py", line 21, in main', '    x = batch["labels"]',
        "        │     └ 'x'", "        └ {}", "", "KeyError: 'labels'",
    ],
    "of a worker process": [
        "multiprocessing.pool.RemoteTraceback: ", '"""', *TRACE, '"""', "",
        "The above exception was the direct cause of the following exception:", "", HEAD,
        '  File "/app/a.py", line 3, in <module>', "    pool.map(f)", "KeyError: 'labels'",
    ],
    "of a task of Ray": [
        HEAD, '  File "/app/drive.py", line 9, in <module>', "    ray.get(x)",
        "ray.exceptions.RayTaskError(KeyError): \x1b[36mray::train()\x1b[39m (pid=4021, ip=10.0.1.2)", *TRACE[1:],
    ],
    "of a task of Ray by its short name": [
        "types.RayTaskError(KeyError): ray::T.train() (pid=4021, ip=10.0.1.2)", *TRACE[1:-1],
        "    raise skipped from cause(skipped)", "ray.exceptions.RayTaskError(KeyError): ray::f() (pid=7)", *TRACE[1:],
    ],
    "of a spawned process": [
        HEAD, '  File "/app/x.py", line 9, in <module>', "    mp.spawn(f)",
        "torch.multiprocessing.spawn.ProcessRaisedException: ", "",
        "-- Process 3 terminated with the following error:", *TRACE,
    ],
    "before a launcher's": [
        *TRACE, HEAD, '  File "/usr/bin/deepspeed", line 6, in <module>', "    main()",
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    ],
    "in torchrun's table": [*OF_TORCHRUN, "  traceback : " + HEAD, *("  " + line for line in TRACE[1:]), "  "],
    "before torchrun's table": [*(f"[rank3]: {line}" for line in TRACE), *OF_TORCHRUN, "  traceback : To enable it see"],
    "hydra": ["Error executing job with overrides: ['a=1']", *TRACE, "", "Set HYDRA_FULL_ERROR=1"],
}  # fmt: skip


@for_each("form", FORMS)
def test_every_form_is_read(form: str) -> None:
    assert headline(FORMS[form]) == RIGHT


LOADING = (
    "A rank loads a checkpoint that does not fit the model: RuntimeError: Error(s) in loading state_dict for Net: "
    'Missing key(s) in state_dict: "a.weight". (train.py:21).'
)


@for_each(
    ("message", "text"),
    [
        (
            ["RuntimeError: Failed to run step", "  reason:", "  CUDA out of memory. Tried to allocate 2.00 GiB."],
            "A rank ran out of GPU memory (train.py:21).",
        ),
        (
            ["RuntimeError: Error(s) in loading state_dict for Net:", '\tMissing key(s) in state_dict: "a.weight". '],
            LOADING,
        ),
        (["ValueError: ", "field 3 is empty"], "A rank raised ValueError: field 3 is empty at train.py:21."),
        (["ValueError: bad", "12:00:07 INFO next"], "A rank raised ValueError: bad at train.py:21."),
        (["StopTraining: no budget left"], "A rank raised StopTraining: no budget left at train.py:21."),
        (["app.errors.Oops: bad"], "A rank raised Oops: bad at train.py:21."),
    ],
)  # fmt: skip
def test_all_lines_of_a_message_count(message: list[str], text: str) -> None:
    assert headline([HEAD, *FRAMES, *message]) == text


def test_what_a_checkpoint_exception_carries_is_of_its_rank() -> None:
    told = verdict(
        [
            HEAD, *FRAMES,
            "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([3])",
            "Traceback (most recent call last): (RANK 3)", '  File "/app/ckpt.py", line 12, in write', "    f.write(x)",
            "OSError: [Errno 28] No space left on device",
        ]
    )  # fmt: skip
    assert told.first is not None
    assert (told.first.id, told.first.rank) == ("died-disk-full", 3)
    assert [each.id for each in told.findings] == ["died-disk-full"]


def test_a_wrapper_of_ray_says_only_that_it_failed() -> None:
    told = verdict(
        [HEAD, *FRAMES[:2], "ray.train.base_trainer.TrainingFailedError: The Ray Train run failed. See the errors."]
    )  # fmt: skip
    assert told.failed
    assert told.first is not None
    assert told.first.role == "symptom"
    assert [each.id for each in told.findings] == ["launcher-reports"]


def test_one_after_which_training_goes_on_is_no_cause() -> None:
    told = verdict([*TRACE, "step 2 loss 1.9", "step 3 loss 1.8"])
    assert (told.first, told.failed) == (None, False)
    assert [(each.id, each.role) for each in told.findings] == [("died-exception", "fact")]
    assert verdict([*TRACE, "step 2 loss 1.9"]).failed
    later = [HEAD, *FRAMES[:2], "ValueError: the real one"]
    assert headline([*TRACE, "step 2 loss 1.9", "step 3 loss 1.8", *later]) == (
        "A rank raised ValueError: the real one at train.py:33."
    )


def test_another_ranks_steps_are_no_sign_of_life() -> None:
    lines = [
        *(f"[default3]:{line}" for line in TRACE),
        *(f"[default0]:step {at} loss 2" for at in range(9)),
    ]
    assert headline(lines) == RIGHT


def test_what_python_ignores_is_nothing() -> None:
    told = verdict(["Exception ignored in: <function Pool.__del__ at 0x7f>", *TRACE])
    assert not [each for each in told.findings if each.id == "died-exception"]


def test_a_crash_without_a_traceback() -> None:
    assert headline(
        ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f (most recent call first):"]
    ) == ("A rank crashed in native code: Fatal Python error: Segmentation fault.")


def test_a_stack_that_is_logged_is_none() -> None:
    told = verdict(["Stack (most recent call last):", *FRAMES, "step 2 loss 2"])
    assert (told.findings, told.failed) == ((), False)


CODE = """
import asyncio
def load(batch):
    return batch["labels"]
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(work())
async def work():
    load({})
GROUPED
"""


@pytest.mark.real
@for_each("code", ["asyncio.run(main())", "load({})"])
def test_what_this_python_prints(tmp_path: Path, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(CODE.replace("GROUPED", code))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert headline(done.stderr.split("\n")) == "A rank raised KeyError: 'labels' at train.py:4."


SOME = [*TRACE, *BOX, *GROUP, *TABLE, "", "|", "│", "x" * 5000, "step 1 loss 2"]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(SOME) | st.text(max_size=40),
        max_size=40,
    )
)
def test_any_order_of_lines_is_read(lines: list[str]) -> None:
    verdict([line.replace("\n", " ") for line in lines])
    for text in lines:
        if begins(text):
            printed = PrintedTraceback(text)
            for line in lines:
                printed.feed(line)
            if printed.kind:
                printed.raised()


@for_each(
    ("source", "text"),
    [("    assert labels.shape == (rows,)", "AssertionError: assert labels.shape == (rows,)"),
     ("    check(labels)", "AssertionError")],
)  # fmt: skip
def test_an_assertion_without_a_message_quotes_its_expression_and_nothing_below(
    source: str, text: str
) -> None:
    """Python writes no colon after the type if the message is empty: what follows is of another writer."""
    reading = Reading()
    reading.open("a.log")
    frame = '  File "/app/loss.py", line 97, in forward'
    reading.feed(
        [HEAD, frame, source, "           ^^^^^^^^", "AssertionError", "", "Set the variable FULL=1."]
    )
    told = judge(reading).first
    assert told is not None
    assert told.text == f"A rank raised {text} at loss.py:97."


@for_each(
    ("last", "says"),
    [
        ("    assert value is not None, text()AssertionError", "assert value is not None, text()"),
        ('    raise ValueError("no rows")ValueError: no rows', "ValueError: no rows"),
    ],
)
def test_an_exception_in_the_line_of_its_source_is_read(last: str, says: str) -> None:
    printed = PrintedTraceback(HEAD)
    for line in [*FRAMES[:3], last]:
        printed.feed(line)
    assert says in f"{printed.kind}: {printed.message()}"
