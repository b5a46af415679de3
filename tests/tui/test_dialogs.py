"""Questions: their keys are always in sight, they name what is lost, and refuse what would change nothing."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import scripted as play
from conftest import Rig, Start, shown
from each import for_each
from msgspec.structs import replace
from textual.widgets import Input

from distui.presets.finding import PlanError
from distui.presets.save_on import checked
from distui.presets.save_on import parse as parse_way
from distui.runners.run.commands import Restart, SetNccl, Signal
from distui.runners.run.model import (
    AttemptEnded,
    AttemptStarted,
    Checkpoint,
    CheckpointSaved,
    Event,
    HookChanged,
    NcclChanged,
    Outcome,
    PulseTick,
    RankChanged,
    RankPhase,
    RunCreated,
    RunEnded,
    RunPhase,
    TrainingTick,
)
from distui.runners.run.nccl_reach import describe_reach, reach, refusal, uses_gloo
from distui.runners.run.pulse import ProcessGroup, Pulse
from distui.runners.run.samples import TrainingSample
from distui.runners.run.saving import answer_to
from distui.runners.run.state import RunState
from distui.runners.telemetry.losses import what_is_lost
from distui.tui.rows.command_line import RunNames, candidates, completed, help_line, parse
from distui.tui.rows.confirm import confirmation
from distui.tui.rows.glyphs import plain
from distui.tui.rows.typed_commands import CommandError
from distui.tui.screens.metric_picker import MetricPicker
from distui.tui.screens.modal import ConfirmScreen, NcclScreen
from distui.tui.screens.prompts import CommandPrompt
from distui.tui.screens.run import RunScreen
from distui.tui.verbs.status import describe

SIZES = pytest.mark.parametrize("size", [(60, 15), (120, 40)], ids=["60x15", "120x40"])


def state_of(*more: tuple[float, Event], ranks: int = 8, gpu: bool = True, live: bool = True) -> RunState:
    """A run of two minutes, and what happened then."""
    return RunState().apply_all(play.stamped([*play.running(ranks, gpu, live), *more]))


def trained(step: int, at: float = 120.0) -> tuple[float, Event]:
    return (at, TrainingTick((TrainingSample(0, play.BEGAN + at, step=step, sources={"step": "wandb"}),)))


def saved(step: int | None, at: float, complete: bool = True) -> tuple[float, Event]:
    checkpoint = Checkpoint("/ckpt/step", play.BEGAN + at, "torch.save", step=step, complete=complete)
    return (at, CheckpointSaved(1, checkpoint))


# --- what is lost


def test_a_loss_is_counted_from_the_newest_checkpoint() -> None:
    state = state_of(saved(18_000, 60), trained(20_140))
    now = play.BEGAN + 60 + 30 * 60
    assert (
        what_is_lost(state, now).text
        == "2,140 steps since the checkpoint at step 18,000, about 30 min × 8 GPUs"
    )


@for_each(
    ("attempt", "count", "rank", "steps"),
    [(1, 900, 0, 134), (1, 900, None, 134), (1, None, 0, 2_140), (2, 900, 0, 2_140), (1, 5_000, 0, 2_140)],
)
def test_steps_of_the_process_that_saved_win_over_what_the_script_reports(
    attempt: int, count: int | None, rank: int | None, steps: int
) -> None:
    """Where it has made some since: another attempt's counts, or one that has begun anew, are not compared."""
    checkpoint = Checkpoint(
        "/ckpt/step", play.BEGAN + 60, "torch.save", step=18_000, count=count, attempt=attempt, rank=rank
    )
    state = state_of((60, CheckpointSaved(attempt, checkpoint)), trained(20_140))
    for number, one in state.ranks.items():
        assert one.sample is not None
        one.sample = msgspec.structs.replace(one.sample, step=1_034 if number == 0 else 1_030)
    loss = what_is_lost(state, play.NOW)
    assert loss.steps == steps
    assert loss.text.startswith(f"{steps:,} steps since the checkpoint at step 18,000")


def test_without_a_checkpoint_all_of_the_attempt_is_at_stake() -> None:
    text = what_is_lost(state_of(trained(120)), play.BEGAN + 61).text
    assert (
        text == "no checkpoint seen; unsaved progress will be lost (at most 120 steps, about 60 s × 8 GPUs)"
    )


def test_a_torn_checkpoint_saves_nothing() -> None:
    state = state_of(saved(100, 60), trained(150), saved(140, 119, complete=False))
    loss = what_is_lost(state, play.NOW)
    assert (loss.steps, loss.saved_step, loss.torn) == (50, 100, True)
    assert loss.text.endswith("; a newer checkpoint is not complete")


def test_a_checkpoint_of_an_unknown_step_gives_its_age() -> None:
    text = what_is_lost(state_of(saved(None, 60)), play.BEGAN + 60 + 300).text
    assert text == "work since the checkpoint of 5 min ago, about 5 min × 8 GPUs"


def test_optimizer_steps_of_a_later_attempt_are_not_compared_with_a_checkpoint() -> None:
    again = (119.0, AttemptStarted(2, "restart", 8, play.places(8)))
    loss = what_is_lost(state_of(saved(18_000, 60), again), play.NOW)
    assert loss.steps is None
    assert loss.seconds == pytest.approx(6.0)


def test_a_group_that_has_ended_loses_nothing_more() -> None:
    ended = [(90.0, RankChanged(1, rank, RankPhase.FAILED, rank, 4711 + rank, 1)) for rank in range(8)]
    state = state_of(*ended, (90.0, AttemptEnded(1, Outcome.FAILED)))
    assert what_is_lost(state, play.BEGAN + 5000).seconds == pytest.approx(89.0)
    assert what_is_lost(RunState(), play.NOW).text == "nothing: no rank has run yet"


def test_without_gpus_the_ranks_are_counted() -> None:
    assert what_is_lost(state_of(ranks=2, gpu=False), play.NOW).units == "2 ranks"


# --- NCCL_DEBUG: who can obey


def asked(**changes: object) -> SetNccl:
    return msgspec.structs.replace(SetNccl("c", "INFO"), **changes)


HOOKED = tuple((124.8, HookChanged(1, rank, "armed", 4711 + rank)) for rank in (0, 1))
"""The hooks of two ranks that have not loaded NCCL."""


def test_a_restart_that_would_change_nothing_is_refused() -> None:
    gloo = state_of(*HOOKED, ranks=2, gpu=False)
    assert "the backend is gloo" in refusal(gloo, asked(restart=True))
    assert not refusal(gloo, asked()), "kept for the next start, and c10d logs now"
    same = refusal(state_of(), asked(level="warn", restart=True))
    assert same == "NCCL_DEBUG is WARN already: a restart would change nothing, so nothing was restarted"
    assert not refusal(state_of(), asked(restart=True))
    assert not refusal(state_of(), asked(level="WARN", subsys="COLL", restart=True))


def test_a_level_that_was_set_live_may_be_given_from_the_start() -> None:
    """What NCCL reports while the ranks meet needs a restart, though the level is the same."""
    state = state_of((124, NcclChanged("INFO", "", tuple(range(8)), True, "set")))
    assert not refusal(state, asked(restart=True))
    began = state_of(
        (124, AttemptStarted(2, "restart", 8, play.places(8), {"NCCL_DEBUG": "INFO"})),
    )
    assert refusal(began, asked(restart=True)).startswith("NCCL_DEBUG is INFO already")
    assert not refusal(state_of(), asked(level="WARN", restart=True), {"NCCL_DEBUG": "TRACE"})


def test_without_a_hook_nothing_is_changed_live() -> None:
    events = [one for one in play.running() if not isinstance(one[1], HookChanged)]
    state = RunState().apply_all(play.stamped(events))
    assert (
        refusal(state, asked())
        == "no rank has a hook that could change NCCL_DEBUG live: only a restart sets it"
    )
    assert "ranks 0-7 only by a restart (have no hook)" in describe_reach(state)
    gloo = state_of(ranks=2, gpu=False)
    assert refusal(gloo, asked()) == "the backend is gloo, and no rank has a hook: nothing would change"


def test_what_the_ranks_call_counts_and_not_the_plan() -> None:
    """distui saw no GPU, as on WSL, and the script takes NCCL."""
    groups = (ProcessGroup("0", enqueued=8, completed=8, backend="nccl"),)
    pulses = PulseTick(tuple(Pulse(rank, play.NOW, groups=groups) for rank in (0, 1)))
    hooked = [(124.8, HookChanged(1, rank, "armed", 4711, "WARN", True, "2.30.7")) for rank in (0, 1)]
    state = state_of(*hooked, (124.9, pulses), ranks=2, gpu=False)
    assert refusal(state, asked(restart=True)) == ""
    assert describe_reach(state) == "ranks 0, 1 live (NCCL 2.30.7)"
    assert "backend gloo planned, NCCL in use" in describe(state, play.NOW)
    asleep = tuple(replace(group, backend="gloo") for group in groups)
    gloo = PulseTick(tuple(Pulse(rank, play.NOW, groups=asleep) for rank in (0, 1)))
    assert uses_gloo(state_of(*hooked, (124.9, gloo), ranks=2, gpu=False))


def test_nccl_that_torch_loads_with_itself_is_no_nccl_in_use() -> None:
    """torch for CUDA on a machine without a GPU: its ranks have NCCL before a group, and at their end."""
    hooked = [(124.8, HookChanged(1, rank, "armed", 4711, "WARN", True, "2.30.7")) for rank in (0, 1)]
    importing = PulseTick(tuple(Pulse(rank, play.NOW, torch=True) for rank in (0, 1)))
    ended = (125.0, RunEnded(RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0"))
    several: list[list[tuple[float, Event]]] = [[*hooked], [*hooked, (124.9, importing)], [*hooked, ended]]
    for events in several:
        text = describe(state_of(*events, ranks=2, gpu=False), play.NOW)
        assert "backend gloo\n" in text, events
    assert uses_gloo(state_of(*hooked, ended, ranks=2, gpu=False))
    alone = PulseTick(tuple(Pulse(rank, play.NOW, torch=False) for rank in (0, 1)))
    assert "NCCL in use" in describe(state_of(*hooked, (124.9, alone), ranks=2, gpu=False), play.NOW)


def test_the_ranks_that_can_obey_are_named() -> None:
    mixed = state_of((124, HookChanged(1, 7, "armed", 4718, "WARN", False, "2.21.5")))
    reached = reach(mixed)
    assert (reached.live, reached.restart, reached.live_for_all, reached.live_for_any) == (
        tuple(range(7)),
        (7,),
        False,
        True,
    )
    text = describe_reach(mixed)
    assert "ranks 0-6 live" in text
    assert "rank 7 only by a restart" in text
    live = [(124, HookChanged(1, rank, "armed", 4711 + rank, "WARN", True, "2.30.7")) for rank in range(7)]
    assert describe_reach(
        state_of((124, HookChanged(1, 7, "armed", 4718, "WARN", False, "2.21.5")), *live)
    ) == (
        "ranks 0-6 live (NCCL 2.30.7); "
        "rank 7 only by a restart (NCCL 2.21.5 cannot change it live, 2.24 or newer can)"
    )
    question = confirmation(mixed, asked(), play.NOW)
    assert question is not None
    assert any("rank 7 only by a restart" in line for line in plain(question.lines))
    assert reach(mixed, (7,)).live == ()


# --- what is typed


def test_a_signal_is_named_and_its_end_announced() -> None:
    command = parse("signal 9 1", lambda: "c").command
    assert command == Signal("c", "SIGKILL", (1,))
    question = confirmation(state_of(), command, play.NOW)
    assert question is not None
    assert question.title == "Send SIGKILL to 1 rank of minigpt?"
    assert any("with them the whole attempt" in line for line in plain(question.lines))
    for harmless in ("signal CONT", "signal sigchld"):
        quiet = confirmation(state_of(), parse(harmless, lambda: "c").command or command, play.NOW)
        assert quiet is not None
        assert not any("ends" in line for line in plain(quiet.lines))
    for wrong in ("signal 0", "signal 99", "signal 9.5", "signal USR9", "signal -9", "signal ９"):
        with pytest.raises(CommandError, match="no signal"):
            parse(wrong, lambda: "c")


def test_save_is_no_command_of_the_cockpit() -> None:
    assert not candidates("sa", RunNames())
    with pytest.raises(CommandError, match="no command 'save'"):
        parse("save 30", lambda: "c")


@for_each("line", ["restart env", "restart unset", "restart env unset A", "restart env A=1 unset"])
def test_an_empty_change_of_the_environment_is_refused(line: str) -> None:
    with pytest.raises(CommandError, match="nothing follows"):
        parse(line, lambda: "c")


def test_completion() -> None:
    names = RunNames((0, 1, 10), ("LR", "NCCL_DEBUG", "NCCL_IB_DISABLE"))
    assert completed("rest", names) == "restart "
    assert completed("restart en", names) == "restart env "
    assert completed("restart env nccl", names) == "restart env NCCL_"
    assert completed("restart env L", names) == "restart env LR="
    assert completed("restart unset L", names) == "restart unset LR "
    assert completed("nccl inf", names) == "nccl INFO "
    assert completed("nccl INFO COLL,ne", names) == "nccl INFO COLL,NET "
    assert completed("nccl INFO rank 1", names) == "nccl INFO rank 1"
    assert candidates("signal USR1 1", names) == ["1", "10"]
    assert candidates("logs ", names) == ["0", "1", "10"]
    assert completed("nothing like it", names) == "nothing like it"
    assert completed("autostop ", names) == "autostop off "
    assert "did you mean restart?" in help_line("restrat now", names)
    assert help_line("proctor", names) == "no command 'proctor': Tab on an empty line lists them"
    assert help_line("signal U", names).startswith("signal NAME|NUMBER")
    assert help_line("re", names) == "restart"
    assert help_line("runs ", names) == "runs   takes nothing after it"


async def line(it: Rig) -> str:
    assert isinstance(it.app.screen, CommandPrompt)
    return it.app.screen.query_one(Input).value


@for_each(
    ("typed", "wanted"),
    [
        ("findings", "[6 Findings]"),
        ("filter rank 2", "/rank 2: 1 of 8"),
        ("node n001", "/node:n001: 8 of 8"),
        ("sort", "sort by"),
        ("columns", "Columns of the"),
        ("help restart", "Restart worker group"),
    ],
)
async def test_the_names_of_panes_and_lists_are_commands(rig: Start, typed: str, wanted: str) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *typed, "enter")
        await it.until(lambda: wanted in it.screen())


async def test_the_command_line_completes_helps_and_remembers(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon")
        assert "restart env K=V" in it.screen()
        assert re.search(r"\S   +Tab lists the commands, ↑ repeats one", it.screen().splitlines()[-1])
        await it.press(*"si", "tab")
        assert await line(it) == "signal "
        assert "signal NAME|NUMBER [RANK" in it.screen()
        await it.press(*"U", "tab")
        assert "USR1  USR2" in it.screen()
        await it.press(*"1", "space", *"3", "enter")
        assert isinstance(it.app.screen, ConfirmScreen)
        await it.press("escape", "colon", *"x", "up")
        assert await line(it) == "signal USR1 3"
        await it.press("down")
        assert await line(it) == "x"
        await it.press("escape")
        assert type(it.app.screen).__name__ == "RunScreen"


async def test_logs_takes_a_rank(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("colon", *"logs 1", "enter")
        screen = it.app.screen
        assert isinstance(screen, RunScreen)
        await it.until(lambda: screen.log_view.selection.rank == 1)
        assert it.app.view.pane == "log"
        await it.press("colon", *"logs 77", "enter")
        await it.until(lambda: "No rank 77: there are ranks 0-7" in it.told())


# --- on the screen


@SIZES
async def test_the_answers_are_in_sight_in_every_size(rig: Start, size: tuple[int, int]) -> None:
    env = " ".join(f"VARIABLE_{at}={at}" for at in range(22))
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        it.app.commands.run_line(f"restart env {env}")
        await it.until(lambda: "Restart 8 ranks" in it.screen())
        assert "y restart" in it.screen()
        assert "Enter cancel" in it.screen()
        assert "22 variables, e shows them" in it.screen()
        await it.press("e")
        await it.until(lambda: "VARIABLE_0 " in it.screen())
        assert "y restart" in it.screen()
        await it.press("G")
        await it.until(lambda: "VARIABLE_9 " in it.screen())
        assert "y restart" in it.screen()


async def test_enter_says_that_nothing_was_done(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("x", "enter")
        await it.until(lambda: "nothing was changed: y would stop" in it.told())
        assert it.link.commands == []


@SIZES
async def test_every_choice_of_the_nccl_dialog_fits(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("d")
        assert isinstance(it.app.screen, NcclScreen)
        text = it.screen()
        assert "esc cancel" in text
        assert "ranks 0-7 live" in text
        for _ in range(3):
            await it.press("right")
        assert "(x) WARN" in it.screen() or "< VERSION >" in it.screen() or "VERSION" in it.screen()
        rows = [plain([row])[0] for row in it.app.screen.view.rows]
        assert all(len(row) <= it.app.screen.view.size.width for row in rows)
        assert any("VERSION" in row for row in rows[:1])


async def test_the_dialog_refuses_a_restart_for_nothing(rig: Start) -> None:
    async with shown(rig(play.running(live=False))) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("d", "enter")
        assert isinstance(it.app.screen, NcclScreen)
        await it.until(lambda: "NCCL_DEBUG is WARN already: a restart would change nothing" in it.told())
        assert it.link.commands == []


async def test_the_names_of_metrics_are_whole(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("4", "a")
        await it.until(lambda: "gpu.throttled" in it.screen())
        assert "[x]  2 throughput, tokens/s " in it.screen()
        assert "[ ]    GPU temperature " in it.screen()
        await it.press(*"throughput")
        await it.until(lambda: "throughput, samples/s " in it.screen())


async def test_a_metric_that_this_run_lacks_can_be_removed(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        chosen: list[tuple[str, ...] | None] = []
        picker = MetricPicker(("train.reward", "gpu.util"))
        it.app.push_screen(picker, chosen.append)
        await it.press(*"reward")
        await it.until(lambda: "  1 reward" in it.screen())
        await it.press("enter", "escape")
        await it.until(lambda: chosen)
        assert chosen == [("gpu.util",)]


async def test_under_gloo_the_dialog_changes_the_logging_of_c10d(rig: Start) -> None:
    async with shown(rig([*play.running(2, gpu=False), *HOOKED], ranks=2)) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("d")
        await it.until(lambda: "INFO and TRACE raise" in it.screen())
        assert "restart of the worker group" not in it.screen()
        assert "COLL" not in it.screen()
        await it.press("right", "down", "right", "enter")
        await it.until(lambda: "Set NCCL_DEBUG=" in it.screen())
        assert "c10d's logging changes now" in it.screen()
        assert "5 s, then back" in it.screen()
        assert "kept for the next start" not in it.screen()
        await it.press("escape")
        await it.press("colon", *"nccl INFO restart", "enter")
        await it.until(lambda: "a restart would change nothing" in it.told())
        assert isinstance(it.app.screen, RunScreen)
        await it.press("colon", *"nccl INFO", "enter")
        await it.until(lambda: "NCCL_DEBUG=INFO is kept for the next start" in it.screen())


async def test_a_question_is_asked_again_where_the_world_has_changed(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("r")
        it.link.play(
            AttemptEnded(1, Outcome.RESTARTED), AttemptStarted(2, "restart", 8, play.places(8)), seq=90
        )
        await it.until(lambda: it.run.state.attempt == 2)
        await it.press("y")
        await it.until(lambda: "Attempt 2 has begun meanwhile" in it.told())
        assert it.link.commands == []
        assert isinstance(it.app.screen, ConfirmScreen)
        await it.press("y")
        await it.until(lambda: it.link.commands)


async def test_a_question_about_a_run_that_has_ended_meanwhile_does_nothing(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("x")
        it.link.play(RunEnded(RunPhase.SUCCEEDED, 0, "done"), seq=90)
        await it.until(lambda: it.run.state.phase.ended)
        await it.press("y")
        await it.until(lambda: "has ended meanwhile: nothing was done" in it.told())
        assert it.link.commands == []


async def test_a_watched_job_says_that_it_can_only_be_watched(rig: Start) -> None:
    it = rig(play.running(), run="watch:4711", link_readonly=True)
    async with shown(it):
        await it.until(lambda: "RUNNING" in it.screen() and it.app.view.readonly)
        it.app.commands.run_line("nccl INFO")
        await it.until(
            lambda: "Distui did not start this job" in it.told() or "distui did not start" in it.told()
        )


def test_a_plan_without_a_backend_is_not_taken_for_gloo() -> None:
    events = play.running(2, gpu=False)
    created = events[0][1]
    assert isinstance(created, RunCreated)
    plan = msgspec.structs.replace(created.plan, backend=None)
    events[0] = (0, RunCreated(created.run, created.name, created.host, plan))
    state = RunState().apply_all(play.stamped(events))
    assert not refusal(state, replace_level("INFO"))


def replace_level(level: str) -> SetNccl:
    return asked(level=level, restart=True)


async def test_ctrl_c_says_how_to_leave_and_ctrl_z_whether_it_can(
    rig: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shown(rig(play.running())) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("ctrl+c")
        await it.until(lambda: "Q quits the cockpit" in it.told() or "q quits the cockpit" in it.told())
        monkeypatch.setattr("distui.tui.terminal.has_job_control", lambda: False)
        await it.press("ctrl+z")
        await it.until(lambda: "could bring the cockpit back" in it.told())


async def test_mistakes_in_the_keys_stand_in_the_help(rig: Start, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text('stopp = "X"\n')
    async with shown(rig(play.running()), 100, 40) as it:
        await it.until(lambda: "RUNNING" in it.screen())
        await it.press("?")
        await it.until(
            lambda: "'stopp'" in it.screen()
        )  # the path before it decides where the line is wrapped


@for_each("way", ["", "SIGUSR1"])
def test_save_first_is_an_answer_where_the_plan_says_how(way: str) -> None:
    state = state_of()
    assert state.plan is not None
    state.plan = msgspec.structs.replace(state.plan, save_on=way)
    question = confirmation(state, Restart("1"), play.NOW)
    assert question is not None
    assert question.save_verb == ("save, then restart" if way else "")


def checkpoint(begun: float, took: float = 2.0, attempt: int = 1, complete: bool = True) -> Checkpoint:
    return Checkpoint(
        "/ckpt/s", begun + took, "torch.save", rank=0, duration_s=took, attempt=attempt, complete=complete
    )


@for_each(
    ("save", "answers"),
    [
        (checkpoint(101.0), True),
        (checkpoint(99.0), False),  # begun before it was asked for
        (checkpoint(101.0, complete=False), False),
        (checkpoint(101.0, attempt=2), False),
        (Checkpoint("/ckpt/s", 101.0, "folder"), True),
        (Checkpoint("/ckpt/s", 99.0, "folder"), False),
    ],
)
def test_only_a_complete_checkpoint_that_was_begun_after_the_request_answers_it(
    save: Checkpoint, answers: bool
) -> None:
    state = state_of()
    state.checkpoints.append(save)
    assert (answer_to({0: 100.0, 1: 100.2}, 1, state) is save) is answers


@for_each(
    ("text", "kept"),
    [("usr1", "SIGUSR1"), (" SIGUSR1 ", "SIGUSR1"), ("file:a b/now", "FILE:a b/now"), ("FILE:/x/../y", "FILE:/x/../y"),
     ("", ""), ("KILL", None), ("SIGUSR2", None), ("TERM", None), ("10", None), ("FILE:", None), ("FILE:a/", None),
     ("FILE:a\x1b[2J", None), ("FILE:..", None), ("SIGSIGUSR1", None)],
)  # fmt: skip
def test_ways_to_ask_for_a_save(text: str, kept: str | None) -> None:
    if kept is None:
        with pytest.raises(PlanError, match="--save-on"):
            checked(text)
    else:
        assert checked(text) == kept
        assert (parse_way(kept) is None) == (not kept)
