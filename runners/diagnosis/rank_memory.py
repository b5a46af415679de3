"""The ranks' answers to a dump of memory as values. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CUDA = "allocated_bytes.all.current", "reserved_bytes.all.current"
PEAKS = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
SPLIT = "inactive_split_bytes.all.current"


def memory_values(texts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the memory of each rank as values; sizes are in bytes. Raises ValueError.

    `fragmentation` is the share of reserved memory that is unused in partly used blocks.
    """
    entries = []
    for rank in sorted(texts):
        answer = json.loads(texts[rank])
        if not isinstance(answer, dict):
            raise ValueError("it is not an object")
        cuda = answer.get("cuda") or {}
        entries.append(
            {
                "rank": rank,
                "rss_bytes": answer.get("rss_bytes"),
                "max_rss_bytes": answer.get("max_rss_bytes"),
                "devices": {name: _device_values(its) for name, its in sorted(cuda.items())},
                "recording": bool(answer.get("recording")),
                "snapshot": answer.get("snapshot"),
                "note": answer.get("note") or answer.get("snapshot_error"),
            }
        )
    return entries


def _device_values(its: Mapping[str, Any]) -> dict[str, Any]:
    reserved, split = its.get(CUDA[1]), its.get(SPLIT)
    return {
        "allocated": its.get(CUDA[0]),
        "reserved": reserved,
        "peak_allocated": its.get(PEAKS[0]),
        "peak_reserved": its.get(PEAKS[1]),
        "total": its.get("total_bytes"),
        "fragmentation": split / reserved if reserved and split is not None else None,
        "retries": its.get("num_alloc_retries"),
        "ooms": its.get("num_ooms"),
    }
