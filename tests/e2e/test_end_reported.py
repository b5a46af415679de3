"""What a user sees of the report of a run's end: `status` and `notify log` name one that did not arrive."""

from __future__ import annotations

import time

import msgspec
import pytest
from web_sink import sink

from distui.runners.notify.delivery import FILE, NoticeRecord
from distui.runners.notify.notice_rules import Notice
from distui.runners.run.model import Outcome

from . import written
from .runs import Run, World, alive, until

SETTINGS = '[notify]\nsend = ["team"]\n[notify.channels.team]\ntype = "webhook"\nurl = "{url}"\n'


def configure(world: World, url: str) -> None:
    folder = world.config / "distui"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "settings.toml").touch(mode=0o600)
    (folder / "settings.toml").write_text(SETTINGS.format(url=url))


def tried(run: Run, *states: str) -> None:
    """Write down what became of the notice about the end."""
    notice = Notice("gave-up", "gave-up:1", "it failed, and nothing restarts it", time.time())
    with (run.path / FILE).open("wb") as file:
        for state in states:
            why = "it refuses" if state in ("later", "failed") else ""
            record = NoticeRecord(
                time.time(), "team", "gave-up:1", state, "gave-up", notice=notice, why=why
            )
            file.write(msgspec.json.encode(record) + b"\n")


def test_status_and_notify_log_name_an_end_that_was_not_reported(world: World) -> None:
    configure(world, "http://127.0.0.1:9/x")
    failed = written.Attempt(Outcome.FAILED, text="rank 0 raised ValueError")
    run = written.write(world, "exec", "--name", "night", "--", "true", attempts=(failed,))
    for states, what in (
        (("due", "trying", "later"), "it refuses; the next launch tries it again"),
        (
            ("due", *["trying", "later"] * 8, "trying", "failed"),
            "it refuses; it is given up after 9 failures",
        ),
    ):
        tried(run, *states)
        sentence = f"the end of the run is not reported on the channel team: {what}"
        assert sentence in run.distui("status").fine().out
        assert sentence in world.distui("notify", "log", "night").fine().out
        (finding,) = run.distui("status", "--json").fine().json()["findings"]
        assert (finding["id"], finding["text"]) == ("notify-failed", sentence)
    tried(run, "due", "trying", "sent")
    assert (
        "not reported" not in run.distui("status").fine().out + world.distui("notify", "log", "night").out
    )


def test_status_and_notify_log_name_a_lost_run_that_the_next_launch_reports(world: World) -> None:
    configure(world, "http://127.0.0.1:9/x")
    run = written.write(world, "exec", "--name", "night", "--", "true", attempts=(written.Attempt(None),))
    sentence = "the end of the run is not reported on the channel team; the next launch reports it"
    assert sentence in run.distui("status").fine().out
    said = world.distui("notify", "log", "night").fine().out
    assert said == f"run night has sent no notifications\n{sentence}\n"


@pytest.mark.real
def test_a_run_counts_as_ended_and_can_be_removed_while_its_end_is_still_reported(world: World) -> None:
    with sink() as server:
        configure(world, server.url())
        server.answers = ["500"] * 3
        run = world.execute("raise SystemExit(3)", name="night")
        assert run.wait() == 1
        assert until(lambda: not alive(run.agent_pid()))
        assert "gave-up  later" in world.distui("notify", "log", "night").out
        world.distui("rm", "night", "-y").fine()
        assert not run.path.exists()
        titles = [got.json()["title"] for got in server.wait(4)]
    assert titles == ["night: it failed, and nothing restarts it"] * 4
    assert world.left() == {}
