"""What the kernel says of written files."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.run.inotify import Notifier


@pytest.fixture
def notifier() -> Iterator[Notifier]:
    found = Notifier()
    yield found
    found.close()


def readable(notifier: Notifier) -> bool:
    return bool(select.select([notifier.fd], [], [], 0)[0])


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_write_is_heard_once_until_one_listens_again(notifier: Notifier, tmp_path: Path) -> None:
    notifier.listen([str(tmp_path)])
    assert not readable(notifier)
    write(tmp_path / "a", "x")
    assert readable(notifier)
    assert notifier.heard()
    for _ in range(100):
        write(tmp_path / "a", "x")
    assert not readable(notifier)
    notifier.listen([str(tmp_path)])
    write(tmp_path / "a", "x")
    assert notifier.heard()
    assert not notifier.heard()


def test_new_files_and_renamed_ones_are_heard(notifier: Notifier, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for made in ("folder", "file", "in/renamed"):
        notifier.listen([str(tmp_path / "in"), str(tmp_path)])
        path = tmp_path / made
        if made == "folder":
            path.mkdir()
        elif made == "file":
            path.touch()
        else:
            (tmp_path / "file").rename(path)
        assert notifier.heard(), made


def test_a_folder_that_is_gone_is_skipped_and_its_end_is_nothing(
    notifier: Notifier, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    notifier.listen([str(tmp_path / "none"), str(tmp_path / "in")])
    (tmp_path / "in").rmdir()
    assert readable(notifier)
    assert not notifier.heard()
