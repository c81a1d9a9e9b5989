"""What a person does with a BERT: pre-train one, ask it for words, fine-tune one, use it, export it."""

from minibert.tasks.evaluate import evaluate
from minibert.tasks.export import export
from minibert.tasks.fill_mask import fill_mask
from minibert.tasks.finetune import finetune
from minibert.tasks.likelihood import next_sentence_probability, pseudo_log_likelihoods
from minibert.tasks.predict import predict_texts
from minibert.tasks.pretrain import prepare, pretrain
from minibert.tasks.registry import open_task

__all__ = [
    "evaluate",
    "export",
    "fill_mask",
    "finetune",
    "next_sentence_probability",
    "open_task",
    "predict_texts",
    "prepare",
    "pretrain",
    "pseudo_log_likelihoods",
]
