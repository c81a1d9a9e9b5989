"""The optimisers: Adam as BERT has it, over the flat buffers, and Muon, which moves matrices as a whole."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import Array, map_arrays, to_numpy
from minibert.errors import UserError
from minibert.nn import Linear, Module
from minibert.nn.parameter import Parameter, Segment
from minibert.ranks import ALONE, Ranks
from minibert.threads import run_all
from minibert.train.loss_scale import LossScale
from minibert.train.shards import Shards, moved

NO_CLIPPING = 1e30  # the largest ``clip_norm``, beyond any norm: its products with loss scales are finite


@dataclass(frozen=True)
class Rates:
    """What an update needs from the host, as 0-d arrays: the learning rate, and Adam's corrections 1 − βᵗ."""

    learning_rate: Array
    mean_correction: Array
    variance_correction: Array


class AdamW:
    """Moves a model's parameters against the running means of their gradients (``ops.adamw_update``).

    The gradient of all parameters that learn is first scaled down to the norm ``clip_norm``, if its norm is
    larger: g · clip_norm / max(‖g‖, clip_norm). Biases and LayerNorm parameters are not decayed. The defaults
    are those of google-research/bert (optimization.py): no bias correction, ε outside the root.

    What the host knows of a step goes into 0-d arrays on the device, and nothing is read back. So a GPU never
    waits for the host, a recorded update can be replayed with other ``Rates``, and a step whose gradient is
    not finite is skipped without the host knowing. In float16, ``loss_scale`` is the factor that the loss has
    to be multiplied by before the backward pass.

    Several ``ranks`` share out the means and the update (ZeRO-1, Rajbhandari et al. 2020): each keeps the
    means of its own parts of the buffers (see `Shards`), updates these parts, and gets all others' from the
    other ranks. Of the gradient it needs no more than its parts. The bits are those of one process.

    Raises ValueError for a β outside [0, 1), an ε or weight decay below 0, or a clip_norm not above 0.
    """

    def __init__(
        self,
        model: Module,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clip_norm: float = 1.0,
        bias_correction: bool = False,
        ranks: Ranks = ALONE,
    ):
        if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
            raise ValueError(f"beta1 and beta2 must be at least 0 and less than 1, got {beta1} and {beta2}")
        if not (eps >= 0 and weight_decay >= 0 and clip_norm > 0):
            raise ValueError(
                "eps and weight_decay must be at least 0, and clip_norm above 0, got "
                f"{eps}, {weight_decay} and {clip_norm}"
            )
        self.model = model
        self.buffers = model.buffers
        self.device = model.device
        self.beta1, self.beta2 = beta1, beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.clip_norm = min(clip_norm, NO_CLIPPING)
        self.bias_correction = bias_correction
        self.shards = Shards(self.buffers.value.size, ranks)
        dtype = self.buffers.value.dtype
        self.mean, self.variance = (self.device.xp.zeros(self.shards.length, dtype=dtype) for _ in range(2))
        self.loss_scale = LossScale(self.device) if model.precision.name == "float16" else None

    def step(self, learning_rate: float, step: int) -> Array:
        """Update every parameter that is not frozen, and return the gradient norm ‖g‖, a 0-d array.

        This is the norm before clipping, without the loss scale. If it is not finite, only the scale changes.

        ``step`` counts the updates from 0; only the bias correction uses it.
        """
        return self.update(map_arrays(self.device.asarray, self.rates(learning_rate, step)))

    def rates(self, learning_rate: float, step: int) -> Rates:
        """The argument of ``update`` for this step, on the host.

        Adam's means, which began at 0, are divided by the corrections; these are 1 without bias correction.
        (In float16, ``update`` computes them itself: only the device knows how many steps were skipped.)
        """
        numbers = (learning_rate, 1.0, 1.0)
        if self.bias_correction:
            numbers = (learning_rate, 1.0 - self.beta1 ** (step + 1), 1.0 - self.beta2 ** (step + 1))
        return Rates(*(np.array(number, dtype=self.buffers.value.dtype) for number in numbers))

    def update(self, rates: Rates) -> Array:
        """The same as ``step``, with ``rates`` that are on the device already.

        Raises ValueError if the model has been allocated anew since the optimiser was made.
        """
        if self.model.buffers is not self.buffers:
            raise ValueError("the model has been allocated anew since; make a new optimiser for it")
        buffers, segments = self.buffers, self.buffers.segments
        for segment in segments:
            if segment.frozen:
                buffers.grad[segment.start : segment.stop] = 0
        norm = self.shards.global_norm(buffers.grad)
        scale = self.loss_scale.value if self.loss_scale else 1.0
        norm = norm / scale
        clip = self.clip_norm / (self.device.xp.maximum(norm, self.clip_norm) * scale)
        if self.loss_scale:
            self.loss_scale.update(norm)
            if self.bias_correction:  # of the steps that were taken: the others have not changed the means
                taken = self.device.xp.maximum(self.loss_scale.updates, 1.0)
                rates = Rates(rates.learning_rate, 1.0 - self.beta1**taken, 1.0 - self.beta2**taken)
        self._update_segments([segment for segment in segments if not segment.frozen], rates, clip, norm)
        if self.sharded:
            self.shards.share(buffers.value)
            buffers.round_operand()
        return norm

    def _update_segments(self, segments: Sequence[Segment], rates: Rates, clip: Array, norm: Array) -> None:
        for segment in segments:
            for here, there in self.shards.overlaps(segment.start, segment.stop):
                self._update_segment(segment, here, there, rates, clip, norm)

    def _update_segment(
        self, segment: Segment, here: slice, there: slice, rates: Rates, clip: Array, norm: Array
    ) -> None:
        """Update what is ``here`` in the buffers, whose means are ``there``."""
        buffers = self.buffers
        ops.adamw_update(
            buffers.value[here],
            buffers.grad[here],
            self.mean[there],
            self.variance[there],
            _scaled(rates.learning_rate, segment.lr_scale),
            clip,
            self.beta1,
            self.beta2,
            self.eps,
            self.weight_decay if segment.decay else 0.0,
            rates.mean_correction,
            rates.variance_correction,
            copy=buffers.operand[here] if buffers.has_copy else None,
            norm=norm,
        )

    @property
    def sharded(self) -> bool:
        """Whether the means are shared out among ranks."""
        return self.shards.ranks.size > 1

    def state_arrays(self) -> dict[str, np.ndarray]:
        """The two means of every parameter by name, "mean.…" and "variance.…", on the host.

        In float16 also the state of the loss scale: ``loss_scale``, ``good_steps`` and ``updates``. If the
        means are shared out, every rank has to call this, and only the first gets them.
        """
        arrays: dict[str, np.ndarray] = {}
        for kind, array in self._means():
            together = self.shards.collect(to_numpy(array))
            if together is not None:
                arrays |= {
                    f"{kind}.{parameter.name}": together[place].reshape(parameter.shape)
                    for parameter, place in self._places()
                }
        return arrays | {name: to_numpy(array) for name, array in self._scale_state()}

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray], source: str) -> None:
        """Restore what ``state_arrays`` gave, on each rank what belongs to it, on however many it was saved.

        Raises UserError, naming ``source``, if it does not fit.
        """
        for kind, array in self._means():
            for parameter, place in self._places():
                name = f"{kind}.{parameter.name}"
                loaded = _state_array(arrays, name, parameter.shape, array.dtype, source).reshape(-1)
                for here, there in self.shards.overlaps(place.start, place.stop):
                    array[there] = self.device.asarray(loaded[moved(here, -place.start)])
        for name, array in self._scale_state():
            array[...] = self.device.asarray(_state_array(arrays, name, array.shape, array.dtype, source))

    def _means(self) -> Iterator[tuple[str, Array]]:
        yield "mean", self.mean
        yield "variance", self.variance

    def _places(self) -> Iterator[tuple[Parameter, slice]]:
        """Where each parameter is in the buffers."""
        starts = [0, *self.buffers.ends[:-1]]
        for parameter, start in zip(self.buffers.parameters, starts, strict=True):
            yield parameter, slice(start, start + parameter.size)

    def _scale_state(self) -> Iterator[tuple[str, Array]]:
        """What the loss scale is made of."""
        if self.loss_scale:
            yield "loss_scale", self.loss_scale.value
            yield "good_steps", self.loss_scale.good_steps
            yield "updates", self.loss_scale.updates


def _state_array(
    arrays: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...], dtype: np.dtype, source: str
) -> np.ndarray:
    """The array of this name. Raises UserError, naming ``source``, if it is missing or does not fit."""
    if name not in arrays:
        raise UserError(f"{source}: {name} is missing; it was not written by a run of this model")
    loaded = arrays[name]
    if (loaded.shape, loaded.dtype) != (shape, dtype):
        raise UserError(
            f"{source}: {name} is {loaded.dtype} of shape {loaded.shape}, expected {dtype} of shape {shape}; "
            "it was not written by a run of this model"
        )
    return loaded


def _scaled(learning_rate: Array, scale: float) -> Array:
    return learning_rate if scale == 1.0 else learning_rate * scale


class Muon(AdamW):
    """Moves the weights of all linear maps by ``ops.muon_update``, and everything else as `AdamW` does.

    Those weights are matrices between hidden units. Embeddings are no such maps, though they are matrices as
    well: a row of them belongs to a word. Nor are the maps of XLNet's attention, which have an axis of heads.
    ``matrix_rate`` is the learning rate of the matrices as a multiple of the others': their update has
    singular values of about 1, and so another size than Adam's.
    ``matrix_momentum`` is their β. The other arguments are those of `AdamW`.

    Raises ValueError as `AdamW` does, for a matrix_momentum outside [0, 1), and for several ``ranks``, which
    would share out its means.
    """

    def __init__(
        self, model: Module, *, matrix_rate: float = 10.0, matrix_momentum: float = 0.95, **adamw: Any
    ):
        if not 0 <= matrix_momentum < 1:
            raise ValueError(f"matrix_momentum must be at least 0 and less than 1, got {matrix_momentum}")
        super().__init__(model, **adamw)
        if self.sharded:
            raise ValueError("Muon moves matrices as a whole, so its means cannot be shared out among ranks")
        self.matrix_rate, self.matrix_momentum = matrix_rate, matrix_momentum
        for module in model.modules():
            if isinstance(module, Linear):
                module.weight.alone = True

    def _update_segments(self, segments: Sequence[Segment], rates: Rates, clip: Array, norm: Array) -> None:
        super()._update_segments(
            [segment for segment in segments if segment.matrix is None], rates, clip, norm
        )
        matrices = [
            _Matrix(segment, segment.matrix, self._mean_of(segment, segment.matrix))
            for segment in segments
            if segment.matrix is not None
        ]
        if self.device.name == "cpu":  # no matrix waits for another, and their products are small
            run_all([functools.partial(self._update_matrices, [one], rates, clip, norm) for one in matrices])
        else:
            for alike in _alike(matrices):
                self._update_matrices(alike, rates, clip, norm)

    def _mean_of(self, segment: Segment, matrix: Parameter) -> Array:
        return self.mean[segment.start : segment.start + matrix.size].reshape(matrix.shape)

    def _update_matrices(self, matrices: Sequence["_Matrix"], rates: Rates, clip: Array, norm: Array) -> None:
        """Update matrices of one shape. On a GPU, one product of a stack is faster than many small ones."""
        segment = matrices[0].segment
        changing = [[one.parameter.value for one in matrices], [one.mean for one in matrices]]
        if self.buffers.has_copy:
            changing.append([one.parameter.operand for one in matrices])
        stacks = [self._stack(arrays) for arrays in changing]
        value, mean, *copy = stacks
        ops.muon_update(
            value,
            self._stack([one.parameter.grad for one in matrices]),
            mean,
            _scaled(rates.learning_rate, segment.lr_scale * self.matrix_rate),
            clip,
            self.matrix_momentum,
            self.weight_decay if segment.decay else 0.0,
            copy=copy[0] if copy else None,
            norm=norm,
            orthogonalise=ops.orthogonalise,
        )
        if len(matrices) > 1:
            for arrays, stack in zip(changing, stacks, strict=True):
                for number, array in enumerate(arrays):
                    array[...] = stack[number]

    def _stack(self, matrices: Sequence[Array]) -> Array:
        """The matrices (m, n) as one array (N, m, n); a single one as it is.

        Without ``xp.stack``, which copies the addresses of more than eight arrays from the host.
        """
        if len(matrices) == 1:
            return matrices[0]
        stack = self.device.xp.empty((len(matrices), *matrices[0].shape), dtype=matrices[0].dtype)
        for number, matrix in enumerate(matrices):
            stack[number] = matrix
        return stack


@dataclass(frozen=True)
class _Matrix:
    """A matrix that Muon updates: its segment, its parameter, and its running mean (m, n)."""

    segment: Segment
    parameter: Parameter
    mean: Array


def _alike(matrices: Sequence[_Matrix]) -> list[list[_Matrix]]:
    """Those of the same shape that are updated in the same way, together."""
    groups: dict[tuple, list[_Matrix]] = {}
    for one in matrices:
        key = one.parameter.shape, one.segment.decay, one.segment.lr_scale
        groups.setdefault(key, []).append(one)
    return list(groups.values())


OPTIMISERS = {"adamw": AdamW, "muon": Muon}
