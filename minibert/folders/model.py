"""A complete model: the contract of forward and backward, and its folder."""

from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from minibert.arrays import Array, map_arrays, to_numpy
from minibert.assets import model_folder
from minibert.devices import Device
from minibert.errors import UserError
from minibert.folders.config import PretrainedConfig
from minibert.folders.names import Names, name_in_file
from minibert.folders.shards import replacing_weights
from minibert.folders.tensors import (
    check_complete,
    load_tensors,
    match_tensors,
    report,
    without_heads,
)
from minibert.folders.weights import open_weights
from minibert.nn import Module
from minibert.nn.module import nothing_more
from minibert.nn.outputs import Derivatives
from minibert.ops import Cache
from minibert.precision import allow_tf32


class PretrainedModel(Module):
    """A complete model: it has a configuration, owns its parameters, and can be saved.

    ``device`` is "cpu", "cuda", "cuda:1" or "auto". ``dtype`` is the dtype of the parameters, "float32" or
    "float64" (or "complex128", for the complex step of ``gradcheck``). ``precision`` is what the model
    computes in, if that differs: "tf32", "bfloat16" and "float16" go with float32 parameters. The
    parameters are initialised from ``seed`` as ``config.initializer`` says. A new model is in training mode
    (dropout on).
    """

    config_class: type[PretrainedConfig]
    prepared: type = object  # what ``prepare`` returns
    architecture = ""  # its class in transformers, where that has another name
    tensor_names: Names = ()  # where files call tensors otherwise than BERT's
    begins_with_new_head = False  # whether it usually starts from a folder of another class, to be fine-tuned

    def __init__(self, config: Any, *, device: str | Device | None = "cpu"):
        """Subclasses make their parts after this, and finally give ``_become_root`` the ``device``."""
        super().__init__()
        self.config = config

    def _become_root(self, device: str | Device | None, dtype: str, precision: str | None, seed: int) -> None:
        """Allocate and initialise all parameters; with ``device`` None, a larger model will do so."""
        if device is not None:
            self.allocate(device, dtype, precision, first_values=False)
            self._initialise(seed)

    def _initialise(self, seed: int, only: Collection[str] | None = None) -> None:
        config = self.config
        self.initialise(seed, config.initializer_range, config.initializer == "truncated_normal", only)

    # -- Forward and backward -------------------------------------------------------------------

    def prepare(self, **batch: Any) -> Any:
        """Everything that a forward pass does on the host: check a batch, and find its targets."""
        raise NotImplementedError

    def _on_device(self, input_ids: Any, batch: Mapping[str, Any]) -> Any:
        """A prepared batch unchanged; arrays on the host are prepared now.

        Raises UserError for a batch that a model of another kind prepared.
        """
        allow_tf32(self.precision.name == "tf32")
        if not isinstance(input_ids, self.prepared):
            if is_dataclass(input_ids):
                raise UserError(
                    f"{type(self).__name__} reads {self.prepared.__name__}, but was given "
                    f"{type(input_ids).__name__}; prepare the batch with this model's prepare"
                )
            return map_arrays(self.device.asarray, self.prepare(input_ids=input_ids, **batch))
        nothing_more(batch)
        return input_ids

    def backward(self, cache: Cache, dloss: Array | float | None = None, **derivatives: Any) -> Array | None:
        """Add to the gradient of every parameter. The cache is used up.

        ``derivatives`` are those of a scalar objective with respect to any outputs of that forward pass, by
        their names with a d in front: ``dlogits``, ``dlast_hidden_state``, … Each has the shape of its
        output; ``dhidden_states`` and ``dattentions`` are lists in which some may be None. Without any
        derivatives, the objective is the model's own loss, and ``dloss`` is 1. If ``dloss`` is given, it is a
        number or a 0-d array on the device.

        Returns the derivative of ``inputs_embeds``, if the forward was given them, but None for a head on
        ``feature_layers``, which sends nothing into the encoder. Nothing is computed below the lowest part
        that learns. Raises TypeError for anything but a cache, and for a derivative of something that the
        pass did not return; ValueError for one of the wrong shape, or if there is neither a loss nor a
        derivative.
        """
        if not isinstance(cache, Cache):
            raise TypeError(
                f"backward needs the cache that forward has returned, got a {type(cache).__name__}"
            )
        allow_tf32(self.precision.name == "tf32")
        kinds = cache.parts(self)[-1]  # it stays in the cache until the derivatives are known to be right
        if dloss is None and not derivatives:
            if not kinds.has("loss"):
                raise ValueError(
                    "backward without a loss: give labels to forward, or a derivative to backward"
                )
            dloss = 1.0
        checked = kinds.check({"dloss": dloss, **derivatives}, self.device)
        cache.pop(self)
        return self._backward(cache, checked)

    def _backward(self, cache: Cache, derivatives: Derivatives) -> Array | None:
        raise NotImplementedError

    # -- Folders --------------------------------------------------------------------------------

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
    ) -> Self:
        """The model in a local folder, in evaluation mode; `open_weights` says which files it may have.

        ``folder`` may also be the name of a model that comes with the package, "mini".

        Reads what this package and Hugging Face's transformers write for any BERT: in one file or in shards,
        in 16, 32 or 64 bits, with or without ``bert.`` in the names. ``settings`` are fields that override
        those of the file. A pooler or head that the files lack is initialised from ``seed``, and tensors that
        this class does not use are ignored; a warning names both. In fine-tuning that is expected, so one
        line only says which head is new. With ``complete`` nothing may be missing. With ``new_head`` every
        head is initialised anew, but not the pooler. Raises UserError for anything else that does not fit,
        before memory is allocated.
        """
        folder = model_folder(folder)
        stored = open_weights(folder)
        model = cls._skeleton(folder, settings)
        renamed = model.tensor_names
        stored = without_heads(stored, renamed) if new_head else stored
        match = match_tensors(model, stored, folder, renamed)
        if complete:
            check_complete(match, folder, model, cls.tensor_names)
        try:
            model.allocate(device, dtype, precision, first_values=False)
        except MemoryError:
            count = sum(parameter.size for _, parameter in model.named_parameters())
            raise UserError(f"{folder}: not enough memory for {count:,} parameters in {dtype}") from None
        load_tensors(model, match.sources)
        model._initialise(seed, only=match.missing)
        report(match, folder, cls.__name__, cls.begins_with_new_head, renamed)
        model.eval()
        return model

    @classmethod
    def check_pretrained(cls, folder: str | Path) -> None:
        """Raise UserError unless ``from_pretrained`` would find all parts in the folder, the head too."""
        folder = model_folder(folder)
        model = cls._skeleton(folder, {})
        match = match_tensors(model, open_weights(folder), folder, cls.tensor_names)
        check_complete(match, folder, model, cls.tensor_names)

    @classmethod
    def _skeleton(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """The model that a folder describes, without memory."""
        return cls(cls.config_class.from_pretrained(folder, **settings), device=None)

    def save_pretrained(
        self, folder: str | Path, dtype: str | None = None, max_shard_size: int | str | None = None
    ) -> None:
        """Write ``config.json`` and ``model.safetensors``, which transformers reads, into a folder.

        ``dtype``: "float16", "bfloat16", "float32" or "float64", by default the model's. With a
        ``max_shard_size``, in bytes or as "16MiB" or "5GB", the weights are split into files of at most that
        size, listed in ``model.safetensors.index.json``. Existing weights are replaced: all of them or, after
        an error, none. A tokenizer's own ``save_pretrained`` saves it in the same folder.

        Raises UserError if a number is too large for the type, or a tensor is too large for a file.
        """
        dtype = dtype or self.dtype
        tensors = {
            name_in_file(name, self.tensor_names): np.ascontiguousarray(to_numpy(parameter.value))
            for name, parameter in self.named_parameters()
        }
        with replacing_weights(Path(folder), tensors, dtype, max_shard_size):
            architecture = self.architecture or type(self).__name__
            self.config.save_pretrained(folder, architectures=[architecture], dtype=dtype)
