"""From what a user typed to a plan, and from the plan to a run; shared by the command line and the launch screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..presets.errors import PlanError
from ..presets.load import load
from ..presets.model import Loaded
from ..presets.nccl import check
from ..presets.plan import Plan, Request, command_plan, make_plan
from ..presets.render import plan_to_json, render
from ..presets.spread import for_host
from ..runners import local, registry
from ..runners.errors import RunError


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan and the record under which it would run."""

    plan: Plan
    record: registry.RunRecord

    def start(self) -> registry.Entry:
        """Start it. Raises RunError."""
        return local.start(self.plan, self.record)

    def text(self) -> str:
        """What `--dry-run` prints."""
        return render(self.plan)

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return plan_to_json(self.plan, masked=True)


def pairs(words: Sequence[str], option: str, prefix: str = "") -> dict[str, str]:
    """`K=V` words as a mapping; `prefix` is put before names that lack it. Raises RunError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.replace("_", "").isalnum():
            raise RunError(f"{option} {word}: write it as NAME=VALUE")
        found[name if name.startswith((prefix, f"TORCH_{prefix}")) else prefix + name] = value
    return found


def host_pairs(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """`--env-on HOSTS:K=V` words: pattern of host names → variables. Raises RunError."""
    found: dict[str, dict[str, str]] = {}
    for word in words:
        pattern, colon, pair = word.partition(":")
        if not colon or not pattern:
            raise RunError(
                f"--env-on {word}: write it as HOSTS:NAME=VALUE, as in gpu0?:NCCL_SOCKET_IFNAME==eth1"
            )
        found.setdefault(pattern, {}).update(pairs([pair], "--env-on"))
    return found


def nccl_pairs(words: Sequence[str]) -> dict[str, str]:
    """`--nccl K=V` words, checked against the catalogue. Raises RunError."""
    found = pairs(words, "--nccl", "NCCL_")
    for name, value in found.items():
        problem = check(name, value)
        if problem is not None:
            raise RunError(problem)
    return found


def prepare(
    preset: str,
    overrides: Sequence[str],
    request: Request,
    port: int | None = None,
    *,
    check_torch: bool = True,
) -> Prepared:
    """Plan a run of a script under a preset on this machine. Raises RunError and PresetError."""
    return _prepare(load(preset, overrides), request, port, check_torch)


def _prepare(loaded: Loaded, request: Request, port: int | None, check_torch: bool) -> Prepared:
    record = registry.new_record(request.name or run_name(request.script))
    found = local.place(record, request, port)
    try:
        plan = for_host(make_plan(loaded, request, found), record.host)
    except PlanError as error:
        raise RunError(str(error)) from None
    if check_torch:
        local.check_python(plan.python)
    if port is not None:
        _check_port(port)
    return Prepared(plan, record)


def prepare_command(command: tuple[str, ...], request: Request) -> Prepared:
    """Plan a run of any command. Raises RunError."""
    record = registry.new_record(request.name or run_name(command[0] if command else None))
    try:
        plan = command_plan(command, request, local.place(record, request))
        return Prepared(for_host(plan, record.host), record)
    except PlanError as error:
        raise RunError(str(error)) from None


def _check_port(port: int) -> None:
    import socket

    if not 0 < port < 65536:
        raise RunError(f"--port {port}: a port is a number from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise RunError(
                f"port {port} is not free ({error.strerror}): choose another, or leave --port out"
            ) from None


def run_name(script: str | None) -> str:
    """A run's name from its script: the stem, with what no name may hold replaced."""
    stem = (script or "run").rsplit("/", 1)[-1].removesuffix(".py")
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem
    )
    return kept.lstrip("._-")[:64] or "run"
