"""What `distui advise` says about runs that papers, model cards and documentation describe (advice_questions.toml)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from distui.tui.cli import main

QUESTIONS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("advice_questions.toml").read_text("utf-8")
)["question"]
AGREEING = 0.9
"""Share of the questions that have to be answered as the source does."""


def answer(question: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The row of the question's strategy."""
    assert main(["advise", *question["args"].split(), "--json"]) in (0, 1), question["ask"]
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["strategies"]
    return next(row for row in rows if row["key"] == question["strategy"])


def agrees(question: dict[str, Any], row: dict[str, Any]) -> bool:
    states = question.get("states_gb")
    if states is not None and abs(row["states_bytes"] / 1e9 / states - 1) > 0.1:
        return False
    return bool(row["fits"] == question["fits"])


def test_most_answers_are_those_of_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for question in QUESTIONS:
        row = answer(question, capsys)
        if not agrees(question, row):
            wrong.append((question["ask"], round(row["total_bytes"] / 1e9, 1), question.get("differs", "")))
    assert len(QUESTIONS) >= 40
    assert len(wrong) <= (1 - AGREEING) * len(QUESTIONS), wrong
