# mypy: ignore-errors
"""The Trainer of transformers, with a model that is made here."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counting(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        numbers = (torch.arange(32) + index) % 50
        return {"input_ids": numbers, "labels": numbers}


trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)),
    args=TrainingArguments(
        output_dir="out", per_device_train_batch_size=4, num_train_epochs=1000, report_to="none"
    ),
    train_dataset=Counting(),
)
trainer.train()
