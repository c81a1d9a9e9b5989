"""A model that learns from labels and from the scores of a teacher."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minibert import ops
from minibert.arrays import Array, map_arrays
from minibert.heads.inputs import NumberTargets, TaskInputs, computed_earlier
from minibert.heads.task_models import BertForSequenceClassification
from minibert.nn import Context, Module
from minibert.nn.outputs import plain_number
from minibert.nn.targets import Targets
from minibert.ops import Cache


@dataclass
class DistillationInputs:
    """A batch of the student, with what the teacher said of it."""

    student: TaskInputs
    teacher_logits: Array  # (B, K)


@dataclass
class DistillationOutput:
    """The loss, and the two that it is made of: that of the labels, and that of the teacher's scores."""

    loss: Array = None
    hard_loss: Array = None
    soft_loss: Array = None


class Distillation(Module):
    """Trains a student on labels and on a teacher's scores; for a trainer it is a model like any other.

        loss = (1 − w) · hard_loss + w · soft_loss

    ``hard_loss`` is the student's own, ``soft_loss`` is ``ops.soft_cross_entropy`` of the student's scores
    and the teacher's at a ``temperature`` or, for a student that predicts numbers, the squared error between
    the two. ``weight`` is w. The teacher's scores, ``teacher_logits`` (B, K), come with the batch.
    """

    losses = ("loss", "hard_loss", "soft_loss")

    def __init__(
        self, student: BertForSequenceClassification, *, temperature: float = 2.0, weight: float = 0.5
    ):
        super().__init__()
        self.student = student
        self.temperature, self.weight = temperature, weight
        self._placement, self.training = student.placement, student.training

    def prepare(self, *, teacher_logits: Any, labels: Any, **batch: Any) -> DistillationInputs:
        """Check a batch of the student, with labels, and the teacher's scores. Everything is on the host.

        Both losses are sums divided by the student's denominator. Raises UserError for what does not fit the
        student.
        """
        inputs = self.student.prepare(labels=labels, **batch)
        expected = (len(inputs.attention_mask), self.student.config.num_labels)
        logits = computed_earlier("teacher_logits", teacher_logits, expected, self.dtype)
        return DistillationInputs(inputs, logits)

    def forward(
        self, inputs: Any = None, *, context: Context | None = None, **batch: Any
    ) -> tuple[DistillationOutput, Cache]:
        """A batch as ``prepare`` takes it, or a prepared one that is on the device → losses, cache."""
        if not isinstance(inputs, DistillationInputs):
            inputs = map_arrays(self.device.asarray, self.prepare(**batch))
        outputs, student_cache = self.student.forward(inputs.student, context=context or self.new_context())
        targets = inputs.student.targets
        assert isinstance(targets, Targets | NumberTargets)  # there are labels
        scores = outputs.logits, inputs.teacher_logits
        if self.student.config.is_regression:
            soft_backward = ops.squared_error_backward
            soft_loss, soft_cache = ops.squared_error(*scores, targets.denominator)
        else:
            soft_backward = ops.soft_cross_entropy_backward
            soft_loss, soft_cache = ops.soft_cross_entropy(*scores, self.temperature, targets.denominator)
        loss = (1.0 - self.weight) * outputs.loss + self.weight * soft_loss
        caches = student_cache, soft_cache, soft_backward
        return DistillationOutput(loss, outputs.loss, soft_loss), Cache(self, *caches)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The student's ``denominator`` for this batch by itself."""
        return self.student.count_targets(batch)

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up.

        forward: the student's loss and the soft loss, which reads the student's logits, are added up; so the
        student's backward is given the derivatives of both.
        """
        soft_backward = cache.pop(self)
        dlogits = soft_backward(self.weight * plain_number(dloss), cache.pop(self))
        self.student.backward(cache.pop(self), dloss=(1.0 - self.weight) * dloss, dlogits=dlogits)
