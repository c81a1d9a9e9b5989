"""Caches: what a forward pass keeps for its backward pass."""

from typing import Any


class Cache:
    """What one forward pass keeps for one backward pass, and which operation or module made it.

    ``maker`` is the name of an operation, or a module. The parts are in the order in which the forward made
    them, and the backward takes them off the end. Each part is freed as soon as it has been used, so memory
    use falls during the backward pass. Whoever opens a cache names itself as ``maker``. ``pop`` and ``parts``
    raise ValueError if another maker made the cache, or if it has been used up.
    """

    __slots__ = ("_parts", "_spent", "maker")

    def __init__(self, maker: Any, *parts: Any):
        self.maker = maker
        self._parts = list(parts)
        self._spent = False

    def pop(self, maker: Any) -> Any:
        """Remove the last part from the cache and return it."""
        self._check(maker)
        if not self._parts:
            raise ValueError(f"this cache of {_name(maker)} is empty: its forward ran without ``backward``")
        part = self._parts.pop()
        self._spent = not self._parts
        return part

    def parts(self, maker: Any) -> tuple[Any, ...]:
        """All parts, which stay in the cache: the backward of an operation may run more than once."""
        self._check(maker)
        return tuple(self._parts)

    def _check(self, maker: Any) -> None:
        if maker is not self.maker and maker != self.maker:
            made_by, used_by = _name(self.maker), _name(maker)
            made_by = f"another {made_by}" if made_by == used_by else made_by
            raise ValueError(
                f"this cache was made by {made_by}, so {used_by} cannot use it in its backward; "
                "pass the cache that its own forward returned"
            )
        if self._spent:
            raise ValueError(
                f"this cache of {_name(maker)} is spent: a backward uses up its cache; run forward again"
            )

    def __repr__(self) -> str:
        return f"Cache({_name(self.maker)}, {'spent' if self._spent else f'{len(self._parts)} parts'})"


def _name(maker: Any) -> str:
    return maker if isinstance(maker, str) else type(maker).__name__
