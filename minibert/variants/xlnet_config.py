"""XLNet's configuration, and the names that its settings and parameters have in files."""

from dataclasses import dataclass
from typing import Any, ClassVar

from minibert.bert.config import LARGEST, BertConfig
from minibert.errors import UserError
from minibert.folders.names import Names

# What Hugging Face calls the same parameters. In attention, the longer names come first.
NAMES: Names = (
    (".rel_attn.layer_norm.", ".attention.output.LayerNorm."),
    (".rel_attn.seg_embed", ".attention.self.seg_embed"),
    (".rel_attn.r_", ".attention.self.r_"),
    (".rel_attn.r", ".attention.self.distance.weight"),
    (".rel_attn.q", ".attention.self.query.weight"),
    (".rel_attn.k", ".attention.self.key.weight"),
    (".rel_attn.v", ".attention.self.value.weight"),
    (".rel_attn.o", ".attention.output.dense.weight"),
    (".ff.layer_1.", ".intermediate.dense."),
    (".ff.layer_2.", ".output.dense."),
    (".ff.layer_norm.", ".output.LayerNorm."),
    ("transformer.layer.", "bert.encoder.layer."),
    ("transformer.word_embedding.", "bert.embeddings.word_embeddings."),
    ("transformer.mask_emb", "bert.embeddings.mask_emb"),
    ("layer.", "encoder.layer."),  # in the folder of an encoder by itself
    ("word_embedding.", "embeddings.word_embeddings."),
    ("mask_emb", "embeddings.mask_emb"),
    ("lm_loss.weight", "cls.predictions.decoder.weight"),
    ("lm_loss.bias", "cls.predictions.bias"),
    ("sequence_summary.summary.", "classifier.dense."),
    ("logits_proj.", "classifier.out_proj."),
)

# Settings of which one value is supported: that of all released models.
ONLY = {
    "attn_type": "bi",  # not left to right
    "bi_data": False,  # no batch of which one half is read backwards
    "clamp_len": -1,  # no distance from which on all are alike
    "same_length": False,
    "untie_r": True,  # each layer has biases of its own
    "summary_type": "last",
    "summary_use_proj": True,
    "summary_activation": "tanh",
    "is_decoder": False,
    "classifier_pooling": "lasttoken",  # <cls> comes last
}


@dataclass
class XLNetConfig(BertConfig):
    """The configuration of an XLNet; the defaults are xlnet-base-cased. See ``BertConfig``.

    XLNet has no table of positions. ``max_position_embeddings`` is only the longest sequence that a batch may
    have, by default the 512 that the released models were trained on; ``from_pretrained`` takes any other
    number. (In ``config.json`` it is "longest_sequence", as transformers refuses the usual name.) Token types
    may be any numbers below ``type_vocab_size``. There is one dropout for everything:
    ``attention_probs_dropout_prob`` is always ``hidden_dropout_prob``.

    Raises UserError as ``BertConfig`` does, for an odd hidden size, and for other values than those of
    ``ONLY``.
    """

    model_type: ClassVar[str] = "xlnet"
    names_in_file: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
        "classifier_dropout": "summary_last_dropout",
        "max_position_embeddings": "longest_sequence",
    }
    if_absent: ClassVar[dict[str, Any]] = {"num_attention_heads": 16}  # as in transformers

    vocab_size: int = 32000
    type_vocab_size: int = LARGEST["type_vocab_size"]
    pad_token_id: int | None = 5
    initializer: str = "normal"
    classifier_dropout: float | None = 0.1
    classifier_pooling: str = "lasttoken"
    attn_type: str = "bi"
    bi_data: bool = False
    clamp_len: int = -1
    same_length: bool = False
    untie_r: bool = True
    summary_type: str = "last"
    summary_use_proj: bool = True
    summary_activation: str = "tanh"

    def __post_init__(self) -> None:
        self.attention_probs_dropout_prob = self.hidden_dropout_prob
        if self.classifier_dropout is None:  # which transformers does not read
            self.classifier_dropout = self.hidden_dropout_prob
        super().__post_init__()
        if self.hidden_size % 2:
            raise UserError(f"hidden_size is {self.hidden_size}; an XLNet needs an even one (sines, cosines)")
        for name, only in ONLY.items():
            value = getattr(self, name)
            if value != only:
                raise UserError(f"{name} is {value!r}; only XLNets with {only!r} are supported")

    @property
    def needs_padding(self) -> bool:
        """True: attention goes by the distances in a row."""
        return True
