"""Data for fine-tuning and evaluation: reading files, encoding examples as model inputs, making batches."""

from minibert.data.tasks.blimp import MinimalPair, read_blimp
from minibert.data.tasks.conll import SCHEMES, TaggedSentence, read_conll
from minibert.data.tasks.faults import Faults, Place
from minibert.data.tasks.feature_batches import (
    USUAL_BATCH,
    USUAL_PLACES,
    DistinctPairs,
    FeatureStream,
    collate,
    ordered_batches,
)
from minibert.data.tasks.features import (
    Feature,
    PairFeature,
    TaggedFeature,
    TextsCut,
    pair_features,
    single_features,
    tagged_features,
    text_features,
    warn_of_cut,
)
from minibert.data.tasks.labels import check_labels, label_names
from minibert.data.tasks.passages import Passage, Query, read_passages, read_queries, read_texts, some_queries
from minibert.data.tasks.recipes import RECIPES, Recipe
from minibert.data.tasks.squad import Answer, Question, read_squad, split_articles
from minibert.data.tasks.tables import FORMATS, Columns, TextExample, read_table
from minibert.data.tasks.windows import QuestionWindow, question_windows

__all__ = [
    "FORMATS",
    "RECIPES",
    "SCHEMES",
    "USUAL_BATCH",
    "USUAL_PLACES",
    "Answer",
    "Columns",
    "DistinctPairs",
    "Faults",
    "Feature",
    "FeatureStream",
    "MinimalPair",
    "PairFeature",
    "Passage",
    "Place",
    "Query",
    "Question",
    "QuestionWindow",
    "Recipe",
    "TaggedFeature",
    "TaggedSentence",
    "TextExample",
    "TextsCut",
    "check_labels",
    "collate",
    "label_names",
    "ordered_batches",
    "pair_features",
    "question_windows",
    "read_blimp",
    "read_conll",
    "read_passages",
    "read_queries",
    "read_squad",
    "read_table",
    "read_texts",
    "single_features",
    "some_queries",
    "split_articles",
    "tagged_features",
    "text_features",
    "warn_of_cut",
]
