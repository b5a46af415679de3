"""Files that are replaced whole, also by several nodes that have the same home folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from distui.presets.plan import command_plan
from distui.presets.request import Request
from distui.runners.node import local_agent
from distui.runners.run import file_io, launch_record, run_directories


def test_several_may_replace_a_file_at_once(tmp_path: Path) -> None:
    path, errors = tmp_path / "job.json", []
    texts = [letter.encode() * 9000 for letter in "abcd"]
    together = threading.Barrier(len(texts))

    def write(text: bytes) -> None:
        together.wait()
        try:
            for _ in range(100):
                file_io.write_atomically(path, text)
                assert path.read_bytes() in texts
        except (OSError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [one.name for one in tmp_path.iterdir()] == ["job.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        file_io.write_atomically(tmp_path / "job.json", b"{}")
    assert [one.name for one in tmp_path.iterdir()] == ["job.json"]


def test_a_new_run_is_on_the_disk_itself(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it is the run that was launched, and not a damaged one: files first, then the folders."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DISTUI_SOCKET_DIR", str(socket_folder))
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    monkeypatch.setattr(local_agent, "start_agent", lambda *given: None)
    monkeypatch.setattr(launch_record, "git_state", lambda folder: None)
    record = run_directories.new_record("job")
    plan = command_plan(("true",), Request(), local_agent.place(record, Request()))
    path = local_agent.start(plan, record).path
    names = ("plan.json", "run.json", "environ")
    assert synced == [*(str(path / name) for name in names), str(path), str(path.parent)]
