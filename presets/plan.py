"""Preset + script + topology → Plan: everything a launch will do, as one printable value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .model import RestartPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Exactly what runs. `--dry-run`, the launch screen and the runner use this same value."""

    run: str
    """Id of the run."""
    name: str
    """What the user calls it."""
    run_dir: str
    """Absolute path of the run directory."""
    preset: str
    strategy: str
    launcher: str
    """"torchrun" (torch's own elastic launcher) or "command" (any program, supervised as it is)."""
    python: str
    """Interpreter of the training environment; "" for a command."""
    cwd: str
    argv: tuple[str, ...]
    """torchrun: its arguments, from `--nnodes` to the script's own. command: the command."""
    command: tuple[str, ...]
    """The user's part alone: script and arguments, or the command."""
    env: Mapping[str, str]
    """Added to the environment of every rank."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files written before the start: path relative to the run directory → text."""
    nnodes: int = 1
    nproc_per_node: int | None = None
    backend: str | None = None
    """"nccl" or "gloo"; None for a command."""
    obeys: str | None = None
    """How the script obeys the preset's strategy, as a sentence; None when nothing was found."""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    grace_s: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    hook: bool = True
    """Whether the hook is injected into the ranks."""
    notes: tuple[str, ...] = ()
    """What the user should know before the start, a sentence each."""
