"""What viewers of the Trace Event Format ask of a trace, as far as one of them leaves out what breaks it."""

from __future__ import annotations

from typing import Any


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end, as Perfetto reads them."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def partial_overlaps(events: list[dict[str, Any]]) -> list[str]:
    """Spans of a track that neither contain each other nor lie apart: Perfetto shows the first of two alone."""
    tracks: dict[tuple[object, object], list[tuple[int, int, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            begin, end = nanoseconds(event)
            tracks.setdefault((event["pid"], event["tid"]), []).append((begin, -end, event["name"]))
    wrong: list[str] = []
    for spans in tracks.values():
        around: list[tuple[int, int, str]] = []
        for begin, negative_end, name in sorted(spans):
            while around and -around[-1][1] <= begin:
                around.pop()
            if around and negative_end < around[-1][1]:
                wrong.append(f"{name} ends {around[-1][1] - negative_end} ns after {around[-1][2]}")
            else:
                around.append((begin, negative_end, name))
    return wrong


def flaws(content: dict[str, Any]) -> list[str]:
    """What a trace lacks that the format asks for."""
    events = content["traceEvents"]
    wrong = [
        f"no {field}: {event}" for event in events for field in ("ph", "name", "pid") if field not in event
    ]
    spans = [event for event in events if event["ph"] == "X"]
    wrong += [
        f"a time that is none: {event}" for event in spans if not (event["ts"] >= 0 and event["dur"] >= 0)
    ]
    flows: dict[object, set[str]] = {}
    for event in events:
        if event["ph"] in ("s", "t", "f"):
            flows.setdefault((event["cat"], event["id"]), set()).add(event["ph"])
    wrong += [f"a flow without its begin: {flow}" for flow, phases in flows.items() if "s" not in phases]
    return wrong + partial_overlaps(events)
