"""One vector for a sentence, close to those of sentences that mean the same (Reimers and Gurevych, 2019)."""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minibert import ops
from minibert.arrays import Array, Device, dropout_key, map_arrays
from minibert.bert.config import BertConfig
from minibert.bert.inputs import EncoderInputs, PairInputs, pair_inputs, text_inputs
from minibert.bert.models import BertModel, BertOutput, plain_number
from minibert.errors import UserError
from minibert.files import read_json, write_json
from minibert.nn import Module

# The layout of the sentence-transformers library: modules one after the other, each with a folder. What is
# written is the older form, which all versions read.
MODULES_FILE = "modules.json"
POOLING_FOLDER = "1_Pooling"
POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
LIBRARY = "sentence_transformers.models."


class SentenceEncoder(BertModel):
    """The encoder without its pooler, and the mean (or maximum, or [CLS]) of its hidden states.

    ``pooling`` is "mean", "max" or "cls"; with ``normalise`` every vector has length 1. Two texts are
    compared by the cosine of their vectors, and learned from in pairs (`SentencePairs`).
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

    def forward(
        self, input_ids: Any, token_type_ids: Any = None, attention_mask: Any = None
    ) -> tuple[BertOutput, list]:
        """input_ids, token_type_ids, attention_mask (B, S), on the host → outputs (embeddings (B, H)), cache.

        Raises UserError for a batch that does not fit the model, or a text without any token.
        """
        inputs = text_inputs(
            self.config, input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask
        )
        return self.compute(map_arrays(self.device.asarray, inputs))

    def compute(self, inputs: EncoderInputs) -> tuple[BertOutput, list]:
        """The same for inputs that have been checked and are on the device."""
        output, encoder_cache = self.encode(inputs, self.dtype)
        hidden = output.last_hidden_state
        pool, _ = ops.POOLING[self.pooling]
        pooled, pool_cache = pool(
            hidden.astype(self.dtype, copy=False), inputs.attention_mask.astype(self.dtype)
        )
        output.embeddings, norm_cache = ops.unit_length(pooled) if self.normalise else (pooled, None)
        return output, [hidden.dtype, encoder_cache, pool_cache, norm_cache]

    def backward(self, cache: list, dembeddings: Array) -> None:
        """Add to all gradients, from that of the embeddings (B, H). The cache is used up."""
        norm_cache = cache.pop()
        dpooled = dembeddings if norm_cache is None else ops.unit_length_backward(dembeddings, norm_cache)
        _, pool_backward = ops.POOLING[self.pooling]
        dhidden = pool_backward(dpooled, cache.pop())
        encoder_cache = cache.pop()
        super().backward(encoder_cache, dhidden.astype(cache.pop(), copy=False))

    # -- Folders --------------------------------------------------------------------------------

    @classmethod
    def _skeleton(cls, folder: Path, settings: dict[str, Any]) -> "SentenceEncoder":
        """Pooling and normalisation are settings like the others; a folder has them in files of their own."""
        own = _read_modules(folder) | {
            name: settings.pop(name) for name in ("pooling", "normalise") if name in settings
        }
        return cls(BertConfig.from_pretrained(folder, **settings), device=None, **own)

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
    """Pairs of texts that a `SentenceEncoder` learns from: to a trainer a model like any other.

    With labels (N,), how alike the two texts of each pair are, from −1 to 1, the loss is the squared error
    of their cosine (``ops.cosine_loss``). Without, each text has to find its partner among all N
    (``ops.in_batch_softmax_loss``, with ``scale`` and ``symmetric``).
    Then the loss depends on who else is in the batch: accumulated micro-batches find partners within each.
    """

    losses = ("loss",)

    def __init__(self, encoder: SentenceEncoder, *, scale: float = 20.0, symmetric: bool = True):
        super().__init__()
        self.encoder = encoder
        self.scale, self.symmetric = scale, symmetric
        self.buffers, self.device = encoder.buffers, encoder.device
        self.dtype, self.precision = encoder.dtype, encoder.precision
        self.set_dropout_stream(seed=0, step=0)

    def forward(
        self,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
        labels: Any = None,
        denominator: float | None = None,
    ) -> tuple[BertOutput, list]:
        """N pairs of texts, each side a batch of the encoder's arguments, on the host → outputs, cache.

        The loss is a sum divided by ``denominator``, by default N. Raises UserError for batches that do not
        fit the encoder or each other.
        """
        return self.compute(map_arrays(self.device.asarray, self.check(first, second, labels, denominator)))

    def check(
        self,
        first: Mapping[str, Any],
        second: Mapping[str, Any],
        labels: Any = None,
        denominator: float | None = None,
    ) -> PairInputs:
        """The first half of ``forward``: everything that is done on the host."""
        return pair_inputs(self.encoder.config, first, second, labels, denominator, self.dtype)

    def compute(self, batch: PairInputs) -> tuple[BertOutput, list]:
        """The second half: a checked batch, now on the device, → outputs, cache."""
        sides = []
        for side, inputs in enumerate((batch.first, batch.second)):
            self._choose_text(side)
            sides.append(self.encoder.compute(inputs))
        (x, x_cache), (y, y_cache) = ((output.embeddings, cache) for output, cache in sides)
        if batch.labels is None:
            loss, loss_cache = ops.in_batch_softmax_loss(x, y, self.scale, self.symmetric, batch.denominator)
            loss_backward = ops.in_batch_softmax_loss_backward
        else:
            loss, loss_cache = ops.cosine_loss(x, y, batch.labels, batch.denominator)
            loss_backward = ops.cosine_loss_backward
        return BertOutput(loss=loss), [x_cache, y_cache, loss_cache, loss_backward]

    def count_targets(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The ``denominator`` of a batch alone: how many pairs it has."""
        return {"denominator": len(batch["first"]["input_ids"])}

    def backward(self, cache: list, scale: Array | float = 1.0) -> None:
        """Add the gradient of ``scale · loss`` to that of every parameter. The cache is used up."""
        loss_backward = cache.pop()
        dembeddings = loss_backward(plain_number(scale), cache.pop())  # of both sides, (N, H) each
        for side in (1, 0):
            self._choose_text(side)  # recomputed layers need the bits again
            self.encoder.backward(cache.pop(), dembeddings[side])

    # Every dropout is two sites, one for the first text and one for the second.

    def set_dropout_stream(self, seed: int, step: int, micro_batch: int = 0, replica: int = 0) -> None:
        """Choose the random bits of every dropout, for two texts of a pair different ones."""
        sites = range(2 * len(self._dropouts()))
        self._keys = tuple(dropout_key(seed, step, micro_batch, replica, site) for site in sites)

    def set_dropout_keys(self, stream: Array) -> None:
        """The same, from the numbers that ``arrays.dropout_stream`` has put together, on the device."""
        self._keys = ops.dropout_keys(stream, 2 * len(self._dropouts()))

    def _choose_text(self, side: int) -> None:
        """The random bits for the first (0) or second (1) text of a pair."""
        for site, module in enumerate(self._dropouts()):
            module.set_key(self._keys[2 * site + side])


def _read_modules(folder: Path) -> dict[str, Any]:
    """How a folder pools its vectors; nothing if it does not say. Raises UserError for a way unknown here."""
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
            f"{path}: a sentence encoder of {', '.join(kinds)}; here it can only be a Transformer, then "
            "Pooling, then perhaps Normalize"
        )
    return {"pooling": _read_pooling(folder / POOLING_FOLDER / "config.json"), "normalise": len(kinds) == 3}


def _read_pooling(path: Path) -> str:
    """The way of pooling in a file: by its name or, in older files, as one of several switches.

    Raises UserError if it is not exactly one that is known here.
    """
    values = read_json(path, "pooling configuration")
    values = values if isinstance(values, dict) else {}
    switches = [key for key, value in values.items() if key.startswith("pooling_mode_") and value is True]
    modes = [values["pooling_mode"]] if "pooling_mode" in values else switches
    for name, key in POOLING_KEYS.items():
        if modes in ([name], [key]):
            return name
    raise UserError(f"{path}: pools by {reprlib.repr(modes)}; expected one of {', '.join(POOLING_KEYS)}")
