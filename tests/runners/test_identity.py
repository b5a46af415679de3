"""Files that are replaced whole, also by several nodes that have the same home folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from distui.runners import identity


def test_several_may_replace_a_file_at_once(tmp_path: Path) -> None:
    path, errors = tmp_path / "job.json", []
    texts = [letter.encode() * 9000 for letter in "abcd"]
    together = threading.Barrier(len(texts))

    def write(text: bytes) -> None:
        together.wait(10)
        try:
            for _ in range(100):
                identity.write_atomically(path, text)
                assert path.read_bytes() in texts
        except (OSError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert [one.name for one in tmp_path.iterdir()] == ["job.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        identity.write_atomically(tmp_path / "job.json", b"{}")
    assert [one.name for one in tmp_path.iterdir()] == ["job.json"]
