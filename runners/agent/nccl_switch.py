"""NCCL on this node: the NCCL_DEBUG switch, live or for the next attempt, and NCCL's RAS port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ...presets.finding import Finding
from ...presets.nccl import DEFAULT_SUBSYS, NcclError, parse_level, parse_subsys
from ..diagnosis import ras
from ..diagnosis.rules import parse_version
from ..run import clock
from ..run.daemon import CommandRefused, Reply
from ..run.formatting import spans_text
from ..run.model import Clause, NcclChanged, Pulse, RankPhase, SetNccl
from ..run.nccl_reach import UNUSED, called, calls_nccl, standing
from ..run.nccl_reach import refusal as nothing_to_do
from ..run.state import RunState
from .commands import Restarts
from .hook_clients import HookError, Hooks
from .nccl_logs import FLOOD_ID
from .runner_process import ServedRun

C10D = {"INFO": "INFO", "TRACE": "DETAIL"}
"""c10d's level for an NCCL level. OFF for other levels."""
QUIET = f"; {DEFAULT_SUBSYS} log little after init: --subsys COLL has a line for each collective"
"""Hint for users who name no subsystems, and would wait for lines."""

Answers = dict[int, dict[str, Any]]


def unused(backend: str, planned: str | None, used: Set[str] = frozenset()) -> bool:
    """Return True if ranks with a torch backend ("gloo", "cpu:gloo,cuda:nccl"; "": unknown) do not use NCCL.

    `used`: known backends of their collectives.
    """
    if calls_nccl(used) or (used and planned != "nccl"):
        return not calls_nccl(used)
    names = [part.rpartition(":")[2] for part in backend.split(",") if part]
    through = [name for name in names if calls_nccl([name])]
    return len(through) < len(names) and (planned == "gloo" or not through)


class NcclSwitch:
    """Sets the level of all or some ranks, and resets a limited one."""

    def __init__(self, run: ServedRun, hooks: Hooks, restarts: Restarts) -> None:
        self._run, self._hooks, self._restarts = run, hooks, restarts
        self._back: asyncio.Task[None] | None = None

    def resume(self) -> None:
        """Schedule the reset of a limited level after an adoption."""
        last = self._run.state.nccl
        if last is not None and last.until is not None:
            self._go_back_after(max(0.0, last.until - clock.now()), last.ranks)

    async def switch(self, command: SetNccl) -> Reply:
        """Execute the command, and return its result. Raises CommandRefused or HookError."""
        try:
            level, subsys = parse_level(command.level), parse_subsys(command.subsys)
        except NcclError as error:
            raise CommandRefused(str(error)) from None
        env = {"NCCL_DEBUG": level, "NCCL_DEBUG_SUBSYS": subsys}
        self._run.findings.clear(FLOOD_ID, node=self._run.node)  # the finding was about the previous level
        if command.restart:
            if why := nothing_to_do(self._run.state, command, self._run.plan.env):
                raise CommandRefused(why)
            return Reply(await self._restart(command, env))
        lasting = command.seconds is None
        answers, silent = await self._ask(command.ranks, "nccl", env=env, lasting=lasting)
        if lasting and not command.ranks:
            await self._restarts.set_for_next(env)
        return Reply([await self._conclude(command, level, answers), *map(Clause, silent)])

    async def lower(self, why: str) -> tuple[bool, str]:
        """Reset a level that was set during the run. Return True if it was reset, and a sentence."""
        run, last = self._run, self._run.state.nccl
        env = standing(run.plan.env, run.state.attempts)
        if last is not None and _same(last, env):  # set by a restart, so it is in effect
            env = standing(run.plan.env, ())
        now = "" if last is None else f" at {last.level} {last.subsys}".rstrip()
        if last is None or _same(last, env):
            level = f"{env['NCCL_DEBUG']} {env['NCCL_DEBUG_SUBSYS']}"
            return False, f"{why}: the launch itself asks for {level}, which is left as it is"
        try:
            ranks = tuple(sorted(self._hooks.by_rank))
            answers, silent = await self._ask(ranks, "nccl", env=env, lasting=True)
        except (HookError, CommandRefused) as error:
            return False, f"{why}{now}, and cannot be stopped: {error}"
        if not all(answer.get("changed") for answer in answers.values()):
            version = next(iter(answers.values())).get("version") or "here"
            return False, f"{why}{now}, and NCCL {version} cannot change that live: only a restart can"
        self._go_back_after(None, ())
        if last.until is None:
            with contextlib.suppress(CommandRefused, OSError, TimeoutError):
                await self._restarts.set_for_next(env)
        text = "; ".join([f"{why}{now}: NCCL_DEBUG is back at {env['NCCL_DEBUG']}", *silent])
        run.emit(NcclChanged(env["NCCL_DEBUG"], "", ranks, True, text, None))
        return True, text

    async def _restart(self, command: SetNccl, env: dict[str, str]) -> Sequence[Clause]:
        """Set the level of all ranks through a restart. A limited level does not apply to later attempts."""
        before = standing(self._run.plan.env, self._run.state.attempts)
        done = await self._restarts.restart(env)
        state, level = self._run.state, env["NCCL_DEBUG"]
        if command.seconds is not None:
            await self._restarts.set_for_next(before)
        text = f"NCCL_DEBUG={level} since attempt {state.attempt}{_span(command)}"
        self._report(command, level, tuple(state.ranks), True, text)
        self._go_back_after(command.seconds, tuple(state.ranks), before)
        return done

    async def _conclude(self, command: SetNccl, level: str, answers: Answers) -> Clause:
        """Report the ranks' answers, and set c10d's level if NCCL is not in use. Raises CommandRefused."""
        ranks = tuple(rank for rank, answer in answers.items() if answer.get("changed"))
        answer = next(iter(answers.values()))
        backend = answer.get("backend") or ""
        lasts = command.seconds is None and not command.ranks
        kept = f"{level} is set for the next start; " if lasts else ""
        no_nccl = unused(backend, self._run.plan.backend, called(self._run.state))
        if no_nccl:  # a CUDA build of torch contains NCCL, which accepts the level
            ranks, clause = tuple(answers), Clause(await self._gloo(command, level, tuple(answers)))
        elif ranks:
            subsys = f" {parse_subsys(command.subsys)}" if command.subsys else ""
            quiet = QUIET if level == "INFO" and not command.subsys else ""
            clause = Clause(f"NCCL_DEBUG={level}{subsys} live on {{ranks}}{_span(command)}{quiet}", ranks)
        elif answer.get("loaded"):
            raise CommandRefused(
                f"NCCL {answer.get('version') or 'here'} cannot change NCCL_DEBUG live (2.24 or newer can): "
                f"{kept}add --restart to restart now"
            )
        elif backend:
            raise CommandRefused(
                "NCCL is built into this torch, where NCCL_DEBUG cannot be changed live: "
                f"{kept}add --restart to restart now"
            )
        elif self._run.plan.backend == "gloo":
            ranks, clause = tuple(answers), Clause(await self._gloo(command, level, tuple(answers)))
        else:
            ranks = tuple(answers)
            clause = Clause(
                f"NCCL is not loaded yet: NCCL_DEBUG={level} is set, and counts from its first use"
            )
        acts = bool(answer.get("changed")) and not no_nccl
        self._report(command, level, ranks, acts, clause.words())
        self._go_back_after(command.seconds, ranks)
        return clause

    async def _gloo(self, command: SetNccl, level: str, ranks: tuple[int, ...]) -> str:
        """Set c10d's log level live, because NCCL is not in use."""
        c10d, lasting = C10D.get(level, "OFF"), command.seconds is None
        hooks = self._hooks.chosen(ranks)
        acks = await asyncio.gather(
            *(hook.ask("c10d", level=c10d, lasting=lasting) for hook in hooks), return_exceptions=True
        )
        changed = next((str(ack["text"]) for ack in acks if isinstance(ack, dict) and ack.get("text")), "")
        parts = [f"NCCL_DEBUG={level} is set for the next start"] if lasting and not command.ranks else []
        parts += [f"live: {changed}{_span(command)}"] if changed else []
        return f"{UNUSED}: " + ("; ".join(parts) or "nothing was changed")

    async def _ask(self, ranks: tuple[int, ...], op: str, **fields: Any) -> tuple[Answers, list[str]]:
        """Return the ranks' answers, and a text per rank without one. Raises CommandRefused or HookError."""
        hooks = self._hooks.chosen(ranks)
        if not hooks:
            raise CommandRefused("no rank is running")
        if self._run.plan.hook and self._run.plan.launcher == "torchrun":  # otherwise no hook will connect
            await asyncio.gather(*(hook.heard() for hook in hooks))
        acks = await asyncio.gather(*(hook.change(op, **fields) for hook in hooks), return_exceptions=True)
        good = {hook.rank: ack for hook, ack in zip(hooks, acks, strict=True) if isinstance(ack, dict)}
        silent = [str(ack) for ack in acks if isinstance(ack, HookError)]
        if not good:
            raise HookError(f"{silent[0]}; --restart sets the level through the environment instead")
        return good, silent

    def _go_back_after(
        self, seconds: float | None, ranks: tuple[int, ...], env: dict[str, str] | None = None
    ) -> None:
        if self._back is not None:
            self._back.cancel()
            self._back = None
        if seconds is not None:
            self._back = self._run.parts.once("nccl-level", self._go_back(seconds, ranks, env))

    async def _go_back(self, seconds: float, ranks: tuple[int, ...], env: dict[str, str] | None) -> None:
        """Reset the level after some seconds.

        Ranks know their previous level, unless they started with the limited one (`env`).
        """
        await asyncio.sleep(seconds)
        still = tuple(rank for rank in ranks if rank in self._hooks.by_rank)
        standard = env or standing(self._run.plan.env, self._run.state.attempts)
        level, text = standard["NCCL_DEBUG"], ""
        if still:
            asked = self._ask(still, "nccl", env=env) if env else self._ask(still, "back")
            try:
                answers, silent = await asked
                level = next(iter(answers.values())).get("debug") or level
                text = "; ".join(["", *silent])
            except HookError as error:
                text = f" at the next start only: {error}"
        self._run.emit(NcclChanged(level, "", still, True, f"NCCL_DEBUG is back at {level}{text}", None))

    def _report(self, command: SetNccl, level: str, ranks: tuple[int, ...], live: bool, text: str) -> None:
        until = None if command.seconds is None else clock.now() + command.seconds
        subsys = parse_subsys(command.subsys)
        self._run.emit(NcclChanged(level, subsys, ranks, live, text, until))


def _same(last: NcclChanged, env: Mapping[str, str]) -> bool:
    """Return True if the environment has this level. A level that was reset names no subsystems."""
    return last.level == env["NCCL_DEBUG"] and last.subsys in ("", env["NCCL_DEBUG_SUBSYS"])


def _span(command: SetNccl) -> str:
    return "" if command.seconds is None else f" for {command.seconds:g} s"


# Query NCCL's RAS, rarely and only if it is safe. Its answer is a hint in addition to the detectors' evidence.


EVERY_S = 10.0
"""Shortest time between two queries, in seconds."""
WAITS_S = 10.0
"""Seconds that a rank must have waited in a collective before a query."""
LIMIT_S = 8.0
ANSWERS_S, ASKED = 1.0, 8
"""Seconds until a living process answers, and the number of tries."""
LARGEST = 8 << 20
ID = "nccl-ras"


def refusal(state: RunState, now: float) -> str:
    """Return why RAS must not be queried now, or "". Pure.

    Queries during an init, or of NCCL before 2.28, have crashed ranks (NVIDIA/nccl #1669, #1718, #1996, #2346).
    """
    ranks = state.ranks
    if not ranks or any(rank.phase is not RankPhase.RUNNING for rank in ranks.values()):
        return "not every rank runs"
    oldest = min(parse_version(rank.nccl_version or "") for rank in ranks.values())
    if not oldest:
        return "the version of NCCL is not known on every rank"
    if oldest < ras.SINCE:
        return "RAS of NCCL before 2.28.7 has crashed jobs that asked it"
    pulses = {number: rank.pulse for number, rank in ranks.items()}
    if not _all_joined(
        {number: pulse for number, pulse in pulses.items() if pulse is not None}, len(ranks)
    ):
        return "not every rank has finished a first collective"
    if not any(_waits(pulse, now) for pulse in pulses.values()):
        return "no rank waits"
    return ""


def _all_joined(pulses: Mapping[int, Pulse], ranks: int) -> bool:
    """Return True if every rank has completed a collective, and none is in a group's first one (communicator setup)."""
    ended = [pulse for pulse in pulses.values() if any(group.completed > 0 for group in pulse.groups)]
    making = [pulse for pulse in pulses.values() if any(call.seq <= 1 for call in pulse.active)]
    return len(ended) == ranks and not making


def _waits(pulse: Pulse | None, now: float) -> bool:
    return pulse is not None and any(call.created and now - call.created > WAITS_S for call in pulse.active)


async def ask(port: int, hosts: tuple[str, ...] = ("::1", "127.0.0.1")) -> ras.RasReport:
    """Return one report of all communicators known to a process on `port`. Raises OSError, TimeoutError, RasError.

    The ranks of a node share the port, and the kernel connects to any of them, even to a stopped one. Without a quick
    answer, the next connection may reach another rank.
    """
    problem: OSError = OSError("no process listens")
    for host in hosts * ASKED:
        try:
            async with asyncio.timeout(ANSWERS_S):
                reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            problem = error
            continue
        try:
            if await _greeted(reader, writer):
                async with asyncio.timeout(LIMIT_S):
                    return ras.parse(await _status(reader, writer))
            problem = TimeoutError("no answer")
        finally:
            writer.close()
    raise problem


async def _greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Agree on the protocol. Return False without an answer."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            for line in ("CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json"):
                writer.write(line.encode() + b"\n")
                answer = (await reader.readline()).decode("utf-8", "replace").strip()
                if not answer.startswith(("SERVER PROTOCOL", "OK")):
                    raise ras.RasError(f"RAS answered {answer[:80]!r} to {line}")
    except TimeoutError:
        return False
    except ras.RasError:
        raise
    except ValueError:
        raise ras.RasError("RAS sends a line without an end") from None
    return True


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    writer.write(b"VERBOSE STATUS\n")
    parts, size = [], 0
    while block := await reader.read(1 << 16):
        parts.append(block)
        size += len(block)
        if size > LARGEST:
            raise ras.RasError("RAS sends without an end")
    return b"".join(parts).decode("utf-8", "replace")


class RasWatch:
    """Queries while ranks wait, and reports ranks without progress between two answers.

    Only the head's agent has one.
    """

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._before: ras.RasReport | None = None
        address = run.plan.env.get("NCCL_RAS_ADDR", "")
        self._port = int(address.rpartition(":")[2]) if address.rpartition(":")[2].isdigit() else None
        self._off = self._port is None or run.plan.env.get("NCCL_RAS_ENABLE") == "0"

    async def run(self) -> None:
        """Query until cancelled."""
        while not self._off:
            await asyncio.sleep(EVERY_S)
            if refusal(self._run.state, clock.now()):
                self._before = None
                self._report(None)
            else:
                await self._ask()

    async def _ask(self) -> None:
        assert self._port is not None
        try:
            now = await ask(self._port)
        except (OSError, TimeoutError, ras.RasError):
            return  # a hint only: no answer means no hint
        before, self._before = self._before, now
        self._report(judge(before, now, self._run.node) if before is not None else None)

    def _report(self, finding: Finding | None) -> None:
        if finding is None:
            self._run.findings.clear(ID, node=self._run.node)
        else:
            self._run.findings.raise_finding(finding)


def judge(before: ras.RasReport, now: ras.RasReport, node: int) -> Finding | None:
    """Compare two reports. Return None if nothing is wrong. Pure."""
    evidence = [
        f"{spans_text('rank', lag.ranks)} launched {lag.operation} {lag.count} times, most ranks {lag.most} times, and "
        f"nothing moved between two reports (communicator {lag.communicator})"
        for lag in ras.stuck(before, now)
    ]
    gone = [peer for peer in ras.missing(now) if peer in ras.missing(before)]
    for peer in gone:
        state = "is taken for dead" if peer.dead else "does not answer"
        where = " ".join(part for part in (f"pid {peer.pid}" if peer.pid else "", peer.host) if part)
        evidence.append(f"rank {peer.rank}{f' ({where})' if where else ''} {state}")
    if not evidence:
        return None
    ranks = {rank for lag in ras.stuck(before, now) for rank in lag.ranks} | {peer.rank for peer in gone}
    return Finding(
        ID,
        "note",
        f"NCCL's RAS names {spans_text('rank', ranks)} as behind or silent",
        role="hint",
        ranks=tuple(sorted(ranks)),
        node=node,
        remedy="a hint, no proof: RAS counts launches and does not count Send and Recv; compare these stacks",
        evidence=tuple(evidence),
    )
