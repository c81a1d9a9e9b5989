"""The configuration of a BERT: the numbers that determine its shape."""

import math
import reprlib
from dataclasses import dataclass
from typing import Any

from minibert.errors import UserError
from minibert.folders.config import PretrainedConfig, check_choice, check_flag, check_number, check_size
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
    google-research/bert; also called "gelu_pytorch_tanh"), "relu" or "tanh". ``initializer`` is
    "truncated_normal" (google-research/bert) or "normal" (transformers). With ``position_initializer``
    "sinusoidal" the position embeddings start as the waves of Vaswani et al. (2017), but are still learned.
    ``loss_denominator_epsilon`` is added to the number of masked words that the masked-LM loss is divided by
    (1e-5 in google-research/bert, 0 in transformers). With ``is_decoder`` a token sees only itself and the
    tokens to its left. The fields for the fine-tuning heads are those of ``PretrainedConfig``.

    Raises UserError if a size is not positive or is absurdly large (``LARGEST``), if sizes do not fit
    together, or if a value is out of range.
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

    def __post_init__(self) -> None:
        for name in LARGEST:
            check_size(name, getattr(self, name), LARGEST[name])
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads "
                f"{self.num_attention_heads}; each head gets an equal share of the hidden size"
            )
        for name, stop in _RANGES.items():
            check_number(name, getattr(self, name), stop)
        check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        check_choice("initializer", self.initializer, ("truncated_normal", "normal"))
        check_choice("position_initializer", self.position_initializer, POSITION_INITIALIZERS)
        check_flag("is_decoder", self.is_decoder)
        padding = self.pad_token_id
        if padding is not None and (type(padding) is not int or not 0 <= padding < self.vocab_size):
            raise UserError(
                f"pad_token_id must be an id below {self.vocab_size} or null, got {reprlib.repr(padding)}"
            )

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> "BertConfig":
        """The configuration of a released size: "tiny" … "large", or "L4-H256" and the like.

        ``overrides`` set fields to other values. Raises UserError for an unknown name.
        """
        check_choice("preset", name, PRESETS)
        layers, hidden = PRESETS[name]
        hidden = overrides.get("hidden_size", hidden)
        check_size("hidden_size", hidden, LARGEST["hidden_size"])
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden}
        sizes["num_attention_heads"] = hidden // 64 or 1
        return cls.from_dict(sizes | overrides)


# Far beyond any BERT: a larger size is a mistake or an attack. Smaller sizes are compared with the tensors of
# a file before any memory is allocated, so a model never takes much more memory than its file.
LARGEST = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 100_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 10_000_000,
    "type_vocab_size": 1_000_000,
}

POSITION_INITIALIZERS = ("normal", "sinusoidal")

_RANGES = {  # from 0 up to, but not including
    "hidden_dropout_prob": 1,
    "attention_probs_dropout_prob": 1,
    "initializer_range": math.inf,
    "layer_norm_eps": math.inf,
    "loss_denominator_epsilon": math.inf,
}
