"""A runner without a process: torch's launcher, the restart policy and the ranks, on the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from distui.runners.agent.runner_process import Runner, ServedRun
from distui.runners.inrank import script_files
from distui.runners.inrank.env_changes import refusal
from distui.runners.inrank.restart_policy import Deaths, RankExit, after_failure, how_it_ended
from distui.runners.run import clock, file_io
from distui.runners.run.history import REPORT
from distui.runners.run.model import (
    AttemptStarted,
    Event,
    RankChanged,
    RankPhase,
    RankPlace,
    RestartDelayed,
    RunEnded,
    RunnerStarted,
    RunPhase,
    Stamped,
)
from distui.runners.run.run_directories import RUNNER_FILE

from .fake_hook import FakeHook, of_rank

_pids = itertools.count((1 << 22) + 1)
"""Above the largest pid of Linux: no signal reaches a process."""
Ending = tuple[RunPhase, int, str]


class FakeRunner:
    """One runner and its ranks. A test steers the ranks by `exits`, `hangs` and `hooks`."""

    start_s = 0.2
    """Seconds from the start of the runner until torch is imported, and from an attempt to its ranks."""
    step_s = 0.5
    """Seconds per step of the ranks."""
    nccl_version: str | None = None
    """Of the NCCL that the ranks use; None: they use gloo."""

    def __init__(self, run: ServedRun, env: Mapping[str, str], cause: str) -> None:
        self.pid, self.run_dir, self.env = next(_pids), run.run_dir, dict(env)
        self.socket = run.stem + ".run"
        self.over = asyncio.Event()
        """Set when the process has ended."""
        self.hooks: dict[int, FakeHook] = {}
        """The ranks that run."""
        self.ignoring_term: set[int] = set()
        """Ranks that only SIGKILL ends, after the grace."""
        self.asked: list[dict[str, Any]] = []
        """Every request of the agent's, in order."""
        self.is_silent = False
        """Whether it answers nothing, as a process that is stopped."""
        self._stem, self._node, self._failures = run.stem, run.node, run.state.failures
        self._ranks = run.plan.nproc_per_node or 1
        self._plan = json.loads((run.run_dir / "plan.json").read_text())
        self._cause = cause or ("failure" if run.state.attempts else "launch")
        self._cause_of_restart = "restart"
        self._attempt, self._deaths = 0, Deaths()
        self._pending: dict[str, str | None] = {}
        self._shown: dict[str, str | None] = {}
        self._is_restarting = self._is_stopping = self._failed = False
        self._grace_s = float(self._plan["grace_s"])
        self._wake = asyncio.Event()
        self._peers: set[asyncio.StreamWriter] = set()
        self._life = asyncio.create_task(self._live())

    # --- what the ranks do ------------------------------------------------------------------------------------

    def exits(self, rank: int, code: int = 0) -> None:
        """End a rank by itself: an exit code, or the number of a signal below 0."""
        self._exited(rank, code)
        if self._failed:
            for other in list(self.hooks):
                self._exited(other, -signal.SIGTERM)
        self._wake.set()

    def finishes(self) -> None:
        """Have every rank come to the end of the script."""
        for rank in list(self.hooks):
            self.exits(rank)

    def hangs(self, rank: int) -> None:
        """A rank comes to no further collective: the others wait for it."""
        for number, hook in self.hooks.items():
            if number == rank:
                hook.hang()
            else:
                hook.wait()

    def stops(self, rank: int) -> None:
        """SIGSTOP reaches a rank: it answers nothing any more, and the others wait for it."""
        self.hangs(rank)
        self.hooks[rank].is_silent = True

    def writes(self, rank: int, text: str, ending: str = "out") -> None:
        """Append to a file of a rank: its stdout, "err", or a note of its hook ("exc", "end")."""
        with (self._directory(self._attempt) / f"rank-{rank}.{ending}").open("a") as file:
            file.write(text)

    def meets_another_node(self) -> None:
        """Have a node join: the ranks end, and begin again together with it."""
        self._is_restarting, self._cause_of_restart = True, "membership"
        self._wake.set()

    def dies(self) -> None:
        """Be killed without a word; the ranks go with it."""
        self._life.cancel()

    # --- attempts ---------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        Path(self.socket).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self.socket)
        try:
            await asyncio.sleep(self.start_s)
            self._report(
                RunnerStarted(self.pid, self._plan["launcher"], self.socket, self._plan["python"], "2.13.0")
            )
            self._report(RunEnded(*await self._attempts()))
        finally:
            server.close()
            for peer in self._peers:
                peer.close()
            for hook in self.hooks.values():
                hook.close()
            self.over.set()

    async def _attempts(self) -> Ending:
        while not self._is_stopping:
            began = clock.monotonic()
            await self._begin()
            while self.hooks and not (self._is_stopping or self._is_restarting):
                await self._woken(None)
            if self._is_stopping or self._is_restarting:
                await self._end_ranks()
            elif not self._failed:
                return RunPhase.SUCCEEDED, 0, "every rank ended with exit code 0"
            elif not await self._back_off(clock.monotonic() - began):
                return RunPhase.FAILED, 1, self._deaths.refusal
            if self._is_restarting:
                self._is_restarting, self._cause = False, self._cause_of_restart
        return RunPhase.STOPPED, 1, "stopped"

    async def _begin(self) -> None:
        self._attempt += 1
        while self._directory(self._attempt).exists():
            self._attempt += 1
        self._directory(self._attempt).mkdir(parents=True, mode=0o700)
        self._failed, self._deaths.ends = False, {}
        pending = self._pending.items()
        diff = {name: self._shown.get(name) for name, value in pending if self.env.get(name) != value}
        for name, value in self._pending.items():
            if value is None:
                self.env.pop(name, None)
            else:
                self.env[name] = value
        self._pending, self._shown = {}, {}
        places = tuple(RankPlace(rank, rank, self._node) for rank in range(self._ranks))
        code = script_files.digests(self._plan)
        self._report(
            AttemptStarted(self._attempt, self._cause, len(places), places, diff, self._failures, code)
        )
        await asyncio.sleep(self.start_s)
        for place in places:
            rank, env = place.rank, {**self.env, **of_rank(place.rank, len(places))}
            hook = FakeHook(Path(f"{self._stem}.r{rank}"), next(_pids), env, self.step_s)
            if self.nccl_version is not None:
                hook.nccl_version, hook.backend = self.nccl_version, "nccl"
            await hook.start()
            self.hooks[rank] = hook
            for ending in ("out", "err"):
                self.writes(rank, "", ending)
            self._report(RankChanged(self._attempt, rank, RankPhase.RUNNING, rank, hook.pid))

    async def _back_off(self, healthy_s: float) -> bool:
        policy, directory = self._plan["restart"], str(self._directory(self._attempt))
        verdict = after_failure(policy, self._failures, healthy_s)
        self._cause, self._failures = "failure", verdict.failures
        if not self._deaths.allow(policy, verdict, directory, healthy_s):
            return False
        if verdict.wait_s:
            self._report(RestartDelayed(verdict.wait_s, verdict.failures, policy["limit"]))
            await self._woken(verdict.wait_s)
        return True

    async def _woken(self, seconds: float | None) -> None:
        """Wait for a request or the exit of a rank."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    async def _end_ranks(self) -> None:
        for rank in self.hooks.keys() - self.ignoring_term:
            self._exited(rank, -signal.SIGTERM)
        if self.hooks:
            await asyncio.sleep(self._grace_s)
        for rank in list(self.hooks):
            self._exited(rank, -signal.SIGKILL)

    def _exited(self, rank: int, code: int) -> None:
        hook = self.hooks.pop(rank)
        hook.close()
        state = RankPhase(how_it_ended(code, self._is_stopping or self._is_restarting, self._failed))
        failed = state in (RankPhase.FAILED, RankPhase.KILLED)
        self._failed = self._failed or failed
        self._deaths.ends[rank] = RankExit(rank, hook.pid, code, clock.now(), failed)
        name = signal.Signals(-code).name if code < 0 else None
        self._report(RankChanged(self._attempt, rank, state, rank, hook.pid, code, name, at=clock.now()))

    def _directory(self, attempt: int) -> Path:
        return self.run_dir / f"node-{self._node}" / f"attempt-{attempt:03d}"

    # --- the report and the socket ----------------------------------------------------------------------------

    def _report(self, event: Event) -> None:
        with (self.run_dir / REPORT).open("ab") as file:
            file.write(msgspec.json.encode(Stamped(clock.now(), event)) + b"\n")
        for peer in self._peers:
            peer.write(b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._peers.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while line := await reader.readline():
                request = json.loads(line)
                self.asked.append(request)
                if not self.is_silent:
                    answer = {**self._answer(request), "id": request.get("id")}
                    writer.write(json.dumps(answer).encode() + b"\n")
        self._peers.discard(writer)
        writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op, changes = request.get("op"), request.get("env") or {}
        if op in ("restart", "env"):
            if clock.monotonic() > float(request.get("until") or "inf"):
                return {"ok": False, "text": "the request came too late, and was withdrawn"}
            if op == "restart" and self._is_stopping:
                return {"ok": False, "text": "the run is being stopped"}
            if refused := refusal(changes):
                return {"ok": False, "text": refused}
            self._pending |= changes
            self._shown |= request.get("shown") or changes
        if op == "restart":
            self._is_restarting, self._cause_of_restart = True, "restart"
            self._wake.set()
        elif op == "stop":
            grace_s = request.get("grace_s")
            if not isinstance(grace_s, (int, float, type(None))):
                return {"ok": False, "text": "grace_s is not a number of seconds"}
            self._is_stopping = True
            self._grace_s = self._grace_s if grace_s is None else grace_s
            self._wake.set()
        elif op not in ("env", "ping"):
            return {"ok": False, "text": f"unknown command {op!r}"}
        return {"ok": True, "attempt": self._attempt, "restarting": self._is_restarting}


class LiveNccl(FakeRunner):
    """Ranks whose NCCL takes another level while they run."""

    nccl_version = "2.27.3"


class OldNccl(FakeRunner):
    """Ranks whose NCCL reads its level once."""

    nccl_version = "2.21.5"


class FakeRunners:
    """Starts fake runners where an agent would spawn processes: `Agent(…, spawn_runner=FakeRunners())`."""

    def __init__(self, kind: type[FakeRunner] = FakeRunner) -> None:
        self._kind = kind
        self.started: list[FakeRunner] = []

    @property
    def newest(self) -> FakeRunner:
        return self.started[-1]

    def __call__(self, run: ServedRun, env: Mapping[str, str], cause: str = "") -> Runner:
        fake = self._kind(run, env, cause)
        self.started.append(fake)
        who = file_io.Identity(fake.pid, 0, file_io.boot_id(), platform.node(), fake.socket, "torchrun")
        file_io.write(run.run_dir / RUNNER_FILE, who)
        return _Handle(run.run_dir, who, fake.over)


class _Handle(Runner):
    """The agent's side: only whether it lives is not asked of the kernel."""

    def __init__(self, run_dir: Path, who: file_io.Identity, over: asyncio.Event) -> None:
        super().__init__(run_dir, who, None)
        self._over = over

    def lives(self) -> bool:
        return not self._over.is_set()

    async def ended(self) -> None:
        await self._over.wait()
