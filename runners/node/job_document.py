"""The job document: what every node of a run is told, ~/.distui/jobs/<run>.json."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.finding import PlanError
from ...presets.plan import Plan
from ...presets.render import plan_from_json, revealed
from ...presets.trusted_files import private_folder
from .. import file_io
from ..errors import RunError

HUB_FILE = "job.json"
"""The document in the hub's run directory, before it travels."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN8 = re.compile(r"[0-9a-f]{8}")


class Document(Struct, frozen=True):
    """One run on several nodes."""

    run: str
    run8: str
    name: str
    created: float
    nnodes: int
    plan: dict[str, Any]
    """`render.plan_to_json` of the plan for all nodes, with placeholders, secrets masked."""
    addresses: tuple[str, ...] | None = None
    """Of every node by number; None: whatever starts the job on the nodes says them."""

    def whole(self) -> Plan:
        """The plan for all nodes, with the secret words that this process was given. Raises RunError."""
        try:
            return revealed(plan_from_json(self.plan), os.environ)
        except PlanError as error:
            raise RunError(str(error)) from None


class Start(Struct, frozen=True):
    """What `node.sh start` reads from stdin: the document, and what must not stand in a file."""

    job: Document
    env: dict[str, str] = {}
    """What `render.hidden` gives of the plan, and DISTUI_RELAY_KEY."""


def path_of(run: str) -> Path:
    """Where the document of a run lies on this node. Raises RunError for what cannot be a run's id."""
    if not _RUN.fullmatch(run):
        raise RunError(f"{run!r} is no id of a run")
    return Path.home() / ".distui" / "jobs" / f"{run}.json"


def read(run: str) -> Document:
    """Raises RunError."""
    path = path_of(run)
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"the job document {path} cannot be read: {error}") from None
    return check(document, run)


def write(document: Document) -> None:
    """Put it where `read` finds it. Raises RunError."""
    path = path_of(document.run)
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, msgspec.json.encode(document))
    except OSError as error:
        raise RunError(f"the job document {path} cannot be written: {error.strerror}") from None


def started(data: bytes, run: str) -> Start:
    """What came on stdin. Raises RunError."""
    try:
        start = msgspec.json.decode(data, type=Start)
    except msgspec.MsgspecError as error:
        raise RunError(f"what came on stdin is no start of a run: {error}") from None
    check(start.job, run)
    return start


def check(document: Document, run: str) -> Document:
    """The document itself, if it is that run's. Raises RunError."""
    if document.run != run or not _RUN8.fullmatch(document.run8):
        raise RunError(f"the job document of {run} is that of {document.run!r}")
    return document
