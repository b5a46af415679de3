"""Nodes on this host: a HOME of their own, an address of the loopback each, and what a job started on them says."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from patience import HANG_S

from distui.presets.load import load
from distui.presets.node_plans import rendezvous_port
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.plan_json import plan_to_json
from distui.presets.request import Request
from distui.runners.run import journal, run_directories
from distui.runners.run.commands import Restart
from distui.runners.run.machine import free_port
from distui.runners.run.state import RunState
from distui.runners.run.wire.client import SocketLink, new_id

EXAMPLE = Path(__file__).parents[3] / "presets" / "examples" / "plain_ddp.py"
ENDLESS = ("--steps", "0", "--step-delay", "0.02")


class Cluster:
    """Two or more nodes of one run, all on this host."""

    def __init__(
        self, nnodes: int | str = 2, script: Path = EXAMPLE, args: tuple[str, ...] = ENDLESS, **place: Any
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))  # short: socket paths hold 108 bytes
        self.state, self.sockets = self.root / "state", self.root / "s"
        for path in (self.state, self.sockets, self.root / ".distui" / "jobs"):
            path.mkdir(parents=True, mode=0o700)
        self.record = run_directories.new_record("spread")
        self.plan = self._plan(nnodes, script, args, place)
        self.count = self.plan.nnodes
        self.addresses = [f"127.0.0.{number + 1}" for number in range(self.count)]
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DISTUI_", "SLURM_", "XDG_"))
        }
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "NODE_RANK"):
            kept.pop(name, None)
        self.env = {
            **kept,
            "HOME": str(self.root),
            "XDG_STATE_HOME": str(self.state),
            "DISTUI_SOCKET_DIR": str(self.sockets),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "DISTUI_RELAY_KEY": secrets.token_hex(32),
        }
        self.jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.document = {
            "run": self.record.run,
            "run8": self.record.run8,
            "name": self.record.name,
            "created": self.record.created,
            "nnodes": self.count,
            "plan": plan_to_json(self.plan, masked=True),
            "addresses": None,
        }
        self.write_document()

    def _plan(
        self, nnodes: int | str, script: Path, args: tuple[str, ...], place: Mapping[str, Any]
    ) -> Plan:
        where = Place(
            run=self.record.run, run_dir="", port=rendezvous_port(self.record.run8), ras_port=free_port(),
            gpus=0, cores=2, cwd="", python="", nodes=None, script_source=script.read_bytes(),
        )  # fmt: skip
        request = Request(
            script=str(script), args=args, nnodes=nnodes, nproc_per_node=1, grace_s=3.0, **place
        )
        return make_plan(load("ddp", (), cwd=Path("/"), env={"HOME": "/nonexistent"}), request, where)

    def write_document(self) -> None:
        """Put the job document where every node finds it."""
        path = self.root / ".distui" / "jobs" / f"{self.record.run}.json"
        path.write_text(json.dumps(self.document))

    def skypilot(self, node: int) -> dict[str, str]:
        """What SkyPilot gives a task on a node (its documentation, "Distributed jobs")."""
        return {
            "SKYPILOT_NODE_RANK": str(node),
            "SKYPILOT_NODE_IPS": "\n".join(self.addresses),
            "SKYPILOT_NUM_NODES": str(len(self.addresses)),
            "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        }

    def job(self, node: int, **env: str) -> subprocess.Popen[bytes]:
        """Start a node's job as SkyPilot's task does; its stdout is in `said(node)`."""
        with (self.root / f"job-{node}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "distui.runners.node", "job", self.record.run],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.root, start_new_session=True,
                env={**self.env, **self.skypilot(node), **env},
            )  # fmt: skip
        self.jobs[node] = process
        return process

    def said(self, node: int) -> str:
        """Everything the job of a node has said."""
        return (self.root / f"job-{node}.out").read_text(errors="replace")

    def path(self, node: int) -> Path:
        """Run directory of a node's part."""
        return self.state / "distui" / "runs" / f"{self.record.run}.n{node}"

    def socket(self, node: int) -> Path:
        return self.sockets / f"{self.record.run8}n{node}.sock"

    def now(self, node: int) -> RunState:
        """What a node's journal says."""
        return RunState().apply_all(journal.read(self.path(node)))

    def pid(self, node: int, who: str) -> int:
        """Of a node's "agent" or "runner"."""
        return int(json.loads((self.path(node) / f"{who}.json").read_text())["pid"])

    def lines(self, node: int) -> dict[str, int]:
        """Sizes of the ranks' stdout of a node by path."""
        found = self.path(node).glob("node-*/attempt-*/rank-*.out")
        return {path.relative_to(self.path(node)).as_posix(): path.stat().st_size for path in found}

    def steps(self, attempt: int, seconds: float = HANG_S) -> None:
        """Wait until every node's rank writes in this attempt."""
        for node in self.jobs:
            until(functools.partial(self._writes, node, attempt), seconds, self.describe)

    def _writes(self, node: int, attempt: int) -> bool:
        where = f"node-{node}/attempt-{attempt:03d}/"
        wrote = any(name.startswith(where) and size for name, size in self.lines(node).items())
        return wrote and self._running(node, attempt)

    def _running(self, node: int, attempt: int) -> bool:
        """Whether a node's journal has the start of its ranks, which may write before the agent has read of it."""
        state = self.now(node)
        if state.attempt > attempt:
            return True
        ranks = [rank for rank in state.ranks.values() if rank.pid is not None]
        return state.attempt == attempt and len(ranks) == len(state.ranks) > 0

    async def restart(self, *nodes: int, **env: str) -> list[Any]:
        """The command to the agents of these nodes at the same time, with these variables; their answers."""
        import asyncio

        links = [await SocketLink.connect(self.socket(node)) for node in nodes]
        try:
            async with asyncio.timeout(HANG_S):
                return list(await asyncio.gather(*(link.send(Restart(new_id(), env)) for link in links)))
        finally:
            for link in links:
                await link.close()

    def processes(self) -> dict[int, str]:
        """Every living process of these nodes: pid → command line."""
        return having(f"XDG_STATE_HOME={self.state}")

    def die(self, node: int) -> None:
        """Nothing of a node lives any more, as after a power cut: its job, what serves its run directory, its ranks."""
        job = self.jobs.pop(node)
        while pids := [job.pid] * (job.poll() is None) + self._of(node):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _of(self, node: int) -> list[int]:
        path, seat = str(self.path(node)), f"SKYPILOT_NODE_RANK={node}"
        seated = having(seat)
        return [pid for pid, words in self.processes().items() if pid in seated or path in words.split()]

    def describe(self) -> str:
        """How it stands, for the message of a failed assertion."""
        parts = []
        for node in self.jobs:
            parts.append(f"--- job {node}: {self.said(node)[-1500:]}")
            for name in ("agent.log", "runner.log"):
                path = self.path(node) / name
                parts.append(
                    f"--- {name}: {path.read_text(errors='replace')[-1500:] if path.exists() else None}"
                )
        return "\n".join(parts)

    def exit_codes(self, *jobs: subprocess.Popen[bytes], seconds: float = HANG_S) -> list[int]:
        """Of these jobs, once they have ended, which a hub has heard: a part waits some time for one that must come."""
        deadline = time.monotonic() + seconds
        while any(job.poll() is None for job in jobs) and time.monotonic() < deadline:
            for node in range(self.count):
                self._visit(node)
            time.sleep(0.2)
        return [job.wait(0.1) for job in jobs]

    def _visit(self, node: int) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1.0)
            link.connect(str(self.socket(node)))
            link.recv(1)

    def close(self) -> None:
        """End what is left, by pid; fail if anything was."""
        for process in self.jobs.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.exit_codes(*self.jobs.values(), seconds=60)
        try:
            until(lambda: not self.processes(), 60.0, lambda: f"left behind: {self.processes()}")
        finally:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self.jobs.values():
                process.wait(10)
            shutil.rmtree(self.root, ignore_errors=True)


def ledger(cluster: Cluster, node: int) -> list[tuple[int, str, int]]:
    """Number, cause and world size of every attempt that a node knows of."""
    return [(one.number, one.cause, one.world_size) for one in cluster.now(node).attempts]


def until(wanted: Callable[[], object], seconds: float, why: Callable[[], str]) -> None:
    """Wait for what another process does and no event tells; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


def having(entry: str) -> dict[int, str]:
    """Living processes that were started with this `NAME=VALUE`: pid → command line. Zombies are none."""
    needle, found = entry.encode(), {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in ("Z", "X") and needle in Path(f"/proc/{name}/environ").read_bytes().split(
                b"\0"
            ):
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                found[int(name)] = b" ".join(words).decode("utf-8", "replace").strip()
    found.pop(os.getpid(), None)
    return found
