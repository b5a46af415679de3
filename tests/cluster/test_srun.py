"""Ranks that `srun` starts inside a job of Slurm: `distui exec -- srun python train.py` in a batch script."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from desk import Status, as_in_schema, told
from slurm.cluster import Cluster

from distui.runners.node import package

RANKS = """\
import os, sys, time, torch, torch.distributed as dist
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == world - 1 and os.path.exists("enough"):
        dist.destroy_process_group()  # else torch may abort while the interpreter ends
        sys.exit(7)
    time.sleep(0.05)
"""
BATCH = """\
#!/bin/bash
export PATH={python}:$PATH MASTER_ADDR=$(hostname) MASTER_PORT=29533
exec {distui} exec --name {name} --restarts 0 -- srun python -u ranks.py
"""


@dataclass
class Batch:
    """A batch job of the rig that runs distui on its first node."""

    cluster: Cluster
    name: str
    distui: str
    folder: Path
    """From outside."""

    def submit(self, *shape: str) -> None:
        """`shape`: options of sbatch."""
        inside = f"{self.cluster.inner_home}/{self.folder.name}"
        python = Path(self.cluster.job_python).parent
        (self.folder / "ranks.py").write_text(RANKS)
        script = BATCH.format(python=python, distui=self.distui, name=self.name)
        (self.folder / "job.sh").write_text(script)
        words = [
            "sbatch",
            "--parsable",
            "--job-name",
            self.name,
            "-D",
            inside,
            "-o",
            "job.out",
            *shape,
            "job.sh",
        ]
        done = self.cluster.on("login", words, cwd=inside)
        assert done.returncode == 0, done.stderr
        self.job = done.stdout.strip()

    def status(self) -> Status:
        """As somebody reads it on the first node."""
        found: Status = json.loads(self.ok(f"status {self.name} --json"))
        return found

    def ok(self, words: str) -> str:
        """Stdout of a verb on the first node."""
        done = self.cluster.on("c1", ["sh", "-c", f"{self.distui} {words}"], 60)
        out = self.folder / "job.out"
        assert done.returncode == 0, done.stderr + (out.read_text() if out.exists() else "")
        return str(as_in_schema(words.split(), done).stdout)

    def until(self, so: Callable[[Status], bool]) -> Status:
        """The status for which it is so."""
        begun = self.cluster.shared_home / ".local/state/distui/runs"
        self.cluster.wait(lambda: any(begun.glob(f"*-{self.name}-*/journal.jsonl")), "the run begins", 60)
        found: Status = {}

        def seen() -> bool:
            nonlocal found
            found = self.status()
            return so(found)

        self.cluster.wait(seen, "the run is as it should be", 120, every=1.0)
        return found

    def exit_code(self) -> str:
        """What Slurm writes down for the job, once it has ended: CODE:SIGNAL."""

        def words() -> dict[str, str]:
            shown = self.cluster.on("login", ["scontrol", "show", "job", self.job, "-o"]).stdout.split()
            return dict(word.split("=", 1) for word in shown if "=" in word)

        self.cluster.wait(lambda: words()["JobState"] in ("FAILED", "COMPLETED"), "the batch job ends", 60)
        return words()["ExitCode"]


@pytest.fixture
def batch(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Batch]:
    """distui unpacked in the home folder of the nodes, and a folder there; what was submitted is gone in the end."""
    bundle = package.build()
    there = cluster.shared_home / ".distui" / bundle.name
    if not there.exists():
        shutil.copytree(bundle, there)
    name = f"by-srun-{len(request.node.name)}"
    folder = cluster.shared_home / name
    folder.mkdir()
    found = Batch(cluster, name, f"sh ~/.distui/{bundle.name}/node.sh distui", folder)
    yield found
    cluster.on("login", ["scancel", "--name", name])
    cluster.wait(lambda: cluster.idle() == len(cluster.nodes), "the nodes are free again", 60)


def stepping(found: Status, ranks: list[int]) -> bool:
    return [rank["rank"] for rank in found["ranks"]] == ranks and all(
        (rank["step"] or 0) > 3 for rank in found["ranks"]
    )


def test_two_tasks_on_a_node_are_two_ranks(batch: Batch) -> None:
    batch.submit("-N1", "-n2", "-w", "c1")
    found = batch.until(lambda found: stepping(found, [0, 1]))
    assert [(rank["local_rank"], rank["hook"]) for rank in found["ranks"]] == [(0, "armed"), (1, "armed")]
    assert len({rank["pid"] for rank in found["ranks"]}) == 2
    (batch.folder / "enough").touch()
    assert batch.exit_code() != "0:0"
    found = batch.status()
    assert found["state"] == "failed", told(found)
    assert (found["ranks"][1]["state"], found["ranks"][1]["exit_code"]) == ("failed", 7), told(found)
    cause = found["attempts"][-1]["first_cause"]
    assert (cause["rank"], cause["exit_code"]) == (1, 7), told(found)


def test_of_two_nodes_those_ranks_are_seen_that_run_beside_distui(batch: Batch) -> None:
    batch.submit("-N2", "-n2")
    found = batch.until(lambda found: stepping(found, [0]))
    assert [node["host"] for node in found["nodes"]] == ["c1"]
    assert f"{batch.name}  running  attempt 1  1 of 2 ranks" in batch.ok(f"status {batch.name}")
