"""Links in the copied run directory of somebody else: distui writes to nothing that they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from distui.runners.run import file_io, journal

TEXT = b"the only copy"


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of the user's, to which each file of the run leads."""
    file = tmp_path / "thesis.txt"
    file.write_bytes(TEXT)
    return file


def test_a_journal_that_is_a_link_is_not_cut_off(tmp_path: Path, thesis: Path) -> None:
    (tmp_path / journal.NAME).symlink_to(thesis)
    with pytest.raises(OSError, match="symbolic links"):
        journal.Journal(tmp_path)
    assert thesis.read_bytes() == TEXT


def test_nothing_is_appended_behind_a_link(tmp_path: Path, thesis: Path) -> None:
    """agent.log takes texts out of plan.json, with their line breaks."""
    (tmp_path / "agent.log").symlink_to(thesis)
    with pytest.raises(OSError, match="symbolic links"):
        file_io.appending(tmp_path / "agent.log")
    assert thesis.read_bytes() == TEXT
