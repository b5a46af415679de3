"""Find the files that the commands of a shell text read: configurations, tasks and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .launcher_calls import ASSIGNMENT, LauncherCall, flags_of, read_script
from .shell import Command, Word
from .torchrun_options import read_options

CONFIGS = ("config_file", "deepspeed", "deepspeed_config", "deepspeed_config_file", "hostfile")
CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
SKY_VERBS = (("launch",), ("exec",), ("jobs", "launch"), ("serve", "up"))
"""Verbs of `sky` whose argument is the file of a task."""


NO_SCRIPT = frozenset({"-m", "--module", "--no-python"})
"""Options of launchers that announce no Python script file."""


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: str
    line: int
    is_script: bool
    nnodes: int | None = None
    nproc: int | None = None
    """Nodes and ranks per node, if a torchrun before the script gives literal numbers."""


def named_files(text: str) -> list[NamedFile]:
    """Return the files that the commands of a text read: configurations, tasks and scripts. Never raises."""
    script = read_script(text)
    named: list[NamedFile] = []
    for launch in script.launches:
        named += [NamedFile(word.text, word.line, False) for word in config_paths(launch)]
        named += _named_script(launch)
    for command in script.commands:
        named += _named_task(command)
    return named


def _named_script(launch: LauncherCall) -> list[NamedFile]:
    if any(word.text.replace("_", "-") in NO_SCRIPT for word in launch.words):
        return []
    word = _first_path(launch.words, (".py",))
    options = read_options(launch.words if launch.program == "torchrun" else ())
    ranks = options.number("nnodes"), options.number("nproc-per-node")
    return [NamedFile(word.text, word.line, True, *ranks)] if word else []


def _named_task(command: Command) -> list[NamedFile]:
    words = [word for word in command.words if not ASSIGNMENT.match(word.text)]
    program, *verbs = [word.text for word in words[:3]] or [""]
    if program != "sky" or not any(tuple(verbs[: len(verb)]) == verb for verb in SKY_VERBS):
        return []
    word = _first_path(words, (".yaml", ".yml"))
    return [NamedFile(word.text, word.line, False)] if word else []


def _first_path(words: Sequence[Word], suffixes: tuple[str, ...]) -> Word | None:
    return next((word for word in words if word.literal and word.text.endswith(suffixes)), None)


def config_paths(launch: LauncherCall) -> Iterator[Word]:
    for name, word in flags_of(launch.words).items():
        if name in CONFIGS and word.literal and word.text.endswith(CONFIG_SUFFIXES):
            yield word
