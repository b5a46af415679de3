"""Stacks that were asked for are kept for later looks at their moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from distui.runners.run import kept_stacks


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for node in (0, 1):
        (tmp_path / f"node-{node}").mkdir()
    return tmp_path


def test_the_newest_by_a_moment_is_found_on_every_node(run_dir: Path) -> None:
    kept_stacks.keep(run_dir, 0, 100.25, {"0": "zero early"})
    kept_stacks.keep(run_dir, 0, 200.5, {"0": "zero late"})
    kept_stacks.keep(run_dir, 1, 150.0, {"1": "one"})
    assert kept_stacks.newest(run_dir, 100.0) is None
    assert kept_stacks.newest(run_dir, 100.25) == (100.25, {"0": "zero early"})
    assert kept_stacks.newest(run_dir, 199.0) == (150.0, {"0": "zero early", "1": "one"})
    assert kept_stacks.newest(run_dir, 1e9) == (200.5, {"0": "zero late", "1": "one"})
    assert kept_stacks.newest(run_dir, 1e9, [1]) == (150.0, {"1": "one"})
    assert kept_stacks.newest(run_dir, 1e9, [7]) is None


def test_old_ones_go_and_all_are_their_owners_alone(run_dir: Path) -> None:
    for second in range(kept_stacks.MOST + 5):
        kept_stacks.keep(run_dir, 0, 1000.0 + second, {"0": str(second)})
    folder = run_dir / "node-0" / kept_stacks.FOLDER
    assert len(list(folder.iterdir())) == kept_stacks.MOST
    assert kept_stacks.newest(run_dir, 1004.5) is None
    assert kept_stacks.newest(run_dir, 1005.0) == (1005.0, {"0": "5"})
    assert folder.stat().st_mode & 0o77 == 0
    assert all(path.stat().st_mode & 0o77 == 0 for path in folder.iterdir())


def test_what_somebody_else_put_there_is_no_stack(run_dir: Path) -> None:
    folder = run_dir / "node-0" / kept_stacks.FOLDER
    folder.mkdir()
    (folder / "000000000100000.json").write_text("[1, 2")
    (folder / "notes.json").write_text("{}")
    assert kept_stacks.newest(run_dir, 1e9) is None


def test_a_node_without_a_folder_keeps_nothing_and_says_nothing(tmp_path: Path) -> None:
    kept_stacks.keep(tmp_path, 0, 1.0, {"0": "x"})
    assert kept_stacks.newest(tmp_path, 1e9) is None
