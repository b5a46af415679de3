"""A rank and its hook without a process: it answers on the rank's socket as runners/inrank/hook.py does.

The rank trains from the moment when torch would be imported. Its steps follow the clock of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distui.runners.run import clock

ARMED_S = 1.0
"""Seconds from the start of the rank until torch is imported and a step can be counted."""
NCCL_VARIABLES = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
Frame = tuple[str, int, str]
"""File, line, function."""
STEP: tuple[Frame, ...] = (("/train.py", 30, "train"), ("/train.py", 40, "<module>"))
WAIT: tuple[Frame, ...] = (("/torch/distributed/distributed_c10d.py", 2810, "all_reduce"), *STEP)
HANG: tuple[Frame, ...] = (("/train.py", 12, "hang"), *STEP)
EVALUATE: tuple[Frame, ...] = (("/train.py", 20, "evaluate"), ("/train.py", 40, "<module>"))
SAVE: tuple[Frame, ...] = (("/torch/serialization.py", 900, "save"), ("/train.py", 40, "<module>"))


class FakeHook:
    """One rank. `env`: the environment of its process."""

    def __init__(self, path: Path, pid: int, env: Mapping[str, str], step_s: float = 0.5) -> None:
        self.path, self.pid, self.env, self.step_s = path, pid, dict(env), step_s
        self.asked: list[dict[str, Any]] = []
        """Every request, in order."""
        self.is_silent = False
        """Whether it answers nothing, as a rank that holds the interpreter's lock."""
        self.nccl_version: str | None = None
        """Of a libnccl that this rank has loaded; from 2.24 on its level can be changed live."""
        self.backend = "gloo"
        self.texts = {"memory": json.dumps({"max_rss_bytes": 1 << 30, "rss_bytes": 1 << 30})}
        """Answers to `flight`, `memory` and `record`; without a text the rank is not ready for it."""
        self.signals: dict[str, Any] | None = None
        """What the script reported to trackers: see telemetry.signal_names.Reported."""
        self.made: dict[str, Any] | None = None
        self._began = clock.now()
        self._stuck: float | None = None
        """When the rank made its last step."""
        self._stack = STEP
        self._lasting = {name: self.env.get(name, "") for name in NCCL_VARIABLES}
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()
        self._arming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        self._arming = asyncio.create_task(self._arm())

    def close(self) -> None:
        """End the process."""
        if self._arming is not None:
            self._arming.cancel()
        if self._server is not None:
            self._server.close()
        for peer in self._peers:
            peer.close()
        self.path.unlink(missing_ok=True)

    # --- what the script does ---------------------------------------------------------------------------------

    def hang(self) -> None:
        """Make no further step: the script stands in a function of its own."""
        self._stuck, self._stack = clock.now(), HANG

    def wait(self) -> None:
        """Wait in the next collective, for a rank that does not come."""
        self._stuck, self._stack = clock.now(), WAIT

    def pause(self, stack: tuple[Frame, ...]) -> None:
        """Make no step for a while, and work on something else; `go_on` ends that."""
        self._stuck, self._stack = clock.now(), stack

    def go_on(self) -> None:
        """Make steps again."""
        assert self._stuck is not None
        self._began += clock.now() - self._stuck
        self._stuck, self._stack = None, STEP

    def make(self, wrapped: dict[str, Any]) -> None:
        """The model was wrapped so, as the hook finds out at the first step."""
        self.made = wrapped
        self._push({"push": "made", "made": wrapped})

    @property
    def armed(self) -> bool:
        return clock.now() - self._began >= ARMED_S

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        until = clock.now() if self._stuck is None else self._stuck
        return max(0, int((until - self._began - ARMED_S) / self.step_s))

    @property
    def last_step(self) -> float:
        return self._began + ARMED_S + self.steps * self.step_s if self.steps else 0.0

    # --- the socket -------------------------------------------------------------------------------------------

    async def _arm(self) -> None:
        while not self.armed:
            await asyncio.sleep(ARMED_S / 10)
        self._push({"push": "armed", "nccl": self._nccl()})

    def _push(self, message: dict[str, Any]) -> None:
        for peer in self._peers:
            peer.write(json.dumps(message).encode() + b"\n")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps(self._hello()).encode() + b"\n")
        self._peers.add(writer)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while line := await reader.readline():
                request = json.loads(line)
                self.asked.append(request)
                if not self.is_silent:
                    answer = {**self._answer(request), "id": request.get("id")}
                    writer.write(json.dumps(answer).encode() + b"\n")
        self._peers.discard(writer)
        writer.close()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:  # noqa: C901
        op = request.get("op")
        match op:
            case "hello":
                return self._hello()
            case "steps":
                return self._counted(request)
            case "pulse":
                return self._pulse(request)
            case "nccl":
                return self._set_nccl(request["env"], request.get("lasting", True))
            case "back":
                changes = any(self.env.get(name, "") != value for name, value in self._lasting.items())
                return self._set_nccl(self._lasting) if changes else {**self._nccl(), "changed": False}
            case "c10d":
                python_level = "WARNING" if request["level"] == "OFF" else "INFO"
                return {"text": f"TORCH_DISTRIBUTED_DEBUG={request['level']}, c10d logging {python_level}"}
            case "stacks":
                lines = [f'  File "{file}", line {line} in {name}' for file, line, name in self._stack]
                return {"text": "\n".join(["Thread 0x1 (most recent call first):", *lines, ""])}
            case "flight" | "memory" | "record":
                text = self.texts.get(op)
                return {"error": f"there is no {op}"} if text is None else {"text": text}
            case "environ":
                return {"env": {name: self.env.get(name) for name in request["names"]}}
            case "leave":
                return {"leaving": True}
        return {"error": f"unknown request {op!r}"}

    def _hello(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "rank": self.env["RANK"],
            "armed": self.armed,
            "made": self.made,
            "nccl": self._nccl(),
            "faulthandler": True,
            "thread": self.pid,
        }

    def _counted(self, request: dict[str, Any]) -> dict[str, Any]:
        first = self._began + ARMED_S + self.step_s if self.steps else 0.0
        answer: dict[str, Any] = {"count": self.steps if self.armed else None, "last": self.last_step}
        answer |= {"first": first, "faulthandler": True}
        if self.signals is not None and self.signals["version"] != request.get("signals"):
            answer["signals"] = self.signals
        return answer

    def _nccl(self) -> dict[str, Any]:
        version = self.nccl_version
        is_live = None if version is None else tuple(map(int, version.split("."))) >= (2, 24)
        return {
            "loaded": version is not None,
            "live": is_live,
            "version": version,
            "debug": self.env.get("NCCL_DEBUG"),
            "backend": self.backend if self.armed else None,
        }

    def _set_nccl(self, env: Mapping[str, str], lasting: bool = True) -> dict[str, Any]:
        for name in env:
            if name not in NCCL_VARIABLES:
                return {"error": f"ValueError: {name} is not a variable of NCCL's debug output"}
        state = self._nccl()
        if not state["loaded"] or state["live"]:
            self.env.update(env)
            if lasting:
                self._lasting.update(env)
        return {**self._nccl(), "changed": bool(state["live"])}

    def _pulse(self, request: dict[str, Any]) -> dict[str, Any]:
        """As inrank/rank_pulse.py: one all_reduce a step, on the group of all ranks."""
        waits, done = self._stack == WAIT, self.steps
        called = done + 1 if waits else done
        group = {"name": "0", "desc": "default_pg", "enqueued": called, "completed": done, "ranks": ()}
        active = [self._collective(called, self._stuck or 0.0)] if waits else []
        used = clock.now() - self._began if self._stuck is None else 1.0
        return {
            "stack": self._stack,
            "sites": 1,
            "samples": request.get("samples", 1),
            "loops": 0,
            "cpu_s": used,
            "process_s": used,
            "torch": self.armed,
            "step": done,
            "last_step": self.last_step or None,
            "world_size": self.env["WORLD_SIZE"],
            "master": f"{self.env['MASTER_ADDR']}:{self.env['MASTER_PORT']}",
            "recorder": True,
            "whole": waits or request.get("whole", False),
            "groups": [{**group, "backend": self.backend}] if called else [],
            "active": active,
            "recent": [],
        }

    def _collective(self, number: int, created: float) -> dict[str, Any]:
        about = {"group": "0", "seq": number, "op": "all_reduce", "what": "Float[20]", "p2p": False}
        return {**about, "created": created, "done": False, "started": None, "sites": STEP}


def of_rank(rank: int, ranks: int) -> dict[str, str]:
    """The variables that torch gives a rank of one node."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": "29500",
    }
