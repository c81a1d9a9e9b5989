"""Distillation: a fine-tuned model, the teacher, says what it thinks of every training example.

It can also label texts whose labels nobody knows, from which the student then learns, too.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minibert.data.tasks import Feature
from minibert.data.tasks.labels import listed
from minibert.devices import Device
from minibert.errors import UserError
from minibert.heads import BertForSequenceClassification
from minibert.tasks.classify import KINDS, TextTask
from minibert.tasks.registry import open_task
from minibert.tasks.task import Task

BATCH_SIZE = 32  # texts that the teacher reads at a time


def ask_teacher(
    folder: str | Path,
    task: Task,
    examples: Sequence[Any],
    features: Sequence[Feature],
    device: Device,
    precision: str,
    *,
    unlabelled: Sequence[Any] = (),
    same_vocabulary: bool = False,
) -> tuple[list[Feature], BertForSequenceClassification]:
    """The features of the examples, each with the teacher's scores, ``teacher_logits`` (K,); and the teacher.

    After them come the features of the ``unlabelled`` examples, whose label or number the teacher guesses.
    The teacher reads the examples with its own tokenizer, so it need not share the student's vocabulary
    unless ``same_vocabulary`` says so. Its labels may come in another order. Raises UserError if ``folder``
    does not hold a model for the same task, with the same labels.
    """
    opened, teacher = open_task(folder, device=device, precision=precision)
    teacher_task = _same_task(folder, opened, task, same_vocabulary)
    assert isinstance(teacher, BertForSequenceClassification)  # of such a task
    teacher_task.ranks = task.ranks  # which share its work
    logits = teacher_task.logits(teacher, [*examples, *unlabelled], BATCH_SIZE)  # (N, K)
    if task.labels:
        logits = logits[:, [teacher_task.labels.index(label) for label in task.labels]]
    guesses = [
        replace(example, label=task.labels[row.argmax()] if task.labels else float(row[0]))
        for example, row in zip(unlabelled, logits[len(examples) :], strict=True)
    ]
    guessed = task.features(guesses, training=True)
    features = [*features, *(replace(row, example=row.example + len(examples)) for row in guessed)]
    told = [
        replace(feature, inputs=feature.inputs | {"teacher_logits": row})
        for feature, row in zip(features, logits.astype(np.float32), strict=True)
    ]
    return told, teacher


def _same_task(folder: str | Path, teacher_task: Task, task: Task, same_vocabulary: bool) -> TextTask:
    """The task that the teacher in the folder was fine-tuned for.

    Raises UserError if it is not what the student is to learn.
    """
    if not isinstance(teacher_task, TextTask) or teacher_task.name != task.name or teacher_task.several:
        raise UserError(
            f"teacher {folder} was fine-tuned for {teacher_task.name}, but the student learns {task.name}; "
            "give a teacher for the same task, with one label or number per text"
        )
    if sorted(teacher_task.labels) != sorted(task.labels):
        raise UserError(
            f"teacher {folder} knows the labels {listed(teacher_task.labels)}; the training data has "
            f"{listed(task.labels)}"
        )
    if teacher_task.pairs not in (None, task.pairs):
        reads, given = (KINDS[bool(pairs)] for pairs in (teacher_task.pairs, task.pairs))
        raise UserError(f"teacher {folder} was trained on {reads}, but the training data are {given}")
    if same_vocabulary and teacher_task.tokenizer.tokens != task.tokenizer.tokens:
        raise UserError(
            f"teacher {folder} has another vocabulary than the student, so their layers cannot be compared; "
            "leave out --hidden-weight and --attention-weight, or give a teacher with the same vocabulary"
        )
    return teacher_task
