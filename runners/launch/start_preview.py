"""The effects of a plan's start: the runner's command, the ranks' argv, each rank's variables, files.

Pure, except for the interpreter's path. Values that only the start of an attempt determines are in angle brackets. The
facts are those of inrank/elastic.py, inrank/runner.py and torch's local_elastic_agent.py. A test compares them with
/proc/PID/environ of real ranks.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...presets.launchers.torchrun import MAX_RESTARTS
from ...presets.plan import Plan
from ...presets.plurals import plural
from ...presets.rank_env import DISTUI, TORCH
from ...presets.sanitize import quoted
from ...presets.secrets import mask, mask_words
from ..inrank import deepspeed_cpu
from ..run import own_runs
from ..run.wire.client import stem

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
    if plan.launcher == "torchrun":
        files = f"{folder}/rank-{RANK}"
        values |= {
            "TORCHELASTIC_ERROR_FILE": f"{files}.error.json",
            "NCCL_DEBUG_FILE": f"{files}.nccl",
            "DISTUI_RUNNER_PID": "<pid of the runner>",
            "DISTUI_RANK_FILES": files,
        }
        if plan.hook:
            values["DISTUI_HOOK"] = f"{sockets}.r{LOCAL}"
    else:
        values |= {"DISTUI_RUN_DIR": run_dir, "NCCL_DEBUG_FILE": f"{folder}/rank-{node}.%p.nccl"}
        if plan.hook:
            shim = f"{inrank}/shim"
            values["PATH"] = f"{shim}{os.pathsep}{env.get('PATH', os.defpath)}"
            values["BASH_FUNC_torchrun%%"] = f'() {{ {shlex.quote(shim + "/torchrun")} "$@"; }}'
            values["DISTUI_COMMAND_HOOK"] = f"<pid of the runner> {sockets}.r0"
            values["DISTUI_RANK_FILES"] = f"{folder}/rank-{node}"
    if plan.nnodes > 1:
        values |= {"DISTUI_NODE": "<node>", "DISTUI_NNODES": str(plan.nnodes)}
        values["DISTUI_HEAD"] = "<address of the first node>"
    if plan.hook or deepspeed_cpu.is_needed(env):
        rest = env.get("DISTUI_USER_PYTHONPATH", env.get("PYTHONPATH", ""))
        values["PYTHONPATH"] = os.pathsep.join([f"{inrank}/site", *filter(None, [rest])])
    return values


def _words(argv: Sequence[str]) -> str:
    return " ".join(_value(word) for word in mask_words(argv))


def _value(text: str) -> str:
    """Quote a text for a shell, except placeholders."""
    return text if "<" in text and ">" in text else quoted(text)
