"""ELECTRA's pre-training: a generator fills in the masks, a discriminator finds the words that are wrong.

    masked text ──▶ generator ──▶ a distribution for each mask ──▶ masked-LM loss
                                        │ one word drawn from each
                                        ▼
                    the text, filled in ──▶ discriminator ──▶ replaced-token loss, over all tokens

    loss = masked-LM loss + 50 · replaced-token loss

A drawn word that happens to be the right one counts as original. Drawing has no derivative, so the two losses
meet only in what the models share: word vectors, positions, token types and their LayerNorm.

Source: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from minibert import ops
from minibert.arrays import Array, get_array_module, map_arrays
from minibert.bert.config import BertConfig
from minibert.bert.heads import BertPreTrainingHeads
from minibert.bert.inputs import PretrainingInputs
from minibert.bert.outputs import PreTrainingOutput
from minibert.devices import Device
from minibert.errors import UserError
from minibert.heads.inputs import TaskInputs
from minibert.nn import Context, Module
from minibert.nn.module import nothing_more
from minibert.nn.outputs import plain_number
from minibert.nn.places import Places
from minibert.nn.targets import Targets, count_tokens
from minibert.ops import Cache
from minibert.precision import choose_precision
from minibert.variants.electra import ElectraForMaskedLM, ElectraForPreTraining

GENERATOR = "generator"  # the folder of the generator, inside that of the discriminator
SHARED = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
WHILE_MEASURING = (0x454C4543, 0x54524100)  # the key of the words drawn when nothing learns


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """The configuration of a generator with this share of the discriminator's heads, but at least one.

    Heads have the size that they have there, and the other sizes follow. The paper uses a quarter for its
    small and large models, and a third for base.
    """
    heads = max(1, round(config.num_attention_heads * share))
    return config.replace(
        num_attention_heads=heads,
        hidden_size=config.hidden_size * heads // config.num_attention_heads,
        intermediate_size=max(1, config.intermediate_size * heads // config.num_attention_heads),
    )


@dataclass(frozen=True)
class JointInputs:
    """A masked batch for the generator, and the same for the discriminator, with labels to be filled in."""

    masked: PretrainingInputs
    whole: TaskInputs


@dataclass
class JointOutput(PreTrainingOutput):
    """``loss`` = ``mlm_loss`` + λ · ``rtd_loss``."""

    rtd_loss: Array = None
    rtd_logits: Array = None  # (B, S): the log odds that a token was replaced
    replaced: Array = None  # (B, S): 1 where it was


class ElectraGeneratorAndDiscriminator(Module):
    """Both models as they are pre-trained; for a trainer a model like any other.

    ``replaced_weight`` is the λ of the paper, 50 above. The saved folder is the discriminator's, which is
    what is fine-tuned, with the generator's in it.

    Raises UserError if the two cannot share their embeddings.
    """

    losses = ("loss", "mlm_loss", "rtd_loss")

    def __init__(
        self,
        config: BertConfig,
        generator: BertConfig,
        *,
        device: str | Device = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
        replaced_weight: float = 50.0,
    ):
        super().__init__()
        for size in ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size"):
            if getattr(generator, size) != getattr(config, size):
                raise UserError(
                    f"the generator's {size} is {getattr(generator, size)}, the discriminator's "
                    f"{getattr(config, size)}; they share their embeddings, so these must be the same"
                )
        self.config, self.replaced_weight = config, replaced_weight
        self.discriminator = ElectraForPreTraining(config, device=None)
        self.generator = ElectraForMaskedLM(generator, device=None)
        ours, its = self.discriminator.bert.embeddings, self.generator.bert.embeddings
        for name in SHARED:
            setattr(its, name, getattr(ours, name))
        # The generator's decoder is the shared table, too.
        heads = BertPreTrainingHeads(generator, ours.word_embeddings.weight, next_sentence=False)
        self.generator.cls = heads
        self.allocate(device, dtype, precision, first_values=False)
        truncated = config.initializer == "truncated_normal"
        self.initialise(seed, config.initializer_range, truncated)

    # -- Forward and backward -------------------------------------------------------------------

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The denominators for this batch by itself: words to predict, and tokens to judge."""
        return {
            **self.generator.count_targets(batch),
            "rtd_denominator": count_tokens(batch),
        }

    def prepare(
        self,
        *,
        input_ids: Any,
        labels: Any,
        mlm_denominator: float | None = None,
        rtd_denominator: float | None = None,
        predictions: int | None = None,
        **batch: Any,
    ) -> JointInputs:
        """Check a masked batch with labels, as ``ElectraForMaskedLM`` takes it. All is on the host."""
        if labels is None:
            raise UserError("a batch without labels; the generator learns from masked words: give labels")
        batch["input_ids"] = input_ids
        masked = self.generator.prepare(
            labels=labels, mlm_denominator=mlm_denominator, predictions=predictions, **batch
        )
        original = np.zeros(masked.attention_mask.shape, dtype=np.int32)  # labels of "nothing is replaced"
        whole = self.discriminator.prepare(labels=original, denominator=rtd_denominator, **batch)
        return JointInputs(masked, whole)

    def forward(
        self, inputs: Any = None, *, context: Context | None = None, **batch: Any
    ) -> tuple[JointOutput, Cache]:
        """A batch as ``prepare`` takes it, or a prepared one that is on the device → outputs, cache."""
        if isinstance(inputs, JointInputs):
            nothing_more(batch)
        else:
            inputs = map_arrays(self.device.asarray, self.prepare(**batch))
        context = context or self.new_context()
        targets, predictions = inputs.masked.masked_lm, self.generator.cls.predictions
        assert isinstance(targets, Targets) and predictions
        places = Places(inputs.masked.attention_mask.shape, inputs.masked.read)
        encoded, encoder_cache = self.generator.bert.forward(
            inputs.masked, context=context.inside("generator.bert").only_at(places)
        )
        logits, head_cache = predictions.forward(encoded.last_hidden_state, targets.positions)  # (N, V)
        mlm_loss, mlm_cache = ops.cross_entropy(logits, targets.labels, targets.weights, targets.denominator)
        key = context.dropout_key(1.0)
        drawn = ops.sample_classes(logits, WHILE_MEASURING if key is None else key)
        filled_in, replaced = _fill_in(inputs.masked.input_ids, targets, drawn)
        judged = replace(
            inputs.whole,
            input_ids=filled_in,
            targets=replace(inputs.whole.targets, labels=replaced.reshape(-1)),
        )
        judgement, discriminator_cache = self.discriminator.forward(
            judged, context=context.inside("discriminator")
        )
        outputs = JointOutput(
            loss=mlm_loss + self.replaced_weight * judgement.loss,
            mlm_loss=mlm_loss,
            prediction_logits=logits,
            rtd_loss=judgement.loss,
            rtd_logits=judgement.logits,
            replaced=replaced,
        )
        return outputs, Cache(self, encoder_cache, head_cache, mlm_cache, discriminator_cache)

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up."""
        dloss, predictions = plain_number(dloss), self.generator.cls.predictions
        assert predictions
        self.discriminator.backward(cache.pop(self), dloss=self.replaced_weight * dloss)
        dlogits = ops.cross_entropy_backward(dloss, cache.pop(self))
        dhidden = predictions.backward(dlogits, cache.pop(self))
        self.generator.bert.backward(cache.pop(self), dlast_hidden_state=dhidden)

    # -- Folders --------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        device: str | Device = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """Both models, from the discriminator's folder and the ``generator`` in it, in evaluation mode.

        Raises UserError as their ``from_pretrained`` does.
        """
        settings["dtype"] = choose_precision(dtype, precision).dtype  # of float64 nothing is rounded away
        parts: dict[str, ElectraForPreTraining | ElectraForMaskedLM] = {
            "discriminator": ElectraForPreTraining.from_pretrained(folder, **settings),
            "generator": ElectraForMaskedLM.from_pretrained(Path(folder) / GENERATOR, **settings),
        }
        config, generator = (part.config for part in parts.values())
        model = cls(config, generator, device=device, dtype=dtype, precision=precision, seed=seed)
        for name, part in parts.items():
            values = dict(part.named_parameters())
            for inner, parameter in getattr(model, name).named_parameters():
                parameter.value[...] = model.device.asarray(values[inner].value)
        model.buffers.round_operand()
        model.eval()
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write both models, each as a folder that transformers reads."""
        self.discriminator.save_pretrained(folder)
        (Path(folder) / GENERATOR).mkdir(exist_ok=True)
        self.generator.save_pretrained(Path(folder) / GENERATOR)


def _fill_in(input_ids: Array, targets: Targets, drawn: Array) -> tuple[Array, Array]:
    """The ids with the drawn words (N,) at the predicted positions, and 1 wherever that is not the original.

    input_ids (B, S) → both (B, S) int32. Rows of weight 0 only fill up a fixed shape; each writes to a place
    of its own after the tokens, which is dropped.
    """
    xp, size, rows = get_array_module(input_ids), input_ids.size, len(drawn)
    places = xp.where(targets.weights > 0, targets.positions, size + xp.arange(rows))  # (N,), all different
    filled_in, replaced = (xp.zeros(size + rows, dtype="int32") for _ in range(2))
    filled_in[:size] = input_ids.reshape(-1)
    filled_in[places] = drawn
    replaced[places] = (drawn != targets.labels).astype("int32")
    return filled_in[:size].reshape(input_ids.shape), replaced[:size].reshape(input_ids.shape)
