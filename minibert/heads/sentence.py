"""Sentence embeddings: a vector per sentence, close to those of sentences that mean the same.

Source: Reimers and Gurevych, 2019.
"""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minibert import ops
from minibert.arrays import Array, map_arrays
from minibert.bert.config import BertConfig
from minibert.bert.inputs import EncoderInputs
from minibert.bert.models import BertModel
from minibert.bert.outputs import BertOutput
from minibert.devices import Device
from minibert.errors import UserError
from minibert.files import read_json, write_json
from minibert.heads.inputs import PairInputs, pair_inputs, text_inputs
from minibert.heads.outputs import SentenceOutput
from minibert.nn import Context, Module
from minibert.nn.module import Placement, nothing_more
from minibert.nn.outputs import Derivatives, OutputKinds, plain_number, total
from minibert.ops import Cache

# The layout of the sentence-transformers library: a sequence of modules, each with a folder. We write the
# older form, which all versions read.
MODULES_FILE = "modules.json"
POOLING_FOLDER = "1_Pooling"
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
LIBRARY = "sentence_transformers.models."


class SentenceEncoder(BertModel):
    """The encoder without its pooler, followed by the mean (or maximum, or [CLS]) of its hidden states.

    ``pooling`` is "mean", "max", "cls" (the first token) or "lasttoken"; with ``normalise`` every vector has
    length 1. Two texts are compared by the cosine of their vectors. The encoder learns from pairs of texts
    (`SentencePairs`).

    Raises UserError for an unknown pooling.
    """

    architecture = "BertModel"
    begins_with_new_head = True

    def __init__(
        self,
        config: BertConfig,
        *,
        pooling: str = "mean",
        normalise: bool = False,
        device: str | Device | None = "cpu",
        dtype: str = "float32",
        precision: str | None = None,
        seed: int = 0,
    ):
        if pooling not in ops.POOLING:
            raise UserError(f"unknown pooling {pooling!r}; expected one of {', '.join(ops.POOLING)}")
        self.pooling = pooling
        self.normalise = normalise
        super().__init__(
            config, device=device, dtype=dtype, precision=precision, seed=seed, add_pooling_layer=False
        )

    # -- Vectors --------------------------------------------------------------------------------

    def prepare(self, **batch: Any) -> EncoderInputs:
        """Check a batch. Raises UserError if it does not fit the model, or for a text without any token."""
        return text_inputs(self.config, **batch, dtype=self.dtype)

    def forward(
        self,
        input_ids: Any = None,
        *,
        context: Context | None = None,
        return_hidden_states: bool = False,
        return_attentions: bool = False,
        **batch: Any,
    ) -> tuple[SentenceOutput, Cache]:
        """A batch as ``BertModel.forward`` takes it → outputs (embeddings (B, H)), cache."""
        inputs = self._on_device(input_ids, batch)
        encoded, encoder_cache = super().forward(
            inputs,
            context=context,
            return_hidden_states=return_hidden_states,
            return_attentions=return_attentions,
        )
        outputs = SentenceOutput(**vars(encoded))
        hidden = outputs.last_hidden_state
        pool, _ = ops.POOLING[self.pooling]
        pooled, pool_cache = pool(
            hidden.astype(self.dtype, copy=False), inputs.attention_mask.astype(self.dtype)
        )
        outputs.embeddings, norm_cache = ops.unit_length(pooled) if self.normalise else (pooled, None)
        caches = encoder_cache, hidden.dtype, pool_cache, norm_cache
        return outputs, Cache(self, *caches, OutputKinds(outputs))

    def _backward(self, cache: Cache, derivatives: Derivatives) -> Array | None:
        norm_cache, pool_cache, dtype = (cache.pop(self) for _ in range(3))
        dpooled = derivatives.pop("embeddings", None)
        if dpooled is not None:
            if norm_cache is not None:
                dpooled = ops.unit_length_backward(dpooled, norm_cache)
            _, pool_backward = ops.POOLING[self.pooling]
            dhidden = pool_backward(dpooled, pool_cache).astype(dtype, copy=False)
            derivatives["last_hidden_state"] = total(derivatives.get("last_hidden_state"), dhidden)
        encoder_cache = cache.pop(self)
        encoder_cache.pop(self)  # its OutputKinds: the derivatives have been checked against ours
        return super()._backward(encoder_cache, derivatives)

    # -- Folders --------------------------------------------------------------------------------

    @classmethod
    def _skeleton(cls, folder: Path, settings: dict[str, Any]) -> "SentenceEncoder":
        """Pooling and normalisation are settings like the others; a folder has them in files of their own."""
        own = _read_modules(folder) | {
            name: settings.pop(name) for name in ("pooling", "normalise") if name in settings
        }
        return cls(cls.config_class.from_pretrained(folder, **settings), device=None, **own)

    def save_pretrained(
        self, folder: str | Path, dtype: str | None = None, max_shard_size: int | str | None = None
    ) -> None:
        """Write a folder that sentence-transformers reads too; to transformers it is a BertModel."""
        folder = Path(folder)
        super().save_pretrained(folder, dtype, max_shard_size)
        pooling = {"word_embedding_dimension": self.config.hidden_size}
        pooling |= {key: name == self.pooling for name, key in POOLING_KEYS.items()}
        write_json(folder / POOLING_FOLDER / "config.json", pooling)
        modules = [("", "Transformer"), (POOLING_FOLDER, "Pooling")]
        modules += [("2_Normalize", "Normalize")] if self.normalise else []
        write_json(
            folder / MODULES_FILE,
            [
                {"idx": index, "name": str(index), "path": path, "type": LIBRARY + kind}
                for index, (path, kind) in enumerate(modules)
            ],
        )


class SentencePairs(Module):
    """Trains a `SentenceEncoder` on pairs of texts; for a trainer it is a model like any other.

    With labels (N,), the similarity of each pair from −1 to 1, the loss is the squared error of the cosine
    (``ops.cosine_loss``). Without labels, each text has to find its partner among all N
    (``ops.in_batch_softmax_loss``, with ``scale`` and ``symmetric``). That loss depends on the whole
    batch: with accumulated micro-batches, each text looks for its partner in its own micro-batch only.
    """

    losses = ("loss",)

    def __init__(self, encoder: SentenceEncoder, *, scale: float = 20.0, symmetric: bool = True):
        super().__init__()
        self.encoder = encoder
        self.scale, self.symmetric = scale, symmetric
        self.training = encoder.training

    @property
    def placement(self) -> Placement:
        """The encoder's, also if that is allocated anew."""
        return self.encoder.placement

    def prepare(
        self,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
        labels: Any = None,
        denominator: float | None = None,
    ) -> PairInputs:
        """Check N pairs of texts, each side a batch of the encoder's arguments. Everything is on the host.

        The loss is a sum divided by ``denominator``, by default N. Raises UserError for batches that do not
        fit the encoder or each other.
        """
        return pair_inputs(self.encoder.config, first, second, labels, denominator, self.dtype)

    def forward(self, *batch: Any, context: Context | None = None, **named: Any) -> tuple[BertOutput, Cache]:
        """N pairs of texts, first and second, on the host → outputs, cache.

        ``prepare`` says what a batch can hold. A prepared batch that is on the device may be given instead.
        """
        if batch and isinstance(batch[0], PairInputs):
            [inputs] = batch
            nothing_more(named)
        else:
            inputs = map_arrays(self.device.asarray, self.prepare(*batch, **named))
        context = context or self.new_context()
        x, x_cache = self.encoder.forward(inputs.first, context=context.inside("first"))
        y, y_cache = self.encoder.forward(inputs.second, context=context.inside("second"))
        if inputs.labels is None:
            loss_backward = ops.in_batch_softmax_loss_backward
            loss, loss_cache = ops.in_batch_softmax_loss(
                x.embeddings, y.embeddings, self.scale, self.symmetric, inputs.denominator
            )
        else:
            loss_backward = ops.cosine_loss_backward
            loss, loss_cache = ops.cosine_loss(x.embeddings, y.embeddings, inputs.labels, inputs.denominator)
        return BertOutput(loss=loss), Cache(self, x_cache, y_cache, loss_cache, loss_backward)

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The ``denominator`` for this batch by itself: how many pairs it has."""
        return {"denominator": len(batch["first"]["input_ids"])}

    def backward(self, cache: Cache, dloss: Array | float = 1.0) -> None:
        """Add the gradient of ``dloss · loss`` to that of every parameter. The cache is used up."""
        loss_backward = cache.pop(self)
        dx, dy = loss_backward(plain_number(dloss), cache.pop(self))  # (N, H) each
        self.encoder.backward(cache.pop(self), dembeddings=dy)
        self.encoder.backward(cache.pop(self), dembeddings=dx)


def _read_modules(folder: Path) -> dict[str, Any]:
    """How a folder pools its vectors; empty if it does not say. Raises UserError for an unknown pooling."""
    path = folder / MODULES_FILE
    if not path.is_file():
        return {}
    modules = read_json(path, "list of modules")
    try:
        kinds = [module["type"].rpartition(".")[2] for module in modules]
    except (TypeError, KeyError, AttributeError):
        raise UserError(f"{path}: damaged, expected a list of modules, each with a type") from None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{path}: the modules are {', '.join(kinds)}; only Transformer, Pooling and, optionally, "
            "Normalize are supported, in this order"
        )
    return {"pooling": _read_pooling(folder / POOLING_FOLDER / "config.json"), "normalise": len(kinds) == 3}


def _read_pooling(path: Path) -> str:
    """The pooling in a file: given by its name or, in older files, by one of several switches.

    Raises UserError if it is not exactly one of those that we know.
    """
    values = read_json(path, "pooling configuration")
    values = values if isinstance(values, dict) else {}
    switches = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    modes = [values["pooling_mode"]] if "pooling_mode" in values else switches
    for name, key in POOLING_KEYS.items():
        if modes in ([name], [key]):
            return name
    raise UserError(f"{path}: pools by {reprlib.repr(modes)}; expected one of {', '.join(POOLING_KEYS)}")
