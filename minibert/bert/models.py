"""The models: an encoder, and the heads that it is pre-trained with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibert import ops
from minibert.arrays import Array, Device, map_arrays
from minibert.assets import model_folder
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertEncoder, BertPooler
from minibert.bert.heads import BertPreTrainingHeads
from minibert.bert.inputs import (
    EncoderInputs,
    PretrainingInputs,
    Targets,
    class_targets,
    count_labels,
    encoder_inputs,
    masked_lm_targets,
)
from minibert.bert.pretrained import (
    check_complete,
    load_tensors,
    match_tensors,
    report,
    save_model,
    without_heads,
)
from minibert.bert.weights import open_weights
from minibert.errors import UserError
from minibert.nn import Module, initialise


@dataclass
class BertOutput:
    """What a model computed; None where it was not asked for or cannot know. Arrays are on the device.

    ``loss``, ``mlm_loss`` and ``nsp_loss`` are 0-d arrays, in nats (a regression's in squared units).
    """

    loss: Array | None = None
    mlm_loss: Array | None = None
    nsp_loss: Array | None = None
    prediction_logits: Array | None = None  # (N, V) at the labelled positions, or (B, S, V) without labels
    seq_relationship_logits: Array | None = None  # (B, 2)
    logits: Array | None = None  # (B, K) for sequences, (B, S, K) for tokens
    start_logits: Array | None = None  # (B, S)
    end_logits: Array | None = None  # (B, S)
    embeddings: Array | None = None  # (B, H), a vector for each sentence
    last_hidden_state: Array | None = None  # (B, S, H)
    pooler_output: Array | None = None  # (B, H)
    features: Array | None = None  # with feature_layers what the head reads: (B, S, …), of a text (B, …)
    hidden_states: list[Array] | None = None  # L + 1 of (B, S, H): the embeddings, then each layer's output
    attentions: list[Array] | None = None  # L of (B, A, S, S), before dropout


class PretrainedModel(Module):
    """A model that stands on its own: it has a configuration, owns its parameters, and can be saved.

    ``device`` is "cpu", "cuda", "cuda:1" or "auto", ``dtype``, that of the parameters, "float32" or
    "float64". ``precision`` is what is computed in, if that is not the same: "tf32", "bfloat16" and
    "float16" go with parameters in float32. The parameters start as ``config.initializer`` says, from
    ``seed``. A new model is in training mode (dropout on).
    """

    config: BertConfig
    architecture = ""  # its class in transformers, where that has another name
    begins_with_new_head = False  # whether it usually starts from a folder of another class, for fine-tuning

    def _become_root(self, device: str | Device | None, dtype: str, precision: str | None, seed: int) -> None:
        """Allocate all parameters and give them their first values; with None that is left to others."""
        if device is not None:
            self.allocate(device, dtype, precision)
            self._initialise(seed)

    def _initialise(self, seed: int, only: Collection[str] | None = None) -> None:
        config = self.config
        initialise(self, seed, config.initializer_range, config.initializer == "truncated_normal", only)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        device: str | Device = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
        complete: bool = False,
        new_head: bool = False,
        **settings: Any,
    ) -> "PretrainedModel":
        """The model in a local folder (``config.json``, ``model.safetensors``), in evaluation mode.

        ``folder`` may also be the name of a model that comes with the package, "mini".

        Reads what this package and Hugging Face's transformers write for any BERT: in one file or in shards,
        in 16, 32 or 64 bits, with or without ``bert.`` in the names. ``settings`` are fields of the
        configuration that get another value than in the file. A pooler or a head that the files do not have
        starts anew, from ``seed``, and tensors that this class has no use for are left aside; a warning names
        both. In fine-tuning that is how it should be, and one line says which head is new. With ``complete``
        nothing may start anew; with ``new_head`` every head does, but not the pooler. Raises UserError for
        anything else that does not fit, before memory is taken.
        """
        folder = model_folder(folder)
        stored = open_weights(folder, cls.architecture or cls.__name__)
        stored = without_heads(stored) if new_head else stored
        model = cls._skeleton(folder, settings)
        match = match_tensors(model, stored, folder)
        if complete:
            check_complete(match, folder, model)
        try:
            model.allocate(device, dtype, precision)
        except MemoryError:
            count = sum(parameter.size for _, parameter in model.named_parameters())
            raise UserError(f"{folder}: not enough memory for {count:,} parameters in {dtype}") from None
        load_tensors(model, match.sources)
        model._initialise(seed, only=match.missing)
        report(match, folder, model)
        model.eval()
        return model

    @classmethod
    def _skeleton(cls, folder: Path, settings: dict[str, Any]) -> "PretrainedModel":
        """The model that a folder describes, without memory."""
        return cls(BertConfig.from_pretrained(folder, **settings), device=None)

    def save_pretrained(
        self, folder: str | Path, dtype: str | None = None, max_shard_size: int | str | None = None
    ) -> None:
        """Write ``config.json`` and ``model.safetensors``, which transformers reads, into a folder.

        ``dtype``: "float16", "bfloat16", "float32" or "float64", by default the model's. With a
        ``max_shard_size``, in bytes or as "16MiB" or "5GB", the weights are split into files of at most that
        size, listed in ``model.safetensors.index.json``. Weights that were there before are replaced, all or,
        after an error, none. A tokenizer is saved beside them by its own ``save_pretrained``.

        Raises UserError if a number is too large for the type or a tensor for a file.
        """
        save_model(self, Path(folder), dtype, max_shard_size)


class BertModel(PretrainedModel):
    """The encoder: embeddings, L layers, and the pooler unless ``add_pooling_layer`` is False.

    With ``device=None`` it has no memory yet: it is part of a larger model, which will allocate it.
    """

    def __init__(
        self,
        config: BertConfig,
        *,
        device: str | Device | None = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
        add_pooling_layer: bool = True,
    ):
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self._become_root(device, dtype, precision, seed)

    def forward(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """input_ids, token_type_ids, attention_mask (B, S), on the host → outputs, cache.

        Raises UserError for a batch that does not fit the model (see ``encoder_inputs``).
        """
        inputs = encoder_inputs(self.config, input_ids, token_type_ids, attention_mask)
        inputs = map_arrays(self.device.asarray, inputs)
        return self.encode(inputs, self.dtype, return_hidden_states, return_attentions)

    def encode(
        self,
        inputs: EncoderInputs,
        dtype: str,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """The same for inputs that have been checked and are on the device."""
        bias = ops.attention_bias(inputs.attention_mask, dtype, self.config.is_decoder)  # (B, 1, 1 or S, S)
        states, attentions = [], []

        def watch(layer, hidden):
            if return_hidden_states:
                states.append(hidden)
            if return_attentions:
                attentions.append(layer.attention.self.probabilities(hidden, bias))

        hidden, embeddings_cache = self.embeddings.forward(inputs.input_ids, inputs.token_type_ids)
        if self.embeddings.frozen:
            embeddings_cache = None
        needs_dembedded = embeddings_cache is not None
        hidden, encoder_cache = self.encoder.forward(hidden, bias, watch, needs_dembedded)  # (B, S, H)
        pooled, pooler_cache = self.pooler.forward(hidden) if self.pooler else (None, None)
        if encoder_cache[-1] is None and self.pooler and self.pooler.frozen:
            pooler_cache = None
        output = BertOutput(
            last_hidden_state=hidden,
            pooler_output=pooled,
            hidden_states=[*states, hidden] if return_hidden_states else None,
            attentions=attentions if return_attentions else None,
        )
        return output, [embeddings_cache, encoder_cache, pooler_cache]

    def backward(
        self,
        cache: list,
        dlast_hidden_state: Array | None = None,
        dpooler_output: Array | None = None,
    ) -> None:
        """Add to all gradients, from those of the two outputs; one that is None was not used in the loss.

        dlast_hidden_state (B, S, H), dpooler_output (B, H). The cache is used up. Below the lowest part
        that learns nothing is computed: the forward has kept no cache there. Raises ValueError if both
        are None, or if the model has no pooler for the second.
        """
        if dlast_hidden_state is None and dpooler_output is None:
            raise ValueError("backward needs dlast_hidden_state, dpooler_output or both")
        if dpooler_output is not None and self.pooler is None:
            raise ValueError("backward got dpooler_output, but this model has no pooler")
        pooler_cache = cache.pop()
        dhidden = dlast_hidden_state
        if dpooler_output is not None and pooler_cache is not None:
            dfrom_pooler = self.pooler.backward(dpooler_output, pooler_cache)
            dhidden = dfrom_pooler if dhidden is None else dhidden + dfrom_pooler
        dembedded = self.encoder.backward(dhidden, cache.pop())
        embeddings_cache = cache.pop()
        if embeddings_cache is not None:
            self.embeddings.backward(dembedded, embeddings_cache)
        if self.buffers is not None:
            self.buffers.settle_grad()


class BertForPreTraining(PretrainedModel):
    """BERT with both of its pre-training heads. loss = masked-LM loss + next-sentence loss."""

    losses = ("loss", "mlm_loss", "nsp_loss")  # of the outputs; a head that is not there has none
    masked_lm = True
    next_sentence = True

    def __init__(
        self,
        config: BertConfig,
        *,
        device: str | Device | None = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        self.config = config
        self.bert = BertModel(config, device=None, add_pooling_layer=self.next_sentence)
        word_weight = self.bert.embeddings.word_embeddings.weight
        self.cls = BertPreTrainingHeads(config, word_weight, self.masked_lm, self.next_sentence)
        self._become_root(device, dtype, precision, seed)

    def forward(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        labels: Any = None,
        next_sentence_label: Any = None,
        mlm_denominator: float | None = None,
        nsp_denominator: float | None = None,
        return_logits: bool = True,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """A batch on the host → outputs, cache. Without labels there is no loss, and no backward.

        input_ids, token_type_ids, attention_mask, labels (B, S), labels −100 where nothing is predicted;
        next_sentence_label (B,), 0 = really next, 1 = random. The losses are sums over the labels
        divided by the denominators, which default to the number of labels in this batch. For
        micro-batches that make up one batch pass the numbers of the whole: their losses and gradients
        then add up to those of the one large batch.

        Raises UserError for a batch that does not fit the model, or labels for a head it does not have.
        """
        batch = self.check(
            input_ids,
            token_type_ids,
            attention_mask,
            labels,
            next_sentence_label,
            mlm_denominator,
            nsp_denominator,
        )
        output, cache = self.compute(
            map_arrays(self.device.asarray, batch), return_hidden_states, return_attentions
        )
        if self.masked_lm and return_logits:
            positions = None
            if batch.masked_lm is not None:  # a row of weight 0 only stands in where there are no labels
                positions = self.device.asarray(batch.masked_lm.positions[batch.masked_lm.weights > 0])
            output.prediction_logits = self.cls.predictions.logits(output.last_hidden_state, positions)
        return output, cache

    def check(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        labels: Any = None,
        next_sentence_label: Any = None,
        mlm_denominator: float | None = None,
        nsp_denominator: float | None = None,
        predictions: int | None = None,
    ) -> PretrainingInputs:
        """The first half of ``forward``: everything that is done on the host.

        ``predictions`` gives the masked-LM targets this number of rows, whatever the labels are.
        """
        for name, given, has_head in (
            ("labels", labels, self.masked_lm),
            ("next_sentence_label", next_sentence_label, self.next_sentence),
        ):
            if given is not None and not has_head:
                raise UserError(
                    f"{type(self).__name__} has no head for {name}; leave them out or use BertForPreTraining"
                )
        encoder = encoder_inputs(self.config, input_ids, token_type_ids, attention_mask)
        shape, masked_lm, next_sentence = encoder.input_ids.shape, None, None
        if labels is not None:
            masked_lm = masked_lm_targets(self.config, self.dtype, labels, shape, predictions)
            masked_lm = masked_lm.divided_by(mlm_denominator)
        if next_sentence_label is not None:
            next_sentence = class_targets(
                "next_sentence_label", next_sentence_label, shape[:1], 2, self.dtype
            )
            next_sentence = next_sentence.divided_by(nsp_denominator)
        return PretrainingInputs(encoder, masked_lm, next_sentence)

    def compute(
        self,
        batch: PretrainingInputs,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """The second half: a checked batch, now on the device, → outputs without masked-LM logits, cache.

        Nothing here goes through the host, so that a GPU can be given all of it at once.
        """
        output, encoder_cache = self.bert.encode(
            batch.encoder, self.dtype, return_hidden_states, return_attentions
        )
        predictions_cache = relationship_cache = None
        if batch.masked_lm is not None:
            targets = batch.masked_lm
            output.mlm_loss, predictions_cache = self.cls.predictions.forward(
                output.last_hidden_state,
                targets.positions,
                targets.labels,
                targets.weights,
                targets.denominator,
            )
        if self.next_sentence:
            relationship_cache = self._relate(output, batch.next_sentence)
        losses = [loss for loss in (output.mlm_loss, output.nsp_loss) if loss is not None]
        output.loss = sum(losses[1:], start=losses[0]) if losses else None
        return output, [encoder_cache, relationship_cache, predictions_cache]

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The denominators of a batch alone: masked words and sentence pairs to predict.

        Those of micro-batches are added up.
        """
        targets = {"mlm_denominator": "labels", "nsp_denominator": "next_sentence_label"}
        return {name: count_labels(batch[labels]) for name, labels in targets.items() if labels in batch}

    def _relate(self, output: BertOutput, targets: Targets | None) -> list | None:
        """Fill in the next-sentence logits and loss; the cache is None without targets."""
        head, pooled = self.cls.seq_relationship, output.pooler_output
        logits, linear_cache = head.forward(pooled)  # (B, 2)
        output.seq_relationship_logits = logits.astype(self.dtype, copy=False)
        if targets is None:
            return None
        output.nsp_loss, loss_cache = ops.cross_entropy(
            output.seq_relationship_logits, targets.labels, targets.weights, targets.denominator
        )
        return [linear_cache, loss_cache]

    def backward(self, cache: list, scale: Array | float = 1.0) -> None:
        """Add the gradient of ``scale · loss`` to that of every parameter. The cache is used up.

        ``scale`` is a number or a 0-d array on the device. Raises ValueError if the forward had no labels.
        """
        scale = plain_number(scale)
        dhidden = dpooled = None
        predictions_cache = cache.pop()
        if predictions_cache is not None:
            dhidden = self.cls.predictions.backward(scale, predictions_cache)
        relationship_cache = cache.pop()
        if relationship_cache is not None:
            dlogits = ops.cross_entropy_backward(scale, relationship_cache.pop())
            dpooled = self.cls.seq_relationship.backward(dlogits, relationship_cache.pop())
        if dhidden is None and dpooled is None:
            raise ValueError("backward without a loss: give labels or next_sentence_label to forward")
        self.bert.backward(cache.pop(), dhidden, dpooled)
        self.buffers.settle_grad()


class BertForMaskedLM(BertForPreTraining):
    """BERT with the masked-word head alone; no pooler."""

    next_sentence = False


class BertForNextSentencePrediction(BertForPreTraining):
    """BERT with the next-sentence head alone."""

    masked_lm = False


def plain_number(scale: Array | float) -> Array | float:
    """An array as it is, else a Python number: one of NumPy's would widen the dtype."""
    return scale if hasattr(scale, "__setitem__") else float(scale)
