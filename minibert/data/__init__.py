"""Text to train on: corpora, their preparation on disk, pre-training instances, masks and batches."""

from minibert.data.batches import BatchStream, held_out_batches
from minibert.data.cooccurrence import word_vectors
from minibert.data.corpora import LAYOUTS, Corpus, open_corpus
from minibert.data.instances import OBJECTIVES, InstanceSettings
from minibert.data.plateau import log_frequencies, unigram_plateau
from minibert.data.prepared import (
    Documents,
    PreparedCorpus,
    prepare_corpus,
    running_text,
    training_sentences,
    unfinished_folder,
)
from minibert.data.read_ahead import ReadAhead

__all__ = [
    "LAYOUTS",
    "OBJECTIVES",
    "BatchStream",
    "Corpus",
    "Documents",
    "InstanceSettings",
    "PreparedCorpus",
    "ReadAhead",
    "held_out_batches",
    "log_frequencies",
    "open_corpus",
    "prepare_corpus",
    "running_text",
    "training_sentences",
    "unfinished_folder",
    "unigram_plateau",
    "word_vectors",
]
