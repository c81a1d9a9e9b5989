"""DistilBERT's pre-training: a student learns from masked words and from what a teacher thinks of them.

    loss = 5 · soft + 2 · masked-LM + 1 · cosine

    soft      how far the student's distributions over masked words are from the teacher's, both softened by a
              temperature T = 2 (``ops.soft_cross_entropy``)
    cosine    1 − cos(h, h′), the student's and the teacher's last hidden state of a token, mean over tokens

The teacher reads the same masked text, and does not learn. The student begins with some of its layers.

Source: Sanh et al. 2019, "DistilBERT, a distilled version of BERT", and the weights of its published training
script. There the soft loss is of all tokens or, as an option, of the masked ones; here it is of the masked
ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import Array, get_array_module, map_arrays
from minibert.bert.inputs import PretrainingInputs
from minibert.bert.models import BertForMaskedLM, BertForPreTraining
from minibert.errors import UserError
from minibert.nn import Context, Module
from minibert.nn.module import Placement, nothing_more
from minibert.nn.outputs import plain_number
from minibert.nn.targets import check_range, count_tokens
from minibert.ops import Cache


@dataclass(frozen=True)
class MaskedDistillationInputs:
    """A masked batch, and the number of tokens in the whole of which it is a part, a 0-d array."""

    masked: PretrainingInputs
    tokens: Array


@dataclass
class MaskedDistillationOutput:
    """The loss and its parts, without their weights."""

    loss: Array
    mlm_loss: Array
    soft_loss: Array
    cosine_loss: Array


class MaskedWordDistillation(Module):
    """Trains a student on masked words and on a teacher; for a trainer it is a model like any other.

    ``soft_weight``, ``mlm_weight`` and ``cosine_weight`` are the three weights above. Without the last one,
    the two may differ in their hidden sizes. Raises UserError if they do otherwise, and if the teacher cannot
    read all that the student reads.
    """

    losses = ("loss", "mlm_loss", "soft_loss", "cosine_loss")

    def __init__(
        self,
        student: BertForPreTraining,
        teacher: BertForMaskedLM,
        *,
        temperature: float = 2.0,
        soft_weight: float = 5.0,
        mlm_weight: float = 2.0,
        cosine_weight: float = 1.0,
    ):
        super().__init__()
        for size in ("vocab_size", "longest_sequence"):
            its, needed = getattr(teacher.config, size), getattr(student.config, size)
            if its < needed or (size == "vocab_size" and its != needed):
                raise UserError(
                    f"the teacher's {size} is {its}, the student's {needed}; give a teacher with the same "
                    "vocabulary that can read all that the student reads"
                )
        hidden = teacher.config.hidden_size, student.config.hidden_size
        if cosine_weight and hidden[0] != hidden[1]:
            raise UserError(
                f"the teacher's hidden size is {hidden[0]}, the student's {hidden[1]}; a cosine needs "
                "the same"
            )
        self.student = student
        self.temperature = temperature
        self.weights = {"soft_loss": soft_weight, "mlm_loss": mlm_weight, "cosine_loss": cosine_weight}
        self._types = teacher.config.type_vocab_size
        assert teacher.cls.predictions
        # Its functions, not the teacher itself: it is no part of what learns.
        self._read, self._score = teacher.bert.forward, teacher.cls.predictions.forward
        self.training = student.training

    @property
    def placement(self) -> Placement:
        """The student's, also if that is allocated anew."""
        return self.student.placement

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The denominators for this batch by itself: the masked words, and all tokens."""
        return self.student.count_targets(batch) | {"token_denominator": count_tokens(batch)}

    def prepare(self, *, token_denominator: int | None = None, **batch: Any) -> MaskedDistillationInputs:
        """Check a batch of the student, with labels. Everything is on the host."""
        if batch.get("labels") is None:
            raise UserError("a batch without labels; the student learns from masked words: give labels")
        if batch.get("next_sentence_label") is not None:
            raise UserError("the student learns from masked words alone; leave out next_sentence_label")
        masked = self.student.prepare(**batch)
        check_range("token_type_ids", masked.token_type_ids, self._types, "the teacher's type_vocab_size")
        tokens = token_denominator or int(masked.attention_mask.sum())
        return MaskedDistillationInputs(masked, np.asarray(tokens, self.dtype))

    def forward(
        self, inputs: Any = None, *, context: Context | None = None, **batch: Any
    ) -> tuple[MaskedDistillationOutput, Cache]:
        """A batch as ``prepare`` takes it, or a prepared one that is on the device → losses, cache."""
        if isinstance(inputs, MaskedDistillationInputs):
            nothing_more(batch)
        else:
            inputs = map_arrays(self.device.asarray, self.prepare(**batch))
        masked, predictions = inputs.masked, self.student.cls.predictions
        assert predictions and masked.masked_lm
        targets = masked.masked_lm
        context = context or self.new_context()
        encoded, encoder_cache = self.student.bert.forward(masked, context=context)
        hidden = encoded.last_hidden_state  # (B, S, H)
        logits, head_cache = predictions.forward(hidden, targets.positions)  # (N, V)
        read = self._read(masked, context=Context(backward=False))[0]  # without dropout
        its_hidden = read.last_hidden_state
        its_logits, _ = self._score(its_hidden, targets.positions)
        xp = get_array_module(hidden)
        real = targets.weights[:, None] > 0  # the teacher agrees about rows that only fill up the shape
        its_logits = xp.where(real, its_logits, logits)

        mlm_loss, mlm_cache = ops.cross_entropy(logits, targets.labels, targets.weights, targets.denominator)
        soft_loss, soft_cache = ops.soft_cross_entropy(
            logits, its_logits, self.temperature, targets.denominator
        )
        share = masked.attention_mask.reshape(-1).astype(self.dtype) / inputs.tokens  # (B·S,)
        cosine_loss, cosine_cache = share.sum() * 0, None
        if self.weights["cosine_loss"]:
            rows = (x.astype(self.dtype, copy=False).reshape(-1, x.shape[-1]) for x in (hidden, its_hidden))
            cosines, cosine_cache = ops.cosine_similarity(*rows)
            cosine_loss = (share * (1 - cosines)).sum()
        losses = {"soft_loss": soft_loss, "mlm_loss": mlm_loss, "cosine_loss": cosine_loss}
        loss = sum(self.weights[name] * part for name, part in losses.items())
        caches = encoder_cache, head_cache, mlm_cache, soft_cache, cosine_cache, share
        return MaskedDistillationOutput(loss=loss, **losses), Cache(self, *caches)

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up.

        forward: both losses of the words read the same scores, so their derivatives add up there; the cosines
        read the same hidden states as the scores, and 1 − cos has the derivative −1.
        """
        dloss, predictions = plain_number(dloss), self.student.cls.predictions
        assert predictions
        share, cosine_cache, soft_cache, mlm_cache, head_cache = (cache.pop(self) for _ in range(5))
        dlogits = ops.soft_cross_entropy_backward(self.weights["soft_loss"] * dloss, soft_cache)
        dlogits = dlogits + ops.cross_entropy_backward(self.weights["mlm_loss"] * dloss, mlm_cache)
        dhidden = predictions.backward(dlogits, head_cache)
        if cosine_cache is not None:
            dcosines = -self.weights["cosine_loss"] * dloss * share
            drows, _ = ops.cosine_similarity_backward(dcosines, cosine_cache)
            dhidden += drows.reshape(dhidden.shape)  # in place: it keeps its dtype
        self.student.bert.backward(cache.pop(self), dlast_hidden_state=dhidden)


def take_layers(student: BertForPreTraining, teacher: BertForMaskedLM) -> int:
    """Give the student the teacher's values: layer l of L those of layer ⌊l L′/L⌋, and all that is no layer.

    Only parameters of the same shape are taken, and of the positions those that both models use. Returns how
    many numbers that were.
    """
    values, config = dict(teacher.named_parameters()), teacher.config
    depths = config.num_hidden_layers, student.config.num_hidden_layers

    def its_layer(match: re.Match[str]) -> str:
        return str(int(match[0]) * depths[0] // depths[1] % config.different_layers)  # ALBERT's are all one

    taken = 0
    for name, parameter in student.named_parameters():
        its = values.get(re.sub(r"(?<=encoder\.layer\.)\d+", its_layer, name))
        if its is None:
            continue
        ours, theirs = parameter.value, its.value
        if name.endswith("position_embeddings.weight"):
            longest = min(student.config.longest_sequence, config.longest_sequence)
            ours, theirs = (  # RoBERTa's first rows stand for padding
                rows[size.max_position_embeddings - size.longest_sequence :][:longest]
                for rows, size in ((ours, student.config), (theirs, config))
            )
        if ours.shape == theirs.shape:
            ours[...] = theirs
            taken += ours.size
    student.buffers.round_operand()
    return taken
