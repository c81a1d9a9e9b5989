"""One offline page that shows what a model makes of some sentences."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from minibert.explore.look import look, tensor, words
from minibert.explore.subjects import Subject

SCRIPTS = ("base", "matrices", "river", "layers", "values", "words", "page")  # in the order in which they run


def page(
    subject: Subject, name: str, texts: Sequence[tuple[str, str | None]], answer: str | None = None
) -> str:
    """The page as HTML. It holds all values and derivatives, and asks for nothing from anywhere else.

    ``name`` is the model's. The texts are single ones or pairs, and asked about at their usual places.
    ``answer`` is that of ``look``, whose errors are raised.
    """
    sentences = [_sentence(subject, text, second, answer) for text, second in texts]
    return render({"about": about(subject, name), "sentences": sentences})


def about(subject: Subject, name: str) -> str:
    """A model in one line."""
    config, parameters = subject.model.config, sum(p.size for _, p in subject.model.named_parameters())
    return (
        f"{name}: {config.num_hidden_layers} layers, {config.num_attention_heads} heads, "
        f"hidden size {config.hidden_size}, {parameters:,} parameters"
    )


def render(data: dict[str, Any]) -> str:
    """The page with this data: finished ``sentences``, or ``live`` for one that asks a server."""
    static = files("minibert.explore") / "static"
    scripts = [*(["live"] if "live" in data else []), *SCRIPTS]
    written = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")  # so no text can end the script
    parts = {
        "/*style*/": (static / "page.css").read_text(encoding="utf-8"),
        "/*script*/": "\n".join((static / f"{name}.js").read_text(encoding="utf-8") for name in scripts),
        "/*data*/": written,  # last: a text may look like another mark
    }
    html = (static / "page.html").read_text(encoding="utf-8")
    for mark, part in parts.items():
        html = html.replace(mark, part)
    return html


def _sentence(subject: Subject, text: str, second: str | None, answer: str | None) -> dict[str, Any]:
    seen, found = look(subject, subject.encode(text, second), answer=answer)
    return {
        "text": text if second is None else f"{text} — {second}",
        "look": seen,
        "words": words(subject, found),
        "tensors": {name: tensor(subject, found, name) for name in found.values},
    }
