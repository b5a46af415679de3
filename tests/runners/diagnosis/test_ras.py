"""Reports of NCCL's RAS, written here as client_support.cc writes them."""

from __future__ import annotations

import pytest
from each import for_each

from distui.runners.diagnosis.ras import Behind, Missing, RasError, missing, parse, stuck

RANK = """        {{
          "rank": {rank},
          "host": "gpu-a",
          "pid": {pid},
          "cuda_dev": {rank},
          "nvml_dev": {rank},
          "status": {{
            "init_state": 0,
            "async_error": 0,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          }},
          "collective_counts": {{
            "Broadcast": 1,
            "AllReduce": {count}
          }}
        }}"""

GONE = """        {{
          "rank": 3,
          "host": "gpu-b",
          "pid": 14,
          "cuda_dev": 3,
          "nvml_dev": 3{comma}
          "status": {{
            "unresponsive": true,
            "considered_dead": {dead}
          }}
        }}"""


def report(counts: list[int], gone: str = "", version: str = "2.29.2") -> str:
    ranks = ",\n".join(
        RANK.format(rank=rank, pid=10 + rank, count=count) for rank, count in enumerate(counts)
    )
    return f"""{{
  "nccl_version": "{version}+cuda13.0",
  "cuda_runtime_version": 13000,
  "cuda_driver_version": 13000,
  "timestamp": "2026-11-01 12:00:00",
  "communicators_count": 1,
  "communicators": [
    {{
      "hash": "0x673bdeadbeef",
      "secondary_hash": "0x1:0x2",
      "size": 4,
      "ranks_count": {len(counts)},
      "missing_ranks_count": {int(bool(gone))},
      "ranks": [
{ranks}
      ],
      "missing_ranks": [
{gone}
      ]
    }}
  ],
  "ras": {{
    "collection_time_sec": 0.012,
    "timeouts_count": 0
  }}
}}
"""


def test_counts_that_differ_and_do_not_move_are_told() -> None:
    first, later = parse(report([200, 200, 199, 200])), parse(report([200, 200, 199, 200]))
    assert stuck(first, later) == [Behind("AllReduce", (2,), 199, 200, "0x673bdeadbeef")]


def test_counts_that_differ_and_move_are_normal() -> None:
    first, later = parse(report([200, 200, 199, 200])), parse(report([205, 205, 204, 205]))
    assert stuck(first, later) == []
    assert stuck(parse(report([200, 200, 200, 200])), parse(report([200, 200, 200, 200]))) == []


@for_each("comma", ["", ","])
def test_a_rank_that_is_missing_is_named_also_where_the_json_lacks_a_comma(comma: str) -> None:
    said = parse(report([200, 200, 200], GONE.format(comma=comma, dead="false")))
    assert missing(said) == [Missing(3, "gpu-b", 14, False)]
    assert missing(parse(report([200], GONE.format(comma=comma, dead="true"))))[0].dead is True


@for_each("text", ["", "ERROR: Unknown command", "{", '{"communicators": 3}', "{}"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(RasError):
        parse(text)
