"""Where sockets are, also when another account has been there first."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.errors import RunError
from distui.runners.wire import socket_folders
from distui.runners.wire.client import ensure_socket_dir, stem


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folder of the session, that in /tmp, that at home; none is there yet."""
    with tempfile.TemporaryDirectory(
        prefix="dt-", dir="/tmp"
    ) as base:  # pytest's own paths may be too long
        found = [Path(base, name, "distui") for name in ("session", "tmp", "home")]
        for folder in found:
            folder.parent.mkdir(mode=0o700)
        monkeypatch.delenv("DISTUI_SOCKET_DIR", raising=False)
        monkeypatch.setattr(socket_folders, "candidates", lambda: [str(folder) for folder in found])
        yield found


def test_the_folder_of_the_session_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTUI_SOCKET_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/mine")
    assert socket_folders.candidates()[0] == "/run/mine/distui"
    monkeypatch.setenv("DISTUI_SOCKET_DIR", "/chosen")
    assert socket_folders.candidates() == ["/chosen"]


@pytest.mark.parametrize("planted", ["file", "link", "open to others", "no such parent", "open parent"])
def test_what_another_account_planted_is_passed_over(folders: list[Path], planted: str) -> None:
    first, second, _ = folders
    if planted == "file":
        first.write_text("")
    elif planted == "link":
        first.symlink_to(second.parent)
    elif planted == "open to others":
        first.mkdir()
        first.chmod(0o777)
    elif planted == "no such parent":
        first.parent.rmdir()
    else:
        first.parent.chmod(0o777)
    ensure_socket_dir()
    assert stem("00c0ffee") == str(second / "00c0ffee")
    assert second.is_dir()


def test_sockets_of_a_run_are_found_wherever_they_were_made(folders: list[Path]) -> None:
    ensure_socket_dir()
    folders[2].mkdir(mode=0o700)
    (folders[2] / "00c0ffee.run").touch()
    assert stem("00c0ffee") == str(folders[2] / "00c0ffee")
    assert stem("deadbeef") == str(folders[0] / "deadbeef")


def test_the_sentence_names_every_folder_that_cannot_be_used(folders: list[Path]) -> None:
    for folder in folders:
        folder.write_text("")
    with pytest.raises(RunError) as refused:
        ensure_socket_dir()
    assert all(f"{folder} is not a directory" in str(refused.value) for folder in folders)
    assert "set DISTUI_SOCKET_DIR to a short path" in str(refused.value)


def test_a_path_is_as_long_as_its_bytes(folders: list[Path]) -> None:
    """The kernel counts bytes, of which a letter beyond ASCII has two or more."""
    folders[0] = folders[0].parent / ("ü" * 40)
    ensure_socket_dir()
    assert stem("00c0ffee") == str(folders[1] / "00c0ffee")
