"""What a person does with a BERT: pre-train one, ask it to fill in masked words, take it elsewhere."""

from minibert.tasks.export import export
from minibert.tasks.fill_mask import fill_mask
from minibert.tasks.pretrain import prepare, pretrain

__all__ = ["export", "fill_mask", "prepare", "pretrain"]
