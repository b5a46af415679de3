"""A launch: the request, its plan under a record, what that prints, the start; on this machine here, elsewhere in
hosts.py and sky.py."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.nccl import check, full_name
from ...presets.plan import Place, Plan, Request, command_plan, make_plan
from ...presets.plurals import plural
from ...presets.render import LOG_CAP, for_host, plan_to_json, render, rendezvous_port
from ...presets.sanitize import quoted
from ...presets.secrets import mask, mask_value, mask_words
from ...presets.torchrun import MAX_RESTARTS
from ...presets.worker_group import DISTUI, TORCH
from .. import local_agent, own_runs, run_directories
from ..environment import pairs
from ..errors import RunError
from ..hub.launch_order import CARGO, SkyRequest
from ..hub.merged_run import LAUNCH_FILE
from ..hub.on_hosts import HostsRequest
from ..hub.sky_process import check_installed
from ..inrank.secure_channel import KEY_FILE
from ..journal import RunRecord
from ..logs import log_settings
from ..node.job import HUB_FILE, Document
from ..notify import ways
from ..notify.rule_words import OFF
from ..wire.client import stem

REQUEST_FILE = "request.json"
"""In a run directory: what was asked for, as `LaunchRequest` has it, and from which directory."""
PORT_OPTIONS = ("--rdzv-endpoint", "--master-port", "--main_process_port", "--master_port")
PORT_VARIABLES = ("NCCL_RAS_ADDR", "MASTER_PORT")


class LaunchPlace(ABC):
    """Where a launch goes; each kind plans for itself."""

    @abstractmethod
    def prepare(self, launch: LaunchRequest) -> Prepared:
        """Plan a run there. Raises RunError, PresetError and PlanError."""


@dataclass(frozen=True, slots=True)
class Here(LaunchPlace):
    """This machine."""

    def prepare(self, launch: LaunchRequest) -> Prepared:
        """A script under a preset, or any command."""
        request, command = launch.request, launch.command
        loaded = load(launch.preset, launch.overrides) if command is None else None
        script = request.script if command is None else next(iter(command), None)
        record = run_directories.new_record(request.name or run_name(script))
        place = local_agent.place(record, request, launch.port)
        plan = make_plan(loaded, request, place) if loaded else command_plan(command or (), request, place)
        plan = for_host(plan, record.host)
        if request.no_python or loaded is None:
            _check_program(plan)
        if loaded is not None:
            local_agent.check_python(plan.python)
        if launch.port is not None:
            _check_free(launch.port)
        return Prepared(plan, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A script under a preset, a command, or a task of SkyPilot, and where."""

    request: Request = field(default_factory=Request)
    """The script with its arguments, and what all of them have: name, variables, restarts."""
    preset: str = ""
    """Name of the preset; "" for a command or a task."""
    overrides: tuple[str, ...] = ()
    """Fields of the preset that are changed: "mesh.tp=2"."""
    command: tuple[str, ...] | None = None
    """Any program, supervised as it is; on this machine."""
    task: str = ""
    """File of a SkyPilot task; on SkyPilot's nodes."""
    place: LaunchPlace = field(default_factory=Here)
    port: int | None = None
    """Of the rendezvous; None: a free one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch that is planned and not started: the plan, and the record under which it would run."""

    plan: Plan
    record: RunRecord
    order: HostsRequest | SkyRequest | None = None
    """What the run's hub carries out; None: this machine's agent starts the plan."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Secrets for the hub's memory alone, beside those of the plan."""
    shell: Mapping[str, str] | None = None
    """What the ranks on this machine inherit; None: this process's environment."""
    details: str = ""
    """What is printed below the plan: the hosts, or the SkyPilot task."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    yaml: str = ""
    """The task as SkyPilot gets it, secrets masked; "" where SkyPilot brings no nodes."""
    asked: LaunchRequest | None = None
    """What was asked for, which the run directory keeps for a rerun."""
    cwd: str = ""
    """The directory in which it was asked for; "": this process's."""

    def text(self) -> str:
        """What `--dry-run` prints."""
        text = render(self.plan, self._preview().lines(self.plan))
        return f"{text}\n{self.details}" if self.details else text

    def json(self) -> dict[str, Any]:
        """The same as JSON values."""
        plan = plan_to_json(self.plan, masked=True) | {"starts": asdict(self._preview().masked())}
        return plan if self.order is None else {"plan": plan, **self.about}

    def _preview(self) -> Preview:
        if self.order is None:
            shell = os.environ if self.shell is None else self.shell
            return preview_of(self.plan, shell, self.record.run8)
        return preview_of(self.plan, {}, here=False)

    def start(self) -> run_directories.Entry:
        """Write it down and start its agent, or its hub, which launches.

        Raises RunError; where SkyPilot is missing before anything is written.
        """
        local_agent.check_system()
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
        """Order, job document and the run's key; the latter two also where SkyPilot takes them to the nodes."""
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


def prepare(launch: LaunchRequest) -> Prepared:
    """Plan a run, wherever it goes; nothing is started. Raises RunError and PresetError."""
    configured = ways.load()
    words = ways.resolved(launch.request.notify, configured)
    try:
        ready = launch.place.prepare(launch)
    except PlanError as error:
        raise RunError(str(error)) from None
    plan, wrong = ready.plan, () if words == (OFF,) else configured.problems
    cap, kept = launch.request.log_cap, log_settings.LogSettings()
    if cap is None:
        kept = log_settings.load()
        cap, wrong = kept.cap, tuple(dict.fromkeys((*wrong, *kept.problems)))
    plan = replace(
        plan,
        log_cap=cap,
        origins={**plan.origins, LOG_CAP: str(configured.path)} if kept.cap else plan.origins,
        notify=words,
        notes=(*plan.notes, *wrong),
        passed=(*plan.passed, *wrong),
    )
    return replace(ready, plan=plan, asked=launch)


def request_text(launch: LaunchRequest, cwd: str) -> str:
    """What was asked for as JSON, secrets masked."""
    document: dict[str, Any] = msgspec.to_builtins(launch)
    masked = mask_value(document)
    request, before = masked["request"], document["request"]
    request |= {name: _masked(before[name]) for name in ("env", "nccl")}
    request["hosts"] = {pattern: _masked(values) for pattern, values in before["hosts"].items()}
    request["args"] = mask_words(before["args"])
    masked["command"] = None if launch.command is None else mask_words(launch.command)
    masked["place"] = {"kind": type(launch.place).__name__, **masked["place"]}
    return json.dumps({"cwd": cwd, **masked}, indent=1)


def _masked(values: Mapping[str, str]) -> dict[str, str]:
    return {name: mask(name, value) for name, value in values.items()}


def place_of_nodes(record: RunRecord, port: int | None, **about: Any) -> Place:
    """Nodes that are not this machine, as the plan takes them; `port`: of the rendezvous, None: that of the run's id."""
    port = rendezvous_port(record.run8) if port is None else port
    run_dir = str(run_directories.runs_dir() / record.run)
    return Place(run=record.run, run_dir=run_dir, port=port, ras_port=port + 1, python="", **about)


def check_inside(script: str | None, workdir: str) -> None:
    """That a script, seen from `workdir`, lies in it: only what lies there is copied. Raises PlanError."""
    if script is None or "://" in workdir or Path(script).is_absolute() or script.startswith("~"):
        return
    if not (Path(workdir) / script).resolve().is_relative_to(Path(workdir).resolve()):
        raise PlanError(
            f"Script {script} lies outside {workdir}, and only that directory is copied to the nodes: cd to a "
            "directory that holds the script, or name one with --workdir"
        )


def hub_record(record: RunRecord, plan: Plan) -> RunRecord:
    """The record of a run that a hub keeps."""
    return msgspec.structs.replace(record, kind="hub", nnodes=plan.nnodes)


def check_port(port: int | None) -> None:
    """A port of the rendezvous of several nodes; the one after it is NCCL's RAS's. Raises RunError."""
    if port is not None and not 0 < port < 65535:
        raise RunError(f"--port {port}: a port is a number from 1 to 65534")


def _check_program(plan: Plan) -> None:
    """What cannot be executed is refused before anything starts. Raises RunError."""
    problem = local_agent.refusal(plan.command[0], plan.cwd, {**os.environ, **plan.env})
    if problem is not None:
        raise RunError(problem)


def _check_free(port: int) -> None:
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


# -----------------------------------------------------------------------------------------------------------
# What a plan starts beyond what stands in it: the runner's command, the ranks' argv, each rank's variables, files.
# Pure, but for the interpreter's path. What only the start of an attempt decides stands in angle brackets. The facts are
# those of inrank/elastic.py, inrank/runner.py and torch's local_elastic_agent.py; a test compares them with
# /proc/PID/environ of real ranks.


INRANK = Path(__file__).resolve().parent.parent / "inrank"
RANK, LOCAL, ATTEMPT, FOLDER = "<rank>", "<local rank>", "<attempt>", "attempt-<attempt, three digits>"
PORT = "<port chosen at each attempt>"
THERE = "<distui on the node>"
"""Where the code of distui lies on a node of several."""
FILES = (
    *("*.json", "*.jsonl*", "*.fold", "*.log", "*.lock", "environ", own_runs.MARK, "metrics/*"),
    f"node-<node>/attempt-{ATTEMPT}/rank-{RANK}.*",
    f"times/node-<node>/attempt-{ATTEMPT}/rank-{RANK}.*",
)
"""What is written below the run directory beside the plan's own files."""


@dataclass(frozen=True, slots=True)
class RankVariable:
    name: str
    value: str
    """With placeholders for what differs, or is not there yet."""
    origin: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What starts."""

    runner: tuple[str, ...]
    """The command of the runner: one on each node."""
    ranks: tuple[str, ...]
    """The command of each rank, or the user's command where that is what the runner starts."""
    env: tuple[RankVariable, ...]
    """Beyond the plan's environment, for each rank."""
    files: tuple[str, ...]
    """Patterns of what is written."""
    sockets: str

    def lines(self, plan: Plan) -> list[str]:
        """The part of the printed plan, without the newlines."""
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
        """The same without the values of secrets: `starts` of a plan as JSON."""
        return Preview(
            tuple(mask_words(self.runner)),
            tuple(mask_words(self.ranks)),
            tuple(replace(variable, value=mask(variable.name, variable.value)) for variable in self.env),
            self.files,
            self.sockets,
        )


def preview_of(plan: Plan, shell: Mapping[str, str], run8: str = "", here: bool = True) -> Preview:
    """What `plan` starts in an environment like `shell`. `here`: on this machine alone, as the run `run8`."""
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
    """What torch's elastic launcher gives to each rank."""
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
    """The value of an option in the launcher's own words; the last one wins."""
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
    """What distui's runner gives to each rank, or to a command."""
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
    """As inrank/elastic.py has it."""
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
    """Quoted for a shell, but for what is no value yet."""
    return text if "<" in text and ">" in text else quoted(text)


# -----------------------------------------------------------------------------------------------------------
# Words that a user types (`K=V`, `HOSTS:K=V`, a script's path) as what a request holds.


def host_pairs(words: Sequence[str]) -> dict[str, dict[str, str]]:
    """`--env-on HOSTS:K=V` words: pattern of host names → variables. Raises RunError."""
    by_pattern: dict[str, dict[str, str]] = {}
    for word in words:
        pattern, colon, pair = word.partition(":")
        if not colon or not pattern:
            raise RunError(
                f"--env-on {word}: write it as HOSTS:NAME=VALUE, as in gpu0?:NCCL_SOCKET_IFNAME==eth1"
            )
        by_pattern.setdefault(pattern, {}).update(pairs([pair], "--env-on"))
    return by_pattern


def nccl_pairs(words: Sequence[str]) -> dict[str, str]:
    """`--nccl K=V` words, checked against the catalogue. Raises RunError."""
    values = {full_name(name): value for name, value in pairs(words, "--nccl").items()}
    for name, value in values.items():
        problem = check(name, value)
        if problem is not None:
            raise RunError(problem)
    return values


def shell_words(text: str, field: str) -> list[str]:
    """What was typed as the words that a shell makes of it. Raises RunError."""
    try:
        return shlex.split(text)
    except ValueError:
        raise RunError(f"{field}: a quote is open in {text}: close it") from None


def run_name(script: str | None) -> str:
    """A run's name from its script: the stem, with what no name may hold replaced."""
    stem = (script or "run").rsplit("/", 1)[-1].removesuffix(".py")
    kept = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in stem
    )
    return kept.lstrip("._-")[:64] or "run"
