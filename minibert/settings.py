"""The settings of a run or a task, each with a name, a default, a meaning and limits.

The flags of a command, the keys of a ``--config`` file and the settings that a run records are all made from
the fields of a :class:`Settings`.
"""

import dataclasses
import math
import os
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Self

import numpy as np

from minibert.errors import UserError, did_you_mean
from minibert.files import read_json, read_text


def setting(default: Any, group: str, help: str, **limits: Any) -> Any:
    """A field with its help text, its group, and its limits: ``least``, ``most`` or ``choices``.

    ``flag`` is its name on the command line, where that differs.
    """
    return field(default=default, metadata={"group": group, "help": help, **limits})


def flag_of(f: dataclasses.Field) -> str:
    """The flag of a setting on the command line."""
    return "--" + f.metadata.get("flag", f.name).replace("_", "-")


def with_default(base: "type[Settings]", name: str, default: Any) -> Any:
    """The same `setting` that another class has under this name, with another default."""
    (metadata,) = (f.metadata for f in fields(base) if f.name == name)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """Settings as the fields of a subclass, each of them a `setting`.

    ``GROUPS`` is the order in which groups are shown. Raises UserError, naming the setting, if one is of the
    wrong type or outside its limits.
    """

    GROUPS: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        types = typing.get_type_hints(type(self))
        for f in fields(self):
            value = _as_type(getattr(self, f.name), types[f.name], f.name)
            if value is not None:
                _check_limits(value, f)
            object.__setattr__(self, f.name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "settings") -> Self:
        """Settings from names and values. Raises UserError for an unknown name, with the nearest known."""
        flags = {flag_of(f).removeprefix("--").replace("-", "_"): f.name for f in fields(cls)}
        check_names(values, [f.name for f in fields(cls)], source, flags)
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """The same settings with some of them changed."""
        return dataclasses.replace(self, **changes)

    def refuse(self, in_vain: Mapping[str, str]) -> None:
        """Raise UserError if one of these settings is not its default.

        ``in_vain`` says, by name, why each of them would change nothing.
        """
        defaults = {f.name: f.default for f in fields(self)}
        for name, reason in in_vain.items():
            if (value := getattr(self, name)) != (default := defaults[name]):
                way_out = "leave it out" if default is None else f"leave it out, or set it to {default!r}"
                raise UserError(f"{name} is {value!r}, but {reason}; {way_out}")

    def to_dict(self) -> dict[str, Any]:
        """Names and values, as JSON can hold them."""
        return {name: as_json(value) for name, value in dataclasses.asdict(self).items()}

    @classmethod
    def groups(cls) -> dict[str, list[dataclasses.Field]]:
        """The fields by their group."""
        groups: dict[str, list[dataclasses.Field]] = {group: [] for group in cls.GROUPS}
        for f in fields(cls):
            groups.setdefault(f.metadata["group"], []).append(f)
        return groups

    def flags(self, usual: Mapping[str, Any] | None = None, without: Sequence[str] = ()) -> list[str]:
        """The flags that give these settings on a command line: one for each that is not its default.

        Some have another default there: ``usual``, by their names. The groups ``without`` are left out.
        """
        flags: list[str] = []
        for f in fields(self):
            value, default = getattr(self, f.name), (usual or {}).get(f.name, f.default)
            if value is not None and value != default and f.metadata["group"] not in without:
                flag = flag_of(f)
                if isinstance(value, bool):
                    flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
                else:
                    flags += [flag, *map(str, value if isinstance(value, tuple) else [value])]
        return flags

    def describe(self, *others: "Settings", changed_only: bool = False) -> str:
        """These settings and ``others`` as text, one line per group.

        All of them or, with ``changed_only``, those that are not their defaults.
        """
        groups: dict[str, list[str]] = {}
        for settings in (self, *others):
            for group, members in settings.groups().items():
                shown = [f for f in members if not changed_only or getattr(settings, f.name) != f.default]
                groups.setdefault(group, []).extend(f"{f.name}={settings._told(f.name)}" for f in shown)
        return "\n".join(f"{group:<10} {'  '.join(told)}" for group, told in groups.items() if told)

    def _told(self, name: str) -> Any:
        value = getattr(self, name)
        return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else value


def as_json(value: Any) -> Any:
    """The value of a setting as it comes back from JSON, which has no tuples."""
    return list(value) if isinstance(value, tuple) else value


def check_names(
    names: Iterable[str], known: Sequence[str], source: str, flags: Mapping[str, str] | None = None
) -> None:
    """Raise UserError if a setting does not exist, with the nearest name that does.

    ``flags`` tells what settings are called on the command line, and their names here.
    """
    for name in names:
        if name not in known:
            called = (flags or {}).get(name)
            hint = f"the flag of this name sets {called!r}" if called else did_you_mean(name, known)
            raise UserError(f"{source}: unknown setting {name!r}; {hint}")


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file (``.toml``) or a JSON file (``.json``).

    Raises UserError if it is not valid, or neither of them by its name.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".toml", ".json"):
        raise UserError(f"{path}: settings are read from files named .toml or .json; rename it")
    if ending == ".toml":
        text = read_text(path, "settings file")
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of too many digits
            raise UserError(f"{path}: this settings file is not valid TOML ({error})") from None
    values = read_json(path, "settings file")
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected an object of settings, found {type(values).__name__}")
    return values


_PLURAL = {str: "strings", int: "whole numbers"}


def _as_type(value: Any, expected: Any, name: str) -> Any:
    """``value`` as a field of type ``expected`` holds it.

    JSON's lists become tuples, ints floats, NumPy's numbers those of Python, and paths strings.
    """
    if isinstance(expected, UnionType):  # X | None
        if value is None:
            return None
        (expected,) = set(typing.get_args(expected)) - {NoneType}
    value = _plain(value, expected)
    if expected is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{name} is too large for a number") from None
    if typing.get_origin(expected) is tuple:
        kind = typing.get_args(expected)[0]
        if isinstance(value, list | tuple | np.ndarray):
            items = tuple(_plain(item, kind) for item in value)
            if all(type(item) is kind for item in items):
                for item in items:
                    _check_characters(item, name)
                return items
        raise UserError(f"{name} must be a list of {_PLURAL[kind]}, got {value!r}")
    if type(value) is not expected:  # not isinstance: True would pass for an int
        hint = f'; write it in quotes, "{value}"' if expected is str and type(value) is int else ""
        raise UserError(f"{name} must be of type {expected.__name__}, got {value!r}{hint}")
    _check_characters(value, name)
    return value


def _check_characters(value: Any, name: str) -> None:
    """Raise UserError for a text that no file can be called."""
    try:
        wrong = isinstance(value, str) and b"\0" in os.fsencode(value)
    except UnicodeEncodeError:  # JSON can spell what UTF-8 cannot
        wrong = True
    if wrong:
        raise UserError(f"{name} holds a zero byte or half a surrogate pair, got {value!r}; correct it")


def _plain(value: Any, expected: Any) -> Any:
    """Python's number for one of NumPy's, and a string for a path where one is expected."""
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if expected is str and isinstance(value, os.PathLike) else value


def _check_limits(value: Any, f: dataclasses.Field) -> None:
    limits = f.metadata
    if "choices" in limits and value not in limits["choices"]:
        raise UserError(f"{f.name} must be one of {', '.join(limits['choices'])}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{f.name} must be a finite number, got {value!r}")
    if "least" in limits and value < limits["least"]:
        raise UserError(f"{f.name} must be at least {limits['least']}, got {value!r}")
    if "most" in limits and value > limits["most"]:
        raise UserError(f"{f.name} must be at most {limits['most']}, got {value!r}")
