"""Reading and writing the folders of unigram tokenizers: tokenizer.json, spiece.model and options."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import UserError
from minibert.files import read_json, write_json
from minibert.text.metaspace import SPACE
from minibert.text.sentencepiece import CONTROL, USER_DEFINED, read_sentencepiece
from minibert.text.tokenizer import Encoding
from minibert.text.tokenizer_files import check_flags, extra_tokens, read_config, read_options

if TYPE_CHECKING:
    from minibert.text.unigram_tokenizer import UnigramTokenizer


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in a text as it was written, before anything else.

    A ``special`` one is skipped by ``decode(..., skip_special_tokens=True)``; to the span of one that
    ``strips_left`` belongs the whitespace before it.
    """

    content: str
    special: bool = True
    strips_left: bool = False


@dataclass
class Vocabulary:
    """What a vocabulary file says."""

    pieces: list[tuple[str, float]]
    charsmap: bytes | None
    added_tokens: list[AddedToken]


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a ``tokenizer.json`` or, by any other name, a SentencePiece model.

    Raises UserError, naming the file, if it is missing, damaged, or not of a unigram model.
    """
    return _read_tokenizer_json(path) if path.suffix == ".json" else _read_spiece(path)


def _read_spiece(path: Path) -> Vocabulary:
    model = read_sentencepiece(path)
    added = [
        AddedToken(piece, special=kind == CONTROL)
        for (piece, _), kind in zip(model.pieces, model.kinds, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    return Vocabulary(model.pieces, model.charsmap, added)


def _read_tokenizer_json(path: Path) -> Vocabulary:
    """As transformers does: of the normaliser, only its compiled rules; the rest is the class's own."""
    content = read_json(path, "tokenizer file")
    try:
        model = content["model"]
        if model.get("type", "Unigram") != "Unigram" or not isinstance(model["vocab"], list):
            raise UserError(f"{path}: expected a Unigram model, as ALBERT and XLNet have; use another folder")
        pieces = [(piece, float(score)) for piece, score in model["vocab"]]
        normaliser = content["normalizer"] or {}
        steps = normaliser["normalizers"] if normaliser.get("type") == "Sequence" else [normaliser]
        maps = [step["precompiled_charsmap"] for step in steps if step.get("type") == "Precompiled"]
        added = [_added_token(path, entry) for entry in content["added_tokens"]]
        charsmap = base64.b64decode(maps[0], validate=True) if maps else None
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError(
            f"{path}: not a tokenizer.json of Hugging Face's tokenizers; restore or remake it"
        ) from None
    if not all(isinstance(piece, str) and piece and math.isfinite(score) for piece, score in pieces):
        raise UserError(f"{path}: pieces must be texts with finite scores; restore or remake the file")
    return Vocabulary(pieces, charsmap, added)


def _added_token(path: Path, entry: Any) -> AddedToken:
    """An entry of ``added_tokens``, or a plain text.

    One that is ``normalized``, and so looked for in the normalised text, is looked for in the text itself.
    """
    if isinstance(entry, str):
        return AddedToken(entry)
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not entry["content"]:
        raise UserError(f"{path}: an added token must be a text or an object with its content; restore it")
    check_flags(path, entry)
    return AddedToken(entry["content"], entry.get("special") is not False, entry.get("lstrip") is True)


def read_unigram_config(
    path: Path, special_tokens: Mapping[str, str], keys: Mapping[str, str]
) -> tuple[dict[str, Any], list[AddedToken] | None]:
    """Options of a tokenizer, and its added tokens if there are any, from a ``tokenizer_config.json``.

    ``keys`` are the names of the options there, but for model_max_length.
    Raises UserError, naming the file, if it is damaged or its special tokens are others than these.
    """
    config = read_config(path, special_tokens)
    options = read_options(path, config, {**keys, "model_max_length": "model_max_length"})
    options |= {key: config[key] for key in ("padding_side",) if key in config}
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise UserError(f"{path}: added_tokens_decoder should be an object; restore or remake it")
    extra = extra_tokens(path, config)
    added = [_added_token(path, entry) for entry in (*listed.values(), *(extra or ()))]
    return options, added if listed or extra is not None else None


# ---------------------------------------------------------------- writing


def write_folder(tokenizer: "UnigramTokenizer", folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` the way transformers writes them."""
    config: dict[str, Any] = {"tokenizer_class": type(tokenizer).__name__, "unk_id": tokenizer.unk_id}
    config |= {key: getattr(tokenizer, name) for name, key in tokenizer.config_keys.items()}
    config |= {"padding_side": tokenizer.padding_side, **tokenizer.special_tokens}
    config["model_input_names"] = list(Encoding.__annotations__)  # else transformers gives no token types
    if tokenizer.model_max_length is not None:
        config["model_max_length"] = tokenizer.model_max_length
    write_json(folder / "tokenizer_config.json", config)
    write_json(folder / "tokenizer.json", _tokenizer_json(tokenizer))  # last


def _tokenizer_json(tokenizer: "UnigramTokenizer") -> dict[str, Any]:
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": tokenizer.vocab[token.content],
                "content": token.content,
                "single_word": False,
                "lstrip": token.strips_left,
                "rstrip": False,
                "normalized": False,
                "special": token.special,
            }
            for token in tokenizer.added_tokens
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalisers(tokenizer)},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": _template(tokenizer),
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": tokenizer.unk_id,
            "vocab": [list(piece) for piece in zip(tokenizer.tokens, tokenizer.scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _normalisers(tokenizer: "UnigramTokenizer") -> list[dict[str, Any]]:
    """The steps of `MetaspaceNormaliser` but the last."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
    ]
    if not tokenizer.keep_accents:
        steps += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if tokenizer.lowercase:
        steps.append({"type": "Lowercase"})
    if tokenizer.charsmap is not None:
        rules = base64.b64encode(tokenizer.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": rules})
    return steps


def _template(tokenizer: "UnigramTokenizer") -> dict[str, Any]:
    """`with_special_tokens` in the terms of Hugging Face's tokenizers, read off its results."""
    first, second = -1, -2  # stand for the texts
    special: dict[str, Any] = {}

    def entries(ids: list[int], kinds: list[int]) -> Any:
        for i, kind in zip(ids, kinds, strict=True):
            if i < 0:
                yield {"Sequence": {"id": "A" if i == first else "B", "type_id": kind}}
            else:
                token = tokenizer.tokens[i]
                special[token] = {"id": token, "ids": [i], "tokens": [token]}
                yield {"SpecialToken": {"id": token, "type_id": kind}}

    single = list(entries(*tokenizer.with_special_tokens([first])))
    pair = list(entries(*tokenizer.with_special_tokens([first], [second])))
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
