"""What a person does with a BERT: pre-train one, ask it to fill in masked words."""

from minibert.tasks.fill_mask import fill_mask
from minibert.tasks.pretrain import prepare, pretrain

__all__ = ["fill_mask", "prepare", "pretrain"]
