"""A model's README.md: what it is, what it was made from and how, how good it is, and how to use it."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from minibert.bert import BertForMaskedLM, BertForPreTraining, BertModel
from minibert.errors import UserError
from minibert.files import write_text
from minibert.folders.model import PretrainedModel
from minibert.folders.weights import open_weights
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import architectures, family, open_config
from minibert.variants.electra import ElectraForPreTraining

CARD = "README.md"
PARAMETERS = "parameters"
LONGEST_INPUT = "longest input"  # the name of its row


@dataclass(frozen=True)
class Kind:
    """A kind of model: Hugging Face's name for its use, what it does, and how to use it."""

    pipeline: str
    about: str
    command: str
    python: str


def _predictor(pipeline: str, about: str, *asked: str) -> Kind:
    """A kind of model for ``minibert predict``, with the text or pair of texts ``asked`` as an example."""
    typed = " --pair ".join(f'"{text}"' for text in asked)
    given = ", ".join(f'["{text}"]' for text in asked)
    return Kind(
        pipeline,
        about,
        f"minibert predict --model FOLDER {typed}",
        f'from minibert.tasks import predict_texts\n\npredict_texts("FOLDER", {given})',
    )


_MASKED = Kind(
    "fill-mask",
    "guesses hidden words, and can be fine-tuned for other tasks",
    'minibert fill-mask --model FOLDER "a [MASK] text"',
    "from minibert import BertForMaskedLM, open_model, open_tokenizer\n"
    "from minibert.tasks import fill_mask\n\n"
    'model, tokenizer = open_model(BertForMaskedLM, "FOLDER"), open_tokenizer("FOLDER")\n'
    'fill_mask(model, tokenizer, "a [MASK] text")',
)
_DISCRIMINATOR = Kind(
    "feature-extraction",
    "tells which words of a text were replaced, and is to be fine-tuned (the generator is in `generator`)",
    "minibert finetune --task classify --model FOLDER --train train.tsv --dev dev.tsv --name mine",
    "from minibert import open_model, open_tokenizer\n"
    "from minibert.variants.electra import ElectraForPreTraining\n\n"
    'model, tokenizer = open_model(ElectraForPreTraining, "FOLDER"), open_tokenizer("FOLDER")\n'
    'outputs, _ = model.forward(**tokenizer(["a text"]))\n'
    "outputs.logits > 0  # which tokens it takes for replaced",
)
_SENTENCES = Kind(
    "sentence-similarity",
    "turns a text into a vector that is close to those of texts that mean the same",
    "minibert embed --model FOLDER --input texts.txt --output vectors.npy",
    "from minibert.tasks.embed import TextEncoder\n\n"
    'TextEncoder.open("FOLDER").embed(["a text", "another text"])',
)

_PAIRS = _predictor(
    "text-classification", "gives a label or a number to a pair of texts", "a text", "another text"
)

KINDS: dict[type[PretrainedModel], Kind] = {  # by BERT's class for the same
    BertForSequenceClassification: _predictor(
        "text-classification", "gives a label or a number to a text", "a text"
    ),
    BertForTokenClassification: _predictor("token-classification", "tags the words of a text", "a text"),
    BertForQuestionAnswering: _predictor(
        "question-answering", "finds the answer to a question in a passage", "a question", "a passage"
    ),
    BertForPreTraining: _MASKED,
    BertForMaskedLM: _MASKED,
    BertModel: _SENTENCES,
    ElectraForPreTraining: _DISCRIMINATOR,
}

LIMITS = (
    "This card does not say how good it is on data other than that named here.",
    "It may have learned what its texts get wrong or leave out; this was not examined.",
)


def write_model_card(
    folder: str | Path,
    *,
    name: str,
    data: Mapping[str, str],
    recipe: Mapping[str, Any],
    command: str | None = None,
    scores: Mapping[str, Sequence[float]] | None = None,
    scored_on: str = "dev",
    best: int = 0,
    pairs: bool = False,
    sections: Mapping[str, str] | None = None,
    limits: Sequence[str] = (),
    licence: str | None = None,
) -> None:
    """Write ``README.md`` into a folder that has its model and its vocabulary already.

    The kind of model, its sizes and its labels are read from the folder. Everything else is given, and a part
    without content is left out.

    Args:
        name: of the model, for the title.
        data: what each part of the data was, such as {"train": "reviews.tsv, 3,576 examples"}.
        recipe: the settings that matter, and what it began from: {"began from": "…", "epochs": 3}.
        command: the command line that made the model.
        scores: by name, a value for each restart: {"f1": [0.383, 0.391]}. Deviations are a sample's (n − 1).
        scored_on: what the scores were measured on.
        best: which of the restarts this model is, counted from 0.
        pairs: whether it gives labels or numbers to pairs of texts.
        sections: further sections, by their titles.
        limits: further things that it is known not to do.
        licence: Hugging Face's name for it, such as "apache-2.0".

    Raises UserError if the folder's model is of a kind that there is no card for.
    """
    folder = Path(folder)
    sizes, kind = _sizes(folder), _kind(folder, pairs)
    parts = [
        f"---\n{_metadata(kind, family(folder).config.model_type, licence)}\n---",
        f"# {name}",
        f"A BERT that {kind.about}, made with minibert.",
        _table(("size", ""), sizes.items()),
        *_section("Data", _table(("part", "content"), data.items())),
        *_section("Training", _code("sh", command), _table(("setting", "value"), recipe.items())),
        *_section("Results", *_results(scores or {}, scored_on, best)),
        *(part for title, text in (sections or {}).items() for part in _section(title, text)),
        *_section("Use", "FOLDER is this folder.", *_use(kind, open_tokenizer(folder))),
        *_section("Limits", "\n".join(f"- {limit}" for limit in (*LIMITS, *limits))),
    ]
    write_text(folder / CARD, "\n\n".join(filter(None, parts)) + "\n")


def _use(kind: Kind, tokenizer: PretrainedTokenizer) -> list[str]:
    """The command and the code, with the mask as this tokenizer writes it."""
    mask = tokenizer.special_tokens["mask_token"]
    return [
        _code("sh", kind.command.replace("[MASK]", mask)),
        _code("python", kind.python.replace("[MASK]", mask)),
    ]


def _metadata(kind: Kind, model_type: str, licence: str | None) -> str:
    lines = [f"pipeline_tag: {kind.pipeline}", "tags:", f"- {model_type}"]
    return "\n".join([f"license: {licence}", *lines] if licence else lines)


def _kind(folder: Path, pairs: bool) -> Kind:
    named, models = next(iter(architectures(folder)), None), family(folder).models
    classes = {models[kind].__name__: kind for kind in KINDS if kind in models}
    if named not in classes:
        raise UserError(f"{folder}: a model of class {named}; there are cards for {', '.join(classes)}")
    kind = classes[named]
    return _PAIRS if pairs and kind is BertForSequenceClassification else KINDS[kind]


def _sizes(folder: Path) -> dict[str, str]:
    """What the folder itself says about the model."""
    config, tokenizer = open_config(folder), open_tokenizer(folder)
    tensors = open_weights(folder)
    sizes = {
        "layers": f"{config.num_hidden_layers}",
        "hidden size": f"{config.hidden_size}",
        "attention heads": f"{config.num_attention_heads}",
        PARAMETERS: f"{sum(prod(tensor.shape) for tensor in tensors.values()):,}",
        "vocabulary": f"{len(tokenizer):,} tokens, {'lower-cased' if tokenizer.lowercase else 'cased'}",
        LONGEST_INPUT: f"{config.longest_sequence} tokens",
    }
    if config.id2label:
        sizes["labels"] = ", ".join(config.labels)
    if config.crf:
        sizes["on top"] = "a linear-chain CRF (transformers opens this model without it)"
    return sizes


def parameters(count: int) -> str:
    """The line of a card that says how many numbers the model has learned."""
    return _row([PARAMETERS, f"{count:,}"])


def longest_input(length: int) -> str:
    """The line of a card that says how many tokens the model can read."""
    return _row([LONGEST_INPUT, f"{length} tokens"])


def _results(scores: Mapping[str, Sequence[float]], scored_on: str, best: int) -> list[str]:
    """Every score of this model and, if there are several restarts, their mean and standard deviation."""
    if not scores:
        return []
    restarts = max(map(len, scores.values()))
    told, columns = f"Measured on {scored_on}.", ["", "this model"]
    rows = [[name, f"{values[best]:.4f}"] for name, values in scores.items()]
    if restarts > 1:
        told += f" This model is restart {best + 1} of {restarts}."
        columns.append("mean ± standard deviation")
        for row, values in zip(rows, scores.values(), strict=True):
            row.append(f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}")
    return [told, _table(columns, rows)]


def _section(title: str, *parts: str) -> list[str]:
    """A section, if any of its parts has content."""
    return [f"## {title}", *parts] if any(parts) else []


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [_row(row) for row in rows]
    return "\n".join([_row(head), _row("-" * len(head)), *lines]) if lines else ""


def _row(values: Sequence[Any]) -> str:
    return f"| {' | '.join(map(_cell, values))} |"


def _cell(value: Any) -> str:
    told = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
    return str(told).replace("|", r"\|")


def _code(language: str, text: str | None) -> str:
    return f"```{language}\n{text}\n```" if text else ""
