"""A bundle is written whole or not at all, and nothing in one that comes from elsewhere can do harm."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from each import for_each

from distui.runners.reports import bundle_reader
from distui.runners.reports.bundle_content import numbered
from distui.runners.reports.bundle_files import File, Manifest
from distui.runners.reports.bundle_reader import is_bundle, unpack
from distui.runners.reports.bundle_writer import BundleWriter
from distui.runners.run.errors import RunError
from distui.runners.run.model import RunEnded, RunPhase, Stamped

TOP = "20260101-000000-job-0a1b2c3d"


def manifest(files: list[File], run: str = TOP) -> Manifest:
    return Manifest(1, "1.0", 1.7e9, run, "job", "failed", False, files, [], 0)


def written(path: Path, force: bool = False) -> Path:
    with BundleWriter(path, TOP, force) as writer:
        writer.add("run.json", b"{}")
        writer.add("node-0/attempt-001/rank-0.out", b"x" * 3000, 10_000)
        writer.finish(manifest(list(writer.files)))
    return path


def packed(
    path: Path, members: list[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.USTAR_FORMAT
) -> Path:
    """A tar file of anything."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=form) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue()))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_what_was_written_comes_out_again(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tar.gz")
    assert is_bundle(path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = unpack(path, tmp_path / "out")
    assert [(one.name, one.bytes, one.of) for one in found.files] == [
        ("run.json", 2, None),
        ("node-0/attempt-001/rank-0.out", 3000, 10_000),
    ]
    out = tmp_path / "out" / TOP
    assert (out / "node-0/attempt-001/rank-0.out").read_bytes() == b"x" * 3000
    assert (out / "run.json").stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        assert tar.getnames()[-1] == f"{TOP}/MANIFEST.json"


def test_a_file_that_is_there_stays_unless_it_is_forced(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_text("mine")
    with pytest.raises(RunError, match="is there already"):
        written(path)
    assert path.read_text() == "mine"
    assert is_bundle(written(path, force=True))
    with pytest.raises(RunError, match="is there already"):
        written(tmp_path, force=True)


def test_a_file_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with BundleWriter(path, TOP) as writer:
        path.write_text("theirs")
        with pytest.raises(RunError, match="is there already"):
            writer.finish(manifest([]))
    assert path.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["a.tar.gz"]


def test_what_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "a.tar.gz", TOP) as writer:
        writer.add("run.json", b"{}")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "a.tar.gz", TOP) as writer:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer._file.fileno())
        os.close(full)
        with pytest.raises(RunError, match=r"cannot be written \(no space left on device\)"):
            writer.add("run.json", os.urandom(4 << 20))
    assert os.listdir(tmp_path) == []


OUT = f"{TOP}/node-0/attempt-001/rank-0.out"


@for_each(
    ("info", "says"),
    [
        (member("/etc/passwd"), "belongs in no bundle"),
        (member("../../x/run.json"), "belongs in no bundle"),
        (member(f"{TOP}/../../run.json"), "belongs in no bundle"),
        (member(f"{TOP}/node-0/../run.json"), "belongs in no bundle"),
        (member(f"{TOP}/agent.json"), "belongs in no bundle"),
        (member(f"{TOP}/relay.key"), "belongs in no bundle"),
        (member("..run.json/run.json"), "belongs in no bundle"),
        (member(OUT, tarfile.SYMTYPE, "/etc/passwd"), "belongs in no bundle"),
        (member(OUT, tarfile.LNKTYPE, "/etc/passwd"), "belongs in no bundle"),
        (member(OUT, tarfile.FIFOTYPE), "belongs in no bundle"),
        (member(OUT, tarfile.CHRTYPE), "belongs in no bundle"),
        (member(OUT, tarfile.DIRTYPE), "belongs in no bundle"),
        (member(OUT, tarfile.XHDTYPE), "belongs in no bundle"),
        (member(f"{TOP}/node-0/attempt-001/{'x' * 200}"), "belongs in no bundle"),
    ],
)
def test_what_belongs_into_no_bundle_is_refused(tmp_path: Path, info: tarfile.TarInfo, says: str) -> None:
    path = packed(tmp_path / "bad.tar.gz", [(info, b"")], tarfile.GNU_FORMAT)
    with pytest.raises(RunError, match=says):
        unpack(path, tmp_path / "in" / "out")
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and one != path]


def changed(data: bytes, name: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        files = [File("run.json", 2, hashlib.sha256(b"{}").hexdigest())]
        last = msgspec.json.encode(manifest(files))
        return packed(path, [(member(f"{TOP}/{name}"), data), (member(f"{TOP}/MANIFEST.json"), last)])

    return make


@for_each(
    ("make", "says"),
    [
        (changed(b"{}", "run.json"), ""),
        (changed(b"[]", "run.json"), "is not what was exported"),
        (changed(b"{}", "plan.json"), "is not what was exported"),
        (lambda path: packed(path, [(member(f"{TOP}/run.json"), b"{}")]), "it has no manifest"),
        (lambda path: packed(path, [(member(f"{TOP}/run.json"), b"")] * 2), "is in it twice"),
        (
            lambda path: packed(path, [(member("a/run.json"), b""), (member("b/run.json"), b"")]),
            "it holds several runs",
        ),
    ],
)
def test_what_is_not_what_was_exported_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], says: str
) -> None:
    path = make(tmp_path / "a.tar.gz")
    if not says:
        assert unpack(path, tmp_path / "out").run == TOP
        return
    with pytest.raises(RunError, match=says):
        unpack(path, tmp_path / "out")


def test_a_file_that_unfolds_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_reader, "MOST_BYTES", 1 << 20)
    big = packed(tmp_path / "a.tar.gz", [(member(OUT), b"\0" * (2 << 20))])
    with pytest.raises(RunError, match="too large"):
        unpack(big, tmp_path / "out")
    many = [(member(OUT.replace("rank-0", f"rank-{rank}")), b"\0" * (300 << 10)) for rank in range(5)]
    with pytest.raises(RunError, match=r"rank-3.out is too large"):
        unpack(packed(tmp_path / "b.tar.gz", many), tmp_path / "other")
    monkeypatch.setattr(bundle_reader, "MOST_FILES", 2)
    with pytest.raises(RunError, match="too large"):
        unpack(packed(tmp_path / "c.tar.gz", many[:3]), tmp_path / "third")


@for_each("cut", [10, 200, -20])
def test_what_was_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "a.tar.gz")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(RunError):
        unpack(path, tmp_path / "out")


@for_each(
    "more",
    [gzip.compress(b"more"), gzip.compress(b"\0" * 20_000), b"more", gzip.compress(b"\0" * 9000) * 2],
)
def test_what_follows_the_end_is_refused(tmp_path: Path, more: bytes) -> None:
    path = written(tmp_path / "a.tar.gz", force=True)
    with path.open("ab") as file:
        file.write(more)
    with pytest.raises(RunError, match=r"something follows its end|cannot be read"):
        unpack(path, tmp_path / "out")


def test_what_is_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"step 20 loss 2.1\n" * 100))
    (tmp_path / "log").write_bytes(b"step 20 loss 2.1\n")
    assert not is_bundle(tmp_path / "log.gz")
    assert not is_bundle(tmp_path / "log")
    assert not is_bundle(tmp_path / "gone")
    assert not is_bundle(tmp_path)


def test_what_no_journal_held_is_numbered() -> None:
    ended = RunEnded(RunPhase.SUCCEEDED, 0, "")
    events = [Stamped(1.0, ended, seq) for seq in (0, 4, 7, 0, 0)]
    assert [one.seq for one in numbered(events)] == [1, 4, 7, 8, 9]


def test_a_folder_that_no_bundle_holds(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="rename the directory"):
        BundleWriter(tmp_path / "a.tar.gz", "a copy")
    assert os.listdir(tmp_path) == []
