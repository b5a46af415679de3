"""One rank's trackers and output as one sample; the total of a command line; MFU; patterns of a user's."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from types import SimpleNamespace
from typing import Any

import patience
import pytest

from distui.presets.finding import PlanError
from distui.presets.signal_patterns import checked
from distui.runners.agent import pattern_process
from distui.runners.agent.pattern_process import SignalPatterns
from distui.runners.agent.training import candidates, lines_signals
from distui.runners.run.model import RankPhase, RankPlace, Wrapped
from distui.runners.run.parts import Parts
from distui.runners.run.samples import Gpu, RankSample, TrainingSample
from distui.runners.run.state import Attempt, Node, Rank, RunState
from distui.runners.telemetry import match_signals
from distui.runners.telemetry.mfu import computed, peak
from distui.runners.telemetry.output_signals import signals
from distui.runners.telemetry.rank_signals import MOST_VALUES, RankSignals
from distui.runners.telemetry.signal_names import Reported, ReportedValue, TrackerValues
from distui.runners.telemetry.step_totals import of_command, of_text


def tracked(at: float, step: int | None = None, tracker: str = "wandb", **values: float | str) -> Reported:
    return Reported(
        1, {tracker: TrackerValues({name: (value, step, at) for name, value in values.items()})}
    )


def sample(
    rank: RankSignals, steps: int | None = None, total: tuple[int, str] | None = None
) -> TrainingSample:
    made = rank.sample(steps, total)
    assert made is not None
    return made


# --- which source counts ---


def test_a_tracker_counts_before_the_output_and_the_output_fills_in() -> None:
    rank = RankSignals(0)
    rank.output(signals("step 10 loss 3.1 900 tok/s"), 100.0)
    rank.trackers(tracked(100.0, 10, loss=3.0))
    told = sample(rank)
    assert (told.loss, told.tokens_s, told.step) == (3.0, 900.0, 10)
    assert told.sources == {"step": "wandb", "loss": "wandb", "tokens_s": "output: key value"}


def test_an_output_that_reports_much_more_often_counts() -> None:
    """nanoGPT logs to wandb with each evaluation, and prints every tenth iteration."""
    rank = RankSignals(0)
    rank.trackers(tracked(50.0, 2000, loss=3.0))
    for at in range(1, 6):
        rank.output(signals(f"iter {2000 + 10 * at}: loss 2.{at}, time 100ms, mfu 20.00%"), 50.0 + at)
    assert (sample(rank).step, sample(rank).loss) == (2050, 2.5)


def test_a_total_that_no_training_has_is_left_out() -> None:
    for total in ("18446744073709551615", "99999999999999999999999999"):
        rank = RankSignals(0)
        rank.output(signals(f"step 3/{total} loss 2.0"), 100.0)
        assert (sample(rank).step, sample(rank).total) == (3, None)


def test_the_newest_line_of_a_reading_counts() -> None:
    rank = RankSignals(0)
    rank.output([each for step in (1, 2, 3) for each in signals(f"step {step} loss {step}.5")], 10.0)
    assert (sample(rank).step, sample(rank).loss) == (3, 3.5)


def test_rates_of_one_gpu_are_those_of_the_job() -> None:
    rank = RankSignals(0, world=16)
    rank.output(
        signals(
            "step: 14  loss:  3.2  grad_norm: 0.8  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.5  mfu: 0.17%"
        ),
        1.0,
    )
    assert sample(rank).tokens_s == 16 * 7282


def test_an_axis_that_counts_epochs_is_no_step() -> None:
    rank = RankSignals(0)
    rank.trackers(tracked(10.0, 3, "tensorboard", loss=1.0))
    assert sample(rank, steps=900).step is None
    assert sample(rank, steps=3).step == 3


def test_steps_that_begin_anew_are_no_progress() -> None:
    rank = RankSignals(0)
    for at, step in enumerate([10, 500, 990, 10, 500]):
        rank.output(
            signals(f"train: {step // 10}%|# | {step}/1000 [00:01<00:10, 9.0it/s, loss=2.0]"), float(at)
        )
    told = sample(rank)
    assert (told.step, told.total, told.loss) == (None, None, 2.0)


def test_a_total_that_was_passed_is_none() -> None:
    rank = RankSignals(0)
    rank.output(signals("step 10 loss 1.0 lr 0.1"), 1.0)
    assert sample(rank, total=(50, "`--steps 50` of the command")).total == 50
    assert sample(rank, total=(5, "`--steps 5` of the command")).total is None


def test_the_pace_is_of_reported_steps_and_restarts_with_them() -> None:
    rank = RankSignals(0)
    for step, at in ((0, 0.0), (10, 5.0), (20, 10.0)):
        rank.output(signals(f"step {step} loss 1.0"), at)
        told = sample(rank)
    assert (told.step_s, told.sources["step_s"]) == (0.5, "computed: steps over time")
    rank.output(signals("step 5 loss 1.0"), 100.0)  # from a checkpoint
    assert sample(rank).step_s is None


@pytest.mark.parametrize("paused", [0, 7, 29])
def test_a_compile_a_checkpoint_and_an_evaluation_are_no_time_of_a_step(paused: int) -> None:
    rank, at = RankSignals(0), 0.0
    for step in range(30):
        rank.output(signals(f"step {4 * step} loss 1.0"), at)
        told = sample(rank)
        at += 20.0 if step == paused else 1.0
    assert told.step_s == 0.25


def test_steps_that_become_slower_are_no_pause() -> None:
    rank, at = RankSignals(0), 0.0
    for step in range(60):
        rank.output(signals(f"step {step} loss 1.0"), at)
        told = sample(rank)
        at += 1.0 if step < 10 else 10.0
    assert told.step_s == 10.0


def test_a_nan_and_since_when() -> None:
    rank = RankSignals(0)
    lines = ["step 1 loss 2.0", "step 2 loss nan", "step 3 loss nan"]
    rank.output([each for line in lines for each in signals(line)], 1.0)
    told = sample(rank)
    assert (told.loss, told.not_finite, told.not_finite_since) == (None, {"loss": "nan"}, {"loss": 2})
    rank.output(signals("step 4 loss 2.0"), 2.0)
    assert (sample(rank).loss, sample(rank).not_finite) == (2.0, {})


def test_what_a_script_calls_its_values_is_clean_and_bounded() -> None:
    rank = RankSignals(0)
    many: dict[str, Any] = {f"layer{at}/norm": 1.0 for at in range(100)}
    many |= {"eval/\x1b[31mloss" + "x" * 90: 2.0, "val/worst": "inf"}
    rank.trackers(tracked(1.0, 1, **many))
    told = sample(rank)
    assert len(told.values) + len(told.not_finite) == MOST_VALUES
    assert not [name for name in told.values if "\x1b" in name or len(name) > 60]
    assert told.not_finite == {"val/worst": "inf"}


def test_mfu_that_may_be_a_share_or_a_percentage_is_left_out() -> None:
    for value, shown in ((0.41, None), (41.0, 41.0), (-100.0, None), (410.0, None)):
        rank = RankSignals(0)
        rank.trackers(tracked(1.0, 1, loss=1.0, mfu=value))
        assert sample(rank).mfu == shown


# --- the total of a command line ---


def test_totals() -> None:
    for command, steps in [
        ("train.py --steps 5000", 5000),
        ("train.py --max_iters=600_000", 600_000),
        ("-m torchtitan.train --training.steps 10", 10),
        ("train.py trainer.max_steps=77 lr=1", 77),
        ("train.py --steps 10 --max-steps 10", 10),
        ("train.py --steps 10 --max-steps 20", None),
        ("train.py --max-steps -1", None),
        ("train.py --max-steps", None),
        ("train.py --steps fast", None),
        ("train.py --steps 0", None),
        ("train.py --save-steps 500 --logging_steps 10 --warmup-steps 5", None),
        ("train.py", None),
        ("train.py --num_inference_steps 50", None),
    ]:
        named = of_command(command.split())
        assert (None if named is None else named[0]) == steps, command


def test_the_source_of_a_total() -> None:
    assert of_command(["t.py", "--steps", "5"]) == (5, "`--steps 5` of the command")
    assert of_command(["t.py", "--steps=5"]) == (5, "`--steps=5` of the command")
    assert of_text("t.py --name 'a run' --steps 5") == (5, "`--steps 5` of the command")
    assert of_text("t.py --steps 5 --name 'open") is None


# --- MFU ---


def job(
    params: int | None = 7_000_000_000, name: str = "NVIDIA H100 80GB HBM3", ranks: int = 8
) -> RunState:
    places = tuple(RankPlace(rank, rank) for rank in range(ranks))
    state = RunState(attempts=[Attempt(1, 0.0, "launch", ranks, {}, places)])
    state.nodes[0] = Node(0, gpus=tuple(Gpu(rank, f"GPU-{rank}", name) for rank in range(ranks)))
    state.ranks = {
        place.rank: Rank(
            place,
            RankPhase.RUNNING,
            made=Wrapped(params=params),
            sample=RankSample(place.rank, gpu=place.rank),
        )
        for place in places
    }
    return state


def rate(tokens_s: float = 90_000.0, source: str = "output: nanochat") -> TrainingSample:
    return TrainingSample(0, 1.0, tokens_s=tokens_s, sources={"tokens_s": source})


def test_mfu_of_a_whole_job() -> None:
    made = computed(job(), rate())
    assert made is not None
    assert made[0] == pytest.approx(100 * 6 * 7e9 * 90_000 / (8 * 989e12))
    assert made[1].startswith("computed: 6 × 7B parameters")


@pytest.mark.parametrize(
    ("state", "sample"),
    [
        (job(params=None), rate()),
        (job(name="Something 9000"), rate()),
        (job(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"), rate()),
        (job(), rate(source="output: key value")),
        (job(), rate(tokens_s=1e9)),
        (job(), TrainingSample(0, 1.0)),
        (RunState(), rate()),
    ],
    ids=["size", "GPU", "a part of a GPU", "whose tokens", "more than all", "no tokens", "no run"],
)
def test_mfu_is_unknown_where_anything_is(state: RunState, sample: TrainingSample) -> None:
    assert computed(state, sample) is None


def test_mfu_needs_a_gpu_a_rank() -> None:
    state = job()
    state.ranks[1].sample = RankSample(1, gpu=0)
    assert computed(state, rate()) is None
    state.ranks[1].sample = RankSample(1)
    assert computed(state, rate()) is None


def test_peaks() -> None:
    for name, flops in [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362.05e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
        ("Tesla T4", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
    ]:
        assert peak(name) == flops


# --- patterns of a user's ---


@pytest.mark.parametrize(
    ("pattern", "word"), [("(", "not a regular expression"), ("loss=([0-9.]+)", "names no group")]
)
def test_a_bad_pattern_is_refused(pattern: str, word: str) -> None:
    with pytest.raises(PlanError, match=word):
        checked([pattern])


class Matches:
    def __init__(self, *patterns: str) -> None:
        self.got: list[tuple[int, list[ReportedValue], float]] = []
        self.failed = False
        self.changed = asyncio.Event()
        self.patterns = SignalPatterns(patterns, self._matched, self._failed)
        self._running = asyncio.create_task(self.patterns.run())

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait({self._running})

    def _matched(self, rank: int, made: list[ReportedValue], at: float) -> None:
        self.got.append((rank, made, at))
        self.changed.set()

    def _failed(self) -> None:
        self.failed = True
        self.changed.set()


@pytest.mark.real
async def test_a_pattern_reads_fields_and_own_values_or_is_given_up() -> None:
    matches = Matches(
        r"it=(?P<step>\d+) nll=(?P<loss>\S+) (?P<tokens_s>[\d.]+k?)t/s(?: bleu (?P<bleu>\S+))?"
    )
    matches.patterns.put(3, ["noise", "it=7 nll=2.5 91.2kt/s bleu 30", "it=8 nll=nan 1kt/s"], 5.0)
    await asyncio.wait_for(matches.changed.wait(), patience.HANG_S)
    await matches.close()
    ((rank, made, at),) = matches.got
    assert (rank, at) == (3, 5.0)
    values = [(each.field, each.name, each.value) for each in made]
    assert values[:4] == [
        ("step", "step", 7.0),
        ("loss", "loss", 2.5),
        ("tokens_s", "tokens_s", 91200.0),
        ("", "bleu", 30.0),
    ]
    assert math.isnan(made[5].value)

    # One that never ends hangs nothing.
    matches = Matches(r"(?P<loss>(a+)+)$")
    matches.patterns.put(0, ["a" * 60 + "!"], 1.0)
    await asyncio.wait_for(matches.changed.wait(), patience.HANG_S)
    assert matches.failed
    matches.patterns.put(0, ["aaa"], 2.0)
    await matches.close()
    assert matches.got == []


async def test_a_pattern_is_not_given_up_where_the_node_has_no_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(*command: object, **options: object) -> SimpleNamespace:
        return SimpleNamespace(pid=os.getpid(), kill=lambda: None)

    async def exchange(process: object, request: bytes) -> bytes:
        await asyncio.sleep(0.9 * pattern_process.MOST_PATIENCE_S)
        return b'[{"loss": "1.25"}]\n'

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(pattern_process, "_exchange", exchange)
    monkeypatch.setattr(pattern_process, "_cpu_s", lambda pid: 0.0)
    matches = Matches(r"loss=(?P<loss>\S+)")
    matches.patterns.put(0, ["loss=1.25"], 2.0)
    await matches.changed.wait()
    assert not matches.failed
    assert [[each.value for each in made] for _, made, _ in matches.got] == [[1.25]]


class Answering:
    """In place of the process: `answers` to its requests, one after the other, and then its end."""

    def __init__(self, *answers: bytes) -> None:
        self.pid, self.kill = 4194305, lambda: None
        self.stdin, self.stdout = self, asyncio.StreamReader(limit=pattern_process.ANSWER)
        self._answers = list(answers)

    def write(self, request: bytes) -> None:
        answer = self._answers.pop(0) if self._answers else b""
        self.stdout.feed_data(answer)
        if not answer.endswith(b"\n"):
            self.stdout.feed_eof()

    async def drain(self) -> None:
        pass


async def test_a_process_that_fails_is_named_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    good = b'[{"loss": "1.25"}]\n'
    processes = [
        Answering(good),
        Answering(good, b"[{"),
        Answering(b"x" * (2 * pattern_process.ANSWER)),
        Answering(good),
    ]
    reported: list[str] = []

    async def start(*command: object, **options: object) -> Answering:
        return processes.pop(0)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    matches = Matches(r"loss=(?P<loss>\S+)")
    await matches.close()
    parts = Parts(lambda name, error, follows: reported.append(f"{name}: {error} ({follows})"))
    parts.start("signal-patterns", matches.patterns.run)
    for second in range(12):
        matches.patterns.put(0, ["loss=1.25"], float(second))
        await asyncio.sleep(1.0)
    await parts.stop("signal-patterns")
    gone = "signal-patterns: the process that matches --signal (pid 4194305) has ended"
    assert reported == [
        f"{gone} (it starts again in 1 s)",
        f"{gone} (it starts again in 2 s)",
        "signal-patterns: the patterns of --signal match more than 1 MiB at once (it starts again in 5 s)",
        f"{gone} (it starts again in 15 s)",
    ]
    assert not matches.failed
    assert [[each.value for each in made] for _, made, _ in matches.got] == [[1.25]] * 3


def test_a_text_that_is_too_long_for_a_number_is_no_match(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern that captures whole lines made answers that were too long to be read."""
    lines = [f"it={'9' * size} end" for size in (3, match_signals.LONGEST, match_signals.LONGEST + 1)]
    monkeypatch.setattr(sys, "stdin", [json.dumps(lines)])
    assert match_signals.main([r"it=(?P<step>\d+)(?P<none>x?) (?P<word>\w+)"]) == 0
    matches = json.loads(capsys.readouterr().out)
    assert [len(match.get("step", "")) for match in matches] == [3, 64, 0]
    assert [set(match) - {"step"} for match in matches] == [{"word"}] * 3


def test_a_field_of_a_users_pattern_is_read_by_no_other() -> None:
    rank = RankSignals(0)
    rank.output([ReportedValue("loss", "loss", 1.5, "output: --signal")], 1.0)
    rank.trackers(tracked(2.0, 9, loss=9.0))
    rank.output(signals("step 10 loss 7.0"), 3.0)
    told = sample(rank)
    assert (told.loss, told.sources["loss"], told.step) == (1.5, "output: --signal", 9)


# --- which lines are read ---


def test_lines_with_a_loss_are_found_among_thousands_of_others() -> None:
    noise = b"".join(b"DEBUG step iter tok/s %d\n" % at for at in range(900))
    tail = b"step 1 loss 2.5\n" + noise + b"step 2 loss 2.4\n" + noise
    assert [line for line in candidates(tail) if b"loss" in line] == [
        b"step 1 loss 2.5",
        b"step 2 loss 2.4",
    ]
    assert len(candidates(tail)) < 40


def test_a_line_of_64_kib_and_no_line_at_all() -> None:
    assert candidates(b"") == []
    assert candidates(b"\n\n") == []
    assert len(candidates(b"loss" * 16_000)) == 1


def test_the_first_nan_of_many_lines_is_read() -> None:
    """Ten steps a second are more lines than are read in one go; since when the loss is NaN shall be true."""
    lines = [
        b"nanoGPT begins",
        *(b"step %d loss %s" % (at, b"nan" if at >= 30 else b"1.0") for at in range(60)),
    ]
    rank = RankSignals(0)
    rank.output(lines_signals(b"\n".join(lines)), 5.0)
    assert sample(rank).not_finite_since == {"loss": 30}


def test_of_equal_lines_the_newest_are_read_and_the_first_nan() -> None:
    lines = [b"step %d loss %s" % (at, b"nan" if at > 3 else b"1.0") for at in range(12)]
    steps = [each.value for each in lines_signals(b"\n".join(lines)) if each.field == "step"]
    assert steps[-1] == 11
    assert 4 in steps
    assert len(lines_signals(b"\n".join(b"step %d loss 1.0" % at for at in range(12)))) == 2 * 3
