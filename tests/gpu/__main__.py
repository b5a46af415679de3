"""`python -m gpu [--rehearse] [CHECK…]`: make the checks and write docs/development/gpu-report.md."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from e2e.runs import World

from .checks import ALONE, CHECKS
from .site import Seen, Site, make

REPORT = Path(__file__).parents[2] / "docs" / "development" / "gpu-report.md"


def main(argv: Sequence[str]) -> int:
    """1 where a check failed."""
    parser = argparse.ArgumentParser(prog="python -m gpu")
    parser.add_argument("--rehearse", action="store_true", help="on gloo, without a GPU; writes no report")
    parser.add_argument(
        "--jobs", type=int, default=1, help="checks at once, but for those that compare times"
    )
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    options = parser.parse_args(argv)
    strange = [name for name in options.checks if name not in CHECKS]
    if strange:
        parser.error(f"there is no check {strange[0]!r}: {', '.join(CHECKS)}")
    if options.single:
        print(msgspec.json.encode(_single(options.checks[0], () if options.rehearse else gpus())).decode())
        return 0
    head = None if options.rehearse or options.checks else heading()
    seen = []
    for one in _made(options.checks or list(CHECKS), options.jobs, options.rehearse):
        print(f"{one.outcome:8} {one.seconds:6.1f} s  {one.name}: {one.text[:3000]}", flush=True)
        seen.append(one)
        if head is not None:  # after each, so that a cut leaves what was seen
            rows = sorted(seen, key=lambda one: list(CHECKS).index(one.name))
            REPORT.write_text("\n".join([*head, *map(_row, rows), ""]))
    failed = [one for one in seen if one.outcome == "FAILED"]
    print(
        f"{len(seen)} checks: {len(failed)} failed, {sum(one.outcome == 'left out' for one in seen)} left out"
    )
    return 1 if failed else 0


def _made(names: Sequence[str], jobs: int, rehearse: bool) -> Iterator[Seen]:
    """Each in a process of its own, as they end; first those that need not be alone."""
    words = [sys.executable, "-m", "gpu", "--single", *["--rehearse"][: int(rehearse)]]

    def make_apart(name: str) -> Seen:
        done = subprocess.run([*words, name], check=False, capture_output=True, text=True)
        try:
            return msgspec.json.decode(done.stdout, type=Seen)
        except msgspec.MsgspecError:
            return Seen(name, "FAILED", 0.0, done.stderr[-2000:])

    with ThreadPoolExecutor(jobs) as pool:
        started = [pool.submit(make_apart, name) for name in names if name not in ALONE]
        yield from (each.result() for each in as_completed(started))
    yield from map(make_apart, [name for name in names if name in ALONE])


def _single(name: str, found: tuple[str, ...]) -> Seen:
    world = World()
    try:
        return make(name, CHECKS[name], Site(world, found))
    finally:
        world.close()


def gpus() -> tuple[str, ...]:
    """Names of the GPUs, as nvidia-smi lists them."""
    return tuple(_query("name"))


def _query(field: str) -> list[str]:
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def heading() -> list[str]:
    """The report as Markdown, to the table's first row."""
    names, today = gpus(), datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "distui")]
    nccl = subprocess.run(
        [sys.executable, "-c", "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))"],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout.strip()  # fmt: skip
    machine = f"{len(names)} × {names[0]}, driver {_query('driver_version')[0]}, NCCL {nccl}"
    software = f"{', '.join(versions)}, Python {platform.python_version()}"
    return [
        "# What was seen on GPUs",
        "",
        f"{today}, {machine}, {software}. Command: `bash tests/gpu/run.sh`, which writes this page.",
        "",
        *_shared(len(names)),
        "| check | outcome | seconds | what was seen |",
        "|---|---|---|---|",
    ]


def _shared(gpus: int) -> list[str]:
    return [] if gpus > 1 else [
        "Jobs of two ranks shared the one GPU, over NCCL's sockets: each rank had a `NCCL_HOSTID` of its own.",
        "",
    ]  # fmt: skip


def _row(one: Seen) -> str:
    text = one.text[:900].replace("|", "\\|")
    return f"| {one.name} | {one.outcome} | {one.seconds:.1f} | {text} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
