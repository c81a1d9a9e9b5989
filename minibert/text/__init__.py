"""Text to token ids and back: normalising, WordPiece, learning a vocabulary."""

from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.opening import open_tokenizer
from minibert.text.tokenizer import PretrainedTokenizer

__all__ = ["BertTokenizer", "PretrainedTokenizer", "open_tokenizer"]
