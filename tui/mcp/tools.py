"""The tools of `distui mcp`: one function per verb; its arguments become the verb's words."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ...runners.inrank.env_changes import not_a_name
from . import skill
from .answers import Refused
from .launch_words import option_words
from .tool_server import Tool, ToolServer, Verbs, serve

Answer = dict[str, Any]
Texts = tuple[str, ...]
Numbers = Annotated[tuple[Annotated[int, Field(ge=0, lt=10**9)], ...], Field(max_length=10_000)]
Positive = Annotated[int, Field(ge=1, lt=10**9)]
Seconds = Annotated[float, Field(gt=0, lt=1e9)]

Run = Annotated[
    str, Field(description="Name, id or unique prefix; left out: the only live run, else the newest")
]
At = Annotated[str, Field(description="JSON pointer to a part of the answer, as in /ranks/0")]
Offset = Annotated[int, Field(ge=0, description="Items to pass over of the list, object or text at `at`")]
Ranks = Annotated[Numbers, Field(description="Only these ranks; left out: all")]
Skip = Annotated[
    int, Field(ge=0, le=20_000, description="Lines to pass over: `next_skip` of the answer before")
]
Count = Annotated[int, Field(ge=1, le=500, description="Lines at most")]
Order = Annotated[Literal["newest", "oldest"], Field(description="The last lines, or the first ones")]
Streams = Annotated[
    tuple[Literal["out", "err", "nccl", "log"], ...], Field(description="log: of runner and agent")
]
Grep = Annotated[str, Field(description="Only lines that match this regular expression")]
SinceLog = Annotated[str, Field(description="Only lines since 10m ago (s, h, d), or since 10:06:29")]
Attempt = Annotated[Positive | None, Field(description="Number of an attempt; left out: the newest")]
Node = Annotated[int | None, Field(description="Only this node", ge=0, lt=10**9)]
Types = Annotated[
    Texts, Field(description="Only these types, as in RankChanged, FindingRaised, AttemptBegan")
]
After = Annotated[int, Field(ge=0, description="Only events with a larger `seq`")]
Metrics = Annotated[
    Texts,
    Field(description="As in gpu.util or train.loss; gpu, rank, host, train: all of one; left out: all"),
]
Last = Annotated[str, Field(description="Only this long, as in 10m or 2h")]
Moment = Annotated[str, Field(description="10m (ago), 12:40, an ISO date or unix seconds")]
Gpus = Annotated[Numbers, Field(description="Only these GPUs")]
Fold = Annotated[bool, Field(description="One row a metric, of all ranks and GPUs")]
Curves = Annotated[bool, Field(description="Also a value for each bucket of time")]
Raw = Annotated[bool, Field(description="Also the answer of each rank as it came")]
Until = Annotated[
    Literal["running", "healthy", "done"], Field(description="healthy: every rank has made a step")
]
LogFiles = Annotated[Texts, Field(description="Log files or directories to judge in place of a run")]
Files = Annotated[
    Texts,
    Field(description="Shell scripts, SkyPilot tasks, accelerate's YAML, DeepSpeed's JSON, presets, .py"),
]
Command = Annotated[Texts, Field(description="A command word by word")]
Cwd = Annotated[str, Field(description="Directory in which the command runs; left out: that of the server")]


def _names(given: dict[str, str] | None) -> dict[str, str] | None:
    """Return the names unchanged; a name that contains "=" is invalid. Raises PydanticCustomError."""
    for name in given or {}:
        if refusal := not_a_name(name):
            raise PydanticCustomError("name", "{refusal}", {"refusal": refusal})
    return given


Variables = Annotated[
    dict[str, str] | None,
    Field(description="Environment variables, name to value"),
    AfterValidator(_names),
]
Script = Annotated[str, Field(description="Path of the training script, on this machine or on all hosts")]
Words = Annotated[Texts, Field(description="Words of the script, as in ['--lr', '3e-4']")]
Hosts = Annotated[Texts, Field(description="Hosts, by ssh; of a launch one node each, the head first")]
Settings = Annotated[Texts, Field(description="Fields of the preset, each FIELD=VALUE")]
Options = Annotated[
    Texts,
    Field(
        description="Further options word by word, in full, as `distui launch --help` has them: --nnodes 2"
    ),
]
Processes = Annotated[str | int, Field(description="Ranks on each node: a number, gpu, cpu or auto")]
Python = Annotated[str, Field(description="Interpreter of the training environment")]
ModelGpus = Annotated[str, Field(description="GPUs of one node, as in 8xA100-80GB")]
Parameters = Annotated[str, Field(description="Parameters of the model, as in 7B")]
ModelScript = Annotated[
    str, Field(description="PATH[:NAME] that defines the model, in place of params; it is executed")
]
GpuMemory = Annotated[float | None, Field(description="GB of each GPU, for models that are not listed")]
Unset = Annotated[Texts, Field(description="Variables to remove")]
SaveFirst = Annotated[bool, Field(description="Save a checkpoint before, as --save-on of the launch says")]
Reachable = Annotated[
    bool, Field(description="Go on without nodes that do not answer, if the run is elastic")
]
Level = Annotated[Literal["VERSION", "WARN", "INFO", "TRACE"], Field(description="NCCL_DEBUG")]
Subsys = Annotated[str, Field(description="NCCL_DEBUG_SUBSYS, as in COLL,NET")]
Revert = Annotated[Seconds | None, Field(description="Revert after so many seconds")]
ByRestart = Annotated[bool, Field(description="Apply it by a restart of the worker group")]
Signal = Annotated[str, Field(description="As in USR1 or TERM")]
Yes = Annotated[bool, Field(description="Send it also where it ends a rank")]
Grace = Annotated[Seconds | None, Field(description="Between SIGTERM and SIGKILL; left out: the preset's")]
Side = Annotated[str, Field(description="Run, RUN@ATTEMPT, HOST:RUN or the file of an exported bundle")]
Same = Annotated[bool, Field(description="Also what is the same")]
ProfiledSteps = Annotated[int, Field(ge=1, le=100, description="Optimizer steps")]
GiveUp = Annotated[
    Annotated[float, Field(gt=0, le=500)] | None, Field(description="Seconds; left out: by the pace")
]
NoteText = Annotated[str, Field(min_length=1, description="The note: it takes the place of the one before")]
Tags = Annotated[Texts, Field(description="Tags, as in ['good', 'baseline']")]
Name = Annotated[str, Field(description="Name of the run; left out: that of the script")]


def _options(**values: object) -> list[str]:
    """Return options as words: `save_first=True` is --save-first, `rank=(0, 1)` is --rank=0 --rank=1.

    None, False and "" omit an option.
    """
    words: list[str] = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, tuple | list):
            words += [f"{flag}={item}" for item in value]
        elif value is not None and value is not False and value != "":
            words.append(f"{flag}={value}")
    return words


def _plain(words: Sequence[str], what: str) -> list[str]:
    """Return words that no verb can mistake for options. Raises Refused."""
    for word in words:
        if word.startswith("-") or not word:
            raise Refused(f"{what} {word!r} is empty or begins with a dash: write a path as ./{word}")
    return list(words)


async def _files(words: Sequence[str], cwd: str = "") -> list[str]:
    """Return files and folders that can be read to their end. Raises Refused for a pipe or a device."""
    for word in words:
        try:
            about = await anyio.to_thread.run_sync(os.stat, os.path.join(cwd, word))
        except (OSError, ValueError):
            continue  # the verb reports the error
        if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
            raise Refused(f"{word!r} is a pipe or a device, which may never end: name a file")
    return list(words)


async def _launched(
    verbs: Verbs, verb: str, script: str, args: Sequence[str], options: Sequence[str], cwd: str
) -> list[str]:
    """Return the end of a command line of launch, plan and lint. Raises Refused."""
    written = option_words(verb, options, control=verbs.control)
    return [*written, "--", *await _files([script], cwd), *args]


def _placed(
    nproc_per_node: str | int,
    hosts: Sequence[str],
    settings: Sequence[str],
    nccl: Mapping[str, str] | None = None,
) -> list[str]:
    """Return options of launch, plan and lint that are arguments of the tool.

    HANDED_OVER passes the environment variables.
    """
    variables = [f"{name}={value}" for name, value in (nccl or {}).items()]
    return _options(nproc_per_node=nproc_per_node, hosts=",".join(hosts), set=settings, nccl=variables)


class ReadingTools:
    """Tools that neither start nor change runs."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def ls(self, hosts: Hosts = (), at: At = "", offset: Offset = 0) -> Answer:
        """List the runs of this machine (or of hosts), newest first: state, ranks, step, worst finding."""
        return await self._verbs.document(["ls", "--json", *_options(host=hosts)], None, at, offset)

    async def status(self, run: Run = "", at: At = "", offset: Offset = 0) -> Answer:
        """Return the state of a run now: plan, training progress, nodes, ranks, GPUs, findings, attempts.

        `run` may also be the file of an exported bundle, as in the other tools that read.
        """
        return await self._verbs.document(["status", "--json"], run, at, offset)

    async def diagnose(
        self, run: Run = "", files: LogFiles = (), at: At = "", offset: Offset = 0
    ) -> Answer:
        """Why a run hangs, is slow or failed: findings of its detectors (`live`), and the first cause in its logs.

        exit_code 1: a cause is an error, or the run is lost.
        """
        if files:
            words = ["diagnose", *_plain(await _files(files), "file"), "--json"]
            return await self._verbs.document(words, None, at, offset, limit_s=300.0)
        return await self._verbs.document(["diagnose", "--json"], run, at, offset, limit_s=300.0)

    async def logs(
        self,
        run: Run = "",
        ranks: Ranks = (),
        streams: Streams = ("out", "err"),
        grep: Grep = "",
        since: SinceLog = "",
        attempt: Attempt = None,
        node: Node = None,
        count: Count = 100,
        skip: Skip = 0,
        order: Order = "newest",
    ) -> Answer:
        """Lines that the ranks wrote, a window of them, merged by time: each with `time`, `rank`, `stream`, `text`.

        `next_skip` of the answer, given as `skip`, asks for the lines before these (order oldest: after these).
        """
        tail = skip + count + 1 if order == "newest" else None
        words = ["logs", "--json", *_options(rank=ranks, stream=streams, grep=grep, since=since)]
        words += _options(attempt=attempt, node=node, tail=tail)
        return await self._verbs.lines(words, run, lambda line: True, skip, count, order == "newest")

    async def events(
        self,
        run: Run = "",
        types: Types = (),
        after: After = 0,
        count: Count = 100,
        skip: Skip = 0,
        order: Order = "newest",
    ) -> Answer:
        """Return the journal of a run: what happened and when, each event with `seq`, `time` and its fields."""

        def wanted(line: Any) -> bool:
            kind = line.get("event", {}).get("type") if isinstance(line, dict) else None
            return (not types or kind in types) and (not after or line.get("seq", 0) > after)

        return await self._verbs.lines(["events", "--json"], run, wanted, skip, count, order == "newest")

    async def metrics(
        self,
        run: Run = "",
        metrics: Metrics = (),
        last: Last = "",
        since: Moment = "",
        until: Moment = "",
        ranks: Ranks = (),
        gpus: Gpus = (),
        fold: Fold = False,
        curves: Curves = False,
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Newest, smallest, mean and largest value of each series of a run (GPU, rank, host, training) in a window."""
        words = ["metrics", *_plain(metrics, "metric"), "--json"]
        words += _options(last=last, since=since, until=until, rank=ranks, gpu=gpus, fold=fold)
        shown = None if curves else _without_curves
        return await self._verbs.document(words, run, at, offset, shown=shown)

    async def dump(
        self,
        run: Run = "",
        what: Literal["stacks", "flight", "memory"] = "stacks",
        ranks: Ranks = (),
        raw: Raw = False,
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Ask the ranks of a live run where they are: stacks (equal ones once), collectives (flight), or memory."""
        words, shown = ["dump", what, "--json", *_options(rank=ranks)], None if raw else _merged
        return await self._verbs.document(words, run, at, offset, shown=shown)

    async def wait(
        self, run: Run = "", until: Until = "done", timeout: Annotated[Seconds, Field(le=3600)] = 60.0
    ) -> Answer:
        """Wait until every rank runs, has made a step, or the run has ended.

        `reached` is false if it did not come: with `timed_out` it still may; with `lost` or neither it never will.
        """
        return await self._verbs.wait(
            ["wait", f"--until={until}", f"--timeout={timeout:g}"], run, timeout + 60
        )

    async def diff(
        self, a: Side, b: Side = "", same: Same = False, at: At = "", offset: Offset = 0
    ) -> Answer:
        """Compare two runs, attempts or bundles: plan, environment, code, versions, speed, memory, first cause.

        Without `b` it is the record of `a`.
        """
        words = ["diff", *_plain([a, b] if b else [a], "run"), "--json", *_options(all=same)]
        return await self._verbs.document(words, None, at, offset)


def _without_curves(document: Any) -> Any:
    """Return metrics without their values per bucket."""
    curves = ("means", "lows", "highs", "samples")
    series = [
        {name: value for name, value in row.items() if name not in curves} for row in document["series"]
    ]
    return document | {"series": series}


def _merged(document: Any) -> Any:
    """Return a dump without the individual answers of ranks."""
    return {name: value for name, value in document.items() if name != "data"}


class CheckingTools:
    """Tools without a run: for checks before a launch, and of this machine."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def plan(
        self,
        preset: str,
        script: Script,
        args: Words = (),
        nproc_per_node: Processes = "",
        hosts: Hosts = (),
        settings: Settings = (),
        env: Variables = None,
        nccl: Variables = None,
        options: Options = (),
        cwd: Cwd = "",
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Return what `launch` would do, without starting it: commands of ranks, environment with origins, findings."""
        words = ["plan", *_plain([preset], "preset"), "--json"]
        words += _placed(nproc_per_node, hosts, settings, nccl)
        words += await _launched(self._verbs, "plan", script, args, options, cwd)
        return await self._verbs.document(words, None, at, offset, cwd=cwd, env=env)

    async def lint(
        self,
        preset: str = "",
        script: Script = "",
        args: Words = (),
        nproc_per_node: Processes = "",
        settings: Settings = (),
        options: Options = (),
        files: Files = (),
        command: Command = (),
        cwd: Cwd = "",
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Check a launch (preset and script), configuration files, or a command, before GPUs are paid for.

        It executes nothing. exit_code 1: an error is among the findings.
        """
        if files:
            words = ["lint", *_plain(await _files(files, cwd), "file"), "--json"]
        elif command or not preset:
            words = ["lint", "--json", "--", *command]
        else:
            words = ["lint", *_plain([preset], "preset"), "--json", *_placed(nproc_per_node, (), settings)]
            words += await _launched(self._verbs, "lint", script, args, options, cwd)
        return await self._verbs.document(words, None, at, offset, cwd=cwd)

    async def doctor(
        self,
        hosts: Hosts = (),
        run: Annotated[str, Field(description="Check the nodes of this run")] = "",
        python: Python = "",
        pairs: Annotated[bool, Field(description="All-reduce between pairs of nodes")] = True,
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Whether this machine (or hosts) can run a job: driver, torch, NCCL, network, clocks.

        exit_code 1: an error is among the findings.
        """
        if python:
            self._verbs.executes("the interpreter that `python` names")
        words = ["doctor", *_plain([run] if run else [], "run"), "--json"]
        words += _options(python=python, hosts=",".join(hosts), no_pairs=not pairs)
        return await self._verbs.document(words, None, at, offset, limit_s=600.0)

    async def presets(
        self,
        action: Literal["list", "show", "nccl"] = "list",
        name: str = "",
        settings: Settings = (),
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """List presets, show one with its values and their origins, or say what a setting or variable of NCCL does."""
        words = [
            "presets",
            *([] if action == "list" else [action]),
            *_plain([name] if name else [], "name"),
        ]
        return await self._verbs.document([*words, "--json", *_options(set=settings)], None, at, offset)

    async def advise(
        self,
        gpus: ModelGpus,
        params: Parameters = "",
        script: ModelScript = "",
        nodes: Positive = 1,
        seq: Positive = 2048,
        micro_batch: Positive = 1,
        recompute: bool = False,
        format: Literal["bf16", "mixed", "fp32"] = "bf16",
        gpu_memory: GpuMemory = None,
        cwd: Cwd = "",
        at: At = "",
        offset: Offset = 0,
    ) -> Answer:
        """Estimate which strategies fit into the memory of GPUs. Returns the command that launches the simplest.

        exit_code 1: none fits.
        """
        if script:
            self._verbs.executes("the file that `script` names")
        model = _options(
            params=params, script=script, seq=seq, micro_batch=micro_batch, recompute=recompute
        )
        place = _options(gpus=gpus, nodes=nodes, gpu_memory=gpu_memory, format=format)
        words = ["advise", "--json", *model, *place]
        return await self._verbs.document(words, None, at, offset, cwd=cwd)


class ControlTools:
    """Tools that start and change runs."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    async def launch(
        self,
        preset: str,
        script: Script,
        args: Words = (),
        nproc_per_node: Processes = "",
        hosts: Hosts = (),
        settings: Settings = (),
        env: Variables = None,
        nccl: Variables = None,
        name: Name = "",
        options: Options = (),
        cwd: Cwd = "",
    ) -> Answer:
        """Start a script under a preset, and return at once: `run`, `name`, `path`. `plan` shows before what it does."""
        words = ["launch", *_plain([preset], "preset"), "--json", "--detach", *_options(name=name)]
        words += _placed(nproc_per_node, hosts, settings, nccl)
        words += await _launched(self._verbs, "launch", script, args, options, cwd)
        return await self._verbs.command(words, None, cwd=cwd, env=env)

    async def restart(
        self,
        run: str,
        env: Variables = None,
        unset: Unset = (),
        save_first: SaveFirst = False,
        reachable: Reachable = False,
    ) -> Answer:
        """Restart every rank in place, with a changed environment if one is given. Work since a checkpoint is lost."""
        options = _options(unset=unset, save_first=save_first, reachable=reachable)
        words = ["restart", "--yes", "--json", *options]
        return await self._verbs.command(words, run, env=env)

    async def nccl(
        self,
        run: str,
        level: Level,
        subsys: Subsys = "",
        seconds: Revert = None,
        ranks: Ranks = (),
        restart: ByRestart = False,
    ) -> Answer:
        """Change NCCL_DEBUG of a running job, live where its NCCL allows that."""
        options = _options(**{"for": seconds}, subsys=subsys, rank=ranks, restart=restart)
        words = ["nccl", level, "--json", *options]
        return await self._verbs.command(words, run)

    async def signal(self, run: str, signal: Signal, ranks: Ranks = (), yes: Yes = False) -> Answer:
        """Send a signal to ranks; one that would end a rank is refused unless `yes` is set."""
        words = ["signal", *_plain([signal], "signal"), "--json", *_options(rank=ranks, yes=yes)]
        return await self._verbs.command(words, run)

    async def rerun(
        self,
        run: str,
        settings: Settings = (),
        env: Variables = None,
        unset: Unset = (),
        name: Name = "",
    ) -> Answer:
        """Repeat a launch as a new run, with changes, and return at once. A run that is live needs another `name`."""
        words = ["rerun", "--json", "--detach", *_options(set=settings, unset=unset, name=name)]
        return await self._verbs.command(words, run, env=env)

    async def profile(
        self, run: str, ranks: Ranks = (), steps: ProfiledSteps = 3, timeout: GiveUp = None
    ) -> Answer:
        """Record the same steps of ranks with torch.profiler: shares of a step, idle time, slowest rank, operators."""
        words = ["profile", "--json", *_options(steps=steps, ranks=ranks, timeout=timeout)]
        return await self._verbs.command(words, run)

    async def note(self, run: str, text: NoteText) -> Answer:
        """Write a note on a run; `status` and `ls` have the newest one."""
        return await self._verbs.command(
            ["note", "--json", f" {text}"], run
        )  # the space keeps a text with a leading dash from being an option

    async def tag(self, run: str, add: Tags = (), remove: Tags = ()) -> Answer:
        """Add tags to a run and take tags away; `prune` leaves a run with the tag keep."""
        words = ["tag", "--json", *_options(remove=_plain(remove, "tag")), *_plain(add, "tag")]
        return await self._verbs.command(words, run)

    async def stop(self, run: str, grace: Grace = None) -> Answer:
        """End a run: SIGTERM, then SIGKILL after the grace period."""
        return await self._verbs.command(["stop", "--yes", "--json", *_options(grace=grace)], run)


def serve_tools(*, control: bool) -> int:
    """Serve until stdin is closed; return the exit status."""
    return anyio.run(serve, server(control=control))


def server(*, control: bool) -> ToolServer:
    """Return a server with its tools; `control` includes those that start and change runs."""
    verbs, made = Verbs(control=control), ToolServer()
    for tool in tools(verbs):
        if tool.reads or control:
            made.offer(tool)
        else:
            made.withhold(tool)
    made.resource("distui://skill", name="SKILL.md", mime_type="text/markdown")(skill)
    return made


def tools(verbs: Verbs) -> tuple[Tool, ...]:
    """Return every tool, with the hints that clients get."""
    reading, checking, changing = ReadingTools(verbs), CheckingTools(verbs), ControlTools(verbs)
    return (
        Tool(reading.ls, reads=True, open_world=True),
        Tool(reading.status, reads=True),
        Tool(reading.diagnose, reads=True),
        Tool(reading.logs, reads=True),
        Tool(reading.events, reads=True),
        Tool(reading.metrics, reads=True),
        Tool(reading.dump, reads=True),
        Tool(reading.wait, reads=True),
        Tool(reading.diff, reads=True, open_world=True),
        Tool(checking.plan, reads=True, open_world=True),
        Tool(checking.lint, reads=True, open_world=True),
        Tool(checking.doctor, reads=True, open_world=True),
        Tool(checking.presets, reads=True),
        Tool(checking.advise, reads=True),
        Tool(changing.launch, reads=False, destructive=True, open_world=True),
        Tool(changing.rerun, reads=False, destructive=True, open_world=True),
        Tool(changing.restart, reads=False, destructive=True),
        Tool(changing.nccl, reads=False, destructive=True),
        Tool(changing.signal, reads=False, destructive=True),
        Tool(changing.profile, reads=False),
        Tool(changing.note, reads=False),
        Tool(changing.tag, reads=False),
        Tool(changing.stop, reads=False, destructive=True),
    )
