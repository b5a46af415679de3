"""Plans of the shipped presets on any kind of machine, without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from distui.presets.load import BUILTIN, load
from distui.presets.plan import Place, Plan, make_plan
from distui.presets.request import Request

ACCELERATE = "from accelerate import Accelerator\nAccelerator()"
PLACE = Place(
    run="20260101-000000-t-0123abcd", run_dir="/state/distui/runs/20260101-000000-t-0123abcd", port=29511,
    ras_port=28111, gpus=8, cores=8, cwd="/work", python="/env/bin/python", script_source=ACCELERATE,
)  # fmt: skip
DEEPSPEED = [name for name in BUILTIN if name.startswith("ds-")]
OF_ACCELERATE = ["single", "ddp", "fsdp2", "fsdp2-zero2", "fsdp2-offload", "hsdp",
                 *(name for name in BUILTIN if name.startswith("fsdp1")), *DEEPSPEED]  # fmt: skip
"""Presets that a script on Accelerate can obey."""


def plan(
    preset: str, *overrides: str, nnodes: int | str = 1, script: str = "train.py", **place: Any
) -> Plan:
    """The plan of train.py under a shipped preset; by default on nodes of 8 GPUs."""
    loaded = load(preset, overrides, cwd=Path("/"), env={"HOME": "/nonexistent"})
    args = ("--lr", "1") if script == "train.py" else ()
    asked = Request(script=script, args=args, nnodes=nnodes)
    nodes = None if nnodes != 1 else 1
    return make_plan(loaded, asked, replace(PLACE, **{"nodes": nodes, **place}))
