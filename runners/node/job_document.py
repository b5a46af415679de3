"""The job document of every node of a run: ~/.distui/jobs/<run>.json."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ...presets.base_dirs import private_folder
from ...presets.finding import PlanError
from ...presets.plan import Plan
from ...presets.plan_json import plan_from_json, revealed
from ..run import file_io
from ..run.errors import RunError

HUB_FILE = "job.json"
"""The document in the hub's run directory, before it is sent."""
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RUN8 = re.compile(r"[0-9a-f]{8}")


class Document(Struct, frozen=True):
    """Job document of one run on several nodes."""

    run: str
    run8: str
    name: str
    created: float
    nnodes: int
    plan: dict[str, Any]
    """`plan_json.plan_to_json` of the plan for all nodes, with placeholders, secrets masked."""
    addresses: tuple[str, ...] | None = None
    """Address of every node by number; None: SkyPilot has them."""

    def whole(self) -> Plan:
        """Return the plan for all nodes with the secret words from this process's environment, or raise RunError."""
        try:
            return revealed(plan_from_json(self.plan), os.environ)
        except PlanError as error:
            raise RunError(str(error)) from None


class Start(Struct, frozen=True):
    """Input of `node.sh start` on stdin: the document, and values that must not be in a file."""

    job: Document
    env: dict[str, str] = {}
    """Result of `plan_json.hidden` for the plan, and DISTUI_RELAY_KEY."""


def path_of(run: str) -> Path:
    """Path of a run's document on this node. Raises RunError for an invalid run id."""
    if not _RUN.fullmatch(run):
        raise RunError(f"{run!r} is not a valid run id")
    return Path.home() / ".distui" / "jobs" / f"{run}.json"


def read_document(run: str) -> Document:
    """Read a run's document. Raises RunError."""
    path = path_of(run)
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"the job document {path} cannot be read: {error}") from None
    return _checked(document, run)


def write_document(document: Document) -> None:
    """Write the document for `read_document`. Raises RunError."""
    path = path_of(document.run)
    try:
        private_folder(path.parent)
        file_io.write_atomically(path, msgspec.json.encode(document))
    except OSError as error:
        raise RunError(f"the job document {path} cannot be written: {error.strerror}") from None


def read_start(data: bytes, run: str) -> Start:
    """Decode the input on stdin. Raises RunError."""
    try:
        start = msgspec.json.decode(data, type=Start)
    except msgspec.MsgspecError as error:
        raise RunError(f"the job document on stdin is not valid: {error}") from None
    _checked(start.job, run)
    return start


def _checked(document: Document, run: str) -> Document:
    """Return the document if it belongs to the run. Raises RunError."""
    if document.run != run or not _RUN8.fullmatch(document.run8):
        raise RunError(f"the job document of {run} is that of {document.run!r}")
    return document
