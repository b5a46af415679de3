"""Training signals in lines of output: formats that the patterns were written for, and logs for which they were not."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

from distui.runners.telemetry.output_signals import signals
from distui.runners.telemetry.signal_names import best

LOGS = tomllib.loads((Path(__file__).parent / "logs.toml").read_text(encoding="utf-8"))["log"]


def read(line: str) -> dict[str, float]:
    """The fields of a line."""
    return {name: each.value for name, each in best(signals(line)).items()}


def same(value: float, expected: float | str) -> bool:
    expected = float(expected)
    return math.isclose(value, expected, rel_tol=1e-4) or (math.isnan(value) and math.isnan(expected))


def measure() -> dict[str, Any]:
    """Right, wrong and missed fields of all logs."""
    right, wrong, missed = 0, list[str](), list[str]()
    for log in LOGS:
        got, expected = read(log["line"]), log["expect"]
        for name, value in got.items():
            if name in expected and same(value, expected[name]):
                right += 1
            elif name in expected or name in ("loss", "step", "total", "lr", "grad_norm", "tokens_s"):
                wrong.append(f"{log['from']}: {name} {value}")
        missed += [f"{log['from']}: {name}" for name in expected if name not in got]
    return {"logs": len(LOGS), "right": right, "wrong": wrong, "missed": missed}
