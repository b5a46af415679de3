"""What the launch screen shows beside a plan: the SkyPilot task, and what the check of the plan finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..presets.lint import lint_plan
from ..presets.load import load
from ..presets.yamltext import dump
from ..runners import local
from . import placing

if TYPE_CHECKING:
    from ..presets.finding import Finding
    from .follow import LaunchForm
    from .hosting import Ordered as OnHosts
    from .ordering import Ordered
    from .starting import Prepared


def task_text(prepared: Prepared | Ordered | OnHosts) -> str:
    """The task as SkyPilot gets it, secrets masked; "" where none is used."""
    task = getattr(getattr(prepared, "order", None), "task", None)
    return "" if task is None else dump(task)


def findings(prepared: Prepared | Ordered | OnHosts, form: LaunchForm) -> tuple[Finding, ...]:
    """What the check of the plan finds, the worst first. Raises RunError and PresetError."""
    kind = placing.kind_of(form.place)
    found = lint_plan(
        prepared.plan,
        load(form.preset, form.overrides),
        source=local.read_source(Path(form.script.strip())),
        resources=placing.resources(form) if kind == placing.SKY else None,
        hosts=len(placing.hosts(form)) if kind == placing.HOSTS else None,
    )
    return tuple(found)
