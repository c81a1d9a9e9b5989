"""The layouts of well-known data sets, by name. The person says where the files are.

Those made from the installed documentation ("docs-…") need no files: "train" and "dev" take their place.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from minibert.data.docstrings import garbage_collection_paused
from minibert.data.tasks import documentation
from minibert.data.tasks.blimp import read_blimp
from minibert.data.tasks.conll import read_conll
from minibert.data.tasks.faults import Faults
from minibert.data.tasks.squad import read_squad
from minibert.data.tasks.tables import Columns, read_table
from minibert.errors import UserError


@dataclass(frozen=True)
class Recipe:
    """What a data set is for, how one of its files is read, and which settings suit it in fine-tuning.

    ``task``: "classify", "regress", "tag", "qa", "similarity" or "minimal pairs".
    ``read(path, labelled=…, faults=…)`` gives the examples (minimal pairs: ``read(path, faults=…)``).
    ``settings``: those of `minibert finetune` that differ from its defaults.
    """

    task: str
    read: Callable[..., list[Any]]
    settings: dict[str, Any] = field(default_factory=dict)


def _table(task: str, *columns: Columns, file_format: str = "tsv", **settings: Any) -> Recipe:
    scores = task == "regress"
    read = partial(read_table, columns=columns, file_format=file_format, scores=scores)
    return Recipe(task, read, settings)


def _documentation(task: str, examples: Callable[[str], list[Any]], **settings: Any) -> Recipe:
    def read(part: str | Path, *, labelled: bool = True, faults: Faults | None = None) -> list[Any]:
        with garbage_collection_paused():
            found = examples(str(part))  # all of them with labels, and none of them bad
        if not found:
            libraries = ", ".join(documentation.LIBRARIES)
            raise UserError(f"{libraries}: no documentation for this task is in their installed sources")
        return found

    return Recipe(task, read, {"train": "train", "dev": "dev", **settings})


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
    # Which library is this docstring from?
    "docs-library": _documentation("classify", documentation.library_texts),
    # Does this summary belong to this description?
    "docs-summary": _documentation("classify", documentation.summary_pairs),
    # Which words are names of parameters?
    "docs-parameters": _documentation("tag", documentation.parameter_tags),
    # What is this parameter, or of what type?
    "docs-questions": _documentation("qa", documentation.parameter_questions),
    # Which function does this? A summary, and the description to be found by it.
    "docs-search": _documentation("similarity", documentation.search_pairs, loss="softmax"),
}
