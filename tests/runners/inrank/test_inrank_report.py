"""The runner's report on a disk that is full."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from distui.runners.inrank.reporter import RESERVE_BYTES, Reporter, report_faults
from distui.runners.run.model import Stamped


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; skipped where this user may not mount one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(directory)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Take all room that is left."""
    path = directory / "filler"
    with path.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["event"]["number"] for line in path.read_text().splitlines()]


def test_what_could_not_be_written_comes_later_and_in_order(tmp_path: Path) -> None:
    path, pokes = tmp_path / "runner.jsonl", list[int]()
    report = Reporter(str(path), lambda: pokes.append(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for number in range(60):
            if number == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
            if number == 50:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            report("Numbered", number=number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(pokes) == 60
    assert report.close(), "not everything was written"
    assert numbers(path) == list(range(60))
    assert os.listdir(tmp_path) == ["runner.jsonl"], "the reserve is given back"


def test_a_thread_of_the_runners_own_that_raises_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: printed.append(ended.thread.name))
    report = Reporter(str(tmp_path / "runner.jsonl"), lambda: None)
    report_faults(report, 3)

    def fails() -> None:
        raise LookupError("no HF_TOKEN=x1y2z3")

    names = ("distui-beat", "distui-wait-4711", "of-the-script")
    for name in names:
        thread = threading.Thread(target=fails, name=name)
        thread.start()
        thread.join()
    report.close()
    assert printed == list(names)
    lines = (tmp_path / "runner.jsonl").read_bytes().splitlines()
    findings = [msgspec.json.decode(line, type=Stamped).event.finding for line in lines]  # type: ignore[union-attr]
    assert [finding.id for finding in findings] == ["part-failed:runner-beat", "part-failed:runner-wait"]
    text = "internal error in runner-beat (it is not tried again): LookupError: no HF_TOKEN=***"
    assert (findings[0].text, findings[0].severity, findings[0].node) == (text, "warning", 3)


@pytest.mark.real
def test_on_a_full_disk_the_end_of_the_run_is_written_and_the_rest_waits_for_room(small_disk: Path) -> None:
    report = Reporter(str(small_disk / "runner.jsonl"), lambda: None)
    report("Numbered", number=0)
    fill(small_disk)
    report("Numbered", number=1, text="x" * 5000)
    assert numbers(small_disk / "runner.jsonl") == [0, 1]
    fill(small_disk)
    for number in (2, 3):
        report("Numbered", number=number, text="x" * RESERVE_BYTES)
    assert not report.close(seconds=0.0)
    (small_disk / "filler").unlink()
    assert report.close()
    assert numbers(small_disk / "runner.jsonl") == [0, 1, 2, 3]
