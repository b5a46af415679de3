"""How a rank ends that makes room for the next attempt: without collecting garbage, and otherwise as ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from each import for_each

from distui.runners.model import RankPhase
from distui.runners.state import RunState

from .inrank_rig import Asking, driven, eventually, launch, rank
from .test_inrank_hook import interpreters, place

__all__ = ["place"]

ENDS = """
import atexit, io, os, sys, threading

class Lost:
    "Lives in a cycle, holds a file with something in it, and says when it is collected."
    def __init__(self):
        self.me, self.log = self, open("log.txt", "w")
        self.log.write("what was not flushed")
    def __del__(self):
        os.write(1, b"collected\\n")

class Broken(io.TextIOBase):
    "A file of the script's own that cannot be flushed any more."
    def flush(self):
        raise AttributeError("no file below")

lost, broken = Lost(), Broken()
atexit.register(lambda: os.write(1, b"exit function\\n"))
print("begun", flush=True)
sys.stdin.read()
threading.Thread(target=lambda: os.write(1, b"thread\\n")).start()
print("end")
sys.exit(7)
"""


@pytest.mark.real
@for_each("told", [True, False])
def test_only_the_collection_of_garbage_is_left_out(place: Path, told: bool) -> None:
    for python in interpreters():
        ends(place, python, told)


def ends(place: Path, python: str, told: bool) -> None:
    with rank(place, ENDS, python=python) as started:
        eventually(lambda: "begun" in started.read("out"))
        asking = Asking(started.socket)
        if told:
            assert asking.ask("leave") == {"leaving": True, "id": 7}
        assert started.ends() == 7
        asking.close()
        said = started.read("out").split("\n")
        assert sorted(said) == sorted(
            ["begun", "end", "thread", "exit function", *([] if told else ["collected"]), ""]
        )
        assert (place / "log.txt").read_text() == "what was not flushed"
        assert started.read("err") == ""


MAKES_ROOM = """
import signal, sys
class Lost:
    def __init__(self): self.me = self
    def __del__(self): sys.__stdout__.write("collected\\n")
lost = Lost()
def leave(*_):
    print("left", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: signal.pause()
"""


@pytest.mark.long
@pytest.mark.torch
async def test_a_restart_tells_every_rank_and_a_stop_does_not(own_directories: Path) -> None:
    script = own_directories / "script.py"
    script.write_text(MAKES_ROOM)

    def ready(attempt: int) -> None:
        eventually(lambda: all(run.log(f"rank-{r}.out", attempt) == "ready\n" for r in (0, 1)))

    def stopped(state: RunState) -> bool:
        return {rank.phase for rank in state.ranks.values()} == {RankPhase.STOPPED}

    async with driven(launch(script)) as run:
        await run.hooked()
        ready(1)
        assert (await run.restart()).ok
        await run.hooked()
        ready(2)
        for one in (0, 1):
            assert run.log(f"rank-{one}.out", 1) == "ready\nleft\n"
            assert run.changes(one)[:2] == [(1, "running", None), (1, "stopped", 3)]
        runner = json.loads((run.path / "runner.json").read_text())
        asking = Asking(Path(runner["socket"]))
        assert asking.ask("stop")["ok"]
        asking.close()
        await run.until(stopped)
        for one in (0, 1):
            assert run.log(f"rank-{one}.out", 2) == "ready\nleft\ncollected\n"
