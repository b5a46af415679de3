"""The tools of `distui mcp`: one row per verb. Its arguments become the words of the verb's command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import anyio
import anyio.to_thread
from mcp_types import ToolAnnotations
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from ...presets.env_names import first_refusal
from ..verb_table import VERBS
from . import skill
from .answers import Refused
from .launch_words import option_words
from .tool_arguments import REQUIRED, Argument, Option, plain, resolved
from .tool_server import ToolServer, Verbs, serve

Answer = dict[str, Any]
Texts = tuple[str, ...]


def _variables(given: dict[str, str] | None) -> dict[str, str] | None:
    """Return variables that a plan accepts, unchanged. Raises PydanticCustomError."""
    if refusal := first_refusal(given or {}):
        raise PydanticCustomError("name", "{refusal}", {"refusal": refusal})
    return given


_VARIABLES = Annotated[dict[str, str] | None, AfterValidator(_variables)]
_NATURAL = Annotated[int, Field(ge=0)]

RUN = Argument("run", str, "Name, id or unique prefix; left out: the only live run, else the newest", "")
ONE_RUN = RUN._replace(about="Name, id or unique prefix", default=REQUIRED)
PAGES = (
    Argument("at", str, "JSON pointer to a part of the answer, as in /ranks/0", ""),
    Argument("offset", _NATURAL, "Items to pass over of the list, object or text at `at`", 0),
)
WINDOW = (
    Argument("count", Annotated[int, Field(ge=1, le=500)], "Lines at most", 100),
    Argument(
        "skip",
        Annotated[int, Field(ge=0, le=20_000)],
        "Lines to pass over: `next_skip` of the answer before",
        0,
    ),
    Argument("order", Literal["newest", "oldest"], "The last lines, or the first ones", "newest"),
)
TYPES = Argument("types", Texts, "Only these types, as in RankChanged, FindingRaised, AttemptBegan", ())
AFTER = Argument("after", _NATURAL, "Only events with a larger `seq`", 0)
CURVES = Argument("curves", bool, "Also a value for each bucket of time", False)
RAW = Argument("raw", bool, "Also the answer of each rank as it came", False)
RANKS = Option("rank", "ranks", "Only these ranks; left out: all")

SCRIPT = Argument("script", str, "Path of the training script, on this machine or on all hosts")
ARGS = Argument("args", Texts, "Words of the script, as in ['--lr', '3e-4']", ())
RANKS_PER_NODE = Option("nproc_per_node", type=str | int)
HOSTS = Option(
    "hosts", about="Hosts, by ssh; of a launch one node each, the head first", type=Texts, default=()
)
SETTINGS = Option("set", "settings", "Fields of the preset, each FIELD=VALUE")
ENV = Argument("env", _VARIABLES, "Environment variables, name to value", None)
NCCL = Argument(
    "nccl", _VARIABLES, "NCCL's variables, name to value", None, lambda given: _pairs("nccl", given)
)
OPTIONS = Argument(
    "options",
    Texts,
    "Further options word by word, in full, as `distui launch --help` has them: --nnodes 2",
    (),
)
CWD = Argument("cwd", str, "Directory in which the command runs; left out: that of the server", "")
LAUNCH = (SCRIPT, ARGS, RANKS_PER_NODE, HOSTS, SETTINGS, ENV, NCCL, OPTIONS, CWD)

LOG_FILES = Argument("files", Texts, "Log files or directories to judge in place of a run", ())
FILES = Argument(
    "files", Texts, "Shell scripts, SkyPilot tasks, accelerate's YAML, DeepSpeed's JSON, presets, .py", ()
)
COMMAND = Argument("command", Texts, "A command word by word", ())
NODES_OF = Argument("run", str, "Check the nodes of this run", "")
PAIRS = Argument(
    "pairs", bool, "All-reduce between pairs of nodes", True, lambda on: [] if on else ["--no-pairs"]
)
LEVEL = Option("level", about="NCCL_DEBUG", type=Literal["VERSION", "WARN", "INFO", "TRACE"])
ACTION = Argument(
    "action",
    Literal["list", "show", "nccl"],
    "show: one with its values and their origins; nccl: what a setting or variable of NCCL does",
    "list",
    lambda action: [] if action == "list" else [action],
    leads=True,
)
TEXT = Argument(
    "text", Annotated[str, Field(min_length=1)], "The note", REQUIRED, lambda text: [f" {text}"], leads=True
)
"""The blank keeps a text with a leading dash from being an option."""


def _pairs(flag: str, given: Mapping[str, str] | None) -> list[str]:
    return [f"--{flag}={name}={value}" for name, value in (given or {}).items()]


class Call:
    """One call of a tool."""

    def __init__(
        self, tool: Tool, arguments: Sequence[Argument], verbs: Verbs, given: dict[str, Any]
    ) -> None:
        self.tool, self.verbs, self.given = tool, verbs, given
        self._arguments = arguments

    def words(self, *rest: str, leading: Sequence[str] = ()) -> list[str]:
        """Return the verb's command line without its run; `leading` precedes the options, `rest` follows them."""
        options: list[str] = []
        first = [self.tool.verb, *leading]
        for argument in self._arguments:
            value = self.given.get(argument.name)
            if value and argument.executes:
                self.verbs.executes(argument.executes)
            (first if argument.leads else options).extend(argument.words(value))
        return [*first, *WORDS.get(self.tool.verb, ()), "--json", *options, *rest]

    async def document(self, words: Sequence[str], run: str | None = None) -> Answer:
        """Execute the verb and return its JSON; of a tool that only reads, the part that the caller wants."""
        given = self.given
        where = {"cwd": given.get("cwd", ""), "env": given.get("env")}
        if not self.tool.reads:
            return await self.verbs.command(words, run, **where)
        whole, shorten = SHORTENED.get(self.tool.verb, ("", None))
        shown = None if given.get(whole) else shorten
        limit_s = LIMITS_S.get(self.tool.verb, 120.0)
        return await self.verbs.document(
            words, run, given["at"], given["offset"], limit_s=limit_s, shown=shown, **where
        )

    async def lines(self, words: Sequence[str], wanted: Callable[[Any], bool]) -> Answer:
        """Execute a verb that prints a line per object, and return a window of the lines."""
        given = self.given
        newest = given["order"] == "newest"
        return await self.verbs.lines(words, given["run"], wanted, given["skip"], given["count"], newest)

    async def files(self, words: Sequence[str]) -> list[str]:
        """Return files and folders that can be read to their end. Raises Refused for a pipe or a device."""
        for word in words:
            try:
                about = await anyio.to_thread.run_sync(
                    os.stat, os.path.join(self.given.get("cwd", ""), word)
                )
            except (OSError, ValueError):
                continue  # the verb reports the error
            if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):
                raise Refused(f"{word!r} is a pipe or a device, which may never end: name a file")
        return list(words)

    async def launched(self) -> list[str]:
        """Return the end of a command line of launch, plan and lint. Raises Refused."""
        given = self.given
        options = option_words(self.tool.verb, given["options"], control=self.verbs.control)
        return [*options, "--", *await self.files([given["script"]]), *given["args"]]


async def _simple(call: Call) -> Answer:
    return await call.document(call.words(), call.given.get("run"))


async def _launch(call: Call) -> Answer:
    return await call.document(call.words(*await call.launched()))


async def _doctor(call: Call) -> Answer:
    run = call.given["run"]
    return await call.document(call.words(leading=plain([run] if run else [], "run")))


async def _diagnose(call: Call) -> Answer:
    files = call.given["files"]
    if not files:
        return await _simple(call)
    return await call.document(call.words(leading=plain(await call.files(files), "file")))


async def _lint(call: Call) -> Answer:
    given = call.given
    if given["files"]:
        files = plain(await call.files(given["files"]), "file")
        return await call.document(["lint", *files, "--json"])
    if given["command"] or not given["preset"]:
        return await call.document(["lint", "--json", "--", *given["command"]])
    return await _launch(call)


async def _logs(call: Call) -> Answer:
    given = call.given
    tail = [f"--tail={given['skip'] + given['count'] + 1}"] if given["order"] == "newest" else []
    return await call.lines(call.words(*tail), lambda line: True)


async def _events(call: Call) -> Answer:
    types, after = call.given["types"], call.given["after"]

    def wanted(line: Any) -> bool:
        kind = line.get("event", {}).get("type") if isinstance(line, dict) else None
        return (not types or kind in types) and (not after or line.get("seq", 0) > after)

    return await call.lines(call.words(), wanted)


async def _wait(call: Call) -> Answer:
    words = [word for word in call.words() if word != "--json"]
    return await call.verbs.wait(words, call.given["run"], call.given["timeout"] + 60)


def _without_curves(document: Any) -> Any:
    """Return metrics without their values per bucket; the names of `list` stay."""
    if isinstance(document, list):
        return document
    curves = ("means", "lows", "highs", "samples")
    series = [
        {name: value for name, value in row.items() if name not in curves} for row in document["series"]
    ]
    return document | {"series": series}


def _merged(document: Any) -> Any:
    """Return a dump without the individual answers of ranks."""
    return {name: value for name, value in document.items() if name != "data"}


SHORTENED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "metrics": ("curves", _without_curves),
    "dump": ("raw", _merged),
}
"""Tool → the argument for the whole answer, and what leaves out the rest."""
LIMITS_S = {"diagnose": 300.0, "doctor": 600.0}
"""Maximum seconds of a tool that reads, if not 120."""
WORDS = {"launch": ("--detach",), "rerun": ("--detach",), "restart": ("--yes",), "stop": ("--yes",)}
"""Options that each call of a tool has."""
CHANGES = frozenset(("launch", "rerun", "restart", "nccl", "signal", "profile", "note", "tag", "stop"))
"""Tools that start or change a run."""
DESTRUCTIVE = frozenset(("restart", "nccl", "signal", "stop"))
"""Tools that may end ranks; `nccl` by its `restart`."""
OPEN_WORLD = frozenset(("ls", "diff", "plan", "lint", "doctor", "launch", "rerun"))
"""Tools that connect to hosts that the caller names, or execute a program."""


class Tool(NamedTuple):
    """A tool: the verb of its name, with some of the verb's options."""

    verb: str
    own: tuple[Argument | Option | str, ...]
    """Its arguments but PAGES; a text is the name of an option."""
    about: str = ""
    """Sentences after the verb's own description."""
    answer: Callable[[Call], Awaitable[Answer]] = _simple

    @property
    def reads(self) -> bool:
        """Whether it neither starts nor changes a run."""
        return self.verb not in CHANGES

    @property
    def hints(self) -> ToolAnnotations:
        """Return what a client may tell its user about the tool."""
        return ToolAnnotations(
            read_only_hint=self.reads,
            destructive_hint=self.verb in DESTRUCTIVE,
            open_world_hint=self.verb in OPEN_WORLD,
        )

    @property
    def description(self) -> str:
        """Return the verb's own description, the sentences of the tool, and the meaning of exit code 1."""
        verb = VERBS[self.verb]
        failure = verb.exits.failure
        of_option = "--" in failure  # tools do not have that option
        code = f"exit_code 1: {failure}." if failure and self.reads and not of_option else ""
        return " ".join(filter(None, (f"{verb.about[0].upper()}{verb.about[1:]}.", self.about, code)))

    def arguments(self) -> tuple[Argument, ...]:
        """Return all arguments."""
        is_document = self.reads and self.answer not in (_logs, _events, _wait)
        return resolved(self.verb, (*self.own, *PAGES) if is_document else self.own)


TOOLS = (
    Tool("ls", (Option("host", "hosts"),), "The newest first: state, ranks, step, worst finding."),
    Tool(
        "status",
        (RUN,),
        "Plan, training progress, nodes, ranks, GPUs, findings, attempts. `run` may also be the file of an exported "
        "bundle, as in the other tools that read.",
    ),
    Tool(
        "diagnose",
        (RUN, LOG_FILES),
        "Why a run hangs, is slow or failed: findings of its detectors (`live`), and the first cause in its logs.",
        _diagnose,
    ),
    Tool(
        "logs",
        (
            RUN,
            RANKS,
            Option("stream", "streams", "log: of runner and agent", default=("out", "err")),
            *("grep", "since", "attempt", "node"),
            *WINDOW,
        ),
        "A window of lines of all attempts, merged by time: each with `time`, `attempt`, `rank`, `stream`, `text`. "
        "`next_skip` of the answer, given as `skip`, asks for the lines before these (order oldest: after these).",
        _logs,
    ),
    Tool(
        "events",
        (RUN, TYPES, AFTER, *WINDOW),
        "What happened and when: each event with `seq`, `time` and its fields.",
        _events,
    ),
    Tool(
        "metrics",
        (
            RUN,
            Option("metric", "metrics"),
            "list",
            "last",
            "since",
            "until",
            RANKS,
            Option("gpu", "gpus"),
            "fold",
            CURVES,
        ),
        "Newest, smallest, mean and largest value of each series (GPU, rank, host, training) in a window.",
    ),
    Tool("dump", (RUN, Option("what", about="flight: collectives", default="stacks"), RANKS, RAW)),
    Tool(
        "wait",
        (
            RUN,
            Option("until", about="healthy: every rank has made a step"),
            Option("timeout", type=Annotated[float, Field(gt=0, le=3600)], default=60.0),
        ),
        "`reached` is false if it did not come: with `timed_out` it still may; with `lost` or neither it never will.",
        _wait,
    ),
    Tool("diff", ("a", "b", Option("all", "same"))),
    Tool(
        "plan",
        (Option("preset", default=REQUIRED), *LAUNCH),
        "Commands of ranks, environment with origins, findings.",
        _launch,
    ),
    Tool(
        "lint",
        (
            Option("preset", type=str, default=""),
            SCRIPT._replace(default=""),
            *(ARGS, RANKS_PER_NODE, SETTINGS, OPTIONS, FILES, COMMAND, CWD),
        ),
        "A launch (preset and script), files, or a command; nothing is executed.",
        _lint,
    ),
    Tool(
        "doctor",
        (HOSTS, NODES_OF, Option("python", executes="the interpreter that `python` names"), PAIRS),
        "Driver, torch, NCCL, network, clocks.",
        _doctor,
    ),
    Tool("presets", (ACTION, "name", SETTINGS)),
    Tool(
        "advise",
        (
            Option("gpus", default=REQUIRED),
            *(
                "params",
                Option("script", executes="the file that `script` names"),
                "nodes",
                "seq",
                "micro_batch",
            ),
            *("recompute", "kind", "format", "precision", "lora", "qlora", "experts", "top_k", "active"),
            *("gpu_memory", CWD),
        ),
        "Returns the command that launches the simplest.",
    ),
    Tool(
        "launch",
        (Option("preset", default=REQUIRED), *LAUNCH, "name"),
        "It returns at once: `run`, `name`, `path`. `plan` shows before what it does.",
        _launch,
    ),
    Tool(
        "rerun",
        (ONE_RUN, SETTINGS, ENV, "unset", "name"),
        "It returns at once. A run that is live needs another `name`.",
    ),
    Tool(
        "restart",
        (ONE_RUN, ENV, "unset", "save_first", "reachable"),
        "Every rank, with a changed environment if one is given. Work since a checkpoint is lost.",
    ),
    Tool("nccl", (ONE_RUN, LEVEL, "subsys", "seconds", RANKS, "restart"), "Live if its NCCL allows that."),
    Tool(
        "signal",
        (ONE_RUN, "signal", RANKS, Option("yes", about="Send it also if it ends a rank")),
        "One that would end a rank is refused unless `yes` is set.",
    ),
    Tool(
        "profile",
        (
            ONE_RUN,
            RANKS,
            Option("steps", type=Annotated[int, Field(ge=1, le=100)]),
            Option("timeout", type=Annotated[float, Field(gt=0, le=500)]),
        ),
        "Shares of a step, idle time, slowest rank, operators.",
    ),
    Tool("note", (ONE_RUN, TEXT), "It takes the place of the one before."),
    Tool("tag", (ONE_RUN, Option("tags", "add"), "remove"), "`prune` leaves a run with the tag keep."),
    Tool("stop", (ONE_RUN, "grace")),
)


def serve_tools(*, control: bool) -> int:
    """Serve until stdin is closed; return the exit status."""
    return anyio.run(serve, server(control=control))


def server(*, control: bool) -> ToolServer:
    """Return a server with its tools; `control` includes those that start and change runs."""
    verbs, made = Verbs(control=control), ToolServer()
    for tool in TOOLS:
        if tool.reads or control:
            _offer(made, tool, verbs)
        else:
            made.withhold(tool.verb)
    made.resource("distui://skill", name="SKILL.md", mime_type="text/markdown")(skill)
    return made


def _offer(made: ToolServer, tool: Tool, verbs: Verbs) -> None:
    arguments = tool.arguments()

    async def call(**given: Any) -> Answer:
        return await tool.answer(Call(tool, arguments, verbs, given))

    made.offer(tool.verb, call, tool.description, arguments, tool.hints)
