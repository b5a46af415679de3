"""The checks, by name."""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from e2e.runs import EXAMPLES, Run, until

from . import jobs
from .site import Check, LeftOut, Site

VERDICT_S = 60.0
"""Most seconds from the sign of a fault to its verdict; 30 are the goal, and told."""


def _job(site: Site, text: str, *options: str) -> Run:
    script = site.world.script("job.py", text)
    return site.world.run("launch", "ddp", *site.several, *options, "--", script)


def _finding(run: Run, prefix: str, seconds: float = VERDICT_S) -> tuple[dict[str, Any], float]:
    """The first finding whose id begins so, and after how many seconds."""
    began = time.monotonic()
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [one for one in run.status()["findings"] if one["id"].startswith(prefix)]
        return bool(found)

    assert until(look, seconds, every=0.5), f"no finding {prefix}…: {run.describe()}"
    return found[0], time.monotonic() - began


def telemetry(site: Site) -> str:
    """Every rank has its GPU, as NVML sees it, and the GPUs are at work."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN).healthy()
    state = run.eventually(
        lambda now: all(rank["gpu_source"] == "nvml" and rank["gpu_mem"] for rank in now["ranks"]), 30
    )
    placed = {rank["rank"]: rank["gpu"] for rank in state["ranks"]}
    assert len(set(placed.values())) == len(site.gpus), placed
    busy = run.eventually(lambda now: all((gpu["util"] or 0) > 0 for gpu in now["nodes"][0]["gpus"]), 30)
    parts = [
        f"GPU {gpu['index']}: {gpu['util']:.0f} %, {gpu['mem_used'] / 2**30:.1f} GiB, {gpu['power_w']} W"
        for gpu in busy["nodes"][0]["gpus"]
    ]
    _like_nvidia_smi(busy["nodes"][0]["gpus"])
    return f"rank → GPU {placed}; {'; '.join(parts)}"


def _like_nvidia_smi(gpus: list[dict[str, Any]]) -> None:
    """What does not change from one second to the next is as nvidia-smi says it."""
    fields = "name,memory.total,power.limit,clocks.max.sm,temperature.gpu"
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    for gpu, line in zip(gpus, done.stdout.splitlines(), strict=True):
        name, mib, watts, mhz, celsius = (field.strip() for field in line.split(","))
        assert gpu["name"] == name, (gpu, line)
        assert abs(gpu["mem_total"] / 2**20 - float(mib)) < 2, (gpu, line)
        assert abs(gpu["power_limit_w"] - float(watts)) < 1, (gpu, line)
        assert gpu["max_sm_mhz"] == int(mhz), (gpu, line)
        assert abs(gpu["temp_c"] - float(celsius)) < 10, (gpu, line)


def statements(site: Site) -> str:
    """What NCCL says at INFO is read whole: version, communicator, transports."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN, "--nccl", "DEBUG=INFO").healthy()
    said = json.loads(run.distui("diagnose", "--json").out)
    (first, *_) = said["communicators"]
    assert first["nranks"] == site.ranks, first
    assert said["first_cause"] is None, said["findings"]
    return f"NCCL {said['nccl']}, {said['nccl_lines']} lines, pairs {first['transports']}, channels {first['channels']}"


def tap(site: Site) -> str:
    """COLL for some seconds, live: lines come, and the level goes back by itself."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN).healthy()
    began = time.monotonic()
    done = run.distui("nccl", "INFO", "--subsys", "COLL", "--for", "5").fine()
    log = run.path / "node-0" / "attempt-001" / "rank-0.1.nccl"
    assert until(lambda: log.exists() and b"AllReduce" in log.read_bytes(), 10), done.out
    first = time.monotonic() - began
    assert until(lambda: any("back at" in event["text"] for event in run.of("NcclChanged")), 20)
    lines = log.read_bytes().count(b"AllReduce")
    return f"first line after {first:.1f} s, {lines} AllReduce lines of rank 0 in 5 s; {done.out.strip()}"


def restart(site: Site) -> str:
    """All ranks again, in place."""
    run = _job(site, jobs.TRAIN).healthy()
    said: str = run.distui("restart", "--yes", timeout=120).fine().out.strip()
    return said


def hang(site: Site) -> str:
    """A rank that does not join is named with its line."""
    run = _job(site, jobs.MISSING).healthy()
    finding, seconds = _finding(run, "hang-")
    assert finding["rank"] == 1, finding
    assert finding["evidence"], finding
    return f"{seconds:.0f} s: {finding['id']}: {finding['text']}"


def mismatch(site: Site) -> str:
    """Ranks that call a collective with different sizes, which gloo would end at once."""
    site.needs_gpu()
    run = _job(site, jobs.TWO_SHAPES)
    finding, seconds = _finding(run, "hang-mismatch")
    return f"{seconds:.0f} s: {finding['text']}"


def straggler(site: Site) -> str:
    """A rank with more to do in every step is the one that the others wait for."""
    run = _job(site, jobs.SLOW, "--env", "TORCH_NCCL_ENABLE_TIMING=1").healthy()
    finding, seconds = _finding(run, "straggler")
    assert finding["rank"] == 1, finding
    return f"{seconds:.0f} s: {finding['text']}"


def health_service(site: Site) -> str:
    """NCCL's RAS is asked while a rank waits; whatever it says, every rank lives on."""
    site.needs_gpu()
    run = _job(site, jobs.MISSING).healthy()
    _finding(run, "hang-")
    until(lambda: any(one["id"] == "nccl-ras" for one in run.status()["findings"]), 25, every=1.0)
    state = run.status()
    assert all(rank["state"] == "running" for rank in state["ranks"]), state["ranks"]
    said = [one["evidence"] for one in state["findings"] if one["id"] == "nccl-ras"]
    return f"RAS said {said[0]}" if said else "RAS was silent, or was not to be asked"


def snapshots(site: Site) -> str:
    """torch's own snapshot of a rank's memory, with what was recorded."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN).healthy()
    run.distui("dump", "memory", "--record").fine()
    run.distui("dump", "memory").fine()
    found = sorted(run.path.glob("node-0/attempt-001/rank-0.memory-*.pickle"))
    assert found, list(run.path.rglob("*.pickle"))
    return f"{len(found)} files, the newest {found[-1].stat().st_size:,} bytes"


def out_of_memory(site: Site) -> str:
    """CUDA's allocator gives up: rank, sizes, and what would fit."""
    site.needs_gpu()
    run = _job(site, jobs.OUT_OF_MEMORY, "--restarts", "0")
    finding, seconds = _finding(run, "oom-cuda", 180)
    assert finding["rank"] == 0, finding
    return f"{seconds:.0f} s: {finding['text']} {finding['remedy']}"


def dumps(site: Site) -> str:
    """Stacks, flight recorder and memory of all ranks."""
    run = _job(site, jobs.TRAIN).healthy()
    sizes = {what: len(run.distui("dump", what).fine().out) for what in ("stacks", "flight", "memory")}
    assert all(sizes.values()), sizes
    return f"characters: {sizes}"


def doctor(site: Site) -> str:
    """Facts of the node and, with two GPUs, NCCL between them."""
    done = site.world.distui("doctor", "--json", timeout=300)
    assert done.code in (0, 1), done.err
    found = [one["id"] for one in done.json()["findings"]]
    return f"exit status {done.code}, findings {found or 'none'}"


DEEPSPEED = str(Path(__file__).parents[1] / "launchers" / "deepspeed_script.py")


def _preset(site: Site, name: str, *options: str) -> str:
    """Ten steps of a script that obeys, whose ranks take a GPU each."""
    script = DEEPSPEED if name.startswith("ds-") else str(EXAMPLES / "chargpt.py")
    options = (*options, "--nproc-per-node", str(len(site.gpus) or site.ranks))
    run = site.world.run("launch", name, *options, "--", script, "--steps", "10")
    assert run.wait(timeout=300) == 0, run.describe()
    state, lines = run.status(), run.distui("status").fine().out.splitlines()
    training = next((line for line in lines if line.startswith("training: ")), "no training line")
    return f"{state['state']} after {state['ended'] - state['began']:.0f} s; {training}"


def _of_preset(name: str, gpu_only: bool) -> Check:
    def check(site: Site) -> str:
        if gpu_only:
            site.needs_gpu()
        if name.startswith("ds-") and importlib.util.find_spec("deepspeed") is None:
            raise LeftOut("deepspeed is not installed")
        if name != "ds-zero3-nvme":
            return _preset(site, name)
        if ctypes.util.find_library("aio") is None:
            raise LeftOut("libaio is not installed, which DeepSpeed needs for NVMe")
        return _preset(site, name, "--set", f"strategy.nvme_path={site.world.work}")

    return check


def adopt(site: Site) -> str:
    """Presets at a plain script's own DistributedDataParallel: losses as under ddp, whole checkpoints from rank 0."""
    script, seen = str(Path(__file__).parents[1] / "inrank" / "plain_gpt.py"), {}
    for name, words in (("ddp", ()), ("zero1", ("--adopt",)), ("fsdp2", ("--adopt",))):
        out, log = site.world.work / f"{name}.pt", site.world.work / f"{name}.json"
        run = site.world.run(
            "launch", name, *words, *site.several, "--", script, "--out", str(out), "--losses", str(log)
        )
        assert run.wait(timeout=300) == 0, run.describe()
        losses = json.loads(log.read_text())["losses"]
        seen[name] = losses, out.stat().st_size, run.status()["applied"]["text"]
    for name in ("zero1", "fsdp2"):
        pairs = zip(seen["ddp"][0], seen[name][0], strict=True)
        assert all(abs(one - other) < 1e-4 for one, other in pairs), seen
        assert abs(seen["ddp"][1] - seen[name][1]) < 4096, seen
    return f"{seen['zero1'][2]}; {seen['fsdp2'][2]}"


CHECKS: dict[str, Check] = {
    "telemetry": telemetry,
    "statements": statements,
    "tap": tap,
    "restart": restart,
    "hang": hang,
    "mismatch": mismatch,
    "straggler": straggler,
    "health-service": health_service,
    "out-of-memory": out_of_memory,
    "snapshots": snapshots,
    "dumps": dumps,
    "doctor": doctor,
    "adopt": adopt,
    **{
        f"preset {name}": _of_preset(name, gpu_only)
        for name, gpu_only in (
            ("ddp", False),
            ("zero1", False),
            ("fsdp1-offload", True),
            ("fsdp2", False),
            ("fsdp2-offload", True),
            ("ds-zero3", True),
            ("ds-zero3-cpu", True),
            ("ds-zero3-nvme", True),
        )
    },
}
