"""What a picture is taken of on one machine: a user, a training, GPUs of a simulated driver, SkyPilot's words."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .terminal import Terminal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rigs" / "nvml"))
import build
import scenario

ROOT = Path(__file__).resolve().parents[2]
LAB = Path("/tmp/lab")
DISTUI = str(Path(sys.executable).with_name("distui"))
GIB = 1 << 30
STEPS = 20
"""Trained before the first picture, so that there is something to see."""


def unnamed(text: str) -> str:
    """The text without the path of this checkout; another of the same length stands there."""
    return text.replace(str(ROOT), "/opt/distui".ljust(len(str(ROOT)), "_")[: len(str(ROOT))])


class Stage:
    """A user of their own in a directory whose name may be seen."""

    def __init__(self, gpus: int) -> None:
        self.root = LAB
        self.root.mkdir(mode=0o700)
        (self.root / "venv").symlink_to(sys.prefix)
        shutil.copy(ROOT / "presets" / "examples" / "chargpt.py", self.root / "train.py")
        self.scenario, self.gpus = self.root / "scenario.txt", gpus
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "USER")
        self.env = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.root), "XDG_STATE_HOME": str(self.root / "state"),
            "XDG_CONFIG_HOME": str(self.root / "config"), "DISTUI_SOCKET_DIR": str(self.root / "s"),
            "VIRTUAL_ENV": str(self.root / "venv"), "TERM": "xterm-256color", "COLORTERM": "truecolor",
            "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "DISTUI_ORIENTATION": "off",
        }  # fmt: skip
        if gpus:
            self.play()
            self.env["DISTUI_NVML_LIBRARY"] = str(build.build(self.root / "driver"))
            self.env["DISTUI_FAKE_NVML_SCENARIO"] = str(self.scenario)

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

    def kill(self, run: str, rank: int, number: int = signal.SIGKILL) -> None:
        """What an out-of-memory killer does to a rank; another signal than that, what somebody else does."""
        pid = next(one["pid"] for one in self.status(run)["ranks"] if one["rank"] == rank)
        os.kill(pid, number)

    def cockpit(self, run: str, columns: int, lines: int) -> Terminal:
        """The cockpit on a run."""
        return Terminal([DISTUI, "attach", run], self.root, self.env, columns, lines)

    def close(self) -> None:
        """Stop what runs and take everything away."""
        for run in json.loads(self.distui("ls", "--json")):
            if run["state"] in ("starting", "running", "restarting"):
                self.distui("stop", run["run"], "--yes", "--grace", "2")
        end = time.monotonic() + 10.0
        while self.root.exists():  # an agent that ends now may still write its last line
            shutil.rmtree(self.root, ignore_errors=time.monotonic() < end)


class Launching(Stage):
    """A user who has SkyPilot, and nothing but a training script to copy."""

    def __init__(self) -> None:
        super().__init__(gpus=0)
        self.code = self.root / "code"
        self.code.mkdir()
        (self.root / "train.py").rename(self.code / "train.py")
        python = self.root / "python"
        script = Path(__file__).with_name("skypilot.py")
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "{self.root}" "$@"\n')
        python.chmod(0o755)
        self.env["DISTUI_SKY_PYTHON"] = str(python)

    def launch(self, name: str) -> None:
        """Ask for two nodes."""
        wish = ("--on", "aws/us-east-1", "--gpus", "H100:8", "--nnodes", "2", "--autostop", "30")
        task = ("--cluster", "lab", "--setup", "pip install torch numpy", "--workdir", str(self.code))
        self.distui("launch", "ddp", "--name", name, *wish, *task, "--detach", "--", "train.py")
