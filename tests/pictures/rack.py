"""A training on three hosts: a login by a real sshd, an agent and GPUs of a simulated driver on each."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rigs" / "nvml"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runners"))
import build
import scenario
from hub.site import having
from hub.two_hosts import Hosts

from .stage import GIB, ROOT
from .terminal import Terminal

GPUS = 2
"""Of each host."""
NOWHERE = "255.255.255.255"
"""An address that no connection leads to."""


class Rack(Hosts):
    """Hosts whose names may be seen, in a directory that may be seen."""

    names = ("gpu-1", "gpu-2", "gpu-3")

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700)
        (root / "venv").symlink_to(sys.prefix)
        self.bin = root / "venv" / "bin"
        driver = build.build(root / "driver")
        gpus = f"DISTUI_NVML_LIBRARY={driver} DISTUI_FAKE_NVML_SCENARIO=$HOME/scenario"
        self.exports = f"export {gpus} VIRTUAL_ENV={root}/venv"
        super().__init__(root)
        self.env |= {
            "VIRTUAL_ENV": str(root / "venv"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "DISTUI_ORIENTATION": "off",
        }
        for name in self.names:
            self._play(name)
        shutil.copy(ROOT / "presets" / "examples" / "chargpt.py", self.code / "train.py")

    def _play(self, name: str, pids: tuple[int, ...] = ()) -> None:
        """What the driver of a host tells: its GPUs work, for these ranks."""
        lines = "".join(scenario.process(gpu, pid, 63 * GIB) for gpu, pid in enumerate(pids))
        scenario.write(self.home[name] / "scenario", scenario.busy(GPUS) + lines)

    def train(self, run: str, steps: int) -> None:
        """Start a training, and wait until every rank has done so many steps. Raises RuntimeError."""
        script = ("train.py", "--steps", "100000", "--step-delay", "0.5", "--checkpoint-every", "20")
        words = ("--name", run, "--nproc-per-node", str(GPUS), "--workdir", ".", "--", *script)
        for done in (
            self.launch(*words),
            self.distui("wait", run, "--until", "healthy", "--timeout", "150"),
        ):
            if done.returncode:
                raise RuntimeError(done.stderr)
        while min(rank["step"] or 0 for rank in self.status(run)["ranks"]) < steps:
            time.sleep(1.0)
        for node, name in enumerate(self.names):
            ranks = [rank for rank in self.status(run)["ranks"] if rank["node"] == node]
            self._play(name, tuple(rank["pid"] for rank in ranks))

    def unplug(self, name: str) -> None:
        """The link to a host breaks, and no other comes up; its ranks train on."""
        self.write_config(**{name: NOWHERE})
        for pid, command in having(f"HOME={self.root / 'v'}").items():
            if command.startswith("ssh ") and f" -- {name} " in command:
                os.kill(pid, signal.SIGKILL)

    def cockpit(self, run: str, columns: int, lines: int) -> Terminal:
        """The cockpit on a run."""
        return Terminal([str(self.bin / "distui"), "attach", run], self.code, self.env, columns, lines)
