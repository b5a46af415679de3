"""What a main thread waits for by the words of its script: the file that a loop checks, the key of a store."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distui.runners.inrank.awaited_names import wanted

SCRIPT = """
import glob, os, time
from os.path import exists
from pathlib import Path

MARK = "ready.flag"

def polls_constant():
    while not os.path.exists("/data/ready.flag"):
        pause()

def polls_joined(folder="/data"):
    while True:
        if exists(os.path.join(folder, MARK)):
            return
        pause()

def polls_path(path=Path("/data") / "part"):
    number = 3
    while not (path / f"shard-{number}.bin").is_file():
        pause()

def polls_attribute(job):
    while not job.path.exists():
        pause()

def computed(path):
    while not os.path.exists(path.name()):
        pause()

def polls_until_gone():
    while os.path.exists("/data/index.lock"):
        pause()

def polls_nothing():
    while True:
        pause()

def gets(store, rank=1):
    return store.get(f"plan/{rank}")

def waits(store):
    return store.wait(["a", "b"])

def gets_of_default(store):
    def _get_default_store():
        return store
    return _get_default_store().get("plan")

def gets_of_dict(values):
    return values.get("plan")
"""


class Job:
    def __init__(self) -> None:
        self.path = Path("/data/job")
        self.named = 0

    def name(self) -> str:
        self.named += 1
        return "/data/never"


@pytest.fixture
def script(tmp_path: Path) -> types.ModuleType:
    file, module = tmp_path / "waiting.py", types.ModuleType("waiting")
    file.write_text(SCRIPT)
    exec(compile(SCRIPT, str(file), "exec"), module.__dict__)
    return module


def asked(script: types.ModuleType, name: str, *arguments: Any, call: str = "sleep") -> str:
    """What the frame of a function wants while it is in a call."""
    found: list[str] = []

    def pause(*given: Any) -> None:
        found.append(wanted(sys._getframe(1), call).name)
        raise InterruptedError

    script.__dict__["pause"] = pause
    with pytest.raises(InterruptedError):
        getattr(script, name)(*arguments)
    return found[0]


@pytest.mark.parametrize(
    ("name", "arguments", "path"),
    [
        ("polls_constant", (), "/data/ready.flag"),
        ("polls_joined", (), "/data/ready.flag"),
        ("polls_path", (), "/data/part/shard-3.bin"),
        ("polls_attribute", (Job(),), "/data/job"),
        ("polls_nothing", (), ""),
    ],
)
def test_the_file_that_a_loop_checks(
    script: types.ModuleType, name: str, arguments: tuple[Any, ...], path: str
) -> None:
    assert asked(script, name, *arguments) == path
    assert asked(script, name, *arguments, call="lock") == ""


def test_a_loop_that_waits_until_a_file_is_gone(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def pause() -> None:
        found.append(wanted(sys._getframe(1), "sleep"))
        raise InterruptedError

    script.__dict__["pause"] = pause
    monkeypatch.setattr(script.os.path, "exists", lambda path: path == "/data/index.lock")
    for name in ("polls_until_gone", "polls_constant"):
        with pytest.raises(InterruptedError):
            getattr(script, name)()
    assert found == [("/data/index.lock", True), ("/data/ready.flag", False)]


def test_no_code_of_the_script_runs(script: types.ModuleType) -> None:
    job = Job()
    assert asked(script, "computed", job) == ""
    assert job.named == 1  # by the script itself


def of_store(kind: str, answer: Callable[..., None]) -> Any:
    """An object of a class that says of itself to be torch's."""
    base = type(kind, (), {"get": answer, "wait": answer, "__module__": "torch._C._distributed_c10d"})
    return type("TCPStore", (base,), {})()


@pytest.mark.parametrize(("name", "key"), [("gets", "plan/1"), ("waits", "a, b"), ("gets_of_dict", "plan")])
def test_the_key_of_a_store(script: types.ModuleType, name: str, key: str) -> None:
    found: list[str] = []

    def get(*given: object) -> None:
        found.append(wanted(sys._getframe(1), "poll").name)

    getattr(script, name)(of_store("Store", get))
    getattr(script, name)(of_store("Dictionary", get))
    assert found == [key, ""]


def test_the_key_of_the_store_that_a_function_of_torch_returns(script: types.ModuleType) -> None:
    found: list[str] = []

    def get(*given: object) -> None:
        found.append(wanted(sys._getframe(1), "read").name)

    script.__dict__["gets_of_default"](of_store("Store", get))
    assert found == ["plan"]


def test_without_a_frame_or_its_source_nothing_is_named() -> None:
    assert not wanted(None, "sleep").name
    names: dict[str, Any] = {"wanted": wanted, "sys": sys}
    exec("def f():\n    while True:\n        return wanted(sys._getframe(), 'sleep')\nsaid = f()", names)
    assert not names["said"].name
