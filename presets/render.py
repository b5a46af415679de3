"""A plan and a preset as text, as JSON, and back."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import model, worker_group
from .finding import PlanError, PresetError
from .launchers import torchrun
from .load import Definition, Library, check_name, load
from .model import STRATEGY_OPTIONS, Loaded, RestartPolicy
from .plan import Plan, ports
from .sanitize import clean_whole, quoted
from .secrets import MASK, SECRET_WORDS, holds_secret, mask, mask_text, mask_words

# -----------------------------------------------------------------------------------------------------------
# A plan as text for a person, and as JSON and back.


LISTED = 64
"""Ranks whose coordinates are printed."""


def _command(plan: Plan) -> tuple[str, ...]:
    words = mask_words(plan.argv)
    if plan.launcher == "torchrun":
        return plan.python or "python", "-m", torchrun.MODULE, *words
    return tuple(words)


def command_line(plan: Plan) -> str:
    """The plan's argv as a line for a POSIX shell, secrets masked; nothing in it acts on a terminal."""
    return " ".join(quoted(word) for word in _command(plan))


def render(plan: Plan, more: Sequence[str] = ()) -> str:
    """What `--dry-run` prints: all of the plan, secrets masked. Ends with a newline. `more`: lines on what starts."""
    lines = [*_head(plan), "", f"  {command_line(plan)}"]
    lines += ["", f"environment ({len(plan.env)} variables beside what is inherited)"]
    lines += [
        _variable(name, value, plan.origins.get(name, "")) for name, value in sorted(plan.env.items())
    ]
    for pattern, variables in plan.hosts.items():
        lines += ["", f"on hosts {pattern}"]
        lines += [
            _variable(name, value, plan.origins.get(f"{pattern}:{name}", ""))
            for name, value in sorted(variables.items())
        ]
    lines += more
    for path, text in sorted(plan.files.items()):
        lines += ["", f"file {path}", *(f"  {line}" for line in mask_text(text).splitlines())]
    lines += ["", f"on failure   {_policy(plan.restart)}"]
    lines.append(f"stop         SIGTERM, after {plan.grace_s:g} s SIGKILL")
    lines.append(f"hook         {'in every rank' if plan.hook else 'left out'}")
    lines.append(f"ports        {ports(plan)}")
    if plan.notes:
        lines += ["", "notes", *(f"  - {note}" for note in plan.notes)]
    return clean_whole("\n".join(lines)) + "\n"


def _variable(name: str, value: str, origin: str) -> str:
    """ "  NAME=value  # where it comes from"."""
    return f"  {name}={quoted(mask(name, value))}" + (f"  # {origin}" if origin else "")


def named(plan: Plan) -> str:
    """The preset with the files that it comes from, where it is not a builtin one as it ships."""
    return f"{plan.preset} ({', '.join(plan.sources)})" if plan.sources else plan.preset


def _head(plan: Plan) -> list[str]:
    lines = [f"run          {plan.name} ({plan.run})"]
    if plan.preset:
        backend = f", backend {plan.backend}" if plan.backend else ""
        lines.append(
            f"preset       {named(plan)}: strategy {plan.strategy}, launcher {plan.launcher}{backend}"
        )
        lines.append(f"obeys        {plan.obeys or 'nothing: the preset sets only flags and environment'}")
    if plan.nproc_per_node is not None:
        lines.append(f"ranks        {_ranks(plan.nnodes, plan.nnodes_min, plan.nproc_per_node)}")
    if len(plan.mesh) > 1:
        lines += [f"mesh         {worker_group.mesh_text(plan.mesh)}", *_coordinates(plan.mesh)]
    if plan.batch:
        lines.append(f"batch        {plan.batch}")
    if plan.nnodes > 1:
        lines.append(
            f"on each node {torchrun.HEAD} is the first node's address, {torchrun.LOCAL} its own, "
            f"{torchrun.IS_HEAD} 1 on the first and 0 on the others"
            if plan.launcher == "torchrun"
            else f"nodes        {plan.nnodes}, each runs the command; DISTUI_NODE and DISTUI_HEAD say where"
        )
    return [*lines, f"directory    {plan.cwd}", f"records in   {plan.run_dir}"]


def _coordinates(sizes: Mapping[str, int]) -> list[str]:
    """A line a rank; of many the first ones."""
    world = math.prod(sizes.values())
    lines = []
    for rank in range(min(world, LISTED)):
        at = worker_group.coordinates(sizes, rank)
        lines.append(f"  rank {rank:<6} {'  '.join(f'{name} {number}' for name, number in at.items())}")
    return lines + [f"  … {world - LISTED} more, all of them in --json"] * (world > LISTED)


def _ranks(nnodes: int, fewest: int | None, nproc: int) -> str:
    """ "16 = nnodes 2 × nproc_per_node 8"; of an elastic run the least, too."""
    if fewest is None:
        return f"{nnodes * nproc} = nnodes {nnodes} × nproc_per_node {nproc}"
    return f"{fewest * nproc} to {nnodes * nproc} = nnodes {fewest} to {nnodes} × nproc_per_node {nproc}"


def _policy(policy: RestartPolicy) -> str:
    if not policy.limit:
        return "no restart"
    return (
        f"restart, at most {policy.limit} times, waiting {policy.backoff_s:g} s, doubled each time "
        f"up to {policy.backoff_max_s:g} s; {policy.reset_after_s:g} s without failure clear the count"
        + ("; also when a restart cannot help" if policy.always else "")
    )


def plan_to_json(plan: Plan, *, masked: bool = False) -> dict[str, Any]:
    """The plan as JSON values. `masked` hides secret values: for whatever is shown or exported."""
    document: dict[str, Any] = {}
    for item in dataclasses.fields(plan):
        value = getattr(plan, item.name)
        document[item.name] = list(value) if isinstance(value, tuple) else value
    document["mesh"] = dict(plan.mesh)
    document["coordinates"] = [
        worker_group.coordinates(plan.mesh, rank) for rank in range(math.prod(plan.mesh.values()))
    ]
    document["hosts"] = {pattern: dict(variables) for pattern, variables in plan.hosts.items()}
    document["env"] = dict(plan.env)
    document["files"] = dict(plan.files)
    document["origins"] = dict(plan.origins)
    if masked:
        document["hosts"] = {pattern: _without_values(env) for pattern, env in plan.hosts.items()}
        document["env"] = _without_values(plan.env)
        document["files"] = {name: mask_text(text) for name, text in plan.files.items()}
        for part in ("argv", "command"):
            document[part] = mask_words(document[part])
    document["restart"] = dataclasses.asdict(plan.restart)
    return document


def _without_values(env: Mapping[str, str]) -> dict[str, str]:
    """All of a value goes where some of it is secret: what is written down is a value, or that there was one."""
    return {name: MASK if holds_secret(name, value) else value for name, value in env.items()}


def hidden(plan: Plan) -> dict[str, str]:
    """What the plan's masked JSON leaves out, as environment for whoever executes it; never to be written down."""
    shown = plan_to_json(plan, masked=True)
    env = {name: value for name, value in plan.env.items() if shown["env"][name] == MASK}
    parts = {
        part: {str(at): word for at, word in enumerate(getattr(plan, part))} for part in ("argv", "command")
    }
    parts["files"] = dict(plan.files)
    words = {
        part: {key: text for key, text in texts.items() if MASK in _at(shown[part], key)}
        for part, texts in parts.items()
    }
    return {**env, SECRET_WORDS: json.dumps(words)} if any(words.values()) else env


def _at(part: Any, key: str) -> str:
    return str(part[int(key)] if isinstance(part, list) else part[key])


def revealed(plan: Plan, env: Mapping[str, str]) -> Plan:
    """A plan read from its masked JSON with the words and texts that `hidden` gave; those not there stay masked."""
    try:
        words = json.loads(env.get(SECRET_WORDS) or "{}")
        argv, command = (
            tuple(words.get(part, {}).get(str(at), word) for at, word in enumerate(getattr(plan, part)))
            for part in ("argv", "command")
        )
        return dataclasses.replace(
            plan, argv=argv, command=command, files={**plan.files, **words.get("files", {})}
        )
    except (ValueError, AttributeError, TypeError):
        return plan


def unknown_words(plan: Plan) -> list[str]:
    """Arguments of a plan that hold a secret whose value is not there."""
    return [word for word in plan.argv if MASK in word]


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """The plan that `plan_to_json` wrote; fields it does not know are left out. Raises PlanError."""
    fields = {item.name for item in dataclasses.fields(Plan)}
    values = {name: value for name, value in document.items() if name in fields}
    policy = {item.name for item in dataclasses.fields(RestartPolicy)}
    try:
        for name in ("argv", "command", "notes", "passed", "sources"):
            values[name] = tuple(values.get(name, ()))
        restart = {name: value for name, value in dict(values.get("restart", {})).items() if name in policy}
        values["restart"] = RestartPolicy(**restart)
        return Plan(**values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"This is not a plan that distui wrote: {error}.") from None


# -----------------------------------------------------------------------------------------------------------
# Presets as text: the list, one whole preset, and the start of a new one.


DEFAULT = "default"
"""Origin of a value that no file sets."""


def entries(library: Library) -> tuple[list[Loaded], list[str]]:
    """Every preset of `library` that can be loaded, and a sentence for each that cannot."""
    loaded, problems = [], list(library.problems.values())
    for name in library.names:
        if name in library.problems:
            continue
        try:
            loaded.append(load(name, presets=library))
        except PresetError as error:
            problems.append(str(error))
    return loaded, problems


def list_text(loaded: list[Loaded]) -> str:
    """Name, title and summary of each. Ends with a newline."""
    width = max((len(entry.preset.name) for entry in loaded), default=0)
    lines = []
    for preset in (entry.preset for entry in loaded):
        lines.append(f"{preset.name:<{width}}  {preset.title}".rstrip())
        if preset.summary:
            lines.append(f"{'':<{width}}  {preset.summary}")
    return clean_whole("\n".join(lines)) + "\n" if lines else ""


def list_dict(loaded: list[Loaded]) -> list[dict[str, str]]:
    """The same for `--json`."""
    return [
        {"name": p.name, "title": p.title, "summary": p.summary, "strategy": p.strategy.kind}
        for p in (entry.preset for entry in loaded)
    ]


def show_text(loaded: Loaded) -> str:
    """The whole preset as TOML that loads again, each value with its origin; secrets are masked."""
    lines = [f"# preset {loaded.preset.name}"]
    for table, values in _grouped(loaded):
        lines += ["", f"[{table}]"] if table else []
        for key, value, origin in values:
            lines.append(_line(key, value, origin))
        if table == "strategy":
            lines += [f"# {key} is left to torch" for key in _unset(loaded)]
    return "\n".join(lines) + "\n"


def show_dict(loaded: Loaded) -> dict[str, Any]:
    """The same for `--json`: `values` and `origins` by field path."""
    values = {
        f"{table}.{key}" if table else key: list(value) if isinstance(value, tuple) else value
        for table, rows in _grouped(loaded)
        for key, value, _ in rows
    }
    origins = {path: loaded.origins.get(path, DEFAULT) for path in values}
    return {"name": loaded.preset.name, "values": values, "origins": origins}


def new_text(name: str, base: Loaded) -> str:
    """A preset file `name` to edit: it builds on `base`, whose values stand there as comments."""
    lines = [
        f"# Preset {name}: everything of {base.preset.name} but what is written here without a # in front.",
        f"base = {_literal(base.preset.name)}",
        f"title = {_literal(name)}",
        f"summary = {_literal('')}",
    ]
    for table, values in _grouped(base):
        lines += ["", f"[{table}]"] if table else []
        lines += [f"# {_pair(key, value)}" for key, value, _ in values if key not in ("title", "summary")]
    return "\n".join(lines) + "\n"


def _grouped(loaded: Loaded) -> Iterator[tuple[str, list[tuple[str, model.Value, str]]]]:
    """Tables with their (key, value, origin); the first is "", for what stands before any table."""
    tables: dict[str, list[tuple[str, model.Value, str]]] = {"": []}
    for path, value in model.flat(loaded.preset).items():
        table, _, key = path.rpartition(".") if path in model.fields() else path.partition(".")
        if value is not None:
            shown = mask(key, value) if table in model.FREE and isinstance(value, str) else value
            tables.setdefault(table, []).append((key, shown, loaded.origins.get(path, DEFAULT)))
    return iter(tables.items())


def _unset(loaded: Loaded) -> list[str]:
    strategy = loaded.preset.strategy
    return [name for name in STRATEGY_OPTIONS[strategy.kind] if getattr(strategy, name) is None]


def _line(key: str, value: model.Value, origin: str) -> str:
    # A line break in the name of a file would end the comment.
    return f"{_pair(key, value)}  # {_escaped(origin)}"


def _pair(key: str, value: model.Value) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
    return f"{key if bare else _literal(key)} = {_literal(value)}"


def _literal(value: model.Value) -> str:
    """A value as TOML writes it (TOML 1.0, basic strings)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_pair(key, part) for key, part in value.items())}}}"
    return repr(value)


def _escaped(text: str) -> str:
    """`text` inside a basic string, with nothing in it that acts on a terminal. JSON's escapes are TOML's, too."""
    return "".join(
        c if c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
        for c in json.dumps(text, ensure_ascii=False)[1:-1]
    )


# -----------------------------------------------------------------------------------------------------------
# A preset of the user's own as text: another preset's name, and what differs from it. Pure.


def saved_text(name: str, base: str, overrides: Sequence[str], library: Library, summary: str = "") -> str:
    """The file of a preset `name` that is `base` with `overrides` ("mesh.tp=2"). Ends with a newline.

    Values of variables named like secrets are left out, and a comment says so. Raises PresetError.
    """
    loaded = load(base, overrides, presets=library)
    values = model.flat(loaded.preset)
    title = f"{loaded.preset.title}, as {name}" if loaded.preset.title else name
    lines = [
        f"# Preset {check_name(name)}: {base} with what stands here.",
        f"base = {_literal(base)}",
        f"title = {_literal(title)}",
        f"summary = {_literal(summary or loaded.preset.summary)}",
    ]
    tables: dict[str, list[str]] = {}
    for path in dict.fromkeys(_path(override) for override in overrides):
        if path in ("title", "summary"):
            continue
        if "." not in path:
            lines.append(_own_line(path, path, values[path]))
        else:
            table, _, key = path.partition(".")
            tables.setdefault(table, []).append(_own_line(path, key, values[path]))
    for table, rows in tables.items():
        lines += ["", f"[{table}]", *rows]
    return "\n".join(lines) + "\n"


def check_saved(name: str, base: str, text: str, library: Library) -> None:
    """Raises PresetError where the saved file would not load: above all where names go in a circle."""
    below = tuple(item for item in library.definitions.get(name, ()) if not item.origin.startswith("user "))
    if name == base and not below:
        raise PresetError(f"{name} cannot build on itself: choose another name.")
    saved = Definition(
        name=name, origin=f"user {name}.toml", where=f"{name}.toml", table=tomllib.loads(text)
    )
    after = {**library.definitions, name: (*below, saved)}
    load(name, presets=Library(definitions=after))


def _path(override: str) -> str:
    """Path of the value that an override changes, as schema.flat has it."""
    path = override.partition("=")[0].strip().removeprefix("preset.")
    table, _, inner = path.partition(".")
    return f"{table}.{inner.partition('.')[0]}" if table in model.NESTED else path


def _own_line(path: str, key: str, value: model.Value | None) -> str:
    if path.startswith(("env.", "nccl.")) and holds_secret(key, "" if value is None else str(value)):
        return f"# {key} is a secret: it is taken from your environment"
    return _pair(key, "" if value is None else value)
