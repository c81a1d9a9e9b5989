"""Hugging Face's BERT as its users have it: default settings, labels at all positions, AdamW by default."""

import torch
from transformers import BertForPreTraining

from benchmarks.contenders.pytorch import tensors_of, training_functions
from benchmarks.inputs import pretraining_batch
from benchmarks.worker import Contender


def training_step(folder: str, batch_size: int, length: int) -> Contender:
    """A step of the model in a pretrained folder."""
    model = BertForPreTraining.from_pretrained(folder).train()
    batch = tensors_of(pretraining_batch(model.config.vocab_size, batch_size, length))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    return training_functions(model, lambda: model(**batch).loss, optimiser)
