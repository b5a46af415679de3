"""The actual environment of each rank, and the environment of a new runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from ...presets.finding import Finding
from ...presets.plan import Plan
from ...presets.plan_json import revealed, unknown_words
from ...presets.secrets import MASK, SECRET_WORDS
from ..run import environment
from ..run.environment import Kept, Started
from ..run.formatting import agreeing
from ..run.model import (
    AttemptStarted,
    Clause,
    EnvironmentChanged,
    EnvironmentReported,
    EnvironmentRestored,
    sentence,
)
from ..run.processes import environ_of, marked
from .hook_clients import HookClient, HookError, Hooks
from .runner_process import ServedRun, with_run

HOOK_SECONDS = 1.5
"""Seconds that a restart waits for the hooks of all ranks. Ranks without a hook are read from outside."""
_OURS = str(Path(__file__).resolve().parent.parent / "inrank")
_LISTS = ("PATH", "PYTHONPATH")
"""Variables that the runner extends by distui's folders."""


class RankEnvironments(NamedTuple):
    of_rank: dict[int, dict[str, str | None]]
    source: str
    """ "hook" if every rank's hook answered, else "process"."""


async def seen(run: ServedRun, hooks: Hooks, names: tuple[str, ...]) -> RankEnvironments:
    """Return variables of every running rank of this node, from its hook if it answers."""
    running = {number: rank.pid for number, rank in run.state.ranks.items() if rank.pid is not None}
    if run.plan.hook and run.plan.launcher == "torchrun":
        await run.until(lambda: all(rank.hook for rank in run.state.ranks.values()), HOOK_SECONDS)
    inside = await asyncio.gather(*(_inside(hooks.by_rank.get(rank), names) for rank in running))
    by_rank: dict[int, dict[str, str | None]] = {}
    source = "hook"
    for (rank, pid), answer in zip(running.items(), inside, strict=True):
        env: Mapping[str, str | None] | None = answer
        if env is None:
            env, source = environ_of(pid), "process"
        if env:  # otherwise it has exited
            by_rank[rank] = {name: _without_ours(name, env.get(name)) for name in names}
    return RankEnvironments(by_rank, source if by_rank else "process")


async def _inside(hook: HookClient | None, names: tuple[str, ...]) -> dict[str, str | None] | None:
    if hook is None or not hook.up:
        return None
    try:
        answer = await hook.ask("environ", HOOK_SECONDS, names=names)
        return {str(name): value for name, value in answer["env"].items()}
    except (HookError, LookupError, AttributeError):
        return None


def _without_ours(name: str, value: str | None) -> str | None:
    """Return a value without distui's folders at its start, or None if nothing remains."""
    if name not in _LISTS or value is None or _OURS not in value:
        return value
    rest = os.pathsep.join(folder for folder in value.split(os.pathsep) if not folder.startswith(_OURS))
    return rest or None


def same(name: str, has: str | None, asked: str | None) -> bool:
    """Return True if a rank has the requested value. An empty list of folders equals an unset one."""
    return has == asked or (name in _LISTS and not has and not asked)


def _shown(values: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: environment.shown(name, value) for name, value in values.items()}


def _setting(name: str, value: str | None) -> str:
    return f"no {name}" if value is None else f"{name}={value}"


MISSING = "secrets-missing"
NOT_KEPT = "environment-lost"
RESTORED = "environment-restored"
DIFFERS = "environment-differs"


class Environment:
    """The launch's environment, the journaled changes, and secrets in memory."""

    def __init__(self, run: ServedRun, hooks: Hooks) -> None:
        self._run, self._hooks = run, hooks
        self._launch = environment.read(run.run_dir)
        names = frozenset() if self._launch is None else self._launch.hidden
        self._secrets = {name: os.environ.pop(name) for name in names if name in os.environ}
        self._words = os.environ.pop(SECRET_WORDS, "")
        """The words of the command that plan.json masks."""
        self._before: dict[str, str] = {}
        """Secrets before the newest change."""
        self._missing: set[str] = set()
        self._noted = asyncio.Event()
        self._noted.set()
        self.restored, self.why_restored = 0, ""
        """Newest attempt that could not be started with its changes, and its sentence."""

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Delay reports while a runner is asked to take changes, because they follow these changes."""
        self._noted.clear()
        try:
            yield
        finally:
            self._noted.set()

    async def noted(self) -> None:
        """Wait until no change is in transit to the runner."""
        await self._noted.wait()

    def value(self, name: str) -> str | None:
        """Return the launch's value of a variable, also of a secret. None if it was unset or is no longer known."""
        if name in self._secrets:
            return self._secrets[name]
        return os.environ.get(name) if self._launch is None else self._launch.values.get(name)

    def recall(self) -> None:
        """Restore the values that no file holds from living processes of the run, after an agent's death."""
        living = marked(self._run.record.run)
        by_age = sorted(living.values(), key=lambda env: int(env.get("DISTUI_ATTEMPT") or 0))
        self._words = self._words or next((env[SECRET_WORDS] for env in by_age if SECRET_WORDS in env), "")
        names = {name for name, value in self._run.state.changes.items() if value == MASK}
        if self._launch is not None:
            self._secrets |= environment.remembered(names | self._launch.hidden, *by_age)

    def note(self, changes: Mapping[str, str | None], shown: Mapping[str, str | None]) -> None:
        """Journal the changes that the runner took in their visible form, and keep their secrets in memory."""
        if not changes:
            return
        self._run.emit(EnvironmentChanged(dict(shown)))
        self._before = dict(self._secrets)
        for name, value in changes.items():
            if value is not None and environment.is_hidden(name, value):
                self._secrets[name] = value

    def heard(self, event: EnvironmentRestored) -> None:
        """Record that the newest change was undone."""
        run, self._secrets = self._run, dict(self._before)
        self.restored, self.why_restored = event.attempt, event.text
        remedy = "restart with values that Linux can give to a program"
        run.findings.raise_finding(Finding(RESTORED, "warning", event.text, node=run.node, remedy=remedy))

    def begun(self, event: AttemptStarted, first: bool) -> AttemptStarted:
        """Add the changes to an attempt's start. The `first` attempt of a new runner includes the pending changes."""
        pending = self._run.state.pending if first else {}
        return structs.replace(event, env_diff={**pending, **event.env_diff})

    async def compare(self, changes: Mapping[str, str | None]) -> list[Clause]:
        """Journal the ranks' actual values of the changes. Return a clause per difference."""
        run = self._run
        self.clear_missing_of(changes)
        if not changes:
            return []
        reported = await seen(run, self._hooks, tuple(changes))
        differs: dict[int, dict[str, str | None]] = {}
        for rank, env in reported.of_rank.items():
            wrong = {name: env[name] for name in changes if not same(name, env[name], changes[name])}
            if wrong:
                differs[rank] = wrong
        good = [rank for rank in reported.of_rank if rank not in differs]
        run.emit(
            EnvironmentReported(
                run.state.attempt,
                tuple(sorted(reported.of_rank)),
                _shown(changes) if good else {},
                {str(rank): _shown(env) for rank, env in differs.items()},
                reported.source,
            )
        )
        return self._report_differences(differs, changes)

    def _report_differences(
        self, differs: Mapping[int, Mapping[str, str | None]], changes: Mapping[str, str | None]
    ) -> list[Clause]:
        """Return a clause per variable, and raise a finding. Clear the finding if it no longer applies."""
        run, texts = self._run, list[Clause]()
        for name in sorted({name for env in differs.values() for name in env}):
            ranks = tuple(rank for rank, env in differs.items() if name in env)
            has = environment.shown(name, differs[ranks[0]][name])
            asked = environment.shown(name, changes[name])
            wrong = f"{{ranks}}: {_setting(name, has)}, not {_setting(name, asked)} as requested"
            texts.append(Clause(wrong, ranks))
        if texts:
            remedy = "what starts the script, or a sitecustomize of yours, sets it: change it there"
            finding = Finding(DIFFERS, "warning", sentence(texts), node=run.node, remedy=remedy)
            run.findings.raise_finding(finding)
        else:
            run.findings.clear(DIFFERS, node=run.node)
        return texts

    def clear_missing_of(self, changes: Mapping[str, str | None]) -> None:
        """Clear the finding if a restart has brought the missing secrets."""
        self._missing -= changes.keys()
        if not self._missing:
            self.clear_missing()

    def for_runner(self) -> dict[str, str]:
        """Return a new runner's environment. A finding names the values that cannot be restored."""
        run = self._run
        launch = self._launch
        if launch is None:
            text = f"{environment.FILE} in the run directory is missing or damaged: ranks start without what the "
            text += "launch's shell gave them"
            remedy = f"`distui stop {run.record.name}` and launch again if that matters"
            run.findings.raise_finding(Finding(NOT_KEPT, "warning", text, node=run.node, remedy=remedy))
            launch = Kept(environment.of_launch(os.environ, run.plan.env), frozenset())
        started = environment.of_runner(launch, run.plan.env, run.state.changes, self._secrets)
        self._report_missing(started)
        return with_run(started.env, self._words, run.record.run8)

    def forgotten(self) -> str:
        """Return why no new runner can start (the command's secrets are no longer known), or ""."""
        plan: Plan = revealed(self._run.plan, {SECRET_WORDS: self._words})
        if not unknown_words(plan):
            return ""
        verb = f"distui launch {plan.preset}" if plan.preset else "distui exec"
        return (
            "the command has a secret among its arguments, which is never stored, and no process of the run is "
            f"left that has it: launch it again with its value in place of {MASK}, as in "
            f"`{verb} -- {shlex.join(plan.command)}`"
        )

    def _report_missing(self, started: Started) -> None:
        run = self._run
        names = started.missing
        self._missing = set(names)
        if names:
            them = agreeing(names, "it", "them")
            text = f"ranks start without {', '.join(names)}: secrets are never stored, and no process of the run "
            text += f"is left that remembers {them}"
            words = " ".join(f"--env-from-shell {name}" for name in names)
            remedy = f"`distui restart {run.record.name} {words}` in a shell that has {them}"
            run.findings.raise_finding(Finding(MISSING, "warning", text, node=run.node, remedy=remedy))
        else:
            self.clear_missing()

    def clear_missing(self) -> None:
        """Clear the finding, because every secret is known or no longer needed."""
        self._run.findings.clear(MISSING, node=self._run.node)
