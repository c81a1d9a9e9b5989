"""One offline page that shows what a model makes of some sentences."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from minibert.bert import BertForPreTraining
from minibert.explore.look import look, tensor, words
from minibert.explore.passes import encode
from minibert.files import write_text
from minibert.text import PretrainedTokenizer


def page(
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    name: str,
    texts: Sequence[str],
    answer: str | None = None,
) -> str:
    """The page as HTML. It holds all values and derivatives, and asks for nothing from anywhere else.

    ``name`` is the model's. Each of the texts has a [MASK], of which the first is looked at. ``answer`` is
    that of ``look``, whose errors are raised.
    """
    return render(
        {
            "about": about(model, name),
            "sentences": [_sentence(model, tokenizer, text, answer) for text in texts],
        }
    )


def about(model: BertForPreTraining, name: str) -> str:
    """A model in one line."""
    config, parameters = model.config, sum(p.size for _, p in model.named_parameters())
    return (
        f"{name}: {config.num_hidden_layers} layers, {config.num_attention_heads} heads, "
        f"hidden size {config.hidden_size}, {parameters:,} parameters"
    )


def render(data: dict[str, Any]) -> str:
    """The page with this data: finished ``sentences``, or ``live`` for one that asks a server."""
    static = files("minibert.explore") / "static"
    scripts = ["live.js", "page.js"] if "live" in data else ["page.js"]
    written = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # so no text can end the script
    parts = {
        "/*style*/": (static / "page.css").read_text(encoding="utf-8"),
        "/*script*/": "\n".join((static / name).read_text(encoding="utf-8") for name in scripts),
        "/*data*/": written,  # last: a text may look like another mark
    }
    html = (static / "page.html").read_text(encoding="utf-8")
    for mark, part in parts.items():
        html = html.replace(mark, part)
    return html


def _sentence(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, text: str, answer: str | None
) -> dict[str, Any]:
    seen, found = look(model, tokenizer, encode(tokenizer, text), answer=answer)
    return {
        "text": text,
        "look": seen,
        "words": words(model, tokenizer, found),
        "tensors": {name: tensor(model, found, name) for name in found.values},
    }


def write_page(
    path: str | Path,
    model: BertForPreTraining,
    tokenizer: PretrainedTokenizer,
    name: str,
    texts: Sequence[str],
    answer: str | None = None,
) -> None:
    """Write the ``page`` into a file."""
    write_text(path, page(model, tokenizer, name, texts, answer))
