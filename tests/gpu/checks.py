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


def _job(site: Site, text: str, *options: str) -> Run:
    script = site.world.script("job.py", text)
    return site.world.run("launch", "ddp", *site.several, *options, "--", script)


def _finding(run: Run, prefix: str) -> tuple[dict[str, Any], float]:
    """The first finding whose id begins so, and after how many seconds."""
    began = time.monotonic()
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [one for one in run.status()["findings"] if one["id"].startswith(prefix)]
        return bool(found)

    assert until(look, every=0.5), f"no finding {prefix}…: {run.describe()}"
    return found[0], time.monotonic() - began


def telemetry(site: Site) -> str:
    """Every rank has its GPU, as NVML sees it, and the GPUs are at work."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN).healthy()
    state = run.eventually(
        lambda now: all(rank["gpu_source"] == "nvml" and rank["gpu_mem"] for rank in now["ranks"])
    )
    placed = {rank["rank"]: rank["gpu"] for rank in state["ranks"]}
    assert len(set(placed.values())) == len(site.gpus), placed
    busy = run.eventually(lambda now: all((gpu["util"] or 0) > 0 for gpu in now["nodes"][0]["gpus"]))
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
    assert until(lambda: log.exists() and b"AllReduce" in log.read_bytes()), done.out
    first = time.monotonic() - began
    assert until(lambda: any("back at" in event["text"] for event in run.of("NcclChanged")))
    lines = log.read_bytes().count(b"AllReduce")
    return f"first line after {first:.1f} s, {lines} AllReduce lines of rank 0 in 5 s; {done.out.strip()}"


def restart(site: Site) -> str:
    """All ranks again, in place."""
    run = _job(site, jobs.TRAIN).healthy()
    said: str = run.distui("restart", "--yes").fine().out.strip()
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
    finding, seconds = _finding(run, "oom-cuda")
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
    done = site.world.distui("doctor", "--json")
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
    training = next((line for line in lines if line.startswith("training")), "no training line")
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


PLAIN = (str(Path(__file__).parents[1] / "inrank" / "plain_gpt.py"), "--width", "256", "--layers", "8")


def _adopted(names: tuple[str, ...], *options: str, tolerance: float = 1e-4) -> Check:
    """A plain script under presets at its own DistributedDataParallel: losses, checkpoints as under the first."""

    def check(site: Site) -> str:
        trained = {name: _plain(site, name, *options) for name in names}
        first, *others = trained.values()
        seen = [_peak(names[0], first)]
        for name, other in zip(names[1:], others, strict=True):
            pairs = zip(first["losses"], other["losses"], strict=True)
            apart = max(abs(ours - theirs) for ours, theirs in pairs)
            assert apart < tolerance, (name, apart, trained)
            assert abs(first["size"] - other["size"]) < 65536, (name, first["size"], other["size"])
            seen.append(f"{_peak(name, other)}, losses within {apart:.1g}: {other['text']}")
        return "; ".join(seen)

    return check


def _plain(site: Site, name: str, *options: str) -> dict[str, Any]:
    """Twelve steps, two evaluations and three checkpoints on rank 0 alone."""
    out, log = site.world.work / f"{name}.pt", site.world.work / f"{name}.json"
    words = ("--adopt", *options) if options or name != "ddp" else ()
    run = site.world.run(
        "launch", name, *words, *site.several, "--", *PLAIN, "--out", str(out), "--losses", str(log)
    )
    assert run.wait(timeout=200) == 0, run.describe()
    trained: dict[str, Any] = json.loads(log.read_text())
    applied = run.status()["applied"]
    return {**trained, "size": out.stat().st_size, "text": applied and applied["text"]}


def _peak(name: str, trained: dict[str, Any]) -> str:
    return name if trained["peak"] is None else f"{name} {trained['peak'] / 2**20:.0f} MiB at most"


def profile(site: Site) -> str:
    """torch.profiler in the ranks of a live run: kernels, NCCL's among them, and what of those is exposed."""
    site.needs_gpu()
    run = _job(site, jobs.TRAIN).healthy()
    done = run.distui("profile", "--steps", "3", "--json").fine().json()
    assert [rank["rank"] for rank in done["ranks"]] == list(range(site.ranks)), done["missing"]
    assert all(rank["gpu"] and len(rank["steps"]) == 3 for rank in done["ranks"]), done["ranks"]
    assert any("nccl" in each["name"].lower() for each in done["collectives"]), done["collectives"]
    shares = [f"rank {rank['rank']} {rank['shares']}" for rank in done["ranks"]]
    return (
        f"{'; '.join(shares)}; most time: {done['operators'][0]['name']}; {done['collectives'][0]['name']}"
    )


def idle_gpus(site: Site) -> str:
    """The rule of idle GPUs sends its notice."""
    site.needs_gpu()
    settings, sent = site.world.config / "distui" / "settings.toml", site.world.work / "sent.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f'[notify.channels.file]\ntype = "command"\ncommand = ["tee", "-a", "{sent}"]\n')
    run = _job(site, jobs.IDLE, "--notify", "file:gpus-idle=1").healthy()
    began = time.monotonic()
    assert until(lambda: sent.exists() and b"gpus-idle" in sent.read_bytes(), every=1.0), run.describe()
    return f"after {time.monotonic() - began:.0f} s: {json.loads(sent.read_text())['text']}"


CHECKS: dict[str, Check] = {
    "adopt": _adopted(("ddp", "zero1", "fsdp2", "fsdp2-offload")),
    "adopt bf16": _adopted(("ddp", "zero1", "fsdp2"), "--set", "precision.param=bf16", tolerance=0.1),
    "statements": statements,
    "tap": tap,
    "restart": restart,
    "hang": hang,
    "mismatch": mismatch,
    "snapshots": snapshots,
    "dumps": dumps,
    "doctor": doctor,
    "profile": profile,
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

ALONE = {"telemetry": telemetry, "straggler": straggler, "out-of-memory": out_of_memory, "idle": idle_gpus}
"""Those that want the GPUs for themselves: they compare times, or fill the memory, or see who is at work."""
CHECKS |= ALONE
