"""What ranks write may be anything: it neither fills the agent's memory nor reaches the terminal as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from doubles.served import doubled

from distui.runners.run.commands import ReadLog
from distui.runners.run.model import Outcome
from distui.runners.run.wire.client import SocketLink

from ..runs import DISTUI, Run, World, rss_bytes, until
from ..screen import Screen
from ..written import Attempt, write

UGLY = (
    b"bad utf-8: \xff\xfe\xc3\x28 end\n",
    b"\x1b]0;stolen title\x07after the title\n",
    b"\x1b]52;c;c2VjcmV0\x07after the clipboard\n",
    b"\x1b[2J\x1b[H\x1b[31mred\x1b[0m text\n",
    b"[bold red]markup[/] stays\n",
    b"nul\x00bell\x07back\x08space\n",
    b"10%\r50%\r100% done\n",
    "right\u202eto left\n".encode(),
    "zero\u200bwidth\ufeffmark\U000e0041tag\n".encode(),
    b"\x9b31m8-bit csi \x90dcs\x9c over\n",
    b"\xe2\x80\xa8line separator\n",
)
"""Lines that ranks write."""


def ugly(world: World) -> Run:
    """A run whose rank has written them."""
    out = b"".join(UGLY).decode("utf-8", "surrogateescape")
    return write(world, "exec", "--", "true", attempts=[Attempt(out=out)])


def test_logs_are_cleaned_always(world: World) -> None:
    """Into a terminal, a pipe or a file alike: what stands in a log is data, never a command to a terminal."""
    run = ugly(world)
    said = run.distui("logs").fine().out
    assert not [letter for letter in said if letter != "\n" and not letter.isprintable()], repr(said)
    for kept in (
        "after the title",
        "after the clipboard",
        "red text",
        "[bold red]markup[/] stays",
        "100% done",
        "nul\u2400bell",
        "bad utf-8:",
        "line separator",
    ):
        assert kept in said, (kept, said)
    for lost in ("stolen", "c2VjcmV0", "\x1b", "\x07", "\u202e", "\u200b", "\ufeff", "\U000e0041"):
        assert lost not in said
    assert b"\x1b]52" in run.file("node-0/attempt-001/rank-0.out"), "the file keeps what was written"


@pytest.mark.real
def test_the_log_pane_is_clean(world: World) -> None:
    """What the cockpit writes to its terminal of the same lines, shown and searched."""
    run = ugly(world)
    screen = Screen([DISTUI, "replay", run.id], world.env, world.work, 120, 40)
    try:
        screen.until("SUCCEEDED")
        screen.press("3")
        wanted = (
            "separator",
            "after the clipboard",
            "zero\ufffdwidth\ufffdmark\ufffdtag",
            "right\ufffdto left",
            "red text",
        )
        screen.until(lambda text: all(kept in text for kept in wanted))
        screen.press("q")
        assert screen.ended() == 0
    finally:
        screen.close()
    written = screen.written.decode()
    assert "zero\ufffdwidth" in written
    for lost in (
        "stolen",
        "c2VjcmV0",
        "\x1b]0",
        "\x1b]52",
        "\u202e",
        "\u200b",
        "\ufeff",
        "\U000e0041",
        "\x9b",
        "\u2028",
    ):
        assert lost not in written, lost


def test_names_are_cleaned_too(world: World) -> None:
    """A command line may hold an escape sequence; `status` and `ls` print it as text."""
    words = ("exec", "--name", "esc", "--", "sh", "-c", "printf '\x1b]0;x\x07'; exit 1")
    run = write(world, *words, attempts=[Attempt(Outcome.FAILED)])
    for said in (run.distui("status"), world.distui("ls"), run.distui("events")):
        assert "\x1b" not in said.out


@pytest.mark.real
def test_one_line_of_100_megabytes(world: World) -> None:
    """No newline in it: the agent's memory stays as it is, and a window holds no more than was asked for."""
    run = world.execute(
        "import sys, time\n"
        "for n in range(100):\n    sys.stdout.write('x' * (1 << 20))\n"
        "sys.stdout.flush()\nprint()\nprint('the end', flush=True)\ntime.sleep(600)\n"
    )
    name = "node-0/attempt-001/rank-0.out"
    assert run.wait("running") == 0
    agent = run.agent_pid()
    before = rss_bytes(agent)
    whole = (100 << 20) + len("\nthe end\n")  # unbuffered: the end of a line is written apart
    assert until(lambda: (run.path / name).stat().st_size == whole)
    done = run.distui("logs", "--rank", "0").fine()
    assert done.out.endswith("the end\n")
    assert len(done.out) < 1 << 20, "a line is cut, and says how long it is"
    sizes = asyncio.run(windows(next(world.sockets.glob("*.sock")), name))
    assert max(sizes) <= 1 << 20
    assert run.agent_pid() == agent
    assert rss_bytes(agent) < before + (24 << 20)
    done = run.distui("logs", "--grep", "^the end$").fine()
    assert done.out == "[rank 0 out] the end\n"


async def windows(path: Path, name: str) -> list[int]:
    """Sizes of some windows into a file, asked for as large as can be."""
    link = await SocketLink.connect(path)
    try:
        asked = [await link.read_log(ReadLog(name, at, 1 << 40)) for at in (0, 1, 5 << 20, -1, -(1 << 30))]
        return [len(window.data) for window in asked]
    finally:
        await link.close()


async def test_no_file_id_leads_out() -> None:
    """Whatever a client asks for, it stays below the run directory, and follows no link."""
    async with doubled() as (run, runners):
        await run.hooked()
        folder = run.path / "node-0/attempt-001"
        runners.newest.writes(0, "x\n")
        (folder / "rank-7.out").symlink_to("/etc/passwd")
        (folder / "rank-8.out").mkdir()
        for name in (
            "../../etc/passwd",
            "/etc/passwd",
            "node-0/attempt-001/../../../../../../etc/passwd",
            "node-0/attempt-001/rank-0.out/../../../plan.json",
            "",
            ".",
            "\0",
            "node-0/attempt-001/rank-7.out",
            "node-0/attempt-001/rank-8.out",
            "node-0/attempt-001/rank-9.out",
            "node-0/attempt-001/rank-0.out\n",
        ):
            window = await run.link.read_log(ReadLog(name, 0))
            assert window.data == b"", name
            assert window.error, name
            assert "Traceback" not in window.error
        assert (await run.link.read_log(ReadLog("node-0/attempt-001/rank-0.out", 0))).data == b"x\n"


def test_a_bad_pattern(world: World) -> None:
    run = write(world, "exec", "--", "true")
    for pattern in ("(", "[", "*a", "(?P<x", "a" * 5000 + "("):
        run.distui("logs", "--grep", pattern).refused(2, "--grep", "regular expression")


async def test_last_words_are_printable() -> None:
    """Every byte a rank writes to stderr as it fails."""
    async with doubled(nproc_per_node=1, restart_limit=0) as (run, runners):
        await run.hooked()
        last = bytes(range(256)) * 4 + b"\n\xed\xa0\x80 last\n"
        (run.path / "node-0/attempt-001/rank-0.err").write_bytes(last)
        runners.newest.exits(0, 1)
        await run.until(lambda state: state.phase.ended)
        cause = run.state.attempts[0].first_cause
        assert cause is not None
        assert any("last" in line for line in cause.last_lines)
        assert all(letter.isprintable() for line in cause.last_lines for letter in line), cause
