"""Real ranks for these tests: under torch's launcher, each one alone so that its exit code is seen, or many in forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from ports import free_port

LIMIT_S = 300.0
"""After this many seconds a launch hangs: it is killed, and the test fails on its exit code."""
FORKED = Path(__file__).with_name("forked.py")
RANKS = 4
"""Of each forked script."""
EXAMPLES = Path(__file__).parents[2] / "presets" / "examples"


def environment(**more: str) -> dict[str, str]:
    """The environment of a launch: no wish of the shell that runs the tests, one thread a rank."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DISTUI_", "TORCHELASTIC_"))}
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**clean, **own, "DISTUI_BACKEND": "gloo", **more}


def kill_tree(process: subprocess.Popen[str]) -> None:
    """End a process and all it started; ranks live in sessions of their own, so by parenthood."""
    if process.poll() is None:
        family = psutil.Process(process.pid)
        for member in [*family.children(recursive=True), family]:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue


@contextmanager
def started(
    argv: Sequence[str | Path], env: dict[str, str], cwd: Path, limit_s: float = LIMIT_S
) -> Iterator[subprocess.Popen[str]]:
    """A process with its output on one pipe, killed with its children at the end or after `limit_s`."""
    with subprocess.Popen(
        [str(a) for a in argv],
        env=env,
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        timer = threading.Timer(limit_s, kill_tree, [process])
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            kill_tree(process)


def finished(argv: Sequence[str | Path], env: dict[str, str], cwd: Path, limit_s: float = LIMIT_S) -> str:
    """Run to the end; its output. Fails unless it ends with 0."""
    with started(argv, env, cwd, limit_s) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def torchrun(script: Path, *args: str, ranks: int = 2) -> list[str | Path]:
    """The command that launches `script` with torch's own launcher and a c10d rendezvous."""
    flags = ["--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-conf", "is_host=1"]
    where = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *flags, *where, script, *args]


def in_forks(folder: Path, cases: Iterable[tuple[str, dict[str, str]]]) -> list[tuple[list[int], str]]:
    """Run each script with its environment in RANKS ranks, one script after the other, the first one in `folder`/0.

    Returns the exit codes of its ranks, and what they print. torch is imported once for all of them.
    """
    scripts = []
    for number, (text, env) in enumerate(cases):
        script = folder / str(number) / "script.py"
        script.parent.mkdir()
        script.write_text(text)
        group = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        scripts.append((str(script), {**env, **group, "MASTER_PORT": str(free_port())}))
    (folder / "cases.json").write_text(json.dumps(scripts))
    limit_s = LIMIT_S * len(scripts)
    finished([sys.executable, FORKED, folder / "cases.json"], environment(), folder, limit_s)
    places = [Path(script).parent for script, _ in scripts]
    return [
        (json.loads((place / "codes").read_text()), (place / "output").read_text(errors="replace"))
        for place in places
    ]


def as_rank(rank: int, world: int, port: int, strategy: str) -> dict[str, str]:
    """The environment of one rank that no launcher started."""
    return environment(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        DISTUI_STRATEGY=strategy,
    )
