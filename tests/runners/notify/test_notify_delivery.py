"""On their way: real requests to a server that answers badly, late or never; tries, limits, what a later agent does."""

from __future__ import annotations

import asyncio
import errno
import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from each import for_each
from msgspec import structs
from virtual_time import VirtualLoop
from web_sink import Sink, sink

from distui.runners.notify import delivery as delivering
from distui.runners.notify import sending
from distui.runners.notify.channels import NotificationChannel
from distui.runners.notify.delivery import MOST, Delivery, records
from distui.runners.notify.messages import Text, text_of, variables
from distui.runners.notify.notice_rules import LATE_S, Notice
from distui.runners.notify.rule_words import ChosenChannel, every_rule, rules_of
from distui.runners.notify.sending import SendOutcome, send
from distui.runners.run import clock, post
from distui.runners.run.parts import in_background

SECRET = "sEcReTpArT"


@pytest.fixture
def server() -> Iterator[Sink]:
    with sink() as served:
        yield served


def notice(rule: str = "hang", key: str = "", at: float | None = None) -> Notice:
    return Notice(
        rule, key or f"{rule}:1#1", f"it {rule}s", clock.now() if at is None else at, "why", "mend it"
    )


def text() -> Text:
    return text_of(notice(), "night", "gpu1")


def posted(server: Sink, kind: str = "webhook") -> NotificationChannel:
    return NotificationChannel("team", kind, every_rule(), url=server.url(f"/services/{SECRET}"))


def nothing(name: str) -> None:
    return None


async def once(
    way: NotificationChannel, tmp_path: Path, lookup: Callable[[str], str | None] = nothing
) -> SendOutcome:
    return await send(way, text(), lookup, tmp_path)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are made by a thread instead of a process."""

    async def answer(module: str, request: Mapping[str, Any], *more: object) -> dict[str, Any]:
        send = post.post if module == sending.POST else importlib.import_module(module).send
        return await asyncio.to_thread(send, dict(request))

    monkeypatch.setattr(sending, "_answer", answer)


@pytest.mark.usefixtures("in_process")
async def test_a_request_arrives(server: Sink, tmp_path: Path) -> None:
    assert (await once(posted(server), tmp_path)).ok
    (got,) = server.got
    assert got.path == f"/services/{SECRET}"
    assert got.json()["title"] == "night: it hangs"
    assert got.json()["attach"] == "distui attach night"


ANSWERS = {
    "500": (True, "answers 500"), "429": (True, "answers 429"), "404": (False, "answers 404"),
    "403": (False, "answers 403"), "redirect": (False, "redirect (302)"), "garbage": (True, "not HTTP"),
    "cut": (True, "127.0.0.1"),
}  # fmt: skip


@pytest.mark.usefixtures("in_process")
async def test_what_a_server_answers(server: Sink, tmp_path: Path) -> None:
    for answer, (again, part) in ANSWERS.items():
        server.got.clear()
        server.answers = [answer]
        outcome = await once(posted(server), tmp_path)
        assert (outcome.ok, outcome.again) == (False, again), answer
        assert part in outcome.why, answer
        assert SECRET not in outcome.why, answer
        assert len(server.got) == 1, "a redirect is not followed"
        if answer == "429":
            assert outcome.after_s == 1.0
    way = NotificationChannel("team", "webhook", every_rule(), url=f"http://127.0.0.1:1/{SECRET}")
    assert await once(way, tmp_path) == SendOutcome(False, "127.0.0.1: Connection refused", True)


def through_apprise(server: Sink, path: str = f"/{SECRET}") -> NotificationChannel:
    return NotificationChannel(
        "team", "apprise", every_rule(), url=server.url(path).replace("http:", "json:")
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its imports
@pytest.mark.usefixtures("in_process")
async def test_apprise_sends_and_says_why_it_did_not(server: Sink, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    assert (await once(through_apprise(server), tmp_path)).ok
    (got,) = server.got
    assert (got.path, got.json()["title"], got.json()["type"]) == (f"/{SECRET}", "night: it hangs", "info")
    assert "distui attach night" in got.json()["message"]
    for answer, part in {"404": "error=404", "redirect": "error=302", "cut": "Connection error"}.items():
        server.answers = [answer]
        outcome = await once(through_apprise(server), tmp_path)
        assert (outcome.ok, outcome.again) == (False, True)
        assert part in outcome.why
        assert SECRET not in outcome.why
    unknown = NotificationChannel("team", "apprise", every_rule(), url=f"nonesuch://{SECRET}/x")
    refused = await once(unknown, tmp_path)
    assert refused.why.startswith("nonesuch: ")
    assert SECRET not in refused.why


@pytest.mark.real
async def test_a_process_sends_through_apprise(server: Sink, tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    assert await once(through_apprise(server), tmp_path) == SendOutcome(True)
    assert server.got[0].json()["title"] == "night: it hangs"


@pytest.mark.real
async def test_a_process_posts_and_uses_the_proxy_of_the_launch(server: Sink, tmp_path: Path) -> None:
    way = NotificationChannel("team", "webhook", every_rule(), url="http://nowhere.invalid/x")
    assert (await once(way, tmp_path, {"http_proxy": server.url("")}.get)).ok
    assert server.got[0].path == "http://nowhere.invalid/x"


@pytest.mark.real
async def test_a_server_that_hangs_is_left_after_a_while(
    server: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "WHOLE_S", 1.5)
    server.answers = ["hang"]
    outcome = await once(posted(server), tmp_path)
    assert (outcome.ok, outcome.again) == (False, True)
    assert "does not answer" in outcome.why


@pytest.mark.real
async def test_a_notice_that_was_accepted_is_not_sent_again_because_the_answer_comes_to_no_end(
    server: Sink, tmp_path: Path
) -> None:
    for answer in ("drip", "endless"):
        server.answers = [answer]
        assert await once(posted(server), tmp_path) == SendOutcome(True)


def program(tmp_path: Path, code: str) -> NotificationChannel:
    script = tmp_path / "say.py"
    script.write_text(code)
    return NotificationChannel(
        "cmd", "command", every_rule(), command=(sys.executable, str(script), "a;b $(x)")
    )


@pytest.mark.real
async def test_a_command_gets_the_text_and_no_shell_and_may_fail_hang_or_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, os, sys\nout = {'argv': sys.argv[1:], 'in': json.load(sys.stdin),"
        " 'env': {k: v for k, v in os.environ.items() if k.startswith('DISTUI_NOTIFY_')}}\n"
        f"open({str(tmp_path / 'out')!r}, 'w').write(json.dumps(out))"
    )
    assert (await once(program(tmp_path, code), tmp_path)).ok
    out = json.loads((tmp_path / "out").read_text())
    assert out["argv"] == ["a;b $(x)"]
    assert out["in"]["rule"] == out["env"]["DISTUI_NOTIFY_RULE"] == "hang"
    assert out["env"]["DISTUI_NOTIFY_ATTACH"] == "distui attach night"

    failed = await once(program(tmp_path, "raise SystemExit(3)"), tmp_path)
    assert (failed.again, failed.why.endswith("exit code 3")) == (True, True)
    missing = await once(
        NotificationChannel("cmd", "command", every_rule(), command=("/nonexistent/x",)), tmp_path
    )
    assert (missing.again, "is not installed" in missing.why) == (False, True)
    monkeypatch.setattr(sending, "COMMAND_S", 0.5)
    late = await once(program(tmp_path, "import time\ntime.sleep(100)"), tmp_path)
    assert "took longer" in late.why


MANY = Notice("hang", "hang:1#1", "ranks 0-29999 hang", 0.0, ranks=tuple(range(30_000)))


@pytest.mark.real
async def test_a_command_gets_a_notice_about_30000_ranks(tmp_path: Path) -> None:
    code = "import json, sys\nassert json.load(sys.stdin)['ranks'] == list(range(30000))"
    many = text_of(MANY, "night", "gpu1")
    assert await send(program(tmp_path, code), many, nothing, tmp_path) == SendOutcome(True)


def test_no_variable_of_a_command_is_too_long_for_linux() -> None:
    long = structs.replace(text_of(MANY, "night", "ü" * 200_000), lines=("𝄞" * 200_000,))
    sizes = {name: len(os.fsencode(value)) for name, value in variables(long).items()}
    assert max(sizes.values()) < 65536


@for_each(
    ("number", "again"),
    [(errno.E2BIG, False), (errno.ENOEXEC, False), (errno.EAGAIN, True), (errno.ENOMEM, True)],
)
async def test_a_program_that_cannot_be_started_is_tried_again_if_that_can_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, again: bool
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    command = NotificationChannel("cmd", "command", every_rule(), command=("true",))
    why = f"cannot be started: {os.strerror(number)}"
    assert await once(command, tmp_path) == SendOutcome(False, f"its command true {why}", again)
    way = NotificationChannel("team", "webhook", every_rule(), url="http://127.0.0.1:1/x")
    sender = f"127.0.0.1: the process that sends it {why}"
    assert await once(way, tmp_path) == SendOutcome(False, sender, again=True)


async def test_the_desktop_is_asked_with_notify_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], str]] = []

    async def ended(words: list[str], env: Mapping[str, str], *more: object) -> tuple[int, bytes]:
        asked.append((words, env["DBUS_SESSION_BUS_ADDRESS"]))
        return 0, b""

    monkeypatch.setattr(sending, "_ended", ended)
    desktop = NotificationChannel("desktop", "desktop", every_rule())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "notify-send is not installed" in (await once(desktop, tmp_path)).why
    (tmp_path / "notify-send").touch(mode=0o755)
    assert (await once(desktop, tmp_path, {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"}.get)).ok
    ((words, address),) = asked
    assert words[:5] == ["notify-send", "--app-name=distui", "--urgency=low", "--", "night: it hangs"]
    assert address == "unix:path=/x"


# --- tries, limits, a later agent ---


class Scripted:
    """A way whose outcomes the test gives; what was tried on it."""

    def __init__(self, *outcomes: SendOutcome) -> None:
        self.outcomes = list(outcomes)
        self.tried: list[tuple[str, Mapping[str, int]]] = []
        self.texts: list[Text] = []
        self.reports: list[str] = []

    async def send(self, way: str, about: Notice, left_out: Mapping[str, int]) -> tuple[Text, SendOutcome]:
        self.tried.append((about.key, left_out))
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if self.outcomes else SendOutcome(True)
        self.texts.append(text_of(about, "night", "gpu1", left_out, clock.now()))
        return self.texts[-1], outcome

    def delivery(self, folder: Path, rules: str = "all") -> Delivery:
        ways = [ChosenChannel("team", rules_of(rules.split(","), ""))]
        return Delivery(folder, ways, self.send, lambda way, why: self.reports.append(why))


AGAIN = SendOutcome(False, "answers 500", again=True)


async def finished(delivery: Delivery) -> None:
    """Deliver until each notice has arrived or is given up."""
    delivery.leave()
    await delivery.run()


def states(folder: Path) -> list[str]:
    return [record.state for record in records(folder)]


async def noted(folder: Path, state: str) -> None:
    """Wait until this state is the newest that was written."""
    while states(folder)[-1:] != [state]:
        await asyncio.sleep(0.01)


async def test_it_is_tried_again_until_it_arrives(tmp_path: Path) -> None:
    way = Scripted(AGAIN, AGAIN)
    delivery = way.delivery(tmp_path)
    delivery.offer([notice()])
    await finished(delivery)
    assert len(way.tried) == 3
    assert states(tmp_path) == ["due", "trying", "later", "trying", "later", "trying", "sent"]
    assert way.reports == ["answers 500", ""]


async def test_the_end_of_a_run_waits_for_no_earlier_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivering, "WAITS_S", (600.0,))
    way = Scripted(AGAIN)
    delivery = way.delivery(tmp_path)
    async with in_background(delivery.run()):
        delivery.offer([notice("hang")])
        await noted(tmp_path, "later")
        delivery.offer([notice("gave-up")])
        await noted(tmp_path, "sent")
    assert [key for key, _ in way.tried] == ["hang:1#1", "gave-up:1#1"]


@pytest.mark.parametrize(
    ("outcome", "tries"), [(AGAIN, len(delivering.WAITS_S) + 1), (SendOutcome(False, "answers 404"), 1)]
)
async def test_it_is_given_up_and_reported(tmp_path: Path, outcome: SendOutcome, tries: int) -> None:
    way = Scripted(*[outcome] * 10)
    delivery = way.delivery(tmp_path)
    delivery.offer([notice()])
    await finished(delivery)
    assert len(way.tried) == tries
    assert states(tmp_path)[-1] == "failed"
    assert set(way.reports) == {outcome.why}


async def test_too_many_are_left_out_and_the_next_says_so(tmp_path: Path) -> None:
    way = Scripted()
    delivery = way.delivery(tmp_path)
    for at in range(MOST + 4):
        delivery.offer([notice("hang", f"hang:{at}")])
        await finished(delivery)
    assert len(way.tried) == MOST
    delivery.offer([notice("gave-up")])  # of the end of a run in any case
    await finished(delivery)
    assert way.tried[-1] == ("gave-up:1#1", {"hang": 4})
    await asyncio.sleep(601)
    delivery.offer([notice("straggler")])
    await finished(delivery)
    assert way.tried[-1] == ("straggler:1#1", {})


async def test_the_limit_holds_though_agents_come_and_go(tmp_path: Path) -> None:
    way = Scripted()
    for at in range(MOST + 4):
        delivery = way.delivery(tmp_path)
        delivery.resume()
        delivery.offer([notice("hang", f"hang:{at}")])
        await finished(delivery)
    assert len(way.tried) == MOST


async def test_what_was_left_out_is_told_once_something_arrives(tmp_path: Path) -> None:
    way = Scripted(*[SendOutcome(True)] * MOST, SendOutcome(False, "no"))
    delivery = way.delivery(tmp_path)
    delivery.offer([notice("hang", f"hang:{at}") for at in range(MOST)])
    await finished(delivery)
    delivery.offer([notice("hang", f"hang:{at}") for at in range(MOST, MOST + 2)])
    delivery.offer([notice("gave-up", "gave-up:1"), notice("gave-up", "gave-up:2")])
    await finished(delivery)
    assert [left_out for _, left_out in way.tried[-2:]] == [{"hang": 2}, {"hang": 2}]


async def test_rules_that_are_off_are_off_and_what_is_late_is_history(tmp_path: Path) -> None:
    way, then = Scripted(), clock.now() - LATE_S - 1
    delivery = way.delivery(tmp_path, "restarted,gave-up")
    delivery.offer([notice("hang"), notice("restarted", at=then), notice("gave-up", at=then)])
    await finished(delivery)
    assert [key for key, _ in way.tried] == ["gave-up:1#1"], "the end of a run is never too late"
    assert way.texts[-1].lines[-1] == "This was 15 min ago"
    assert states(tmp_path) == ["late", "due", "trying", "sent"]


async def test_minutes_of_another_way_are_none_of_this_one(tmp_path: Path) -> None:
    way = Scripted()
    delivery = way.delivery(tmp_path, "gpus-idle=5")
    idle = Notice("gpus-idle", "gpus-idle:1:30#1", "idle", clock.now(), minutes=30.0)
    delivery.offer([idle])
    await finished(delivery)
    assert way.tried == []


async def test_a_later_agent_sends_what_is_due_and_nothing_again(tmp_path: Path) -> None:
    first = Scripted(SendOutcome(True), AGAIN)
    delivery = first.delivery(tmp_path)
    delivery.offer([notice("hang")])
    await finished(delivery)
    async with in_background(delivery.run()):
        delivery.offer([notice("gave-up")])
        await noted(tmp_path, "later")  # killed while it waits for its next try
    second = Scripted()
    delivery = second.delivery(tmp_path)
    assert delivery.resume() == {"hang:1#1", "gave-up:1#1"}
    delivery.offer([notice("hang"), notice("gave-up")])
    await finished(delivery)
    assert [key for key, _ in second.tried] == ["gave-up:1#1"]


async def test_a_try_that_was_under_way_is_made_again_for_the_end_of_the_run(tmp_path: Path) -> None:
    async def hangs(way: str, about: Notice, left_out: Mapping[str, int]) -> tuple[Text, SendOutcome]:
        await asyncio.Event().wait()
        raise AssertionError

    notices = [notice("gave-up"), notice("hang")]
    for each in notices:
        delivery = Delivery(tmp_path, [ChosenChannel("team", every_rule())], hangs, lambda way, why: None)
        async with in_background(delivery.run()):
            delivery.offer([each])
            await noted(tmp_path, "trying")
    later = Scripted()
    delivery = later.delivery(tmp_path)
    delivery.resume()
    delivery.offer(notices)
    await finished(delivery)
    assert [key for key, _ in later.tried] == ["gave-up:1#1"], "what may have arrived is not sent again"


async def test_a_later_process_goes_on_with_the_number_of_tries(tmp_path: Path) -> None:
    first = Scripted(*[AGAIN] * 20)
    delivery = first.delivery(tmp_path)
    delivery.offer([notice("gave-up")])
    delivery.leave(10.0)
    await delivery.run()
    assert (len(first.tried), delivery.is_open) == (3, True)
    second = Scripted(*[AGAIN] * 20)
    delivery = second.delivery(tmp_path)
    delivery.resume()
    await finished(delivery)
    assert len(first.tried) + len(second.tried) == len(delivering.WAITS_S) + 1
    assert (states(tmp_path)[-1], delivery.is_open) == ("failed", False)


async def test_a_way_that_fails_is_reported_after_the_first_retry(tmp_path: Path) -> None:
    way, began = Scripted(AGAIN, AGAIN, AGAIN), clock.monotonic()
    delivery = way.delivery(tmp_path)
    async with in_background(delivery.run()):
        delivery.offer([notice()])
        while not way.reports:
            await asyncio.sleep(0.1)
        assert (way.reports, len(way.tried)) == (["answers 500"], 2)
        assert clock.monotonic() - began < 3.0
        await noted(tmp_path, "sent")
    assert way.reports[-1] == "", "it works again"


async def test_a_burst_is_one_line_of_the_file_and_does_not_silence_the_end(tmp_path: Path) -> None:
    way = Scripted()
    delivery = way.delivery(tmp_path)
    delivery.offer([notice("hang", f"hang:{number}") for number in range(5000)])
    delivery.offer([notice("gave-up")])
    await finished(delivery)
    assert len(way.tried) == MOST + 1
    assert ("gave-up:1#1", {"hang": 4994}) in way.tried
    assert states(tmp_path).count("left-out") == 1


async def test_the_limit_of_notices_does_not_follow_a_clock_that_is_set(tmp_path: Path) -> None:
    way, loop = Scripted(), cast(VirtualLoop, asyncio.get_running_loop())
    delivery = way.delivery(tmp_path)
    delivery.offer([notice("hang", f"hang:{at}") for at in range(MOST)])
    await finished(delivery)
    for jump in (86400.0, -2 * 86400.0):
        loop._epoch += jump
        delivery.offer([notice("hang", f"hang:{jump}")])
    await asyncio.sleep(601)
    delivery.offer([notice("hang", "hang:later")])
    await finished(delivery)
    assert [key for key, _ in way.tried[MOST:]] == ["hang:later"]


async def test_a_disk_that_takes_nothing_stops_no_notice(tmp_path: Path) -> None:
    way = Scripted()
    delivery = way.delivery(tmp_path / "gone")
    delivery.offer([notice()])
    delivery.offer([notice()])
    await finished(delivery)
    assert len(way.tried) == 1


async def test_a_damaged_file_costs_its_damaged_lines(tmp_path: Path) -> None:
    way = Scripted()
    delivery = way.delivery(tmp_path)
    delivery.offer([notice()])
    await finished(delivery)
    file = tmp_path / delivering.FILE
    file.write_bytes(b"\xff\xfe\n{}\n[1]\n" + file.read_bytes() + b'{"at": 1')
    assert Scripted().delivery(tmp_path).resume() == {"hang:1#1"}


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert others == []
