"""Imports that the hook makes faster or watches."""

from __future__ import annotations

import gc
import importlib
import sys
from pathlib import Path

import pytest

from distui.runners.inrank.import_watch import import_faster


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_module_of_a_test.py").write_text(
        "import gc\ncollects = gc.isenabled()\n1 / divisor\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "slow_module_of_a_test"


def test_garbage_collection_comes_back_after_an_import_that_fails(slow_module: str) -> None:
    import_faster(slow_module)
    with pytest.raises(NameError):
        importlib.import_module(slow_module)
    assert gc.isenabled()


def test_garbage_collection_pauses_only_for_the_import(
    slow_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.divisor", 1, raising=False)
    import_faster(slow_module)
    assert not importlib.import_module(slow_module).collects
    assert gc.isenabled()
    sys.modules.pop(slow_module)


def test_a_script_that_collects_nothing_keeps_that(
    slow_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.divisor", 1, raising=False)
    import_faster(slow_module)
    gc.disable()
    try:
        importlib.import_module(slow_module)
        assert not gc.isenabled()
    finally:
        gc.enable()
        sys.modules.pop(slow_module)
