"""The context of a forward pass: what it needs besides its input, passed down as one argument.

Nothing of a pass is kept on a module. Is this training? Which random bits does dropout use? Is anybody
observing? Will there be a backward pass? Is padding computed? Which tokens does the last layer need? A
:class:`Context` answers all of these, and every layer passes on the one that it was given.
"""

from collections.abc import Callable, Sequence
from typing import Any

from minibert import ops
from minibert.arrays import Array, get_array_module
from minibert.nn.places import EVERYWHERE, Places

KEYS_AT_ONCE = 64  # a model of 12 layers has 37 dropouts


class Observer:
    """Sees the intermediate values of a forward pass and may replace them; likewise in the backward pass.

    Values have dotted names like parameters, from the model down:

        embeddings                                     their output, hidden state 0: (B, S, H)
        encoder.layer.0                                the output of the first layer, hidden state 1
        encoder.layer.0.attention.self.q    k, v       (B, A, S, D)
        encoder.layer.0.attention.self.scores          q kᵀ/√D + bias: (B, A, S, S)
        encoder.layer.0.attention.self.probabilities   their softmax, before dropout: (B, A, S, S)
        encoder.layer.0.attention.self.context         (B, S, H)
        encoder.layer.0.attention                      the output of the first sublayer: (B, S, H)
        encoder.layer.0.intermediate                   (B, S, F)

    A model with heads puts ``bert.`` in front of them. Subclasses override what they need. A plain function
    ``f(name, value)`` can serve as an observer that looks at, or replaces, values of the forward pass only.

    An encoder that recomputes its layers shows the values inside them again during the backward pass.
    """

    def wants(self, name: str) -> bool:
        """Whether to be shown the value of this name. A value that no observer wants costs nothing."""
        return True

    def forward(self, name: str, value: Array) -> Array | None:
        """See a value. If an array is returned, which must have the same shape, it replaces the value."""

    def backward(self, name: str, dvalue: Array) -> Array | None:
        """See the derivative with respect to the value that the pass continued with.

        If an array is returned, it is the derivative with respect to the value that the model computed. By
        default that is ``dvalue`` itself or, if the value was replaced, 0: the replacement was a constant.
        """


class Recorder(Observer):
    """Keeps the values of the given names, and in the backward pass adds to their derivatives."""

    def __init__(self, names: Sequence[str]):
        self.values: dict[str, Array | None] = dict.fromkeys(names)
        self._added: dict[str, Array | None] = {}

    def add(self, derivatives: Sequence[Array | None] | None) -> None:
        """Set what the next backward pass adds, in the order of the names; None adds nothing."""
        if derivatives is not None:
            self._added = dict(zip(self.values, derivatives, strict=True))

    def wants(self, name: str) -> bool:
        """Whether this is one of the given names."""
        return name in self.values

    def forward(self, name: str, value: Array) -> None:
        """Keep the value."""
        self.values[name] = value

    def backward(self, name: str, dvalue: Array) -> Array | None:
        """Add the derivative that was set for this name, if any."""
        added = self._added.get(name)
        return None if added is None else dvalue + added


class _Function(Observer):
    """A plain function as an observer of the forward pass."""

    def __init__(self, function: Callable[[str, Array], Array | None]):
        self._function = function

    def forward(self, name: str, value: Array) -> Array | None:
        return self._function(name, value)


class Observation:
    """The cache of one observed value: its backward is the observer's or, by default, the identity's."""

    def __init__(self, observer: Observer, name: str, replaced: bool):
        self._observer, self._name, self._replaced = observer, name, replaced

    def backward(self, dvalue: Array) -> Array:
        """dvalue, with respect to the value that the pass continued with → to the one that was computed."""
        answer = self._observer.backward(self._name, dvalue.copy())  # ours may be overwritten later on
        if answer is not None:
            return _in_place_of(dvalue, answer)
        return get_array_module(dvalue).zeros_like(dvalue) if self._replaced else dvalue


def _in_place_of(value: Array, answer: Array) -> Array:
    """An observer's answer, in the dtype of the value that it replaces. It must have the value's shape."""
    if answer.shape != value.shape:
        raise ValueError(f"an observer answered {value.shape} with an array of shape {answer.shape}")
    return answer if answer.dtype == value.dtype else answer.astype(value.dtype)


class _Observations(list):
    """The observations of one value by several observers, in the order in which they saw it."""

    def backward(self, dvalue: Array) -> Array:
        for observation in reversed(self):
            dvalue = observation.backward(dvalue)
        return dvalue


class DropoutKeys:
    """The keys of one forward pass: a new one for each use of dropout, counted from 0.

    They are computed from a stream (see :func:`dropout_stream`) on the stream's device, so that nothing
    passes through the host. Uses are counted, not modules: a layer that is used twice draws new bits.
    """

    def __init__(self, stream: Array, site: int = 0):
        self._stream, self._site = stream, site
        self._keys: Array | None = None

    def next(self, wanted: bool = True) -> Array | None:
        """The key of the next use, (2,) uint32; a use that needs none is counted, so others keep theirs."""
        site = self._site
        self._site += 1
        if not wanted:
            return None
        if self._keys is None or site >= len(self._keys):
            self._keys = ops.dropout_keys(self._stream, KEYS_AT_ONCE * (site // KEYS_AT_ONCE + 1))  # (…, 2)
        return self._keys[site]

    def copy(self) -> "DropoutKeys":
        """A copy that yields the same keys from here on, with its own counter."""
        copy = DropoutKeys(self._stream, self._site)
        copy._keys = self._keys
        return copy


class Context:
    """What a forward pass needs besides its input.

    ``training`` turns dropout on. ``stream`` comes from :func:`dropout_stream`, is on the model's device, and
    determines the random bits: the same stream gives the same bits. ``observer`` is an :class:`Observer`, or
    a function of a name and a value. ``padding`` says whether the encoder computes padding, too; None leaves
    that to ``nn.padding``. Without ``backward`` the encoder keeps nothing for a backward pass, so that each
    layer can use the memory of the layer before. A context serves one forward pass.

    Raises ValueError for training without a stream.
    """

    def __init__(
        self,
        *,
        training: bool = False,
        stream: Array | None = None,
        observer: Observer | Callable[[str, Array], Array | None] | None = None,
        padding: bool | None = None,
        backward: bool = True,
    ):
        if training and stream is None:
            raise ValueError("a context for training needs a stream for dropout, from dropout_stream(…)")
        self.training, self.padding, self.backward = training, padding, backward
        self._keys = DropoutKeys(stream) if training else None
        self._observers = () if observer is None else (_as_observer(observer),)
        self._path = ""
        self.places = EVERYWHERE

    # -- Dropout --------------------------------------------------------------------------------

    def dropout_key(self, probability: float) -> Array | None:
        """The key of the next use of dropout, for ``ops.dropout``; None if dropout is off."""
        if self._keys is None:
            return None
        return self._keys.next(wanted=probability > 0.0)

    # -- Observers ------------------------------------------------------------------------------

    @property
    def observed(self) -> bool:
        """Whether there is any observer."""
        return bool(self._observers)

    def name(self, name: str) -> str:
        """The full name of a value of the module that this context was given to."""
        return self._path + name

    def wants(self, *names: str) -> bool:
        """Whether any observer wants to see one of these values."""
        return any(observer.wants(self._path + name) for name in names for observer in self._observers)

    def observe(self, name: str, value: Array) -> tuple[Array, Any]:
        """Show a value → the value to continue with, and a cache for ``observed_backward``."""
        if not self._observers:
            return value, None
        full, caches = self._path + name, _Observations()
        for observer in self._observers:
            if observer.wants(full):
                answer = observer.forward(full, value)
                caches.append(Observation(observer, full, answer is not None))
                value = value if answer is None else _in_place_of(value, answer)
        return value, caches or None

    # -- Other contexts of the same pass --------------------------------------------------------

    def inside(self, name: str) -> "Context":
        """The context for the submodule of this name. Only the names of values differ."""
        return self._changed(_path=f"{self._path}{name}.") if self._observers else self

    def with_observer(self, observer: Observer) -> "Context":
        """This context with one more observer, which sees each value after the others."""
        return self._changed(_observers=(*self._observers, observer))

    def without_dropout(self) -> "Context":
        """This context without dropout, for a part of the model that does not learn."""
        return self._changed(training=False, _keys=None)

    def with_padding(self, padding: bool = True) -> "Context":
        """This context for an encoder that computes padding, too, or that leaves it out."""
        return self._changed(padding=padding)

    def only_at(self, places: Places) -> "Context":
        """This context for an encoder whose last layer is needed at some places only.

        A layer may then compute only these after its attention, which needs all; the output is 0 elsewhere.
        """
        return self._changed(places=places)

    def copy(self) -> "Context":
        """A copy at the same point of the pass, for running the next part of the pass again."""
        return self._changed(_keys=self._keys.copy() if self._keys else None)

    def _changed(self, **attributes: Any) -> "Context":
        other = Context.__new__(Context)
        vars(other).update(vars(self) | attributes)
        return other


def _as_observer(observer: Observer | Callable) -> Observer:
    return observer if isinstance(observer, Observer) else _Function(observer)
