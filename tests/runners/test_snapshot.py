"""The fold beside the journal: what is read with it is what is read without it, or it is passed over."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.run import journal, snapshot
from distui.runners.run.chronicle import Chronicle
from distui.runners.run.commands import Hello
from distui.runners.run.history import read_history
from distui.runners.run.journal import Lines
from distui.runners.run.model import (
    HUB,
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CheckpointSaved,
    CommandDone,
    CommandReceived,
    Event,
    GpuTick,
    Outcome,
    PlanSummary,
    RankChanged,
    RankPhase,
    RankPlace,
    RunCreated,
    RunEnded,
    RunnerLost,
    RunPhase,
    Stamped,
)
from distui.runners.run.run_record import RunRecord
from distui.runners.run.state import RunState

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))
import scripted as play
import several

RUN = RunRecord("r-1a2b3c4d", "1a2b3c4d", "minigpt", 1.0, "here")
FEW = 40


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of short journals."""
    monkeypatch.setattr(snapshot, "EVERY", FEW)


def events(attempts: int) -> list[Event]:
    """A run that is restarted again and again."""
    told: list[Event] = [
        RunCreated(RUN.run, "minigpt", "here", PlanSummary("ddp", "ddp", "torchrun", "t.py"))
    ]
    for number in range(1, attempts + 1):
        places = tuple(RankPlace(rank, rank, 0, str(rank)) for rank in range(4))
        told.append(AttemptStarted(number, "launch" if number == 1 else "failure", 4, places))
        told += [RankChanged(number, rank, RankPhase.RUNNING, rank, 100 + rank) for rank in range(4)]
        told += [
            CommandReceived(f"c{number}", "restart requested", "restart"),
            CommandDone(f"c{number}", True, "done"),
        ]
        told.append(AttemptEnded(number, Outcome.RESTARTED, text=f"attempt {number} ended"))
    return told


def written(path: Path, attempts: int = 20) -> Chronicle:
    """A run directory with a journal and a snapshot."""
    chronicle = Chronicle(path)
    for at, event in enumerate(events(attempts)):
        chronicle.emit(event, at=float(at))
        chronicle.emit(GpuTick(()), at=float(at))
    chronicle.journal.close()
    assert (path / snapshot.NAME).exists()
    return chronicle


def used(path: Path) -> bool:
    """Whether the snapshot counts."""
    return snapshot.load(path, RUN.run, path / journal.NAME) is not None


def test_what_is_read_with_it_is_what_is_read_without_it(tmp_path: Path) -> None:
    written(tmp_path)
    assert used(tmp_path)
    short, whole = read_history(tmp_path, RUN), read_history(tmp_path, RUN, whole=True)
    assert len(short._events) < FEW
    assert short.state == whole.state
    assert (short.node, short.problems, short.journaled) == (whole.node, whole.problems, whole.journaled)
    assert short.events == whole.events
    assert len(short.events) == len(events(20))


def test_of_a_run_that_has_ended_no_event_is_folded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few there are; and a run that goes on after its end is read to its new end."""
    monkeypatch.setattr(snapshot, "EVERY", 2000)
    chronicle = Chronicle(tmp_path)
    for at, event in enumerate((*events(2), RunEnded(RunPhase.FAILED, 1, "failed"))):
        chronicle.emit(event, at=float(at))
    whole = read_history(tmp_path, RUN, whole=True)
    with monkeypatch.context() as patch:
        patch.setattr(RunState, "apply", lambda *_: pytest.fail("an event is folded"))
        assert read_history(tmp_path, RUN).state == whole.state
    chronicle.emit(RunCreated(RUN.run, "minigpt", "here", PlanSummary("ddp", "ddp", "torchrun", "t.py")))
    chronicle.emit(RunnerLost(1, "lost"))
    chronicle.journal.close()
    assert read_history(tmp_path, RUN).state.phase is RunPhase.STARTING


def test_reading_writes_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / snapshot.NAME).unlink()
    before = sorted(tmp_path.iterdir())
    read_history(tmp_path, RUN)
    assert sorted(tmp_path.iterdir()) == before


def test_the_next_agent_goes_on_with_it(tmp_path: Path) -> None:
    written(tmp_path)
    first = (tmp_path / snapshot.NAME).read_bytes()
    chronicle = Chronicle(tmp_path)
    chronicle.replay()
    for number in range(3 * FEW):
        chronicle.emit(RunnerLost(number, f"lost {number}"))
    chronicle.journal.close()
    assert (tmp_path / snapshot.NAME).read_bytes() != first
    assert used(tmp_path)
    assert read_history(tmp_path, RUN).state == read_history(tmp_path, RUN, whole=True).state


def cut(path: Path) -> None:
    data = (path / journal.NAME).read_bytes()
    (path / journal.NAME).write_bytes(data[: len(data) // 3])


def damage(path: Path) -> None:
    data = (path / journal.NAME).read_bytes()
    (path / journal.NAME).write_bytes(data.replace(b'"attempt 2 ended"', b'"attempt 2 endeX"', 1))


def empty(path: Path) -> None:
    (path / journal.NAME).write_bytes(b"")


def remove(path: Path) -> None:
    (path / journal.NAME).unlink()


def garbage(path: Path) -> None:
    (path / snapshot.NAME).write_bytes(b"\x93\x01\x02garbage")


def torn(path: Path) -> None:
    data = (path / snapshot.NAME).read_bytes()
    (path / snapshot.NAME).write_bytes(data[:-7])


def directory(path: Path) -> None:
    (path / snapshot.NAME).unlink()
    (path / snapshot.NAME).mkdir()


def forged(path: Path, **changed: object) -> None:
    held = msgspec.msgpack.decode((path / snapshot.NAME).read_bytes(), type=snapshot.Snapshot)
    snapshot.write(path, msgspec.structs.replace(held, **changed))


def other_code(path: Path) -> None:
    forged(path, fold="0" * 32)


def other_run(path: Path) -> None:
    forged(path, run="another")


def state_of_another(path: Path) -> None:
    forged(path, state=snapshot.packed(RunState(run="another", phase=RunPhase.FAILED)))


def longer(path: Path) -> None:
    forged(path, size=1 << 40)


def bomb(path: Path) -> None:
    import zlib

    forged(path, state=zlib.compress(bytes(snapshot.MOST_BYTES + 1)))


@pytest.mark.parametrize(
    "harm",
    [
        cut,
        damage,
        empty,
        remove,
        garbage,
        torn,
        directory,
        other_code,
        other_run,
        state_of_another,
        longer,
        bomb,
    ],
)
def test_it_is_passed_over_in_every_doubt(tmp_path: Path, harm: object) -> None:
    written(tmp_path)
    harm(tmp_path)  # type: ignore[operator]
    assert not used(tmp_path)
    short, whole = read_history(tmp_path, RUN), read_history(tmp_path, RUN, whole=True)
    assert (short.state, short.problems, short.events) == (whole.state, whole.problems, whole.events)


def test_a_damaged_line_after_it_is_a_problem_as_without_it(tmp_path: Path) -> None:
    written(tmp_path)
    with (tmp_path / journal.NAME).open("ab") as file:
        file.write(b"garbage\n")
    assert used(tmp_path)
    assert read_history(tmp_path, RUN).problems == read_history(tmp_path, RUN, whole=True).problems != []


def test_a_journal_that_was_damaged_before_gets_none(tmp_path: Path) -> None:
    written(tmp_path)
    data = (tmp_path / journal.NAME).read_bytes()
    (tmp_path / journal.NAME).write_bytes(b"garbage\n" + data)
    (tmp_path / snapshot.NAME).unlink()
    chronicle = Chronicle(tmp_path)
    chronicle.replay()
    for number in range(3 * FEW):
        chronicle.emit(RunnerLost(number, "lost"))
    chronicle.journal.close()
    assert not (tmp_path / snapshot.NAME).exists()
    assert read_history(tmp_path, RUN).problems


def test_a_copy_of_the_directory_is_another_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    written(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copied = msgspec.structs.replace(RUN, run="b")
    assert (
        read_history(tmp_path / "b", copied).state == read_history(tmp_path / "b", copied, whole=True).state
    )


RECORDED = {
    "running": play.stamped(play.running()),
    "failed": play.stamped(play.failed()),
    "hub": several.stamped(several.running()),
    "hub, lost": several.stamped(several.lost()),
    "hub, launching": several.stamped(several.launching()),
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_fold_goes_on_from_any_event(name: str) -> None:
    told = RECORDED[name]
    whole = RunState().apply_all(told)
    for at in range(len(told) + 1):
        restored = snapshot.unpacked(snapshot.packed(RunState().apply_all(told[:at])))
        assert restored.apply_all(told[at:]) == whole, at


_NUMBERS, _RANKS, _TEXTS = st.integers(1, 4), st.integers(0, 3), st.text(max_size=5)
_PLACES = st.lists(st.builds(RankPlace, _RANKS, st.just(0), st.integers(0, 2), st.none()), max_size=3).map(
    tuple
)
_CODES = st.none() | st.integers(0, 255)
_EVENTS = st.one_of(
    st.builds(AttemptStarted, _NUMBERS, st.sampled_from(["launch", "failure"]), st.just(4), _PLACES),
    st.builds(
        RankChanged, _NUMBERS, _RANKS, st.sampled_from(RankPhase), st.just(0), st.none() | st.just(7)
    ),
    st.builds(AttemptEnded, _NUMBERS, st.sampled_from(Outcome), text=_TEXTS),
    st.builds(RunEnded, st.sampled_from([RunPhase.FAILED, RunPhase.SUCCEEDED]), _CODES, _TEXTS),
    st.builds(CommandReceived, st.sampled_from("ab"), _TEXTS, st.sampled_from(["stop", "restart", ""])),
    st.builds(CommandDone, st.sampled_from("ab"), st.booleans(), _TEXTS),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_EVENTS, st.sampled_from([HUB, 0, 1, 2])), max_size=25), st.booleans(), st.data())
def test_so_does_that_of_a_journal_that_nobody_wrote(
    told: list[tuple[Event, int]], merged: bool, data: st.DataObject
) -> None:
    first = RunCreated("r", "n", "h", PlanSummary("", "", "", ""), merged=merged)
    stamped = [
        Stamped(float(seq), event, seq, node)
        for seq, (event, node) in enumerate([(first, HUB if merged else 0), *told], 1)
        if merged or node != HUB
    ]
    whole = RunState().apply_all(stamped)
    at = data.draw(st.integers(0, len(stamped)))
    restored = snapshot.unpacked(snapshot.packed(RunState().apply_all(stamped[:at])))
    assert restored.apply_all(stamped[at:]) == whole


def test_lines_come_back_as_they_went_in() -> None:
    lines = Lines()
    made = [b'{"seq":%d,"text":"a\\nb"}\n' % number for number in range(1, 3 * Lines.BLOCK + 7)]
    for number, line in enumerate(made, 1):
        lines.append(number, line)
    for start in (0, 1, 511, 512, 513, len(made) - 1, len(made)):
        got, at = [], start
        while piece := lines.from_(at):
            got += piece
            at += len(piece)
        assert got == made[start:]
    assert (lines.seq, lines.after(0), lines.after(700), lines.after(1 << 30)) == (
        len(made),
        0,
        700,
        len(made),
    )


def test_a_number_of_more_than_64_bits_costs_the_snapshot_alone(tmp_path: Path) -> None:
    written(tmp_path)
    chronicle = Chronicle(tmp_path)
    chronicle.replay()
    chronicle.emit(CheckpointSaved(20, Checkpoint("/x/step", 1.0, "torch.save", step=10**30)))
    chronicle.emit(RunEnded(RunPhase.SUCCEEDED, 0, "done"))
    assert chronicle.folded(Hello(fold=snapshot.fold_id())) is None
    chronicle.journal.close()
    again = Chronicle(tmp_path)
    assert again.replay()
    assert again.state.phase is RunPhase.SUCCEEDED
    assert again.state.checkpoints[-1].step == 10**30
    again.journal.close()


def test_the_id_of_the_fold_covers_every_module_that_folds() -> None:
    folder, found, unread = Path(snapshot.__file__).parent, set[str](), ["state.py"]
    while unread:
        found.add(name := unread.pop())
        imported = re.findall(r"^from \.(\w+) import", (folder / name).read_text(), re.MULTILINE)
        unread += {f"{each}.py" for each in imported} - found
    assert found <= set(snapshot.FOLDING)
