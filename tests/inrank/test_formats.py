"""The bytes per parameter of the memory estimate beside what torch keeps in real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starts import environment, finished, torchrun

from distui.presets.estimate.workload import FORMATS

MEASURING = Path(__file__).with_name("model_states.py")
RANKS = 2


@pytest.mark.real
@pytest.mark.torch
def test_adamw_keeps_its_moments_in_the_format_of_the_weights(tmp_path: Path) -> None:
    """Under autocast, DDP, FSDP2 and a mixed precision policy, too. Shards are halves on two ranks."""
    finished(torchrun(MEASURING, str(tmp_path), ranks=RANKS), environment(), tmp_path)
    names = {"float32": "fp32", "bfloat16": "bf16"}
    for rank in range(RANKS):
        measured = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        assert len(measured) == 10
        for case, found in measured.items():
            dtype, _, wrapper = case.partition(" ")
            form = FORMATS[names[dtype]]
            parts = RANKS if wrapper.startswith("fsdp2") else 1
            assert found == [form.weights / parts, form.gradients / parts, form.optimizer / parts], case
