"""The tokenizer in a folder, or a new one, for a model of any family."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minibert.assets import model_folder
from minibert.errors import UserError
from minibert.files import read_json
from minibert.ranks import ALONE, Ranks
from minibert.text.albert_tokenizer import AlbertTokenizer
from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.learn import USUAL_ALPHABET
from minibert.text.roberta_tokenizer import RobertaTokenizer
from minibert.text.tokenizer import PretrainedTokenizer
from minibert.text.xlnet_tokenizer import XLNetTokenizer

# By the names that transformers gives in ``tokenizer_class``, without a "Fast" at their end, and by the
# ``model_type`` of a folder whose tokenizer does not say.
TOKENIZERS: dict[str, type[PretrainedTokenizer]] = {
    "BertTokenizer": BertTokenizer,
    "DistilBertTokenizer": BertTokenizer,
    "ElectraTokenizer": BertTokenizer,
    "RobertaTokenizer": RobertaTokenizer,
    "AlbertTokenizer": AlbertTokenizer,
    "XLNetTokenizer": XLNetTokenizer,
}
MODEL_TYPES: dict[str, type[PretrainedTokenizer]] = {
    "bert": BertTokenizer,
    "distilbert": BertTokenizer,
    "electra": BertTokenizer,
    "minibert-modern": BertTokenizer,
    "roberta": RobertaTokenizer,
    "albert": AlbertTokenizer,
    "xlnet": XLNetTokenizer,
}


def learn_tokenizer(
    model_type: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    alphabet_limit: int = USUAL_ALPHABET,
    lowercase: bool | None = None,
    progress: bool = False,
    ranks: Ranks = ALONE,
) -> PretrainedTokenizer:
    """A tokenizer as models of this type have it, with a vocabulary learned from a stream of texts.

    ``alphabet_limit`` bounds the characters of a vocabulary that `has_alphabet`. ``lowercase`` None does as
    the type's paper did. Several ``ranks`` give different texts, and learn the same from all of them. Raises
    UserError as `chosen_lowercase` does, and for texts from which nothing can be
    learned.
    """
    kind, lowercase = MODEL_TYPES[model_type], chosen_lowercase(model_type, lowercase)
    options: dict[str, Any] = {"lowercase": lowercase} if "lowercase" in kind.config_keys else {}
    if has_alphabet(model_type):
        options["alphabet_limit"] = alphabet_limit
    return kind.train(texts, vocab_size, progress=progress, ranks=ranks, **options)


def has_alphabet(model_type: str) -> bool:
    """Whether the vocabulary of models of this type has characters of its own, and not the 256 bytes."""
    return MODEL_TYPES[model_type] is not RobertaTokenizer


def chosen_lowercase(model_type: str, lowercase: bool | None) -> bool:
    """Whether a tokenizer for models of this type lower-cases: as given or, for None, as in the type's paper.

    Raises UserError if it cannot.
    """
    kind = MODEL_TYPES[model_type]
    if lowercase and "lowercase" not in kind.config_keys:
        raise UserError(
            f"models of type {model_type!r} have a tokenizer that keeps capitals; leave --lowercase out"
        )
    return kind.lowercase if lowercase is None else lowercase


def open_tokenizer(folder: str | Path, **options: Any) -> PretrainedTokenizer:
    """The tokenizer in a pretrained folder of any family, or BERT's of a bare vocabulary file.

    Its class is the one that ``tokenizer_config.json`` names, or else that of the ``model_type`` in
    ``config.json``, or else RoBERTa's if there is a ``vocab.json``, or else BERT's. ``options`` override what
    the files say. Raises UserError for a class or type that is not known, and as the class's
    ``from_pretrained`` does.
    """
    return _tokenizer_class(model_folder(folder)).from_pretrained(folder, **options)


def _tokenizer_class(folder: Path) -> type[PretrainedTokenizer]:
    for file, key, known in (
        (folder / "tokenizer_config.json", "tokenizer_class", TOKENIZERS),
        (folder / "config.json", "model_type", MODEL_TYPES),
    ):
        values = read_json(file, "configuration") if os.path.isfile(file) else None
        name = values.get(key) if isinstance(values, dict) else None
        if isinstance(name, str) and not _says_nothing(name):
            if name.removesuffix("Fast") not in known:
                raise UserError(f"{file}: {key} is {name!r}; expected one of {', '.join(known)}")
            return known[name.removesuffix("Fast")]
    return RobertaTokenizer if os.path.isfile(folder / "vocab.json") else BertTokenizer


def _says_nothing(name: str) -> bool:
    """Whether a ``tokenizer_class`` names no kind of tokenizer: transformers' class for all."""
    return name in ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
