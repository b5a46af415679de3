"""Packed files, archives and directories are read as plain files are; what is hostile in them costs a sentence."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import os
import random
import shutil
import string
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from each import for_each

from distui.runners.diagnosis import log_sources
from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.log_text import BLOCK, LONGEST
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading
from distui.runners.run.errors import RunError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN = b"h:1:2 [0] NCCL WARN Too many open files\n"
TRACE = b"""step 1 loss 2.0
Traceback (most recent call last):
  File "/app/train.py", line 33, in <module>
    main()
KeyError: 'labels'
"""
TOOLS = {"gz": "gzip", "xz": "xz", "bz2": "bzip2", "zst": "zstd"}


def read(path: Path, name: str = "") -> tuple[Reading, Verdict]:
    reading = read_all([(name or path.name, path)])
    return reading, judge(reading)


def evidence(path: Path) -> tuple[str, int | None, str, int]:
    """Id, rank and place of the first cause."""
    _, verdict = read(path)
    assert verdict.first is not None
    line = verdict.first.lines[0]
    return verdict.first.id, verdict.first.rank, line.file, line.line


def tool(*argv: str | Path, cwd: Path | None = None) -> bytes:
    if shutil.which(str(argv[0])) is None:
        pytest.skip(f"there is no {argv[0]} here")
    return subprocess.run(argv, cwd=cwd, capture_output=True, check=True, timeout=60).stdout


def tree(folder: Path) -> Path:
    """Logs of two hosts with two ranks each, the last of which fails."""
    for rank in range(4):
        path = folder / "logs" / f"gpu-{'ab'[rank // 2]}" / f"rank{rank}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"step 1 loss 2.0\n" * 50 + (TRACE if rank == 3 else b""))
    return folder / "logs"


def noise(count: int) -> bytes:
    """Text that does not pack well."""
    made = random.Random(7)
    return "".join(made.choices(string.ascii_letters + "\n", k=count)).encode()


def tarred(folder: Path, *names: str, mode: str = "w") -> bytes:
    """A tar archive of files of this folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.GNU_FORMAT) as archive:  # type: ignore[call-overload]
        for name in names:
            archive.add(folder / name, name)
    return buffer.getvalue()


def zipped(folder: Path, *names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.write(folder / name, name)
    return buffer.getvalue()


@pytest.mark.real
def test_what_the_real_tools_pack_is_read(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "rank3.log").write_bytes(TRACE)
    for kind, program in TOOLS.items():
        packed = tmp_path / f"rank3.log.{kind}"
        packed.write_bytes(tool(program, "-c", tmp_path / "rank3.log"))
        assert evidence(packed) == ("died-exception", 3, packed.name, 5)
    for options in ("-cf", "-czf", "-cjf", "-cJf", "--zstd -cf"):
        tool("tar", *options.split(), "logs.tar", "logs", cwd=tmp_path)
        file = "logs.tar:logs/gpu-b/rank3.log"
        assert evidence(tmp_path / "logs.tar") == ("died-exception", 3, file, 55), options
    tool("zip", "-qr", "logs.zip", "logs", cwd=tmp_path)
    assert evidence(tmp_path / "logs.zip") == ("died-exception", 3, "logs.zip:logs/gpu-b/rank3.log", 55)
    tool("zip", "-q", "-P", "secret", "locked.zip", "rank3.log", cwd=tmp_path)
    with pytest.raises(RunError, match="is encrypted, password required"):
        read(tmp_path / "locked.zip")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "distui.tui", "diagnose", "-"],
        input=tool("zip", "-qr", "-", "logs", cwd=tmp_path), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"First cause: died-exception")


PACKERS: list[Callable[[bytes], bytes]] = [
    gzip.compress,
    functools.partial(bz2.compress, compresslevel=1),
    lzma.compress,
    zstd.compress,
]


@for_each("pack", PACKERS)
def test_what_is_packed_shows_in_its_bytes(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """Packed texts may also follow one another."""
    (tmp_path / "rank3.txt").write_bytes(pack(b"step 1\n") + pack(TRACE))
    assert evidence(tmp_path / "rank3.txt") == ("died-exception", 3, "rank3.txt", 6)


def test_archives_within_each_other(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "a.tgz").write_bytes(tarred(tmp_path, "logs", mode="w:gz"))
    (tmp_path / "b.zip").write_bytes(zipped(tmp_path, "a.tgz"))
    (tmp_path / "c.txz").write_bytes(tarred(tmp_path, "b.zip", mode="w:xz"))
    with pytest.raises(RunError, match="more than 4 archives lie within each other"):
        read(tmp_path / "c.txz")
    assert evidence(tmp_path / "b.zip") == ("died-exception", 3, "b.zip:a.tgz:logs/gpu-b/rank3.log", 55)


def test_a_directory_of_hosts(tmp_path: Path) -> None:
    _, verdict = read(tree(tmp_path))
    assert verdict.first is not None
    assert (verdict.first.rank, verdict.first.host) == (3, "gpu-b")
    assert verdict.first.lines[0].file == "logs/gpu-b/rank3.log"


def test_the_log_directory_of_torchrun(tmp_path: Path) -> None:
    for rank, text in ((0, b"step 1\n"), (1, TRACE)):
        folder = tmp_path / "logs" / "none_2y3kbcpi" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").touch()
        (folder / "stderr.log").write_bytes(text)
    assert evidence(tmp_path / "logs")[:2] == ("died-exception", 1)


def test_what_is_no_log_is_left_out_of_a_directory(tmp_path: Path) -> None:
    logs = tree(tmp_path)
    (logs / "core.71").write_bytes(random.Random(7).randbytes(5000))
    (logs / "train.py").write_text("raise ValueError('no log')\n")
    (logs / "link.log").symlink_to("/etc/passwd")
    (logs / "loop").symlink_to(logs)
    (logs / ".git").mkdir()
    (logs / ".git/a.log").write_bytes(PLAIN)
    os.mkfifo(logs / "pipe.log")
    reading, _ = read(logs)
    assert len(reading.files) == 4
    assert list(reading.unread) == [
        "3 files are not logs: logs/core.71, logs/pipe.log, logs/train.py",
        "2 symbolic links are not followed",
    ]


@pytest.mark.real
def test_a_named_pipe_is_read_once_it_has_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "pipe.log"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", 'sleep 0.3; cat > "$0"', fifo], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(TRACE * 200)
        writer.stdin.close()
        _, verdict = read(fifo)
    assert verdict.first is not None
    assert verdict.first.id == "died-exception"
    monkeypatch.setattr(log_sources, "WRITER_S", 0.2)
    with pytest.raises(
        RunError, match=r"no process writes into the named pipe pipe\.log: start its writer"
    ):
        read(fifo)


def test_files_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (10, 9, 100, 1):
        (tmp_path / f"rank{rank}.log").write_bytes(PLAIN)
    reading, _ = read(tmp_path, "x")
    assert reading.files == [f"x/rank{rank}.log" for rank in (1, 9, 10, 100)]


@for_each("pack", PACKERS)
def test_of_a_torn_file_the_beginning_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = pack(PLAIN + noise(300_000))
    (tmp_path / "a.log").write_bytes(data[: len(data) * 3 // 4])
    reading, verdict = read(tmp_path / "a.log")
    assert [one.id for one in verdict.findings] == ["too-many-files"]
    (sentence,) = reading.unread
    assert sentence.startswith(f"a.log breaks off after line {reading.lines} (")


@for_each("mode", ["w", "w:gz"])
def test_of_a_torn_archive_the_first_files_are_read(tmp_path: Path, mode: str) -> None:
    (tmp_path / "rank0.log").write_bytes(TRACE)
    (tmp_path / "rank1.log").write_bytes(noise(500_000))
    data = tarred(tmp_path, "rank0.log", "rank1.log", mode=mode)
    (tmp_path / "logs.tar").write_bytes(data[: len(data) // 2])
    reading, verdict = read(tmp_path / "logs.tar")
    assert verdict.first is not None
    assert verdict.first.rank == 0
    (sentence,) = reading.unread
    assert sentence.startswith("logs.tar:rank1.log breaks off after line ")


def test_a_tar_that_ends_within_a_header(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_bytes(TRACE)
    (tmp_path / "rank1.log").write_bytes(TRACE)
    data = tarred(tmp_path, "rank0.log", "rank1.log")
    (tmp_path / "logs.tar").write_bytes(data)
    (tmp_path / "cut.tar").write_bytes(data[: 1024 + 300])
    reading, verdict = read(tmp_path / "cut.tar")
    assert verdict.first is not None
    assert list(reading.unread) == [
        "cut.tar breaks off in its file 1 (its end is missing): have it copied again"
    ]
    assert list(read(tmp_path / "logs.tar")[0].unread) == []


@for_each(
    "data",
    [
        b"\x1f\x8bnothing", gzip.compress(b"\0" * 99), b"BZh9nothing", b"\xfd7zXZ\x00nothing",
        b"\x28\xb5\x2f\xfdnothing", b"PK\x03\x04nothing", gzip.compress(PLAIN)[:12],
    ],
)  # fmt: skip
def test_what_cannot_be_unpacked_at_all_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.log").write_bytes(data)
    with pytest.raises(RunError, match=r"a\.log (cannot be (unpacked|read)|is not text)") as raised:
        read(tmp_path / "a.log")
    assert "\n" not in str(raised.value)


def test_a_long_line_in_a_packed_file(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\n" + b"x" * (3 * BLOCK) + b"\n" + PLAIN))
    reading, verdict = read(tmp_path / "a.gz")
    assert (reading.lines, verdict.findings[0].lines[0].line) == (3, 3)
    assert LONGEST < 3 * BLOCK


def test_a_bomb_is_left_after_a_gibibyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "FLOOR", 4 << 20)
    (tmp_path / "a.log").write_bytes(gzip.compress(PLAIN) + bz2.compress(b"x"))
    (tmp_path / "bomb.bz2").write_bytes(bz2.compress(PLAIN + b"x" * (16 << 20)))
    reading, _ = read(tmp_path, "logs")
    assert [sentence for sentence in reading.unread if "bomb" in sentence] == [
        "logs/bomb.bz2 breaks off after line 1 (more than 1,000 bytes per packed byte): have it copied again"
    ]


def test_a_zip_bomb_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "FLOOR", 4 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank0.log", PLAIN + b"x" * (16 << 20))
    reading, _ = read(tmp_path / "a.zip")
    assert "a.zip:rank0.log breaks off after line 1" in next(iter(reading.unread))


def test_many_files_are_left_after_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "FILES", 3)
    with (
        tarfile.open(tmp_path / "a.tar", "w") as archive,
        zipfile.ZipFile(tmp_path / "a.zip", "w") as other,
    ):
        for number in range(9):
            info = tarfile.TarInfo(f"rank{number}.log")
            info.size = len(PLAIN)
            archive.addfile(info, io.BytesIO(PLAIN))
            if number < 6:
                other.writestr(info.name, PLAIN)
            (tmp_path / "logs").mkdir(exist_ok=True)
            (tmp_path / "logs" / info.name).write_bytes(PLAIN)
    for name in ("a.tar", "a.zip", "logs"):
        reading, _ = read(tmp_path / name)
        assert len(reading.files) == 3
        assert list(reading.unread) == [f"{name} holds more than 3 files: the rest is not read"]
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as other:
        for number in range(9):
            other.writestr(str(number), PLAIN)
    with pytest.raises(RunError, match="holds 9 files or more"):
        read(tmp_path / "many.zip")


def test_a_name_that_fills_the_memory(tmp_path: Path) -> None:
    """The header of a long name says how long: it is not believed."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 8 << 30
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(RunError, match=r"a name in it has 8\.0 GiB"):
        read(tmp_path / "a.tar")


def test_what_an_archive_names_is_never_written_anywhere(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("../../rank0.log", "/etc/rank1.log"):
            info = tarfile.TarInfo(name)
            info.size = len(PLAIN)
            archive.addfile(info, io.BytesIO(PLAIN))
        link = tarfile.TarInfo("rank2.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    reading, _ = read(tmp_path / "a.tar")
    assert reading.files == ["a.tar:../../rank0.log", "a.tar:/etc/rank1.log"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar"]


def test_without_a_package_for_zstd_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99))
    with pytest.raises(
        RunError,
        match=r"needs Python 3\.14 or the package backports\.zstd: `.* -m pip install 'backports\.zstd>=1\.0'`",
    ):
        read(tmp_path / "a.zst")
