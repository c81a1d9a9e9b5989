"""A model that learns from labels and from a teacher: from its scores, and from its layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minibert import ops
from minibert.arrays import Array, get_array_module, map_arrays
from minibert.errors import UserError
from minibert.heads.inputs import NumberTargets, TaskInputs, computed_earlier
from minibert.heads.task_models import BertForSequenceClassification
from minibert.nn import Context, Module
from minibert.nn.module import Placement, nothing_more
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
    """The loss and its parts: from the labels, from the teacher's scores and from its layers."""

    loss: Array = None
    hard_loss: Array = None
    soft_loss: Array = None
    hidden_loss: Array = None
    attention_loss: Array = None


@dataclass(frozen=True)
class _Imitated:
    """A kind of value that is imitated in every layer: its output, its loss, forward and backward of that."""

    output: str
    loss: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]


HIDDEN = _Imitated("hidden_states", "hidden_loss", ops.relation_loss, ops.relation_loss_backward)
ATTENTION = _Imitated("attentions", "attention_loss", ops.attention_loss, ops.attention_loss_backward)


class Distillation(Module):
    """Trains a student on labels and on a teacher; for a trainer it is a model like any other.

        loss = (1 − w) · hard_loss + w · soft_loss + w_h · hidden_loss + w_a · attention_loss

    ``hard_loss`` is the student's own, ``soft_loss`` is ``ops.soft_cross_entropy`` of the student's scores
    and the teacher's at a ``temperature`` or, for a student that predicts numbers, the squared error between
    the two. ``weight`` is w. The teacher's scores, ``teacher_logits`` (B, K), come with the batch.

    The other two losses compare layers: ``ops.relation_loss`` of hidden states with ``hidden_weight`` w_h,
    ``ops.attention_loss`` with ``attention_weight`` w_a. Layer l of the student's L imitates layer ⌈l L′/L⌉
    of the teacher's L′. The loss of a text is the mean over layers and over pairs of its tokens (for
    attention: over its tokens); the losses of all texts are added up and divided by the student's
    denominator. Here the ``teacher`` itself is needed, which reads the student's tokens. So both must have
    the same vocabulary.

    Raises UserError if the teacher is missing, or too small to read what the student reads.
    """

    def __init__(
        self,
        student: BertForSequenceClassification,
        *,
        temperature: float = 2.0,
        weight: float = 0.5,
        teacher: BertForSequenceClassification | None = None,
        hidden_weight: float = 0.0,
        attention_weight: float = 0.0,
    ):
        super().__init__()
        self.student = student
        self.temperature, self.weight = temperature, weight
        weights = {HIDDEN: hidden_weight, ATTENTION: attention_weight}
        self.imitated = {imitated: weight for imitated, weight in weights.items() if weight}
        self.losses = ("loss", "hard_loss", "soft_loss", *(imitated.loss for imitated in self.imitated))
        if self.imitated:
            self._set_teacher(teacher)
        self.training = student.training

    @property
    def placement(self) -> Placement:
        """The student's, also if that is allocated anew."""
        return self.student.placement

    def _set_teacher(self, teacher: BertForSequenceClassification | None) -> None:
        if teacher is None:
            raise UserError("layers are imitated (hidden_weight, attention_weight), so give the teacher, too")
        for size in ("vocab_size", "type_vocab_size", "longest_sequence"):
            its, needed = getattr(teacher.config, size), getattr(self.student.config, size)
            if its < needed:
                raise UserError(
                    f"the teacher's {size} is {its}, the student's {needed}; give a teacher that can read "
                    "all that the student reads"
                )
        self._depth = teacher.config.num_hidden_layers
        self._ask = teacher.forward  # not the teacher itself: it is no part of what learns

    def prepare(self, *, teacher_logits: Any, labels: Any, **batch: Any) -> DistillationInputs:
        """Check a batch of the student, with labels, and the teacher's scores. Everything is on the host.

        All losses are sums divided by the student's denominator. Raises UserError for what does not fit the
        student.
        """
        if labels is None:
            raise UserError("a batch without labels; the student learns from them, too: give labels")
        inputs = self.student.prepare(labels=labels, **batch)
        expected = (len(inputs.attention_mask), self.student.config.num_labels)
        logits = computed_earlier("teacher_logits", teacher_logits, expected, self.dtype)
        return DistillationInputs(inputs, logits)

    def forward(
        self, inputs: Any = None, *, context: Context | None = None, **batch: Any
    ) -> tuple[DistillationOutput, Cache]:
        """A batch as ``prepare`` takes it, or a prepared one that is on the device → losses, cache."""
        if isinstance(inputs, DistillationInputs):
            nothing_more(batch)
        else:
            inputs = map_arrays(self.device.asarray, self.prepare(**batch))
        hidden, attention = HIDDEN in self.imitated, ATTENTION in self.imitated
        outputs, student_cache = self.student.forward(
            inputs.student,
            context=context or self.new_context(),
            return_hidden_states=hidden,
            return_attentions=attention,
        )
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
        losses = DistillationOutput(loss, outputs.loss, soft_loss)
        layer_caches: dict[_Imitated, list[Any]] = {}
        if self.imitated:
            read = replace(inputs.student, targets=None)
            teacher = self._ask(  # without dropout
                read,
                context=Context(backward=False),
                return_hidden_states=hidden,
                return_attentions=attention,
            )[0]
            mask = inputs.student.attention_mask.astype(self.dtype)  # (B, S)
            layer_caches = self._imitate(vars(outputs), vars(teacher), mask, targets.denominator, losses)
        return losses, Cache(self, student_cache, soft_cache, soft_backward, layer_caches)

    def _imitate(
        self,
        student: Mapping[str, Sequence[Array]],
        teacher: Mapping[str, Sequence[Array]],
        mask: Array,
        denominator: Array,
        losses: DistillationOutput,
    ) -> dict[_Imitated, list[Any]]:
        """Add the layer losses to ``losses``. Returns the caches of all layers, by kind."""
        layers, caches = self.student.config.num_hidden_layers, {}
        xp = get_array_module(mask)
        share = mask / xp.maximum(mask.sum(axis=1, keepdims=True), 1)  # of a token in its text, (B, S)
        queries = share[:, :, None] / (denominator * layers)
        weights = {HIDDEN: queries * share[:, None, :], ATTENTION: queries}
        for imitated, weight in self.imitated.items():
            mine, its = student[imitated.output][-layers:], teacher[imitated.output][-self._depth :]
            chosen = [its[((layer + 1) * self._depth - 1) // layers] for layer in range(layers)]
            pairs = [
                imitated.forward(*(x.astype(self.dtype, copy=False) for x in both), weights[imitated])
                for both in zip(mine, chosen, strict=True)
            ]
            loss = sum(loss for loss, _ in pairs)
            setattr(losses, imitated.loss, loss)
            losses.loss = losses.loss + weight * loss
            caches[imitated] = [cache for _, cache in pairs]
        return caches

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The student's ``denominator`` for this batch by itself."""
        return self.student.count_targets(batch)

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up.

        forward: the student's loss, the soft loss, which reads the student's logits, and the losses of the
        layers are added up; so the student's backward is given the derivatives of all of them.
        """
        dloss, derivatives = plain_number(dloss), {}
        for imitated, caches in cache.pop(self).items():
            dlayer_loss = self.imitated[imitated] * dloss
            dlayers = [imitated.backward(dlayer_loss, layer_cache) for layer_cache in caches]
            embeddings = [None] if imitated == HIDDEN else []
            derivatives[f"d{imitated.output}"] = embeddings + dlayers
        soft_backward = cache.pop(self)
        dlogits = soft_backward(self.weight * dloss, cache.pop(self))
        self.student.backward(
            cache.pop(self), dloss=(1.0 - self.weight) * dloss, dlogits=dlogits, **derivatives
        )
