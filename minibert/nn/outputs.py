"""The derivatives with respect to a model's outputs, which its backward takes by name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from minibert.arrays import Array
from minibert.devices import Device

Derivatives = dict[str, Any]  # of the scalar objective, by the name of the output


class OutputKinds:
    """Shapes and dtypes of the outputs (a dataclass) of one forward pass; their derivatives have the same."""

    def __init__(self, outputs: Any):
        found = ((field.name, getattr(outputs, field.name)) for field in fields(outputs))
        self._kinds = {name: _kind(output) for name, output in found if output is not None}

    def has(self, name: str) -> bool:
        """Whether there was an output of this name."""
        return name in self._kinds

    def check(self, given: Mapping[str, Any], device: Device) -> Derivatives:
        """The derivatives ``dlogits=…`` that a backward was given, by the names of the outputs.

        Those that are None are left out. Raises TypeError for a name that is not an output of that pass, and
        ValueError for a derivative whose shape is not that of the output.
        """
        derivatives = {}
        for name, derivative in given.items():
            if derivative is None:
                continue
            output = name.removeprefix("d")
            if output == name or output not in self._kinds:
                known = ", ".join(f"d{known}" for known in self._kinds)
                raise TypeError(
                    f"backward got {name}, but that forward pass has derivatives only for {known}"
                )
            derivatives[output] = _fitting(name, derivative, self._kinds[output], device)
        return derivatives


def _kind(output: Array | list[Array]) -> Any:
    return [_kind(array) for array in output] if isinstance(output, list) else (output.shape, output.dtype)


def _fitting(name: str, derivative: Any, kind: Any, device: Device) -> Any:
    """A derivative as an array of the output's dtype on the device, or a list of such arrays and None."""
    if isinstance(kind, list):
        if len(derivative) != len(kind):
            raise ValueError(
                f"{name} has {len(derivative)} items; expected {len(kind)}, of which some may be None"
            )
        pairs = enumerate(zip(derivative, kind, strict=True))
        return [None if d is None else _fitting(f"{name}[{i}]", d, k, device) for i, (d, k) in pairs]
    shape, dtype = kind
    if shape == () and not hasattr(derivative, "__setitem__"):
        return float(derivative)  # a NumPy scalar would widen the dtype
    if not isinstance(derivative, device.xp.ndarray):
        derivative = device.asarray(derivative)
    derivative = derivative.astype(dtype, copy=False)
    if derivative.shape != shape:
        raise ValueError(f"{name} has shape {derivative.shape}; expected that of the output, {shape}")
    return derivative


def plain_number(number: Array | float) -> Array | float:
    """An array unchanged, anything else as a Python float: a NumPy scalar would widen the dtype."""
    return number if hasattr(number, "__setitem__") else float(number)


def total(*derivatives: Any) -> Any:
    """The sum of several derivatives, leaving out those that are None; None if all are."""
    given = [derivative for derivative in derivatives if derivative is not None]
    return sum(given[1:], start=given[0]) if given else None
