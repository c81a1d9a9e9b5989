"""Precision: the number formats that a model computes in, and which devices support them."""

from dataclasses import dataclass

from minibert.devices import Device
from minibert.errors import UserError


@dataclass(frozen=True)
class Precision:
    """The number formats that a model computes in.

    ``dtype`` is the dtype of parameters, gradients, the optimiser's moments, sums and losses. ``operand`` is
    the dtype of activations, and of the weights that they are multiplied by.
    """

    name: str
    dtype: str
    operand: str


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float32", "float32", "float32"),
        Precision("tf32", "float32", "float32"),  # products first round their factors to 11 bits
        Precision("bfloat16", "float32", "bfloat16"),  # float32's range, 8 bits of precision
        Precision("float16", "float32", "float16"),  # 11 bits of precision, largest number 65,504
        Precision("float64", "float64", "float64"),  # for proofs
    )
}

# For proofs by the complex step (see ``gradcheck``). It is not a setting; everything real is in float64.
COMPLEX = Precision("complex128", "complex128", "complex128")

HALF = ("float16", "bfloat16")  # the 16-bit dtypes; sums are never computed in them

# The first compute capability (times 10) whose GPUs support the precision.
_SINCE = {"tf32": 80, "bfloat16": 80}


def choose_precision(dtype: str = "float32", precision: str | None = None) -> Precision:
    """The precision of that name; without a name, the one that computes everything in ``dtype``.

    Raises UserError for an unknown name, and for float64 parameters with a lower precision.
    """
    if precision is None:
        if dtype == COMPLEX.dtype:
            return COMPLEX
        if dtype not in ("float32", "float64"):
            hint = f"; did you mean precision={dtype!r}?" if dtype in PRECISIONS else ""
            raise UserError(f"unknown dtype {dtype!r}; expected float32 or float64{hint}")
        precision = dtype
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}; expected one of {', '.join(PRECISIONS)}")
    chosen = PRECISIONS[precision]
    if dtype not in ("float32", chosen.dtype):
        raise UserError(f"precision {precision} has parameters in {chosen.dtype}, not {dtype}; give only one")
    return chosen


def check_precision(precision: Precision, device: Device) -> None:
    """Raise UserError if the device lacks this precision, or if bfloat16's package is not installed."""
    if precision.operand == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  (from now on NumPy and CuPy know the name "bfloat16")
        except ImportError:
            raise UserError(
                "bfloat16 needs the package ml_dtypes; install it with  pip install ml_dtypes"
            ) from None
    generation = _generation(device)
    if generation is not None and generation < _SINCE.get(precision.name, 0):
        raise UserError(
            f"this GPU ({device.name}, compute capability {generation / 10}) has no {precision.name}, which "
            "needs 8.0 or higher; use --precision float16 or float32"
        )


def default_precision(device: Device) -> str:
    """The default precision of a run: bfloat16 on a GPU that has it, else float32."""
    return "bfloat16" if (_generation(device) or 0) >= _SINCE["bfloat16"] else "float32"


def _generation(device: Device) -> int | None:
    """The compute capability of a GPU, 90 for 9.0; None for anything else."""
    if not device.name.startswith("cuda"):
        return None
    return int(device.xp.cuda.Device(int(device.name.partition(":")[2])).compute_capability)


_tf32 = False


def allow_tf32(on: bool) -> None:
    """Set whether float32 products on a GPU may round their factors to 11 bits (TF32) in this process.

    Every forward and backward pass of a model sets it.
    """
    global _tf32
    _tf32 = on


def tf32_allowed() -> bool:
    """Whether float32 products on a GPU may round their factors to 11 bits (TF32)."""
    return _tf32
