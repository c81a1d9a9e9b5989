"""The models: an encoder, and the heads that it is pre-trained with."""

from collections.abc import Mapping
from typing import Any

from minibert import ops
from minibert.arrays import Array, get_array_module, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.embeddings import BertEmbeddings
from minibert.bert.encoder import BertEncoder, BertPooler
from minibert.bert.heads import BertLMPredictionHead, BertPreTrainingHeads, NextSentenceHead
from minibert.bert.inputs import EncoderInputs, PretrainingInputs, encoder_inputs
from minibert.bert.outputs import BertOutput, PreTrainingOutput
from minibert.devices import Device
from minibert.errors import UserError
from minibert.folders.model import PretrainedModel
from minibert.nn import Context, Recorder, observed_backward, padding_to_leave_out
from minibert.nn.outputs import Derivatives, OutputKinds, total
from minibert.nn.places import EVERYWHERE, Places, places_read
from minibert.nn.targets import Targets, class_targets, count_labels, masked_lm_targets
from minibert.ops import Cache


class BertPretrainedModel(PretrainedModel):
    """The base class of models with a BERT inside: their kind of configuration and of prepared batch."""

    config: BertConfig
    bert: "BertModel"  # the encoder inside, unless the model is one itself
    config_class: type[BertConfig] = BertConfig
    prepared = EncoderInputs

    def make_encoder(self, config: BertConfig, add_pooling_layer: bool) -> "BertModel":
        """The encoder inside a larger model."""
        return BertModel(config, device=None, add_pooling_layer=add_pooling_layer)


class BertModel(BertPretrainedModel):
    """The encoder: embeddings, L layers, and the pooler unless ``add_pooling_layer`` is False.

    With ``device=None`` it has no memory yet: it is part of a larger model, which will allocate it.
    """

    embeddings_class: type[BertEmbeddings] = BertEmbeddings
    encoder_class: type[BertEncoder] = BertEncoder
    has_pooler = True  # whether there can be one

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
        super().__init__(config)
        self.embeddings = self.embeddings_class(config)
        self.encoder = self.encoder_class(config)
        self.pooler = BertPooler(config) if add_pooling_layer and self.has_pooler else None
        self._become_root(device, dtype, precision, seed)

    def prepare(self, **batch: Any) -> EncoderInputs:
        """Check a batch: see ``encoder_inputs``."""
        return encoder_inputs(self.config, **batch, dtype=self.dtype)

    def forward(
        self,
        input_ids: Any = None,
        *,
        context: Context | None = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
        **batch: Any,
    ) -> tuple[BertOutput, Cache]:
        """input_ids (B, S), optionally token_type_ids, attention_mask (B, S), on the host → outputs, cache.

        Instead of ``input_ids`` you can give ``inputs_embeds`` (B, S, H), the vectors to use for the words,
        or a prepared batch that is on the device. Raises UserError for a batch that does not fit the model
        (see ``encoder_inputs``).
        """
        inputs = self._on_device(input_ids, batch)
        context = context or self.new_context()
        needed = context.observed or inputs.inputs_embeds is not None or not self.embeddings.frozen
        recorders = self._recorders(context, return_hidden_states, return_attentions)
        for recorder in recorders.values():
            context = context.with_observer(recorder)
        hidden, embeddings_cache, bias = self._embed(inputs, context)
        hidden, seen = context.observe("embeddings", hidden)
        padding = padding_to_leave_out(inputs.attention_mask, hidden, context, self.config.needs_padding)
        tokens, bias = padding.leave_out(hidden), padding.starts_or(bias)  # (T, H), (B + 1,)
        places = EVERYWHERE if context.observed else context.places  # an observer sees whole layers
        inside = context.inside("encoder").only_at(places.among(padding))
        tokens, encoder_cache = self.encoder.forward(tokens, bias, inside, needed)
        hidden = padding.put_back(tokens)  # (B, S, H)
        pooler, mask = self.pooler, inputs.attention_mask
        pooled, pooler_cache = pooler.forward(hidden, mask) if pooler else (None, None)
        recorded = {name: list(recorder.values.values()) for name, recorder in recorders.items()}
        outputs = BertOutput(last_hidden_state=hidden, pooler_output=pooled, **recorded)
        if self.frozen and not needed:
            pooler_cache = None
        caches = (embeddings_cache if needed else None), seen, encoder_cache, pooler_cache
        how = hidden.shape, hidden.dtype, padding
        return outputs, Cache(self, *caches, how, recorders, OutputKinds(outputs))

    def _embed(self, inputs: EncoderInputs, context: Context) -> tuple[Array, Cache, Any]:
        """The output of the embeddings, its cache, and what attention adds to the scores in every layer."""
        bias = ops.attention_bias(inputs.attention_mask, self.dtype, self.config.is_decoder)
        ids, types = inputs.input_ids, inputs.token_type_ids
        return *self.embeddings.forward(ids, types, context, inputs.inputs_embeds), bias

    def _recorders(self, context: Context, hidden_states: bool, attentions: bool) -> dict[str, Recorder]:
        """Observers that keep the intermediate values that are to be returned."""
        layers = [context.name(f"encoder.layer.{i}") for i in range(self.config.num_hidden_layers)]
        recorders = {}
        if hidden_states:
            recorders["hidden_states"] = Recorder([context.name("embeddings"), *layers])
        if attentions:
            recorders["attentions"] = Recorder([f"{name}.attention.self.probabilities" for name in layers])
        return recorders

    def _backward(self, cache: Cache, derivatives: Derivatives) -> Array | None:
        for name, recorder in cache.pop(self).items():
            recorder.add(derivatives.get(name))
        shape, dtype, padding = cache.pop(self)
        pooler_cache = cache.pop(self)
        dhidden = derivatives.get("last_hidden_state")
        if "pooler_output" in derivatives and pooler_cache is not None:
            assert self.pooler  # which made the cache
            dhidden = total(dhidden, self.pooler.backward(derivatives["pooler_output"], pooler_cache))
        if dhidden is None:
            dhidden = self.device.xp.zeros(shape, dtype=dtype)
        dtokens = self.encoder.backward(padding.leave_out(dhidden), cache.pop(self))
        seen, embeddings_cache = cache.pop(self), cache.pop(self)
        if embeddings_cache is None:
            return None
        return self.embeddings.backward(observed_backward(padding.put_back(dtokens), seen), embeddings_cache)


class BertForPreTraining(BertPretrainedModel):
    """BERT with both of its pre-training heads. loss = masked-LM loss + next-sentence loss."""

    prepared = PretrainingInputs
    losses = ("loss", "mlm_loss", "nsp_loss")  # among the outputs; a missing head has no loss
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
        super().__init__(config)
        self.bert = self.make_encoder(config, self.next_sentence)
        word_weight = self.bert.embeddings.word_embeddings.weight
        self.cls = BertPreTrainingHeads(config, word_weight, self.masked_lm, self.next_sentence)
        self._become_root(device, dtype, precision, seed)

    @property
    def reads_few(self) -> bool:
        """Whether the heads read the labelled tokens and the first token of each text only."""
        return self.config.classifier_pooling == "cls" and not self.config.is_decoder

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, int]:
        """The denominators for this batch by itself: the masked words and sentence pairs to predict.

        Those of micro-batches are added up.
        """
        targets = {"mlm_denominator": "labels", "nsp_denominator": "next_sentence_label"}
        return {name: count_labels(batch[labels]) for name, labels in targets.items() if labels in batch}

    def prepare(
        self,
        *,
        labels: Any = None,
        next_sentence_label: Any = None,
        mlm_denominator: float | None = None,
        nsp_denominator: float | None = None,
        predictions: int | None = None,
        **encoder: Any,
    ) -> PretrainingInputs:
        """Check a batch, and find its targets. Everything is on the host.

        labels (B, S), −100 where nothing is predicted; next_sentence_label (B,), 0 = really next, 1 = random.
        The losses are sums over the labels divided by the denominators, which default to the number of labels
        in this batch. For micro-batches that make up one batch, pass the denominators of the whole batch:
        their losses and gradients then add up to those of the whole batch. ``predictions`` fixes the number
        of rows of the masked-LM targets, whatever the labels are. The other arguments are those of
        ``encoder_inputs``.

        Raises UserError for a batch that does not fit the model, or labels for a head that it does not have.
        """
        for name, given, has_head in (
            ("labels", labels, self.masked_lm),
            ("next_sentence_label", next_sentence_label, self.next_sentence),
        ):
            if given is not None and not has_head:
                raise UserError(
                    f"{type(self).__name__} has no head for {name}; leave them out or use BertForPreTraining"
                )
        inputs = encoder_inputs(self.config, **encoder, dtype=self.dtype)
        shape, masked_lm, pairs, read = inputs.attention_mask.shape, None, None, None
        if labels is not None:
            masked_lm = masked_lm_targets(labels, shape, self.config.vocab_size, self.dtype, predictions)
            masked_lm = masked_lm.divided_by(mlm_denominator, self.config.loss_denominator_epsilon)
            if self.reads_few:
                read = places_read(shape, masked_lm.positions, fixed=predictions is not None)
        if next_sentence_label is not None:
            pairs = class_targets("next_sentence_label", next_sentence_label, shape[:1], 2, self.dtype)
            pairs = pairs.divided_by(nsp_denominator)
        return PretrainingInputs(**vars(inputs), masked_lm=masked_lm, next_sentence=pairs, read=read)

    def forward(
        self,
        input_ids: Any = None,
        *,
        context: Context | None = None,
        return_logits: bool | None = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
        **batch: Any,
    ) -> tuple[PreTrainingOutput, Cache]:
        """A batch on the host → outputs, cache. ``prepare`` says what a batch can hold.

        Without labels there is no loss. A prepared batch that is on the device may replace ``input_ids``.
        Then nothing goes through the host, so that a GPU can be given all of the work at once. The
        masked-word logits are returned unless ``return_logits`` is False, which saves a large product. For a
        prepared batch, as in training, they are returned only if it is True. With labels, its last layer is
        computed only where a head reads it, unless somebody looks inside; there is no ``last_hidden_state``.
        """
        prepared = isinstance(input_ids, EncoderInputs)
        wants_logits = not prepared if return_logits is None else return_logits
        inputs = self._on_device(input_ids, batch)
        context = context or self.new_context()
        places = Places(inputs.attention_mask.shape, inputs.read if prepared else None)
        encoded, encoder_cache = self.bert.forward(
            inputs,
            context=context.inside("bert").only_at(places),
            return_hidden_states=return_hidden_states,
            return_attentions=return_attentions,
        )
        outputs = PreTrainingOutput(**vars(encoded))
        hidden, mlm_cache, logits_cache, nsp_cache = outputs.last_hidden_state, None, None, None
        masked_lm, next_sentence = self.cls.predictions, self.cls.seq_relationship
        if masked_lm and inputs.masked_lm is not None:
            outputs.mlm_loss, mlm_cache = masked_lm.loss(hidden, inputs.masked_lm)
        if masked_lm and wants_logits:
            outputs.prediction_logits, logits_cache = _score_words(masked_lm, hidden, inputs.masked_lm)
        if next_sentence:
            nsp_cache = self._relate(next_sentence, outputs, inputs.next_sentence)
        outputs.last_hidden_state = hidden if places.rows is None else None
        outputs.loss = total(outputs.mlm_loss, outputs.nsp_loss)
        return outputs, Cache(self, encoder_cache, nsp_cache, logits_cache, mlm_cache, OutputKinds(outputs))

    def _relate(self, head: NextSentenceHead, outputs: PreTrainingOutput, targets: Targets | None) -> Cache:
        """Fill in the next-sentence logits and, if there are targets, the loss."""
        logits, linear_cache = head.forward(outputs.pooler_output)  # (B, 2)
        outputs.seq_relationship_logits = logits.astype(self.dtype, copy=False)
        loss_cache = None
        if targets is not None:
            labels = targets.labels, targets.weights, targets.denominator
            outputs.nsp_loss, loss_cache = ops.cross_entropy(outputs.seq_relationship_logits, *labels)
        return Cache(self, linear_cache, loss_cache)

    def _backward(self, cache: Cache, derivatives: Derivatives) -> Array | None:
        """Turn the derivatives of losses and logits into those of the encoder's two outputs."""
        dloss = derivatives.pop("loss", None)
        dmlm = total(dloss, derivatives.pop("mlm_loss", None))
        dnsp = total(dloss, derivatives.pop("nsp_loss", None))
        dlogits = derivatives.pop("prediction_logits", None)
        drelationship = derivatives.pop("seq_relationship_logits", None)
        dhidden, dpooled = derivatives.get("last_hidden_state"), derivatives.get("pooler_output")
        mlm_cache, logits_cache, nsp_cache = cache.pop(self), cache.pop(self), cache.pop(self)
        if mlm_cache is not None and dmlm is not None:
            assert self.cls.predictions  # which made the cache, as below
            dhidden = total(dhidden, self.cls.predictions.loss_backward(dmlm, mlm_cache))
        if dlogits is not None:
            assert self.cls.predictions
            dhidden = total(dhidden, self.cls.predictions.backward(dlogits, logits_cache))
        if nsp_cache is not None:
            loss_cache, linear_cache = nsp_cache.pop(self), nsp_cache.pop(self)
            if loss_cache is not None and dnsp is not None:
                drelationship = total(drelationship, ops.cross_entropy_backward(dnsp, loss_cache))
            if drelationship is not None:
                assert self.cls.seq_relationship
                dpooled = total(dpooled, self.cls.seq_relationship.backward(drelationship, linear_cache))
        derivatives["last_hidden_state"], derivatives["pooler_output"] = dhidden, dpooled
        return self.bert.backward(cache.pop(self), **{f"d{name}": d for name, d in derivatives.items()})


def _score_words(head: BertLMPredictionHead, hidden: Array, targets: Targets | None) -> tuple[Array, Cache]:
    """The scores of every word: (N, V) at the labelled positions or, without labels, (B, S, V)."""
    if targets is not None:
        count = int(to_numpy(targets.weights > 0).sum())  # rows of weight 0, which come last, are padding
        return head.forward(hidden, targets.positions[:count])
    positions = get_array_module(hidden).arange(hidden.shape[0] * hidden.shape[1])
    logits, cache = head.forward(hidden, positions)
    return logits.reshape(*hidden.shape[:2], logits.shape[-1]), cache


class BertForMaskedLM(BertForPreTraining):
    """BERT with the masked-word head alone; no pooler."""

    next_sentence = False


class BertForNextSentencePrediction(BertForPreTraining):
    """BERT with the next-sentence head alone."""

    masked_lm = False
