"""Logs of any shape: words of 64 KB, long lines."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.log_findings import LogFinding
from distui.runners.diagnosis.log_text import LONGEST, SEARCHED
from distui.runners.diagnosis.prefixes import unshipped
from distui.runners.diagnosis.read_logs import read_all
from distui.runners.diagnosis.reading import Reading

TRACE = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/train.py", line 33, in <module>
[rank3]: KeyError: 'labels'
"""
FOLDED = r"[rank3]: Traceback (most recent call last):\n" + "".join(
    rf'  File "/app/{name}.py", line 7, in step\n    return {name}(x)\n' for name in "abcdefgh" * 20
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TITLE = "a title of forty characters and of more "
WORDS = (
    "A",
    "0",
    "_",
    "\x1b[",
    "\x1b]0;",
    "[",
    "(",
    "{",
    " ",
    ".",
    "⟨",
    "é",
    "a.",
    "0:",
    "a(",
    "error ",
    "\\",
)


def first(reading: Reading) -> LogFinding:
    found = judge(reading).first
    assert found is not None
    return found


def of_lines(*lines: str) -> LogFinding:
    reading = Reading(pasted=True)
    reading.open("a.log")
    reading.feed(lines)
    return first(reading)


@for_each("word", WORDS)
def test_a_word_of_64_kb_hides_nothing(tmp_path: Path, word: str) -> None:
    line = (word * LONGEST)[:LONGEST]
    (tmp_path / "a.log").write_text("\n".join(("step 1 loss 2.1", line, line + "\n" + TRACE)))
    found = first(read_all([("a.log", tmp_path / "a.log")]))
    assert (found.text, found.rank) == ("A rank raised KeyError: 'labels' at train.py:33.", 3)


@for_each("word", ("x", "x ", "x=1, "))
def test_both_ends_of_a_long_line_count(word: str) -> None:
    between = word * (LONGEST // len(word) - 200)
    for line in (f"[rank3]: {OUT_OF_MEMORY} {between}", f"[rank3]: {between} {OUT_OF_MEMORY}"):
        found = of_lines("step 1", line, "and a line")
        assert (found.id, found.rank, found.lines[0].line) == ("died-cuda-oom", 3, 2)


@for_each("end", (r"KeyError: 'labels'", f"{OUT_OF_MEMORY}"))
def test_a_long_traceback_in_one_line_is_read_to_its_exception(end: str) -> None:
    assert len(FOLDED) > SEARCHED
    found = of_lines("step 1", f"{FOLDED}{end}")
    assert (found.rank, found.lines[0].line) == (3, 2)
    assert end.partition(":")[0].rpartition(".")[2] in found.lines[0].text


@for_each(
    ("line", "rest"),
    [
        ("Epoch 1:  50%|█████     | 5/10 [00:01<00:01, 3.2it/s] done", "done"),
        ("a | b: 50%|█| 5/10 [00:01<00:01, 3.2it/s] done", "a |done"),
        (TITLE * 6 + "50%|█| 5/10 [00:01<00:01, 3.2it/s] done", TITLE + "adone"),
        ("5%|█| no bar 50%|█| 5/10 [00:01<00:01, 3.2it/s] done", "5%|█|done"),
        ("50% | of it", "50% | of it"),
    ],
)
def test_a_progress_bar_goes_with_its_title(line: str, rest: str) -> None:
    assert unshipped(line) == rest
