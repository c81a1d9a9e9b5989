"""Hugging Face's ``Trainer`` with its default settings for a CPU: no evaluation, no checkpoints."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from benchmarks.worker import Contender


def fine_tuning(
    folder: str, pieces: Sequence[Sequence[str]], batch_size: int, max_length: int, sampling: str
) -> Contender:
    """Passes over one of the ``pieces`` of sentences at a time, which ``sampling`` puts into batches.

    ``train`` is a pass, from the texts to the last update. ``loss`` is that of the last piece's first batch,
    without dropout. The labels are 0 and 1 in turn.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    collate = DataCollatorWithPadding(tokenizer)
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=1,
        per_device_train_batch_size=batch_size,
        train_sampling_strategy=sampling,
        save_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, data_collator=collate, processing_class=tokenizer)
    gc.freeze()  # or else every ``train`` would look for garbage among all that was imported

    def encode(sentences: Sequence[str]) -> list[dict[str, Any]]:
        columns = dict(tokenizer(list(sentences), truncation=True, max_length=max_length))
        columns["labels"] = [number % 2 for number in range(len(sentences))]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def train(number: int) -> None:
        trainer.train_dataset = encode(pieces[number])
        trainer.train()

    def loss_without_dropout() -> float:
        model.eval()
        with torch.no_grad():
            return model(**collate(encode(pieces[-1][:batch_size]))).loss.item()

    return {"train": train, "loss": loss_without_dropout}
