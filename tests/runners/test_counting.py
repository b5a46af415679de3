"""Models of users' files, counted by another interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from distui.presets.estimate.workload import Counted
from distui.runners.launch import estimate_inputs
from distui.runners.launch.estimate_inputs import COUNTING, count
from distui.runners.run.errors import RunError

pytestmark = pytest.mark.torch
LIMIT_S = 300.0
"""Only what hangs takes so long, however busy the machine is."""
EXAMPLE = Path(__file__).resolve().parents[2] / "presets/examples/chargpt.py"
NET = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

class Net(nn.Module):
    def __init__(self, width=8, layers=2, tied=False):
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 50, bias=False)
        if tied:
            self.head.weight = self.words.weight
"""
LAYER = 2 * 8 + (8 * 32 + 32) + (32 * 8 + 8)


SERVER = """
import importlib.util, io, os, sys
spec = importlib.util.spec_from_file_location("parameter_count", sys.argv[1])
counting = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counting)
counting.nn.Embedding(1, 1, device="meta"), counting.nn.Linear(1, 1, device="meta")  # import what these need
for question in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        sys.stdin = io.StringIO(question)
        try:
            counting.main()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Imports torch once, and answers each question in a fork of its own, as the program does that `count` starts."""


@pytest.fixture
def one_import(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    command = [sys.executable, "-c", SERVER, str(COUNTING)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        asks, answers = server.stdin, server.stdout

        def answer(python: str, path: str, question: str, seconds: float) -> dict[str, Any]:
            asks.write(f"{question}\n")
            asks.flush()
            found: dict[str, Any] = json.loads(answers.readline())
            return found

        monkeypatch.setattr(estimate_inputs, "_answer", answer)
        yield
        asks.close()


def counted(folder: Path, source: str, name: str | None = None, **args: Any) -> Counted:
    """What is counted in a file with this text."""
    path = folder / "train.py"
    path.write_text(source)
    return count(sys.executable, str(path), name, args, LIMIT_S)


def refused(folder: Path, source: str, name: str | None = None, **args: Any) -> str:
    with pytest.raises(RunError) as caught:
        counted(folder, source, name, **args)
    text = str(caught.value)
    assert "\n" not in text
    start = f"--script {folder / 'train.py'}"
    assert text.startswith((f"{start} ", f"{start}: "))
    return text.removeprefix(start).removeprefix(":").lstrip()


@pytest.mark.real
def test_the_model_that_ships() -> None:
    found = count(
        sys.executable, str(EXAMPLE), "CharGPT", {"layers": 3, "width": 96, "length": 64}, LIMIT_S
    )
    block = 12 * 96 * 96 + 13 * 96
    assert (found.layers, found.hidden, found.vocab) == (3, 96, 128)
    assert (found.embedding, found.blocks, found.largest_layer) == ((128 + 64) * 96, 3 * block, block)
    assert found.layer_kept == pytest.approx(16, rel=0.01)  # see OUTSIDE and INSIDE of the estimate
    assert found.head == 2 * 96 + 96 * 128 + 128
    assert found.parameters == found.embedding + found.blocks + found.head
    assert found.largest == 4 * 96 * 96


@pytest.mark.real
@pytest.mark.usefixtures("one_import")
def test_what_is_counted(tmp_path: Path) -> None:
    found = counted(tmp_path, NET, "Net", width=8192, layers=130)
    assert found.parameters > 69 * 10**9, "so many take no memory"
    assert (found.hidden, found.layers) == (8192, 130)

    found = counted(tmp_path, NET)
    assert (found.name, found.parameters, found.largest_layer) == ("Net", 2 * LAYER + 2 * 400, LAYER)
    made = f"{NET}\ndef build_model(width=4):\n    return Net(width)\n"
    assert counted(tmp_path, made).hidden == 4

    made = f"{NET}\ndef tiny():\n    print('hello')\n    return Net(tied=True)\n"
    found = counted(tmp_path, made, "tiny")
    assert (found.name, found.embedding, found.head) == ("tiny", 400, 0)

    made = f"{NET}\ndef frozen():\n    net = Net()\n    net.words.requires_grad_(False)\n    return net\n"
    found = counted(tmp_path, made, "frozen")
    assert found.parameters - found.trainable == 400

    plain = f"{NET}\nclass Plain(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    plain += "        self.layers = nn.ModuleList(Layer(8) for _ in range(3))\n"
    found = counted(tmp_path, plain, "Plain")
    assert (found.hidden, found.vocab, found.layers) == (8, None, 3), "a model without an embedding"

    (tmp_path / "parts.py").write_text(NET)
    found = counted(tmp_path, "from parts import Net\ndef get_model():\n    return Net()\n")
    assert found.name == "get_model", "the file next to it can be imported"

    mark = tmp_path / "ran"
    guarded = f"{NET}\nif __name__ == '__main__':\n    open({str(mark)!r}, 'w')\n"
    assert counted(tmp_path, guarded).name == "Net"
    assert not mark.exists()


def test_a_script_that_trains_is_not_imported(tmp_path: Path) -> None:
    acting = f"{NET}\nfor _ in range(1):\n    open('x', 'w')\n"
    assert refused(tmp_path, acting).startswith(
        "would run when it is read (line 19): put what trains under"
    )


REFUSED: list[tuple[str, str | None, dict[str, Any], str]] = [
    ("", "Other", {}, "it has no Other: it has Layer, Net"),
    ("", "Net", {"depth": 3}, "Net cannot be called so (got an unexpected keyword argument 'depth')"),
    ("", "Layer", {},
     "Layer cannot be called so (missing a required argument: 'width'): give --model-args width=…"),
    ("Both = nn.Sequential\nsize = 3\n", "size", {}, "size is neither a class nor a function"),
    ("def pair():\n    return Net(), 1\n", "pair", {}, "pair returns tuple, not an nn.Module"),
    ("def empty():\n    return nn.Identity()\n", "empty", {}, "empty has no parameters"),
    ("def broken():\n    raise ValueError('no such size')\n", "broken", {},
     "has no model that can be built here: ValueError: no such size"),
    ("def gone():\n    raise SystemExit(3)\n", "gone", {},
     "has no model that can be built here: it exits with 3"),
    ("class Other(nn.Module):\n    pass\n", None, {},
     "it defines several models: name one as PATH:NAME, of Net, Other"),
    ("import nowhere_to_be_found\n", None, {}, "cannot be read: ModuleNotFoundError: No module named 'nowhere"),
]  # fmt: skip


@pytest.mark.real
@pytest.mark.usefixtures("one_import")
def test_what_cannot_be_counted(tmp_path: Path) -> None:
    for more, name, args, sentence in REFUSED:
        said = refused(tmp_path, f"{NET}\n{more}", name, **args)
        assert said.startswith(sentence), (more, name)
    assert refused(tmp_path, "x = 1\n") == (
        "it defines no nn.Module: name a function in it that returns the model, as PATH:NAME"
    )


@pytest.mark.real
def test_a_file_that_never_ends_is_ended_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, pids = tmp_path / "endless.py", tmp_path / "pids"
    endless.write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(pids)!r}, 'w') as file:\n"
        "    file.write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(estimate_inputs, "COUNTING", endless)
    for seconds in (1, 10, 100):  # it may not have begun in that time
        words = f"was not read within {seconds} s: name a function that only builds the model"
        with pytest.raises(RunError, match=words):
            count(sys.executable, str(EXAMPLE), None, {}, seconds=seconds)
        if pids.exists() and pids.read_text():
            break
    started = [int(pid) for pid in pids.read_text().split()]
    left = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    assert psutil.wait_procs([one for one in left if one.status() != psutil.STATUS_ZOMBIE], 5)[1] == []


def test_no_file_and_no_torch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file or directory; give the path of a Python file"):
        count(sys.executable, str(tmp_path / "none.py"), None, {})
    with pytest.raises(RunError, match="is not an executable Python"):
        count(str(tmp_path / "python"), str(EXAMPLE), None, {})
