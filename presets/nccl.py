"""NCCL's variables (nccl.toml), levels and subsystems of its log, and named sets of settings (nccl_presets.toml)."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .finding import PlanError, did_you_mean, misspells, nearest, nearest_names
from .plurals import plural


class NcclError(ValueError):
    """A level or a list of subsystems that NCCL would not understand; the text is one sentence."""


LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
"""Values of NCCL_DEBUG, from the quietest. TRACE says more than INFO only in builds made for it."""

LATER_LEVELS = ("ATTN",)
"""Those of NCCL 2.32, which an older one takes for no level at all: taken, and never offered."""

NEWEST = "2.32"
"""The NCCL up to whose documentation the catalogue goes."""

DEFAULT_SUBSYS = "INIT,BOOTSTRAP,ENV"
"""What NCCL prints at INFO when NCCL_DEBUG_SUBSYS is not set."""

FLOOD_BYTES = 50e6
"""Bytes a second of a node's NCCL logs from which on a level that was set live is taken back."""

LINE_BYTES = 190
"""Of a line of COLL, with its pointers and stream; other lines are shorter."""


@dataclass(frozen=True, slots=True)
class Subsystem:
    """One name of NCCL_DEBUG_SUBSYS."""

    name: str
    since: str
    """NCCL version it came with."""
    text: str
    """What it prints and what that costs, in a sentence."""
    lines: float = 0.0
    """Lines a collective a rank on a running job; 0: it writes at start and end, or with each connection."""


SUBSYSTEMS = (
    Subsystem(
        "INIT", "2.3.4", "Start and end of every communicator and how long its parts took; a few lines."
    ),
    Subsystem("COLL", "2.3.4", "One line per collective per rank: very verbose.", lines=1),
    Subsystem(
        "P2P", "2.3.4", "How GPUs of one node reach each other; some lines for each pair at connect time."
    ),
    Subsystem("SHM", "2.3.4", "Shared memory between processes of a node; some lines at connect time."),
    Subsystem(
        "NET",
        "2.3.4",
        "Adapters found, the network chosen, connections and their errors; little once running.",
    ),
    Subsystem(
        "GRAPH", "2.5", "The topology found and the rings and trees laid over it; long, once at the start."
    ),
    Subsystem(
        "TUNING",
        "2.5",
        "Algorithm and protocol chosen for each size; from 2.22 a line for each collective.",
        lines=1,
    ),
    Subsystem(
        "ENV",
        "2.7",
        "Every variable that NCCL read, with its value; one line each, the effective settings.",
    ),
    Subsystem("ALLOC", "2.9.9", "Each allocation of memory with its size; many lines at the start."),
    Subsystem("CALL", "2.13", "Each call into NCCL, only together with TRACE; a flood.", lines=1),
    Subsystem("NVLS", "2.17", "NVLink SHARP: its groups and buffers; some lines at the start."),
    Subsystem("PROXY", "2.18", "The threads that serve the network; some lines for each connection."),
    Subsystem("BOOTSTRAP", "2.21", "How the ranks find each other over TCP; a few lines at the start."),
    Subsystem("REG", "2.21", "Registration of user buffers; a line for each buffer."),
    Subsystem("PROFILE", "2.22", "What NCCL's profiler notes; quiet without a profiler plugin."),
    Subsystem("RAS", "2.24", "NCCL's own health service: peers that come, go or fall silent; few lines."),
    Subsystem("DESTROY", "2.30.3", "How communicators are taken down; a few lines at the end."),
    Subsystem("ALLOC_HOST", "2.30.7", "Each allocation of host memory; many lines at the start."),
    Subsystem("ALL", "2.3.4", "Everything; a flood.", lines=2),
)


@dataclass(frozen=True, slots=True)
class NcclVariable:
    name: str
    kind: str = "text"
    """What it takes: "flag", "torch", "int", "number", "word", "level", "text", "debug", "mask" (see nccl.toml)."""
    scope: str = "restart"
    """When a change acts: "live", "communicator" (new ones) or "restart"."""
    since: str = ""
    """First NCCL version ("torch N": torch version) that has it; "" when it is older than the record."""
    default: str = ""
    """What NCCL does without it; "" when it decides by itself."""
    values: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    meaning: str = ""
    """What it does and when to touch it, in a sentence or two; "" for a variable of the sources alone."""
    until: str = ""
    """Last NCCL version that read it; "" while it is read."""


@functools.cache
def catalogue() -> Mapping[str, NcclVariable]:
    """Every known variable by name."""
    data = dict(_file())
    other, removed, _ = data.pop("other"), data.pop("removed"), data.pop("plugins")
    variables = {name: _variable(name, facts) for name, facts in data.items()}
    variables |= {name: NcclVariable(name, scope=scope) for scope, names in other.items() for name in names}
    variables |= {name: NcclVariable(name, until=last) for name, last in removed.items()}
    return variables


@functools.cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("nccl.toml").read_text("utf-8"))


def _variable(name: str, facts: Mapping[str, Any]) -> NcclVariable:
    return NcclVariable(name, **{**facts, "values": tuple(facts.get("values", ()))})


def covers(name: str) -> bool:
    """Whether `name` looks like one of these variables, and is to be checked."""
    return name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))


SCOPES = {
    "live": "follows a live switch",
    "communicator": "read for each new communicator",
    "restart": "read once in a process",
}
"""What `NcclVariable.scope` means."""


def described(name: str) -> list[NcclVariable]:
    """The variable of that name, or all that begin with it where it ends with _; NCCL_ may be left out."""
    full = full_name(name.upper())
    if full.endswith("_"):
        return [entry for entry in catalogue().values() if entry.name.startswith(full)]
    return [catalogue()[full]] if full in catalogue() else []


def facts(entry: NcclVariable) -> str:
    """What it takes, what it does by itself, which versions have it, and when a change acts."""
    values, maker = takes(entry), "" if entry.since.startswith("torch") else "NCCL "
    parts = [
        values and f"takes {values}",
        entry.default and f"default {entry.default}",
        entry.since and f"since {maker}{entry.since}",
        f"NCCL {entry.until} was the last that read it" if entry.until else SCOPES[entry.scope],
    ]
    return "; ".join(filter(None, parts))


def full_name(name: str) -> str:
    """`name` with the NCCL_ that a user may leave out."""
    return name if covers(name.upper()) or of_plugin(name) else f"NCCL_{name}"


def of_plugin(name: str) -> bool:
    """Whether `name` begins as the variables of a plug-in, or of a library or an image around NCCL, do."""
    return name.startswith(tuple(_file()["plugins"]["names"]))


def check(name: str, value: str) -> str | None:
    """What is surely wrong with setting the variable `name` to `value`, as a sentence; None when nothing is.

    A name that is not in the catalogue is right, as newer NCCLs and plug-ins have their own, unless it is the slip of
    a hand: of all pairs of names in the catalogue one is as alike as that. `doubt` has what is to be said of it.
    """
    entry = catalogue().get(name)
    if entry is None:
        return _slipped(name)
    try:
        if entry.kind == "debug":
            parse_level(value)
        elif entry.kind == "mask":
            parse_subsys(value)
    except NcclError as error:
        return str(error)
    return None if _fits(entry, value) else f"{name} takes {takes(entry)}, not {value!r}"


def slip(name: str) -> str:
    """The variable that `name` is but for capitals or `misspells`; "" where there is none, and for a right name."""
    if name in catalogue():
        return ""
    upper = name.upper()
    long = (
        near for near in _read() if len(near) >= len("NCCL_DEBUG")
    )  # among three letters one says little
    return upper if upper in catalogue() else next((near for near in long if misspells(upper, near)), "")


def _read() -> Iterator[str]:
    """The names that the newest versions read."""
    return (entry.name for entry in catalogue().values() if not entry.until)


def doubt(name: str) -> str:
    """Why setting the variable `name` may do nothing, as a sentence; "" where it is read, or is none of NCCL's."""
    entry = catalogue().get(name)
    if entry is not None:
        return f"{name} is no longer read: NCCL {entry.until} was the last that did." if entry.until else ""
    if not slip(name) and (of_plugin(name) or not covers(name)):
        return ""
    return (
        f"Neither NCCL up to {NEWEST} nor torch is known to read {name}: "
        "it does nothing, unless yours is newer or a plug-in reads it."
    )


def doubts(names: Iterable[str]) -> list[str]:
    """The doubts about those of `names` that are NCCL's, each with the name that was probably meant."""
    texts = {name: text for name in names if (text := doubt(name))}
    return [
        f"{text} Did you mean {near}?" if (near := likely(name)) else text for name, text in texts.items()
    ]


@functools.lru_cache(maxsize=1000)
def likely(name: str) -> str:
    """The variable that was probably meant by `name`, which is none; "" where none is like it.

    The words that both begin and end with do not count: INSPECTOR_ENABLE is not like WIN_ENABLE.
    """
    word = name.upper()[:60]
    if name in catalogue():
        return ""
    return slip(name) or next(
        (near for near in nearest_names(word, _read(), 0.75, 12) if _alike(word, near)), ""
    )


def _alike(word: str, name: str) -> bool:
    mine, others = word.split("_"), name.split("_")
    for at in (0, -1):
        while mine and others and mine[at] == others[at]:
            del mine[at], others[at]
    return bool(nearest("_".join(mine), ["_".join(others)], 0.6))


def parse_level(text: str) -> str:
    """One of LEVELS or LATER_LEVELS, however it is written. Raises NcclError."""
    level = text.strip().upper()
    if level not in (*LEVELS, *LATER_LEVELS):
        raise NcclError(
            f"{text!r} is not a level of NCCL_DEBUG: take {', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
        )
    return level


def parse_subsys(text: str) -> str:
    """The list as NCCL reads it: "INIT,NET", or "^COLL" for all but COLL; "" gives DEFAULT_SUBSYS.

    Raises NcclError for a name that NCCL would silently leave out.
    """
    wanted = text.strip().upper()
    if not wanted:
        return DEFAULT_SUBSYS
    names = [part.strip() for part in wanted.removeprefix("^").split(",")]
    for name in names:
        if name not in {subsystem.name for subsystem in SUBSYSTEMS}:
            raise NcclError(_unknown_subsystem(name))
    chosen = ",".join(dict.fromkeys(names))
    return f"^{chosen}" if wanted.startswith("^") else chosen


def subsystems(version: str | None = None) -> tuple[Subsystem, ...]:
    """The subsystems that NCCL `version` ("2.21.5") has; all of them when it is not known."""
    if version is None:
        return SUBSYSTEMS
    return tuple(subsys for subsys in SUBSYSTEMS if version_key(subsys.since) <= version_key(version))


def disk_reserve(total: int) -> int:
    """Bytes that are to stay free on a disk of `total` bytes: 5 %, and 2 GiB at least."""
    return max(total // 20, 2 << 30)


def flood_rate(level: str, subsys: str, collectives: float, ranks: int) -> float:
    """Bytes a second that `ranks` ranks write that call so many collectives a second; 0.0 where it is next to none.

    Raises NcclError for a level or a list that NCCL would not understand.
    """
    if parse_level(level) not in ("INFO", "TRACE"):
        return 0.0
    return sum(subsystem.lines for subsystem in _flooding(level, subsys)) * LINE_BYTES * collectives * ranks


def cost(level: str, subsys: str, collectives: float = 200.0, ranks: int = 8) -> str:
    """What a level costs, in words: "COLL: a line a collective a rank; at 200 collectives/s × 8 ranks ≈ 0.3 MB/s".

    "" where it writes only at the start, at the end, and with new connections. Raises NcclError.
    """
    rate = flood_rate(level, subsys, collectives, ranks)
    if not rate:
        return ""
    names = ", ".join(subsystem.name for subsystem in _flooding(level, subsys))
    lines = sum(subsystem.lines for subsystem in _flooding(level, subsys))
    each = "a line" if lines == 1 else f"{lines:g} lines"
    return (
        f"{names}: {each} a collective a rank; at {collectives:g} collectives/s × {plural(ranks, 'rank')} "
        f"≈ {rate / 1e6:{'.1f' if rate < 1e7 else '.0f'}} MB/s"
    )


def _flooding(level: str, subsys: str) -> list[Subsystem]:
    """The subsystems of a list, as `parse_subsys` takes it, that write for each collective."""
    wanted = parse_subsys(subsys)
    names = set(wanted.removeprefix("^").split(","))
    if wanted.startswith("^"):
        names = {subsystem.name for subsystem in SUBSYSTEMS} - names - {"ALL"}
    loud = [subsystem for subsystem in SUBSYSTEMS if subsystem.lines and subsystem.name in names]
    if any(subsystem.name == "ALL" for subsystem in loud):
        return [subsystem for subsystem in loud if subsystem.name == "ALL"]
    return [subsystem for subsystem in loud if subsystem.name != "CALL" or parse_level(level) == "TRACE"]


def version_key(version: str) -> tuple[int, ...]:
    """A version as numbers that compare; what is not a number ends it ("2.21.5+cuda12.4" → 2, 21, 5)."""
    numbers: list[int] = []
    for part in version.split("+", 1)[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _unknown_subsystem(name: str) -> str:
    if not name:
        return "the list of subsystems has an empty entry: write names with one comma between them"
    names = [subsystem.name for subsystem in SUBSYSTEMS]
    hint = did_you_mean(name, names) or f"there are {', '.join(names)}"
    return f"{name!r} is not a subsystem of NCCL: {hint}"


def _slipped(name: str) -> str | None:
    """Why a name that is not in the catalogue is not taken; None where it is."""
    near = slip(name)
    if not near and (covers(name) or of_plugin(name)):
        return None
    full = f"NCCL_{name.upper()}"
    near = near or (full if full in catalogue() else "")
    hint = f"did you mean {near}?" if near else "their names begin with NCCL_, TORCH_NCCL_ or TORCH_FR_"
    return f"{name} is no variable of NCCL or torch (plain env takes any): {hint}"


def takes(entry: NcclVariable) -> str:
    """What values `entry` takes, in words; "" for any."""
    match entry.kind:
        case "flag":
            return "0 or 1"
        case "torch":
            return "1 or 0"
        case "word" | "level" | "debug":
            return _choice(entry.values)
        case "int":
            return _range(entry)
        case "number":
            return "a number above 0"
        case "mask":
            return "a comma list of subsystems"
    return ""


def _fits(entry: NcclVariable, value: str) -> bool:
    """Whether `entry` takes `value`; NCCL_DEBUG and NCCL_DEBUG_SUBSYS have checks of their own."""
    match entry.kind:
        case "flag":
            return value in ("0", "1")
        case "torch":
            return value.lower() in ("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false")
        case "word":
            return value in entry.values
        case "level":
            return value.upper() in entry.values or value.isdecimal()
        case "int":
            return _in_range(entry, value)
        case "number":
            return _above_zero(value)
    return True


def _choice(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _in_range(entry: NcclVariable, value: str) -> bool:
    try:
        number = int(value, 0)
    except ValueError:
        return False
    return (entry.least is None or number >= entry.least) and (entry.most is None or number <= entry.most)


def _above_zero(value: str) -> bool:
    try:
        return 0 < float(value) < math.inf
    except ValueError:
        return False


def _range(entry: NcclVariable) -> str:
    if entry.least is not None and entry.most is not None:
        return f"a whole number from {entry.least} to {entry.most}"
    return "a whole number" if entry.least is None else f"a whole number of {entry.least} or more"


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclPreset:
    name: str
    when: str
    env: Mapping[str, str]

    @property
    def live(self) -> bool:
        """Whether a running process can be told all of it (NCCL 2.24 and newer)."""
        return all(catalogue()[name].scope == "live" for name in self.env)


@functools.cache
def nccl_presets() -> Mapping[str, NcclPreset]:
    """All of them, in the file's order."""
    data = tomllib.loads(resources.files(__package__).joinpath("nccl_presets.toml").read_text("utf-8"))
    return {name: NcclPreset(name=name, **facts) for name, facts in data.items()}


def combined(names: Sequence[str]) -> dict[str, str]:
    """The variables of several. Raises PlanError for an unknown name, and for two that contradict each other."""
    env: dict[str, str] = {}
    preset_of: dict[str, str] = {}
    for name in names:
        for variable, value in _get(name).env.items():
            if env.setdefault(variable, value) != value:
                raise PlanError(
                    f"--nccl-preset {preset_of[variable]} wants {variable}={env[variable]}, and {name} {value}: "
                    f"leave one out, or say --nccl {variable}=VALUE and leave out both"
                )
            preset_of.setdefault(variable, name)
    return env


def _get(name: str) -> NcclPreset:
    preset = nccl_presets().get(name)
    if preset is None:
        hint = did_you_mean(name, nccl_presets()) or "`distui presets nccl` lists them"
        raise PlanError(f"--nccl-preset {name}: there is none of that name: {hint}")
    return preset


def notes(names: Sequence[str], before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What each changes, a sentence each. `before`: the environment without them; `after`: as it will be."""
    return [
        f"{name}: {', '.join(_change(*pair, before, after) for pair in _get(name).env.items())}."
        for name in names
    ]


def _change(variable: str, value: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if after.get(variable) != value:
        return f"not {variable}={value}, as you say {after.get(variable)}"
    old = before.get(variable)
    if old == value:
        return f"{variable}={value} as before"
    return f"{variable}={value}" + (f" instead of {old}" if old is not None else "")
