"""Keys of the findings and of the NCCL screen: from the sentence to its line in the log, and back."""

from __future__ import annotations

import pytest
import scripted as play
import told
from conftest import Rig, Start, shown

from distui.presets.finding import Finding
from distui.runners.run import run_directories
from distui.runners.run.commands import Dump, SetNccl
from distui.runners.run.model import CommandDone, FindingRaised, HostTick
from distui.runners.run.run_record import RunRecord
from distui.runners.run.samples import Host
from distui.tui.evidence_line import pattern_of
from distui.tui.rows.log import Selection
from distui.tui.screens.modal import NcclScreen, TextScreen
from distui.tui.screens.run import RunScreen


def run_screen(it: Rig) -> RunScreen:
    screen = it.app.screen
    assert isinstance(screen, RunScreen)
    return screen


async def test_i_shows_the_findings_and_enter_the_line_that_is_the_evidence(rig: Start) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        await it.until(lambda: "findings · 2 alarms" in it.screen())
        assert "→ look at data.py:88" in it.screen()
        await it.press("enter")
        await it.until(lambda: "Init COMPLETE" in it.screen() and "rank 3 · nccl" in it.screen())
        assert "[3] NCCL INFO Init COMPLETE" in run_screen(it).log_view.chosen_text()
        await it.press("escape")
        await it.until(lambda: "findings · 2 alarms" in it.screen())
        assert run_screen(it).log_view.selection.rank is None


async def test_space_shows_the_evidence_of_the_card_under_the_cursor(rig: Start) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        await it.until(lambda: "space evidence" in it.screen())
        assert "stack unchanged" not in it.screen()
        await it.press("space")
        await it.until(lambda: "rank 3: stack unchanged in 6 looks" in it.screen())
        await it.press("space")
        await it.until(lambda: "stack unchanged" not in it.screen())
        await it.press("down", "space")
        await it.until(lambda: "sock-closed-by-peer  rank 4: a peer closed its connection" in it.screen())


@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
async def test_the_cursor_reaches_each_card_and_shows_it_whole(rig: Start, size: tuple[int, int]) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    async with shown(it, *size):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i", "space")
        cards, seen = run_screen(it).findings, list[str]()
        for _ in range(60):
            current = cards.current
            assert current is not None
            if current.key not in seen:
                seen.append(current.key)
            await it.press("down")
        assert len(seen) == 5
        assert "takes long: it compiles" in it.screen()
        await it.press("g")
        await it.until(lambda: "rank 3 never joined" in it.screen())
        assert cards.current is not None
        assert cards.current.first.id == "hang-not-joined"


AT_LINE = Finding(
    "died-exception",
    "error",
    "rank 1 raised ValueError: bad shard at crash.py:9",
    role="cause",
    rank=1,
    remedy="check what the script does at that line",
    evidence=("rank 1 ended with exit code 1", "raised at /w/crash.py:9"),
)


@pytest.mark.parametrize("keys", [("6", "y"), ("1", "y")])
async def test_the_remedy_names_file_and_line_wherever_it_is_copied(
    rig: Start, keys: tuple[str, ...]
) -> None:
    """In the overview the ranks have the focus, which have nothing to copy: the remedy of the banner is copied."""
    remedy = "check what the script does at /w/crash.py:9"
    it = rig(told.running(told.facts(), AT_LINE))
    async with shown(it, 120, 40):
        await it.until(lambda: remedy in it.screen())
        await it.press(*keys)
        await it.until(lambda: f'1 line copied ("{remedy}"), also to' in it.told())
        assert it.app.clipboard == remedy


async def test_y_copies_the_command_of_the_remedy(rig: Start) -> None:
    stuck = Finding(
        "hang-lock", "error", "rank 1 is blocked", remedy="press w (`distui dump night stacks`)"
    )
    slow = Finding("slow", "warning", "rank 5 is slow", rank=5, remedy="see what it does")
    it = rig(told.running(told.facts(), stuck, slow, Finding("late", "note", "rank 4 waits least", rank=4)))
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        await it.until(lambda: "y copy command" in it.screen())
        await it.press("y")
        await it.until(lambda: it.app.clipboard == "distui dump night stacks")
        await it.press("down", "y")
        await it.until(lambda: it.app.clipboard == "see what it does")
        await it.press("down", "y")
        await it.until(lambda: it.app.clipboard == "rank 4 waits least")


async def test_a_click_on_a_key_presses_it(rig: Start) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        await it.until(lambda: "space evidence" in it.screen())
        row = next(at for at, line in enumerate(it.screen().splitlines()) if "space evidence" in line)
        column = it.screen().splitlines()[row].index("e evidence")
        await it.pilot.click(offset=(column, row))
        await it.until(lambda: "rank 3: stack unchanged in 6 looks" in it.screen())


async def test_a_finding_is_once_on_a_large_overview(rig: Start) -> None:
    it = rig(told.running(told.facts(), *told.findings()))
    async with shown(it, 200, 60):
        await it.until(lambda: "rank 3 never joined all_reduce 1204" in it.screen())
        assert it.screen().count("never joined all_reduce 1204") == 1
        await it.press("7")
        await it.until(lambda: it.screen().count("never joined all_reduce 1204") == 2)


async def test_a_finding_without_a_line_opens_the_log_of_its_rank(rig: Start) -> None:
    it = rig(told.running(told.facts(), Finding("slow", "warning", "rank 4 waits least", rank=4)))
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i", "enter")
        await it.until(lambda: "rank 4 ready" in it.screen())
        assert run_screen(it).log_view.selection.rank == 4
        await it.press("1", "escape")
        assert run_screen(it).log_view.selection.rank is None


async def test_a_finding_about_no_rank_stays_where_it_is_and_says_so(rig: Start) -> None:
    it = rig(told.running(told.facts(), Finding("start", "warning", "a node is not reachable")))
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i", "enter")
        await it.until(lambda: "names no rank and no line" in it.told())


async def test_the_cursor_stays_on_its_finding_when_a_worse_one_comes(rig: Start) -> None:
    it = rig(told.running(told.facts(), Finding("slow", "warning", "rank 4 waits least", rank=4)))
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        it.link.play(FindingRaised(Finding("died", "error", "rank 1 was killed", rank=1)), seq=80)
        await it.until(lambda: "rank 1 was killed" in it.screen())
        current = run_screen(it).findings.current
        assert current is not None
        assert current.first.id == "slow"


async def test_no_finding_says_so_and_what_is_missing(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("i")
        await it.until(lambda: "No findings" in it.screen())
        assert "flight recorder: 0/8 ranks" in it.screen()


async def test_w_asks_for_stacks_and_shows_equal_ones_together(rig: Start) -> None:
    it = rig(play.running())
    text = 'Thread 0x1 (most recent call first):\n  File "train.py", line {} in {}\n'
    data = {str(rank): text.format(*((71, "step") if rank != 5 else (88, "load"))) for rank in range(8)}
    it.link.answers["Dump"] = CommandDone("x", True, "stacks of 8 ranks", data)
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("w")
        await it.until(lambda: isinstance(it.app.screen, TextScreen))
        await it.until(lambda: "7 ranks: 0-4, 6-7" in it.screen() and "rank 5" in it.screen())
        (command,) = it.link.commands
        assert isinstance(command, Dump)
        assert (command.what, command.ranks) == ("stacks", ())
        await it.press("escape", "2", "g", "space", "w")
        await it.until(lambda: len(it.link.commands) == 2)
        second = it.link.commands[1]
        assert isinstance(second, Dump)
        assert second.ranks == (0,)


async def test_enter_on_the_event_of_stacks_shows_them_again(rig: Start) -> None:
    it = rig(play.running())
    data = {"3": 'Thread 0x1 (most recent call first):\n  File "train.py", line 71 in step\n'}
    it.link.answers["Dump"] = CommandDone("x", True, "stacks of rank 3", data)
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("w")
        await it.until(lambda: isinstance(it.app.screen, TextScreen))
        await it.press("escape")
        it.link.play(CommandDone("x", True, "stacks of rank 3"), seq=90)
        await it.press("7")
        await it.until(lambda: "stacks of rank 3" in it.screen())
        events = run_screen(it).events
        row = next(
            at for at, row in enumerate(events.rows) if "stacks of" in "".join(text for text, _ in row)
        )
        events.move_to(row)
        await it.press("enter")
        await it.until(lambda: isinstance(it.app.screen, TextScreen) and "train.py" in it.screen())
        assert len(it.link.commands) == 1
        await it.press("escape")
        it.run.follower.state.notices[-1] = (play.BEGAN + 20.0, "stacks of rank 3")
        events.again()
        await it.press("enter")
        await it.until(lambda: "are not kept" in it.told())


async def test_w_after_the_end_and_a_refusal_are_told(rig: Start) -> None:
    it = rig(play.failed())
    async with shown(it):
        await it.until(lambda: "FAILED" in it.screen())
        await it.press("w")
        await it.until(lambda: "The run has ended" in it.told())


async def test_5_shows_what_nccl_says_and_enter_opens_its_line(rig: Start) -> None:
    it = rig(told.running(told.facts()))
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("5")
        await it.until(lambda: "1 node · 1 communicator" in it.screen())
        await it.press("down", "enter")
        await it.until(lambda: "rank 0 · nccl" in it.screen() and "Init COMPLETE" in it.screen())
        await it.press("escape")
        await it.until(lambda: "1 node · 1 communicator" in it.screen())
        await it.press("G", "enter")
        await it.until(lambda: "No single log line contains this" in it.told())


@pytest.mark.parametrize(("width", "beside"), [(80, False), (119, False), (120, True)])
async def test_the_map_stands_below_or_beside_but_always_once(rig: Start, width: int, beside: bool) -> None:
    it = rig(told.running(told.facts()))
    async with shown(it, width, 120):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("5")
        await it.until(
            lambda: "transport of each pair" in it.screen() and "until it is ready" in it.screen()
        )
        assert it.screen().count("transport of each pair") == 1
        assert ("how the ranks are connected" in it.screen()) is beside


async def test_c_goes_through_the_communicators(rig: Start) -> None:
    it = rig(nodes=told.on_nodes(told.uneven()))
    async with shown(it, 120, 60):
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("5")
        await it.until(lambda: "transport of each pair   0x673b5f0a1c2d3e4f" in it.screen())
        await it.press("c")
        await it.until(lambda: "transport of each pair   0x11" in it.screen())
        await it.press("C")
        await it.until(lambda: "transport of each pair   0x673b5f0a1c2d3e4f" in it.screen())


async def test_without_facts_the_screen_says_why(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("5")
        await it.until(lambda: "NCCL's statements need INFO: press d" in it.screen())


async def test_an_ended_run_without_logs_here_says_so(rig: Start) -> None:
    async with shown(rig(play.failed())) as it:
        await it.until(lambda: "FAILED" in it.screen())
        await it.press("5")
        await it.until(lambda: "The logs of this run are not on this machine" in it.screen())


COMM = "ncclCommInitRank comm 0x5576aaaa0 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0xbab0000000000001"
LOG = f"""\
n001:4711:4711 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>
n001:4711:4790 [0] NCCL INFO Using network Socket
n001:4711:4790 [0] NCCL INFO {COMM} - Init START
n001:4711:4790 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n001:4711:4790 [0] NCCL INFO {COMM} - Init COMPLETE
"""


async def test_an_ended_run_is_read_from_its_logs_here(rig: Start) -> None:
    it = rig(play.failed())
    record = RunRecord("r-1a2b3c4d", "1a2b3c4d", "minigpt", play.BEGAN, "n001")
    log = run_directories.create(record, b"{}", {}) / "node-0" / "attempt-001" / "rank-0.nccl"
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    async with shown(it):
        await it.until(lambda: "FAILED" in it.screen())
        await it.press("5")
        await it.until(lambda: "1 node · 1 communicator" in it.screen())
        assert "0xbab0000000000001" in it.screen()
        assert "no line names rank 1" in it.screen()


async def test_what_floods_ends_by_itself_unless_somebody_chose(rig: Start) -> None:
    it = rig(play.running())
    async with shown(it, 120, 40):
        await it.until(lambda: "RUNNING" in it.screen())
        it.link.play(HostTick(Host(disk_free=10 << 30, disk_total=100 << 30)), time=it.now)
        await it.until(lambda: it.run.state.nodes[0].metrics)
        await it.press("d", "right")
        assert isinstance(it.app.screen, NcclScreen)
        await it.until(lambda: "(x) 60 s" in it.screen())
        assert "[x] COLL" in it.screen(), "INFO alone has little to log once the job runs"
        for part in (
            "COLL: a line per collective and rank",
            "10.0G of 100G free on n001",
            "after 60 s; earlier above 50 MB/s per node, or with less than 5.0G",
        ):
            assert part in it.screen()
        await it.press(*["down"] * 4, "space")
        assert "(x) until changed" in it.screen()
        await it.press("space", "g", "down", "right", "enter", "y")
        await it.until(lambda: it.link.commands)
        (command,) = it.link.commands
        assert isinstance(command, SetNccl)
        assert (command.level, command.subsys, command.seconds) == ("INFO", "COLL", 300.0)


def test_a_line_is_found_again_by_its_message() -> None:
    line = "n001:4711:1 [0] NCCL INFO comm 0x1 (a+b) [3] done."
    assert pattern_of(line) == r"INFO comm 0x1 \(a\+b\) \[3\] done\."
    assert pattern_of("RuntimeError: x") == "RuntimeError: x"


async def test_a_shorter_log_paints_over_all_of_the_longer_one(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(rig(play.running(), lines=5), 120, 60) as it:
        await it.until(lambda: "step 4" in it.screen())
        view = run_screen(it).log_view
        before, painted, paint = len(view.rows), set[int](), view.paint_rows

        def watched(rows: list[int]) -> None:
            painted.update(rows)
            paint(rows)

        monkeypatch.setattr(view, "paint_rows", watched)
        view.select(Selection(rank=1))
        await it.until(lambda: len(view.rows) == 3)
        await it.until(lambda: painted >= set(range(before)))


async def test_an_ended_run_shows_what_happened_where_nothing_was_found(rig: Start) -> None:
    async with shown(rig(play.failed())) as it:
        await it.until(lambda: "FAILED" in it.screen())
        await it.press("i")
        await it.until(lambda: "No findings." in it.screen() and "shape mismatch in block 7" in it.screen())
        assert "distui diagnose minigpt" in run_screen(it).findings.rows[-1][0][0]


async def test_the_banner_names_the_key_that_shows_stacks(rig: Start) -> None:
    slow = Finding(
        "slow", "warning", "rank 2 is late", rank=2, remedy="check rank 2: `distui dump stacks`, its data"
    )
    it = rig(told.running(told.facts(), slow))
    async with shown(it, 120, 40):
        await it.until(lambda: "→ check rank 2: the stacks (key w), its data" in it.screen())
        await it.press("y")
        assert it.app.clipboard == "distui dump stacks"
