"""The constants of a run: run.json, and the part of its plan that every screen needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...presets.sanitize import clean_text
from .launch_record import GitState
from .model import PlanSummary

if TYPE_CHECKING:
    from ...presets.plan import Plan

PLAN_FILE = "plan.json"


class RunRecord(Struct, frozen=True):
    """Content of run.json: the constants of a run."""

    run: str
    run8: str
    """Eight hex digits, used as the stem of socket names."""
    name: str
    created: float
    host: str
    kind: str = "local"
    """Kind of the run. "local": an agent here has all ranks; "node": one node's part of a run on several nodes; "hub":
    the whole run on several nodes, in its hub."""
    node: int = 0
    nnodes: int = 1
    whole: str = ""
    """For a part: id of the whole run."""
    git: GitState | None = None
    """Git repository of the launch."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the secrets in its environment, by variable: see launch_record.py."""


def summarise(plan: Plan) -> PlanSummary:
    """Return the part of a plan that every screen needs."""
    same = {name: getattr(plan, name) for name in PlanSummary.__struct_fields__ if hasattr(plan, name)}
    command = clean_text(" ".join(plan.command))
    return PlanSummary(
        **same | {"command": command, "mesh": dict(plan.mesh)}, restart_limit=plan.restart.limit
    )
