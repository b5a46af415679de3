"""Files of any size and content: blocks, long lines, what cannot be read, and memory."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from each import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import HANG_S

from distui.runners.diagnosis import log_sources as module
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.log_sources import plain_source
from distui.runners.diagnosis.log_text import BLOCK, LONGEST
from distui.runners.diagnosis.read_logs import lines_of, read_all
from distui.runners.run.errors import RunError

CORPUS = Path(__file__).parent / "corpus"
FATAL = "h:1:2 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"


def every_line(path: Path) -> list[str]:
    with plain_source(str(path), path) as source:
        return [line for lines in lines_of(source) for line in lines]


@for_each("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_lines_at_the_edges_of_blocks_stay_whole(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.log"
    line = b"x" * 99 + b"\n"
    data = (line * (size // 100 + 1))[: size - len(FATAL) // 2]
    path.write_bytes(data[: data.rindex(b"\n") + 1] + f"{FATAL}\n".encode() + line * 3)
    found = judge(read_all([(str(path), path)])).findings
    assert [(one.id, one.count) for one in found] == [("ib-port-error", 1)]
    assert found[0].lines[0].line == data.count(b"\n") + 1


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.just("\n"), max_size=400),
    block=st.integers(1, 40),
)
def test_blocks_of_any_size_give_the_same_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block: int
) -> None:
    text = text.replace("\ufeff", "")
    path = tmp_path / "a.log"
    path.write_bytes(text.encode())
    with monkeypatch.context() as patched:
        patched.setattr(module, "BLOCK", block)
        found = every_line(path)
    whole = text.split("\n")
    assert found == (whole[:-1] if not whole[-1] else whole)


def test_of_a_line_without_an_end_the_beginning_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(
        f"{FATAL} ".encode() + b"x" * (3 * BLOCK) + f"\n{FATAL}\n".encode() + b"y" * (2 * BLOCK)
    )
    lines = every_line(path)
    assert [len(line) for line in lines] == [LONGEST, len(FATAL), LONGEST]
    assert judge(read_all([(str(path), path)])).findings[0].count == 2


def test_evidence_is_cut_and_no_command_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"\x1b[31m{FATAL}\x1b[0m" + "é" * 1000 + "\n")
    text = judge(read_all([(str(path), path)])).findings[0].lines[0].text
    assert text.startswith(FATAL)
    assert len(text) <= 300
    assert "\x1b" not in text


def test_ends_of_lines_of_another_system(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"h:1:2 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\r\n" * 2)
    found = judge(read_all([(str(path), path)])).findings
    assert [(one.id, one.values["value"]) for one in found] == [("env-set", "1")]


@for_each(
    ("name", "why"),
    [
        ("gone.log", "does not exist: name log files, or a run"),
        (".", "no log files in "),
    ],
)
def test_what_is_no_file_is_one_sentence(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(RunError, match=why) as raised:
        read_all([(str(tmp_path / name), tmp_path / name)])
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("x")
    path.chmod(0)
    with pytest.raises(RunError, match=r"cannot be read \(permission denied\)"):
        read_all([(str(path), path)])


NO_TEXT = {
    "every byte": bytes(range(256)) * 40,
    "gzip": gzip.compress(random.Random(7).randbytes(4000)),
    "pickle": b"\x80\x04" + bytes(99),
}


@for_each("data", NO_TEXT.values())
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(data)
    with pytest.raises(RunError, match="is not text"):
        every_line(path)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.touch()
    verdict = judge(read_all([(str(path), path)]))
    assert (verdict.findings, verdict.first) == ((), None)


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, f"{FATAL}\n".encode())
    os.close(writer)
    path = f"/dev/fd/{reader}"
    assert [one.id for one in judge(read_all([(path, Path(path))])).findings] == ["ib-port-error"]
    os.close(reader)


PEAK = """
import resource, sys
from pathlib import Path
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.first_cause import judge
judge(read_all((name, Path(name)) for name in sys.argv[1:2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reading = read_all((name, Path(name)) for name in sys.argv[2:])
judge(reading)
print(reading.lines, before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_memory_is_bounded(tmp_path: Path) -> None:
    """The same processes again and again, then every line of another process, communicator, host, pair and variable:
    8 times as much of both takes no more than a few blocks."""
    corpus = b"".join(path.read_bytes() + b"\n" for path in sorted(CORPUS.glob("*.log")))
    for name, times in (("small", 1), ("large", 8)):
        with (tmp_path / name).open("w") as file:
            file.write(corpus.decode("utf-8", "replace") * (times * (2 << 20) // len(corpus)))
            for one in range(10_000 * times):
                head = f"host{one}:{one}:{one} [0] NCCL INFO"
                file.write(
                    f"{head} comm 0x{one:x} rank {one} nranks {one + 1} commId 0x{one:x} - Init START\n"
                    f"{head} Channel 00/0 : {one}[0] -> {one + 1}[0] [send] via NET/IB{one}/0\n"
                    f"{head} NCCL_V{one} set by environment to {one}.\n"
                    f"host{one}:{one}:{one} [0] x.cc:1 NCCL WARN Connection closed by remote peer {one}\n"
                )
    words: list[str | Path] = [sys.executable, "-c", PEAK, tmp_path / "small", tmp_path / "large"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=True)
    lines, before, after = map(int, done.stdout.split())
    assert lines > 400_000
    assert after - before < 48 << 10, "KiB"
