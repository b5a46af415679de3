"""The filter of `ls` and of the runs list: what its words mean, and what is said of a word that means nothing."""

from __future__ import annotations

import pytest
from each import for_each
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from test_runs_list import several_runs

from distui.runners.run.formatting import bytes_of, seconds_of
from distui.tui.rows.list_filter import FilterError
from distui.tui.rows.run_filter import FIELDS, RUNS
from distui.tui.rows.runs import COLUMNS, RunEntry, ordered
from distui.tui.rows.runs_table import printed, unknown_column, usual


def runs() -> list[RunEntry]:
    llama, failed, good, watched = several_runs()
    return [
        replace(llama, attempt=3, tags=("keep", "paper"), note="the long baseline"), failed,
        replace(good, tags=("good",)), watched,
    ]  # fmt: skip


@for_each(
    ("words", "names"),
    [
        ("", "llama train0 train3 train.py"),
        ("state:failed preset:ddp", "train0"),
        ("state:failed,succeeded", "train0 train3"),
        ("state!=failed", "llama train3 train.py"),
        ("state!=failed,running", "train3 train.py"),
        ("state:live", "llama train.py"),
        ("state:ended age<1d", "train3"),
        ("name:train?", "train0 train3"),
        ("name:*3", "train3"),
        ("name=train", ""),
        ("age<2h", "llama train3 train.py"),
        ("age>=1d", "train0"),
        ("took<=10m", "train0 train3"),
        ("ended>24h", "train0"),
        ("size>10MB", "train0"),
        ("size<10MiB", "train3"),
        ("exit=0", "train3"),
        ("exit!=0", "train0"),
        ("!exit=0", "train0"),
        ("exit:n/a", "llama train.py"),
        ("ranks>2", "llama"),
        ("ranks<=4 !state:watched", "train0 train3"),
        ("step>1000", "llama train3"),
        ("done<50", "llama"),
        ("done=100%", "train3"),
        ("attempt>1", "llama"),
        ("tag:good", "train3"),
        ("tags:keep", "llama"),
        ("tag=goo", ""),
        ("tag!=good", "llama train0 train.py"),
        ("tag:good,paper", "llama train3"),
        ("note:baseline", "llama"),
        ('note:"long baseline"', "llama"),
        ("'GPU memory'", "train0"),
        ("!ddp", "llama train.py"),
        ("BASELINE", "llama"),
    ],
)
def test_words_mean_what_they_say(words: str, names: str) -> None:
    chosen = RUNS.understood(words)
    assert " ".join(run.name for run in runs() if chosen.fits(run)) == names
    assert [run.name for run in RUNS.fitting(runs(), words)] == names.split()


@for_each(
    ("words", "column", "says"),
    [
        ("stat:failed", 1, "did you mean state?"),
        ("ddp zzz:1", 5, "there are state, name, "),
        ("age<2x", 5, "age takes a time (a number and s, m, h, d or w), not 2x"),
        ("age:2d", 5, "needs < or >: write age<2d"),
        ("size>big", 6, "size takes a size"),
        ("state:failed  ranks>many", 21, "ranks takes a number"),
        ("name<b", 6, "name is a text without an order"),
        ("state:bogus", 7, "unknown state bogus"),
        ("exit:nan", 6, "exit takes a number"),
        ("step>1e400", 6, "step takes a number"),
        ("!", 1, "write a term after !"),
        ("state:bogus", 7, "lost, ended, exported, watched, hung, live"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_column(words: str, column: int, says: str) -> None:
    sentence = RUNS.mistake(words)
    assert f"column {column}:" in sentence
    assert says in sentence
    assert "\n" not in sentence


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_a_sentence(text: str) -> None:
    if sentence := RUNS.mistake(text):
        assert "column" in sentence
        with pytest.raises(FilterError):
            RUNS.understood(text)
    else:
        assert all(isinstance(RUNS.understood(text).fits(run), bool) for run in runs())
    assert len(RUNS.fitting(runs(), text)) <= 4


@given(
    st.sampled_from([*FIELDS]),
    st.sampled_from([":", "=", "!=", "<", ">"]),
    st.text("0123456789,dhGB%n/a", max_size=8),
)
def test_fields_with_any_value(field: str, op: str, value: str) -> None:
    word = f"{field}{op}{value}"
    if not RUNS.mistake(word):
        chosen = RUNS.understood(word)
        assert {chosen.fits(run) for run in runs()} <= {True, False}


def test_sizes_and_times_that_users_write() -> None:
    assert [bytes_of(text) for text in ("0", "4096", "200MB", "1.5 GiB", "10M", "2kb", "1T")] == [
        0, 4096, 200_000_000, 3 << 29, 10 << 20, 2000, 1 << 40,
    ]  # fmt: skip
    assert [seconds_of(text) for text in ("90s", "1.5h", "2 d", "3w", "5m")] == [
        90,
        5400,
        172_800,
        1_814_400,
        300,
    ]
    for wrong in ("", "-1MB", "MB", "1PB", "1 2MB", "inf", "nan", "1e9", "٣MB"):
        assert bytes_of(wrong) is None, wrong
        assert seconds_of(wrong) is None, wrong
    assert seconds_of("5") is None


@for_each("reverse", [False, True])
@for_each("name", COLUMNS)
def test_every_column_is_printed_and_orders_with_the_unknown_last(name: str, reverse: bool) -> None:
    listed = ordered(runs(), name, reverse)
    unknown = [COLUMNS[name].order(run) is None for run in listed]
    assert unknown == sorted(unknown)
    known = [COLUMNS[name].order(run) for run in listed if COLUMNS[name].order(run) is not None]
    assert known == sorted(known, reverse=COLUMNS[name].descending != reverse)  # type: ignore[type-var]
    lines = printed(listed, ["name", *([name] if name != "name" else [])], None, True)
    assert len(lines) == 5
    assert lines[0].split()[0] == "name"


def test_tags_and_notes_are_printed_where_there_are_any() -> None:
    assert "tags" not in usual(several_runs(), False)
    assert usual(runs(), True)[0] == "host"
    assert usual(runs(), False)[-3:] == ("tags", "note", "id")
    long = [replace(runs()[0], note="x" * 100)]
    assert all(len(line) < 150 for line in printed(long, usual(long, False), None, False))
    assert "x" * 100 in printed(long, ["note"], None, True)[1]


def test_names_of_columns() -> None:
    assert unknown_column(["name", "size"], "--columns") == ""
    assert "did you mean size?" in unknown_column(["siez"], "--columns")
    assert "twice" in unknown_column(["name", "name"], "--columns")
