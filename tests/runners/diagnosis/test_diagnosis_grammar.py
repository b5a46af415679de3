"""Heads of lines, from 2.3 to 2.32, behind whatever launchers and shippers write before them."""

from __future__ import annotations

from dataclasses import dataclass

from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from distui.runners.diagnosis.file_names import rank_in_name
from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.heads import MARK, Head, Stamp, old_mark, parse_head, rank_of, stamp_of
from distui.runners.diagnosis.reading import Reading


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """A line as a reading takes it apart."""

    head: Head
    level: str
    """INFO, WARN, …; "VERSION"; "" for what is no line of NCCL."""
    message: str


def take_apart(text: str) -> ParsedLine:
    """Any line; never raises."""
    match = MARK.search(text) or old_mark(text)
    if match is not None:
        return ParsedLine(parse_head(text[: match.start()]), match[1] or "VERSION", text[match.end() :])
    return ParsedLine(Head(rank=rank_of(text)), "", text)


PLAIN = "gpu-7.cluster_a:811:860 [2] "
PREFIXES = {
    "none": "",
    "mpirun": "[1,3]<stdout>:",
    "mpirun with a date": "Fri Aug 11 12:31:45 2023[1,3]<stderr>:",
    "Ray": "(W pid=694) ",
    "Ray with an address": "(RayWorkerWrapper pid=694, ip=10.0.0.7) ",
    "srun -l": "3: ",
    "torchrun": "[rank3]:",
    "torchrun's tee": "[default3]:",
    "CloudWatch": "  | 2025-05-16T16:39:51.208-07:00 | ",
    "a shipper": "2025-11-09 15:39:31.043 +08:00 ",
    "kubectl": "2025-11-09T15:39:31.043123456Z ",
    "a pod": "train-worker-5: ",
    "the pod twice": "train-worker-5: train-worker-5: ",
    "a progress bar": "Epoch 0:   6%|#         | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]",
    "a progress bar in one line": "\r  0%|          | 0/188 [00:00<?, ?it/s]\r",
    "line numbers": "[80746] ",
    "a time": "12:31:45 ",
    "NCCL's stamp": "[2025-06-01 12:00:00] ",
    "both": "2025-11-09 15:39:31.043 +08:00 [2025-11-09 07:39:30] ",
}
RANKED = {"mpirun", "mpirun with a date", "srun -l", "torchrun"}


@for_each("name", PREFIXES)
@for_each("level", ["INFO", "WARN"])
def test_a_head_behind_every_prefix(name: str, level: str) -> None:
    place = "misc/socket.cc:49 (socketProgress) " if level == "WARN" else ""
    line = take_apart(f"{PREFIXES[name]}{PLAIN}{place}NCCL {level} Connected all rings")
    head = line.head
    assert (head.host, head.thread, head.dev) == ("gpu-7.cluster_a", ("gpu-7.cluster_a", 811, 860), 2)
    assert (line.level, line.message) == (level, "Connected all rings")
    assert head.rank == (3 if name in RANKED else None)


@for_each(
    ("text", "level", "message"),
    [
        ("h:1:2 [0] init.cc:497 NCCL WARN boom", "WARN", "boom"),
        ("h:1:2 [0] a/b.cc:4 (f) NCCL ATTN boom", "ATTN", "boom"),
        ("[0] tcpxResult_t f(tcpxComm*):1231 NCCL WARN x", "WARN", "x"),
        ("h:1:2 [0] 12.345 f:33 NCCL TRACE x", "TRACE", "x"),
        ("h:1:2 NCCL CALL ncclGetUniqueId(0x6)", "CALL", "ncclGetUniqueId(0x6)"),
        ("NCCL version 2.21.5+cuda12.4", "VERSION", "2.21.5+cuda12.4"),
        ("**NCCL version 2.4.7+cudaX**", "VERSION", "2.4.7+cudaX**"),
        ("h:1:2 [0] INFO NET : Using interface eth0", "INFO", "NET : Using interface eth0"),
        ("NCCL INFO Using network IB", "INFO", "Using network IB"),
        ("step 10 loss 2.3", "", "step 10 loss 2.3"),
        ("", "", ""),
    ],
)
def test_every_kind_of_line(text: str, level: str, message: str) -> None:
    line = take_apart(text)
    assert (line.level, line.message) == (level, message)


@for_each("dev", ["32764", "-1", "1702240357"])
def test_a_device_that_is_none_is_unknown(dev: str) -> None:
    head = take_apart(f"vm:24278:24278 [{dev}] NCCL INFO Bootstrap : Using eth0:192.0.2.2<0>").head
    assert (head.host, head.dev) == ("vm", None)


def test_parts_that_are_missing_are_unknown() -> None:
    head = take_apart("[3] NCCL INFO include/shm.h:41 -> 2").head
    assert (head.host, head.pid, head.dev, head.rank) == ("", None, 3, None)


@for_each(
    ("text", "rank"),
    [
        ("[rank12]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog", 12),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught", 1),
        ("[E ProcessGroupNCCL.cpp:737] [PG 0 (default_pg) Rank 7] x", 7),
        ("[PG ID 0 PG GUID 0(default_pg) Rank 6] x", 6),
        ("a tensor of shape [2,3] on [Rank x]", None),
        ("1: the first point of a list", None),
    ],
)
def test_the_rank_that_a_line_names(text: str, rank: int | None) -> None:
    assert rank_of(text) == rank


@for_each(
    ("text", "stamp"),
    [
        ("[2025-06-01 12:00:00] h:1:2 [0] NCCL WARN x", Stamp("nccl", "2025-06-01 12:00:00")),
        (
            "2025-11-09 15:39:31.043 +08:00 [2025-11-09 07:39:30] h:1:2",
            Stamp("nccl", "2025-11-09 07:39:30"),
        ),
        ("  | 2025-05-16T16:39:51.208-07:00 | x", Stamp("iso", "2025-05-16 16:39:51.208")),
        ("[rank6]:[E429 13:55:49.384 Proc", Stamp("glog", "0429 13:55:49.384")),
        ("[rank0]:[F1019 01:14:03.356 Proc", Stamp("glog", "1019 01:14:03.356")),
        ("[6:28:43<94:39:17] x", None),
    ],
)
def test_when_a_line_was_written(text: str, stamp: Stamp | None) -> None:
    assert stamp_of(text) == stamp


@for_each(
    ("name", "rank"),
    [
        ("rank-3.nccl", 3),
        ("a/train_rank12.log", 12),
        ("Rank_0.txt", 0),
        ("frank3.log", None),
        ("x.log", None),
    ],
)
def test_the_rank_that_a_file_name_says(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


WORDS = st.sampled_from(
    ["NCCL", "INFO", "WARN", " ", "[0]", "h:1:2", "Channel", "00/0", ":", "->", "via", "NET/IB/0", "comm", "0x1",
     "rank", "nranks", "8", "99999999999999999999", "- Init START", "Cuda failure", "'", "\r", "\x00", "Trees",
     "opCount",
     "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=", "[rank", "]", "NCCL INFO Init timings: rank "]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(WORDS, st.text(max_size=20)), max_size=30))
def test_no_line_is_too_strange(words: list[str]) -> None:
    line = "".join(words).replace("\n", " ")
    taken = take_apart(line)
    assert line.endswith(taken.message)
    reading = Reading()
    reading.open("x")
    reading.feed([line, " ".join(words).replace("\n", " ")])
    judge(reading)
    assert reading.lines == 2


@settings(deadline=None, max_examples=200)
@given(
    st.text(alphabet=st.characters(exclude_characters="\n"), max_size=60).filter(
        lambda one: "NCCL" not in one
    )
)
def test_an_unknown_prefix_never_hides_the_message(prefix: str) -> None:
    line = take_apart(f"{prefix} NCCL WARN Connection closed by remote peer")
    assert (line.level, line.message) == ("WARN", "Connection closed by remote peer")
    reading = Reading()
    reading.open("x")
    reading.feed([f"{prefix} NCCL WARN Connection closed by remote peer"])
    assert [one.id for one in judge(reading).findings] == ["sock-closed-by-peer"]
