"""Pages of ``minibert explore``, each with a model's pass and its gradients in it, to try on the site."""

import html
import warnings
from pathlib import Path

from minibert.explore.page import page
from minibert.explore.subjects import open_subject

MODEL = "mini"
# By the name of the page: what it shows, and the texts.
PAGES = {
    "garden": (
        "Which word is missing?",
        "The example of [the tour](docs/explore.md#a-tour): the answer forms layer by layer, and *opened* "
        "has a share in it.",
        ["she opened the [MASK] and looked out into the garden ."],
    ),
    "agreement": (
        "Is or are?",
        "One verb, three subjects. In two of them a noun of the other number stands between subject and "
        "verb. Choose the sentence at the top of the page.",
        [
            "the key to the old house [MASK] on the table .",
            "the key to the old houses [MASK] on the table .",
            "the keys to the old house [MASK] on the table .",
        ],
    ),
    "france": (
        "What does it know?",
        "A fact, asked in two ways. Compare how far up the layers the answer forms.",
        ["the capital of france is [MASK] .", "[MASK] is the capital of france ."],
    ),
}


def write_explorer_pages(folder: Path) -> None:
    """Write each page to a file of its own. They ask for nothing from anywhere."""
    warnings.filterwarnings("ignore", ".* does not use")  # an unused pooler is nothing to warn about
    subject = open_subject(MODEL, device="cpu", dtype="float32")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, _, texts) in PAGES.items():
        shown = page(subject, MODEL, [(text, None) for text in texts])
        (folder / f"{name}.html").write_text(shown, encoding="utf-8")


def index() -> str:
    """The page that shows them all, in Markdown."""
    parts = [
        "# The explorer, live\n\n"
        f"`minibert explore --output` wrote these pages. They show what the small model `{MODEL}` makes of a "
        "sentence, forwards and backwards, with every number in it. Move the slider, click a stream, open a "
        "value. [Look into a model](docs/explore.md) explains what you see. With the command you can try "
        "sentences of your own, and change something along the way."
    ]
    for name, (title, about, texts) in PAGES.items():
        sentences = "\n".join(f"- {text}" for text in texts)
        address = f"explorer/{name}.html"
        named = f'title="{html.escape(title)}" loading="lazy"'
        frame = f'<iframe class="explorer" src="{address}" {named}></iframe>'
        link = f"[Open it in a page of its own](site:{address})"
        parts.append(f"## {title}\n\n{about}\n\n{sentences}\n\n{link}\n\n{frame}")
    return "\n\n".join(parts) + "\n"
