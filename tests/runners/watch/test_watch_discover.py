"""Ranks are found by their environment, and nothing else is taken for one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from watch_jobs import Jobs
from watch_jobs import jobs as jobs

from distui.runners.run.errors import NoSuchRunError
from distui.runners.watch.foreign_jobs import (
    Scan,
    WatchedJob,
    command_of,
    find_job,
    job_key,
    launcher_kind,
    name_of,
    scan,
)


def job_of(pid: int) -> WatchedJob:
    return find_job(scan(), pid)


@pytest.mark.real
def test_a_rank_is_found_and_its_forked_children_are_not_ranks(jobs: Jobs) -> None:
    began = time.time()
    child = jobs.rank(forks=2, CUDA_VISIBLE_DEVICES="3", WANDB_API_KEY="hush")
    jobs.await_ranks(1)
    job = job_of(child.pid)
    assert (job.launcher, job.launchers, job.world_size, job.run) == ("python", frozenset(), 2, None)
    assert "hush" not in repr(job)
    assert began - 1.0 < job.began < time.time() + 1.0
    assert job.cwd == str(jobs.folder)
    assert list(job.ranks) == [0]
    found = job.ranks[0]
    assert (found.pid, found.local_rank, found.env["CUDA_VISIBLE_DEVICES"]) == (child.pid, 0, "3")
    assert found.out.path == str(jobs.folder / "stdout")
    assert (found.err.path, found.err.why) == (None, "a pipe")
    assert len(found.below) == 2
    assert job_of(next(iter(found.below))[0]).ranks[0].pid == child.pid


@pytest.mark.real
def test_ranks_of_one_rendezvous_are_one_job(jobs: Jobs) -> None:
    zero, one = jobs.rank(), jobs.rank(RANK="1", LOCAL_RANK="1")
    other = jobs.rank(MASTER_PORT="2", DISTUI_RUN_ID="run-7")
    none = jobs.rank(WORLD_SIZE="many")
    jobs.await_ranks(4)
    first, second = job_of(zero.pid), job_of(other.pid)
    assert {rank: found.pid for rank, found in first.ranks.items()} == {0: zero.pid, 1: one.pid}
    assert [found.pid for found in second.ranks.values()] == [other.pid]
    assert second.run == "run-7"
    with pytest.raises(NoSuchRunError, match=f"process {none.pid} does not belong"):
        job_of(none.pid)
    if os.getuid() == 0:  # who can start a process of another user
        env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        strangers = jobs.start(["/bin/sleep", "60"], env, user=65534)
        with pytest.raises(NoSuchRunError):
            job_of(strangers.pid)
    with pytest.raises(NoSuchRunError, match="start the job first"):
        find_job(Scan(0.0))
    with pytest.raises(NoSuchRunError, match=f"2 jobs run here: .*{zero.pid} "):
        find_job(Scan(0.0, {job.key: job for job in (first, second)}))


def test_a_process_without_all_three_variables_is_no_rank(tmp_path: Path) -> None:
    whole = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    proc = fake_proc(tmp_path, 4)
    for pid, missing in enumerate((*whole, None), 2):
        env = [f"{name}={value}".encode() for name, value in whole.items() if name != missing]
        (proc / str(pid) / "environ").write_bytes(b"\0".join(env))
        (proc / str(pid) / "cmdline").write_bytes(b"python\0train.py\0")
    seen = scan(str(proc), now=5.0)
    assert {pid for pid, _ in seen.alive} == {2, 3, 4, 5}
    (job,) = seen.jobs.values()
    assert [found.pid for found in job.ranks.values()] == [5]


def fake_proc(root: Path, count: int) -> Path:
    """A /proc of `count` processes that are there as far as `stat` goes, and gone when more is read."""
    (root / "stat").write_text("cpu 1 2 3\nbtime 1000\n")
    for pid in range(2, count + 2):
        folder = root / str(pid)
        folder.mkdir()
        fields = "S 1 " + "0 " * 17 + "4711 0 0 " + "0 " * 20
        (folder / "stat").write_text(f"{pid} (a b) c) {fields}\n")
    return root


def test_processes_that_end_during_the_scan_are_left_out(tmp_path: Path) -> None:
    assert scan(str(fake_proc(tmp_path, 3)), now=5.0).jobs == {}


def test_what_ranks_of_a_job_have_in_common() -> None:
    for env, key in [
        ({"DISTUI_RUN_ID": "r", "TORCHELASTIC_RUN_ID": "x"}, "distui r"),
        ({"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "elastic x"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "h:1 world 8"),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}, "slurm 5.0"),
        ({}, "world 8"),
    ]:
        assert job_key({"WORLD_SIZE": "8", **env}) == key


def test_what_a_command_line_says() -> None:
    for line, kind, name in [
        ("python3 -u -m torch.distributed.run --nproc-per-node 2 x.py", "torchrun", "run"),
        ("/venv/bin/python /venv/bin/torchrun x.py", "torchrun", "torchrun"),
        ("torchrun x.py", "torchrun", "torchrun"),
        ("/venv/bin/python3.11 /venv/bin/accelerate launch x.py", "accelerate", "accelerate"),
        ("/usr/bin/python -u -m deepspeed.launcher.launch --world_info=x", "deepspeed", "launch"),
        ("slurmstepd: [1234.0]", "srun", "slurmstepd:"),
        ("python -W ignore -u train.py --lr 1", None, "train"),
        ("python -c print(1)", None, "python"),
        ("python -m pkg.train", None, "train"),
        ("bash run.sh", None, "bash"),
        ("python", None, "python"),
    ]:
        argv = line.split(" ")
        assert launcher_kind(argv) == kind
        assert name_of(argv) == name


def test_the_command_is_shown_without_interpreter_and_without_controls() -> None:
    assert command_of(["/bin/python", "-u", "train.py", "--name", "a b"]) == "train.py --name 'a b'"
    assert "\x1b" not in command_of(["python", "x.py", "\x1b]0;title\x07\n"])
    words = ["python", "x.py", "--token", "S3cr3t99", "--db=https://u:S3cr3t99@h"]
    assert command_of(words) == "x.py --token '***' '--db=https://***@h'"
    assert launcher_kind([]) is None
