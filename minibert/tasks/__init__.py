"""What a person does with a BERT: pre-train one, ask it for words, fine-tune one, use it, export it."""

from minibert.tasks.evaluate import evaluate
from minibert.tasks.export import export
from minibert.tasks.fill_mask import fill_mask
from minibert.tasks.finetune import finetune
from minibert.tasks.predict import predict_texts
from minibert.tasks.pretrain import prepare, pretrain
from minibert.tasks.registry import open_task

__all__ = ["evaluate", "export", "fill_mask", "finetune", "open_task", "predict_texts", "prepare", "pretrain"]
