"""NCCL's variables (nccl.toml), its log levels and subsystems, and NCCL presets (nccl_presets.toml)."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .finding import PlanError
from .plurals import plural
from .spelling import did_you_mean, misspells, nearest, nearest_names


class NcclError(ValueError):
    """NCCL would not understand a level or a list of subsystems. The text is one sentence."""


LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
"""Values of NCCL_DEBUG, the quietest first. TRACE prints more than INFO only in trace builds."""

LATER_LEVELS = ("ATTN",)
"""Levels of NCCL 2.32 that older versions ignore: accepted, but never suggested."""

NEWEST = "2.32"
"""Newest NCCL version whose documentation the catalogue covers."""

DEFAULT_SUBSYS = "INIT,BOOTSTRAP,ENV"
"""Subsystems that NCCL prints at INFO if NCCL_DEBUG_SUBSYS is unset."""

FLOOD_BYTES = 50e6
"""Log rate of a node, in bytes per second, above which a live level is reset."""

LINE_BYTES = 190
"""Bytes per line of COLL, with its pointers and stream. Other lines are shorter."""


@dataclass(frozen=True, slots=True)
class Subsystem:
    """One name of NCCL_DEBUG_SUBSYS."""

    name: str
    since: str
    """First NCCL version with it."""
    text: str
    """One sentence on its output and the cost."""
    lines: float = 0.0
    """Lines per collective and rank of a running job. 0 means output only at start, end and connection setup."""


@dataclass(frozen=True, slots=True)
class NcclVariable:
    name: str
    kind: str = "text"
    """Type of its values: "flag", "torch" (torch's booleans), "int", "number", "word", "level", "text", "debug", "mask".

    The head of nccl.toml explains each.
    """
    scope: str = "restart"
    """Effect of a change: "live", "communicator" (new ones) or "restart"."""
    since: str = ""
    """First NCCL version ("torch N": torch version) with it; "" if unknown, or older than the sources of nccl.toml."""
    default: str = ""
    """Behaviour if it is unset, or "" if NCCL decides at run time."""
    values: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    meaning: str = ""
    """One or two sentences on its effect and use, or "" for a variable that only the sources mention."""
    until: str = ""
    """Last NCCL version that read it, or "" for a current variable."""


@functools.cache
def catalogue() -> Mapping[str, NcclVariable]:
    """Return every known variable by name."""
    data = dict(_file())
    other, removed = data.pop("other"), data.pop("removed")
    del data["plugins"], data["subsystems"]
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
    """Return True if `name` looks like one of these variables and needs a check."""
    return name.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_FR_"))


SCOPES = {
    "live": "follows a live switch",
    "communicator": "read for each new communicator",
    "restart": "read once in a process",
}
"""Meaning of `NcclVariable.scope`."""


def described(name: str) -> list[NcclVariable]:
    """Return the variable `name`, all that begin with a name ending in _, or all that contain its words.

    The prefix NCCL_ is optional.
    """
    full = full_name(name.upper())
    if full.endswith("_"):
        return [entry for entry in catalogue().values() if entry.name.startswith(full)]
    return [catalogue()[full]] if full in catalogue() else _with_words(full)


def _with_words(full: str) -> list[NcclVariable]:
    """Return the variables whose names contain all words of `full` in a row, the ones still read first."""
    words = full.removeprefix("NCCL_")
    found = [entry for entry in catalogue().values() if f"_{words}_" in f"_{entry.name}_"]
    return sorted(found, key=lambda entry: bool(entry.until))


def facts(entry: NcclVariable) -> str:
    """Describe a variable's values, default, versions, and the effect of a change."""
    parts: list[str] = []
    if values := takes(entry):
        parts.append(f"takes {values}")
    if entry.default:
        parts.append(f"default {entry.default}")
    if entry.since:
        is_of_torch = entry.since.startswith("torch")
        parts.append(f"since {entry.since}" if is_of_torch else f"since NCCL {entry.since}")
    if entry.until:
        parts.append(f"NCCL {entry.until} was the last that read it")
    else:
        parts.append(SCOPES[entry.scope])
    return "; ".join(parts)


def full_name(name: str) -> str:
    """Return `name` with the prefix NCCL_, which a user may leave out."""
    return name if covers(name.upper()) or of_plugin(name) else f"NCCL_{name}"


def of_plugin(name: str) -> bool:
    """Return True if `name` has the prefix of a plug-in, or of a library or image around NCCL."""
    return name.startswith(tuple(_file()["plugins"]["names"]))


def error_in(name: str, value: str) -> str | None:
    """Return a sentence if setting the variable `name` to `value` is surely wrong, else None.

    Names outside the catalogue are accepted, because newer NCCLs and plug-ins have their own; `warning_for` is about
    them. Only a misspelt name is an error: real names are rarely that similar, one pair of them in the catalogue.
    """
    entry = catalogue().get(name)
    if entry is None:
        return _error_in_name(name)
    try:
        if entry.kind == "debug":
            parse_level(value)
        elif entry.kind == "mask":
            parse_subsys(value)
    except NcclError as error:
        return str(error)
    return None if _fits(entry, value) else f"{name} takes {takes(entry)}, not {value!r}"


def preset_table(name: str, value: str) -> str:
    """Return the table of a preset for a variable: "nccl" for a valid setting of NCCL, else "env"."""
    return "nccl" if covers(name) and error_in(name, value) is None else "env"


def misspelt(name: str) -> str:
    """Return the variable that `name` surely misspells: by lower case, or as `misspells` says. "" if there is none."""
    if name in catalogue():
        return ""
    upper = name.upper()
    if upper in catalogue():
        return upper
    long_names = (
        near for near in _current_names() if len(near) >= len("NCCL_DEBUG")
    )  # short ones are too similar
    return next((near for near in long_names if misspells(upper, near)), "")


def _current_names() -> Iterator[str]:
    """Yield the names of the variables that the newest versions read."""
    return (entry.name for entry in catalogue().values() if not entry.until)


def warning_for(name: str) -> str:
    """Return a sentence if setting the variable `name` may have no effect, else ""."""
    entry = catalogue().get(name)
    if entry is not None:
        return f"{name} is no longer read: NCCL {entry.until} was the last that did." if entry.until else ""
    if not misspelt(name) and (of_plugin(name) or not covers(name)):
        return ""
    return (
        f"Neither NCCL up to {NEWEST} nor torch is known to read {name}: "
        "it does nothing, unless yours is newer or a plug-in reads it."
    )


def warnings_for(names: Iterable[str]) -> list[str]:
    """Return the warnings about these names, each with a suggested name."""
    warnings: list[str] = []
    for name in dict.fromkeys(names):
        text = warning_for(name)
        if not text:
            continue
        near = suggestion(name)
        warnings.append(f"{text} Did you mean {near}?" if near else text)
    return warnings


@functools.lru_cache(maxsize=1000)
def suggestion(name: str) -> str:
    """Return the variable that an unknown `name` probably means, or "". Less strict than `misspelt`.

    Words that begin or end both names do not count: INSPECTOR_ENABLE is not similar to WIN_ENABLE.
    """
    word = name.upper()[:60]
    if name in catalogue():
        return ""
    longer = next((entry.name for entry in _with_words(word) if not entry.until), "")
    near_names = nearest_names(word, _current_names(), 0.75, 12)
    return misspelt(name) or longer or next((near for near in near_names if _alike(word, near)), "")


def _alike(word: str, name: str) -> bool:
    mine, others = word.split("_"), name.split("_")
    for at in (0, -1):
        while mine and others and mine[at] == others[at]:
            del mine[at], others[at]
    return bool(nearest("_".join(mine), ["_".join(others)], 0.6))


def parse_level(text: str) -> str:
    """Return one of LEVELS or LATER_LEVELS in capitals. Raises NcclError."""
    level = text.strip().upper()
    if level not in (*LEVELS, *LATER_LEVELS):
        raise NcclError(
            f"{text!r} is not a level of NCCL_DEBUG: take {', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
        )
    return level


def parse_subsys(text: str) -> str:
    """Return the list in NCCL's form: "INIT,NET", or "^COLL" for all but COLL. "" gives DEFAULT_SUBSYS.

    Raises NcclError for a name that NCCL would silently ignore.
    """
    wanted = text.strip().upper()
    if not wanted:
        return DEFAULT_SUBSYS
    names = [part.strip() for part in wanted.removeprefix("^").split(",")]
    for name in names:
        if name not in {subsystem.name for subsystem in subsystems()}:
            raise NcclError(_unknown_subsystem(name))
    chosen = ",".join(dict.fromkeys(names))
    return f"^{chosen}" if wanted.startswith("^") else chosen


def subsystems(version: str | None = None) -> tuple[Subsystem, ...]:
    """Return the subsystems of NCCL `version` ("2.21.5"), or all subsystems for None."""
    known = _subsystems()
    if version is None:
        return known
    return tuple(subsys for subsys in known if version_key(subsys.since) <= version_key(version))


@functools.cache
def _subsystems() -> tuple[Subsystem, ...]:
    return tuple(Subsystem(name, **facts) for name, facts in _file()["subsystems"].items())


def flood_rate(level: str, subsys: str, collectives: float, ranks: int) -> float:
    """Return the log rate, in bytes per second, of `ranks` ranks with `collectives` per second, or 0.0 if negligible.

    Raises NcclError for an invalid level or list.
    """
    if parse_level(level) not in ("INFO", "TRACE"):
        return 0.0
    return sum(subsystem.lines for subsystem in _flooding(level, subsys)) * LINE_BYTES * collectives * ranks


def cost(level: str, subsys: str, collectives: float = 200.0, ranks: int = 8) -> str:
    """Describe a level's cost: "COLL: a line per collective and rank; at 200 collectives/s × 8 ranks ≈ 0.3 MB/s".

    Returns "" if it prints only at start, end and connection setup. Raises NcclError.
    """
    rate = flood_rate(level, subsys, collectives, ranks)
    if not rate:
        return ""
    names = ", ".join(subsystem.name for subsystem in _flooding(level, subsys))
    lines = sum(subsystem.lines for subsystem in _flooding(level, subsys))
    each = "a line" if lines == 1 else f"{lines:g} lines"
    return (
        f"{names}: {each} per collective and rank; at {collectives:g} collectives/s × {plural(ranks, 'rank')} "
        f"≈ {rate / 1e6:{'.1f' if rate < 1e7 else '.0f'}} MB/s"
    )


def _flooding(level: str, subsys: str) -> list[Subsystem]:
    """Return the subsystems of a list that print for each collective."""
    wanted = parse_subsys(subsys)
    names = set(wanted.removeprefix("^").split(","))
    if wanted.startswith("^"):
        names = {subsystem.name for subsystem in subsystems()} - names - {"ALL"}
    if "ALL" in names:
        names = {"ALL"}  # its lines include those of every other subsystem
    elif "CALL" in names and parse_level(level) != "TRACE":
        names.remove("CALL")  # NCCL prints it only at TRACE
    return [subsystem for subsystem in subsystems() if subsystem.lines and subsystem.name in names]


def version_key(version: str) -> tuple[int, ...]:
    """Return a version as comparable numbers, up to the first other part ("2.21.5+cuda12.4" → 2, 21, 5)."""
    numbers: list[int] = []
    for part in version.split("+", 1)[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _unknown_subsystem(name: str) -> str:
    if not name:
        return "the list of subsystems has an empty entry: write names with one comma between them"
    names = [subsystem.name for subsystem in subsystems()]
    hint = did_you_mean(name, names) or f"there are {', '.join(names)}"
    return f"{name!r} is not a subsystem of NCCL: {hint}"


def _error_in_name(name: str) -> str | None:
    """Return why a name outside the catalogue is refused, or None if it is accepted."""
    near = misspelt(name)
    if not near and (covers(name) or of_plugin(name)):
        return None
    full = f"NCCL_{name.upper()}"
    near = near or (full if full in catalogue() else "")
    hint = f"did you mean {near}?" if near else "their names begin with NCCL_, TORCH_NCCL_ or TORCH_FR_"
    return f"{name} is not a variable of NCCL or torch (plain env takes any): {hint}"


def takes(entry: NcclVariable) -> str:
    """Describe the valid values of `entry`, or "" for any."""
    match entry.kind:
        case "flag":
            return "0 or 1"
        case "torch":
            return "0 or 1 (also no, yes, false, true)"
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
    """Return True if `value` is valid for `entry`. NCCL_DEBUG and NCCL_DEBUG_SUBSYS have separate checks."""
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
        """Return True if a running process can apply all of it (NCCL 2.24 and newer)."""
        return all(catalogue()[name].scope == "live" for name in self.env)


@functools.cache
def nccl_presets() -> Mapping[str, NcclPreset]:
    """Return all NCCL presets in the file's order."""
    data = tomllib.loads(resources.files(__package__).joinpath("nccl_presets.toml").read_text("utf-8"))
    return {name: NcclPreset(name=name, **facts) for name, facts in data.items()}


def combined(names: Sequence[str]) -> dict[str, str]:
    """Return the variables of several presets. Raises PlanError for an unknown name and for contradicting values."""
    env: dict[str, str] = {}
    preset_of: dict[str, str] = {}
    for name in names:
        for variable, value in _get(name).env.items():
            if env.setdefault(variable, value) != value:
                raise PlanError(
                    f"--nccl-preset {preset_of[variable]} wants {variable}={env[variable]}, and {name} wants {value}: "
                    f"leave one out, or leave both out and set --nccl {variable}=VALUE"
                )
            preset_of.setdefault(variable, name)
    return env


def _get(name: str) -> NcclPreset:
    preset = nccl_presets().get(name)
    if preset is None:
        hint = did_you_mean(name, nccl_presets()) or "`distui presets nccl` lists them"
        raise PlanError(f"--nccl-preset {name}: unknown name: {hint}")
    return preset


def notes(names: Sequence[str], before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a sentence per preset on its changes. `before` is the environment without them, `after` the final one."""
    return [
        f"{name}: {', '.join(_change(*pair, before, after) for pair in _get(name).env.items())}."
        for name in names
    ]


def _change(variable: str, value: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    if after.get(variable) != value:
        return f"not {variable}={value}, because you set {after.get(variable)}"
    old = before.get(variable)
    if old == value:
        return f"{variable}={value} as before"
    return f"{variable}={value}" + (f" instead of {old}" if old is not None else "")
