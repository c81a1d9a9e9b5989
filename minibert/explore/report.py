"""Explanations as a person reads them: as text with bars, or as one page without a network."""

import html
import math
from collections.abc import Iterator, Sequence
from importlib.resources import files

import numpy as np

from minibert.explore.explain import LARGE_GAP, Explanation

BAR = 10  # characters of the longest
MOST_OF_WORD = 24  # characters of a word in the table
LEAST = 0.01  # of the largest weight that is worth a shade
BLUE, ORANGE, PLAIN = "\x1b[38;5;33m", "\x1b[38;5;208m", "\x1b[0m"

LARGE = f"the gap is more than {LARGE_GAP:.0%} of the difference; give more --steps"


def as_text(told: Explanation, colours: bool = False) -> str:
    """A table: a row per word, and a number and a bar per method. Each method has its own scale.

    A full bar (blue, with ``colours``) speaks for the answer, a hatched one (orange) against it.
    """
    rows = [part.text.strip()[:MOST_OF_WORD] for part in told.parts]
    width = max(map(len, [*rows, "word"]))
    columns = [_column(weights, colours) for weights in told.methods.values()]
    head = [f"{name:<{width}}" for name in ["word"]] + [f"{name:<{BAR + 10}}" for name in told.methods]
    lines = [*summary(told), "", "  ".join(head).rstrip()]
    source = 0
    for i, part in enumerate(told.parts):
        if part.source != source:
            lines.append("")
            source = part.source
        lines.append("  ".join([f"{rows[i]:<{width}}", *(column[i] for column in columns)]).rstrip())
    return "\n".join(lines) + "\n"


def summary(told: Explanation) -> Iterator[str]:
    """What was asked, what the model answers, and whether the integrated gradients add up: a few lines."""
    yield told.text if told.second is None else f"{told.text} — {told.second}"
    yield ""
    about = "" if told.asked is None else f"at {told.asked.text.strip()!r}: "
    sure = "" if told.p is None else f", p = {told.p:.3g}"
    yield f"{about}{told.measure} = {_shown(told.value)}{sure}"
    yield f"baseline ({told.nothing} for every word): {_shown(told.below)}"
    yield (
        f"integrated gradients ({told.settings.steps} steps) sum to {_shown(told.total)}; "
        f"the difference is {_shown(told.value - told.below)}, the gap {_shown(told.gap)} ({_share(told)})"
    )
    if told.has_large_gap:
        yield f"warning: {LARGE}"


def _share(told: Explanation) -> str:
    return f"{told.relative_gap:.2%}" if math.isfinite(told.relative_gap) else "of no difference"


def _shown(number: float) -> str:
    return f"{number:.4g}".replace("-", "−")


def _column(weights: np.ndarray, colours: bool) -> list[str]:
    """A number and a bar for each weight; a dash where there is none."""
    largest, cells = _largest(weights), []
    for weight in weights:
        if np.isnan(weight):
            cells.append(f"{'–':>8}  {'':{BAR}}")
            continue
        bar = ("█" if weight > 0 else "▒") * round(BAR * abs(weight) / largest)
        colour = BLUE if weight > 0 else ORANGE
        cells.append(
            f"{_signed(weight, largest):>8}  {colour * colours}{bar}{PLAIN * colours}{'':{BAR - len(bar)}}"
        )
    return cells


def _largest(weights: np.ndarray) -> float:
    """The scale of a method: its largest weight, or 1 if there is none."""
    known = np.abs(weights[~np.isnan(weights)])
    return float(known.max()) if known.any() else 1.0


def _signed(weight: float, largest: float) -> str:
    """Three digits of the largest weight, and as many decimals for all others; two if all are tiny."""
    decimals = max(0, 2 - math.floor(math.log10(largest)))
    return (f"{weight:+.{decimals}f}" if decimals <= 5 else f"{weight:+.1e}").replace("-", "−")


# -- The page ----------------------------------------------------------------------------------------


def as_page(explanations: Sequence[Explanation], model: str) -> str:
    """One HTML page, for light and dark screens of any width, which asks for nothing from anywhere.

    ``model`` is the model's name. The text is shown once per method, its words shaded by their weights.
    """
    page = (files("minibert.explore") / "static" / "explain.html").read_text(encoding="utf-8")
    articles = "\n".join(map(_article, explanations))
    return page.replace("<!--model-->", html.escape(model)).replace("<!--articles-->", articles)


def _article(told: Explanation) -> str:
    title, _, *lines = summary(told)
    kinds = [' class="warning"' if line.startswith("warning") else "" for line in lines]
    said = "\n".join(f"<p{kind}>{html.escape(line)}</p>" for kind, line in zip(kinds, lines, strict=True))
    shaded = "\n".join(
        f"<dt>{name}</dt>\n<dd>{_shaded(told, weights)}</dd>" for name, weights in told.methods.items()
    )
    return (
        f"<article>\n<h2>{html.escape(title)}</h2>\n{said}\n<dl>\n{shaded}\n</dl>\n{_table(told)}\n</article>"
    )


def _shaded(told: Explanation, weights: np.ndarray) -> str:
    """The text, or both, in which each part has a background as strong as its weight."""
    largest, texts = _largest(weights), [told.text, told.second or ""]
    shown = ["", ""]
    at = [0, 0]
    for part, weight in zip(told.parts, weights, strict=True):
        text, start, stop = texts[part.source], max(part.start, at[part.source]), part.stop
        shown[part.source] += html.escape(text[at[part.source] : start])
        shown[part.source] += _mark(text[start:stop], weight, largest)
        at[part.source] = max(stop, start)
    ends = [html.escape(text[done:]) for text, done in zip(texts, at, strict=True)]
    return "<br>".join(one + end for one, end in zip(shown, ends, strict=True) if one + end)


def _mark(text: str, weight: float, largest: float) -> str:
    shown, share = html.escape(text), abs(weight) / largest
    if not text or not share >= LEAST:  # as NaN is not
        return shown
    kind = "for" if weight > 0 else "against"
    return f'<mark class="{kind}" style="--w:{share:.3f}" title="{_signed(weight, largest)}">{shown}</mark>'


def _table(told: Explanation) -> str:
    head = "".join(f"<th>{name}</th>" for name in ["word", *told.methods])
    rows = []
    for i, part in enumerate(told.parts):
        cells = [
            "–" if np.isnan(weights[i]) else _signed(weights[i], _largest(weights))
            for weights in told.methods.values()
        ]
        rows.append(
            f"<tr><th>{html.escape(part.text)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        )
    body = "\n".join(rows)
    return f"<details>\n<summary>numbers</summary>\n<table>\n<tr>{head}</tr>\n{body}\n</table>\n</details>"
