"""What the launch screen shows beside a plan: the SkyPilot task, and what the check of the plan finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..presets.yamltext import dump

if TYPE_CHECKING:
    from ..presets.finding import Finding
    from .follow import LaunchForm
    from .hosting import Ordered as OnHosts
    from .ordering import Ordered
    from .starting import Prepared


def task_text(prepared: Prepared | Ordered | OnHosts) -> str:
    """The task as SkyPilot gets it, secrets masked; "" where none is used."""
    order = getattr(prepared, "order", None)
    task = getattr(order, "task", None)
    return "" if task is None else dump(task)


def findings(prepared: Prepared | Ordered | OnHosts, form: LaunchForm) -> tuple[Finding, ...]:
    """The worst first."""
    return ()
