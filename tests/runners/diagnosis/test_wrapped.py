"""The logs after public threads, wrapped as shippers, launchers and archives wrap them, lead to the same first cause."""

from __future__ import annotations

import codecs
import functools
import gzip
import hashlib
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from each import for_each

from distui.runners.diagnosis.first_cause import Verdict, judge
from distui.runners.diagnosis.read_logs import read_all

THREADS = Path(__file__).parents[2] / "corpus/threads"
AT = "2026-03-01T12:{:02}:{:02}.123456789Z"


@functools.cache
def logs() -> dict[str, bytes]:
    """Those to develop with; excerpts of a few lines are too short for a prefix to be learned from them."""
    labels = json.loads((THREADS / "labels.json").read_text("utf-8"))[:272]
    even = [each for each in labels if not int(hashlib.sha256(each["source"].encode()).hexdigest(), 16) % 2]
    return {each["log"]: (THREADS / f"{each['log']}.log").read_bytes() for each in even}


def told(path: Path) -> Verdict:
    return judge(read_all([("wrapped", path)]))


def summary(verdict: Verdict) -> tuple[str, int | None, bool]:
    first = verdict.first
    return (first.id if first else "", first.rank if first else None, verdict.failed)


@functools.cache
def plain(name: str) -> tuple[str, int | None, bool]:
    return summary(told(THREADS / f"{name}.log"))


def lines(make: Callable[[int, str], str]) -> Callable[[bytes], bytes]:
    def wrapped(data: bytes) -> bytes:
        each = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
        return "".join(make(at, line) + "\n" for at, line in enumerate(each)).encode()

    return wrapped


def at(number: int) -> str:
    return AT.format(number // 60 % 60, number % 60)


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/a.log", data)
    return file.getvalue()


def tarred(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        info = tarfile.TarInfo("logs/a.log")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def document(data: bytes) -> bytes:
    each = data.decode("utf-8", "replace").removesuffix("\n").split("\n")
    events = [{"timestamp": 1772366400123 + at, "message": line} for at, line in enumerate(each)]
    return json.dumps({"events": events}, indent=4).encode()


BAR = " 10%|█         | 1/10 [00:01<00:09, 1.00it/s]".encode()
WRAPPERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "zip": zipped,
    "tar.gz": tarred,
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data: data.decode("utf-8", "replace").encode("utf-16"),
    "UTF-16 without mark": lambda data: data.decode("utf-8", "replace").encode("utf-16-be"),
    "BOM": lambda data: codecs.BOM_UTF8 + data,
    "colours": lines(lambda _, line: f"\x1b[32m{line[:20]}\x1b[0m{line[20:]}\x1b[K"),
    "lost colours": lines(lambda _, line: f"[32m{line}[0m"),
    "progress bar": lambda data: b"\r".join([BAR] * 99) + data,
    "docker": lines(lambda number, line: json.dumps({"log": line + "\n", "stream": "stderr", "time": at(number)})),
    "JSON": lines(lambda number, line: json.dumps({"message": line, "timestamp": at(number), "pod": "train-3"})),
    "CRI": lines(lambda number, line: f"{at(number)} stderr F {line}"),
    "CRI of JSON": lines(lambda number, line: f"{at(number)} stderr F {json.dumps({'msg': line})}"),
    "GitHub": lines(lambda number, line: f"{at(number)} {line}"),
    "cloudwatch": document,
    "syslog": lines(lambda number, line: f"Mar  1 12:{number // 60:02}:{number % 60:02} gpu-b python[71]: {line}"),
    "journald": lines(lambda number, line: f"{at(number)[:19]}+0000 gpu-b run[71]: {line}"),
    "kubectl": lines(lambda _, line: f"[pod/train-3/main] {line}"),
    "stern": lines(lambda _, line: f"train-worker-3 main {line}"),
    "compose": lines(lambda _, line: f"worker-3  | {line}"),
    "pdsh": lines(lambda _, line: f"gpu-b7: {line}"),
    "Ray": lines(lambda _, line: f"\x1b[36m(RayTrainWorker pid=71, ip=10.0.0.4)\x1b[0m {line}"),
    "SkyPilot": lines(lambda _, line: f"(worker1, rank=1, pid=71, ip=10.0.0.4) {line}"),
}  # fmt: skip
RANKS: dict[str, Callable[[bytes], bytes]] = {
    "torchrun": lines(lambda _, line: f"[default5]:{line}"),
    "srun": lines(lambda _, line: f"5: {line}"),
    "mpirun": lines(lambda _, line: f"[1,5]<stderr>:{line}"),
    "Lightning": lines(lambda _, line: f"[rank: 5] {line}"),
}


Summary = tuple[str, int | None, bool]


def different(
    tmp_path: Path, wrap: Callable[[bytes], bytes], count: int, first: int = 0, every: int = 1
) -> Sequence[tuple[str, Summary, Summary]]:
    """Logs that lead to something else, by the first `count` facts of them; each `every`th from `first` on."""
    path, others = tmp_path / "wrapped", []
    for name, data in [*logs().items()][first::every]:
        path.write_bytes(wrap(data))
        found = summary(told(path))
        if found[:count] != plain(name)[:count] or found[2] != plain(name)[2]:
            others.append((name, found, plain(name)))
    return others


def wrapped_differently(
    tmp_path: Path, form: str, first: int = 0, every: int = 1
) -> Sequence[tuple[str, Summary, Summary]]:
    others = different(tmp_path, WRAPPERS[form], 2, first, every)
    if form == "progress bar":  # where training is seen, everyday words count for nothing
        others = [each for each in others if each[2][0] != "unexplained"]
    return others


PART = 6
"""Of so many logs one is tried with each wrapper; another one with the next."""


@for_each(("number", "form"), enumerate(WRAPPERS))
def test_a_wrapper_changes_no_first_cause(tmp_path: Path, number: int, form: str) -> None:
    assert wrapped_differently(tmp_path, form, number % PART, PART) == []


@for_each(("number", "form"), enumerate(RANKS))
def test_nor_does_one_that_says_the_rank(tmp_path: Path, number: int, form: str) -> None:
    assert different(tmp_path, RANKS[form], 1, number, len(RANKS)) == []
