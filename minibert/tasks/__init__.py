"""What a person does with a BERT: pre-train one, ask it for words, fine-tune one, use it, export it."""

from minibert.tasks.evaluation import evaluate
from minibert.tasks.exporting import export
from minibert.tasks.finetuning import finetune
from minibert.tasks.likelihood import next_sentence_probability, pseudo_log_likelihoods
from minibert.tasks.masked_words import fill_mask
from minibert.tasks.predict import predict_texts
from minibert.tasks.pretraining import prepare, pretrain
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
