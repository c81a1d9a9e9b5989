"""Text to token ids and back: normalising, WordPiece, learning a vocabulary."""

from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.tokenizer import PretrainedTokenizer

__all__ = ["BertTokenizer", "PretrainedTokenizer"]
