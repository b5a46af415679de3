"""`python -m tests.pictures [NAME…]`: run the shipped example, look at it, and write docs/pictures/*.svg."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .svg import draw
from .terminal import NotShown, Terminal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rigs" / "nvml"))
import build
import scenario

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs" / "pictures"
DISTUI = str(Path(sys.executable).with_name("distui"))
GIB = 1 << 30
STEPS = 20
"""Trained before the first picture, so that there is something to see."""


class Stage:
    """A user of their own in a directory whose name may be seen: /tmp/lab."""

    def __init__(self, gpus: int) -> None:
        self.root = Path("/tmp/lab")
        self.root.mkdir(mode=0o700)
        (self.root / "venv").symlink_to(sys.prefix)
        shutil.copy(ROOT / "presets" / "examples" / "chargpt.py", self.root / "train.py")
        self.scenario, self.gpus = self.root / "scenario.txt", gpus
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.root), "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CONFIG_HOME": str(self.root / "config"), "DISTUI_SOCKET_DIR": str(self.root / "s"),
            "VIRTUAL_ENV": str(self.root / "venv"), "TERM": "xterm-256color", "COLORTERM": "truecolor",
            "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if gpus:
            self.play()
            self.env["DISTUI_NVML_LIBRARY"] = str(build.build(self.root / "driver"))
            self.env["FAKE_NVML_SCENARIO"] = str(self.scenario)

    def play(self, pids: tuple[int, ...] = ()) -> None:
        """What the simulated driver tells: busy GPUs, one of them hot, and a rank on each."""
        lines = "".join(scenario.process(gpu, pid, 63 * GIB) for gpu, pid in enumerate(pids))
        scenario.write(self.scenario, scenario.busy(self.gpus) + scenario.throttled(self.gpus - 3) + lines)

    def distui(self, *words: str) -> str:
        """Stdout of a verb that succeeds."""
        command = [DISTUI, *words]
        return subprocess.run(
            command, cwd=self.root, env=self.env, check=True, text=True, stdout=subprocess.PIPE, timeout=180
        ).stdout

    def status(self, run: str) -> Any:
        return json.loads(self.distui("status", run, "--json"))

    def train(self, name: str, ranks: int, *options: str) -> None:
        """Start a training, and wait until it trains."""
        script = (
            "train.py",
            "--steps",
            "100000",
            "--step-delay",
            "0.3",
            "--checkpoint-every",
            "20",
            "--log-every",
            "5",
        )
        words = ("--name", name, "--nproc-per-node", str(ranks), "--detach", *options, "--", *script)
        self.distui("launch", "ddp", *words)
        self.distui("wait", name, "--until", "healthy", "--timeout", "150")
        while min(rank["step"] or 0 for rank in self.status(name)["ranks"]) < STEPS:
            time.sleep(1.0)
        if self.gpus:
            self.play(tuple(rank["pid"] for rank in self.status(name)["ranks"]))

    def kill(self, run: str, rank: int) -> None:
        """What an out-of-memory killer does to a rank."""
        pid = next(one["pid"] for one in self.status(run)["ranks"] if one["rank"] == rank)
        os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def cockpit(self, run: str, columns: int, lines: int) -> Iterator[Terminal]:
        """The cockpit on a run."""
        with Terminal([DISTUI, "attach", run], self.root, self.env, columns, lines) as terminal:
            yield terminal

    def close(self) -> None:
        """Stop what runs and take everything away."""
        for run in json.loads(self.distui("ls", "--json")):
            if run["state"] in ("starting", "running", "restarting"):
                self.distui("stop", run["run"], "--yes", "--grace", "2")
        shutil.rmtree(self.root)


@dataclass(frozen=True)
class Shot:
    """One picture: the size, what is pressed, and what the screen has to show then."""

    name: str
    title: str
    size: tuple[int, int]
    shown: tuple[str, ...]
    keys: tuple[str, ...] = ()
    first: str = r"step"
    """What stands there before a key is pressed."""


GPU_SHOTS = (
    Shot("overview", "The overview of eight ranks on eight GPUs", (120, 40), (r"H100|GPU", r"train")),
    Shot("overview-80x24", "The same in 80 columns", (80, 24), (r"train",)),
    Shot("overview-200x60", "The same in 200 columns", (200, 60), (r"train",)),
    Shot("ranks", "The rank table", (120, 40), (r"rank",), ("2",)),
    Shot("nccl", "The NCCL_DEBUG dialog", (120, 40), (r"NCCL_DEBUG",), ("d",)),
    Shot("restart", "What a restart would do, before it does it", (120, 40), (r"SIGTERM",), ("r",)),
)


CPU = Shot("overview-cpu", "The overview of two ranks on the CPU", (80, 24), (r"train",))
LAUNCH = Shot(
    "launch", "A new run: the form, and the plan it makes", (120, 40), (r"torch\.distributed", "lr 3e-4"),
    ("\x0e", "train.py", "\t", "--steps 5000 --lr 3e-4", "\t", "2", *["\x1b[Z"] * 3, "\x1b[B"),
)  # fmt: skip
FAILED = Shot(
    "failed", "What is known of why a run failed", (120, 40), (r"rank 1", r"step 5"), ("v",), r"failed"
)


def take(stage: Stage, run: str, shot: Shot) -> None:
    """Open the cockpit, press the keys, draw what it shows."""
    with stage.cockpit(run, *shot.size) as terminal:
        terminal.until(shot.first)
        for keys in shot.keys:
            terminal.press(keys)
            terminal.until(r"\S")
        terminal.until(*shot.shown)
        for _ in range(2):  # curves need a few samples
            time.sleep(1.5)
            terminal.until(*shot.shown)
        TARGET.mkdir(exist_ok=True)
        (TARGET / f"{shot.name}.svg").write_text(draw(terminal.cells, shot.title), encoding="utf-8")
        print(f"{shot.name}.svg")
        if "-v" in sys.argv:
            print(terminal.text)


def with_gpus(wanted: Callable[[str], bool]) -> None:
    """Eight ranks on eight GPUs of a simulated driver."""
    shots = [shot for shot in GPU_SHOTS if wanted(shot.name)]
    if shots:
        with contextlib.closing(Stage(gpus=8)) as stage:
            stage.train("gpt-small", 8)
            for shot in shots:
                take(stage, "gpt-small", shot)


def without_gpus(wanted: Callable[[str], bool]) -> None:
    """Two ranks on the CPU; in the end one of them is killed."""
    if not any(wanted(shot.name) for shot in (CPU, LAUNCH, FAILED)):
        return
    with contextlib.closing(Stage(gpus=0)) as stage:
        stage.train("gpt-small", 2, "--restarts", "0")
        for shot in (CPU, LAUNCH):
            if wanted(shot.name):
                take(stage, "gpt-small", shot)
        if wanted(FAILED.name):
            stage.kill("gpt-small", 1)
            subprocess.run([DISTUI, "wait", "gpt-small", "--timeout", "60"], env=stage.env, check=False)
            take(stage, "gpt-small", FAILED)


def main(names: list[str]) -> int:
    """Make the pictures of these names, or all; 1 with a sentence when one cannot be made."""

    def wanted(name: str) -> bool:
        return not names or name in names

    try:
        with_gpus(wanted)
        without_gpus(wanted)
    except (NotShown, FileExistsError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"pictures: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([word for word in sys.argv[1:] if word != "-v"]))
