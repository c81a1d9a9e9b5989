"""Arrays as the explorer's pages hold them."""

import base64
from typing import Any

import numpy as np


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """The array that ``minibert.explore.look.packed`` made this of."""
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
