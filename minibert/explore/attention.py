"""The attention of all heads, as arcs and as matrices: in a notebook, or on a page."""

import html
import warnings
from pathlib import Path

import numpy as np

from minibert.arrays import to_numpy
from minibert.bert import BertModel
from minibert.errors import UserError
from minibert.explore.attributions import rollout
from minibert.explore.look import packed
from minibert.explore.page import render
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.variants import open_model


class View:
    """A page that a notebook shows inside the output of a cell. ``html`` is the page itself."""

    def __init__(self, page: str, height: int):
        self.html, self._height = page, height

    def __repr__(self) -> str:
        return "View: a page of arcs and matrices, which a notebook shows"

    def _repr_html_(self) -> str:
        source = html.escape(self.html)
        style = f"width: 100%; height: {self._height}px; border: 0"
        return f'<iframe title="What every head looks at" srcdoc="{source}" style="{style}"></iframe>'


def view(
    model: BertModel | str | Path,
    text: str,
    second: str | None = None,
    *,
    tokenizer: PretrainedTokenizer | None = None,
    height: int = 620,
) -> View:
    """Show what every head of a model looks at in a text, or in a pair of texts.

    ``model`` is a folder, the name of a model that comes with the package, or an encoder; then the
    ``tokenizer`` has to be given, too. ``height`` is that of the output, in pixels. Raises UserError for a
    text that does not fit the model.
    """
    name = "attention"
    if not isinstance(model, BertModel):
        name = f"attention in {model}"
        folder = model
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* does not use")  # heads are not looked at
            model = open_model(BertModel, folder)
        tokenizer = open_tokenizer(folder)
    if tokenizer is None:
        raise UserError("give the tokenizer of the model, too: view(model, text, tokenizer=…)")
    model.eval()
    batch = tokenizer([text], None if second is None else [second])
    outputs, _ = model.forward(**batch, return_attentions=True)
    maps = np.stack([to_numpy(p)[0] for p in outputs.attentions or ()])  # (L, A, S, S)
    shown = {
        "tokens": [tokenizer.tokens[i] for i in batch["input_ids"][0]],
        "maps": packed(maps),
        "rollout": packed(rollout(list(maps))),
    }
    return View(render({"about": name, "attention": shown}), height)
