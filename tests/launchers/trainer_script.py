"""A script on the transformers Trainer, as people write it; RESULTS names a folder for what it trained with."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]
    """Rows of consecutive numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        numbers = (torch.arange(32) + at) % 50
        return {"input_ids": numbers, "labels": numbers}


def main() -> None:
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        num_train_epochs=3,
        learning_rate=3e-3,
        max_grad_norm=0.5,
        logging_steps=4,
        report_to=[],
        save_strategy="no",
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2))
    trainer = Trainer(model=model, args=args, train_dataset=Counting())
    trainer.train()
    wrapped: Any = trainer.model_wrapped
    found = {
        "model": type(wrapped).__name__,
        "processes": args.world_size,
        "stage": wrapped.zero_optimization_stage() if hasattr(wrapped, "zero_optimization_stage") else None,
        "clipping": wrapped.gradient_clipping() if hasattr(wrapped, "gradient_clipping") else None,
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
    }
    (Path(os.environ["RESULTS"]) / f"{args.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
    # Gloo's threads outlive the group for a moment, and an interpreter that ends meanwhile aborts.
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    time.sleep(0.5)
