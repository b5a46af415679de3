"""What `--json` of each verb prints, as types, from which docs/schemas/ is made.

With DISTUI_WRITE=1 `pytest tests/e2e/test_schemas.py` writes the files anew. A field more in what a verb prints is an
error there, so that a schema never keeps silent about one.
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import jsonschema
import msgspec
from msgspec import Struct
from referencing import Registry, Resource

from distui.presets.finding import LaunchFinding
from distui.presets.nccl import NcclVariable
from distui.runners.comparison.account import Account
from distui.runners.export import Manifest
from distui.runners.model import Stamped
from distui.runners.status_document import LiveDiagnosis, MarkedStatus, RunStatus, WatchedStatus

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"

Values = dict[str, Any]


class Document(Struct):
    """All fields are there, and no other."""


class WatchedJob(Document):
    pid: int
    name: str
    launcher: str
    ranks: int
    run: str | None


class Started(Document):
    run: str
    name: str
    path: str


class Findings(Document):
    findings: list[LaunchFinding]


class Variable(Document):
    name: str
    value: str
    origin: str


class Starts(Document):
    runner: list[str]
    ranks: list[Any]
    env: list[Variable]
    files: list[str]
    sockets: str


class Plan(Struct):
    """Besides, everything that a plan has."""

    argv: list[str]
    env: dict[str, str]
    origins: dict[str, str]
    starts: Starts
    findings: list[LaunchFinding] | msgspec.UnsetType = msgspec.UNSET


class PlanElsewhere(Struct):
    """With --on and --hosts."""

    plan: Plan
    findings: list[LaunchFinding] | msgspec.UnsetType = msgspec.UNSET


class ListedRun(Document):
    run: str
    name: str
    state: str
    attempt: int | None
    created: float
    host: str
    path: str
    preset: str | None
    nodes: int | None
    ranks: int | None
    step: int | None
    total: int | None
    exit_code: int | None
    finding: str
    lasted_s: float | None
    hung: bool
    ended: float | None
    tags: list[str]
    note: str | None
    size: int | None
    problems: list[str]
    orphans: list[int]
    on: str | msgspec.UnsetType = msgspec.UNSET


class LogLine(Document):
    time: float | None
    own: bool
    rank: int | None
    node: int
    stream: str
    source: str
    text: str


class Curve(Document):
    metric: str
    title: str
    unit: str
    node: int | None
    index: int | None
    of: int
    last: float | None
    min: float | None
    mean: float | None
    max: float | None
    means: list[float | None]
    lows: list[float | None]
    highs: list[float | None]
    samples: list[int]


class Curves(Document):
    run: str
    begin: float
    seconds: float
    count: int
    series: list[Curve]


class ComparedSide(Document):
    title: str
    run: str
    attempt: int | None
    state: str
    live: bool


class ComparedRow(Document):
    name: str
    a: str | None
    b: str | None
    kind: str
    note: str
    values: tuple[float | None, float | None]
    unit: str
    ratio: float | None


class ComparedSection(Document):
    name: str
    title: str
    note: str
    hidden: int
    rows: list[ComparedRow]


class ComparedRuns(Document):
    a: ComparedSide
    b: ComparedSide
    equal: bool
    sections: list[ComparedSection]
    notes: list[str]


class MetricName(Document):
    metric: str
    title: str
    unit: str


class Answer(Document):
    ok: bool
    text: str


class RankAnswers(Document):
    ok: bool
    text: str
    data: dict[str, str]


class Dumped(Document):
    ok: bool
    text: str
    data: dict[str, str]
    merged: list[Values] | msgspec.UnsetType | None = msgspec.UNSET


class RemovedRun(Document):
    run: str
    name: str
    path: str
    why: str
    folders: list[str]
    bytes: int


class Removed(Document):
    removed: list[RemovedRun]
    freed_bytes: int
    failed: list[str]


class Removable(Document):
    would_remove: list[RemovedRun]


class LogFinding(Struct):
    """Besides, `order` of the first cause."""

    id: str
    severity: str
    role: str
    layer: str
    confidence: str
    rank: int | None
    node: int | None
    host: str | None
    device: int | None
    ranks: list[int]
    hosts: list[str]
    time: str | None
    count: int
    text: str
    remedy: str
    env: dict[str, str]
    values: dict[str, Any]
    seen: str
    evidence: list[Values]


class Diagnosis(Document):
    files: list[str]
    unread: list[str]
    lines: int
    nccl_lines: int
    nccl: list[str]
    failed: bool
    first_cause: LogFinding | None
    victims: list[Values]
    behind: list[int]
    findings: list[LogFinding]
    nodes: list[Values]
    communicators: list[Values]
    communicators_left_out: int
    live: LiveDiagnosis | msgspec.UnsetType = msgspec.UNSET


class ExaminedNode(Struct):
    """Besides, every fact of a node that was reached."""

    name: str
    reached: bool


class Pair(Document):
    round: int
    members: list[str]
    bytes: int
    seconds: float | None
    bytes_per_s: float | None
    right: bool | None
    state: str
    problem: str | None


class Examination(Document):
    nodes: list[ExaminedNode]
    findings: list[LaunchFinding]
    backend: str | None
    pairs: list[Pair]


class ListedPreset(Document):
    name: str
    title: str
    summary: str
    strategy: str


class ShownPreset(Document):
    name: str
    values: Values
    origins: dict[str, str]


class Written(Document):
    path: str


class NcclPreset(Document):
    name: str
    when: str
    live: bool
    env: dict[str, str]


class Trusted(Document):
    path: str
    sha256: str
    since: float
    sets: list[str]


class TrustedFile(Document):
    path: str
    sha256: str
    since: float
    state: str


class FittedStrategy(Struct):
    """Besides, the bytes of each part, as `weights_bytes`."""

    key: str
    title: str
    why: str
    launch: str
    fits: bool
    kept_bytes: float
    host_bytes_per_node: float
    disk_bytes_per_node: float
    notes: list[str]


class Advice(Document):
    parameters: int
    layers: int
    hidden: int
    vocab: int
    seq: int
    micro_batch: int
    recompute: bool
    counted: Values | None
    ranks: int
    nodes: int
    gpu_memory_bytes: float
    format: str
    strategies: list[FittedStrategy]
    first: str | None
    next: str | None
    remedies: list[str]
    zero3_ranks: int | None


class Candidate(Document):
    infra: str
    instance: str
    vcpus: str
    memory_gb: str
    gpus: str
    price_per_hour: float | None
    chosen: bool


class Note(Document):
    time: float
    text: str


class Notes(Document):
    run: str
    note: str | None
    notes: list[Note]


class Tags(Document):
    run: str
    tags: list[str]


class Setting(Document):
    key: str
    value: Any
    origin: str
    about: str
    wants: str
    without: str


class Settings(Document):
    path: str
    settings: list[Setting]
    problems: list[str]


class ExampleSettings(Document):
    example: str


class ProfiledRank(Document):
    rank: int
    gpu: bool | int | str | None
    first_step: int | None
    steps: list[float]
    seconds: float
    compute: float | None
    communication: float | None
    exposed: float | None
    idle: float | None
    own_step: float | None
    shares: Values | None


class OperatorTotal(Document):
    name: str
    seconds: float
    calls: int


class Profiled(Document):
    ok: bool
    text: str
    folder: str | None
    files: dict[str, str]
    ranks: list[ProfiledRank]
    slowest: int | None
    operators: list[OperatorTotal]
    collectives: list[OperatorTotal]
    missing: dict[str, str]


STARTED = Started | RunStatus | Plan | PlanElsewhere
"""With --detach; without; with --dry-run."""


class ListedWay(Document):
    way: str
    type: str
    to: str
    rules: str
    problem: str


class ListedRule(Document):
    rule: str
    when: str


class ListedWays(Document):
    path: str
    send: list[str]
    ways: list[ListedWay]
    rules: list[ListedRule]
    problems: list[str]


class TriedWay(Document):
    way: str
    type: str
    ok: bool
    seconds: float
    why: str | None


class TriedWays(Document):
    ways: list[TriedWay]


class SentNotice(Document):
    way: str
    rule: str
    state: str
    at: float
    tries: int
    title: str | None
    why: str | None


class SentNotices(Document):
    run: str
    notices: list[SentNotice]


DOCUMENTS: dict[str, Any] = {
    "launch": STARTED, "exec": STARTED, "demo": Started | RunStatus, "rerun": STARTED, "plan": Plan | PlanElsewhere,
    "lint": Findings, "ls": list[ListedRun], "status": MarkedStatus, "wait": RunStatus, "logs": LogLine,
    "events": Stamped, "metrics": Curves | list[MetricName], "diff": ComparedRuns | Account,
    "watch": WatchedStatus | list[WatchedJob], "nccl": RankAnswers,
    "restart": RankAnswers, "signal": RankAnswers, "stop": RankAnswers, "rm": Removed, "prune": Removed | Removable,
    "diagnose": Diagnosis, "dump": Dumped, "doctor": Examination, "export": Manifest,
    "presets": list[ListedPreset] | ShownPreset | Written | list[NcclPreset] | list[NcclVariable],
    "advise": Advice, "trust": Trusted | list[TrustedFile] | Written, "candidates": list[Candidate], "autostop": Answer,
    "down": Answer, "note": Notes, "tag": Tags, "notify": ListedWays | TriedWays | SentNotices,
    "settings": Settings | ExampleSettings, "profile": Profiled,
}  # fmt: skip
"""By verb: a document, or what it may be; of `logs` and `events` a line of many."""

WITHOUT = {
    "attach": "a screen", "replay": "a screen", "completion": "a script for a shell", "mcp": "a server's answers",
    "man": "a man page",
}  # fmt: skip
"""Verbs that print no JSON, and what they print instead."""


BY_LINE = ("logs", "events")
"""Verbs that print a document in each line."""


OPEN = (Plan, PlanElsewhere, LogFinding, ExaminedNode, FittedStrategy)
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
