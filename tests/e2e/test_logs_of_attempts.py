"""`distui logs` of a run that was restarted: one log, with a rule between two attempts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distui.runners.logs import grep, log_stream, search
from distui.runners.run.commands import ReadLog
from distui.runners.run.model import Outcome

from .runs import Run, World
from .written import Attempt, write

RULE_2 = "── attempt 2 · restarted after rank 0 failed ──"
RULE_3 = RULE_2.replace("2", "3")


def restarted(world: World, attempts: int = 3) -> Run:
    """A run whose attempts fail, but the last one; none of their lines has a time."""
    failed = [
        Attempt(Outcome.FAILED, f"step {number}\n", f"KeyError: 'batch {number}'\n")
        for number in range(1, attempts)
    ]
    last = Attempt(out=f"step {attempts}\ndone\n")
    return write(world, "exec", "--name", "night", "--", "true", attempts=(*failed, last))


def test_all_attempts_are_one_log(world: World) -> None:
    run = restarted(world)
    assert run.distui("logs").fine().out.splitlines() == [
        "[rank 0 err] KeyError: 'batch 1'",
        "[rank 0 out] step 1",
        RULE_2,
        "[rank 0 err] KeyError: 'batch 2'",
        "[rank 0 out] step 2",
        RULE_3,
        "[rank 0 out] step 3",
        "[rank 0 out] done",
    ]
    one = run.distui("logs", "--attempt", "2", "--stream", "out").fine().out
    assert one == "step 2\n", "one attempt has no rule"
    assert run.distui("logs", "--attempt", "4").code == 2


def test_a_pattern_is_searched_in_all_attempts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "run_grep", grep.answer)  # without another process
    run = restarted(world)
    found = run.distui("logs", "--grep", "KeyError", "--stream", "err").fine().out.splitlines()
    assert found == ["KeyError: 'batch 1'", RULE_2, "KeyError: 'batch 2'"]
    assert run.distui("logs", "--grep", "batch 2").fine().out == "[rank 0 err] KeyError: 'batch 2'\n"


def test_the_last_lines_are_those_of_the_newest_attempts(world: World) -> None:
    run = restarted(world)
    assert run.distui("logs", "-n", "1").fine().out == "[rank 0 out] done\n"
    last = run.distui("logs", "-n", "3", "--stream", "out").fine().out.splitlines()
    assert last == ["step 2", RULE_3, "step 3", "done"]


def test_a_bundle_is_one_log_too(world: World, tmp_path: Path) -> None:
    run, bundle = restarted(world), tmp_path / "night.tgz"
    run.distui("export", str(bundle)).fine()
    assert world.distui("logs", str(bundle)).fine().out == run.distui("logs").fine().out


def test_json_has_the_attempt_and_no_rule(world: World) -> None:
    lines = restarted(world).distui("logs", "--json", "--stream", "out").fine().out.splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [1, 2, 3, 3]


def test_the_end_of_a_long_run_reads_only_its_newest_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = restarted(world, attempts=100), list[str]()

    def noted(file: str, *rest: object) -> ReadLog:
        asked.append(file)
        return ReadLog(file, *rest)  # type: ignore[arg-type]

    lines = "".join(f"line {number}\n" for number in range(5000))
    (run.path / "node-0/attempt-100/rank-0.out").write_text(lines)
    monkeypatch.setattr(log_stream, "ReadLog", noted)
    assert run.distui("logs", "-n", "1", "--stream", "out").fine().out == "line 4999\n"
    assert {name.split("/")[1] for name in asked} == {"attempt-100"}
