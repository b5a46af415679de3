"""One node's part of a run: a separate run directory, created once and then continued."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from pathlib import Path

import msgspec

from ...presets.base_dirs import private_folder
from ...presets.finding import PlanError
from ...presets.node_plans import for_host, for_node, part_id, part_run8
from ...presets.plan import Plan
from ...presets.plan_json import plan_to_json
from ...presets.seats import Seat
from ...presets.secrets import SECRET_WORDS
from ..inrank.secure_channel import KEY_FILE
from ..run import environment, file_io, run_directories
from ..run.errors import RunError
from ..run.machine import check_python
from ..run.run_record import RunRecord
from .job_document import Document, path_of

RELAY_KEY = "DISTUI_RELAY_KEY"


def training_python(plan: Plan) -> str:
    """Interpreter of the ranks on this node: the plan's, else `python` on PATH. Raises RunError.

    For a command that needs no interpreter, the plan's value, usually "".
    """
    if plan.launcher != "torchrun":
        return plan.python
    if plan.python:
        return check_python(plan.python)
    try:
        return check_python("python")
    except RunError:
        return check_python("python3")


def establish(document: Document, seat: Seat, cwd: str) -> run_directories.Entry:
    """Create the part of this node, or renew the plan of an existing one. Raises RunError.

    Attempts and journal of an earlier job are never overwritten; its plan stays too while its ranks live.
    """
    path = run_directories.runs_dir() / part_id(document.run, seat.node)
    plan = document.whole()
    try:
        fitted = for_node(plan, seat.node, seat.addresses, str(path), cwd, training_python(plan))
        fitted = for_host(fitted, platform.node())
    except PlanError as error:
        raise RunError(str(error)) from None
    record = RunRecord(
        run=fitted.run,
        run8=part_run8(document.run8, seat.node),
        name=document.name,
        created=document.created,
        host=platform.node(),
        kind="node",
        node=seat.node,
        nnodes=plan.nnodes,
        whole=document.run,
    )
    earlier = run_directories.at(path)
    text = json.dumps(plan_to_json(fitted, masked=True), indent=1).encode()
    try:
        if earlier is None:
            run_directories.create(record, text, fitted.files)
            environment.write(path, environment.of_launch(os.environ, fitted.env))
        elif not runner_lives(earlier):
            for name, content in fitted.files.items():  # they may contain the nodes' addresses
                private_folder((path / name).parent)
                file_io.write_atomically(path / name, content.encode())
            file_io.write_atomically(path / run_directories.PLAN_FILE, text)
            environment.write(path, environment.of_launch(os.environ, fitted.env))
            file_io.write_atomically(path / run_directories.RUN_FILE, msgspec.json.encode(record))
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}): free space there") from None
    return run_directories.Entry(path, record)


def runner_lives(entry: run_directories.Entry) -> bool:
    """Whether ranks of this part may be alive on this node."""
    who = file_io.read(entry.path / run_directories.RUNNER_FILE)
    return who is not None and not file_io.elsewhere(who) and file_io.alive(who)


def secrets_of(entry: run_directories.Entry) -> dict[str, str]:
    """Secrets of the part in this job's environment: its agents get them from here, because no file has them."""
    kept = environment.read(entry.path)
    return {} if kept is None else environment.remembered(kept.hidden | {SECRET_WORDS}, os.environ)


def keep_relay_key(entry: run_directories.Entry) -> None:
    """Move the relay's key into a file of the part; raise RunError if that file cannot be written.

    The key comes from this environment, which the ranks would inherit, or from a file next to the job document, which
    stays for other nodes with this home.
    """
    key = os.environ.pop(RELAY_KEY, "")
    brought = path_of(entry.record.whole).with_suffix(".key")
    with contextlib.suppress(OSError):
        brought.chmod(0o600)
        key = key or brought.read_text()
    if key:
        try:
            file_io.write_atomically(entry.path / KEY_FILE, key.encode())
        except OSError as error:
            raise RunError(f"cannot write {entry.path / KEY_FILE}: {error.strerror}") from None


def own_environment() -> dict[str, str]:
    """Restore the user's PYTHONPATH in this process, and return the variables that distui's own children need instead.

    `boot.py` has set it to the bundle's library, which ranks must not use: see `agent.runner.environment`.
    """
    if "DISTUI_USER_PYTHONPATH" not in os.environ:
        return {}
    users = os.environ.pop("DISTUI_USER_PYTHONPATH")
    ours = {"PYTHONPATH": os.environ.pop("PYTHONPATH", ""), "DISTUI_USER_PYTHONPATH": users}
    if users:
        os.environ["PYTHONPATH"] = users
    return ours


def work_directory(plan: Plan, own: bool) -> str:
    """Working directory of the ranks: this process's (`own`), or the plan's. Raises RunError."""
    if own or not plan.cwd:
        return str(Path.cwd())
    path = Path(plan.cwd).expanduser()
    if not path.is_dir():
        raise RunError(
            f"{platform.node()} has no directory {path}, where the ranks are to start: put your code there"
        )
    return str(path)
