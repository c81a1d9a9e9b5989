"""The layouts of well-known data sets, by name. Where the files are is for the person to say."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from minibert.data.tasks.blimp import read_blimp
from minibert.data.tasks.conll import read_conll
from minibert.data.tasks.squad import read_squad
from minibert.data.tasks.tables import Columns, read_table


@dataclass(frozen=True)
class Recipe:
    """What a data set is for, how one of its files is read, and what suits it in fine-tuning.

    ``task``: "classify", "regress", "tag", "qa" or "minimal pairs".
    ``read(path, labelled=…, faults=…)`` gives the examples (minimal pairs: ``read(path, faults=…)``).
    ``settings``: those of `minibert finetune` that are not as usual.
    """

    task: str
    read: Callable[..., list[Any]]
    settings: dict[str, Any] = field(default_factory=dict)


def _table(task: str, *columns: Columns, file_format: str = "tsv", **settings: Any) -> Recipe:
    scores = task == "regress"
    read = partial(read_table, columns=columns, file_format=file_format, scores=scores)
    return Recipe(task, read, settings)


RECIPES: dict[str, Recipe] = {
    # Stanford Sentiment Treebank: 0 negative, 1 positive. The header calls the text one or the other.
    "sst2": _table(
        "classify", Columns("sentence", label="label"), Columns("content", label="label"), max_length=64
    ),
    # Corpus of Linguistic Acceptability: source, label, star, sentence. GLUE's test file is another.
    "cola": _table(
        "classify", Columns("sentence"), Columns(4, label=2), max_length=64, epochs=5.0, metric="matthews"
    ),
    # Microsoft Research Paraphrase Corpus: 1 where both say the same.
    "mrpc": _table("classify", Columns("#1 String", "#2 String", "Quality"), epochs=5.0, metric="f1"),
    # Recognizing Textual Entailment: index, two sentences, label; with or without a header.
    "rte": _table(
        "classify", Columns("sentence1", "sentence2", "label"), Columns(2, 3, 4), max_length=256, epochs=10.0
    ),
    # Semantic Textual Similarity Benchmark: two sentences and a score from 0 to 5.
    "stsb": _table("regress", Columns(1, 2, 3), file_format="csv", epochs=5.0),
    # Emerging entities of the WNUT 2017 shared task: six kinds.
    "wnut17": Recipe("tag", read_conll, {"epochs": 10.0}),
    # Stanford Question Answering Dataset, v1.1 and v2.0.
    "squad": Recipe("qa", read_squad),
    # Benchmark of Linguistic Minimal Pairs.
    "blimp": Recipe("minimal pairs", read_blimp),
}
