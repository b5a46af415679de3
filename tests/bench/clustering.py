"""Two nodes through SkyPilot, on the test cluster: launch, restart, first frame, telemetry."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from ..rigs.slurm.cluster import Cluster  # type: ignore[import-not-found, unused-ignore]
from ..rigs.slurm.owned import owned  # type: ignore[import-not-found, unused-ignore]
from ..rigs.slurm.settings import Trouble  # type: ignore[import-not-found, unused-ignore]
from .figures import Row, Sample, limit_row, ratio_row
from .options import Effort
from .place import RANKS, NotReached, wait_for

OVERHEAD_GOAL_S, RESTART_GOAL, FRAME_GOAL_S, WIRE_GOAL = 5.0, 1.2, 2.0, 60.0
NAME = "bench"
TASK = """\
num_nodes: 2
workdir: .
resources:
  infra: slurm/distui
  cpus: 2
  memory: 4
run: |
  export PATH=$(dirname $JOB_PYTHON):$PATH
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=1 --master_addr=$MASTER_ADDR --master_port=8008 \\
    --node_rank=${SKYPILOT_NODE_RANK} meeting.py
"""


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with the task in the rig's client, and where the ranks say that they have met."""

    cluster: Cluster
    folder: Path

    @property
    def marks(self) -> Path:
        """Seen from outside; in the nodes it is `marks` in the home folder."""
        return Path(self.cluster.shared_home, "marks")

    @property
    def told(self) -> str:
        """The ranks' environment."""
        return f"MARKS={self.cluster.inner_home}/marks"

    def do(self, *words: str) -> str:
        """Stdout of a command that has to work. Raises NotReached."""
        done = self.cluster.client(list(words), 120, cwd=self.folder)
        if done.returncode:
            raise NotReached(f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-400:]}")
        return str(done.stdout)

    def clear(self) -> None:
        """Forget who has met."""
        for mark in self.marks.iterdir():
            mark.unlink()

    def met(self, since: float) -> float:
        """Seconds from `since` (time.time()) until both ranks had met."""

        def both() -> float | None:
            found = list(self.marks.glob("rank-?"))
            return max(float(mark.read_text()) for mark in found) - since if len(found) == 2 else None

        return wait_for("both ranks meet", both, 240)


def rows(effort: Effort) -> list[Row]:
    """All on one cluster, which is brought up first."""
    try:
        with owned() as cluster:
            cluster.start_api()
            return measured(a_desk(cluster), effort)
    except Trouble as trouble:
        raise NotReached(str(trouble)) from None


def a_desk(cluster: Cluster) -> Desk:
    """The task's folder."""
    folder = cluster.scratch / NAME
    folder.mkdir()
    (folder / "meeting.py").write_bytes((RANKS / "meeting.py").read_bytes())
    (folder / "task.yaml").write_text(TASK)
    found = Desk(cluster, folder)
    found.marks.mkdir()
    return found


def measured(desk: Desk, effort: Effort) -> list[Row]:
    """The rows. The first launch makes the cluster and is not counted."""
    plain_launch(desk)
    plain, ours, frames = [], [], []
    for _ in range(max(2, effort.launches // 2)):
        plain.append(plain_launch(desk))
        with launched(desk, "--task", "task.yaml") as (run, seconds):
            ours.append(seconds)
            frames += first_frames(desk, run)
    with launched(desk, *preset(2, 1), "--", "meeting.py") as (run, _):
        wire = telemetry(desk, effort.watch_s)
        many = restarts(desk, run, effort)
    with launched(desk, *preset(1, 2), "--", "meeting.py") as (run, _):
        one = restarts(desk, run, effort)
    extra = tuple(mine - theirs for mine, theirs in zip(ours, plain, strict=True))
    note = (
        "From the command until the ranks of both nodes have met, on a cluster that is up: "
        f"{Sample(tuple(ours), 's', 1)} through distui; beside it `sky launch` of the same file."
    )
    return [
        limit_row("2 nodes: launch through SkyPilot, more than `sky launch`", Sample(extra, "s", 1),
                  OVERHEAD_GOAL_S, str(Sample(tuple(plain), "s", 1)), (note,)),
        ratio_row("restart in place, 2 nodes of 1 rank against 1 node of 2", Sample(tuple(many), "s"),
                  Sample(tuple(one), "s"), RESTART_GOAL),
        limit_row("a node's first frame after its agent started", Sample(tuple(frames), "s"), FRAME_GOAL_S),
        limit_row("telemetry of 2 nodes, all their traffic", Sample((wire,), "kbit/s", 1), WIRE_GOAL),
    ]  # fmt: skip


def preset(nnodes: int, per_node: int) -> tuple[str, ...]:
    """Words of a launch by a preset, on the same cluster or one of its own."""
    name = NAME if nnodes == 2 else f"{NAME}-one"
    return (
        "ddp", "--on", "slurm/distui", "--nnodes", str(nnodes), "--nproc-per-node", str(per_node), "--cpus", "2",
        "--memory", "4", "--cluster", name, "--python", "JOB_PYTHON",
    )  # fmt: skip


def plain_launch(desk: Desk) -> float:
    """Seconds of SkyPilot alone; the job is gone afterwards."""
    desk.clear()
    began = time.time()
    desk.do("sky", "launch", "-y", "-d", "-c", NAME, "--env", desk.told, "task.yaml")
    seconds = desk.met(began)
    desk.do("sky", "cancel", "-y", "-a", NAME)
    return seconds


@contextlib.contextmanager
def launched(desk: Desk, *words: str) -> Iterator[tuple[str, float]]:
    """A run's id, and the seconds until its ranks had met; it is stopped in the end."""
    words = tuple(desk.cluster.job_python if word == "JOB_PYTHON" else word for word in words)
    at = words.index("--") if "--" in words else len(words)
    cluster = () if "--cluster" in words else ("--cluster", NAME)
    desk.clear()
    began = time.time()
    given = ("--env", desk.told, "--detach", "--json")
    run = str(json.loads(desk.do("distui", "launch", *words[:at], *cluster, *given, *words[at:]))["run"])
    try:
        seconds = desk.met(began)
        desk.do("distui", "wait", run, "--until", "running", "--timeout", "60")
        yield run, seconds
    finally:
        desk.do("distui", "stop", run, "--yes")


def first_frames(desk: Desk, run: str) -> list[float]:
    """Seconds from the start of each node's agent until the hub has its state."""
    path = desk.cluster.home / ".local/state/distui/runs" / run / "journal.jsonl"

    def both() -> dict[int, float] | None:
        told = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        found = {
            one.get("node", 0): one["time"]
            for one in reversed(told)
            if one["event"]["type"] == "LinkChanged" and one["event"].get("state") == "up"
        }
        return found if len(found) == 2 else None

    up = wait_for("both links", both)
    return [up[node] - agent_began(desk, host) for node, host in enumerate(("c1", "c2"))]


def agent_began(desk: Desk, host: str) -> float:
    """When a node's newest agent was started, in seconds since the epoch."""
    began: list[float] = []
    for process in desk.cluster.processes(host):
        with contextlib.suppress(psutil.Error):
            if "distui.runners.agent" in " ".join(process.cmdline()):
                began.append(process.create_time())
    if not began:
        raise NotReached(f"no agent on {host}")
    return max(began)


def restarts(desk: Desk, run: str, effort: Effort) -> list[float]:
    """Seconds from the command until all ranks have met again."""
    found = []
    for _ in range(max(3, effort.restarts // 2)):
        desk.clear()
        began = time.time()
        desk.do("distui", "restart", run, "--yes")
        found.append(desk.met(began))
    return found


def telemetry(desk: Desk, seconds: float) -> float:
    """kbit/s to and from both nodes, whose ranks only wait; a viewer is there as a hub's."""
    before, began = carried(desk), time.monotonic()
    time.sleep(seconds)
    return (carried(desk) - before) * 8 / 1000 / (time.monotonic() - began)


def carried(desk: Desk) -> int:
    """Bytes that went to and from the nodes."""
    total = 0
    for host in desk.cluster.nodes:
        text = desk.cluster.on(host, ["cat", "/proc/net/dev"]).stdout
        for line in text.splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                total += int(numbers.split()[0]) + int(numbers.split()[8])
    return total
