"""Where sockets are, also when another account has been there first."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from distui.runners.inrank import own_folders
from distui.runners.inrank.control import dial, listen, listen_again
from distui.runners.run import file_io, server_link
from distui.runners.run.errors import RunError
from distui.runners.run.wire.client import LinkError, ensure_socket_dir, stem


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
        monkeypatch.setattr(own_folders, "candidates", lambda: [str(folder) for folder in found])
        yield found


def test_the_folder_of_the_session_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISTUI_SOCKET_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/mine")
    assert own_folders.candidates()[0] == "/run/mine/distui"
    monkeypatch.setenv("DISTUI_SOCKET_DIR", "/chosen")
    assert own_folders.candidates() == ["/chosen"]


@pytest.mark.parametrize(
    "planted", ["file", "link", "open to others", "not writable", "no such parent", "open parent"]
)
def test_what_another_account_planted_is_passed_over(folders: list[Path], planted: str) -> None:
    first, second, _ = folders
    if planted == "file":
        first.write_text("")
    elif planted == "link":
        first.symlink_to(second.parent)
    elif planted == "open to others":
        first.mkdir()
        first.chmod(0o777)
    elif planted == "not writable":
        first.mkdir(mode=0o500)
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


def test_a_socket_is_bound_elsewhere_once_its_folder_cannot_be_had(folders: list[Path]) -> None:
    """As that of a session after the logout. What is bound later follows, also when the folder is there again."""
    session, second, _ = folders
    names = [f"00c0ffee.{ending}" for ending in ("run", "r0", "r1")]
    first = [listen(str(session / name)) for name in names[:2]]
    session.rename(session.with_name("aside"))
    back = listen_again(str(session / names[0]))
    assert back is not None
    assert Path(back.getsockname()) == session / names[0], "where it was, if that can be"
    shutil.rmtree(session.parent)
    moved = [listen_again(str(session / name)) for name in names[:2]]
    session.mkdir(mode=0o700, parents=True)
    later = listen(str(session / names[2]))
    assert [Path(one.getsockname()) for one in (*filter(None, moved), later)] == [
        second / name for name in names
    ]
    assert stem("00c0ffee") == str(second / "00c0ffee")
    for one in (dial(str(session / names[0]), 1.0), *first, back, *filter(None, moved), later):
        one.close()


def test_a_socket_stays_in_a_folder_that_somebody_named(folders: list[Path]) -> None:
    """A process that was not told of it looks for no other: it would not be found there."""
    named = folders[0].parent / "named"
    server = listen(str(named / "00c0ffee.run"))
    shutil.rmtree(named)
    again = listen_again(str(named / "00c0ffee.run"))
    assert again is not None
    assert named.is_dir()
    (named / "00c0ffee.run").unlink()
    named.chmod(0o755)
    assert listen_again(str(named / "00c0ffee.run")) is None
    assert own_folders.place_of(str(named / "00c0ffee.run")) == str(named / "00c0ffee.run")
    for one in (server, again):
        one.close()


@pytest.mark.parametrize(
    ("planted", "why"),
    [
        (False, "cannot be created (No such file or directory): `mkdir -p -m 700 {}`"),
        (True, "is not a directory: remove it"),
    ],
)
async def test_where_no_folder_can_be_had_the_one_to_mend_is_named(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, planted: bool, why: str
) -> None:
    folder = folders[0]
    who = file_io.identify(socket=str(folder / "00c0ffee.sock"))
    monkeypatch.setattr(own_folders, "candidates", lambda: [str(folder)])
    monkeypatch.setattr(server_link, "send_signal", lambda pid, number: None)
    if planted:
        folder.write_text("")
    else:
        folder.parent.rmdir()
    with pytest.raises(LinkError) as refused:
        await server_link.connect(who)
    wanted = f"the agent (pid {who.pid}) lives, but {folder} {why.format(folder)}, and it opens its socket there again"
    assert str(refused.value) == wanted
