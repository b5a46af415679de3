"""Scripts of any size: what is parsed and walked is bounded, and what was not read is named, never taken for empty."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from each import for_each

from distui.presets import script_facts, script_imports, script_support, script_tree, script_values
from distui.presets.lint import script
from distui.presets.script_tree import MOST_BYTES, MOST_FILES, MOST_NODES, read, within_limits
from distui.presets.text_formats import Unreadable

HEAD = "import torch\nimport torch.distributed as dist\n"
FEW_NODES = 3_000
DENSE = {
    "calls": HEAD + "torch.x=dist.y(1)\n" * 600,
    "decorators": HEAD + "@a\n" * FEW_NODES + "def f(): pass\n",
    "comparisons": HEAD + "x=1" + "<1" * FEW_NODES,
    "names": HEAD + "a\n" * FEW_NODES,
    "items": HEAD + "x=[" + "1," * FEW_NODES + "]",
}
"""Scripts of more than FEW_NODES nodes. Some like them, of half a MiB, took 16 s of CPU."""


@pytest.fixture
def few_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower the limit of nodes, so that small scripts exceed it."""
    monkeypatch.setattr(script_tree, "MOST_NODES", FEW_NODES)
    yield
    script_tree._read.cache_clear()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Bytes of each text that is parsed, none of which was read before."""
    sizes: list[int] = []
    parse = script_imports.syntax_tree

    def counted(source: str | bytes) -> ast.Module:
        sizes.append(len(source))
        return parse(source)

    script_tree._read.cache_clear()
    monkeypatch.setattr(script_tree, "syntax_tree", counted)
    yield sizes
    script_tree._read.cache_clear()


@for_each("source", list(DENSE.values()))
@pytest.mark.usefixtures("few_nodes")
def test_a_dense_script_is_parsed_once_and_not_walked_to_its_end(source: str, parsed: list[int]) -> None:
    del parsed[:]
    script_tree._read.cache_clear()
    look = script_support.inspect("train.py", source)
    assert (
        look.why
        == "train.py is too large to be read (more than 3,000 syntax nodes), so what it obeys is unknown."
    )
    (found,) = script.check(source, "train.py")
    assert (found.id, found.severity, found.where) == ("L41", "warning", "train.py")
    assert found.text.endswith("nothing in it was checked.")
    assert script_tree.local_imports(source) == []
    assert parsed == [len(source)]


@pytest.mark.usefixtures("few_nodes")
def test_walking_stops_behind_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    visited = 0
    walk = ast.walk

    def counted(module: ast.AST) -> Iterator[ast.AST]:
        nonlocal visited
        for node in walk(module):
            visited += 1
            yield node

    monkeypatch.setattr(ast, "walk", counted)
    with pytest.raises(Unreadable, match="3,000 syntax nodes"):
        read(f"{DENSE['names']}# so that nobody has read it")
    assert visited == FEW_NODES + 1


def test_a_long_script_is_not_parsed(parsed: list[int]) -> None:
    with pytest.raises(Unreadable, match=r"^is too large to be read \(more than 512 KiB\)$"):
        read(b"#" * (MOST_BYTES + 1))
    assert parsed == []


def test_what_cannot_be_parsed_is_tried_once(parsed: list[int]) -> None:
    source = "x" + ".x" * 20_000 + "\ny = ("
    for _ in range(3):
        with pytest.raises(Unreadable):
            read(source)
    assert len(parsed) == 1


def test_a_script_and_its_imports_have_one_limit_together(parsed: list[int]) -> None:
    modules = [(f"m{number}.py", b"x = 1\n" * 20_000) for number in range(MOST_FILES)]
    fits = within_limits(b"import m0\n", modules)
    assert [name for name, text in fits.items() if text is not None] == ["m0.py"]
    assert list(fits) == [name for name, _ in modules]
    assert sum(parsed) <= MOST_BYTES


def test_a_small_file_fits_behind_a_large_one() -> None:
    fits = within_limits("", [("large.py", b"#" * (MOST_BYTES + 1)), ("small.py", b"x = 1")])
    assert fits == {"large.py": None, "small.py": b"x = 1"}


def test_of_too_many_files_one_is_named() -> None:
    fits = within_limits("", [(f"m{number}.py", b"") for number in range(1000)])
    assert len(fits) == MOST_FILES + 1
    assert fits[f"m{MOST_FILES}.py"] is None


def test_an_import_that_was_not_read_is_no_proof_of_absence() -> None:
    asked = script_support.Requirements(beside={"trainer.py": None, "loop.py": "x = 1"})
    look = script_support.inspect("t.py", "import trainer, loop", asked)
    assert look.how is None
    assert look.why == (
        "t.py names no strategy, and trainer.py, which it imports, could not be read, so what it obeys is unknown."
    )


def test_a_strategy_that_was_read_counts_beside_what_was_not() -> None:
    beside = {
        "big.py": None,
        "trainer.py": "from torch.nn.parallel import DistributedDataParallel as D\nD(m)",
    }
    look = script_support.inspect("t.py", "import big, trainer", script_support.Requirements(beside=beside))
    assert "through trainer.py, wraps its model in DistributedDataParallel" in look.why


def test_real_modules_fit() -> None:
    """The largest of torch, 413 kB, has 58,000 nodes."""
    text = "def forward(self, x):\n    return self.norm(x + self.attention(x, mask=None), eps=1e-5)\n\n"
    assert len(read(text * (MOST_BYTES // 2 // len(text))).nodes) < MOST_NODES


# --- rules that took the square of a script's size ---


def test_words_are_found_among_thousands_of_options() -> None:
    source = "".join(f"p.add_argument('--heads{number}')\n" for number in range(5_000))
    values = script_values.Values(
        script_facts.parse(source), ["--heads7", "3", "--heads4999=5", "--heads", "9"]
    )
    given = {option.name: values.of_option(option).given for option in values.options}
    assert (given["--heads7"], given["--heads8"], given["--heads4999"]) == (True, False, True)
