"""Hugging Face's ``tokenizers``, written in Rust. Its threads are set by the environment."""

from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import WordPieceTrainer

from benchmarks import texts
from benchmarks.worker import Contender
from minibert.text import BertTokenizer, RobertaTokenizer
from minibert.text.bert_tokenizer import SPECIAL_TOKENS


def tokenizer(kind: str, vocabulary: str, text: str, pieces: int) -> Contender:
    """``encode`` one piece of a text after the other; afterwards ``digest`` of the ids of all."""
    pieces_of_text = texts.text_pieces(text, pieces)
    if kind == "RobertaTokenizer":
        tokenizer = _roberta(RobertaTokenizer.from_pretrained(vocabulary))
    elif kind == "AlbertTokenizer":
        tokenizer = Tokenizer.from_file(str(Path(vocabulary) / "tokenizer.json"))
    else:
        tokenizer = _bert(WordPiece(BertTokenizer.from_pretrained(vocabulary).vocab, unk_token="[UNK]"))

    def encode(piece: list[str]) -> list[list[int]]:
        return [one.ids for one in tokenizer.encode_batch_fast(piece, add_special_tokens=False)]

    def digest() -> str:
        return texts.digest(ids for piece in pieces_of_text for ids in encode(piece))

    return {"encode": lambda number: encode(pieces_of_text[number]), "digest": digest}


def learning(text: str, vocab_size: int, limit: int | None) -> Contender:
    """``learn`` a vocabulary from a text's first documents, within our limits, and tell its ``tokens``."""
    documents = texts.documents(text)[:limit]
    special = list(SPECIAL_TOKENS.values())
    learned: list[Tokenizer] = []

    def learn(_: int) -> None:
        tokenizer = _bert(WordPiece(unk_token="[UNK]"))
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            limit_alphabet=1000,
            min_frequency=2,
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents, trainer, length=len(documents))
        learned[:] = [tokenizer]

    return {"learn": learn, "tokens": lambda: sorted(learned[0].get_vocab())}


def _bert(model: WordPiece) -> Tokenizer:
    """A tokenizer that treats a text as uncased BERTs do."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    return tokenizer


def _roberta(ours: RobertaTokenizer) -> Tokenizer:
    """A tokenizer with the vocabulary of ours."""
    tokenizer = Tokenizer(BPE(ours.vocab, ours.merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(ours.special_tokens.values()))
    return tokenizer
