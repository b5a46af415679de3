"""Settings of NCCL by name, which go with any strategy; they stand in nccl_presets.toml beside this file."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from .errors import PlanError
from .nccl import catalogue


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
def known() -> Mapping[str, NcclPreset]:
    """All of them, in the file's order."""
    data = tomllib.loads(resources.files(__package__).joinpath("nccl_presets.toml").read_text("utf-8"))
    return {name: NcclPreset(name=name, **facts) for name, facts in data.items()}


def combined(names: Sequence[str]) -> dict[str, str]:
    """The variables of several. Raises PlanError for an unknown name, and for two that contradict each other."""
    found: dict[str, str] = {}
    said_by: dict[str, str] = {}
    for name in names:
        for variable, value in _get(name).env.items():
            if found.setdefault(variable, value) != value:
                raise PlanError(
                    f"--nccl-preset {said_by[variable]} wants {variable}={found[variable]}, and {name} {value}: "
                    f"leave one out, or say --nccl {variable}=VALUE and leave out both."
                )
            said_by.setdefault(variable, name)
    return found


def _get(name: str) -> NcclPreset:
    preset = known().get(name)
    if preset is None:
        near = difflib.get_close_matches(name, known(), n=1)
        hint = f"did you mean {near[0]}?" if near else "`distui presets nccl` lists them."
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
