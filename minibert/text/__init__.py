"""Text to token ids and back: normalising, WordPiece, byte-level BPE, learning a vocabulary."""

from minibert.text.bert_tokenizer import BertTokenizer
from minibert.text.opening import open_tokenizer
from minibert.text.roberta_tokenizer import RobertaTokenizer
from minibert.text.tokenizer import PretrainedTokenizer

__all__ = ["BertTokenizer", "PretrainedTokenizer", "RobertaTokenizer", "open_tokenizer"]
