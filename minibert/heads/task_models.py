"""The fine-tuning models: the encoder and one more layer (Devlin et al., 2019, section 4)."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from minibert import ops
from minibert.arrays import Array, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.inputs import encoder_inputs
from minibert.bert.models import BertPretrainedModel
from minibert.devices import Device
from minibert.errors import UserError
from minibert.heads.freezing import freeze, side_by_side
from minibert.heads.inputs import (
    NumberTargets,
    SpanTargets,
    TaskInputs,
    check_no_empty_row,
    computed_earlier,
    count_spans,
    number_targets,
    span_targets,
    tag_targets,
    tokens_chosen,
    words_back,
    words_first,
)
from minibert.heads.layers import ClassificationHead, Classifier, LinearChainCRF
from minibert.heads.outputs import ClassifierOutput, QuestionAnsweringOutput, TaskOutput
from minibert.nn import Context, Linear
from minibert.nn.outputs import Derivatives, OutputKinds, total
from minibert.nn.places import EVERYWHERE, first_places
from minibert.nn.targets import IGNORED, Targets, class_targets, count_labels, on_host
from minibert.ops import Cache

Output = TypeVar("Output", bound=TaskOutput)


class TaskModel(BertPretrainedModel, Generic[Output]):
    """The encoder with the head of one task on top: what all tasks have in common.

    A task makes its head in ``_add_head`` and its targets from labels in ``_targets``. ``_head`` fills in
    logits and, if the inputs have targets, the loss, and returns its cache. ``_head_backward`` takes the
    derivatives of both, and returns the name of what the head read and its derivative.

    With ``config.feature_layers`` only the head learns, from hidden states without dropout. These are
    returned as ``outputs.features``; passed back as ``features``, they need not be computed again.

    A loss is a sum divided by ``denominator``, which defaults to the number of labels in the batch. For
    micro-batches that make up one batch, pass the number of labels in the whole batch: their losses and
    gradients then add up to those of the whole batch. Labels of −100 do not count.

    A task sets ``reads_padding`` if its head reads all places of a row, also those after the text. Otherwise
    the encoder may leave padding out (``nn.padding``), and a label at padding is one of a hidden state of 0.
    """

    prepared = TaskInputs
    begins_with_new_head = True
    add_pooling_layer = False
    reads_padding = False
    losses = ("loss",)
    output: type[Output]
    head_outputs: tuple[str, ...] = ("loss", "logits")  # those that ``_head_backward`` takes derivatives of

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
        layers = config.feature_layers
        self.bert = self.make_encoder(config, self.add_pooling_layer and not layers)
        self._add_head(config)
        if layers:
            freeze(self)
        self._become_root(device, dtype, precision, seed)

    def prepare(
        self, *, labels: Any = None, denominator: float | None = None, features: Any = None, **encoder: Any
    ) -> TaskInputs:
        """Check a batch, and find its targets. Everything is on the host.

        The docstring of the class says what the labels are. The other arguments are those of
        ``encoder_inputs``. Raises UserError for a batch that does not fit the model.
        """
        inputs = encoder_inputs(self.config, **encoder, dtype=self.dtype)
        shape = inputs.attention_mask.shape
        targets = None if labels is None else self._targets(labels, shape, denominator)
        if features is not None:
            if not self.config.feature_layers:
                raise UserError("features are for a model with feature_layers; leave them out")
            features = self._given_features(features, shape)
        return TaskInputs(**vars(inputs), targets=targets, features=features)

    def forward(
        self,
        input_ids: Any = None,
        *,
        context: Context | None = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
        **batch: Any,
    ) -> tuple[Output, Cache]:
        """A batch on the host → outputs, cache. ``prepare`` says what a batch can hold.

        Without labels there is no loss. A prepared batch that is on the device may replace ``input_ids``. If
        the head reads the first tokens only, the last layer of a prepared batch is computed only there,
        unless somebody looks inside; there is no ``last_hidden_state``.
        """
        inputs = self._on_device(input_ids, batch)
        context = context or self.new_context()
        context = context.with_padding() if self.reads_padding else context
        layers, encoder_cache = self.config.feature_layers, None
        few = self.reads_first and isinstance(input_ids, TaskInputs)
        outputs: Output
        if inputs.features is not None:
            outputs = self.output(features=inputs.features)
        else:
            encoded, encoder_cache = self.bert.forward(
                inputs,
                context=(context.without_dropout() if layers else context)
                .inside("bert")
                .only_at(first_places(inputs.attention_mask) if few else EVERYWHERE),
                return_hidden_states=return_hidden_states or bool(layers),
                return_attentions=return_attentions,
            )
            outputs = self.output(**vars(encoded))
            if layers:
                assert outputs.hidden_states is not None  # they were asked for
                read = side_by_side(outputs.hidden_states, layers).astype(self.dtype, copy=False)
                outputs.features = self._features(read, inputs.attention_mask)
        head_cache = self._head(outputs, inputs, context)
        if few:
            outputs.last_hidden_state = None
        return outputs, Cache(self, encoder_cache, head_cache, OutputKinds(outputs))

    # -- What a task is ------------------------------------------------------------------------

    @property
    def reads_first(self) -> bool:
        """Whether the head reads only the first token of each text."""
        return False

    def _add_head(self, config: BertConfig) -> None:
        """Make the head."""
        raise NotImplementedError

    def _targets(self, labels: Any, shape: tuple[int, int], denominator: float | None) -> Any:
        """The targets that the labels of a batch of this shape (B, S) describe, on the host."""
        raise NotImplementedError

    def _head(self, outputs: Output, inputs: TaskInputs, context: Context) -> Cache:
        """Fill in logits and, if there are targets, the loss."""
        raise NotImplementedError

    def _head_backward(self, cache: Cache, derivatives: Derivatives) -> tuple[str, Array]:
        """The derivatives of ``head_outputs``, or None → the name of what the head read, its derivative."""
        raise NotImplementedError

    def _features(self, states: Array, attention_mask: Array) -> Array:
        """What the head reads, from the chosen hidden states side by side, (B, S, head size)."""
        return states

    def _given_features(self, features: Any, shape: tuple[int, int]) -> Array:
        """The same, computed earlier."""
        return computed_earlier("features", features, (*shape, self.config.head_size), self.dtype)

    def _read(self, outputs: TaskOutput) -> Array:
        """The features, or the last hidden state (B, S, H), as products read them."""
        if self.config.feature_layers:
            return outputs.features.astype(self.buffers.operand.dtype, copy=False)
        return outputs.last_hidden_state

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The ``denominator`` for this batch by itself; those of micro-batches are added up."""
        return {"denominator": count_labels(batch["labels"])}

    def _backward(self, cache: Cache, derivatives: Derivatives) -> Array | None:
        """Turn the derivatives of loss and logits into those of what the head read."""
        head_derivatives = {name: derivatives.pop(name, None) for name in self.head_outputs}
        head_cache, encoder_cache = cache.pop(self), cache.pop(self)
        if any(derivative is not None for derivative in head_derivatives.values()):
            name, dread = self._head_backward(head_cache, head_derivatives)
            derivatives[name] = total(derivatives.get(name), dread)
        if self.config.feature_layers:
            return None
        return self.bert.backward(encoder_cache, **{f"d{name}": d for name, d in derivatives.items()})


class BertForSequenceClassification(TaskModel[ClassifierOutput]):
    """A label or a number for a text, or for a pair of texts: scores W · pooled + b.

    labels (B,): classes, for a softmax over K labels; or with ``config.problem_type`` "regression" (the
    default for K = 1) the numbers themselves, (B,) or (B, K), for the squared error. With
    ``config.feature_layers`` the mean of a text's hidden states replaces the pooled vector, which a frozen
    encoder would not have learned to make.
    """

    output = ClassifierOutput
    add_pooling_layer = True
    reads = "pooler_output"  # the encoder's output that the head reads

    def _add_head(self, config: BertConfig) -> None:
        self.classifier: Classifier | ClassificationHead = Classifier(config)

    @property
    def reads_first(self) -> bool:
        """Whether the head reads only the first token of each text."""
        return self.config.classifier_pooling == "cls"

    def prepare(self, **batch: Any) -> TaskInputs:
        """Check a batch, and find its targets; with ``feature_layers`` no text may be empty."""
        inputs = super().prepare(**batch)
        if self.config.feature_layers:
            check_no_empty_row(inputs.attention_mask)
        return inputs

    def _targets(
        self, labels: Any, shape: tuple[int, int], denominator: float | None
    ) -> Targets | NumberTargets:
        batch_size, num_labels = shape[0], self.config.num_labels
        if self.config.problem_type == "multi_label_classification":
            raise UserError("multi_label_classification has no loss here; leave the labels out")
        if self.config.is_regression:
            return number_targets(labels, (batch_size, num_labels), denominator, self.dtype)
        targets = class_targets("labels", labels, (batch_size,), num_labels, self.dtype)
        return targets.divided_by(denominator)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The number of labels that count; for a regression, all of them."""
        if self.config.is_regression:
            return {"denominator": on_host("labels", batch["labels"]).size}
        return super().count_targets(batch)

    def _head(self, outputs: ClassifierOutput, inputs: TaskInputs, context: Context) -> Cache:
        read = self._read(outputs) if self.config.feature_layers else getattr(outputs, self.reads)
        mask = () if isinstance(self.classifier, Classifier) else (inputs.attention_mask,)
        logits, classifier_cache = self.classifier.forward(read, context, *mask)
        outputs.logits = logits.astype(self.dtype, copy=False)  # (B, K)
        targets, loss_cache = inputs.targets, None
        if isinstance(targets, NumberTargets):
            outputs.loss, loss_cache = ops.squared_error(outputs.logits, targets.numbers, targets.denominator)
        elif isinstance(targets, Targets):
            outputs.loss, loss_cache = ops.cross_entropy(
                outputs.logits, targets.labels, targets.weights, targets.denominator
            )
        return Cache(self, classifier_cache, loss_cache)

    def _features(self, states: Array, attention_mask: Array) -> Array:
        """The mean over each text, (B, head size)."""
        return ops.POOLING["mean"][0](states, attention_mask.astype(self.dtype))[0]

    def _given_features(self, features: Any, shape: tuple[int, int]) -> Array:
        return computed_earlier("features", features, (shape[0], self.config.head_size), self.dtype)

    def _head_backward(self, cache: Cache, derivatives: Derivatives) -> tuple[str, Array]:
        """The derivatives of loss and logits → that of what the head reads: dpooled (B, H)."""
        dloss, dlogits = derivatives["loss"], derivatives["logits"]
        loss_cache = cache.pop(self)
        if dloss is not None:
            loss_backward = (
                ops.squared_error_backward if self.config.is_regression else ops.cross_entropy_backward
            )
            dlogits = total(dlogits, loss_backward(dloss, loss_cache))
        return self.reads, self.classifier.backward(dlogits, cache.pop(self))


class BertForTokenClassification(TaskModel[ClassifierOutput]):
    """A tag for each token: scores W · hidden + b, and a softmax for each token, or one CRF for all.

    labels (B, S), −100 at tokens without a tag: special tokens and, usually, all but the first subword of a
    word. With ``crf`` the labelled tokens of a sequence count as adjacent, whatever comes between them, and
    the loss is divided by the number of sequences instead of tokens.

    ``crf`` is stored in the configuration; None keeps what it says. transformers has no CRF: it opens such a
    model, computes the same logits, and reports the CRF's three tensors as unused.
    """

    output = ClassifierOutput

    def __init__(self, config: BertConfig, *, crf: bool | None = None, **options: Any):
        super().__init__(config if crf is None else config.replace(crf=crf), **options)

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = Classifier(config)
        self.crf = LinearChainCRF(config.num_labels) if config.crf else None

    def _targets(self, labels: Any, shape: tuple[int, int], denominator: float | None) -> Targets:
        num_tags = self.config.num_labels
        if self.crf is None:
            targets = class_targets("labels", labels, shape, num_tags, self.dtype)
        else:
            targets = tag_targets(labels, shape, num_tags, self.dtype)
        return targets.divided_by(denominator)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The number of tokens with a label; with the CRF, of sequences with such tokens."""
        counted = on_host("labels", batch["labels"]) != IGNORED
        return {"denominator": int((counted if self.crf is None else counted.any(axis=1)).sum())}

    def _head(self, outputs: ClassifierOutput, inputs: TaskInputs, context: Context) -> Cache:
        logits, classifier_cache = self.classifier.forward(self._read(outputs), context)
        outputs.logits = logits.astype(self.dtype, copy=False)  # (B, S, K)
        gather_cache = loss_cache = None
        rows = outputs.logits.reshape(-1, outputs.logits.shape[-1])  # (B·S, K)
        targets = inputs.targets
        if isinstance(targets, Targets):
            labels = targets.labels, targets.weights, targets.denominator
            if self.crf is None:
                outputs.loss, loss_cache = ops.cross_entropy(rows, *labels)
            else:
                words, gather_cache = ops.embedding(rows, targets.positions)  # (B, W, K)
                outputs.loss, loss_cache = self.crf.forward(words, *labels)
        return Cache(self, classifier_cache, outputs.logits.shape, gather_cache, loss_cache)

    def _head_backward(self, cache: Cache, derivatives: Derivatives) -> tuple[str, Array]:
        """The derivatives of loss and logits → dhidden (B, S, H)."""
        dloss, dlogits = derivatives["loss"], derivatives["logits"]
        loss_cache, gather_cache, shape = (cache.pop(self) for _ in range(3))
        if dloss is not None:
            if self.crf is None:
                drows = ops.cross_entropy_backward(dloss, loss_cache)  # (B·S, K)
            else:
                dwords = self.crf.backward(dloss, loss_cache)  # (B, W, K)
                drows = ops.embedding_backward(dwords, gather_cache)
            dlogits = total(dlogits, drows.reshape(shape))
        return "last_hidden_state", self.classifier.backward(dlogits, cache.pop(self))

    def best_tags(self, logits: Array, chosen: Any) -> Array:
        """The most probable tags: logits (B, S, K) → (B, S) on the host, −100 where none is asked for.

        chosen (B, S), on the host, says which tokens get a tag: those that have a label in training. Each
        gets the tag with its largest logit. With the CRF, each sequence gets its most probable tag sequence.
        """
        *shape, num_tags = logits.shape
        positions, inside = words_first(tokens_chosen(chosen, tuple(shape)))
        words = logits.reshape(-1, num_tags)[self.device.asarray(positions)]  # (B, W, K)
        if self.crf is None:
            tags = words.argmax(axis=-1)  # (B, W)
        else:
            tags = self.crf.best_tags(words, self.device.asarray(inside, dtype=self.dtype))
        return words_back(to_numpy(tags), positions, inside, tuple(shape))


class BertForQuestionAnswering(TaskModel[QuestionAnsweringOutput]):
    """Where in a passage the answer to a question starts and ends: two scores for each token.

    start_positions, end_positions (B,): the first and last token of the answer, or [CLS] (0, but in XLNet the
    last token), if there is none. Positions beyond the sequence are ignored. The loss is the mean of two
    cross-entropies over all S tokens, padding included.
    """

    output = QuestionAnsweringOutput
    reads_padding = True
    head_outputs = ("loss", "start_logits", "end_logits")

    def __init__(self, config: BertConfig, **options: Any):
        # In transformers this head has as many scores as there are labels, so a folder must say 2.
        super().__init__(config if config.num_labels == 2 else config.replace(num_labels=2), **options)

    def _add_head(self, config: BertConfig) -> None:
        self.qa_outputs = Linear(config.head_size, 2)

    def prepare(self, *, start_positions: Any = None, end_positions: Any = None, **batch: Any) -> TaskInputs:
        """Check a batch, and find its targets; there may be two denominators, for the starts and the ends.

        Raises UserError for a batch that does not fit the model, and if only one of start_positions and
        end_positions is given.
        """
        if "labels" in batch or (start_positions is None) != (end_positions is None):
            raise UserError("give both start_positions and end_positions as labels, or neither")
        labels = None if start_positions is None else (start_positions, end_positions)
        return super().prepare(labels=labels, **batch)

    def _targets(self, labels: Any, shape: tuple[int, int], denominator: Any) -> SpanTargets:
        starts, ends = labels
        return span_targets(starts, ends, shape, denominator, self.dtype)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers of starts and of ends that count, which may differ."""
        length = on_host("input_ids", batch["input_ids"]).shape[1]
        starts, ends = (on_host(name, batch[name]) for name in ("start_positions", "end_positions"))
        return {"denominator": count_spans(starts, ends, length)}

    def _head(self, outputs: QuestionAnsweringOutput, inputs: TaskInputs, context: Context) -> Cache:
        logits, linear_cache = self.qa_outputs.forward(self._read(outputs))
        logits = logits.astype(self.dtype, copy=False)  # (B, S, 2)
        outputs.start_logits, outputs.end_logits = logits[..., 0], logits[..., 1]
        targets, loss_cache = inputs.targets, None
        if isinstance(targets, SpanTargets):
            outputs.loss, loss_cache = ops.span_loss(logits, targets.positions, targets.weights)
        return Cache(self, linear_cache, logits.shape, loss_cache)

    def _head_backward(self, cache: Cache, derivatives: Derivatives) -> tuple[str, Array]:
        """The derivatives of loss and logits → dhidden (B, S, H)."""
        dloss, dstart_logits, dend_logits = (derivatives[name] for name in self.head_outputs)
        loss_cache, shape = cache.pop(self), cache.pop(self)
        dlogits = self.device.xp.zeros(shape, dtype=self.dtype)  # (B, S, 2)
        if dloss is not None:
            dlogits += ops.span_loss_backward(dloss, loss_cache)
        if dstart_logits is not None:
            dlogits[..., 0] += dstart_logits
        if dend_logits is not None:
            dlogits[..., 1] += dend_logits
        return "last_hidden_state", self.qa_outputs.backward(dlogits, cache.pop(self))
