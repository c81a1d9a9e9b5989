"""What the tokenizers' files in Hugging Face's layout have in common: options and tokens, checked."""

import reprlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from minibert.errors import UserError
from minibert.files import read_json

_COUNTS = ("model_max_length", "max_characters_per_word", "max_input_chars_per_word")
_MAY_BE_NULL = ("strip_accents", "model_max_length")


def read_config(path: Path, special_tokens: Mapping[str, str], kind: str | None = None) -> dict[str, Any]:
    """A ``tokenizer_config.json``, for `read_options`.

    Raises UserError for a damaged file, and for special tokens other than ``special_tokens``, which are those
    of this ``kind`` of model ("BERT").
    """
    config = read_json(path, "tokenizer configuration")
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a JSON object; restore or remake it")
    for name, token in special_tokens.items():
        found = config.get(name, token)
        if isinstance(found, dict):  # older versions of transformers wrote {"content": "[CLS]", …}
            found = found.get("content")
        if found != token:
            right = (
                f"{kind}'s is {token!r}; use a {kind}" if kind else f"here it must be {token!r}; use another"
            )
            raise UserError(f"{path}: {name} is {found!r}, but {right} tokenizer")
    for key, sides in (("padding_side", ("left", "right")), ("truncation_side", ("right",))):
        if config.get(key, sides[0]) not in sides:
            expected = " or ".join(sides)
            raise UserError(f"{path}: {key} is {reprlib.repr(config[key])}; expected {expected}")
    if "max_len" in config:  # its older name
        config.setdefault("model_max_length", config["max_len"])
    if isinstance(length := config.get("model_max_length"), int | float) and length > 1e9:
        del config["model_max_length"]  # transformers writes 1e30 for "no limit"
    return config


def read_options(path: Path, config: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer's options in a file, if they are there; ``keys`` are their names in it."""
    return {name: read_option(path, config, key) for name, key in keys.items() if key in config}


def read_option(path: Path, values: Mapping[str, Any], key: str) -> Any:
    """The value of an option in a file. Raises UserError if it has the wrong type ("False" is a text)."""
    value = values[key]
    if value is None and key in _MAY_BE_NULL:
        return None
    if not (type(value) is int and value >= 1 if key in _COUNTS else isinstance(value, bool)):
        expected = "a whole number, at least 1" if key in _COUNTS else "true or false"
        raise UserError(f"{path}: {key} is {reprlib.repr(value)}; expected {expected}")
    return value


def listed_tokens(
    path: Path, config: Mapping[str, Any], special_tokens: Collection[str]
) -> list[Mapping[str, Any]]:
    """The entries for tokens in a ``tokenizer_config.json``. Raises UserError if one is not special."""
    added = config.get("added_tokens_decoder") or {}
    if not isinstance(added, dict) or not all(isinstance(entry, dict) for entry in added.values()):
        raise UserError(f"{path}: added_tokens_decoder should be an object of objects; restore or remake it")
    entries = *added.values(), *(extra_tokens(path, config) or ())
    contents = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    check_added_tokens(path, contents, special_tokens)
    return list(added.values())


def extra_tokens(path: Path, config: Mapping[str, Any]) -> list[Any] | None:
    """The special tokens without a role of their own in a ``tokenizer_config.json``; None if it does not say.

    transformers 4 called them additional_special_tokens. Its last versions, and transformers 5, may have an
    object of them by name in extra_special_tokens, which says nothing if it is empty. Raises UserError for
    anything but a list or an object.
    """
    extra = config.get("extra_special_tokens")
    if not extra:
        extra = config.get("additional_special_tokens", extra)
    if isinstance(extra, dict):
        extra = list(extra.values()) or None
    if not isinstance(extra, list | None):
        raise UserError(f"{path}: special tokens should be a list or an object; restore or remake it")
    return extra


def check_added_tokens(path: Path, added: Iterable[Any], special_tokens: Collection[str]) -> None:
    """Raise UserError for tokens that somebody has added beside the special ones."""
    extra = [str(token) for token in added if token not in special_tokens]
    if extra:
        raise UserError(f"{path}: added tokens outside the vocabulary are not supported: {' '.join(extra)}")


def check_flags(path: Path, entry: Any) -> None:
    """Raise UserError for an entry of a token that is found otherwise than we find it."""
    for flag in ("rstrip", "single_word"):
        if isinstance(entry, dict) and entry.get(flag) not in (None, False):
            raise UserError(
                f"{path}: the added token {entry.get('content')!r} has {flag}, which is not supported"
            )


def check_added_tokens_file(folder: Path, known_tokens: Collection[str]) -> None:
    """Raise UserError for tokens of a folder's ``added_tokens.json``, if it has one, that are not known."""
    path = folder / "added_tokens.json"
    if path.exists():
        added = read_json(path)
        if not isinstance(added, dict):
            raise UserError(f"{path}: expected an object of tokens and their ids; restore or remake it")
        check_added_tokens(path, added, known_tokens)


def tokens_by_id(path: Path, vocab: Mapping[str, int]) -> list[str]:
    """The tokens of a vocabulary in the order of their ids. Raises UserError unless these are 0, 1, 2, …"""
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise UserError(f"{path}: the token ids must be 0, 1, 2, … without gaps")
    return tokens
