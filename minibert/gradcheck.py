"""Is a hand-written derivative right? Compare it with a numeric one.

The numeric derivative needs no mathematics: move one number x of the input by a small step h to either
side and see how the output moves,

    ∂L/∂x ≈ (L(x + h) − L(x − h)) / 2h,     L = Σ dout · y

with a random ``dout`` of y's shape. In float64 with h = 1e-5 this is right to about ten digits: the formula
is off by h²/6 · L‴, the rounding of L by about 1e-16/h. The error of a hand-written gradient a against
the numeric n, over all elements of one array, is

    ‖a − n‖ / (‖a‖ + ‖n‖)         0 if equal, 1 if one of them is zero or they are opposite

and must be at most 1e-7. Where the true derivative is zero (attention ignores what is added to all keys)
there is nothing to divide by: such an array has to be declared, and a and n both have to be below 1e-9.

What is checked matters as much as how. Each of these hides mistakes that were found in real projects:

- float32: its rounding, divided by h, is larger than the derivative; a right gradient looks wrong, so
  the bound gets widened until a wrong one passes;
- γ = 1 and β = 0: a γ in the wrong place multiplies by one;
- ``dout`` of ones: LayerNorm's and softmax's dx is then zero, whatever the code says;
- B = 1: a sum, a mean and a division by the batch size are all the same;
- tiny weights, absolute bounds: everything is within 1e-4 of zero;
- comparing dx only, or dropout off, or no token twice, or a layer used only once.

So the cases below draw matrices from N(0, 1/fan-in), vectors (γ, β, biases) from N(0, 1), have more than one
sequence, padding, repeated ids and dropout on (a pure function here), and compare every input and parameter.
To check a gradient of your own:

    >>> import numpy as np
    >>> from minibert.gradcheck import check, function_case
    >>> square = lambda x: (x * x, x)
    >>> square_backward = lambda dout, x: 2.0 * x * dout
    >>> [row] = check(function_case("square", square, square_backward, {"x": np.array([0.5, -3.0])}))
    >>> row.ok, row.error < 1e-9
    (True, True)
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from minibert import ops
from minibert.arrays import Array, Device, dropout_key, get_array_module, to_numpy
from minibert.ops.attention import attention, attention_backward
from minibert.ops.softmax import log_softmax, log_softmax_backward, softmax, softmax_backward

STEP = 1e-5
RELATIVE_BOUND = 1e-7
ABSOLUTE_BOUND = 1e-9  # for derivatives that are declared to be zero


@dataclass(frozen=True)
class Row:
    """The verdict on one gradient: of what, with respect to what, its error, and the bound on that.

    ``note`` says why a gradient could not be compared at all (its error is then infinite), or that the
    error is absolute.
    """

    what: str
    parameter: str
    error: float
    bound: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the gradient is right. An error that is not a number is not."""
        return self.error <= self.bound

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "WRONG"
        return f"{self.what:<30} {self.parameter:<54} {self.error:7.1e}  {verdict}  {self.note}".rstrip()


HEADING = f"{'what':<30} {'parameter':<54} {'error':<7}  verdict"


@dataclass
class Case:
    """Something with a hand-written derivative.

    ``variables``: the float64 arrays to differentiate with respect to, by name.
    ``forward()``: the outputs, computed from what the variables hold now.
    ``backward(douts)``: the gradients by the same names, from one ``dout`` for each output.
    ``zeros``: the names of those whose derivative is zero for a mathematical reason.
    """

    what: str
    variables: dict[str, Array]
    forward: Callable[[], Sequence[Array]]
    backward: Callable[[Sequence[Array]], dict[str, Any]]
    zeros: Collection[str] = ()

    def __post_init__(self) -> None:
        for name, x in self.variables.items():
            if x.dtype != "float64":
                raise ValueError(f"{self.what}: {name} is {x.dtype}; numeric derivatives need float64")
        if unknown := set(self.zeros) - set(self.variables):
            raise ValueError(f"{self.what}: declared zero but not among the variables: {sorted(unknown)}")

    @cached_property
    def douts(self) -> list[np.ndarray]:
        """The random derivatives of the loss with respect to each output, on the host."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(y.shape) for y in self.forward()]

    @cached_property
    def numeric(self) -> dict[str, np.ndarray]:
        """The numeric gradient of Σ dout · y for each variable, on the host."""
        xp = get_array_module(next(iter(self.variables.values())))
        douts = [xp.asarray(dout) for dout in self.douts]
        return {name: self._numeric(x, douts) for name, x in self.variables.items()}

    def _numeric(self, x: Array, douts: Sequence[Array]) -> np.ndarray:
        flat = x.reshape(-1)  # a view, as the variables are contiguous
        gradient = np.empty(x.size)
        for i in range(x.size):
            value = float(flat[i])
            flat[i] = value + STEP
            above = [y.copy() for y in self.forward()]  # a copy, as an output may be a view of x
            flat[i] = value - STEP
            below = [y.copy() for y in self.forward()]
            flat[i] = value
            # The outputs are subtracted before they are summed: that rounds less than L(x + h) − L(x − h).
            rises = (((a - b) * dout).sum() for a, b, dout in zip(above, below, douts, strict=True))
            gradient[i] = sum(float(rise) for rise in rises) / (2.0 * STEP)
        return gradient.reshape(x.shape)


def check(case: Case) -> list[Row]:
    """Compare the hand-written gradients with the numeric ones: a row for each variable.

    A gradient that is missing, no array, or of another shape, library or dtype is wrong, whatever its
    values; so is one whose computation overwrites a variable. Operations are their reference
    implementations here (see ``ops.table``).
    """
    before = {name: x.copy() for name, x in case.variables.items()}
    with ops.reference_only():
        numeric = case.numeric
        xp = get_array_module(next(iter(before.values())))
        gradients = case.backward([xp.array(dout) for dout in case.douts])  # copies: they may be overwritten
    if set(gradients) != set(numeric):
        raise ValueError(f"{case.what}: gradients of {sorted(gradients)}, expected of {sorted(numeric)}")
    rows = []
    for name, x in case.variables.items():
        note = _reason_not_to_compare(gradients[name], x)
        if not bool((x == before[name]).all()):
            note = "the forward or backward overwrote it"
            x[...] = before[name]
        if note:
            rows.append(Row(case.what, name, math.inf, RELATIVE_BOUND, note))
        else:
            rows.append(_compare(case, name, to_numpy(gradients[name])))
    return rows


def _reason_not_to_compare(gradient: Any, x: Array) -> str:
    """Why ``gradient`` cannot be a gradient of x, or nothing."""
    if not isinstance(gradient, get_array_module(x).ndarray):
        return f"the gradient is of type {type(gradient).__name__}"
    if gradient.shape != x.shape:
        return f"the gradient has shape {gradient.shape}, expected {x.shape}"
    return "" if gradient.dtype == x.dtype else f"the gradient is {gradient.dtype}, expected {x.dtype}"


def _compare(case: Case, name: str, gradient: np.ndarray) -> Row:
    numeric = case.numeric[name]
    if name in case.zeros:
        error = max(float(np.abs(gradient).max()), float(np.abs(numeric).max()))
        return Row(case.what, name, error, ABSOLUTE_BOUND, "absolute: it is zero")
    size = float(np.linalg.norm(gradient) + np.linalg.norm(numeric))
    if size == 0.0:
        return Row(case.what, name, math.inf, RELATIVE_BOUND, "nothing to compare: the derivative is zero")
    return Row(case.what, name, float(np.linalg.norm(gradient - numeric)) / size, RELATIVE_BOUND)


def report(cases: Iterable[Case]) -> bool:
    """Check the cases, printing a table row by row; return whether every gradient is right."""
    print(HEADING)
    count = wrong = 0
    worst = 0.0
    for case in cases:
        for row in check(case):
            print(row, flush=True)
            count, wrong = count + 1, wrong + (not row.ok)
            if row.bound == RELATIVE_BOUND:
                worst = max(worst, row.error)
    print(
        f"{count} gradients, {wrong} wrong, largest relative error {worst:.1e} (bound {RELATIVE_BOUND:.0e})"
    )
    return wrong == 0


# -- What can be checked ----------------------------------------------------------------------------


def function_case(
    what: str, forward: Callable, backward: Callable, inputs: dict[str, Array], zeros: Collection[str] = ()
) -> Case:
    """A pair of functions: y, cache = forward(*inputs) and d(inputs) = backward(dout, cache).

    ``inputs`` are the arguments to differentiate with respect to, float64, by name and in order; close
    over any others. y is one array; a single input may have its gradient returned without a tuple.
    """

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        _, cache = forward(*inputs.values())
        return _by_name(inputs, backward(douts[0], cache))

    return Case(what, inputs, lambda: [forward(*inputs.values())[0]], gradients, zeros)


def module_case(
    what: str,
    module: Any,
    inputs: dict[str, Array],
    constants: Sequence[Any] = (),
    zeros: Collection[str] = (),
) -> Case:
    """A layer: y, cache = module.forward(*inputs, *constants) and d(inputs) = module.backward(dout, cache).

    The layer is used twice, the second time on other inputs, before either backward runs: what it
    remembers must be in the cache and not on the layer, and the gradients of its parameters must add up.
    They are filled with NaN before ``zero_grad``, so that a gradient that was never written shows.
    """
    again = {f"{name}, second use": _backwards(x) for name, x in inputs.items()}
    parameters = dict(module.named_parameters())
    values = {name: parameter.value for name, parameter in parameters.items()}

    def both_forwards() -> list[tuple[Array, Any]]:
        same_dropout(module)
        return [module.forward(*use.values(), *constants) for use in (inputs, again)]

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        forget_gradients(module)
        caches = [cache for _, cache in both_forwards()]
        found = {}
        for use, dout, cache in zip((inputs, again), douts, caches, strict=True):
            found |= _by_name(use, module.backward(dout, cache))
        return found | {name: parameter.grad for name, parameter in parameters.items()}

    return Case(what, inputs | again | values, lambda: [y for y, _ in both_forwards()], gradients, zeros)


def model_case(what: str, model: Any, batch: dict[str, Any], zeros: Collection[str] = ()) -> Case:
    """A model with a loss: outputs, cache = model.forward(**batch) and model.backward(cache, dloss).

    The backward runs in two halves of unequal scale, which must add up. Frozen parameters must have no
    gradient, and are not compared.
    """
    parameters = {name: p for name, p in model.named_parameters() if not p.frozen}
    frozen = [p for _, p in model.named_parameters() if p.frozen]

    def forward() -> tuple[Any, Any]:
        same_dropout(model)
        return model.forward(**batch)

    def gradients(douts: Sequence[Array]) -> dict[str, Any]:
        forget_gradients(model)
        for share in (0.25, 0.75):
            _, cache = forward()
            model.backward(cache, share * float(douts[0]))
        if not all(bool((parameter.grad == 0).all()) for parameter in frozen):
            raise ValueError(f"{what}: a frozen parameter has a gradient")
        return {name: parameter.grad for name, parameter in parameters.items()}

    values = {name: parameter.value for name, parameter in parameters.items()}
    return Case(what, values, lambda: [forward()[0].loss], gradients, zeros)


def same_dropout(module: Any) -> None:
    """Let the next forward pass draw the same random bits as the first one did."""
    if hasattr(module, "seed_dropout"):
        module.seed_dropout(0)


def forget_gradients(module: Any) -> None:
    """``module.zero_grad()``, after making every old gradient NaN, so that none can be taken for new."""
    for _, parameter in module.named_parameters():
        parameter.grad[...] = math.nan
    module.zero_grad()


def _by_name(inputs: dict[str, Array], gradients: Any) -> dict[str, Any]:
    """What a backward returned (nothing, one gradient or a tuple of them) by the names of the inputs."""
    if not isinstance(gradients, tuple):
        gradients = () if gradients is None and not inputs else (gradients,)
    if len(gradients) != len(inputs):
        raise ValueError(f"backward returned {len(gradients)} gradients for the inputs {', '.join(inputs)}")
    return dict(zip(inputs, gradients, strict=True))


def _backwards(x: Array) -> Array:
    """The same numbers in the opposite order."""
    return x.reshape(-1)[::-1].reshape(x.shape).copy()


class Draws:
    """Random arrays for the cases, drawn on the host and sent to a device."""

    def __init__(self, device: Device, seed: int):
        self.device = device
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape: int) -> Array:
        """Standard normal numbers, float64."""
        return self.device.asarray(self._rng.standard_normal(shape))

    def matrix(self, outputs: int, inputs: int) -> Array:
        """A weight that keeps the size of what it multiplies: N(0, 1/inputs)."""
        return self.normal(outputs, inputs) / math.sqrt(inputs)

    def ids(self, count: int, *shape: int) -> Array:
        """Random integers in [0, count), among which at least one occurs twice."""
        ids = self._rng.integers(count, size=shape)
        ids.reshape(-1)[-1] = ids.reshape(-1)[0]
        return self.device.asarray(ids)

    def randomise(self, module: Any) -> None:
        """Give every parameter of a module a random value: matrices N(0, 1/fan-in), vectors N(0, 1)."""
        for _, parameter in module.named_parameters():
            matrix = len(parameter.shape) == 2
            parameter.value[...] = self.matrix(*parameter.shape) if matrix else self.normal(*parameter.shape)


# -- The operations ---------------------------------------------------------------------------------

PROBABILITY = 0.3  # of dropout in the cases
MASK = [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]]  # three sequences, two of them padded
_KEY = dropout_key(seed=1, step=2, micro_batch=0, replica=0, site=3)


def operation_cases(device: Device) -> list[Case]:
    """Every operation of ``ops`` that has a derivative. B = 3, S = 4, H = 6, A = 2, V = 7."""
    return [
        *_primitive_cases(Draws(device, 1)),
        *_composite_cases(Draws(device, 2)),
        *_head_cases(Draws(device, 7)),
    ]


def _primitive_cases(draw: Draws) -> list[Case]:
    x = draw.normal
    affine = {"x": x(3, 4, 6), "weight": draw.matrix(5, 6), "bias": x(5)}
    # ε is of order one here, like all else, so that leaving it out shows.
    norm = {"x": x(3, 4, 6), "weight": x(6), "bias": x(6)}
    ids = draw.ids(7, 3, 4)
    labels, weights = draw.ids(7, 5), draw.device.asarray([1.0, 0.0, 1.0, 0.5, 1.0])
    heads = {name: x(3, 2, 4, 3) for name in ("q", "k", "v")}
    mask = draw.device.asarray(MASK)
    cases = [
        function_case("linear", ops.linear, ops.linear_backward, affine),
        function_case("softmax", softmax, softmax_backward, {"x": x(3, 4, 6)}),
        function_case("log_softmax", log_softmax, log_softmax_backward, {"x": x(3, 4, 6)}),
        function_case("layer_norm", lambda *a: ops.layer_norm(*a, 0.5), ops.layer_norm_backward, norm),
        function_case(
            "embedding",
            lambda weight: ops.embedding(weight, ids),
            ops.embedding_backward,
            {"weight": x(7, 6)},
        ),
        function_case(
            "cross_entropy",
            lambda logits: ops.cross_entropy(logits, labels, weights, 2.5),
            ops.cross_entropy_backward,
            {"logits": x(5, 7)},
        ),
    ]
    for name, (forward, backward) in ops.ACTIVATIONS.items():
        cases.append(function_case(f"activation {name}", forward, backward, {"x": x(3, 4, 6)}))
    for name, key in (("dropout", _KEY), ("dropout, off", None)):
        cases.append(
            function_case(
                name,
                lambda x, key=key: ops.dropout(x, PROBABILITY, key),
                ops.dropout_backward,
                {"x": x(3, 4, 6)},
            )
        )
    for name, causal in (("attention", False), ("attention, left to right", True)):
        bias = ops.attention_bias(mask, "float64", causal)
        cases.append(
            function_case(
                name,
                lambda q, k, v, bias=bias: attention(q, k, v, bias, PROBABILITY, _KEY),
                attention_backward,
                heads,
            )
        )
    return cases


def _composite_cases(draw: Draws) -> list[Case]:
    x = draw.normal
    ids, types = draw.ids(7, 3, 4), draw.ids(2, 3, 4)
    tables = {"word_weight": x(7, 6), "position_weight": x(5, 6), "token_type_weight": x(2, 6)}
    norm = {"weight": x(6), "bias": x(6)}
    bias = ops.attention_bias(draw.device.asarray(MASK), "float64")
    labels, weights = draw.ids(7, 5), draw.device.asarray([1.0, 0.0, 1.0, 0.5, 1.0])
    return [
        function_case(
            "embed",
            lambda *a: ops.embed(*a, ids, types, 0.5, PROBABILITY, _KEY),
            ops.embed_backward,
            tables | norm,
        ),
        *(
            function_case(
                f"linear_activation {name}",
                lambda *a, name=name: ops.linear_activation(*a, name),
                ops.linear_activation_backward,
                {"x": x(3, 4, 6), "weight": draw.matrix(5, 6), "bias": x(5)},
            )
            for name in ("gelu", "tanh")
        ),
        function_case(
            "dropout_residual_norm",
            lambda *a: ops.dropout_residual_norm(*a, 0.5, PROBABILITY, _KEY),
            ops.dropout_residual_norm_backward,
            {"x": x(3, 4, 6), "residual": x(3, 4, 6), **norm},
        ),
        function_case(
            "packed_attention",
            lambda qkv: ops.packed_attention(qkv, bias, 2, PROBABILITY, _KEY),
            ops.packed_attention_backward,
            {"qkv": x(3, 4, 18)},
        ),
        function_case(
            "observed_attention",
            lambda qkv: ops.observed_attention(qkv, bias, 2, PROBABILITY, _KEY, _change),
            ops.observed_attention_backward,
            {"qkv": x(3, 4, 30)},
        ),
        function_case(
            "masked_lm_loss",
            lambda *a: ops.masked_lm_loss(*a, labels, weights, 2.5),
            ops.masked_lm_loss_backward,
            {"hidden": x(5, 6), "weight": draw.matrix(7, 6), "bias": x(7)},
        ),
    ]


_CHANGES = {"q": 0.5, "k": -0.3, "v": 0.2, "scores": 0.1, "probabilities": 0.7, "context": -0.4}


def _change(name: str, value: Array) -> tuple[Array, "_Changed"]:
    """An observer of attention that makes x + c x² of each value x, with a c of its own."""
    return value + _CHANGES[name] * value * value, _Changed(value, _CHANGES[name])


@dataclass(frozen=True)
class _Changed:
    value: Array
    factor: float

    def backward(self, dvalue: Array) -> Array:
        return dvalue * (1.0 + 2.0 * self.factor * self.value)


def _head_cases(draw: Draws) -> list[Case]:
    """What stands on top of the encoder in fine-tuning. N = 4 pairs, K = 3 tags."""
    x, asarray = draw.normal, draw.device.asarray
    mask = asarray(MASK, dtype="float64")
    pairs = {"x": x(4, 6), "y": x(4, 6)}
    similarities, numbers = x(4), x(4, 2)
    spans = asarray([[1, 0, 3], [2, 0, 3]]), asarray([[0.5, 0.0, 0.5], [0.25, 0.25, 0.5]])
    # Sentences of four words, three, one and none.
    words = asarray([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype="float64")
    tags = asarray([[2, 0, 1, 1], [0, 2, 2, 0], [1, 0, 0, 0], [2, 2, 2, 2]])
    emissions = x(4, 4, 3) + 1e3 * (1.0 - words)[:, :, None]  # what stands behind the last word is no matter
    emissions[0, 2] = 0.0  # and a word is one although its scores are 0
    scores = {"emissions": emissions, "start": x(3), "end": x(3), "transitions": x(3, 3)}
    return [
        *(
            function_case(
                f"{name} pooling",
                lambda hidden, pool=forward: pool(hidden, mask),
                backward,
                {"hidden": x(3, 4, 6)},
            )
            for name, (forward, backward) in ops.POOLING.items()
        ),
        # ε is between the lengths of these vectors: some are divided by it, the others by their length.
        function_case(
            "unit_length", lambda x: ops.unit_length(x, 2.4), ops.unit_length_backward, {"x": x(3, 4, 6)}
        ),
        function_case("cosine_similarity", ops.cosine_similarity, ops.cosine_similarity_backward, pairs),
        function_case(
            "cosine_loss",
            lambda *a: ops.cosine_loss(*a, similarities, 2.5),
            ops.cosine_loss_backward,
            pairs,
        ),
        *(
            function_case(
                name,
                lambda *a, symmetric=symmetric: ops.in_batch_softmax_loss(*a, 3.0, symmetric, 2.5),
                ops.in_batch_softmax_loss_backward,
                pairs,
            )
            for name, symmetric in (("in_batch_softmax_loss", False), ("  both ways", True))
        ),
        function_case(
            "squared_error",
            lambda predictions: ops.squared_error(predictions, numbers, 2.5),
            ops.squared_error_backward,
            {"predictions": x(4, 2)},
        ),
        function_case(
            "span_loss",
            lambda logits: ops.span_loss(logits, *spans),
            ops.span_loss_backward,
            {"logits": x(3, 4, 2)},
        ),
        function_case("crf_nll", lambda *a: ops.crf_nll(*a, tags, words, 2.5), ops.crf_nll_backward, scores),
    ]
