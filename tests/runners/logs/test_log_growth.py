"""Sizes that changed, and how fast."""

from __future__ import annotations

from pathlib import Path

from distui.runners.run.growth_watch import GrowthWatch
from distui.runners.run.log_files import file_id


def write(run: Path, file: str, data: bytes) -> None:
    path = run / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(data)


def test_only_what_changed_is_told(tmp_path: Path) -> None:
    watch = GrowthWatch(tmp_path)
    assert watch.poll(0.0) == {}
    one, two = file_id(0, 1, 0, "out"), file_id(0, 1, 1, "err")
    write(tmp_path, one, b"12345")
    write(tmp_path, two, b"")
    write(tmp_path, "node-0/attempt-001/core.77", b"not a log")
    assert watch.poll(0.1) == {one: 5, two: 0}
    assert watch.poll(0.2) == {}
    write(tmp_path, two, b"xx")
    assert watch.poll(0.3) == {two: 2}
    (tmp_path / one).write_bytes(b"1")
    assert watch.poll(0.4) == {one: 1}
    assert watch.sizes == {one: 1, two: 2}


def test_an_agent_knows_all_attempts_and_watches_the_two_newest(tmp_path: Path) -> None:
    watch = GrowthWatch(tmp_path)
    files = [file_id(0, attempt, 0, "err") for attempt in (1, 2, 1000)]
    for file in files:
        write(tmp_path, file, b"x")
    assert watch.poll(0.0) == dict.fromkeys(files, 1)
    assert len(watch.folders) == 4, "the run, the node, two attempts"
    for file in files:
        write(tmp_path, file, b"y")
    assert watch.poll(0.1) == {files[1]: 2, files[2]: 2}
    assert watch.sizes == {files[0]: 1, files[1]: 2, files[2]: 2}
