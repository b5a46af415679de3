"""Checkpoints that transformers, Accelerate, safetensors and Lightning save, as a script on them calls it: each once."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .hf import needs_hf

pytestmark = [pytest.mark.torch, pytest.mark.long]

ARMED = """
import sys
from distui.runners.inrank.checkpoint_saves import Saves
Saves("saves", lambda: 7).arm()
"""
PRETRAINED = """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
model.save_pretrained("step-12")
"""
TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
args = TrainingArguments(output_dir="out", max_steps=4, save_steps=2, per_device_train_batch_size=1, report_to=[],
                         use_cpu=True)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
Trainer(model=model, args=args, train_dataset=rows).train()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.save_state("states/checkpoint_3")
"""
SAFETENSORS = """
import torch
from safetensors.torch import save_file
save_file({"weight": torch.ones(4)}, filename="step-3.safetensors")
"""
LIGHTNING = """
import torch, lightning as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, at):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
trainer = L.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_progress_bar=False)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
"""


def saved(folder: Path, script: str) -> list[dict[str, Any]]:
    """What was reported as done; every save has begun and ended."""
    done = subprocess.run(
        [sys.executable, "-c", ARMED + script], cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (folder / "saves").read_text().splitlines()]
    assert [line["state"] for line in lines] == ["began", "done"] * (len(lines) // 2), lines
    return [line for line in lines if line["state"] == "done"]


@needs_hf
def test_a_save_is_reported_once(tmp_path: Path) -> None:
    reports = saved(tmp_path, PRETRAINED + TRAINER + ACCELERATE + SAFETENSORS)
    assert [(Path(report["path"]).relative_to(tmp_path), report["source"]) for report in reports] == [
        (Path("step-12"), "save_pretrained"),
        (Path("out/checkpoint-2"), "transformers"),
        (Path("out/checkpoint-4"), "transformers"),
        (Path("states/checkpoint_3"), "accelerate"),
        (Path("step-3.safetensors"), "safetensors"),
    ]
    assert all(Path(report["path"]).exists() and report["count"] == 7 for report in reports)


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_lightning_saves_by_its_trainer(tmp_path: Path) -> None:
    (report,) = saved(tmp_path, LIGHTNING)
    assert report["source"] == "lightning"
    assert report["path"] == str(tmp_path / "checkpoints" / "epoch=0-step=2.ckpt")
