"""Whoever only reads starts, ends and changes nothing, whatever became of the run."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from distui.runners.run.model import Outcome
from distui.tui.verb_table import VERBS

from .runs import Run, World, gone, kill, until
from .written import Attempt, write

READS = frozenset((
    "attach", "diagnose", "diff", "dump", "events", "export", "logs", "ls", "metrics", "replay", "status", "wait",
    "watch",
))  # fmt: skip
"""Start, end, signal and restart nothing, in whatever state the run is: `dump` asks ranks that answer by themselves."""
STARTS = frozenset(["demo", "exec", "launch", "rerun"])
APART = frozenset((
    "advise", "candidates", "completion", "doctor", "example", "lint", "man", "mcp", "notify", "plan", "presets",
    "settings", "trust",
))  # fmt: skip
"""About no run, or leave it alone."""

TEXT = "import time\nfor n in range(100000):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
OTHER_BOOT = "00000000-0000-0000-0000-000000000000"
OWN = ("agent.json", "agent.lock", "agent.log")
"""Files that an agent, which reading may start where a runner lives, writes about itself."""


def live(world: World, name: str = "job") -> Run:
    run = world.execute(TEXT, "--restarts", "3", "--grace", "1", name=name)
    assert run.wait("running") == 0
    assert run.prints()
    return run


def without_supervisors(run: Run) -> None:
    """Agent first: it would start the next runner."""
    kill(run.agent_pid())
    kill(run.runner_pid())


def lost(world: World) -> Run:
    """Neither agent nor runner lives, and nothing says how it ended."""
    return written(world, None)


def rebooted(world: World) -> Run:
    run = lost(world)
    for name in ("agent.json", "runner.json"):
        place = {
            "pid": 1,
            "start_ticks": 1,
            "boot_id": OTHER_BOOT,
            "host": platform.node(),
            "socket": "",
            "kind": "",
        }
        (run.path / name).write_text(json.dumps(place))
    return run


def written(world: World, outcome: Outcome | None = Outcome.SUCCEEDED) -> Run:
    """A run of one attempt that ended so, without any process."""
    words = ("exec", "--name", "job", "--restarts", "0", "--", "true")
    run = write(world, *words, attempts=[Attempt(outcome, "0\n1\n", exit_code=3)])
    (run.path / "runner.jsonl").write_text("")
    (run.path / "metrics").mkdir(mode=0o700)
    return run


def killed(world: World) -> Run:
    """A lost run whose processes were killed."""
    run = live(world)
    (pid,) = run.pids()
    without_supervisors(run)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    return run


def emptied(world: World) -> Run:
    run = written(world)
    (run.path / "journal.jsonl").write_bytes(b"")
    return run


def missing(world: World) -> Run:
    run = written(world)
    for name in ("journal.jsonl", "runner.jsonl"):
        (run.path / name).unlink()
    return run


def zeroed(world: World) -> Run:
    """As a power cut leaves a file whose length was written and whose pages were not."""
    run = written(world)
    for name in ("journal.jsonl", "runner.jsonl"):
        (run.path / name).write_bytes(bytes((run.path / name).stat().st_size))
    return run


def begun_nowhere(world: World) -> Run:
    """Its journal has lost the lines that say which run it is and that it began."""
    run = written(world)
    journal = run.path / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[3:]))
    return run


def planless(world: World) -> Run:
    run = lost(world)
    (run.path / "plan.json").write_text("{}")
    return run


STATES: dict[Callable[[World], Run], str] = {
    lost: "lost",
    rebooted: "lost",
    emptied: "succeeded",
    missing: "succeeded",
    zeroed: "succeeded",
    begun_nowhere: "succeeded",
    planless: "lost",
}


def snapshot(run: Run) -> tuple[set[int], dict[str, tuple[int, int]]]:
    """Processes with the run's marker, and what the files are that reading must leave alone."""
    living = set(run.marked())  # ranks that live write on
    files = {}
    for path in run.path.rglob("*"):
        if path.is_file() and path.name not in OWN and not (living and "node-0" in path.parts):
            with contextlib.suppress(FileNotFoundError):  # an agent that starts replaces its files
                files[str(path.relative_to(run.path))] = (path.stat().st_mtime_ns, path.stat().st_size)
    return living, files


def commands(run: Run) -> dict[str, list[list[str]]]:
    """How each verb that reads is called here."""
    name, out = run.id, str(run.world.root / "out.tar.gz")
    screen = [["attach", name], ["attach", name, "--readonly"], ["--readonly", "attach", name]]
    return {
        "status": [["status", name], ["status", name, "--json"], ["status"]],
        "logs": [["logs", name], ["logs", name, "--stream", "log"]],
        "wait": [["wait", name, "--timeout", "2"], ["wait", name, "--until", "healthy", "--timeout", "2"]],
        "export": [["export", name, out, "--force"]],
        "dump": [["dump", name, "stacks"]],
        "diagnose": [["diagnose", name]],
        "events": [["events", name], ["events", name, "--json"]],
        "metrics": [
            ["metrics", name],
            ["metrics", name, "--list"],
            ["metrics", name, "--last", "5m", "--json"],
        ],
        "diff": [["diff", name], ["diff", name, name, "--all"], ["diff", f"{name}@1", name, "--json"]],
        "ls": [["ls"], ["ls", "--json"]],
        "watch": [["watch", "--json"]],
        "attach": screen,
        "replay": [["replay", name]],
    }


def test_every_verb_is_of_one_kind() -> None:
    changing = {name for name, verb in VERBS.items() if verb.changes_runs}
    kinds = (READS, changing, STARTS, APART)
    for verb in VERBS:
        assert sum(verb in kind for kind in kinds) == 1, f"say what {verb} may do"
    assert sum(map(len, kinds)) == len(VERBS)


def check_reading(run: Run, state: str) -> None:
    """Each verb that reads, in turn: no process of the run comes or goes, and no file changes but an agent's own."""
    before = snapshot(run)
    calls = commands(run)
    assert set(calls) == READS
    for verb in sorted(calls):
        for words in calls[verb]:
            done = run.world.distui(*words)
            assert "Traceback" not in done.err, done.err
            assert snapshot(run) == before, words
    assert run.status()["state"] == state
    (listed,) = run.world.distui("ls", "--json").fine().json()
    assert listed["state"] == state
    assert set(run.marked()) == before[0]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_reading_a_run_without_processes_changes_nothing(
    world: World, state: Callable[[World], Run]
) -> None:
    check_reading(state(world), STATES[state])


def beheaded(run: Path) -> None:
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[3:]))


def unreported(run: Path) -> None:
    """Only end.json says how it ended."""
    for name in ("journal.jsonl", "runner.jsonl"):
        (run / name).unlink()


def forgotten(run: Path) -> None:
    """Nothing does."""
    unreported(run)
    (run / "end.json").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda run: (run / "journal.jsonl").write_bytes(b""), "journal.jsonl is empty"),
    "removed": (lambda run: (run / "journal.jsonl").unlink(), "journal.jsonl is missing"),
    "beheaded": (beheaded, "journal.jsonl has lost its beginning"),
    "planless": (lambda run: (run / "plan.json").write_text("{}"), "plan.json is damaged"),
    "unreported": (unreported, "journal.jsonl is missing"),
    "forgotten": (forgotten, "journal.jsonl is missing"),
}
"""What is done to a run that has ended, and what every verb that shows it whole has to say."""


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.FAILED])
def test_a_damaged_run_that_has_ended_is_not_trained_again(world: World, outcome: Outcome) -> None:
    run, kept = written(world, outcome), world.root / "kept"
    shutil.copytree(run.path, kept)
    for name, (damage, sentence) in DAMAGES.items():
        damage(run.path)
        before = snapshot(run)
        ending = "lost" if name == "forgotten" else str(outcome)
        (listed,) = world.distui("ls", "--json").fine().json()
        assert (listed["state"], listed["name"]) == (ending, run.name), name
        for words in (
            ["ls"],
            ["status", run.id],
            ["events", run.id],
            ["export", run.id, "o.tgz", "--force"],
        ):
            done = world.distui(*words).fine()
            assert sentence in done.out + done.err, (name, words, done.out, done.err)
            assert run.name in done.out + done.err
        assert "[rank 0 out] 0" in run.distui("logs").fine().out.splitlines(), name
        done = run.distui("wait", "--timeout", "3")
        assert (done.code, "Traceback" in done.err) == (6 if name == "forgotten" else 1, False), (
            name,
            done.err,
        )
        assert run.status()["state"] == ending, name
        assert snapshot(run) == before, name
        assert sorted(path.name for path in run.path.glob("node-0/*")) == ["attempt-001"]
        shutil.rmtree(run.path)
        shutil.copytree(kept, run.path)


@pytest.mark.real
def test_a_lost_run_says_so_and_is_restarted_once_with_the_changes(world: World) -> None:
    """The next attempt has them; a secret among them is not written down. No attempt without them comes before."""
    run = killed(world)
    status = run.status()
    assert status["state"] == "lost"
    assert f"`distui restart {run.name}`" in status["text"]
    done = run.distui("wait")
    assert (done.code, "lost" in done.err) == (6, True)
    assert "[rank 0 out] 0" in run.distui("logs").fine().out.splitlines()
    done = run.distui("restart", "--yes", "--env", "PLAIN=1", "--env", "MY_TOKEN=hush-hush").fine()
    assert "restarted: attempt 2" in done.out
    (rank,) = run.pids()
    env = Path(f"/proc/{rank}/environ").read_bytes().split(b"\0")
    assert {b"PLAIN=1", b"MY_TOKEN=hush-hush"} <= set(env)
    attempts = run.status()["attempts"]
    assert [(one["cause"], one["outcome"]) for one in attempts] == [("launch", "lost"), ("restart", None)]
    assert attempts[-1]["env_diff"] == {"PLAIN": "1", "MY_TOKEN": "***"}
    (asked,) = run.of("CommandReceived")
    assert [one["ok"] for one in run.of("CommandDone") if one["id"] == asked["id"]] == [True]
    assert b"hush-hush" not in run.file("journal.jsonl")
    run.distui("restart", "--yes").fine()
    assert [one["cause"] for one in run.status()["attempts"]] == ["launch", "restart", "restart"]
    lose_journal(run)


@pytest.mark.real
def test_orphans_are_read_named_and_stopped(world: World) -> None:
    run = live(world)
    without_supervisors(run)
    (pid,) = run.marked()
    check_reading(run, "lost")
    (listed,) = world.distui("ls", "--json").fine().json()
    assert listed["orphans"] == [pid]
    assert f"pid {pid}" in world.distui("ls").fine().out
    run.stop().fine()
    assert not run.marked()
    assert run.status()["state"] == "stopped"


def test_the_end_is_kept_in_a_second_place(world: World) -> None:
    run = written(world, Outcome.FAILED)
    for name in ("journal.jsonl", "runner.jsonl"):
        (run.path / name).write_bytes(b"")
    status = run.status()
    assert (status["state"], status["exit_code"], status["name"]) == ("failed", 3, run.name)
    assert any("journal.jsonl is empty" in one["text"] for one in status["findings"])
    run.distui("restart", "--yes").refused(1, "rerun")


def lose_journal(run: Run) -> None:
    """A new agent knows by the runner's report what its journal said; ranks of later attempts are let be."""
    pids = run.pids()
    kill(run.agent_pid())
    (run.path / "journal.jsonl").unlink()
    status = run.status()
    assert (status["state"], status["attempt"]) == ("running", 3)
    assert [rank["pid"] for rank in status["ranks"]] == pids
    assert until(lambda: run.file("node-0/attempt-003/rank-0.out"))
    assert sorted(run.marked()) == sorted([run.runner_pid(), *pids])
