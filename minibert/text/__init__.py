"""Text to token ids and back: normalising, WordPiece, learning a vocabulary."""

from minibert.text.tokenizer import BertTokenizer

__all__ = ["BertTokenizer"]
