"""What a rerun would start differently from the run that it repeats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ... import __version__
from ...presets.plan_json import plan_to_json
from ...presets.sanitize import clean_text
from ..hub import on_hosts
from ..hub.on_hosts import HostsRequest
from ..inrank import script_files
from ..launch.prepared import Prepared
from ..run import environment, file_io, machine, run_directories
from ..run.run_directories import Entry
from ..run.run_record import RunRecord
from .account import Facts
from .differences import DIFFERS, ONLY_A, ONLY_B, Difference, facts_rows, of_terminal
from .plan_facts import argument_facts, option_facts, plan_value
from .rank_variables import environment_facts

_PORT = re.compile(r":\d+$")
_FURTHER = {"log_cap": "log cap", "notify": "notify", "signals": "signals", "hosts": "variables of hosts"}
"""Display name by field of a plan, for fields that no comparison of two runs shows."""
FILE = "file "
"""Prefix of the name of a script's file; its value is a digest."""


class LaunchChange(Struct, frozen=True):
    """One difference between a launch and the one that it repeats."""

    name: str
    before: str | None
    """None if the earlier launch did not have it."""
    after: str | None
    """None if the new launch does not have it."""

    @property
    def text(self) -> str:
        """Return the values for display: "5 → 3"."""
        if self.before is None:
            return f"new: {self.after}"
        if self.after is None:
            return f"gone: {self.before}"
        return "changed" if self.name.startswith(FILE) else f"{self.before} → {self.after}"


def changes_of_rerun(entry: Entry, launch: Prepared) -> tuple[LaunchChange, ...]:
    """Read the launch of a run and what it would be now, and return the differences. Raises RunError."""
    return launch_changes(_facts_of_run(entry, launch), _facts_of_launch(launch))


def launch_changes(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> tuple[LaunchChange, ...]:
    """Return the differences between two launches, leaving out facts that only one of them records. Pure."""
    rows = [row for section in before for row in facts_rows(before[section], after.get(section))]
    return tuple(_change(row) for row in rows if row.kind in (DIFFERS, ONLY_A, ONLY_B))


def _change(row: Difference) -> LaunchChange:
    before = None if row.kind == ONLY_B else row.a
    after = None if row.kind == ONLY_A else row.b
    return LaunchChange(row.name, before, after)


def changes_lines(name: str, changes: tuple[LaunchChange, ...]) -> list[str]:
    """Return the differences to run `name` as lines."""
    if not changes:
        return [f"nothing changes: the same launch as {name}"]
    widest = max(len(change.name) for change in changes)
    lines = [f"  {change.name:<{widest}}  {change.text}" for change in changes]
    return [f"changes since {name}", *lines]


def _facts_of_run(entry: Entry, launch: Prepared) -> dict[str, Facts]:
    """Return the facts of a run at its end, as far as `launch` has them, too. Raises RunError."""
    plan = file_io.document_or_none(entry.path / run_directories.PLAN_FILE, dict[str, Any]) or {}
    state, kept = entry.state(), environment.read(entry.path)
    values = plan.get("env", {}) if kept is None else kept.values
    hidden = frozenset[str]() if kept is None else kept.hidden
    facts = _plan_facts(plan, entry.record) | {
        "environment": _variables(environment_facts(values, hidden, state.changes, entry.record))
    }
    order = on_hosts.read(entry.path)
    if order is not None:
        facts["nodes"] = _node_facts(order)
    if launch.order is None:
        attempt = state.attempts[-1] if state.attempts else None
        facts["code"] = _code_facts(attempt.code if attempt is not None else {})
        facts["versions"] = _version_facts(state.torch, state.release)
    return facts


def _facts_of_launch(launch: Prepared) -> dict[str, Facts]:
    """Return the facts of a launch that is not started. Raises RunError."""
    plan = plan_to_json(launch.plan, masked=True)
    if launch.shell is None:
        values, hidden = plan["env"], set[str]()
    else:
        values = environment.of_launch(launch.shell, launch.plan.env)
        hidden = {name for name, value in values.items() if environment.is_hidden(name, value)}
    facts = _plan_facts(plan, launch.record) | {
        "environment": _variables(environment_facts(values, hidden, {}, launch.record))
    }
    if isinstance(launch.order, HostsRequest):
        facts["nodes"] = _node_facts(launch.order)
    if launch.order is None:
        facts["code"] = _code_facts(script_files.digests(plan))
        is_torch = launch.plan.launcher == "torchrun"
        torch = machine.torch_version(launch.plan.python) if is_torch else None
        facts["versions"] = _version_facts(torch, __version__)
    return facts


def _plan_facts(plan: Mapping[str, Any], record: RunRecord) -> dict[str, Facts]:
    """Return the facts of a plan without the id of its run, and without free ports."""
    named: dict[str, Any] = json.loads(json.dumps(plan).replace(record.run, "<run>"))
    options = option_facts(named)
    options |= {title: plan_value(named[name]) for name, title in _FURTHER.items() if name in named}
    launcher = named.get("argv", [])[: -len(named.get("command", [])) or None]
    options["launcher"] = " ".join(_PORT.sub(":<port>", word) for word in launcher)
    files = {f"generated {path}": text for path, text in named.get("files", {}).items()}
    return {"options": options, "arguments": argument_facts(named) or {}, "files": files}


def _variables(env: Mapping[str, str]) -> Facts:
    """Return the variables that concern the training, by names that are facts of any launch."""
    return {f"--env {name}": clean_text(value) for name, value in env.items() if not of_terminal(name)}


def _node_facts(order: HostsRequest) -> Facts:
    return {"hosts": ", ".join(order.hosts), "directory to copy": order.workdir or "none"}


def _code_facts(digests: Mapping[str, str]) -> Facts:
    return {f"{FILE}{path}": digest for path, digest in digests.items()}


def _version_facts(torch: str | None, distui: str) -> Facts:
    """Return the known versions."""
    facts = {"torch": torch or "", "distui": distui}
    return {name: version for name, version in facts.items() if version}
