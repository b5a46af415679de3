"""Facts about the plan of a run: plan.json of any distui version, possibly damaged. Pure."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ...presets import adopt
from ..diagnosis.status import world_size
from ..run.state import RunState
from .account import NONE, Facts

_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_PLAIN = {
    "preset": "preset",
    "strategy": "strategy",
    "launcher": "launcher",
    "backend": "backend",
    "nnodes": "nodes",
    "nnodes_min": "fewest nodes",
    "nproc_per_node": "ranks on each node",
    "batch": "batch",
    "cwd": "directory",
    "python": "python",
    "grace_s": "grace (s)",
    "save_on": "asked to save by",
    "hook": "hook",
    "obeys": "obeys",
}
"""Display name by field of a plan."""
_CONTRACT = {
    "DISTUI_STRATEGY_OPTIONS": "strategy",
    "DISTUI_MESH": "mesh",
    "DISTUI_BATCH": "batch",
    "DISTUI_PRECISION": "precision",
}
"""Section by variable, for variables with a JSON object that parallelize() reads."""


def plan_facts(plan: Mapping[str, Any], state: RunState) -> Facts:
    """Return the facts of plan.json (`plan`), or of the journal's summary if `plan` is empty because of an error."""
    if not plan:
        return _summary_facts(state)
    facts = option_facts(plan)
    if world := world_size(state):
        facts["world size"] = str(world)
    return facts


def option_facts(plan: Mapping[str, Any]) -> Facts:
    """Return the facts of plan.json, which a run that is not started yet also has."""
    facts = {_PLAIN[name]: plan_value(plan[name]) for name in _PLAIN if name in plan}
    facts |= _members("mesh size", plan.get("mesh"))
    facts |= _members("restarts", plan.get("restart"))
    facts |= _environment_facts(plan.get("env"))
    if isinstance(files := plan.get("sources"), list):
        facts["preset's files"] = ", ".join(map(str, files)) or NONE
    if isinstance(plan.get("command"), list) and plan["command"]:
        facts["script"] = script_of(plan["command"])
    return facts


def _environment_facts(env: object) -> Facts:
    """Return the facts that a plan passes to the script in variables."""
    if not isinstance(env, dict):
        return {}
    facts: Facts = {}
    for variable, name in _CONTRACT.items():
        facts |= _members(name, _object(env.get(variable)))
    return facts | {"applied by": "--adopt" if env.get(adopt.VARIABLE) else "the script"}


def _summary_facts(state: RunState) -> Facts:
    plan = state.plan
    if plan is None or not plan.launcher:
        return {}
    facts = {_PLAIN[name]: plan_value(getattr(plan, name)) for name in _PLAIN if hasattr(plan, name)}
    return facts | _members("mesh size", plan.mesh) | {"command": plan.command}


def script_of(command: Sequence[Any]) -> str:
    """Return the script or program before the arguments."""
    words = [str(word) for word in command]
    return " ".join(words[:2]) if words[:1] == ["-m"] else words[0]


def argument_facts(plan: Mapping[str, Any]) -> Facts | None:
    """Return the values of the script's options by name; None if unknown."""
    command = plan.get("command")
    if not isinstance(command, list) or not command:
        return None
    words = deque(map(str, command[2 if command[0] == "-m" else 1 :]))
    facts: Facts = {}
    place = 0
    while words:
        word = words.popleft()
        name, equals, value = word.partition("=")
        if not _is_option(word):
            place += 1
            name, value = f"argument {place}", word
        elif not equals:
            value = words.popleft() if words and not _is_option(words[0]) else "given"
        facts[name] = f"{facts[name]} {value}" if name in facts else value
    return facts


def _is_option(word: str) -> bool:
    return _OPTION.fullmatch(word.partition("=")[0]) is not None


def _members(name: str, values: object) -> Facts:
    return (
        {f"{name}: {key}": plan_value(value) for key, value in values.items()}
        if isinstance(values, dict)
        else {}
    )


def _object(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def plan_value(value: object) -> str:
    """Return a value of a plan as text."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
