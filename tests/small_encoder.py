"""A sentence encoder that knows a few words, and a few passages and questions made of them."""

from pathlib import Path

from minibert.bert import BertConfig
from minibert.data.tasks import Passage, Query
from minibert.heads import SentenceEncoder
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer(
    "[PAD] [UNK] [CLS] [SEP] [MASK] who what sings dances ann bob rome the a in river bridge ?".split()
)
PASSAGES = [
    Passage(str(i), text, "people" if "s" in text else "places")
    for i, text in enumerate(["ann sings", "bob dances", "rome", "the river", "a bridge", "ann in rome"])
]
QUERIES = [Query("who sings ?", "0"), Query("who dances ?", "1"), Query("what river ?", "3")]


def write_encoder(folder: Path, seed: int = 1) -> Path:
    """A folder with a random encoder and its vocabulary."""
    config = BertConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=128,
        initializer_range=0.5,  # so that different texts get different vectors
    )
    SentenceEncoder(config, seed=seed).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder
