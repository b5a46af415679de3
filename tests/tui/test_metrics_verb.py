"""The table of `distui metrics`: numbers, owners, small curves, times that people type."""

from __future__ import annotations

import argparse
import time

import pytest
from each import for_each

from distui.runners.reports.curve_report import chosen, curve_of
from distui.runners.run import run_directories
from distui.runners.run.answers import Series
from distui.runners.run.errors import RunError
from distui.runners.run.model import HUB
from distui.runners.telemetry.quantity_text import value_text
from distui.tui.cli import main
from distui.tui.option_values import duration, moment
from distui.tui.verbs.metrics import lines, small_curve

NOW = time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))


def test_a_mean_counts_samples_and_a_spike_is_the_maximum() -> None:
    curve = curve_of(
        Series("gpu.util", 0, 3, 1, (10, None, 40), (5, None, 40), (100, None, 40), (30, 0, 10))
    )
    assert (curve.last, curve.min, curve.mean, curve.max) == (40, 5, 17.5, 100)
    nothing = curve_of(Series("gpu.util", 0, 3, 1, (None, None)))
    assert (nothing.last, nothing.min, nothing.mean, nothing.max) == (None, None, None, None)


def test_a_row_a_series() -> None:
    series = [
        Series("gpu.util", 0, 3, 1, (0, 50, 100)),
        Series("rank.rss", 1, 12, 1, (1 << 30,)),
        Series("host.cpu", HUB, None, 2, (None,)),
    ]
    shown = list(map(curve_of, series))
    assert [" ".join(line.split()) for line in lines(shown, utf8=False)] == [
        "METRIC OF LAST MIN MEAN MAX",
        "gpu.util node 0 gpu 3 100.0 % 0.0 % 50.0 % 100.0 %",
        "rank.rss node 1 rank 12 1.0 GiB 1.0 GiB 1.0 GiB 1.0 GiB",
        "host.cpu 2 nodes n/a n/a n/a n/a",
    ]
    assert lines(shown[:1], utf8=True)[1].endswith("▁▁▁▁▁▁▁▁▅▅▅▅▅▅▅▅████████")


@for_each(
    ("word", "hint"),
    [
        ("loss", "did you mean train.loss? `"), ("step_s", "did you mean rank.step_s or train.step_s? `"),
        ("gpu.utl", "did you mean gpu.util? `"), ("zzz", "there is no metric 'zzz': `"),
    ],
)  # fmt: skip
def test_a_metric_that_is_not_there_is_one_that_is_meant(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "night", word]) == 2
    told = capsys.readouterr().err
    assert hint.lower() in told.lower()
    assert told.endswith("`distui metrics --list` lists all\n")


def test_a_word_that_a_run_is_called_by_means_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    async def ask(run: str | None, use: object) -> None:
        asked.append(run)
        raise RunError("nobody answers here")

    monkeypatch.setattr("distui.tui.verbs.metrics.with_link", ask)
    assert main(["metrics", "train"]) != 0
    run_directories.create(run_directories.new_record("train"), b"{}", {})
    assert main(["metrics", "train"]) != 0
    assert asked == [None, "train"]


def test_small_curves() -> None:
    quarters = tuple(value for value in (10, 35, 60, 85) for _ in range(6))
    assert small_curve(curve_of(Series("gpu.util", mean=quarters))) == "".join(6 * each for each in "▁▃▅▇")
    assert (
        small_curve(curve_of(Series("rank.rss", mean=(5, 5, None, 5)))) == f"{'▁' * 12}{' ' * 6}{'▁' * 6}"
    )
    assert small_curve(curve_of(Series("rank.rss", mean=(None, None)))) == ""
    assert len(small_curve(curve_of(Series("rank.rss", mean=tuple(range(240)))))) == 24


def test_values_have_units_and_unknown_is_not_0() -> None:
    assert value_text(None, "%") == "n/a"
    assert value_text(0, "%") == "0.0 %"
    assert value_text(0.84321, "s") == "843 ms"
    assert value_text(3 << 30, "B/s") == "3.0 GiB/s"
    assert value_text(18_420, "") == "18,420"


def test_ranks_and_gpus_are_chosen_apart() -> None:
    series = [
        Series("gpu.util", index=1),
        Series("rank.cpu", index=1),
        Series("rank.cpu", index=2),
        Series("host.cpu"),
    ]
    assert [(s.metric, s.index) for s in chosen(series, [1], [], named=False)] == [("rank.cpu", 1)]
    assert [(s.metric, s.index) for s in chosen(series, [], [1], named=False)] == [("gpu.util", 1)]
    assert (
        len(chosen(series, [1], [], named=True)) == 3
    )  # what was named stays, unless it is another rank's
    assert len(chosen(series, [], [], named=False)) == 4


@for_each(
    ("text", "at"),
    [("10m", NOW - 600), ("1.5h", NOW - 5400), ("11:30", NOW - 1800), ("11:30:30", NOW - 1770),
     ("13:00", NOW - 23 * 3600), ("1777888800.5", 1777888800.5), ("2026-05-04T11:00", NOW - 3600)],
)  # fmt: skip
def test_times(text: str, at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert moment(text) == pytest.approx(at)


@for_each("text", ["", "x", "-5m", "1e9", "99:99", "0", "nan", "9" * 400, "2026-13-45"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        moment(text)
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)
