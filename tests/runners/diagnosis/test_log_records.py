"""Logs of records: what is in them is read as if it stood there plainly."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distui.runners.diagnosis.first_cause import judge
from distui.runners.diagnosis.log_findings import LogFinding
from distui.runners.diagnosis.log_records import learned_records, message_of, time_of
from distui.runners.diagnosis.read_logs import read_all

TRACE = [
    "step 1 loss 2.0", "step 2 loss 1.9", "", "Traceback (most recent call last):",
    '  File "/app/train.py", line 33, in <module>', "    main()", "KeyError: 'labels'",
]  # fmt: skip
TAGGED = [*TRACE[:3], *(f"[rank3]: {line}" for line in TRACE[3:])]
AT = "2026-03-01T12:00:{:02}.123456789Z"


def first(tmp_path: Path, text: str | bytes, name: str = "a.log") -> LogFinding:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    told = judge(read_all([(name, path)])).first
    assert told is not None
    return told


def lines_of(make: Callable[[int, str], Any], lines: list[str]) -> str:
    """A record a line."""
    made = (make(at, line) for at, line in enumerate(lines))
    return "".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in made)


K8S = {"pod_name": "train-3", "namespace_name": "ml", "host": "gpu-b", "container_name": "main"}
FORMS: dict[str, tuple[Callable[[int, str], Any], str]] = {
    "docker": (lambda at, line: {"log": line + "\n", "stream": "stderr", "time": AT.format(at)}, ""),
    "fluent-bit": (
        lambda at, line: {
            "date": 1772366400.5 + at, "log": line, "stream": "stderr", "kubernetes": K8S,
        },
        K8S["pod_name"],
    ),
    "fluentd": (lambda at, line: {"message": line, "@timestamp": AT.format(at), "kubernetes": K8S}, "train-3"),
    "stern": (
        lambda at, line: {
            "message": line, "nodeName": "n1", "namespace": "ml", "podName": "train-3", "containerName": "main",
        },
        "train-3",
    ),
    "gcp": (
        lambda at, line: {
            "insertId": f"x{at}", "resource": {"type": "k8s_container", "labels": {"pod_name": "train-3"}},
            "severity": "ERROR", "textPayload": line, "timestamp": AT.format(at),
        },
        "train-3",
    ),
    "gcp json": (lambda at, line: {"jsonPayload": {"message": line, "x": 1}, "timestamp": AT.format(at)}, ""),
    "cloudwatch": (
        lambda at, line: {
            "timestamp": 1772366400123 + at, "message": line, "ingestionTime": 1, "logStreamName": "train-3",
        },
        "train-3",
    ),
    "journald": (
        lambda at, line: {
            "MESSAGE": line, "_HOSTNAME": "gpu-b", "__REALTIME_TIMESTAMP": str(1772366400123456 + at), "_PID": "7",
        },
        "gpu-b",
    ),
    "journald bytes": (lambda at, line: {"MESSAGE": list(line.encode()), "_HOSTNAME": "gpu-b"}, "gpu-b"),
    "elasticsearch": (lambda at, line: {"_index": "x", "_source": {"message": line, "@timestamp": AT.format(at)}}, ""),
    "splunk": (lambda at, line: {"preview": False, "result": {"_raw": line, "_time": "x"}}, ""),
    "loki": (lambda at, line: {"labels": {"pod": "train-3"}, "line": line, "timestamp": AT.format(at)}, "train-3"),
    "logging": (
        lambda at, line: {
            "asctime": f"2026-03-01 12:00:{at:02},123", "levelname": "INFO", "message": line,
        },
        "",
    ),
    "structlog": (lambda at, line: {"event": line, "level": "info", "timestamp": AT.format(at)}, ""),
    "pino": (
        lambda at, line: {
            "level": 30, "time": 1772366400123 + at, "pid": 7, "hostname": "gpu-b", "msg": line,
        },
        "gpu-b",
    ),
    "docker of json": (
        lambda at, line: {
            "log": json.dumps({"msg": line}) + "\n", "stream": "stderr", "time": AT.format(at),
        },
        "",
    ),
    "CRI of json": (lambda at, line: f"{AT.format(at)} stderr F {json.dumps({'msg': line})}", ""),
    "kubectl of json": (lambda at, line: f"[pod/train-3/main] {json.dumps({'msg': line})}", "train-3"),
    "syslog of json": (lambda at, line: f"Mar  1 12:00:{at:02} gpu-b app[7]: {json.dumps({'msg': line})}", "gpu-b"),
    "colours": (lambda at, line: {"log": f"\x1b[36m{line}\x1b[0m\n", "stream": "stderr"}, ""),
}  # fmt: skip


@for_each("form", FORMS)
@for_each("tagged", [True, False])
def test_a_line_a_record(tmp_path: Path, form: str, tagged: bool) -> None:
    make, host = FORMS[form]
    told = first(tmp_path, lines_of(make, TAGGED if tagged else TRACE))
    assert told.text == "A rank raised KeyError: 'labels' at train.py:33."
    assert (told.rank, told.host, told.lines[0].line) == (3 if tagged else None, host, 7)


@for_each("form", [form for form in FORMS if form != "journald bytes"])
def test_a_message_of_many_lines(tmp_path: Path, form: str) -> None:
    make, host = FORMS[form]
    told = first(tmp_path, lines_of(make, ["step 1", "step 2", "\n".join(TAGGED), "bye"]))
    assert told.text == "A rank raised KeyError: 'labels' at train.py:33."
    assert (told.rank, told.host, told.lines[0].line) == (3, host, 3)


@for_each("key", ["exc_info", "exception", "stack_trace", "traceback"])
def test_a_traceback_in_a_field_of_its_own(tmp_path: Path, key: str) -> None:
    record = {"message": "training failed", "level": "error", key: "\n".join(TRACE[3:]), "rank": 3}
    told = first(tmp_path, json.dumps({"message": "begin"}) + "\n" + json.dumps(record) + "\n")
    assert told.text == "A rank raised KeyError: 'labels' at train.py:33."
    assert told.rank == 3


def test_an_error_that_only_its_level_says(tmp_path: Path) -> None:
    told = first(tmp_path, '{"msg": "begin"}\n{"msg": "no quota left", "level": "ERROR", "rank": "2"}\n')
    assert (told.text, told.rank) == ("No rule knows this: ERROR: no quota left", 2)


def test_ranks_of_records(tmp_path: Path) -> None:
    lines = [
        {"message": line, "rank": rank, "host": {"name": "gpu-b"}} for line in TRACE for rank in (1, 3)
    ]
    told = first(tmp_path, "".join(json.dumps(line) + "\n" for line in lines))
    assert (told.ranks, told.hosts, told.count) == ((1, 3), ("gpu-b",), 2)
    lines = [{"message": line, "local_rank": 3} for line in TRACE]
    assert first(tmp_path, "".join(json.dumps(line) + "\n" for line in lines)).rank == 3


def test_documents_of_many_lines(tmp_path: Path) -> None:
    """As the aws and gcloud command lines print them."""
    events = [
        {"timestamp": 1772366400123 + at, "message": line, "ingestionTime": 1}
        for at, line in enumerate(TAGGED)
    ]
    document = {"events": events, "nextForwardToken": "f/3"}
    told = first(tmp_path, json.dumps(document, indent=4))
    assert (told.text, told.rank) == ("A rank raised KeyError: 'labels' at train.py:33.", 3)
    entries = [FORMS["gcp"][0](at, line) for at, line in enumerate(TAGGED)]
    told = first(tmp_path, json.dumps(entries, indent=2))
    assert (told.text, told.rank, told.host) == (
        "A rank raised KeyError: 'labels' at train.py:33.",
        3,
        "train-3",
    )
    (tmp_path / "a.json").write_text(json.dumps(entries[::-1], indent=2))
    reading = read_all([("a.json", tmp_path / "a.json")])
    assert list(reading.unread) == ["a.json has its newest lines first: export it in order of time"]


def test_a_table_of_cloudwatch(tmp_path: Path) -> None:
    """As its console exports it, also with a message of many lines."""
    for rows in (TAGGED, ["step 1", "\n".join(TAGGED)]):
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["timestamp", "message"])
        writer.writerows([1772366400123 + at, line] for at, line in enumerate(rows))
        told = first(tmp_path, text.getvalue())
        assert (told.text, told.rank) == ("A rank raised KeyError: 'labels' at train.py:33.", 3)


def test_what_the_real_journalctl_prints_is_read(tmp_path: Path) -> None:
    """A journal that systemd's own tool makes of an export, printed by the real journalctl in each of its forms."""
    tool = shutil.which("/lib/systemd/systemd-journal-remote")
    if tool is None or shutil.which("journalctl") is None:
        pytest.skip("no systemd-journal-remote here")
    export = "".join(
        f"__REALTIME_TIMESTAMP={1772366400123456 + at}\n__MONOTONIC_TIMESTAMP={at + 1}\n"
        f"_BOOT_ID=0123456789abcdef0123456789abcdef\n_HOSTNAME=gpu-b\nSYSLOG_IDENTIFIER=python\n_PID=7\nMESSAGE={line}\n\n"
        for at, line in enumerate(TAGGED)
    )
    journal = tmp_path / "a.journal"
    subprocess.run(
        [tool, "-o", journal, "-"], input=export.encode(), check=True, timeout=60, capture_output=True
    )
    for form in (
        "short",
        "short-iso",
        "short-precise",
        "short-full",
        "short-unix",
        "with-unit",
        "json",
    ):
        done = subprocess.run(
            ["journalctl", "--file", journal, "-o", form, "--no-pager"],
            capture_output=True,
            check=True,
            timeout=60,
        )
        told = first(tmp_path, done.stdout)
        assert (form, told.text) == (form, "A rank raised KeyError: 'labels' at train.py:33.")
        assert (form, told.rank, told.host) == (form, 3, "gpu-b")


def test_lines_that_docker_and_cri_cut(tmp_path: Path) -> None:
    lines = [*TAGGED[:-1], TAGGED[-1] + " " + "x" * 100]
    cri = "".join(
        f"{AT.format(at)} stderr P {line[:9]}\n{AT.format(at)} stdout F noise\n{AT.format(at)} stderr P {line[9:12]}\n"
        f"{AT.format(at)} stderr F {line[12:]}\n"
        for at, line in enumerate(lines)
    )
    told = first(tmp_path, cri)
    assert (told.rank, told.lines[0].line) == (3, 28)
    assert told.text.startswith("A rank raised KeyError: 'labels' xxx")
    docker = "".join(
        json.dumps({"log": piece, "stream": "stderr", "time": AT.format(at)}) + "\n"
        for at, line in enumerate(lines)
        for piece in (line[:9], line[9:] + "\n")
    )
    told = first(tmp_path, docker)
    assert (told.rank, told.lines[0].line) == (3, 14)
    assert told.text.startswith("A rank raised KeyError: 'labels' xxx")


def test_torchelastics_error_file(tmp_path: Path) -> None:
    error = {
        "message": {
            "message": "KeyError: 'labels'",
            "extraInfo": {"py_callstack": "\n".join(TRACE[3:]), "timestamp": "1772366400"},
        }
    }
    told = first(tmp_path, json.dumps(error), "error.json")
    assert told.text == "A rank raised KeyError: 'labels' at train.py:33."


def test_records_among_plain_lines(tmp_path: Path) -> None:
    mixed = [json.dumps({"msg": "begin"}), "plain", json.dumps({"msg": "go on"}), *TAGGED]
    assert first(tmp_path, "\n".join(mixed)).rank == 3
    mixed = ["plain", '{"loss": 2.0, "step": 1}', "{'loss': 1.0}", *TAGGED]
    assert first(tmp_path, "\n".join(mixed)).lines[0].line == 10


@for_each(
    "at",
    [
        1772366407,
        1772366407.0,
        1772366407000,
        1772366407000000,
        1772366407000000000,
        "1772366407000",
        "2026-03-01 12:00:07",
    ],
)
def test_times_of_records(at: object) -> None:
    assert time_of({"time": at}).startswith("2026-03-01T12:00:07")


def test_what_says_nothing() -> None:
    for value in ({}, {"loss": 1}, {"message": 7}, {"message": None}, {"time": "x"}):
        assert message_of(value) is None
    deep: dict[str, Any] = {"message": "x"}
    for _ in range(20):
        deep = {"jsonPayload": deep}
    assert message_of(deep) is None


KEYS = ["message", "log", "time", "rank", "host", "labels", "x"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=9,
)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        JSON.map(json.dumps) | st.text(max_size=30) | st.just("[" * 3000) | st.just('{"a":' * 3000),
        max_size=9,
    )
)
def test_every_record_is_a_line(lines: list[str]) -> None:
    lines = [line.replace("\n", " ") for line in lines]
    records = learned_records(lines)
    if records is not None:
        assert len(records.plain(lines)) == len(lines)
        assert all(isinstance(line, str) for line in records.rest())
