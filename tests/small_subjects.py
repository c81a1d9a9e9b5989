"""A small random model of each kind of head, and what it is asked about."""

from pathlib import Path
from typing import Any

from minibert.bert import BertConfig
from minibert.explore.subjects import Labels, Numbers, OwnLabels, Similar, Spans, Subject, Tags, open_subject
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.tasks.question_answering import AnswerQuestions
from minibert.tasks.similarity import Similarity
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer(
    "[PAD] [UNK] [CLS] [SEP] [MASK] ann lee sings is in rome a fine bad film who .".split()
)
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "initializer_range": 0.5,
}
TEXT, OTHER = "who sings in rome", "ann sings a fine film in rome ."
KINDS = {
    "labels": (Labels, BertForSequenceClassification, {"id2label": {0: "bad", 1: "fine", 2: "so"}}, None),
    "own labels": (
        OwnLabels,
        BertForSequenceClassification,
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        None,
    ),
    "pairs": (Labels, BertForSequenceClassification, {"num_labels": 2}, OTHER),
    "number": (Numbers, BertForSequenceClassification, {"num_labels": 1}, OTHER),
    "numbers": (
        Numbers,
        BertForSequenceClassification,
        {"num_labels": 2, "problem_type": "regression"},
        None,
    ),
    "tags": (Tags, BertForTokenClassification, {"id2label": {0: "O", 1: "B-person"}}, None),
    "spans": (Spans, BertForQuestionAnswering, {}, OTHER),
    "similarity": (Similar, SentenceEncoder, {}, OTHER),
}


def open_small(kind: str, folder: Path, **options: Any) -> Subject:
    """A subject of this kind, from a folder as fine-tuning leaves it."""
    expected, model_class, more, _ = KINDS[kind]
    model = model_class(BertConfig(**SIZES, **more), dtype="float64", seed=1)
    task = {"spans": AnswerQuestions, "similarity": Similarity}.get(kind)
    if task:
        task(TOKENIZER, task.Options(max_length=32)).save(model, folder)
    else:
        model.save_pretrained(folder)
        TOKENIZER.save_pretrained(folder)
    subject = open_subject(folder, dtype="float64", **options)
    assert type(subject) is expected
    return subject
