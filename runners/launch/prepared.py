"""A planned launch: its plan and record, its printed form, and its start."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ...presets.finding import PlanError
from ...presets.launchers.torchrun import MAX_RESTARTS
from ...presets.plan import Place, Plan
from ...presets.plurals import plural
from ...presets.render import plan_to_json, render, rendezvous_port
from ...presets.request import Request
from ...presets.sanitize import quoted
from ...presets.secrets import mask, mask_value, mask_words
from ...presets.worker_group import DISTUI, TORCH
from ..hub.launch_order import CARGO, SkyRequest
from ..hub.merged_run import LAUNCH_FILE
from ..hub.on_hosts import HostsRequest
from ..hub.sky_process import check_installed
from ..inrank.secure_channel import KEY_FILE
from ..node import local_agent
from ..node.job import HUB_FILE, Document
from ..run import machine, own_runs, run_directories
from ..run.errors import RunError
from ..run.journal import RunRecord
from ..run.wire.client import stem

REQUEST_FILE = "request.json"
"""File in a run directory with the `Request` and the directory of the launch."""
PORT_OPTIONS = ("--rdzv-endpoint", "--master-port", "--main_process_port", "--master_port")
PORT_VARIABLES = ("NCCL_RAS_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned launch that is not started: the plan, and the record of the future run."""

    plan: Plan
    record: RunRecord
    order: HostsRequest | SkyRequest | None = None
    """The order for the run's hub, or None if this machine's agent starts the plan."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """More secrets, which only the hub's memory holds."""
    shell: Mapping[str, str] | None = None
    """Environment that the ranks on this machine inherit, or None for this process's."""
    details: str = ""
    """Text below the plan: the hosts, or the SkyPilot task."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The details as JSON values."""
    yaml: str = ""
    """The task as SkyPilot gets it, with secrets masked, or "" without SkyPilot."""
    asked: Request | None = None
    """The request, which the run directory keeps for a rerun."""
    cwd: str = ""
    """The directory of the request, or "" for this process's."""

    def text(self) -> str:
        """Return the output of `--dry-run`."""
        text = render(self.plan, self._preview().lines(self.plan))
        return f"{text}\n{self.details}" if self.details else text

    def json(self) -> dict[str, Any]:
        """Return the output as JSON values."""
        plan = plan_to_json(self.plan, masked=True) | {"starts": asdict(self._preview().masked())}
        return plan if self.order is None else {"plan": plan, **self.about}

    def _preview(self) -> Preview:
        if self.order is None:
            shell = os.environ if self.shell is None else self.shell
            return preview_of(self.plan, shell, self.record.run8)
        return preview_of(self.plan, {}, here=False)

    def start(self) -> run_directories.Entry:
        """Write the run's files, and start its agent or hub, which launches.

        Raises RunError. If SkyPilot is missing, nothing is written before.
        """
        machine.check_system()
        asked = (
            {} if self.asked is None else {REQUEST_FILE: request_text(self.asked, self.cwd or os.getcwd())}
        )
        if self.order is None:
            return local_agent.start(self.plan, self.record, asked, shell=self.shell)
        if isinstance(self.order, SkyRequest):
            asyncio.run(check_installed())
        files = asked | self._hubs_files(self.order)
        return local_agent.start(self.plan, self.record, files, self.hidden)

    def _hubs_files(self, order: HostsRequest | SkyRequest) -> dict[str, str]:
        """Return order, job document and the run's key. SkyPilot also takes the latter two to the nodes."""
        record = self.record
        document = Document(
            run=record.run,
            run8=record.run8,
            name=record.name,
            created=record.created,
            nnodes=self.plan.nnodes,
            plan=plan_to_json(self.plan, masked=True),
            addresses=order.addresses if isinstance(order, HostsRequest) else None,
        )
        text, key = msgspec.json.encode(document).decode(), secrets.token_hex(32)
        files = {
            LAUNCH_FILE: json.dumps(msgspec.to_builtins(order), indent=1),
            HUB_FILE: text,
            KEY_FILE: key,
        }
        if isinstance(order, SkyRequest):
            files |= {f"{CARGO}/jobs/{record.run}.json": text, f"{CARGO}/jobs/{record.run}.key": key}
        return files


def request_text(request: Request, cwd: str) -> str:
    """Return the request as JSON, with secrets masked."""
    masked: dict[str, Any] = mask_value(msgspec.to_builtins(request))
    masked |= {"env": _masked(request.env), "nccl": _masked(request.nccl)}
    masked["env_on"] = {pattern: _masked(values) for pattern, values in request.env_on.items()}
    masked["args"] = mask_words(request.args)
    masked["command"] = None if request.command is None else mask_words(request.command)
    return json.dumps({"cwd": cwd, "request": masked}, indent=1)


def _masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: mask(name, value) for name, value in values.items()}


def place_of_nodes(record: RunRecord, port: int | None, **about: Any) -> Place:
    """Return the place of a run on other machines. `port`: of the rendezvous, or None for the one from the run's ID."""
    port = rendezvous_port(record.run8) if port is None else port
    run_dir = str(run_directories.runs_dir() / record.run)
    return Place(run=record.run, run_dir=run_dir, port=port, ras_port=port + 1, python="", **about)


def check_inside(script: str | None, workdir: str) -> None:
    """Check that a script, relative to `workdir`, lies in it, because only `workdir` is copied. Raises PlanError."""
    if script is None or "://" in workdir or Path(script).is_absolute() or script.startswith("~"):
        return
    if not (Path(workdir) / script).resolve().is_relative_to(Path(workdir).resolve()):
        raise PlanError(
            f"Script {script} lies outside {workdir}, and only that directory is copied to the nodes: cd to a "
            "directory that holds the script, or name one with --workdir"
        )


def hub_record(record: RunRecord, plan: Plan) -> RunRecord:
    """Return the record of a run with a hub."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def check_port(port: int | None) -> None:
    """Check a rendezvous port of several nodes. The next port is for NCCL's RAS. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


# -----------------------------------------------------------------------------------------------------------
# The additional effects of a plan's start: the runner's command, the ranks' argv, each rank's variables, files. Pure,
# except for the interpreter's path. Values that only the start of an attempt determines are in angle brackets. The
# facts are those of inrank/elastic.py, inrank/runner.py and torch's local_elastic_agent.py. A test compares them with
# /proc/PID/environ of real ranks.


INRANK = Path(__file__).resolve().parent.parent / "inrank"
RANK, LOCAL, ATTEMPT, FOLDER = "<rank>", "<local rank>", "<attempt>", "attempt-<attempt, three digits>"
PORT = "<port chosen at each attempt>"
THERE = "<distui on the node>"
"""Placeholder for the location of distui's code on one of several nodes."""
FILES = (
    *("*.json", "*.jsonl*", "*.fold", "*.log", "*.lock", "environ", own_runs.MARK, "metrics/*"),
    f"node-<node>/attempt-{ATTEMPT}/rank-{RANK}.*",
    f"times/node-<node>/attempt-{ATTEMPT}/rank-{RANK}.*",
)
"""Files below the run directory, in addition to the plan's."""


@dataclass(frozen=True, slots=True)
class RankVariable:
    name: str
    value: str
    """With placeholders for values that differ or are not known yet."""
    origin: str


@dataclass(frozen=True, slots=True)
class Preview:
    """Processes, variables and files of a start."""

    runner: tuple[str, ...]
    """The command of the runner, one per node."""
    ranks: tuple[str, ...]
    """The command of each rank, or the user's command if the runner starts that."""
    env: tuple[RankVariable, ...]
    """Variables of each rank in addition to the plan's environment."""
    files: tuple[str, ...]
    """Patterns of written files."""
    sockets: str

    def lines(self, plan: Plan) -> list[str]:
        """Return this part of the printed plan, without newlines."""
        torchrun = plan.launcher == "torchrun"
        each = "each rank" if torchrun else "the command"
        where = " on each node" if plan.nnodes > 1 else ""
        rows = ["", f"runner, one process{where}", f"  {_words(self.runner)}"]
        rows += ["", f"{each}, started by the runner", f"  {_words(self.ranks)}"]
        rows += ["", f"{each} also gets ({plural(len(self.env), 'variable')})"]
        rows += [f"  {var.name}={_value(mask(var.name, var.value))}  # {var.origin}" for var in self.env]
        if not torchrun and plan.hook:
            rows.append("  a torchrun in it gives its ranks what torchrun gives, and the hook")
        rows += ["", "written", *(f"  {file}" for file in self.files), f"  {self.sockets}"]
        return rows

    def masked(self) -> Preview:
        """Return a copy with secrets masked, for `starts` of a plan's JSON."""
        return Preview(
            tuple(mask_words(self.runner)),
            tuple(mask_words(self.ranks)),
            tuple(replace(variable, value=mask(variable.name, variable.value)) for variable in self.env),
            self.files,
            self.sockets,
        )


def preview_of(plan: Plan, shell: Mapping[str, str], run8: str = "", here: bool = True) -> Preview:
    """Preview the start of `plan` in an environment like `shell`. `here`: only on this machine, as the run `run8`."""
    inrank = str(INRANK) if here else f"{THERE}/runners/inrank"
    run_dir = plan.run_dir if here else "<run directory on the node>"
    sockets = stem(run8) if here else "<socket folder on the node>/<run>"
    env = {**shell, **plan.env}
    python = (_absolute(plan.python) if here else plan.python) or sys.executable
    torch = _of_torch(plan, env) if plan.launcher == "torchrun" else {}
    ours = _of_runner(plan, env, inrank, run_dir, sockets)
    variables = [RankVariable(*pair, TORCH) for pair in torch.items()]
    variables += [RankVariable(*pair, DISTUI) for pair in ours.items()]
    return Preview(
        runner=(python, "-u", f"{inrank}/launch.py", run_dir, "0"),
        ranks=_argv(plan, env, python),
        env=tuple(sorted(variables, key=lambda variable: variable.name)),
        files=tuple(f"{run_dir}/{name}" for name in FILES),
        sockets=f"{sockets}.{{sock,run,sub}} {sockets}.r{LOCAL}",
    )


def _absolute(python: str) -> str:
    path = shutil.which(python) if python else None
    return os.path.abspath(path) if path else python


def _argv(plan: Plan, env: Mapping[str, str], python: str) -> tuple[str, ...]:
    if plan.launcher != "torchrun":
        return plan.argv
    launchers = plan.argv[: len(plan.argv) - len(plan.command)]
    numa = any(word.replace("_", "-").startswith("--numa-binding") for word in launchers)
    head = ("<numactl as torch chooses>",) if numa else ()
    if "--no-python" in launchers:
        return (*head, *plan.command)
    return (*head, env.get("PYTHON_EXEC", python), "-u", *plan.command)


def _of_torch(plan: Plan, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch's elastic launcher gives each rank."""
    nproc, several = plan.nproc_per_node or 1, plan.nnodes > 1
    elastic = plan.nnodes_min is not None
    world = "<ranks of the nodes that are there>" if elastic else str(plan.nnodes * nproc)
    signals = _option(plan, "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    virtual = any(word.replace("_", "-") == "--virtual-local-rank" for word in plan.argv)
    values = {
        "RANK": RANK,
        "LOCAL_RANK": "0" if virtual else LOCAL,
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(nproc),
        "GROUP_RANK": "<node>" if several else "0",
        "GROUP_WORLD_SIZE": "<nodes that are there>" if elastic else str(plan.nnodes),
        "ROLE_RANK": RANK,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": _option(plan, "--role", "default"),
        "MASTER_ADDR": "<address of the first node>"
        if several
        else _option(plan, "--local-addr", "127.0.0.1"),
        "MASTER_PORT": PORT,
        "TORCHELASTIC_RESTART_COUNT": "<restarts that torch counts>",
        "TORCHELASTIC_MAX_RESTARTS": str(MAX_RESTARTS),
        "TORCHELASTIC_RUN_ID": _option(plan, "--rdzv-id", "<id of the rendezvous>"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": signals,
    }
    if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in env:
        values["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if virtual:
        values["CUDA_VISIBLE_DEVICES"] = "<one GPU each>"
    if env.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
        values["TORCHELASTIC_TIMER_FILE"] = env.get("TORCHELASTIC_TIMER_FILE") or "<path chosen by torch>"
    return values


def _option(plan: Plan, name: str, default: str) -> str:
    """Return the last value of an option in the launcher's own words."""
    words = plan.argv[: len(plan.argv) - len(plan.command)]
    for at in range(len(words) - 1, -1, -1):
        option, equals, value = words[at].partition("=")
        if option.replace("_", "-") == name:
            if equals:
                return value
            return words[at + 1] if at + 1 < len(words) else default
    return default


def _of_runner(
    plan: Plan, env: Mapping[str, str], inrank: str, run_dir: str, sockets: str
) -> dict[str, str]:
    """Return the variables that distui's runner gives each rank, or a command."""
    node = str(plan.node) if plan.nnodes == 1 else "<node>"
    folder = f"{run_dir}/node-{node}/{FOLDER}"
    values = {"DISTUI_ATTEMPT": ATTEMPT, "DISTUI_SOCKETS": sockets}
    folders = []
    if plan.launcher == "torchrun":
        files = f"{folder}/rank-{RANK}"
        values |= {
            "TORCHELASTIC_ERROR_FILE": f"{files}.error.json",
            "NCCL_DEBUG_FILE": f"{files}.nccl",
            "DISTUI_RUNNER_PID": "<pid of the runner>",
            "DISTUI_RANK_FILES": files,
        }
        if plan.hook:
            values["DISTUI_HOOK"], folders = f"{sockets}.r{LOCAL}", ["site"]
    else:
        values |= {"DISTUI_RUN_DIR": run_dir, "NCCL_DEBUG_FILE": f"{folder}/rank-{node}.%p.nccl"}
        if plan.hook:
            shim = f"{inrank}/shim"
            values["PATH"] = f"{shim}{os.pathsep}{env.get('PATH', os.defpath)}"
            values["BASH_FUNC_torchrun%%"] = f'() {{ {shlex.quote(shim + "/torchrun")} "$@"; }}'
            values["DISTUI_COMMAND_HOOK"], folders = f"<pid of the runner> {sockets}.r0", ["site"]
            values["DISTUI_RANK_FILES"] = f"{folder}/rank-{node}"
    if plan.nnodes > 1:
        values |= {"DISTUI_NODE": "<node>", "DISTUI_NNODES": str(plan.nnodes)}
        values["DISTUI_HEAD"] = "<address of the first node>"
    return values | _python_path(env, inrank, folders)


def _python_path(env: Mapping[str, str], inrank: str, folders: Sequence[str]) -> dict[str, str]:
    """Return PYTHONPATH like inrank/elastic.py."""
    if env.get("DISTUI_BACKEND") == "gloo" and env.get("ACCELERATE_USE_DEEPSPEED") == "true":
        folders = [*folders, "deepspeed_cpu"]
    if not folders:
        return {}
    rest = env.get("DISTUI_USER_PYTHONPATH", env.get("PYTHONPATH", ""))
    parts = [f"{inrank}/{name}" for name in folders] + ([rest] if rest else [])
    return {"PYTHONPATH": os.pathsep.join(parts)}


def _words(argv: Sequence[str]) -> str:
    return " ".join(_value(word) for word in mask_words(argv))


def _value(text: str) -> str:
    """Quote a text for a shell, except placeholders."""
    return text if "<" in text and ">" in text else quoted(text)


def run_name(script: str | None) -> str:
    """Return a run's name from its script: the stem, with invalid characters replaced."""
    stem = (script or "run").rsplit("/", 1)[-1].removesuffix(".py")
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem
    )
    return kept.lstrip("._-")[:64] or "run"
