"""What a line is."""

from __future__ import annotations

from each import for_each

from distui.runners.logs.levels import RULES, Level, level_of

LINES = [
    ("step 100 loss 2.31 tokens/s 12345", Level.NONE),
    ("val_error: 0.12, errors: 0, no error", Level.NONE),
    ("MeanAbsoluteError is the metric", Level.NONE),
    ("Killed processes are listed below", Level.NONE),
    ("node7:12:34 [0] NCCL INFO NCCL_DEBUG set by environment to WARN.", Level.INFO),
    ("node7:12:34 [0] NCCL TRACE ERROR", Level.INFO),
    ("INFO: retrying after ConnectionError", Level.INFO),
    ("I1120 13:50:05.123000 99 torch/distributed/run.py:1] hello", Level.INFO),
    ("node7:12:34 [0] misc/socket.cc:88 NCCL WARN socketStartConnect: Connect failed", Level.WARN),
    ("WARNING:root:slow", Level.WARN),
    ("/x/y.py:3: UserWarning: something", Level.WARN),
    ("W1120 13:50:05.123000 99 torch/distributed/run.py:1] ******", Level.WARN),
    ("[rank1]:[W1120 13:50:05.1 ProcessGroupNCCL.cpp:1] destroy_process_group", Level.WARN),
    ("n1:1:2 [0] init.cc:5 (f) NCCL ATTN cleanup failed", Level.INFO),
    ("this is deprecated", Level.WARN),
    ("Traceback (most recent call last):", Level.ERROR),
    ("[rank3]: Traceback (most recent call last):", Level.ERROR),
    ("ValueError: bad", Level.ERROR),
    ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", Level.ERROR),
    ("KeyboardInterrupt", Level.ERROR),
    ("2026-01-01 ERROR trainer: lost", Level.ERROR),
    ("E1120 13:50:05.123000 99 torch/distributed/elastic/x.py:874] failed (exitcode: 1)", Level.ERROR),
    ("[rank0]:[E1120 13:50:05.1 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught", Level.ERROR),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", Level.ERROR),
    ("  exitcode  : -9 failed (exitcode: -9)", Level.ERROR),
    ("traceback : Signal 9 (SIGKILL) received by PID 12", Level.ERROR),
    ("RuntimeError: NCCL error in: x.cpp: unhandled system error", Level.ERROR),
    ("last error: ncclRemoteError: peer gone", Level.ERROR),
    ("Fatal Python error: Segmentation fault", Level.ERROR),
    ("terminate called after throwing an instance of", Level.ERROR),
    ("Assertion `t < n` failed: device-side assert triggered", Level.ERROR),
    ("Killed", Level.ERROR),
]


@for_each(("line", "level"), LINES)
def test_level(line: str, level: Level) -> None:
    assert level_of(line) is level


def test_every_pattern_is_reached_through_its_words() -> None:
    reached = {place for place, rule in enumerate(RULES) for line, _ in LINES if rule.pattern.search(line)}
    assert reached == set(range(len(RULES)))
    for line, _ in LINES:
        for rule in RULES:
            if rule.words and rule.pattern.search(line):
                assert any(word in line for word in rule.words), (line, rule)
