"""What `--json` of each verb prints, as types, from which docs/schemas/ is made.

With DISTUI_WRITE=1 `pytest tests/e2e/test_schemas.py` writes the files anew. A field more in what a verb prints is an
error there, so that a schema never keeps silent about one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
from msgspec import Struct

from distui.presets.nccl import NcclVariable
from distui.runners.comparison.account import Account
from distui.runners.export import Manifest
from distui.runners.model import Checkpoint, Cluster, FirstCause, Gpu, Host, PlanSummary, Stamped, Wrapped
from distui.runners.status import Applied

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"

Values = dict[str, Any]


class Document(Struct, forbid_unknown_fields=True):
    """All fields are there, and no other."""


class RunFinding(Document):
    id: str
    severity: str
    text: str
    role: str
    rank: int | None
    node: int | None
    remedy: str
    evidence: list[str]
    ranks: list[int]
    since: float | None


class Training(Document):
    step: int | float | None
    total: int | float | None
    fraction: float | None
    eta_s: float | None
    still_s: float | None
    epoch: float | None
    loss: float | None
    lr: float | None
    grad_norm: float | None
    tokens_s: float | None
    samples_s: float | None
    step_s: float | None
    mfu: float | None
    values: dict[str, float]
    not_finite: dict[str, str]
    sources: dict[str, str]
    at: float | None
    age_s: float | None
    earlier: bool


class NewestCheckpoint(Checkpoint, kw_only=True, frozen=True):
    age_s: float | None
    saved: int


class Node(Document):
    node: int
    host: str
    state: str
    age_s: float | None
    problem: str | None
    outcome: str | None
    gpus: list[Gpu]
    gpus_age_s: float | None
    gpu_problem: str | None
    host_metrics: Host | None


class Rank(Document):
    rank: int
    local_rank: int
    node: int
    pid: int | None
    state: str
    exit_code: int | None
    signal: int | str | None
    cpu_percent: float | None
    rss_bytes: int | None
    gpu: int | None
    gpu_source: str | None
    gpu_mem: int | None
    step: int | None
    step_s: float | None
    still_s: float | None
    wait_percent: float | None
    age_s: float | None
    log_age_s: float | None
    nccl_debug: str | None
    hook: str | None
    made: Wrapped | None
    mesh: dict[str, int]


class Attempt(Document):
    number: int
    began: float
    ended: float | None
    lasted_s: float | None
    cause: str
    env_diff: dict[str, str | None]
    env_seen: dict[str, str | None]
    env_differs: dict[str, Any]
    outcome: str | None
    first_cause: FirstCause | None
    text: str
    idle: str | None


class Stage(Document):
    stage: str
    node: int | None
    state: str
    began: float
    ended: float | None
    text: str


class Status(Document):
    run: str
    name: str
    state: str
    hung: bool
    attempt: int | None
    began: float | None
    ended: float | None
    exit_code: int | None
    text: str
    plan: PlanSummary | None
    applied: Applied | None
    training: Training
    no_step_yet: str | None
    checkpoint: NewestCheckpoint | None
    nodes: list[Node]
    ranks: list[Rank]
    findings: list[RunFinding]
    attempts: list[Attempt]
    cluster: Cluster | None
    stages: list[Stage]
    agent_pid: int | None
    runner_pid: int | None


class MarkedStatus(Status, kw_only=True):
    tags: list[str]
    note: str | None


class WatchedStatus(Status, kw_only=True):
    missing: list[str]


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


class Finding(Document):
    id: str
    severity: str
    where: str
    value: str
    text: str
    remedy: str


class Findings(Document):
    findings: list[Finding]


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
    findings: list[Finding] = []


class PlanElsewhere(Struct):
    """With --on and --hosts."""

    plan: Plan
    findings: list[Finding] = []


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


class Live(Document):
    state: str
    hung: bool
    attempt: int
    findings: list[RunFinding]
    missing: list[str]


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
    live: Live | msgspec.UnsetType = msgspec.UNSET


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
    findings: list[Finding]
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


STARTED = Started | Status | Plan | PlanElsewhere
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
    "launch": STARTED, "exec": STARTED, "demo": Started | Status, "rerun": STARTED, "plan": Plan | PlanElsewhere,
    "lint": Findings, "ls": list[ListedRun], "status": MarkedStatus, "wait": Status, "logs": LogLine, "events": Stamped,
    "metrics": Curves | list[MetricName], "diff": ComparedRuns | Account,
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


@functools.cache
def _validator(verb: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / f"{verb}.json").read_text()))


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


def schema(verb: str) -> dict[str, Any]:
    """The JSON Schema of what a verb prints."""
    types = getattr(DOCUMENTS[verb], "__args__", ()) if _is_union(DOCUMENTS[verb]) else (DOCUMENTS[verb],)
    parts, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    body = {"anyOf": list(parts)} if len(parts) > 1 else parts[0]
    each = " (each line)" if verb in BY_LINE else ""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"distui {verb} --json{each}",
        **body,
        "$defs": {name: _tidied(part) for name, part in sorted(components.items())},
    }


def _is_union(kind: Any) -> bool:
    return type(kind).__name__ in ("UnionType", "Union", "_UnionGenericAlias")


def _tidied(part: dict[str, Any]) -> dict[str, Any]:
    """Without docstrings of types, which are about code."""
    return {key: value for key, value in part.items() if key != "description"}


def text(verb: str) -> str:
    """Of its file."""
    return json.dumps(schema(verb), indent=1, ensure_ascii=False) + "\n"
