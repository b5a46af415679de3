"""The agent's connections to the hooks, the actual environment of each rank, and the environment of a new runner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from ...presets.finding import Finding
from ...presets.plan import Plan
from ...presets.render import revealed, unknown_words
from ...presets.secrets import MASK, SECRET_WORDS
from ..run import clock, environment, file_io, rpc
from ..run.environment import Kept, Started
from ..run.formatting import agreeing
from ..run.log_files import attempt_dir
from ..run.model import (
    AttemptStarted,
    Clause,
    EnvironmentChanged,
    EnvironmentReported,
    EnvironmentRestored,
    HookChanged,
    RankChanged,
    Wrapped,
    sentence,
)
from ..run.parts import Parts
from ..run.processes import catches, environ_of, marked, send_to_thread, state_of
from ..run.wire import client
from ..telemetry.signal_names import Reported
from .runner_process import ServedRun

LINE_LIMIT = 64 << 20
"""Longest answer in bytes. A flight recorder of 2,000 entries has a few MB."""
MOST_STACKS = 4 << 20
"""Most bytes of faulthandler's stacks of a rank."""
YOUNG_S = 10.0
"""Longest time from a rank's start to its hook, in seconds: an interpreter starts slowly on a busy machine."""
ROUND_S = 0.05
"""Seconds that a sample waits for step counts. Later answers belong to the next sample."""
ASK_STEPS = b'{"op":"steps","id":0,"signals":%d}\n'
"""The request of every second, with the newest known version of the training signals.

`HookClient.ask` numbers its requests from 1.
"""
STEPS_ANSWER = 64 << 10
"""Longest answer in bytes."""


class _Numbered(msgspec.Struct):
    id: int = -1


class _Counted(msgspec.Struct):
    """The used fields of the answer to ASK_STEPS."""

    count: int | None = 0
    """None until the script has an optimizer."""
    last: float = 0.0
    """Unix time of the newest step. 0 before the first."""
    faulthandler: bool | None = None
    signals: msgspec.Raw = msgspec.Raw()  # not `| None`: msgspec allows no union with Raw
    error: str | None = None


_numbered, _counted = msgspec.json.Decoder(_Numbered), msgspec.json.Decoder(_Counted)
_reported = msgspec.json.Decoder(Reported)


class HookError(Exception):
    """A rank did not answer. The text is the reason."""


class HookRefusal(HookError):
    """A rank refused a request. `why` does not name the rank."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank, self.why = rank, why


class HookClient:
    def __init__(
        self,
        path: Path,
        change: RankChanged,
        changed: Callable[[HookChanged], None],
        counted: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.attempt, self.pid = change.rank, change.attempt, change.pid
        self.stacks_file: Path | None = None
        self.path, self._changed, self._has_counted = path, changed, counted
        self._writer: asyncio.StreamWriter | None = None
        self._young_until, self._heard = clock.monotonic() + YOUNG_S, asyncio.Event()
        self._requests = rpc.OpenRequests[dict[str, Any]]()
        self.hello: dict[str, Any] = {}
        self.signals = 0
        """Number of SIGUSR2 sent to the hook's thread."""
        self.counts = False
        """True while an ASK_STEPS is unanswered."""
        self._steps: tuple[int | None, float] | None = None
        self.signals_version = 0
        self.reported: Reported | None = None
        """The newest training signals of its script."""
        self._owed: rpc.OpenRequest[dict[str, Any]] | None = None
        """The newest question of `pulse`, until it is answered."""

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def heard(self) -> None:
        """Wait for the hook's hello, at most until the rank exits or YOUNG_S have passed. Afterwards it has no hook."""
        await clock.wait_set(self._heard, max(0.0, self._young_until - clock.monotonic()))

    async def run(self) -> None:
        """Connect when the hook listens, and read until the rank exits. Cancel to stop."""
        while True:
            try:
                reader, writer = await client.connect(self.path, LINE_LIMIT)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
                    await self._converse(reader, writer)
            finally:
                writer.close()
            if self._writer is not None:
                self._writer = None
                self._fail()
                self._report("gone")
            await asyncio.sleep(0.1)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = msgspec.json.decode(await reader.readline())
        if hello.get("pid") != self.pid:
            return  # the previous attempt's socket, which ours will replace
        self.hello, self._writer = hello, writer
        self._heard.set()
        self._report("armed" if hello.get("armed") else "up")
        while line := await reader.readline():
            if self.counts and self._took_steps(line):
                continue
            message = msgspec.json.decode(line)
            if message.get("push") == "armed":
                self.hello |= {"armed": True, "nccl": message.get("nccl")}
                self._report("armed")
            elif message.get("push") == "made":
                self.hello["made"] = message.get("made")
                self._report("armed")
            self._requests.answer(message.get("id"), message)

    def _took_steps(self, line: bytes) -> bool:
        """Return True if the line answers ASK_STEPS. Raises msgspec.MsgspecError."""
        if len(line) > STEPS_ANSWER or _numbered.decode(line).id != 0:
            return False
        answer = _counted.decode(line)
        self.counts = False
        if answer.error is None:
            self._steps = answer.count, answer.last
            self.hello["faulthandler"] = answer.faulthandler
            if bytes(answer.signals):
                self._take_signals(answer.signals)
        self._has_counted()
        return True

    def _take_signals(self, raw: msgspec.Raw) -> None:
        """Decode training signals. Invalid ones are ignored, because a script may change anything in its process."""
        with contextlib.suppress(msgspec.MsgspecError):
            self.reported = _reported.decode(raw)
            self.signals_version = self.reported.version

    def _fail(self) -> None:
        self.counts, self._steps = False, None
        self._heard.set()
        self._requests.fail(HookError(f"rank {self.rank} is gone"))

    def _report(self, state: str) -> None:
        nccl = self.hello.get("nccl") or {}
        self._changed(
            HookChanged(
                self.attempt,
                self.rank,
                state,
                self.pid,
                nccl.get("debug"),
                nccl.get("live"),
                nccl.get("version"),
                made_of(self.hello.get("made")),
            )
        )

    async def ask(self, op: str, seconds: float = 5.0, **fields: Any) -> dict[str, Any]:
        """Send one request and return the answer. Raises HookError without a hook or answer, and for an error."""
        with self._question(op, fields) as question:
            answer = await self._answer(question, seconds)
        if "error" in answer:
            raise HookRefusal(self.rank, str(answer["error"]))
        return answer

    def _question(self, op: str, fields: dict[str, Any]) -> rpc.OpenRequest[dict[str, Any]]:
        """Send a request and return its pending answer. Raises HookError if there is no hook."""
        if self._writer is None:
            raise HookError(
                f"rank {self.rank} has no hook (it is a launcher, runs with --no-hook or python -I, or "
                "does not import torch)"
            )
        question = self._requests.open()
        self._writer.write(msgspec.json.encode({"op": op, "id": question.number, **fields}) + b"\n")
        return question

    async def _answer(self, question: rpc.OpenRequest[dict[str, Any]], seconds: float) -> dict[str, Any]:
        try:
            return await question.next(seconds)
        except TimeoutError:
            raise HookError(f"rank {self.rank} did not answer within {seconds:g} s") from None

    async def change(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request whose answer is NCCL's state, and report a changed state. Raises HookError."""
        answer = await self.ask(op, **fields)
        before = self.hello.get("nccl") or {}
        self.hello["nccl"] = answer
        if any(before.get(key) != answer.get(key) for key in ("live", "version")):
            self._report("armed" if self.hello.get("armed") else "up")
        return answer

    def ask_steps(self) -> None:
        """Request its step count, unless the previous request is unanswered."""
        if self._writer is not None and self.hello.get("armed") and not self.counts:
            self.counts = True
            self._writer.write(ASK_STEPS % self.signals_version)

    def take_steps(self) -> tuple[int | None, float] | None:
        """Return steps and Unix time of the newest step, if the hook has answered since the last call."""
        steps, self._steps = self._steps, None
        return steps

    async def stacks(self) -> str:
        """Return the Python stacks from the hook. Raises HookError."""
        try:
            return str((await self.ask("stacks", 2.0))["text"])
        except HookError as error:
            if self.up and self.hello and not self.hello.get("faulthandler"):
                raise HookError(f"{error}, and its script handles SIGUSR2 itself") from None
            raise

    def may_signal(self) -> bool:
        """Return True if SIGUSR2 to the hook's thread would write the stacks.

        The hook must be connected, and the script must have no handler for the signal.
        """
        return self.up and self.stacks_file is not None and bool(self.hello.get("faulthandler"))

    async def pulse(self, seconds: float, **fields: Any) -> dict[str, Any]:
        """Return the rank's pulse. A hook with an open question is not asked again, because it would answer all of them.

        Raises HookError without an answer in time.
        """
        if self._owed is None or self._owed.done:
            self._owed = self._question("pulse", fields)
        answer = await self._answer(self._owed, seconds)
        return {} if "error" in answer else answer  # an older hook, which shows that the rank lives

    async def stacks_by_signal(self) -> str:
        """Return Python stacks through faulthandler's signal, even while another thread holds the GIL. Raises HookError.

        The signal goes to the hook's thread: a signal to the process would interrupt a sleep, select or poll of the
        script. No signal is sent if the script has its own handler, or if the interpreter shuts down.
        """
        file, pid, thread = self.stacks_file, self.pid, self.hello.get("thread")
        if not self.may_signal() or file is None or pid is None:
            raise HookError(f"rank {self.rank} does not accept SIGUSR2")
        if state_of(pid) in ("T", "t"):
            raise HookError(f"rank {self.rank} (pid {pid}) is stopped, and answers nothing until SIGCONT")
        if not catches(pid, signal.SIGUSR2):  # the interpreter shuts down, or the script changed it
            raise HookError(f"rank {self.rank} (pid {pid}) no longer handles SIGUSR2")
        before = file.stat().st_size if file.exists() else 0
        if not isinstance(thread, int) or not send_to_thread(pid, thread, signal.SIGUSR2):
            raise HookError(f"rank {self.rank} (pid {pid}) has no hook thread that could handle SIGUSR2")
        self.signals += 1
        size = before
        for _ in range(20):
            await asyncio.sleep(0.1)
            now = file.stat().st_size if file.exists() else 0
            if now > before and now == size:
                return _stacks(file, before)
            size = now
        raise HookError(f"rank {self.rank} (pid {pid}) answered neither its hook nor SIGUSR2")


def _stacks(file: Path, begin: int) -> str:
    """Return faulthandler's output after an offset. Raises HookError."""
    try:
        return file_io.piece(file, begin, MOST_STACKS).decode("utf-8", "replace")
    except file_io.FileError as error:
        raise HookError(str(error)) from None


def made_of(reported: object) -> Wrapped | None:
    """Decode a hook's report on how a model was wrapped. None if it is missing or invalid."""
    try:
        return None if reported is None else msgspec.convert(reported, Wrapped, strict=False)
    except msgspec.ValidationError:
        return None


class Hooks:
    def __init__(
        self,
        run_dir: Path,
        socket_stem: str,
        changed: Callable[[HookChanged], None],
        parts: Parts,
        node: int = 0,
    ) -> None:
        self._run_dir, self._stem, self._changed, self._node = run_dir, socket_stem, changed, node
        self._parts = parts
        self.by_rank: dict[int, HookClient] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._all_counted = asyncio.Event()

    def follow(self, change: RankChanged) -> None:
        """Connect to the hook of a rank whose process began."""
        self.forget(change.rank)
        hook = HookClient(Path(f"{self._stem}.r{change.local_rank}"), change, self._changed, self._counted)
        hook.stacks_file = (
            self._run_dir / attempt_dir(self._node, change.attempt) / f"rank-{change.rank}.stacks"
        )
        self.by_rank[change.rank] = hook
        self._tasks[change.rank] = self._parts.start(f"hook-{change.rank}", hook.run)

    def keep(self, ranks: Collection[int]) -> None:
        """Forget all other ranks, after an attempt began or a launcher in the command took over."""
        for rank in self.by_rank.keys() - ranks:
            self.forget(rank)

    def forget(self, rank: int) -> None:
        """Forget a rank whose process ended."""
        task = self._tasks.pop(rank, None)
        if task is not None:
            task.cancel()
        hook = self.by_rank.pop(rank, None)
        if hook is not None:
            hook._fail()

    def chosen(self, ranks: tuple[int, ...]) -> list[HookClient]:
        """Return the hooks of some ranks, or of all for (). Raises HookError for a rank without one."""
        missing = [rank for rank in ranks if rank not in self.by_rank]
        if missing:
            raise HookError(f"there is no running rank {missing[0]}")
        return [self.by_rank[rank] for rank in sorted(ranks or self.by_rank)]

    def _counted(self) -> None:
        if not any(hook.counts for hook in self.by_rank.values()):
            self._all_counted.set()

    def ask_steps(self) -> None:
        """Request the step count of every rank that counts. `steps` collects the answers."""
        self._all_counted.clear()
        for hook in self.by_rank.values():
            hook.ask_steps()
        self._counted()

    async def steps(self) -> dict[int, tuple[int | None, float]]:
        """Return step count and Unix time of the last step of every rank that has answered within ROUND_S."""
        if not self._all_counted.is_set():
            late = asyncio.get_running_loop().call_later(ROUND_S, self._all_counted.set)
            await self._all_counted.wait()
            late.cancel()
        return {
            rank: steps for rank, hook in self.by_rank.items() if (steps := hook.take_steps()) is not None
        }


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
    for (rank, pid), env in zip(running.items(), inside, strict=True):
        outside = env if env is not None else environ_of(pid)
        if outside:  # otherwise it has exited
            by_rank[rank] = {name: _without_ours(name, outside.get(name)) for name in names}
    source = "hook" if by_rank and all(env is not None for env in inside) else "process"
    return RankEnvironments(by_rank, source)


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
        elif self._run.runner is not None:
            self._adopt(environ_of(self._run.runner.who.pid))

    def _adopt(self, runners: Mapping[str, str]) -> None:
        """Restore the environment of a run from a version without such a file, from its runner's initial environment."""
        if runners:
            self._launch = Kept(environment.of_launch(runners, {}), frozenset())
            environment.write(self._run.run_dir, self._launch.values)
            self._secrets |= environment.hidden(self._launch.values)

    def note(self, changes: Mapping[str, str | None], shown: Mapping[str, str | None]) -> None:
        """Journal the changes that the runner took in their visible form, and keep their secrets in memory."""
        if not changes:
            return
        self._run.emit(EnvironmentChanged(dict(shown)))
        self._before = dict(self._secrets)
        self._secrets |= {
            name: value
            for name, value in changes.items()
            if value is not None and environment.is_hidden(name, value)
        }

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
                {name: environment.shown(name, value) for name, value in changes.items()} if good else {},
                {
                    str(rank): {name: environment.shown(name, value) for name, value in env.items()}
                    for rank, env in differs.items()
                },
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
            has, asked = (
                environment.shown(name, differs[ranks[0]][name]),
                environment.shown(name, changes[name]),
            )
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
            remedy = f"`distui stop {run.record.name}` and launch again where that matters"
            run.findings.raise_finding(Finding(NOT_KEPT, "warning", text, node=run.node, remedy=remedy))
            launch = Kept(environment.of_launch(os.environ, run.plan.env), frozenset())
        started = environment.of_runner(launch, run.plan.env, run.state.changes, self._secrets)
        self._report_missing(started)
        words = {SECRET_WORDS: self._words} if self._words else {}
        return {**started.env, **words, "DISTUI_SOCKETS": run.stem}

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
