"""The models of fine-tuning: the encoder and one more layer (Devlin et al., 2019, section 4)."""

from collections.abc import Mapping
from typing import Any

from minibert import ops
from minibert.arrays import Array, Device, map_arrays, to_numpy
from minibert.bert.config import BertConfig
from minibert.bert.fine_tuning import freeze, side_by_side
from minibert.bert.heads import Classifier, LinearChainCRF
from minibert.bert.inputs import (
    IGNORED,
    NumberTargets,
    SpanTargets,
    Targets,
    TaskInputs,
    class_targets,
    count_labels,
    count_spans,
    encoder_inputs,
    given_features,
    number_targets,
    span_targets,
    tag_targets,
    tokens_chosen,
    words_back,
    words_first,
)
from minibert.bert.models import BertModel, BertOutput, PretrainedModel, plain_number
from minibert.errors import UserError
from minibert.nn import Linear


class TaskModel(PretrainedModel):
    """The encoder, and on top of it the head of one task. What the tasks have in common.

    A task makes its head in ``_add_head`` and its targets from labels in ``_targets``, fills in logits and
    loss in ``_head``, which returns its cache (None without targets), and goes back through both in
    ``_head_backward``.

    With ``config.feature_layers`` only the head learns, from hidden states without dropout. They are told as
    ``outputs.features``, and need not be computed again if they are given back as ``features``.

    A loss is a sum divided by ``denominator``, which defaults to the number of labels in the batch; for
    micro-batches pass that of all of them, and their losses and gradients add up to those of the one large
    batch. Labels of −100 do not count.
    """

    begins_with_new_head = True
    add_pooling_layer = False
    losses = ("loss",)

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
        layers = config.feature_layers
        self.bert = BertModel(config, device=None, add_pooling_layer=self.add_pooling_layer and not layers)
        self._add_head(config)
        if layers:
            freeze(self)
        self._become_root(device, dtype, precision, seed)

    def forward(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        labels: Any = None,
        denominator: float | None = None,
        features: Any = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """A batch on the host → outputs, cache. Without labels there is no loss, and no backward.

        input_ids, token_type_ids, attention_mask (B, S); what the labels are, the class says. Raises
        UserError for a batch that does not fit the model.
        """
        batch = self.check(input_ids, token_type_ids, attention_mask, labels, denominator, features)
        batch = map_arrays(self.device.asarray, batch)
        return self.compute(batch, return_hidden_states, return_attentions)

    def check(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        labels: Any = None,
        denominator: float | None = None,
        features: Any = None,
    ) -> TaskInputs:
        """The first half of ``forward``: everything that is done on the host."""
        encoder = encoder_inputs(self.config, input_ids, token_type_ids, attention_mask)
        shape = encoder.input_ids.shape
        targets = None if labels is None else self._targets(labels, shape, denominator)
        if features is not None:
            features = self._given_features(features, shape)
        return TaskInputs(encoder, targets, features)

    def compute(
        self, batch: TaskInputs, return_hidden_states: bool = False, return_attentions: bool = False
    ) -> tuple[BertOutput, list]:
        """The second half: a checked batch, now on the device, → outputs, cache."""
        layers = self.config.feature_layers
        if batch.features is not None:
            output, encoder_cache = BertOutput(features=batch.features), None
        else:
            output, encoder_cache = self.bert.encode(
                batch.encoder, self.dtype, return_hidden_states or bool(layers), return_attentions
            )
            if layers:
                output.features = self._features(output.hidden_states, batch.encoder.attention_mask)
        return output, [encoder_cache, self._head(output, batch.targets)]

    def _features(self, hidden_states: list[Array], attention_mask: Array) -> Array:
        """What the head reads: hidden states of the layers that it was made for, (B, S, head size)."""
        return side_by_side(hidden_states, self.config.feature_layers).astype(self.dtype, copy=False)

    def _given_features(self, features: Any, shape: tuple[int, int]) -> Array:
        """The same, computed before."""
        return given_features(features, (*shape, self.config.head_size), self.dtype)

    def _read(self, output: BertOutput) -> Array:
        """The features, or the last hidden state (B, S, H), as products read them."""
        if self.config.feature_layers:
            return output.features.astype(self.buffers.operand.dtype, copy=False)
        return output.last_hidden_state

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The ``denominator`` of a batch alone; those of micro-batches are added up."""
        return {"denominator": count_labels(batch["labels"])}

    def backward(self, cache: list, scale: Array | float = 1.0) -> None:
        """Add the gradient of ``scale · loss`` to that of every parameter. The cache is used up.

        ``scale`` is a number or a 0-d array on the device. Raises ValueError if the forward had no labels.
        """
        head_cache = cache.pop()
        if head_cache is None:
            raise ValueError("backward without a loss: give labels to forward")
        dhidden, dpooled = self._head_backward(plain_number(scale), head_cache)
        if not self.config.feature_layers:
            self.bert.backward(cache.pop(), dhidden, dpooled)
        self.buffers.settle_grad()

    def train(self) -> None:
        """From now on dropout is on, but not in an encoder that does not learn."""
        super().train()
        if self.config.feature_layers:
            self.bert.eval()


class BertForSequenceClassification(TaskModel):
    """A label or a number for a text, or for a pair of texts: scores W · pooled + b.

    labels (B,): classes, for a softmax over K labels; or with ``config.problem_type`` "regression" (the
    default for K = 1) the numbers themselves, (B,) or (B, K), for the squared error. With
    ``config.feature_layers`` the mean of a text's hidden states stands for the pooled vector, which a frozen
    encoder would not have learned to make.
    """

    add_pooling_layer = True

    def _add_head(self, config: BertConfig) -> None:
        self.classifier = Classifier(config)

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
        """The classes that count; of a regression all numbers."""
        return (
            {"denominator": batch["labels"].size}
            if self.config.is_regression
            else super().count_targets(batch)
        )

    def _head(self, output: BertOutput, targets: Targets | NumberTargets | None) -> list | None:
        pooled = self._read(output) if self.config.feature_layers else output.pooler_output
        logits, classifier_cache = self.classifier.forward(pooled)
        output.logits = logits.astype(self.dtype, copy=False)  # (B, K)
        if targets is None:
            return None
        if self.config.is_regression:
            loss = ops.squared_error(output.logits, targets.numbers, targets.denominator)
        else:
            loss = ops.cross_entropy(output.logits, targets.labels, targets.weights, targets.denominator)
        output.loss, loss_cache = loss
        return [classifier_cache, loss_cache]

    def _features(self, hidden_states: list[Array], attention_mask: Array) -> Array:
        """The mean over each text, (B, head size)."""
        states = super()._features(hidden_states, attention_mask)
        return ops.POOLING["mean"][0](states, attention_mask.astype(self.dtype))[0]

    def _given_features(self, features: Any, shape: tuple[int, int]) -> Array:
        return given_features(features, (shape[0], self.config.head_size), self.dtype)

    def _head_backward(self, dloss: Array | float, cache: list) -> tuple[None, Array]:
        """dloss, a scalar → nothing for the hidden states, dpooled (B, H)."""
        loss_backward = (
            ops.squared_error_backward if self.config.is_regression else ops.cross_entropy_backward
        )
        dlogits = loss_backward(dloss, cache.pop())
        return None, self.classifier.backward(dlogits, cache.pop())


class BertForTokenClassification(TaskModel):
    """A tag for each token: scores W · hidden + b, and a softmax for each token, or one CRF for all.

    labels (B, S), −100 at tokens without a tag: special ones and, as is usual, all but the first piece
    of a word. With ``crf`` the labelled tokens of a sequence are neighbours, whatever stands between them,
    and the loss is divided by the number of sequences instead of tokens.

    ``crf`` goes into the configuration; None leaves what it says. transformers has no CRF: it opens such a
    model, gives the same logits, and reports the CRF's three tensors as not used.
    """

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
        """The tokens with a label; with the CRF the sequences with any."""
        counted = batch["labels"] != IGNORED
        return {"denominator": int((counted if self.crf is None else counted.any(axis=1)).sum())}

    def _head(self, output: BertOutput, targets: Targets | None) -> list | None:
        logits, classifier_cache = self.classifier.forward(self._read(output))
        output.logits = logits.astype(self.dtype, copy=False)  # (B, S, K)
        if targets is None:
            return None
        rows = output.logits.reshape(-1, output.logits.shape[-1])  # (B·S, K)
        if self.crf is None:
            output.loss, loss_cache = ops.cross_entropy(
                rows, targets.labels, targets.weights, targets.denominator
            )
            return [output.logits.shape, classifier_cache, loss_cache]
        words, gather_cache = ops.embedding(rows, targets.positions)  # (B, W, K)
        output.loss, crf_cache = self.crf.forward(words, targets.labels, targets.weights, targets.denominator)
        return [output.logits.shape, classifier_cache, gather_cache, crf_cache]

    def _head_backward(self, dloss: Array | float, cache: list) -> tuple[Array, None]:
        """dloss, a scalar → dhidden (B, S, H), nothing for the pooled vector."""
        if self.crf is None:
            drows = ops.cross_entropy_backward(dloss, cache.pop())  # (B·S, K)
        else:
            dwords = self.crf.backward(dloss, cache.pop())  # (B, W, K)
            drows = ops.embedding_backward(dwords, cache.pop())
        classifier_cache = cache.pop()
        return self.classifier.backward(drows.reshape(cache.pop()), classifier_cache), None

    def best_tags(self, logits: Array, chosen: Any) -> Array:
        """The most probable tags: logits (B, S, K) → (B, S) on the host, −100 where none is asked for.

        chosen (B, S), on the host, says which tokens get a tag: those that get a label in training. Each
        gets that of its largest logit; with the CRF all of a sequence together get the most probable tags.
        """
        *shape, num_tags = logits.shape
        positions, inside = words_first(tokens_chosen(chosen, tuple(shape)))
        words = logits.reshape(-1, num_tags)[self.device.asarray(positions)]  # (B, W, K)
        if self.crf is None:
            tags = words.argmax(axis=-1)  # (B, W)
        else:
            tags = self.crf.best_tags(words, self.device.asarray(inside, dtype=self.dtype))
        return words_back(to_numpy(tags), positions, inside, tuple(shape))


class BertForQuestionAnswering(TaskModel):
    """Where in a passage the answer to a question begins and ends: two scores for each token.

    start_positions, end_positions (B,): the first and last token of the answer, 0 (that is [CLS]) for none;
    beyond the sequence they are ignored. The loss is the mean of two cross-entropies over all S tokens.
    """

    def _add_head(self, config: BertConfig) -> None:
        self.qa_outputs = Linear(config.head_size, 2)

    def forward(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        start_positions: Any = None,
        end_positions: Any = None,
        denominator: float | None = None,
        features: Any = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
    ) -> tuple[BertOutput, list]:
        """A batch on the host → outputs, cache. Without positions there is no loss, and no backward.

        input_ids, token_type_ids, attention_mask (B, S), start_positions, end_positions (B,) → start_logits,
        end_logits (B, S). Raises UserError for a batch that does not fit the model, and for one kind of
        positions without the other.
        """
        batch = self.check(
            input_ids, token_type_ids, attention_mask, start_positions, end_positions, denominator, features
        )
        batch = map_arrays(self.device.asarray, batch)
        return self.compute(batch, return_hidden_states, return_attentions)

    def check(
        self,
        input_ids: Any,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        start_positions: Any = None,
        end_positions: Any = None,
        denominator: Any = None,
        features: Any = None,
    ) -> TaskInputs:
        """The first half of ``forward``; the denominator may be two, for the starts and for the ends.

        Raises UserError as ``forward``.
        """
        if (start_positions is None) != (end_positions is None):
            raise UserError("give both start_positions and end_positions, or none of them")
        labels = None if start_positions is None else (start_positions, end_positions)
        return super().check(input_ids, token_type_ids, attention_mask, labels, denominator, features)

    def _targets(self, labels: tuple, shape: tuple[int, int], denominator: Any) -> SpanTargets:
        return span_targets(*labels, shape, denominator, self.dtype)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The starts and the ends that count, which are not always equally many."""
        length = batch["input_ids"].shape[1]
        return {"denominator": count_spans(batch["start_positions"], batch["end_positions"], length)}

    def _head(self, output: BertOutput, targets: SpanTargets | None) -> list | None:
        logits, linear_cache = self.qa_outputs.forward(self._read(output))
        logits = logits.astype(self.dtype, copy=False)  # (B, S, 2)
        output.start_logits, output.end_logits = logits[..., 0], logits[..., 1]
        if targets is None:
            return None
        output.loss, loss_cache = ops.span_loss(logits, targets.positions, targets.weights)
        return [linear_cache, loss_cache]

    def _head_backward(self, dloss: Array | float, cache: list) -> tuple[Array, None]:
        """dloss, a scalar → dhidden (B, S, H), nothing for the pooled vector."""
        dlogits = ops.span_loss_backward(dloss, cache.pop())
        return self.qa_outputs.backward(dlogits, cache.pop()), None
