"""The JSON Schemas in docs/schemas, made from the types of what `--json` of each verb prints.

With DISTUI_WRITE=1 `pytest tests/e2e/test_schemas.py` writes the files. A field that a verb prints and its type does
not have is an error there.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, Union, get_args, get_origin

import jsonschema
import msgspec
from referencing import Registry, Resource

from distui.presets.finding import LaunchFinding
from distui.presets.load import ListedPreset, ShownPreset
from distui.presets.nccl import NcclVariable
from distui.presets.plan import Plan
from distui.runners.comparison.account import Account
from distui.runners.comparison.differences import ComparedRuns
from distui.runners.diagnosis.first_cause import Diagnosis
from distui.runners.export import Manifest
from distui.runners.hub.sky_process import Candidate
from distui.runners.launch.prepare import Starts
from distui.runners.model import Stamped
from distui.runners.profile_report import Profiled
from distui.runners.status_document import MarkedStatus, RunStatus, WatchedStatus
from distui.tui.setting_guide import ExampleSettings, Settings
from distui.tui.verbs.advise import AdviceDocument
from distui.tui.verbs.control import RankAnswers
from distui.tui.verbs.diagnose import Dumped, RunDiagnosis
from distui.tui.verbs.doctor import ExaminationDocument, NodeExamination
from distui.tui.verbs.launch import Answer, Started
from distui.tui.verbs.lint import Findings
from distui.tui.verbs.listing import RunLine
from distui.tui.verbs.logs import LogLine
from distui.tui.verbs.metrics import Curves, MetricName
from distui.tui.verbs.notes import Notes, Tags
from distui.tui.verbs.notify import ListedWays, SentNotices, TriedWays
from distui.tui.verbs.presets import NamedSettings, Trusted, TrustedFile, Written
from distui.tui.verbs.removal import Removable, Removed
from distui.tui.verbs.status import ListedJob

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"

Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PrintedPlan(Plan):
    """What `plan_to_json` and `Prepared.json` make of a plan."""

    coordinates: list[dict[str, int]]
    starts: Starts
    findings: list[LaunchFinding] | msgspec.UnsetType = msgspec.UNSET


class PlanElsewhere(TypedDict):
    """With --on and --hosts; further fields are about the nodes."""

    plan: PrintedPlan
    findings: NotRequired[list[LaunchFinding]]


STARTED = Started | RunStatus | PrintedPlan | PlanElsewhere
"""With --detach; without; with --dry-run."""

DOCUMENTS: dict[str, Any] = {
    "launch": STARTED,
    "exec": STARTED,
    "demo": Started | RunStatus,
    "rerun": STARTED,
    "plan": PrintedPlan | PlanElsewhere,
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
    "notify": ListedWays | TriedWays | SentNotices,
    "settings": Settings | ExampleSettings,
    "profile": Profiled,
}
"""By verb: a document, or what it may be; of `logs` and `events` a line of many."""

WITHOUT = {
    "attach": "a screen",
    "replay": "a screen",
    "completion": "a script for a shell",
    "mcp": "a server's answers",
    "man": "a man page",
}
"""Verbs that print no JSON, and what they print instead."""


BY_LINE = ("logs", "events")
"""Verbs that print a document in each line."""


OPEN = (PlanElsewhere, NodeExamination)
"""Types that are printed with further fields."""
TYPES = "types"
"""The file of the types that several verbs print."""
WIDTH = 100
"""Characters of a line of a schema; what is longer gets a line per item."""


@functools.cache
def _validator(verb: str) -> jsonschema.Draft202012Validator:
    types = Resource.from_contents(json.loads((FOLDER / f"{TYPES}.json").read_text()))
    registry: Registry[Any] = Registry().with_resource(f"{TYPES}.json", types)
    written = json.loads((FOLDER / f"{verb}.json").read_text())
    return jsonschema.Draft202012Validator(written, registry=registry)


def check(verb: str, document: Any) -> None:
    """Raises ValidationError."""
    _validator(verb).validate(document)


def checked(words: Sequence[str], out: str) -> list[Any]:
    """The documents that a command line with --json printed; of many lines the last of each kind is checked.

    Raises ValidationError, and ValueError for what is no JSON.
    """
    verb = words[0]
    documents = [json.loads(each) for each in (out.splitlines() if verb in BY_LINE else [out])]
    for document in {one["event"]["type"] if verb == "events" else "": one for one in documents}.values():
        check(verb, document)
    return documents


def files() -> dict[str, str]:
    """The text of each schema by the name of its file: one per verb, and the types that several of them use."""
    alternatives = {verb: _alternatives(document) for verb, document in DOCUMENTS.items()}
    every_type = [kind for kinds in alternatives.values() for kind in kinds]
    parts, definitions = msgspec.json.schema_components(every_type, ref_template="#/$defs/{name}")
    for kind in _described(every_type):
        definitions[kind.cls.__name__] = _exact(kind, definitions[kind.cls.__name__])
    left = iter(parts)
    bodies = {verb: [next(left) for _ in kinds] for verb, kinds in alternatives.items()}
    used = {verb: _reached(body, definitions) for verb, body in bodies.items()}
    users = Counter(name for names in used.values() for name in names)
    shared = {name for name, count in users.items() if count > 1}
    texts = {TYPES: _text("types of several verbs", {}, definitions, shared)}
    for verb, body in bodies.items():
        title = f"distui {verb} --json{' (each line)' if verb in BY_LINE else ''}"
        document = {"anyOf": body} if len(body) > 1 else body[0]
        texts[verb] = _text(title, _pointing_to(document, shared), definitions, used[verb] - shared, shared)
    return texts


def _described(types: Sequence[Any]) -> list[Any]:
    """Every struct, dataclass and typed dict in these types, as msgspec describes it."""
    found: dict[Any, Any] = {}
    pending: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            pending += node
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in found:
            found[id(node)] = node
            pending += [getattr(node, name) for name in node.__struct_fields__]
    return [node for node in found.values() if hasattr(node, "fields")]


def _exact(kind: Any, definition: Values) -> Values:
    """The definition of a type of which every field is printed, and no other."""
    config = getattr(kind.cls, "__struct_config__", None)
    if config is not None and (config.omit_defaults or config.array_like):
        return definition
    always = {field.encode_name for field in kind.fields if _is_printed(field)} | {
        getattr(kind, "tag_field", "")
    }
    sorted_names = isinstance(kind, msgspec.inspect.TypedDictType)  # which are declared in another order
    properties = {
        name: {key: value for key, value in definition["properties"][name].items() if key != "default"}
        for name in (kind.cls.__annotations__ if sorted_names else definition["properties"])
    }
    exact = definition | {
        "properties": properties,
        "required": [name for name in properties if name in always],
    }
    return exact if kind.cls in OPEN else exact | {"additionalProperties": False}


def _is_printed(field: msgspec.inspect.Field) -> bool:
    """Whether the field is always printed; one whose default is UNSET is not."""
    return field.required or (field.default, field.default_factory) != (
        msgspec.NODEFAULT,
        msgspec.NODEFAULT,
    )


def _alternatives(document: Any) -> Sequence[Any]:
    return get_args(document) if get_origin(document) in (Union, UnionType) else [document]


def _reached(schema: Any, definitions: Values) -> set[str]:
    """Names of the definitions that a schema refers to, directly or through others."""
    names: set[str] = set()
    pending = _references(schema)
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            pending |= _references(definitions[name])
    return names


def _references(schema: Any) -> set[str]:
    return set(re.findall(r'"#/\$defs/([\w.]+)"', json.dumps(schema)))


def _pointing_to(schema: Values, shared: Collection[str]) -> Values:
    """The schema with references to shared types leading into their file."""

    def target(match: re.Match[str]) -> str:
        return f'"{TYPES}.json#/$defs/{match[1]}"' if match[1] in shared else match[0]

    pointing: Values = json.loads(re.sub(r'"#/\$defs/([\w.]+)"', target, json.dumps(schema)))
    return pointing


def _text(
    title: str, body: Values, definitions: Values, own: Collection[str], shared: Collection[str] = ()
) -> str:
    """The text of one file, whose definitions are `own`."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **body}
    if own:
        document["$defs"] = {
            name: _pointing_to(_named_by_its_key(definitions[name]), shared) for name in sorted(own)
        }
    return _laid_out(document) + "\n"


def _named_by_its_key(definition: Values) -> Values:
    """Without the title, and without the docstring of the type, which is about code."""
    return {key: value for key, value in definition.items() if key not in ("title", "description")}


def _laid_out(value: Any, indent: str = "", before: int = 0) -> str:
    """JSON with a line per property; anything else that fits on a line is on one. `before`: characters before it."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + before + len(line) < WIDTH:
        return line
    inner = f"{indent} "
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        words = textwrap.fill(line[1:-1], WIDTH, initial_indent=inner, subsequent_indent=inner)
        return f"[\n{words}\n{indent}]"
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _laid_out(item, inner) for item in value) + f"\n{indent}]"
    items = []
    for key, item in value.items():
        name = f"{inner}{json.dumps(key)}: "
        broken = WIDTH if key == "properties" and len(item) > 1 else len(name)
        items.append(name + _laid_out(item, inner, broken))
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"
