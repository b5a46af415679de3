"""A launch from the arguments of a call, and its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...presets.finding import Finding, PlanError, PresetError
from ...presets.plan import Plan
from ...presets.request import REQUEST_OPTIONS, Named, Request
from ..launch import check
from ..launch.hosts import check_hosts
from ..launch.prepare import prepare
from ..launch.prepared import Prepared
from ..launch.syntax_check import syntax_problem
from ..removal import retention
from ..run import run_directories
from ..run.errors import RunError
from .arguments import checked, shown


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """A launch that is planned and not started."""

    plan: Plan
    """Command line, environment of every rank with origins, and files."""
    findings: list[Finding]
    """What `lint` finds in it, the worst first."""
    text: str
    """What `distui plan` prints."""
    document: dict[str, Any]
    """What `distui plan --json` prints."""


def requested(verb: str, options: dict[str, Any], **given: Any) -> Request:
    """Return the launch request of a call: `given` and the further `options` of the verb. Raises RunError, TypeError."""
    for name in options:
        option = REQUEST_OPTIONS.get(name)
        if option is None or verb not in option.verbs or option.alone:
            raise TypeError(
                f"{name} is not an option of {verb}: pass fields of distui.presets.request.Request"
            )
    read = checked(**given, **options)
    named = [Named(host) for host in read.pop("hosts", ())]
    hosts = tuple(check_hosts(named, "hosts")) if named else ()
    return Request(hosts=hosts, **read)


def planned(asked: Request) -> PlannedLaunch:
    """Plan a launch without starting it. Raises RunError."""
    prepared = _prepared(asked)
    try:
        findings = check.findings(prepared.plan, prepared.asked or asked)
    except PresetError as error:
        raise RunError(str(error)) from None
    return PlannedLaunch(prepared.plan, findings, prepared.text(), prepared.json())


def launched(asked: Request) -> run_directories.Entry:
    """Plan and start a run. Raises RunError."""
    return started(_prepared(asked))


def started(prepared: Prepared) -> run_directories.Entry:
    """Start a planned run, and remove earlier ones as the settings say. Raises RunError."""
    if prepared.order is None and (problem := syntax_problem(prepared.plan)):
        raise RunError(problem)
    entry = prepared.start()
    retention.retire(retention.load(), entry.record.run)
    return entry


def _prepared(asked: Request) -> Prepared:
    try:
        return prepare(asked)
    except (PresetError, PlanError) as error:
        raise RunError(str(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        why = f"cannot be used ({error.strerror}): pass another path"
        raise RunError(f"{shown(error.filename)} {why}") from None
