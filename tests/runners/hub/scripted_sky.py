"""SkyPilot as a coroutine: the answers of tests/rigs/sky/answering.py, without its process."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .children import Pipes, Programs

SCRIPT = Path(__file__).resolve().parents[2] / "rigs/sky/answering.py"
PYTHON = "/of-skypilot/python"
VERSION = [{"data": {"version": "0.14.1", "python": "p", "supported": True}}]
ALL = dict[str, list[dict[str, Any]]]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("answering", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


answering = _load()


class ScriptedSky:
    """What SkyPilot answers, in `scene`, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs | None) -> None:
        """`programs` None: the answers come from a process that a shell script at PYTHON starts."""
        self.scene = folder / "scene.json"
        python = PYTHON
        if programs is not None:
            programs.put(python, self._serve)
        else:
            path = folder / "python"
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SCRIPT}" "{self.scene}" "$@"\n')
            path.chmod(0o755)
            python = str(path)
        monkeypatch.setenv("DISTUI_SKY_PYTHON", python)

    def answers(self, answers: ALL) -> None:
        self.scene.write_text(json.dumps({"version": VERSION, **answers}))

    def asked(self, verb: str) -> list[dict[str, Any]]:
        """The questions with this verb so far."""
        return [question for question in self.questions() if question.get("verb") == verb]

    def questions(self) -> list[dict[str, Any]]:
        """All that was asked and cancelled so far."""
        asked = Path(f"{self.scene}.asked")
        return [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []

    async def _serve(self, words: tuple[str, ...], pipes: Pipes) -> int:
        answers = answering.Answers(str(self.scene))
        while line := await pipes.stdin.readline():
            answer = answers.to(line.decode())
            if answer is None:
                continue
            pipes.stdout.write(answering.first(answer).encode())
            while answering.waits(answer):
                await asyncio.sleep(0.01)
            if answer.get("die"):
                return 3
            pipes.stdout.write(answering.last(answer).encode())
        return 0
