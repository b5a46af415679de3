"""Which model of a script is meant, and whether the script may be imported to look at it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from each import for_each

from distui.presets.estimate.workload import (
    Counted,
    acts_on_import,
    counted_from,
    parse_model_args,
    parse_script,
    shape_of,
)
from distui.presets.finding import PlanError

COUNTED = Counted(name="Net", parameters=1000, trainable=900, layers=4, hidden=8, vocab=10, largest=256,
                  largest_layer=210, embedding=80, blocks=800, head=120)  # fmt: skip
EXAMPLE = Path(__file__).resolve().parents[2] / "presets/examples/chargpt.py"


@for_each(
    ("text", "found"),
    [
        ("train.py", ("train.py", None)),
        ("a/train.py:Model", ("a/train.py", "Model")),
        ("a:b/train.py", ("a:b/train.py", None)),
        ("a:b/train.py:build", ("a:b/train.py", "build")),
    ],
)
def test_a_script_and_a_name(text: str, found: tuple[str, str | None]) -> None:
    assert parse_script(text) == found


@for_each("text", ["", ":", ":Model", "train.py:", "train.py:3x", "train.py:a.b"])
def test_no_script(text: str) -> None:
    with pytest.raises(PlanError, match="write PATH, or PATH:NAME of a class or function in it"):
        parse_script(text)


@for_each(
    ("text", "found"),
    [
        ("", {}),
        ("layers=3,width=96", {"layers": 3, "width": 96}),
        ("act=gelu, bias=False,scale=-1.5,name='a,b'", {"act": "gelu", "bias": False, "scale": -1.5, "name": "a,b"}),
        ("sizes=[1,2],more={'a': None}", {"sizes": [1, 2], "more": {"a": None}}),
    ],
)  # fmt: skip
def test_arguments_of_the_model(text: str, found: dict[str, object]) -> None:
    assert parse_model_args(text) == found


@for_each(
    "text", ["3", "layers", "layers=", "a=1,a=2", "**x", "a=f()", "a=1)+g(b=2", "a=b'x'", "a=1j", "\0"]
)
def test_no_arguments(text: str) -> None:
    with pytest.raises(PlanError, match="write NAME=VALUE,NAME=VALUE") as caught:
        parse_model_args(text)
    assert "\n" not in str(caught.value)


@for_each(
    "source",
    [
        "import torch\nclass Net: pass\nx = 3\n'''text'''\n",
        "try:\n  import a\nexcept ImportError:\n  a = None\n",
        "for x in y:\n  pass\nif __name__ == '__main__':\n  main()\n",
        "if TYPE_CHECKING:\n  import x\nelse:\n  x = 1\n",
        "...\n",
    ],
)
def test_may_be_imported(source: str) -> None:
    assert acts_on_import(source) is None


@for_each(
    ("source", "line"),
    [
        ("import a\nmain()\n", 2),
        ("x = 1\nfor step in range(10):\n  train()\n", 2),
        ("while True: pass\n", 1),
        ("if torch.cuda.is_available():\n  x = 1\nelse:\n  train()\n", 4),
        ("try:\n  pass\nfinally:\n  main()\n", 4),
        ("with open('x') as f:\n  go(f)\n", 2),
        ("del x\n", 1),
    ],
)
def test_would_train(source: str, line: int) -> None:
    why = acts_on_import(source)
    assert why == (
        f'would run when it is read (line {line}): put what trains under `if __name__ == "__main__":`'
    )


@for_each(
    ("source", "why"),
    [("def (", "is not valid Python: "), (b"\0", "is not text: "), ("x = (", "is not valid Python: ")],
)
def test_no_python(source: str | bytes, why: str) -> None:
    assert str(acts_on_import(source)).startswith(why)


def test_the_example_may_be_imported() -> None:
    assert acts_on_import(EXAMPLE.read_bytes()) is None


def test_the_shape_of_what_was_counted() -> None:
    found = shape_of(COUNTED)
    assert (found.parameters, found.layers, found.hidden, found.vocab) == (1000, 4, 8, 10)
    assert (found.rest, found.layer, found.tensor) == (200, 200, 256)
    assert shape_of(COUNTED, vocab=99).vocab == 99
    assert shape_of(COUNTED, layers=2, hidden=16).hidden == 16


def test_what_is_no_transformer_needs_words() -> None:
    flat = Counted(name="Net", parameters=1000, trainable=1000, layers=0, hidden=None, vocab=None, largest=256,
                   largest_layer=0, embedding=0, blocks=0, head=1000)  # fmt: skip
    with pytest.raises(PlanError, match="give --layers and --hidden to estimate its activations"):
        shape_of(flat)
    with pytest.raises(PlanError, match="give --hidden to"):
        shape_of(flat, layers=2)
    assert shape_of(flat, layers=2, hidden=8).layers == 2


def test_in_words() -> None:
    assert COUNTED.text == (
        "Net: 1,000 parameters: embedding 80, 4 layers 800 (the largest 210), rest 120"
        "; 100 are frozen; its activations are assumed to be a usual transformer's"
    )
    assert replace(COUNTED, layer_kept=16.0).text.endswith("rest 120; 100 are frozen")


def test_an_answer_of_another_kind() -> None:
    with pytest.raises(PlanError, match="did not print"):
        counted_from({"name": "Net"})
