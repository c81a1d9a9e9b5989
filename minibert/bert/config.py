"""What a BERT is made of: the numbers that fix its shape."""

import math
import reprlib
from dataclasses import dataclass
from typing import Any

from minibert.errors import UserError
from minibert.folders.config import PretrainedConfig, check_choice, check_number, check_size
from minibert.ops import ACTIVATIONS

# (layers L, hidden size H) of the released models; heads are H/64 and the feed-forward size is 4H.
_NAMED = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512)}
_NAMED |= {"base": (12, 768), "large": (24, 1024)}
_RELEASED = {
    f"L{layers}-H{hidden}": (layers, hidden) for layers in range(2, 13, 2) for hidden in (128, 256, 512, 768)
}
PRESETS: dict[str, tuple[int, int]] = _NAMED | _RELEASED


@dataclass
class BertConfig(PretrainedConfig):
    """The configuration of a BERT, under Hugging Face's names; the defaults are BERT-base, uncased.

    ``hidden_act`` is "gelu" (the erf form, as in transformers), "gelu_new" (the tanh form, as in
    google-research/bert), "relu" or "tanh". ``initializer`` is "truncated_normal" (google-research/bert)
    or "normal" (transformers); with ``position_initializer`` "sinusoidal" the positions, which are learned
    all the same, start as the waves of Vaswani et al. (2017). ``loss_denominator_epsilon`` is added to the
    number of masked words that the masked-LM loss is divided by (1e-5 in google-research/bert, 0 in
    transformers). With ``is_decoder`` a token sees only itself and those to its left.

    The rest belongs to the heads of fine-tuning. ``id2label`` names the ``num_labels`` labels, and its
    inverse ``label2id`` follows from it. ``problem_type`` is "single_label_classification", "regression",
    or None for regression with one label and classification with more. ``classifier_dropout`` is the dropout
    before the head, None for ``hidden_dropout_prob``. Two that transformers does not know: with ``crf`` a
    token classifier scores whole taggings; with ``feature_layers`` the encoder stays as it is, and a head
    reads the hidden states of these layers side by side (0: the embeddings, 1 … L, or −1 for the last).

    Raises UserError if a size is not positive or absurd (``LARGEST``), the sizes do not fit each other, or
    a value is out of range.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    initializer: str = "truncated_normal"
    position_initializer: str = "normal"
    loss_denominator_epsilon: float = 0.0
    is_decoder: bool = False
    num_labels: int = 2
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = None
    crf: bool = False
    feature_layers: list[int] | None = None

    def __post_init__(self) -> None:
        self._name_labels()
        for name in LARGEST:
            check_size(name, getattr(self, name), LARGEST[name])
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}; each head gets an equal share of the hidden size"
            )
        for name, stop in _RANGES.items():
            if not (name in _OPTIONAL and getattr(self, name) is None):
                check_number(name, getattr(self, name), stop)
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        check_choice("initializer", self.initializer, ("truncated_normal", "normal"))
        check_choice("position_initializer", self.position_initializer, POSITION_INITIALIZERS)
        check_choice("problem_type", self.problem_type, PROBLEM_TYPES)
        if self.problem_type == "single_label_classification" and self.num_labels == 1:
            raise UserError("single_label_classification needs at least 2 labels; with 1 say regression")
        for name in ("is_decoder", "crf"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, got {reprlib.repr(getattr(self, name))}")
        if self.feature_layers is not None:
            self.check_layers(self.feature_layers)
        padding = self.pad_token_id
        if padding is not None and (type(padding) is not int or not 0 <= padding < self.vocab_size):
            raise UserError(
                f"pad_token_id must be an id below {self.vocab_size} or null, got {reprlib.repr(padding)}"
            )

    def check_layers(self, layers: Any) -> None:
        """Raise UserError if these are not numbers of hidden states, at least one."""
        count = self.num_hidden_layers
        if not isinstance(layers, list | tuple) or not layers:
            raise UserError(f"layers must be a list of numbers, at least one, got {reprlib.repr(layers)}")
        for layer in layers:
            if type(layer) is not int or not -count - 1 <= layer <= count:
                raise UserError(
                    f"no layer {reprlib.repr(layer)}; there are 0 (the embeddings) to {count}, and −1 to "
                    f"−{count + 1}"
                )

    @property
    def head_size(self) -> int:
        """How many numbers a head reads of each token."""
        return self.hidden_size * len(self.feature_layers or [-1])

    @property
    def is_regression(self) -> bool:
        """Whether the labels of sequences are numbers and not classes."""
        kind = self.problem_type
        return kind == "regression" or (kind is None and self.num_labels == 1)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "BertConfig":
        """The configuration of a released size: "tiny" … "large", or "L4-H256" and the like.

        Any field can be given another value by its name. Raises UserError for an unknown name.
        """
        check_choice("preset", name, PRESETS)
        layers, hidden = PRESETS[name]
        hidden = overrides.get("hidden_size", hidden)
        check_size("hidden_size", hidden, LARGEST["hidden_size"])
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden}
        sizes["num_attention_heads"] = hidden // 64 or 1
        return cls.from_dict(sizes | overrides)


# Far beyond any BERT: a larger size is a mistake or an attack. Sizes below are held against the tensors of a
# file before any memory is taken, so a model never takes much more than its own file.
LARGEST = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 100_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 10_000_000,
    "type_vocab_size": 1_000_000,
    "num_labels": 10_000,  # a new head is held against nothing, so this is the limit to its memory
}

POSITION_INITIALIZERS = ("normal", "sinusoidal")
PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")

_RANGES = {  # from 0 up to, but not including
    "hidden_dropout_prob": 1,
    "attention_probs_dropout_prob": 1,
    "classifier_dropout": 1,
    "initializer_range": math.inf,
    "layer_norm_eps": math.inf,
    "loss_denominator_epsilon": math.inf,
}
_OPTIONAL = {"classifier_dropout"}  # may be None
