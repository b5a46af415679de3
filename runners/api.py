"""distui from Python: launch runs, find them, wait for them, read their logs, profile, restart and stop them.

    from distui.runners import api

    run = api.launch("train.py", "--lr", "1e-3", preset="ddp", nproc_per_node=2)
    run.wait("running")
    run.restart(env={"NCCL_DEBUG": "INFO"})
    for line in run.logs(ranks=[0]):
        print(line)
    run.stop()

Every call blocks until it is complete. A wrong argument type raises TypeError, every other problem a
`distui.runners.run.errors.RunError`; both have a text of one sentence. A run outlives the program that launched it.
If an event loop is already running (a notebook), the calls work in a thread.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from ..presets.finding import PlanError, PresetError
from ..presets.plurals import plural
from ..presets.request import REQUEST_OPTIONS, Named, Request
from ..presets.worker_group import env_refusal
from .launch.hosts import check_hosts
from .launch.prepare import prepare
from .launch.words import nccl_pairs
from .logs.choice import check_there, choose
from .logs.merging import MergedLogs, prefixes
from .node import agentless, local_agent, run_following
from .node.local_agent import open_link
from .reports import profile_report
from .reports.profile_report import Profiled
from .reports.status_document import RunStatus, status_json
from .run import environment, run_directories
from .run.errors import NoSuchRunError, RunError, UnknownOutcomeError, UnreachableError
from .run.log_files import STREAMS, LogError, parse_file_id
from .run.model import CommandDone, Profile, RankPhase, Restart, RunPhase, Stop
from .run.wire.client import Link, LinkError, UnansweredError, new_id

__all__ = ["RefusedError", "Run", "attach", "execute", "launch", "runs"]

T = TypeVar("T")
UNTIL = {
    "running": "every rank has a process",
    "healthy": "every rank has made a step",
    "done": "it has ended",
}
"""Goals of `Run.wait`, with their meanings."""


class RefusedError(RunError):
    """The run refused the command or could not execute it; the text is its answer."""

    code = 1


# -----------------------------------------------------------------------------------------------------------
# Types of all calls' arguments, by name. A reader returns the value in the form for use. Its exception (TypeError,
# ValueError) has the first half of the message, and `Argument.takes` the second.


Reader = Callable[[str, Any], Any]
"""Function of a value's place in the arguments ("ranks[1]") and the value."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Rules of one argument, shared by all calls."""

    read: Reader
    takes: str
    """Text that says which values to pass."""


def checked(**given: Any) -> dict[str, Any]:
    """Return the arguments by name, in the form for use. Raises TypeError for a wrong type, else RunError."""
    return {name: _checked(name, value) for name, value in given.items()}


def _checked(name: str, value: Any) -> Any:
    argument = ARGUMENTS.get(name) or OF_TYPE[TYPES[name]]
    try:
        return argument.read(name, value)
    except TypeError as error:
        raise TypeError(f"{error}: pass {argument.takes}") from None
    except ValueError as error:
        raise RunError(f"{error}: pass {argument.takes}") from None


def _type_error(where: str, value: object) -> TypeError:
    return TypeError(f"{where} is {'None' if value is None else f'of type {type(value).__name__}'}")


def _shown(value: object) -> str:
    """Representation of a value that is no secret, short enough for a sentence."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return "so large a number"
    return text if len(text) <= 60 else f"{text[:59]}…"


def _text(where: str, value: Any) -> str:
    """Return a string that plans and commands can contain; it may be a secret, so messages never show it."""
    if not isinstance(value, str):
        raise _type_error(where, value)
    if "\0" in value:
        raise ValueError(f"{where} holds a NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} is not UTF-8 text") from None
    return str.__str__(value)


def _name(where: str, value: Any) -> str:
    text = _text(where, value)
    if not text.strip():
        raise ValueError(f"{where} is empty")
    return text


def _word(where: str, value: Any) -> str:
    """Return a string, or a path as a string."""
    return _text(where, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _path(where: str, value: Any) -> str:
    return _name(where, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _command(where: str, value: Any) -> tuple[str, ...]:
    if not value:
        raise ValueError(f"{where} is empty")
    return (
        _path(f"{where}[0]", value[0]),
        *(_word(f"{where}[{at}]", value[at]) for at in range(1, len(value))),
    )


def _count(where: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise _type_error(where, value)
    number = operator.index(value)
    if not 0 <= number < 10**9:
        raise ValueError(f"{where} is {_shown(number)}")
    return number


def _count_or_word(where: str, value: Any) -> int | str:
    return _name(where, value) if isinstance(value, str) else _count(where, value)


def _seconds(where: str, value: Any) -> float:
    """Seconds as for `--timeout` and `--grace`; nan is refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _type_error(where, value)
    number: Any = value
    if not 0 <= number < 1e9:
        raise ValueError(f"{where} is {_shown(number)}")
    return float(number)


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _type_error(where, value)
    return value


def _among(words: Iterable[str]) -> Reader:
    def read(where: str, value: Any) -> str:
        text = _text(where, value)
        if text not in words:
            raise ValueError(f"{where} is {_shown(text)}")
        return text

    return read


def _many(read: Reader) -> Reader:
    """Reader for several values of one kind; refuses a single string and a dict."""

    def read_all(where: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise _type_error(where, value)
        return tuple(read(f"{where}[{at}]", item) for at, item in enumerate(value))

    return read_all


def _or_none(read: Reader) -> Reader:
    return lambda where, value: None if value is None else read(where, value)


def _variable(where: str, value: Any) -> str:
    """Return a variable name that a plan accepts. Raises RunError."""
    text = _text(where, value)
    if refused := env_refusal({text: ""}):
        raise RunError(refused)
    return text


def _variables(where: str, value: Any) -> dict[str, str]:
    """Variables by name; a value may be a secret, so messages never show it."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _type_error(where, value)
    names = {name: _variable(f"a name in {where}", name) for name in value}
    return {text: _text(f"{where}[{_shown(text)}]", value[name]) for name, text in names.items()}


def _mapping_of(read: Reader) -> Reader:
    """Reader of a dict with texts as its names."""

    def read_all(where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _type_error(where, value)
        return {
            _name(f"a name in {where}", name): read(f"{where}[{_shown(name)}]", value[name])
            for name in value
        }

    return read_all


def _nccl(where: str, value: Any) -> dict[str, str]:
    """Variables as for `--nccl`, optionally without NCCL_. Raises RunError for a wrong value or a misspelt name."""
    return nccl_pairs([f"{name}={text}" for name, text in _variables(where, value).items()])


_OF_NAMES = "whose names have letters, digits and _"
ARGUMENTS: Mapping[str, Argument] = {
    "script": Argument(_path, 'the path of a script, as in "train.py"'),
    "args": Argument(_many(_word), 'the words of the script one by one, as in "--lr", "1e-3"'),
    "command": Argument(_command, 'a program and its words one by one, as in "sh", "-c", "sleep 1"'),
    "preset": Argument(_name, 'the name of a preset, as in "ddp"'),
    "overrides": Argument(_many(_name), 'a list of FIELD=VALUE, as in ["mesh.tp=2"]'),
    "name": Argument(_or_none(_name), 'a name for the run, as in "first-try", or None'),
    "nproc_per_node": Argument(_or_none(_count_or_word), 'a number of ranks, "gpu", "cpu", "auto" or None'),
    "nnodes": Argument(_or_none(_count_or_word), 'a number of nodes, "MIN:MAX" or None'),
    "hosts": Argument(_many(_name), 'a list of host names, as in ["gpu0", "gpu1"]'),
    "env": Argument(_variables, f'a dict of texts {_OF_NAMES}, as in {{"NCCL_DEBUG": "INFO"}}'),
    "nccl": Argument(_nccl, f'a dict of texts {_OF_NAMES}, as in {{"DEBUG": "INFO"}}'),
    "python": Argument(_or_none(_path), "the path of an interpreter, or None"),
    "run": Argument(_or_none(_text), "a name, an id or a unique prefix of one, or None"),
    "until": Argument(_among(UNTIL), '"running", "healthy" or "done"'),
    "timeout": Argument(_or_none(_seconds), "seconds from 0 on, as in 30 or 2.5, or None"),
    "ranks": Argument(_many(_count), "a list of ranks from 0 on, as in [0, 1]"),
    "steps": Argument(_count, "a number of optimizer steps from 1 to 100"),
    "out": Argument(_or_none(_path), "the path of a directory, or None for the run's own"),
    "streams": Argument(_many(_among((*STREAMS, "log"))), 'a list of "out", "err", "nccl" and "log"'),
    "attempt": Argument(_or_none(_count), "the number of an attempt, or None for the newest"),
    "unset": Argument(_many(_variable), 'a list of variables by their names, as in ["NCCL_DEBUG"]'),
    "notify": Argument(
        _many(_name), 'a list of channels, as in ["team:hang,gave-up", "terminal"], or ["off"]'
    ),
    "reachable": Argument(_flag, "True or False"),
    "env_on": Argument(_mapping_of(_variables), 'a dict of dicts, as in {"gpu0?": {"NCCL_DEBUG": "INFO"}}'),
    "any_of": Argument(_many(_mapping_of(_text)), 'a list of dicts, as in [{"infra": "aws"}]'),
}

TYPES = {each.name: str(each.type) for each in fields(Request)}
OF_TYPE: Mapping[str, Argument] = {
    "bool": Argument(_flag, "True or False"),
    "bool | None": Argument(_or_none(_flag), "True, False or None"),
    "float | None": Argument(_or_none(_seconds), "seconds from 0 on, as in 30 or 2.5, or None"),
    "int | None": Argument(_or_none(_count), "a whole number from 0 on, or None"),
    "str": Argument(_name, "a text"),
    "str | None": Argument(_or_none(_path), "a text, or None"),
    "tuple[str, ...]": Argument(_many(_name), "a list of texts"),
    "Mapping[str, str]": Argument(_mapping_of(_text), "a dict of texts"),
}
"""Type of a field of `Request` → how it is read, if `ARGUMENTS` does not say it."""


def check_changes(env: Mapping[str, str], unset: Sequence[str]) -> None:
    """Raise RunError for environment changes that no rank can have, like `distui restart`."""
    both = [name for name in unset if name in env]
    if both:
        raise RunError(f"unset {both[0]!r} is also set: leave out one of the two")
    if refused := environment.refusal({**env, **dict.fromkeys(unset)}):
        raise RunError(refused)


# -----------------------------------------------------------------------------------------------------------
# The calls.


def launch(
    script: str | os.PathLike[str],
    *args: str | os.PathLike[str],
    preset: str = "ddp",
    overrides: Sequence[str] = (),
    name: str | None = None,
    nproc_per_node: int | str | None = None,
    nnodes: int | str | None = None,
    hosts: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    nccl: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Run:
    """Start `script` under a preset on this machine, on `hosts` by ssh, or elsewhere. Raises RunError and TypeError.

    `overrides`: preset fields, "mesh.tp=2"; the other arguments are those of the command line. `options`: its further
    options, by the fields of `presets.request.Request`, as in `adopt=True, grace_s=10, notify=["team:hang"]`.
    """
    given = checked(
        script=script,
        args=args,
        name=name,
        python=python,
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        env=env,
        nccl=nccl,
        preset=preset,
        overrides=overrides,
        **_options("launch", options),
    )
    named = [Named(host) for host in checked(hosts=hosts)["hosts"]]
    return _started(Request(hosts=tuple(check_hosts(named, "hosts")) if named else (), **given))


def execute(
    *command: str | os.PathLike[str],
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Run:
    """Start any command on this machine, and supervise it unchanged. `options`: as of `launch`.

    Raises RunError and TypeError.
    """
    further = _options("exec", options)
    return _started(Request(**checked(command=command, name=name, env=env, **further)))


def _options(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return `given` if each name is an option of the verb. Raises TypeError."""
    for name in given:
        option = REQUEST_OPTIONS.get(name)
        if option is None or verb not in option.verbs or option.alone:
            raise TypeError(f"{name} is no option of {verb}: pass fields of distui.presets.request.Request")
    return given


def _started(asked: Request) -> Run:
    """Prepare and start a run. Raises RunError."""

    def start() -> run_directories.Entry:
        try:
            prepared = prepare(asked)
        except (PresetError, PlanError) as error:
            raise RunError(str(error)) from None
        except OSError as error:
            if error.filename is None:
                raise
            why = f"cannot be used ({error.strerror}): pass another path"
            raise RunError(f"{_shown(error.filename)} {why}") from None
        return prepared.start()

    return Run(_apart(start))


def runs() -> list[Run]:
    """Every known run on this machine, newest first. Raises RunError."""
    return [Run(entry) for entry in run_directories.entries()]


def attach(run: str | None = None) -> Run:
    """Return the run of a name, an id or a unique prefix; for None, the only live one, else the newest.

    Raises NoSuchRunError and TypeError.
    """
    text: str | None = checked(run=run)["run"]
    if text is not None and not text.strip():
        raise NoSuchRunError(
            "the name of the run is empty: pass one of runs(), or None for the only live one"
        )
    return Run(run_directories.resolve(text))


@dataclass(frozen=True, slots=True)
class Run:
    """A run, live or ended."""

    entry: run_directories.Entry

    @property
    def id(self) -> str:
        return self.entry.record.run

    @property
    def name(self) -> str:
        return self.entry.record.name

    @property
    def path(self) -> Path:
        """Run directory: logs, journal, plan."""
        return self.entry.path

    @property
    def phase(self) -> RunPhase:
        """Phase from its files and processes."""
        return run_directories.phase(self.entry)

    def status(self) -> RunStatus:
        """Return the content of `distui status --json`; docs/cli.md has the fields. Raises RunError."""
        return status_json(self._linked(run_following.snapshot))

    def wait(self, until: str = "done", timeout: float | None = None) -> RunPhase:
        """Wait until the run reaches a goal or ends, and return its phase.

        `until`: "running" (every rank has a process), "healthy" (each has made a step), "done". Raises RunError and
        TypeError, and TimeoutError after `timeout` seconds.
        """
        given = checked(until=until, timeout=timeout)

        async def use(link: Link) -> RunPhase:
            async with asyncio.timeout(given["timeout"]):
                state = await run_following.follow_until(link, given["until"])
            if not state.phase.ended and (until == "done" or not run_following.reached(state, until)):
                whys = [finding.text for finding in state.findings.values() if finding.id == "no-agent"]
                raise UnreachableError(whys[0] if whys else f"no agent serves {self.name}")
            return state.phase

        try:
            return self._linked(use)
        except TimeoutError:
            far = f"{self.name} is not {until} ({UNTIL[until]}) after {given['timeout']:g} s"
            raise TimeoutError(f"{far}: {self._standing()}") from None

    def _standing(self) -> str:
        """Its state from its files, as the end of a sentence."""
        state = self.entry.state()
        if not state.attempts:
            return f"it is {self.phase}, and no rank was started yet"
        running = sum(rank.phase is RankPhase.RUNNING for rank in state.ranks.values())
        return f"it is {self.phase}, attempt {state.attempt}, {running} of {plural(len(state.ranks), 'rank')} running"

    def logs(
        self, ranks: Sequence[int] = (), streams: Sequence[str] = ("out", "err"), attempt: int | None = None
    ) -> Iterator[str]:
        """Iterate over the current log lines, without terminal control codes, of the newest attempt or of `attempt`.

        Lines of several files are in order of time, prefixed: "[rank 0] …". `streams`: "out", "err", "nccl", "log" (of
        runner and agent). Raises RunError, also for a rank or an attempt that the run does not have, and TypeError.
        """
        given = checked(ranks=ranks, streams=streams, attempt=attempt)

        async def use(link: Link) -> list[str]:
            state = await run_following.history(link)
            files = [file for name in state.log_sizes if (file := parse_file_id(name)) is not None]
            check_there(state, files, given["ranks"], given["attempt"])
            chosen = choose(files, **given)
            merged, prefix = MergedLogs(), prefixes(chosen)
            for file in chosen:
                merged.add(file, dated=len(chosen) > 1)
                merged.grow(file, state.log_sizes[file.id])
            lines = [line async for ready in merged.read(link) for line in ready]
            for name, problem in merged.problems.items():
                raise RunError(f"{name}: {problem}")
            return [f"{prefix(file)}{line.text}" for line, file in lines + merged.last_words(chosen)]

        try:
            return iter(self._linked(use))
        except LogError as error:
            raise RunError(str(error)) from None

    def restart(
        self, env: Mapping[str, str] | None = None, unset: Sequence[str] = (), reachable: bool = False
    ) -> str:
        """Restart every rank in place with a changed environment, wait until all run, and return the answer.

        `reachable`: continue without nodes that do not answer. Raises RefusedError, RunError and TypeError.
        """
        given = checked(env=env, unset=unset, reachable=reachable)
        check_changes(given["env"], given["unset"])
        command = Restart(new_id(), **given)
        return _accepted(self._linked(lambda link: link.send(command)))

    def profile(
        self,
        ranks: Sequence[int] = (),
        steps: int = 3,
        timeout: float | None = None,
        out: str | os.PathLike[str] | None = None,
    ) -> Profiled:
        """Record the same steps of `ranks` (all by default) with torch.profiler, as `distui profile --json` does.

        `timeout`: seconds; None: derived from the time per step. `out`: directory for the traces, instead of the run's.
        Raises RefusedError without a trace, RunError and TypeError.
        """
        given = checked(ranks=ranks, steps=steps, timeout=timeout, out=out)
        folder = None if given["out"] is None else Path(given["out"])
        asked = Profile(new_id(), tuple(sorted({*given["ranks"]})), given["steps"], given["timeout"])
        command = profile_report.checked(asked, folder)

        async def use(entry: run_directories.Entry, link: Link) -> Profiled:
            done, answered, fetched = await profile_report.profiled(entry, link, command, folder)
            if not done.ok:
                raise RefusedError(done.text)
            return profile_report.report(done, answered, fetched)

        return _apart(lambda: asyncio.run(local_agent.with_link(self.id, use)))

    def stop(self, grace_s: float | None = None) -> str:
        """End the run, even if its agent does not answer: SIGTERM, then SIGKILL after `grace_s` seconds.

        Raises RefusedError if a process is left, RunError and TypeError.
        """
        command = Stop(new_id(), **checked(grace_s=grace_s))

        async def stop() -> CommandDone:
            return await agentless.stop_run(self.entry, command, lambda text: None, open_link)

        try:
            return _accepted(_apart(lambda: asyncio.run(stop())))
        except UnansweredError as error:
            raise UnknownOutcomeError(f"{self.name}: {error}") from None
        except LinkError as error:
            raise UnreachableError(f"{self.name}: {error}") from None

    def _linked(self, use: Callable[[Link], Awaitable[T]]) -> T:
        return _apart(lambda: asyncio.run(local_agent.with_link(self.id, lambda entry, link: use(link))))


def _accepted(done: CommandDone) -> str:
    if not done.ok:
        raise RefusedError(done.text)
    return done.text


def _apart(do: Callable[[], T]) -> T:
    """Return `do()`. Call it in another thread if the current thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return do()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()
