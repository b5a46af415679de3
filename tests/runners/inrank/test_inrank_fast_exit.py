"""How a rank ends that makes room for the next attempt: without collecting garbage, and otherwise as ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from each import for_each

from .inrank_rig import Asking, eventually, rank
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
