"""Models of users' files, counted by another interpreter."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from distui.presets.workload import Counted
from distui.runners.errors import RunError
from distui.runners.launch.launch_form import count

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
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
    assert text.startswith(f"--script {folder / 'train.py'} ")
    return text.removeprefix(f"--script {folder / 'train.py'} ")


@pytest.mark.real
def test_the_model_that_ships() -> None:
    found = count(
        sys.executable, str(EXAMPLE), "CharGPT", {"layers": 3, "width": 96, "length": 64}, LIMIT_S
    )
    block = 12 * 96 * 96 + 13 * 96
    assert (found.layers, found.hidden, found.vocab) == (3, 96, 128)
    assert (found.embedding, found.blocks, found.largest_layer) == ((128 + 64) * 96, 3 * block, block)
    assert found.head == 2 * 96 + 96 * 128 + 128
    assert found.parameters == found.embedding + found.blocks + found.head
    assert found.largest == 4 * 96 * 96


@pytest.mark.real
def test_seventy_billion_parameters_take_no_memory(tmp_path: Path) -> None:
    found = counted(tmp_path, NET, "Net", width=8192, layers=130)
    assert found.parameters > 69 * 10**9
    assert (found.hidden, found.layers) == (8192, 130)


@pytest.mark.real
def test_the_model_is_found_without_a_name(tmp_path: Path) -> None:
    """It is the one that holds the others."""
    found = counted(tmp_path, NET)
    assert (found.name, found.parameters, found.largest_layer) == ("Net", 2 * LAYER + 2 * 400, LAYER)
    assert counted(tmp_path, f"{NET}\ndef build_model(width=4):\n    return Net(width)\n").hidden == 4


@pytest.mark.real
def test_a_factory_and_tied_weights(tmp_path: Path) -> None:
    made = f"{NET}\ndef tiny():\n    print('hello')\n    return Net(tied=True)\n"
    found = counted(tmp_path, made, "tiny")
    assert (found.name, found.embedding, found.head) == ("tiny", 400, 0)


@pytest.mark.real
def test_frozen_weights_are_told_apart(tmp_path: Path) -> None:
    made = f"{NET}\ndef frozen():\n    net = Net()\n    net.words.requires_grad_(False)\n    return net\n"
    found = counted(tmp_path, made, "frozen")
    assert found.parameters - found.trainable == 400


@pytest.mark.real
def test_a_model_without_an_embedding(tmp_path: Path) -> None:
    plain = f"{NET}\nclass Plain(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    found = counted(
        tmp_path, f"{plain}        self.layers = nn.ModuleList(Layer(8) for _ in range(3))\n", "Plain"
    )
    assert (found.hidden, found.vocab, found.layers) == (8, None, 3)


@pytest.mark.real
def test_the_file_beside_it_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(NET)
    found = counted(tmp_path, "from parts import Net\ndef get_model():\n    return Net()\n")
    assert found.name == "get_model"


@pytest.mark.real
def test_a_script_that_trains_is_not_imported(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    acting = f"{NET}\nfrom pathlib import Path\nfor _ in range(1):\n    Path({str(mark)!r}).touch()\n"
    assert refused(tmp_path, acting).startswith(
        "would run when it is read (line 20): put what trains under"
    )
    guarded = f"{NET}\nif __name__ == '__main__':\n    open({str(mark)!r}, 'w')\n"
    assert counted(tmp_path, guarded).name == "Net"
    assert not mark.exists()


long = partial(pytest.param, marks=pytest.mark.long)
"""Each loads torch anew."""


@pytest.mark.real
@pytest.mark.parametrize(
    ("more", "name", "args", "sentence"),
    [
        ("", "Other", {}, "it has no Other: it has Layer, Net"),
        ("", "Net", {"depth": 3}, "Net cannot be called so (got an unexpected keyword argument 'depth')"),
        long("", "Layer", {},
             "Layer cannot be called so (missing a required argument: 'width'): give --model-args width=…"),
        long("Both = nn.Sequential\nsize = 3\n", "size", {}, "size is neither a class nor a function"),
        ("def pair():\n    return Net(), 1\n", "pair", {}, "pair returns tuple, not an nn.Module"),
        long("def empty():\n    return nn.Identity()\n", "empty", {}, "empty has no parameters"),
        long("def broken():\n    raise ValueError('no such size')\n", "broken", {},
         "has no model that can be built here: ValueError: no such size"),
        long("def gone():\n    raise SystemExit(3)\n", "gone", {},
             "has no model that can be built here: it exits with 3"),
        long("class Other(nn.Module):\n    pass\n", None, {},
         "it defines several models: name one as PATH:NAME, of Net, Other"),
        ("import nowhere_to_be_found\n", None, {}, "cannot be read: ModuleNotFoundError: No module named 'nowhere"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted(
    tmp_path: Path, more: str, name: str | None, args: dict[str, Any], sentence: str
) -> None:
    assert refused(tmp_path, f"{NET}\n{more}", name, **args).startswith(sentence)


@pytest.mark.real
def test_no_model_at_all(tmp_path: Path) -> None:
    assert refused(tmp_path, "x = 1\n") == (
        "it defines no nn.Module: name a function in it that returns the model, as PATH:NAME"
    )


@pytest.mark.long
def test_a_file_that_never_ends_is_ended_with_what_it_started(tmp_path: Path) -> None:
    path, pids = tmp_path / "train.py", tmp_path / "pids"
    path.write_text(
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(pids)!r}, 'w') as file:\n"
        "    x = file.write(f'{os.getpid()} {child.pid}')\n"
        "wait = time.sleep(600)\n"
    )
    for seconds in (15, 60, 240):  # it may not have come to the file in that time
        with pytest.raises(
            RunError, match=f"was not read within {seconds} s: name a function that only builds the model"
        ):
            count(sys.executable, str(path), None, {}, seconds=seconds)
        if pids.exists() and pids.read_text():
            break
    started = [int(pid) for pid in pids.read_text().split()]
    left = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    assert psutil.wait_procs([one for one in left if one.status() != psutil.STATUS_ZOMBIE], 5)[1] == []


def test_no_file_and_no_torch(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file or directory; give the path of a Python file"):
        count(sys.executable, str(tmp_path / "none.py"), None, {})
    with pytest.raises(RunError, match="is no executable Python"):
        count(str(tmp_path / "python"), str(EXAMPLE), None, {})
