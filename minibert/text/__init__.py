"""Text to token ids and back: normalising, WordPiece and unigram pieces, learning a vocabulary."""

from minibert.text.albert_tokenizer import AlbertTokenizer
from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.tokenizer import PretrainedTokenizer
from minibert.text.xlnet_tokenizer import XLNetTokenizer

__all__ = ["AlbertTokenizer", "BertTokenizer", "PretrainedTokenizer", "XLNetTokenizer"]
