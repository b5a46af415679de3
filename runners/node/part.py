"""One node's part of a run: a run directory of its own, made once and continued ever after."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...presets.cluster import Seat
from ...presets.errors import PlanError
from ...presets.plan import Plan
from ...presets.render import plan_to_json
from ...presets.spread import for_host, for_node, part_id, part_run8
from .. import identity, registry
from ..agent.sealing import KEY_FILE
from ..errors import RunError
from ..local import check_python
from .document import Document, path_of

RELAY_KEY = "DISTUI_RELAY_KEY"


def training_python(plan: Plan) -> str:
    """The interpreter of the ranks on this node: the plan's, else what PATH calls python. Raises RunError.

    "" for a command, which brings its own.
    """
    if plan.launcher != "torchrun":
        return plan.python
    if plan.python:
        return check_python(plan.python)
    try:
        return check_python("python")
    except RunError:
        return check_python("python3")


def establish(document: Document, seat: Seat, cwd: str) -> registry.Entry:
    """The part of this node: made, or where it is there already its plan renewed. Raises RunError.

    What an earlier job left (attempts, journal) is never overwritten; while ranks of its live, nor is its plan.
    """
    path = registry.runs_dir() / part_id(document.run, seat.node)
    plan = document.whole()
    try:
        fitted = for_node(plan, seat.node, seat.addresses, str(path), cwd, training_python(plan))
        fitted = for_host(fitted, platform.node())
    except PlanError as error:
        raise RunError(str(error)) from None
    record = registry.RunRecord(
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
    known = registry.at(path)
    text = json.dumps(plan_to_json(fitted, masked=True), indent=1).encode()
    try:
        if known is None:
            registry.create(record, text, fitted.files)
        elif not runner_lives(known):
            for name, content in fitted.files.items():  # which may name the nodes' addresses
                (path / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                identity.write_atomically(path / name, content.encode())
            identity.write_atomically(path / registry.PLAN_FILE, text)
            identity.write_atomically(path / registry.RUN_FILE, msgspec.json.encode(record))
    except OSError as error:
        raise RunError(f"cannot write {path} ({error.strerror}): free space there") from None
    return registry.Entry(path, record)


def runner_lives(entry: registry.Entry) -> bool:
    """Whether ranks of this part may be alive on this node."""
    who = identity.read(entry.path / registry.RUNNER_FILE)
    return who is not None and not identity.elsewhere(who) and identity.alive(who)


def keep_relay_key(entry: registry.Entry) -> None:
    """Move the relay's key into a file of the part: out of this environment, which the ranks would inherit, or from
    beside the job document, where it stays for other nodes that have the same home.

    Raises RunError.
    """
    key = os.environ.pop(RELAY_KEY, "")
    brought = path_of(entry.record.whole).with_suffix(".key")
    with contextlib.suppress(OSError):
        brought.chmod(0o600)
        key = key or brought.read_text()
    if key:
        try:
            identity.write_atomically(entry.path / KEY_FILE, key.encode())
        except OSError as error:
            raise RunError(f"cannot write {entry.path / KEY_FILE}: {error.strerror}") from None


def own_environment() -> dict[str, str]:
    """Give this process the user's PYTHONPATH back, and say what our own children need instead of it.

    `boot.py` has put the bundle's library there, which is not for the ranks: see `agent.runner.environment`.
    """
    if "DISTUI_USER_PYTHONPATH" not in os.environ:
        return {}
    users = os.environ.pop("DISTUI_USER_PYTHONPATH")
    ours = {"PYTHONPATH": os.environ.pop("PYTHONPATH", ""), "DISTUI_USER_PYTHONPATH": users}
    if users:
        os.environ["PYTHONPATH"] = users
    return ours


@contextlib.contextmanager
def only_one(entry: registry.Entry) -> Iterator[None]:
    """Held by the job process of a part. Raises RunError when there is another one."""
    import fcntl

    lock = os.open(entry.path / "job.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"another job process of {entry.record.run} lives on this node") from None
    finally:
        os.close(lock)


def work_directory(plan: Plan, own: bool) -> str:
    """Where the ranks start: in this process's directory (`own`), or in the plan's. Raises RunError."""
    if own or not plan.cwd:
        return str(Path.cwd())
    path = Path(plan.cwd).expanduser()
    if not path.is_dir():
        raise RunError(
            f"{platform.node()} has no directory {path}, where the ranks are to start: put your code there"
        )
    return str(path)
