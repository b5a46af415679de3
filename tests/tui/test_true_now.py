"""Header, rank table and status text of a run that has just stopped: what a viewer sees within seconds."""

from __future__ import annotations

import re

import scripted as play
from conftest import Start, shown
from each import for_each
from msgspec.structs import replace
from test_rows import frame_of, line_of

from distui.presets.finding import Finding
from distui.runners.reports.status_document import status_json
from distui.runners.run.commands import Profile
from distui.runners.run.model import (
    CommandReceived,
    Event,
    FindingRaised,
    ProfileArmed,
    PulseTick,
    RankTick,
    TrainingTick,
)
from distui.runners.run.pulse import Collective, ProcessGroup, Pulse, Site
from distui.runners.run.samples import RankSample, TrainingSample
from distui.tui.rows.confirm import confirmation
from distui.tui.rows.glyphs import plain, to_ascii
from distui.tui.rows.header import header_rows
from distui.tui.rows.tables import plain_table, rank_table
from distui.tui.verbs.status import describe, headline

AT = play.NOW - play.BEGAN
"""Seconds from the beginning of the run to what is shown."""
SAVES = (Site("/job/train.py", 61, "save_checkpoint"), Site("/job/train.py", 90, "main"))
LOADS = (Site("/job/data.py", 88, "load"), Site("/job/train.py", 90, "main"))

Events = list[tuple[float, Event]]


def stalled(seconds: float = 12.0, usual_s: float = 0.6) -> Events:
    """Two ranks that have stopped: rank 0 in a collective, rank 1 in its data."""
    still = [
        RankSample(rank, 4711 + rank, step=120, still_s=seconds, usual_s=usual_s, wait_percent=100.0)
        for rank in (0, 1)
    ]
    call = Collective("0", 42, "all_reduce", created=play.NOW - seconds)
    group = ProcessGroup("0", enqueued=42, completed=41)
    calls = Pulse(0, play.NOW - 1, 4711, hook=True, step=120, active=(call,), groups=(group,))
    return [(AT - 0.3, RankTick(tuple(still))), (AT - 1, PulseTick((calls, sleeps(LOADS))))]


def sleeps(stack: tuple[Site, ...], rank: int = 1) -> Pulse:
    return Pulse(
        rank, play.NOW - 1, 4711 + rank, hook=True, state="S", stack=stack, sites=1, samples=10, step=120
    )


def two(*more: tuple[float, Event]) -> Events:
    return [*play.running(2, gpu=False), *more]


def head(events: Events) -> list[str]:
    return [line_of(row) for row in header_rows(frame_of(events), 200)]


def styles(events: Events) -> dict[str, str]:
    """Style by text of the header's cells."""
    return {text: style for row in header_rows(frame_of(events), 200) for text, style in row}


def states(events: Events) -> list[tuple[str, str]]:
    """Text and style of the state column."""
    table = rank_table(frame_of(events), 120)
    at = next(number for number, (_, _, id) in enumerate(table.areas) if id == "state")
    return [(row[at + 1][0].rstrip(), row[at + 1][1]) for row in table.rows]


def test_ranks_show_what_they_do_and_the_verdict_marks_them() -> None:
    assert states(two()) == [("▶ step 41 ms", "ok"), ("▶ step 42 ms", "ok")]
    assert states(two(*stalled())) == [("‖ all_reduce 12 s", "warn"), ("▲ blocked 12 s", "warn")]
    found = Finding("hang-not-joined", "error", "rank 1 sleeps", rank=1, waiting=(0,), since=play.NOW - 12)
    hung = two(*stalled(), (AT - 0.2, FindingRaised(found)))
    assert states(hung) == [("✖ blocked 12 s", "bad"), ("‖ waits for 1", "dim")], "the culprit comes first"
    restart = CommandReceived("c", "restart requested", "restart", 30.0)
    stopping = two(*stalled(), (AT - 3, restart))
    assert states(stopping) == [("↻ stopping 3/30 s", "warn")] * 2
    texts = [to_ascii(text) for text, _ in (*states(two()), *states(hung), *states(stopping))]
    assert all(text.isascii() for text in texts)
    assert len({text[0] for text in texts}) == 4, "no information depends on the colour or the font alone"


def test_json_and_text_of_status_say_the_same() -> None:
    found = Finding("hang-not-joined", "error", "rank 1 sleeps", rank=1, waiting=(0,), since=play.NOW - 12)
    state = frame_of(two(*stalled(), (AT - 0.2, FindingRaised(found)))).state
    ranks = status_json(state, play.NOW)["ranks"]
    assert [(each["activity"], each["doing"], each["culprit"]) for each in ranks] == [
        ("waits", "waits for 1", False),
        ("blocked", "blocked 12 s", True),
    ]
    text = describe(state, play.NOW)
    assert "‖ waits for 1" in text
    assert "✖ blocked 12 s" in text
    assert "no step for 12 s, usually 600 ms" in headline(state, play.NOW)


def test_the_header_warns_of_a_late_step_long_before_the_verdict() -> None:
    late = two(*stalled(4.0))
    assert "no step for 4 s, usually 600 ms" in head(late)[1]
    assert styles(late)["no step for 4 s, usually 600 ms"] == "warn"
    assert "no step" not in head(two(*stalled(4.0, usual_s=1.0)))[1], "less than five usual steps"


@for_each("stack", [SAVES, (Site("/job/train.py", 70, "evaluate"), *SAVES[1:])])
def test_a_known_pause_is_no_warning(stack: tuple[Site, ...]) -> None:
    pauses = two(*stalled(), (AT - 0.9, PulseTick((sleeps(stack), sleeps(stack, 0)))))
    words = "no step for 12 s: checkpoint" if stack is SAVES else "no step for 12 s: evaluation"
    assert styles(pauses)[words] == "text"
    assert states(pauses)[0] == (f"◌ {words.rpartition(': ')[2]} 12 s", "text")
    blocked = two(*stalled(), (AT - 0.9, PulseTick((sleeps(stack, 0),))))
    assert styles(blocked)["no step for 12 s, usually 600 ms"] == "warn", "rank 1 does not save"


def reported(at: float, **fields: float) -> tuple[float, Event]:
    sources = dict.fromkeys(fields, "output: …")
    return (at, TrainingTick((TrainingSample(0, play.BEGAN + at, sources=sources, **fields),)))  # type: ignore[arg-type]


def test_old_numbers_are_dim_and_show_their_age() -> None:
    shown = two(reported(AT - 12, step=80, loss=2.5), *stalled())
    assert styles(shown)["loss 2.5 · 12 s ago"] == "stale"
    assert styles(shown)["step 80"] == "text", "the count of steps stays true"
    table = rank_table(frame_of(shown), 120)
    at = next(number for number, (_, _, id) in enumerate(table.areas) if id == "pace")
    assert [(row[at + 1][0].strip(), row[at + 1][1]) for row in table.rows] == [("600ms", "stale")] * 2
    assert "600ms" not in "".join(plain_table(frame_of(shown))), "text has no dim values"


def test_header_and_table_show_one_step_and_one_time_of_a_step() -> None:
    """A script prints now and then, and a resumed one counts on: its step stands in the header, and no other."""
    shown = two(reported(AT - 2, step=80, step_s=0.9))
    assert "step 80" in head(shown)[1]
    assert "42 ms/step" in head(shown)[1], "the mean of the table, 41 and 42 ms"
    ids = [id for _, _, id in rank_table(frame_of(shown), 120).areas]
    assert "step" not in ids
    assert "pace" in ids
    behind = [replace(sample, step=120 - 2 * sample.rank) for sample in play.samples(2, False)]
    apart = two(reported(AT - 2, step=80), (AT - 0.3, RankTick(tuple(behind))))
    assert "step" in [id for _, _, id in rank_table(frame_of(apart), 120).areas], "a rank is behind"
    assert "step" in [id for _, _, id in rank_table(frame_of(two()), 120).areas], "the only count"


async def test_charts_show_the_values_of_the_header(rig: Start) -> None:
    """Also if ranks report different losses."""
    first = TrainingSample(0, play.NOW - 2, loss=2.5, tokens_s=1902.0, sources={"loss": "output: …"})
    other = TrainingSample(1, play.NOW - 2, loss=2.75, sources={"loss": "output: …"})
    async with shown(rig(two((AT - 2, TrainingTick((first, other))))), 200, 60) as it:
        await it.press("4")
        await it.until(lambda: "throughput" in it.screen())
        text = it.screen()
        assert "42 ms/step" in text
        assert "step time 42 ms/step" in text
        assert re.search(r"│ loss 2\.5 │ 1,902 tok/s", text)
        assert re.search(r"loss 2\.5 ", text.split("4 Curves", 1)[1])
        assert "throughput 1,902 tok/s" in text


def test_every_viewer_sees_the_progress_of_a_restart_and_of_a_profile() -> None:
    restart = two((AT - 3, CommandReceived("c", "restart requested", "restart", 30.0)))
    assert "▲ RESTARTING · stopping ranks 3/30 s" in head(restart)[0]
    assert "/step" not in head(restart)[1], "ranks that are ended have no pace"
    assert "restarting: stopping ranks 3/30 s" in headline(frame_of(restart).state, play.NOW)
    stop = two((AT - 3, CommandReceived("c", "stop requested", "stop", 7.0)))
    assert "▲ STOPPING · ranks 3/7 s" in head(stop)[0]
    asked = CommandReceived("c", "profile of 3 steps requested", "profile")
    profile = two((AT - 3, asked), (AT - 2, ProfileArmed("c", (), 119, 3)))
    assert "● RUNNING   profile 2/3 steps" in head(profile)[0]


def test_the_question_for_a_profile_warns_of_a_run_that_makes_no_step() -> None:
    def lines(*more: tuple[float, Event]) -> str:
        question = confirmation(frame_of(two(*more)).state, Profile("p"), play.NOW)
        assert question is not None
        return "\n".join(plain(question.lines))

    assert "no step" not in lines()
    assert "no step for 12 s; without steps nothing is recorded: w shows stacks" in lines(*stalled())
