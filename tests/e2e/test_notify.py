"""Notices of real runs: who is called when, once, with what; and that no address is anywhere but where it has to be."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_sink import Sink, sink

from .runs import World, alive, contents, kill, until

SECRET = "sEcReTpArToFtHeUrL"
CRASHES = """
import os, time
print("step 1 loss 2.0", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise ValueError("<!channel> broken")
"""
ALL_SECRETS = (SECRET, "t0kEnOfPhOnE")


@pytest.fixture
def server() -> Iterator[Sink]:
    with sink() as served:
        yield served


def settings(world: World, server: Sink, more: str = "") -> None:
    """Two ways: the address of one is in a file, that of the other in a variable of the launch."""
    folder = world.config / "distui"
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in (
        ("team-url", server.url(f"/{SECRET}")),
        ("phone-token", "t0kEnOfPhOnE"),
        (
            "settings.toml",
            (
                f'[notify]\n{more}\n[notify.channels.team]\ntype = "webhook"\nurl_file = "team-url"\n'
                '[notify.channels.phone]\ntype = "webhook"\nurl_env = "PHONE_WEBHOOK"\ntoken_file = "phone-token"\n'
            ),
        ),
    ):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    world.env["PHONE_WEBHOOK"] = server.url(f"/topic-{SECRET}")


def command_lines() -> str:
    """What `ps` shows of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(lines)


@pytest.mark.real
def test_a_run_that_fails_calls_once_for_each_cause_and_no_secret_is_anywhere(
    world: World, server: Sink
) -> None:
    settings(world, server)
    script = world.script("job.py", CRASHES)
    words = ("--restarts", "1", "--notify", "team", "--notify", "phone:gave-up")
    plan = world.distui("exec", "--dry-run", *words, "--", sys.executable, script).fine().out
    assert "notify       team:all\n" in plan
    run = world.run("exec", "--name", "night", *words, "--", sys.executable, "-u", script)
    (first,) = server.wait(1)
    assert first.path == f"/{SECRET}"
    assert first.json()["title"] == "night: it trains"
    server.answers = ["held"]  # the sender of the next one is seen by ps
    (world.work / "go").touch()
    server.wait(2)
    seen = command_lines()
    assert "runners.run.post" in seen
    shown = run.distui("status").fine().out  # while the sender waits
    server.release.set()
    assert run.wait() == 1
    printed = plan + seen + shown + "".join(
        run.distui(*verb).out for verb in (("status", "--json"), ("events", "--json"), ("logs",))
    )  # fmt: skip
    bundle = world.root / "b.tar.gz"
    run.distui("export", str(bundle)).fine()
    with tarfile.open(bundle) as tar:
        packed = b"".join(tar.extractfile(each).read() for each in tar if each.isfile())  # type: ignore[union-attr]
    got = server.wait(4)
    assert world.left() == {}, "the agent has written down which notices were taken"
    team = [each.json() for each in got if each.path == f"/{SECRET}"]
    by_rule = {each["rule"]: each for each in team}
    assert len(team) == len(by_rule) == 3
    assert by_rule.keys() == {"first-step", "restarted", "gave-up"}
    assert by_rule["gave-up"]["ranks"] == [0]
    assert "broken" in by_rule["gave-up"]["text"]
    assert "distui attach night" in by_rule["gave-up"]["text"]
    assert len(got) == 4
    (phone,) = [each for each in got if each.path == f"/topic-{SECRET}"]
    assert phone.headers["authorization"] == "Bearer t0kEnOfPhOnE"
    assert phone.json()["title"] == "night: it failed, and nothing restarts it"
    log = world.distui("notify", "log", "night", "--json").fine()
    assert {(row["channel"], row["rule"]) for row in log.json()["notices"]} == {
        ("team", "first-step"), ("team", "restarted"), ("team", "gave-up"), ("phone", "gave-up"),
    }  # fmt: skip
    listed = world.distui("notify").out + world.distui("notify", "--json").out + log.out
    kept = contents(world.state) + contents(world.sockets)
    for secret in ALL_SECRETS:
        assert secret not in printed + listed
        assert secret.encode() not in packed + kept


@pytest.mark.real
def test_a_killed_agent_says_nothing_twice_and_the_next_one_goes_on(world: World, server: Sink) -> None:
    settings(world, server, 'send = ["phone"]')
    run = world.execute(CRASHES, name="night")
    assert [got.json()["title"] for got in server.wait(1)] == ["night: it trains"]
    assert until(lambda: b'"sent"' in run.file("notices.jsonl"))
    kill(run.agent_pid())
    run.distui("status").fine()  # starts the next agent, which has the address from the living runner
    (world.work / "go").touch()
    assert run.wait() == 1
    titles = [got.json()["title"] for got in server.wait(2)]
    assert titles == ["night: it trains", "night: it failed, and nothing restarts it"]
    assert world.left() == {}
    assert len(server.got) == 2


@pytest.mark.real
def test_the_next_launch_reports_the_runs_that_nobody_serves_once(world: World, server: Sink) -> None:
    """Of one the runner failed without an agent, of one everything is killed, and one still trains."""
    settings(world, server, 'send = ["team:gave-up"]')
    failed, lost, trains = [world.execute(CRASHES, name=name) for name in ("failed", "lost", "trains")]
    assert [run.wait("running") for run in (failed, lost, trains)] == [0, 0, 0]
    stopped = trains.pids()[0]
    os.kill(stopped, signal.SIGSTOP)  # it does not see `go`
    killed = [lost.agent_pid(), lost.runner_pid(), *lost.pids(), failed.agent_pid(), trains.agent_pid()]
    for pid in killed:
        kill(pid)
    (world.work / "go").touch()
    assert until(lambda: b"RunEnded" in failed.file("runner.jsonl"))
    for _ in range(2):
        world.distui("exec", "--notify", "off", "--", "true").fine()
        assert {got.json()["title"] for got in server.wait(2)} == {
            "failed: it failed, and nothing restarts it", "lost: it is lost",
        }  # fmt: skip
    assert until(lambda: alive(trains.agent_pid()))
    os.kill(stopped, signal.SIGCONT)
    assert server.wait(3)[2].json()["title"] == "trains: it failed, and nothing restarts it"
    assert world.left() == {}
    assert len(server.got) == 3
    assert "gave-up  sent" in world.distui("notify", "log", "lost").out


def test_a_mistake_is_named_and_starts_nothing(world: World) -> None:
    world.distui("notify", "test").refused(2, "No channel is configured", "settings.toml")
    settings(world, Sink(9))
    world.distui("notify", "test", "teem").refused(2, "did you mean team?")
    listed = world.distui("notify", "list").fine().out
    assert "127.0.0.1" in listed
    assert SECRET not in listed
    for words, part in (
        (("--notify", "teem"), "did you mean team?"),
        (("--notify", "team:hangs"), "did you mean hang?"),
        (("--notify", f"https://h/{SECRET}"), "settings.toml"),
    ):
        sentence = world.distui("exec", *words, "--", "true").refused(2, part)
        assert SECRET not in sentence
    assert not list(world.runs.glob("*/plan.json"))


def test_settings_that_cannot_be_read_are_named_at_the_launch(world: World) -> None:
    settings(world, Sink(9))
    (world.config / "distui" / "settings.toml").write_text("[notify\n")
    done = world.distui("exec", "--dry-run", "--", "true").fine()
    assert "is not TOML" in done.out + done.err
