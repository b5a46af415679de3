"""NCCL's variables (nccl.toml), levels and subsystems of its log, and named sets of settings (nccl_presets.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .finding import PlanError, did_you_mean


class NcclError(ValueError):
    """A level or a list of subsystems that NCCL would not understand; the text is one sentence."""


LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
"""Values of NCCL_DEBUG, from the quietest. TRACE says more than INFO only in builds made for it."""

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
    Subsystem("INIT", "2.3.4", "Start and end of every communicator and how long its parts took; a few lines."),
    Subsystem("COLL", "2.3.4", "One line per collective per rank: very verbose.", lines=1),
    Subsystem("P2P", "2.3.4", "How GPUs of one node reach each other; some lines for each pair at connect time."),
    Subsystem("SHM", "2.3.4", "Shared memory between processes of a node; some lines at connect time."),
    Subsystem("NET", "2.3.4", "Adapters found, the network chosen, connections and their errors; little once running."),
    Subsystem("GRAPH", "2.5", "The topology found and the rings and trees laid over it; long, once at the start."),
    Subsystem("TUNING", "2.5", "Algorithm and protocol chosen for each size; from 2.22 a line for each collective.",
              lines=1),
    Subsystem("ENV", "2.7", "Every variable that NCCL read, with its value; one line each, the effective settings."),
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
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NcclVariable:
    """What is known of one variable."""

    name: str
    kind: str = "text"
    """What it takes: "flag", "torch", "int", "word", "level", "text", "debug" or "mask" (see nccl.toml)."""
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
    """One sentence; "" for a variable known by name alone."""
    until: str = ""
    """Last NCCL version that read it; "" while it is read."""


@functools.cache
def catalogue() -> Mapping[str, NcclVariable]:
    """Every known variable by name."""
    data = tomllib.loads(resources.files(__package__).joinpath("nccl.toml").read_text("utf-8"))
    other, removed = data.pop("other"), data.pop("removed")
    variables = {name: _variable(name, facts) for name, facts in data.items()}
    variables |= {name: NcclVariable(name, scope=scope) for scope, names in other.items() for name in names}
    variables |= {name: NcclVariable(name, until=last) for name, last in removed.items()}
    return variables


def _variable(name: str, facts: Mapping[str, Any]) -> NcclVariable:
    return NcclVariable(name, **{**facts, "values": tuple(facts.get("values", ()))})


def covers(name: str) -> bool:
    """Whether `name` looks like one of these variables, and is to be checked."""
    return name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))


def check(name: str, value: str) -> str | None:
    """What is wrong with setting the variable `name` to `value`, as a sentence; None when nothing is."""
    entry = catalogue().get(name)
    if entry is None:
        return _unknown(name)
    if entry.until:
        return f"{name} is no longer read: NCCL {entry.until} was the last that did"
    try:
        if entry.kind == "debug":
            parse_level(value)
        elif entry.kind == "mask":
            parse_subsys(value)
    except NcclError as error:
        return str(error)
    wanted = _wanted(entry, value)
    return f"{name} takes {wanted}, not {value!r}" if wanted else None


def parse_level(text: str) -> str:
    """One of LEVELS, however it is written. Raises NcclError."""
    level = text.strip().upper()
    if level not in LEVELS:
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
    inverted = wanted.startswith("^")
    names = [part.strip() for part in wanted.removeprefix("^").split(",")]
    for name in names:
        if name not in {subsystem.name for subsystem in SUBSYSTEMS}:
            raise NcclError(_unknown_subsystem(name))
    return "^" * inverted + ",".join(dict.fromkeys(names))


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
        f"{names}: {each} a collective a rank; at {collectives:g} collectives/s × {ranks} "
        f"rank{'s' * (ranks != 1)} ≈ {rate / 1e6:{'.1f' if rate < 1e7 else '.0f'}} MB/s"
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


def _unknown(name: str) -> str:
    hint = did_you_mean(name.upper(), catalogue()) or "see its spelling"
    return f"{name} is no variable that NCCL or torch is known to read (plain env takes any): {hint}"


def _wanted(entry: NcclVariable, value: str) -> str | None:
    """What `entry` takes, in words, when `value` is not that; None when it is."""
    match entry.kind:
        case "flag":
            return None if value in ("0", "1") else "0 or 1"
        case "torch":
            fits = value.lower() in ("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false")
            return None if fits else "1 or 0"
        case "word":
            return None if value in entry.values else _choice(entry.values)
        case "level":
            fits = value.upper() in entry.values or value.isdecimal()
            return None if fits else _choice(entry.values)
        case "int":
            return None if _in_range(entry, value) else _range(entry)
    return None


def _choice(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _in_range(entry: NcclVariable, value: str) -> bool:
    try:
        number = int(value, 0)
    except ValueError:
        return False
    return (entry.least is None or number >= entry.least) and (entry.most is None or number <= entry.most)


def _range(entry: NcclVariable) -> str:
    if entry.least is not None and entry.most is not None:
        return f"a whole number from {entry.least} to {entry.most}"
    return "a whole number" if entry.least is None else f"a whole number of {entry.least} or more"


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclPreset:
    """Some variables, and what they are for."""

    name: str
    when: str
    """A sentence."""
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
