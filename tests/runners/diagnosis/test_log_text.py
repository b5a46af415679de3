"""Bytes of any log to its lines: encodings, progress bars, codes of terminals."""

from __future__ import annotations

import codecs
from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.log_text import LONGEST, decoded, encoding_of, without_codes
from distui.runners.diagnosis.read_logs import read_all

TRACE = """step 1 loss 2.0 größer
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 33, in <module>
[rank3]: KeyError: 'labels'
"""
BAR = "Epoch 1: {0:3}%|███       | {0}/100 [00:10<00:20,  3.21it/s, loss=2.1]"


def verdict(tmp_path: Path, data: bytes) -> Verdict:
    (tmp_path / "a.log").write_bytes(data)
    return judge(read_all([("a.log", tmp_path / "a.log")]))


def where(told: Verdict) -> tuple[str, int | None, int]:
    assert told.first is not None
    return told.first.text, told.first.rank, told.first.lines[0].line


RIGHT = ("A rank raised KeyError: 'labels' at train.py:33.", 3, 4)


@for_each(
    "data",
    [
        TRACE.encode(),
        codecs.BOM_UTF8 + TRACE.encode(),
        TRACE.encode("utf-16"),
        TRACE.encode("utf-16-le"),
        TRACE.encode("utf-16-be"),
        codecs.BOM_UTF16_BE + TRACE.encode("utf-16-be"),
        TRACE.encode("utf-32"),
        TRACE.encode("latin-1"),
        TRACE.replace("\n", "\r\n").encode(),
        TRACE.replace("\n", "\r\n").encode("utf-16"),
        TRACE.replace("\n", "\r\r\n").encode(),
        bytes(100_000) + TRACE.encode(),
    ],
)
def test_every_encoding(tmp_path: Path, data: bytes) -> None:
    assert where(verdict(tmp_path, data)) == RIGHT


def test_letters_of_latin_1_are_kept() -> None:
    assert decoded("größer".encode("latin-1")) == ["größer"]
    assert decoded("größer".encode()[:-1] + b"\xc3") == ["größe�"]
    assert encoding_of(b"ab\0\0") is None


def test_what_a_bar_writes_over_itself_is_one_line(tmp_path: Path) -> None:
    bars = "\r".join(BAR.format(at) for at in range(50))
    told = verdict(tmp_path, f"begin\n{bars}{TRACE.partition(chr(10))[2]}".encode())
    assert where(told) == (RIGHT[0], 3, 4)
    many = "\r".join(BAR.format(at % 100) for at in range(50_000))
    assert len(many) > 40 * LONGEST
    told = verdict(tmp_path, f"begin\n{many}{TRACE.partition(chr(10))[2]}".encode())
    assert where(told) == (RIGHT[0], 3, 4)
    told = verdict(tmp_path, f"begin\n{many}\r[rank2]: ValueError: bad".encode())
    assert told.first is not None
    assert (told.first.rank, told.first.lines[0].line) == (2, 2)


def test_a_bar_of_backspaces(tmp_path: Path) -> None:
    bar = "".join(f"{at}/100 [====]" + "\b" * 14 for at in range(100))
    assert where(verdict(tmp_path, f"{bar}\n{TRACE}".encode())) == (RIGHT[0], 3, 5)


@for_each(
    "text",
    [
        "\x1b[31mred\x1b[0m", "\x1b[1;38;5;196mred\x1b[m", "\x1b]0;title\x07red", "\x1b]8;;http://x\x1b\\red\x1b]8;;\x1b\\",
        "\x1b(Bred\x1b[K", "\x1bPq#0\x1b\\red", "\x9b31mred", "\x1b7red\x1b8", "\x1b=red\x1b>", "r\x1b[1Ae\x1b[2Kd",
        "#033[31mred#033[0m", "^[[31mred^[[0m", r"\u001b[31mred\u001b[0m", "[31mred[0m", "[1;31mred[39m", "\ufeffred",
    ],
)  # fmt: skip
def test_codes_of_terminals_anywhere_in_a_line(text: str) -> None:
    assert without_codes(text) == "red"


def test_what_only_looks_like_a_code() -> None:
    assert without_codes("took [5m 30s], a[0], [rank0]: [12]") == "took [5m 30s], a[0], [rank0]: [12]"


def test_colours_within_what_is_searched(tmp_path: Path) -> None:
    line = (
        "gpu-b:92:99 [0] x.cc:1 \x1b[1mNCCL\x1b[0m \x1b[31mWARN\x1b[0m Too many \x1b[4mopen\x1b[0m files\n"
    )
    assert [one.id for one in verdict(tmp_path, line.encode()).findings] == ["too-many-files"]
    shown = "\x1b[36m(RayTrainWorker pid=71, ip=10.0.0.4)\x1b[0m "
    told = verdict(tmp_path, "".join(shown + line + "\n" for line in TRACE.splitlines()).encode())
    assert where(told) == RIGHT
    assert told.first is not None
    assert told.first.host == "10.0.0.4"
