"""Text to token ids and back: normalising, WordPiece, byte-level BPE, unigram, learning vocabularies."""

from minibert.text.albert_tokenizer import AlbertTokenizer
from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.learn import USUAL_ALPHABET
from minibert.text.opening import MODEL_TYPES, chosen_lowercase, has_alphabet, learn_tokenizer, open_tokenizer
from minibert.text.roberta_tokenizer import RobertaTokenizer
from minibert.text.tokenizer import PretrainedTokenizer
from minibert.text.xlnet_tokenizer import XLNetTokenizer

__all__ = [
    "MODEL_TYPES",
    "USUAL_ALPHABET",
    "AlbertTokenizer",
    "BertTokenizer",
    "PretrainedTokenizer",
    "RobertaTokenizer",
    "XLNetTokenizer",
    "chosen_lowercase",
    "has_alphabet",
    "learn_tokenizer",
    "open_tokenizer",
]
