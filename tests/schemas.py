"""The types of what each verb prints with `--json`, and a check of what one printed against its schema in docs/schemas.

With DISTUI_WRITE=1 `pytest tests/e2e/test_schemas.py` writes the schemas. A field that a verb prints and its type does
not have is an error there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import jsonschema
import msgspec
from referencing import Registry, Resource
from schema_files import SHARED

from distui.presets.finding import LaunchFinding
from distui.presets.nccl import NcclVariable
from distui.presets.plan import Plan
from distui.presets.preset_text import ListedPreset, ShownPreset
from distui.runners.comparison.account import Account
from distui.runners.comparison.adoption_trial import AdoptionTrial
from distui.runners.comparison.differences import ComparedRuns
from distui.runners.comparison.rerun_changes import LaunchChange
from distui.runners.diagnosis.diagnosis_document import Diagnosis
from distui.runners.hub.sky_process import Candidate
from distui.runners.launch.advice import AdviceDocument
from distui.runners.launch.measured_peaks import MeasuredPeak
from distui.runners.launch.start_preview import Preview
from distui.runners.logs.log_stream import LogLine
from distui.runners.node.shares import Shared
from distui.runners.removal.leftovers import Leftovers
from distui.runners.removal.removed_runs import Removable, Removed
from distui.runners.reports.bundle_files import Manifest
from distui.runners.reports.curve_report import Curves, MetricName
from distui.runners.reports.dump_report import Dumped
from distui.runners.reports.examination import ExaminationDocument, NodeExamination
from distui.runners.reports.profile_report import Profiled
from distui.runners.reports.run_diagnosis import RunDiagnosis
from distui.runners.reports.run_list import RunLine
from distui.runners.reports.status_document import MarkedStatus, RunStatus, WatchedStatus
from distui.runners.reports.watched_jobs import ListedJob
from distui.runners.run.model import Stamped
from distui.tui.setting_guide import ExampleSettings, Settings
from distui.tui.verbs.clusters import Answer
from distui.tui.verbs.control import RankAnswers
from distui.tui.verbs.launch import Started
from distui.tui.verbs.lint import Findings
from distui.tui.verbs.notes import Notes, Tags
from distui.tui.verbs.notify import ListedChannels, SentNotices, TriedChannels
from distui.tui.verbs.presets import NamedSettings, Written
from distui.tui.verbs.trust import Trusted, TrustedFile

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PrintedPlan(Plan):
    """What `plan_to_json` and `Prepared.json` make of a plan."""

    coordinates: list[dict[str, int]]
    starts: Preview
    findings: list[LaunchFinding] | msgspec.UnsetType = msgspec.UNSET
    changes: list[LaunchChange] | msgspec.UnsetType = msgspec.UNSET
    """With `rerun`: what differs from the run that it repeats."""
    measured: MeasuredPeak | msgspec.UnsetType = msgspec.UNSET
    """GPU memory of an earlier run of the same script with the same preset."""


class PlanElsewhere(TypedDict):
    """With --on and --hosts; further fields are about the nodes."""

    plan: PrintedPlan
    findings: NotRequired[list[LaunchFinding]]
    changes: NotRequired[list[LaunchChange]]
    measured: NotRequired[MeasuredPeak]


STARTED = Started | RunStatus | PrintedPlan | PlanElsewhere
"""With --detach; without; with --dry-run."""

DOCUMENTS: dict[str, Any] = {
    "launch": STARTED,
    "exec": STARTED,
    "demo": Started | RunStatus,
    "rerun": STARTED,
    "plan": PrintedPlan | PlanElsewhere | AdoptionTrial,
    "lint": Findings,
    "ls": list[RunLine],
    "status": MarkedStatus,
    "wait": RunStatus,
    "logs": LogLine,
    "events": Stamped,
    "metrics": Curves | list[MetricName],
    "diff": ComparedRuns | Account,
    "watch": WatchedStatus | list[ListedJob],
    "nccl": RankAnswers,
    "restart": RankAnswers,
    "signal": RankAnswers,
    "stop": RankAnswers,
    "rm": Removed,
    "prune": Removed | Removable,
    "diagnose": Diagnosis | RunDiagnosis,
    "dump": Dumped,
    "doctor": ExaminationDocument,
    "export": Manifest,
    "presets": list[ListedPreset] | ShownPreset | Written | list[NamedSettings] | list[NcclVariable],
    "advise": AdviceDocument,
    "trust": Trusted | list[TrustedFile] | Written,
    "candidates": list[Candidate],
    "autostop": Answer,
    "down": Answer,
    "note": Notes,
    "tag": Tags,
    "notify": ListedChannels | TriedChannels | SentNotices,
    "settings": Settings | ExampleSettings,
    "profile": Profiled,
    "share": Shared,
    "uninstall": Leftovers,
}
"""Verb → type of its document, or of the alternatives. Verbs of BY_LINE print one per line."""

WITHOUT = {
    "attach": "a screen",
    "replay": "a screen",
    "completion": "a script for a shell",
    "example": "a script for training",
    "mcp": "a server's answers",
    "man": "a man page",
    "serve": "an address to open",
}
"""Verbs that print no JSON, and what they print instead."""


BY_LINE = ("logs", "events")
"""Verbs that print a document per line."""


OPEN = (PlanElsewhere, NodeExamination)
"""Types that are printed with further fields."""


@functools.cache
def _validator(verb: str) -> jsonschema.Draft202012Validator:
    types = Resource.from_contents(json.loads((FOLDER / SHARED).read_text()))
    registry: Registry[Any] = Registry().with_resource(SHARED, types)
    written = json.loads((FOLDER / f"{verb}.json").read_text())
    return jsonschema.Draft202012Validator(written, registry=registry)


def check(verb: str, document: Any) -> None:
    """Raise ValidationError if the document does not fit the schema of the verb."""
    _validator(verb).validate(document)


def checked(words: Sequence[str], out: str) -> list[Any]:
    """Check the output of a command line with --json, and return its documents.

    Of a verb that prints a document per line, only the last document of each kind is checked. Raises ValidationError,
    and ValueError if a line is no JSON.
    """
    verb = words[0]
    documents = [json.loads(each) for each in (out.splitlines() if verb in BY_LINE else [out])]
    for document in {one["event"]["type"] if verb == "events" else "": one for one in documents}.values():
        check(verb, document)
    return documents
