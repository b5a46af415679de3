"""A plan as JSON values and back, with its secrets masked for files and output."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from . import rank_mesh
from .finding import PlanError
from .model import RestartPolicy
from .plan import Plan
from .secrets import MASK, SECRET_WORDS, holds_secret, mask_text, mask_words


def plan_to_json(plan: Plan, *, masked: bool = False) -> dict[str, Any]:
    """Return the plan as JSON values. `masked` hides secrets, for output and export."""
    document: dict[str, Any] = {
        item.name: _plain(getattr(plan, item.name)) for item in dataclasses.fields(plan)
    }
    document["coordinates"] = [
        rank_mesh.coordinates(plan.mesh, rank)
        for rank in range(math.prod(plan.mesh.values()) if plan.strategy or not plan.mesh else 0)
    ]
    document["hosts"] = {pattern: dict(variables) for pattern, variables in plan.hosts.items()}
    if masked:
        document["hosts"] = {pattern: _without_values(env) for pattern, env in plan.hosts.items()}
        document["env"] = _without_values(plan.env)
        document["files"] = {name: mask_text(text) for name, text in plan.files.items()}
        for part in ("argv", "command"):
            document[part] = mask_words(document[part])
    document["restart"] = dataclasses.asdict(plan.restart)
    return document


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _without_values(env: Mapping[str, str]) -> dict[str, str]:
    """Replace each value that contains a secret by MASK, never only a part of it."""
    return {name: MASK if holds_secret(name, value) else value for name, value in env.items()}


def hidden(plan: Plan) -> dict[str, str]:
    """Return the values that the plan's masked JSON hides, as environment of the executing process.

    Never write them down.
    """
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
    """Return a plan from masked JSON with the texts from `hidden`. Missing texts stay masked."""
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
    """Return the arguments of a plan with a secret whose value is missing."""
    return [word for word in plan.argv if MASK in word]


def plan_from_json(document: Mapping[str, Any]) -> Plan:
    """Return the plan that `plan_to_json` wrote. Unknown fields are ignored. Raises PlanError."""
    fields = {item.name for item in dataclasses.fields(Plan)}
    values = {name: value for name, value in document.items() if name in fields}
    policy = {item.name for item in dataclasses.fields(RestartPolicy)}
    try:
        for name in ("argv", "command", "notes", "passed", "sources", "signals", "notify"):
            values[name] = tuple(values.get(name, ()))
        restart = {name: value for name, value in dict(values.get("restart", {})).items() if name in policy}
        values["restart"] = RestartPolicy(**restart)
        return Plan(**values)
    except (TypeError, ValueError) as error:
        raise PlanError(f"This is not a plan that distui wrote: {error}") from None
