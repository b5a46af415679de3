"""Launching through SkyPilot for real: two nodes, torch on both, and what becomes of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from desk import API_SERVER, LIVE, Desk, Status, told
from slurm.cluster import Cluster

STATIC = """\
num_nodes: 2
workdir: .
resources:
  infra: slurm/distui
  cpus: 2
  memory: 4
envs:
  STEPS: 3000
secrets:
  SOME_API_KEY: hidden
run: |
  export PATH=$(dirname $JOB_PYTHON):$PATH
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  echo "a key of ${#SOME_API_KEY} letters"
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=1 --master_addr=$MASTER_ADDR --master_port=8008 \\
    --node_rank=${SKYPILOT_NODE_RANK} chargpt.py --steps $STEPS --step-delay 0.1
"""
C10D = STATIC.replace(
    "--master_addr=$MASTER_ADDR --master_port=8008 \\\n    --node_rank=${SKYPILOT_NODE_RANK} ",
    "--rdzv_backend=c10d \\\n    --rdzv_endpoint=$MASTER_ADDR:29511 --rdzv_id=$SKYPILOT_TASK_ID ",
)


@pytest.fixture(scope="module")
def lab(skypilot: Cluster) -> Iterator[Desk]:
    """A cluster of this file's own, which its first launch brings up; in the end it is gone, and so are its runs."""
    found = Desk(skypilot, "lab")
    yield found
    for run in json.loads(found.ok("ls", "--json")):
        if run["state"] in LIVE:
            found.distui("stop", run["run"], "--yes")
    if found.name in found.sky("status"):
        found.sky("down", "-y", found.name)


def at_work(found: Status) -> bool:
    """Whether both nodes' ranks take steps, also those of a torchrun inside a command."""
    ranks = found["ranks"]
    return {rank["node"] for rank in ranks} == {0, 1} and all((rank["step"] or 0) > 2 for rank in ranks)


def stages(found: Status) -> list[tuple[str, str]]:
    """Of the whole launch, as far as they have begun."""
    return [(stage["stage"], stage["state"]) for stage in found["stages"] if stage["node"] in (None, -1)]


def test_what_there_is_to_launch_on(lab: Desk) -> None:
    fits = ("--gpus", "H100:8", "--cpus", "4", "--memory", "8", "--nnodes", "2")
    rows = json.loads(lab.ok("candidates", "--on", "slurm", *fits, "--json"))
    assert [(row["infra"], row["gpus"], row["chosen"]) for row in rows] == [
        ("slurm/distui", "H100:8", True)
    ]
    assert rows[0]["price_per_hour"] is None, "SkyPilot says 0.00 where it knows no price"
    said = lab.refused("candidates", "--on", "slurm", "--gpus", "B300:8")
    assert said.startswith("distui: No enabled infrastructure has such nodes")


def test_the_api_server_dies_in_mid_launch(lab: Desk) -> None:
    """SkyPilot's client starts another one; the launch that the dead one had in hand is asked for again."""
    run = lab.launch("ddp", "orphan", "--autostop", "60", "--setup", "echo prepared on $(hostname)")
    lab.until(run, lambda found: ("provision", "begun") in stages(found), 60)
    assert sum(lab.kill("client", (word,)) for word in API_SERVER) > 5
    found = lab.until(run, at_work, 300)
    cluster = found["cluster"]
    assert (cluster["name"], cluster["infra"], cluster["autostop_min"]) == ("lab", "slurm/distui/gpu", 60)
    assert cluster["price_per_hour"] is None
    wanted = ["provision", "sync", "setup", "start"]
    assert [stage for stage in stages(found) if stage[0] in wanted] == [(name, "done") for name in wanted]
    log = (lab.run_dir(run) / "launch.log").read_text()
    assert "prepared on c1" in log
    assert "prepared on c2" in log
    assert "\\u001b" not in (lab.run_dir(run) / "journal.jsonl").read_text()
    assert json.loads(lab.ok("stop", run, "--yes", "--json"))["ok"] is True


@pytest.mark.parametrize("recipe", ["static", "c10d"])
def test_a_users_own_task_runs_as_it_is(lab: Desk, recipe: str) -> None:
    file = lab.folder / f"{recipe}.yaml"
    file.write_text(STATIC if recipe == "static" else C10D)
    said = lab.ok(
        "launch", "--task", str(file), "--cluster", "lab", "--detach", "--json", "--env", "STEPS=900"
    )
    run = json.loads(said)["run"]
    found = lab.until(run, at_work, 300)
    assert [(rank["rank"], rank["node"]) for rank in found["ranks"]] == [(0, 0), (1, 1)]
    assert "a key of 6 letters" in lab.ok("logs", run)
    files = [path for path in lab.run_dir(run).rglob("*") if path.is_file()]
    assert not [path for path in files if b"hidden" in path.read_bytes()]
    lab.ok("restart", run, "--env", "SEEN=yes", "--yes")
    lab.until(run, lambda found: found["attempt"] == 2 and at_work(found), 60)
    for host in ("c1", "c2"):
        ranks = lab.processes(host, "-u chargpt.py --steps 900")
        assert [rank.environ()["SEEN"] for rank in ranks] == ["yes"]
    lab.ok("stop", run, "--yes")


def test_a_cluster_of_another_size_is_refused(lab: Desk) -> None:
    run = lab.launch("ddp", "three", "--nnodes", "3")
    found = json.loads(lab.distui("wait", run, "--json").stdout)
    assert found["state"] == "failed"
    assert "cluster lab has 2 nodes, and this run wants 3" in found["text"], told(found)


def test_stop_in_mid_launch_says_what_remains(lab: Desk) -> None:
    run = lab.launch("ddp", "regret", "--setup", "sleep 60")
    lab.until(run, lambda found: ("setup", "begun") in stages(found), 90)
    lab.ok("stop", run, "--yes")
    found = lab.status(run)
    assert found["state"] == "stopped"
    assert "cluster lab is up and is billed: `distui down regret`" in lab.ok("events", run)
    assert not [lab.ranks(host) for host in ("c1", "c2") if lab.ranks(host)]


def test_autostop_and_down(lab: Desk) -> None:
    done = json.loads(lab.ok("autostop", "regret", "45", "--json"))
    assert done == {"ok": True, "text": "cluster lab goes down after 45 minutes without a job"}
    assert lab.status("regret")["cluster"]["autostop_min"] == 45
    assert "stays until it is taken down" in lab.ok("autostop", "regret", "off")
    wrong = lab.distui("down", "regret", "--yes", "another")
    assert wrong.returncode == 2
    assert "is not the name of the cluster" in wrong.stderr
    down = ("down", "regret", "--yes", "lab", "--json")
    assert json.loads(lab.ok(*down)) == {"ok": True, "text": "cluster lab is down"}
    assert "lab" not in lab.sky("status")
    assert json.loads(lab.ok(*down)) == {"ok": True, "text": "cluster lab is down already"}
    assert lab.refused("autostop", "regret", "5") == "distui: Cluster lab is down\n"
