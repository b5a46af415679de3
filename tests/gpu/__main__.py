"""`python -m gpu [--rehearse] [CHECK…]`: make the checks and write docs/gpu-report.md."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.runs import World

from .checks import CHECKS
from .site import Seen, Site, make

REPORT = Path(__file__).parents[2] / "docs" / "gpu-report.md"


def main(argv: Sequence[str]) -> int:
    """1 where a check failed."""
    parser = argparse.ArgumentParser(prog="python -m gpu")
    parser.add_argument("--rehearse", action="store_true", help="on gloo, without a GPU; writes no report")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    options = parser.parse_args(argv)
    strange = [name for name in options.checks if name not in CHECKS]
    if strange:
        parser.error(f"there is no check {strange[0]!r}: {', '.join(CHECKS)}")
    seen = _make_all(options.checks or list(CHECKS), () if options.rehearse else gpus())
    failed = [one for one in seen if one.outcome == "FAILED"]
    if not options.rehearse and not options.checks:
        REPORT.write_text(report(seen))
    print(
        f"{len(seen)} checks: {len(failed)} failed, {sum(one.outcome == 'left out' for one in seen)} left out"
    )
    return 1 if failed else 0


def _make_all(names: Sequence[str], found: tuple[str, ...]) -> list[Seen]:
    world = World()
    try:
        site, seen = Site(world, found), []
        for name in names:
            one = make(name, CHECKS[name], site)
            print(f"{one.outcome:8} {one.seconds:6.1f} s  {one.name}: {one.text}", flush=True)
            seen.append(one)
        return seen
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


def report(seen: Sequence[Seen]) -> str:
    """The report as Markdown."""
    names, today = gpus(), datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "distui")]
    nccl = subprocess.run(
        [sys.executable, "-c", "import torch; print('.'.join(map(str, torch.cuda.nccl.version())))"],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout.strip()  # fmt: skip
    machine = f"{len(names)} × {names[0]}, driver {_query('driver_version')[0]}, NCCL {nccl}"
    software = f"{', '.join(versions)}, Python {platform.python_version()}"
    lines = [
        "# What was seen on GPUs",
        "",
        f"{today}, {machine}, {software}. Command: `bash tests/gpu/run.sh`, which writes this page.",
        "",
        *_shared(len(names)),
        "| check | outcome | seconds | what was seen |",
        "|---|---|---|---|",
    ]
    lines += [f"| {one.name} | {one.outcome} | {one.seconds:.1f} | {_cell(one.text)} |" for one in seen]
    return "\n".join([*lines, ""])


def _shared(gpus: int) -> list[str]:
    return [] if gpus > 1 else [
        "Jobs of two ranks shared the one GPU, over NCCL's sockets: each rank had a `NCCL_HOSTID` of its own.",
        "",
    ]  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
