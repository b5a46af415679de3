"""What Python and torchrun print when a rank ends, in logs of any job."""

from __future__ import annotations

from collections.abc import Sequence

from each import for_each

from distui.runners.diagnosis.exceptions import LAST, MOST
from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.reading import Reading

TRACE = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 33, in <module>',
    "    main()",
    '  File "/app/train.py", line 21, in main',
    '    x = batch["labels"]',
    "        ~~~~~^^^^^^^^^^",
    "KeyError: 'labels'",
)
NCCL = "gpu-b:92:99 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"
OF_NCCL = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 33, in <module>',
    "    loss.backward()",
    "torch.distributed.DistBackendError: NCCL error in: ../torch/c10d/NCCLUtils.cpp:77, {0}, NCCL version 2.26.2",
    "Last error:",
)
FAILED = (
    "E0301 12:00:09.100 71 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {0}) "
    "local_rank: 3 (pid: 75) of binary: /usr/bin/python"
)
OUR_OWN = (
    "Traceback (most recent call last):",
    '  File "/usr/bin/torchrun", line 8, in <module>',
    "    sys.exit(main())",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
)


def tagged(rank: int, lines: Sequence[str] = TRACE) -> list[str]:
    """As torch writes what nobody caught."""
    return [f"[rank{rank}]: {line}" for line in lines]


def said(*files: Sequence[str]) -> Verdict:
    """The verdict on some logs."""
    reading = Reading()
    for number, lines in enumerate(files):
        reading.open(f"{number}.log")
        reading.feed(lines)
    return judge(reading)


def test_a_rank_that_raised_is_the_first_cause() -> None:
    verdict = said(["step 3 loss 2.1", *tagged(1), "[rank0]: bye"])
    first = verdict.first
    assert first is not None
    assert (first.id, first.role, first.severity, first.rank) == ("died-exception", "cause", "error", 1)
    assert first.text == "A rank raised KeyError: 'labels' at train.py:21."
    assert first.values == {"where": "/app/train.py:21"}
    assert [(one.line, one.text) for one in first.lines] == [(8, "[rank1]: KeyError: 'labels'")]
    assert verdict.failed


def test_ranks_whose_lines_stand_among_each_other() -> None:
    other = [*TRACE[:-1], "ValueError: label 1007 is out of range"]
    mixed = [line for pair in zip(tagged(1), tagged(12), tagged(2, other), strict=True) for line in pair]
    findings = {one.text: one for one in said(mixed).findings}
    assert findings["A rank raised KeyError: 'labels' at train.py:21."].ranks == (1, 12)
    assert findings["A rank raised ValueError: label 1007 is out of range at train.py:21."].ranks == (2,)


def test_the_same_of_many_ranks_is_one_finding() -> None:
    verdict = said(*(tagged(rank) for rank in range(64)))
    (found,) = verdict.findings
    assert (found.count, found.ranks) == (64, tuple(range(64)))


@for_each(
    ("between", "kind"),
    [
        ("During handling of the above exception, another exception occurred:", "RuntimeError: bad epoch"),
        ("The above exception was the direct cause of the following exception:", "RuntimeError: bad epoch"),
    ],
)
def test_of_a_chain_the_last_is_told(between: str, kind: str) -> None:
    chain = [*TRACE, "", between, "", *TRACE[:-1], kind]
    (found,) = said(tagged(0, chain)).findings
    assert found.text == f"A rank raised {kind} at train.py:21."


def test_what_a_worker_of_the_data_loader_raised_is_told() -> None:
    caught = ["KeyError: Caught KeyError in DataLoader worker process 0.", f"Original {TRACE[0]}"]
    (found,) = said(
        tagged(0, [*TRACE[:-1], *caught, '  File "/app/data.py", line 7, in load', *TRACE[4:]])
    ).findings
    assert found.text == "A rank raised KeyError: 'labels' at data.py:7."


def test_stamps_of_shippers_are_no_part_of_it() -> None:
    lines = [f"2026-03-01T12:00:{at:02}.123456789Z stderr F {line}" for at, line in enumerate(tagged(5))]
    (found,) = said(lines).findings
    assert (found.id, found.rank) == ("died-exception", 5)


def test_one_that_the_script_went_on_after_is_a_hint() -> None:
    more = [f"part {part}" for part in range(LAST + 1)]
    (found,) = said([*TRACE, *more]).findings
    assert (found.role, found.severity) == ("hint", "warning")
    assert found.remedy.startswith("The script may have gone on after it")
    assert not said([*TRACE, *more]).failed
    assert said([*TRACE, *more[1:]]).failed
    assert said([*TRACE, *more, FAILED.format(1)]).failed
    assert said([*TRACE, *more, *OUR_OWN]).failed
    assert said([*TRACE, *more], TRACE).failed


def test_a_launchers_own_exception_says_nothing() -> None:
    assert [(each.id, each.role) for each in said(OUR_OWN).findings] == [("launcher-reports", "symptom")]
    (found,) = said(["a Traceback (most recent call last) in a sentence", "KeyError: not one"]).findings
    assert (found.id, found.text) == ("unexplained", "The log has this error: KeyError: not one")


@for_each(
    ("text", "name"),
    [
        ("remote process exited or there was a network error", "died-peer-gone"),
        ("unhandled system error (run with NCCL_DEBUG=INFO for details)", "died-nccl"),
    ],
)
def test_what_follows_from_nccl_is_a_symptom(text: str, name: str) -> None:
    verdict = said([NCCL, *tagged(0, [line.format(text) for line in OF_NCCL])])
    assert verdict.first is not None
    assert verdict.first.id == "ib-port-error"
    (found,) = [one for one in verdict.findings if one.id.startswith("died-")]
    assert (found.id, found.role, found.lines[0].line) == (name, "symptom", 5)


@for_each(
    ("code", "name", "role", "text"),
    [
        (-9, "died-killed", "cause", "A rank (pid 75) was killed by SIGKILL."),
        (
            -11,
            "died-segfault",
            "cause",
            "A rank (pid 75) was killed by SIGSEGV: native code touched memory",
        ),
        (-6, "died-abort", "symptom", "A rank (pid 75) was killed by SIGABRT."),
    ],
)
def test_how_torchrun_says_that_a_rank_ended(code: int, name: str, role: str, text: str) -> None:
    found = said([FAILED.format(code)]).findings[-1]
    assert (found.id, found.role) == (name, role)
    assert found.text.startswith(text)
    assert [one.id for one in said([FAILED.format(1)]).findings] == ["died-exit-silent"]


def test_torchruns_table_names_the_ranks_that_it_did_not_see_first() -> None:
    """Rank 1 was killed, and torchrun saw rank 0 first, which that had ended."""
    table = [
        "Failures:", "[1]:", "  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 76)  (SIGKILL)",
        "Root Cause (first observed failure):", "[0]:", "  rank      : 0 (local_rank: 0)",
        "  exitcode  : -6 (pid: 75)  (SIGABRT)",
    ]  # fmt: skip
    verdict = said([FAILED.format(-6), *table])
    assert verdict.first is not None
    assert (verdict.first.id, verdict.first.rank) == ("died-killed", 1)
    assert [(one.id, one.count) for one in verdict.victims] == [("died-abort", 1)]
    (found,) = said(["  rank      : 1 (local_rank: 1)", "  exitcode  : 1 (pid: 76)"]).findings
    assert (found.id, found.rank) == ("died-exit-silent", 1)


def test_how_mpirun_and_slurm_say_it() -> None:
    line = "mpirun noticed that process rank 3 with PID 4711 on node gpu-b exited on signal 9 (Killed)."
    (found,) = said([line]).findings
    assert (found.id, found.rank, found.host) == ("died-killed", 3, "gpu-b")
    line = "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed."
    (found,) = said([line]).findings
    assert (found.id, found.role) == ("died-host-oom", "cause")
    assert (
        said(["srun: Detected 0 of everything, no oom_kill event", "nobody exited on signal ever"]).findings
        == ()
    )


def test_memory_does_not_grow_with_the_log() -> None:
    reading = Reading()
    reading.open("a.log")
    for number in range(3 * MOST):
        name = "".join(chr(97 + int(digit)) for digit in str(number))
        reading.feed(
            [f"[rank{number}]: {TRACE[0]}", *tagged(0, [*TRACE[:-1], f"KeyError: '{name}'"]), "x" * 9]
        )
    assert len(judge(reading).findings) == MOST


def test_before_a_script_ends_itself_it_caught_the_reason() -> None:
    chained = [
        *TRACE[:-1],
        "KeyError: 'iteration'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
    ]
    first = said([*chained, *TRACE[:-1], "SystemExit"]).first
    assert first is not None
    assert "KeyError: 'iteration'" in first.text
