"""BERT on one page: every step of pre-training with its equation, its shape, its cache and its gradient.

    python -m minibert.course.poster docs/images/poster.svg

The page is drawn from :data:`STAGES`, a table that tests compare with a pass through a real model.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from minibert.files import atomic_file
from minibert.plots import BLUE, GREEN, GREY, VERMILION

LETTERS = {
    "B": "sequences in a batch",
    "S": "tokens in a sequence",
    "H": "hidden size",
    "A": "attention heads",
    "D": "features of a head, H/A",
    "F": "features inside the feed-forward network",
    "L": "layers",
    "P": "positions to predict, of the whole batch",
    "V": "tokens in the vocabulary",
}


@dataclass(frozen=True)
class Stage:
    """One step of the forward pass, and its backward pass.

    ``shape`` is that of what it gives, in :data:`LETTERS`. ``kept`` is what its backward pass needs: symbols
    with their shapes. ``observed`` is what an observer calls the value, where one can see it.
    """

    part: str
    name: str
    equation: str
    symbol: str
    shape: str
    kept: tuple[tuple[str, str], ...]
    gradients: tuple[str, ...]
    observed: str = ""


_NORM_KEPT = ((r"$\hat x$", "B S H"), (r"$1/\sigma$", "B S"))
_FIRST = "encoder.layer.0"

STAGES = (
    Stage(
        "embeddings",
        "Embeddings",
        r"$e = E[\mathrm{ids}] + E_\mathrm{type}[\mathrm{types}] + E_\mathrm{pos}[0 \ldots S{-}1]$",
        "$e$",
        "B S H",
        (("ids, types", "B S"),),
        (
            r"$dE[v] \leftarrow dE[v] + \sum_{b,s:\,\mathrm{ids}=v} de$   (scatter-add)",
            r"$dE_\mathrm{type}, dE_\mathrm{pos}$: the same with types and positions",
        ),
    ),
    Stage(
        "embeddings",
        "LayerNorm, dropout",
        r"$h = \gamma \odot \hat x + \beta, \quad \hat x = (e - \mu)/\sigma$",
        "$h$",
        "B S H",
        _NORM_KEPT,
        (
            r"$g = \gamma \odot dh$",
            r"$de = (g - \bar g - \hat x \odot \overline{g \odot \hat x})\,/\,\sigma$",
        ),
        "embeddings",
    ),
    Stage(
        "layer",
        "Query, key, value",
        r"$q = h W_q^\top + b_q$   (and $k$, $v$), split into heads",
        "$q, k, v$",
        "B A S D",
        (("$h$", "B S H"),),
        (r"$dW_q = dq^\top h, \quad db_q = \sum dq$", r"$dh \leftarrow dh + dq\,W_q + dk\,W_k + dv\,W_v$"),
        f"{_FIRST}.attention.self.q",
    ),
    Stage(
        "layer",
        "Scores",
        r"$s = q k^\top / \sqrt{D} + \mathrm{mask}$",
        "$s$",
        "B A S S",
        (("$q, k$", "B A S D"),),
        (r"$dq = ds\,k / \sqrt{D}, \quad dk = ds^\top q / \sqrt{D}$",),
        f"{_FIRST}.attention.self.scores",
    ),
    Stage(
        "layer",
        "Softmax, dropout",
        r"$p = \mathrm{softmax}(s)$",
        "$p$",
        "B A S S",
        (("$p$", "B A S S"),),
        (r"$ds = p \odot (dp - \sum_j dp_j\,p_j)$",),
        f"{_FIRST}.attention.self.probabilities",
    ),
    Stage(
        "layer",
        "Mix the values",
        r"$c = p\,v$, heads merged",
        "$c$",
        "B S H",
        (("$p$", "B A S S"), ("$v$", "B A S D")),
        (r"$dp = dc\,v^\top, \quad dv = p^\top dc$",),
        f"{_FIRST}.attention.self.context",
    ),
    Stage(
        "layer",
        "Output, add, LayerNorm",
        r"$a = \mathrm{LN}(h + \mathrm{dropout}(c\,W_o^\top + b_o))$",
        "$a$",
        "B S H",
        (("$c$", "B S H"), *_NORM_KEPT),
        (
            r"back through LN: $dr$, for both summands",
            r"$dW_o = dr^\top c, \quad dc = dr\,W_o, \quad dh \leftarrow dr$",
        ),
        f"{_FIRST}.attention",
    ),
    Stage(
        "layer",
        "Feed-forward, GELU",
        r"$f = \mathrm{gelu}(u), \quad u = a\,W_1^\top + b_1$",
        "$f$",
        "B S F",
        (("$a$", "B S H"), ("$u$", "B S F")),
        (
            r"$du = df \odot (\Phi(u) + u\,\varphi(u))$",
            r"$dW_1 = du^\top a, \quad da \leftarrow da + du\,W_1$",
        ),
        f"{_FIRST}.intermediate",
    ),
    Stage(
        "layer",
        "Output, add, LayerNorm",
        r"$h' = \mathrm{LN}(a + \mathrm{dropout}(f\,W_2^\top + b_2))$",
        "$h'$",
        "B S H",
        (("$f$", "B S F"), *_NORM_KEPT),
        (
            r"back through LN: $dr$, for both summands",
            r"$dW_2 = dr^\top f, \quad df = dr\,W_2, \quad da \leftarrow dr$",
        ),
        _FIRST,
    ),
    Stage(
        "masked words",
        "Gather, transform",
        r"$z = \mathrm{LN}(\mathrm{gelu}(h'[\mathrm{positions}]\,W_t^\top + b_t))$",
        "$z$",
        "P H",
        (("rows of $h'$, $u$, $\\hat x$", "P H"), (r"$1/\sigma$", "P")),
        (r"back through LN, GELU and $W_t$, as above", "into their rows of $dh'$; the other rows get 0"),
    ),
    Stage(
        "masked words",
        "Tied decoder",
        r"$y = z E^\top + b$",
        "$y$",
        "P V",
        (("$z$", "P H"),),
        (r"$dE \leftarrow dy^\top z, \quad dz = dy\,E$",),
    ),
    Stage(
        "masked words",
        "Cross-entropy",
        r"$\mathcal{L}_{\mathrm{MLM}} = -\frac{1}{P}\sum \ln \mathrm{softmax}(y)_{\mathrm{label}}$",
        r"$\mathcal{L}_{\mathrm{MLM}}$",
        "",
        (("$p$", "P V"),),
        (r"$dy = (p - \mathrm{onehot}(\mathrm{label}))\,/\,P$",),
    ),
    Stage(
        "next sentence",
        "Pooler",
        r"$t = \tanh(h'_{\mathrm{[CLS]}} W_p^\top + b_p)$",
        "$t$",
        "B H",
        ((r"$h'_{\mathrm{[CLS]}}$, $t$", "B H"),),
        (
            r"$du = dt \odot (1 - t^2), \quad dW_p = du^\top h'_{\mathrm{[CLS]}}$",
            r"$dh'_{\mathrm{[CLS]}} \leftarrow dh'_{\mathrm{[CLS]}} + du\,W_p$",
        ),
    ),
    Stage(
        "next sentence",
        "Classifier, cross-entropy",
        r"$\mathcal{L}_{\mathrm{NSP}} = -\frac{1}{B}\sum \ln \mathrm{softmax}"
        r"(t\,W_n^\top + b_n)_{\mathrm{label}}$",
        r"$\mathcal{L}_{\mathrm{NSP}}$",
        "",
        (("$t$", "B H"), ("$p$", "B 2")),
        (r"$dn = (p - \mathrm{onehot}(\mathrm{label}))\,/\,B, \quad dt = dn\,W_n$",),
    ),
)

HEADINGS = {
    "embeddings": "A text becomes vectors",
    "layer": "L layers, one after another",
    "masked words": "Which words were hidden?",
    "next sentence": "Does the second follow?",
}

# the page, in units of which 10 make an inch
WIDTH, ROW, GAP = 164.0, 9.6, 11.0
RAIL, BOX, KEPT, BACK, RIGHT = 5.0, 16.0, 82.0, 106.0, 160.0
BOX_RIGHT, BACK_LANE = 76.0, 156.5
TEXT, SMALL = 12.5, 11.0


def text_of() -> str:
    """All that the page says of the stages, a line each. The file holds it, too."""
    lines = []
    for stage in STAGES:
        kept = ", ".join(f"{symbol} ({shape.replace(' ', ', ')})" for symbol, shape in stage.kept)
        lines.append(
            f"{stage.name} | {stage.equation} | ({stage.shape.replace(' ', ', ')}) | {kept} | "
            + "; ".join(stage.gradients)
        )
    return "\n".join(lines)


def draw() -> Figure:
    """The poster, as a figure of 16.4 inches times what the rows need."""
    tops = _tops()
    height = tops[-1] + 40
    figure = Figure(figsize=(WIDTH / 10, height / 10))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    _title(axes)
    _frame_of_the_layers(axes, tops)
    for stage, top in zip(STAGES, tops, strict=True):
        _row(axes, stage, top)
    _forward_arrows(axes, tops)
    _backward_arrows(axes, tops)
    _two_heads(axes, tops)
    _tied_matrix(axes, tops)
    _loss_and_legend(axes, tops[-1] + ROW)
    return figure


def _tops() -> list[float]:
    """Where each stage begins, from the top; a new part leaves room for its heading."""
    tops, y, part = [], 30.0, ""
    for stage in STAGES:
        y += GAP if stage.part != part else 4.4
        part = stage.part
        tops.append(y)
        y += ROW
    return tops


def _title(axes: Axes) -> None:
    axes.text(BOX, 9, "BERT, forwards and backwards", fontsize=30, fontweight="bold", va="center")
    letters = " · ".join(f"{letter} {meaning}" for letter, meaning in LETTERS.items())
    half = letters.index(" · F")
    for y, line in ((16.0, letters[:half]), (19.6, letters[half + 3 :])):
        axes.text(BOX, y, line, fontsize=SMALL, color=GREY, va="center")
    for x, heading, colour in (
        (BOX, "forward pass: what it computes, and its shape", BLUE),
        (KEPT, "what it keeps", GREY),
        (BACK, "backward pass: from bottom to top", VERMILION),
    ):
        axes.text(x, 26.5, heading, fontsize=TEXT + 1.5, color=colour, fontweight="bold", va="center")


def _frame_of_the_layers(axes: Axes, tops: list[float]) -> None:
    """A dashed frame around what is repeated L times."""
    rows = [top for stage, top in zip(STAGES, tops, strict=True) if stage.part == "layer"]
    top, bottom = rows[0] - 2.2, rows[-1] + ROW + 2.2
    frame = FancyBboxPatch(
        (BOX - 6.2, top), RIGHT - BOX + 8.2, bottom - top, boxstyle="round,pad=0,rounding_size=2",
        facecolor="#f7f7f7", edgecolor=GREY, linestyle="--", linewidth=1.2, zorder=0,
    )  # fmt: skip
    axes.add_patch(frame)
    axes.text(RIGHT - 7.5, top + 3.6, "L ×", fontsize=20, color=GREY, ha="right", va="center")


def _row(axes: Axes, stage: Stage, top: float) -> None:
    middle = top + ROW / 2
    box = FancyBboxPatch(
        (BOX, top), BOX_RIGHT - BOX, ROW, boxstyle="round,pad=0,rounding_size=1.4",
        facecolor="white", edgecolor=BLUE, linewidth=1.5,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(BOX + 1.6, top + 2.9, stage.name, fontsize=TEXT, fontweight="bold", va="center")
    axes.text(BOX + 1.6, top + 6.7, stage.equation, fontsize=TEXT, va="center")
    kept = [f"{symbol}  {_tuple(shape)}" for symbol, shape in stage.kept]
    _lines(axes, KEPT, middle, kept, "black")
    _lines(axes, BACK, middle, stage.gradients, VERMILION)


def _lines(axes: Axes, x: float, middle: float, lines: Sequence[str], colour: str) -> None:
    """Lines of text, centred on a height."""
    step = 3.5
    for number, line in enumerate(lines):
        y = middle + (number - (len(lines) - 1) / 2) * step
        axes.text(x, y, line, fontsize=TEXT, color=colour, va="center")


def _tuple(shape: str) -> str:
    return f"({shape.replace(' ', ', ')})" if shape else "a number"


def _forward_arrows(axes: Axes, tops: list[float]) -> None:
    """Down the middle of the boxes, each with the shape of what it carries; and the ways round."""
    x = (BOX + BOX_RIGHT) / 2
    _arrow(axes, (x, tops[0] - 6.0), (x, tops[0]), BLUE)
    text = '"my [MASK] is john ."  →'
    axes.text(x - 2, tops[0] - 5.2, text, fontsize=TEXT, ha="right", va="center", family="monospace")
    axes.text(x + 1.5, tops[0] - 3.4, "ids, types  (B, S)", fontsize=TEXT, color=BLUE, va="center")
    for stage, top, after in zip(STAGES, tops, tops[1:], strict=False):
        if not stage.shape:
            continue
        _arrow(axes, (x, top + ROW), (x, after), BLUE)
        label = f"{stage.symbol}  {_tuple(stage.shape)}"
        # below the frame of the layers, if it leaves that
        y = after - 5.0 if after - top > ROW + GAP - 1 and stage.part == "layer" else top + ROW + 2.3
        axes.text(x + 1.5, y, label, fontsize=TEXT, color=BLUE, va="center")
    for part, heading in HEADINGS.items():
        y = tops[_first(part)] - (9.4 if part == "embeddings" else 4.4)
        axes.text(BOX, y, heading, fontsize=TEXT, style="italic", color=GREY, va="center")
    qkv = _first("layer")
    attended, inner, last = qkv + 4, qkv + 5, qkv + 6
    _around(axes, tops[qkv] - 2.0, tops[attended] + 4.8, x, "$+\\,h$")
    _around(axes, tops[inner] - 2.0, tops[last] + 4.8, x, "$+\\,a$")


def _first(part: str) -> int:
    """The number of a part's first stage."""
    return next(number for number, stage in enumerate(STAGES) if stage.part == part)


def _around(axes: Axes, start: float, end: float, middle: float, text: str) -> None:
    """A residual connection: from the arrow in the middle, left around the boxes, into one of them."""
    left = BOX - 3.6
    axes.plot([middle, left, left], [start, start, end], color=BLUE, linewidth=1.5, zorder=1)
    _arrow(axes, (left, end), (BOX, end), BLUE)
    axes.text(left + 0.5, (start + end) / 2, text, fontsize=TEXT, color=BLUE, va="center")


def _backward_arrows(axes: Axes, tops: list[float]) -> None:
    """At the right, up from each stage to the one before it."""
    for stage, top, after in zip(STAGES, tops, tops[1:], strict=False):
        if stage.shape:
            _arrow(axes, (BACK_LANE, after + 1.2), (BACK_LANE, top + ROW - 1.2), VERMILION)


def _two_heads(axes: Axes, tops: list[float]) -> None:
    """Both heads begin at the output of the last layer and end in one sum, so lines lead round each."""
    middle = (BOX + BOX_RIGHT) / 2
    words, pooler = tops[_first("masked words")], tops[_first("next sentence")]
    cross_entropy = tops[_first("next sentence") - 1] + ROW / 2
    end = tops[-1] + ROW + 8.6
    fork, lane = words - 2.6, BOX_RIGHT + 2.2
    axes.plot(
        [middle, lane, lane, middle], [fork, fork, pooler - 5.6, pooler - 5.6], color=BLUE, linewidth=1.5
    )
    _arrow(axes, (middle, pooler - 5.6), (middle, pooler), BLUE)
    axes.text(middle + 1.5, pooler - 3.2, "$h'$ at [CLS]  (B, H)", fontsize=TEXT, color=BLUE, va="center")
    lane = BOX - 3.6
    axes.plot([BOX, lane, lane], [cross_entropy, cross_entropy, end], color=BLUE, linewidth=1.5)
    _arrow(axes, (lane, end), (middle - 11, end), BLUE)
    _arrow(axes, (BACK_LANE, end - 1.6), (BACK_LANE, tops[-1] + ROW - 1.2), VERMILION)
    lane = BACK_LANE - 3
    axes.plot([lane, lane], [end - 1.6, cross_entropy + 3], color=VERMILION, linewidth=1.5)
    _arrow(axes, (lane, cross_entropy + 3), (lane, cross_entropy - 1), VERMILION)
    lane = BACK_LANE + 3
    axes.plot([BACK_LANE, lane, lane], [pooler + 3, pooler + 3, words - 6.2], color=VERMILION, linewidth=1.5)
    _arrow(axes, (lane, words - 6.2), (BACK_LANE + 0.2, words - 6.2), VERMILION)


def _tied_matrix(axes: Axes, tops: list[float]) -> None:
    """One matrix at both ends: a bar at the left that joins the embeddings and the decoder."""
    top, bottom = tops[0] + ROW / 2, tops[10] + ROW / 2
    axes.plot([BOX, RAIL, RAIL, BOX], [top, top, bottom, bottom], color=GREEN, linewidth=4, zorder=1)
    axes.text(
        RAIL - 2.2, (top + bottom) / 2, "one matrix  $E$  (V, H): its two gradients are added",
        fontsize=TEXT + 1, color=GREEN, rotation=90, ha="center", va="center",
    )  # fmt: skip


def _loss_and_legend(axes: Axes, below: float) -> None:
    """Where both losses meet, and what happens to the gradients."""
    x = (BOX + BOX_RIGHT) / 2
    _arrow(axes, (x, below), (x, below + 6), BLUE)
    total = r"$\mathcal{L} = \mathcal{L}_{\mathrm{MLM}} + \mathcal{L}_{\mathrm{NSP}}$"
    axes.text(x, below + 8.6, total, fontsize=TEXT + 5, color=BLUE, ha="center", va="center")
    back = r"$d\mathcal{L} = 1$, and back up"
    axes.text(BACK, below + 8.6, back, fontsize=TEXT + 2, color=VERMILION, va="center")
    step = (
        r"Then a step of Adam for each weight $\theta$:   "
        r"$m \leftarrow \beta_1 m + (1 - \beta_1)\,d\theta$,   "
        r"$v \leftarrow \beta_2 v + (1 - \beta_2)\,d\theta^2$,   "
        r"$\theta \leftarrow \theta - \eta\,(m / (\sqrt{v} + \epsilon) + \lambda\,\theta)$"
    )
    axes.text(BOX, below + 16.5, step, fontsize=TEXT, va="center")
    notes = (
        "Where a value is used twice, its gradients are added. Every dropout also keeps its mask, or the "
        "key that it is drawn from.",
        r"$\hat x$ and $1/\sigma$ belong to each LayerNorm; $d\gamma = \sum dh \odot \hat x$, "
        r"$d\beta = \sum dh$. A bar is a mean over the H features.",
        r"$\Phi$ and $\varphi$ are the normal distribution and its density. Biases, not shown again, "
        "get the sum of the gradient over all tokens.",
    )
    for number, line in enumerate(notes):
        axes.text(BOX, below + 21 + 3.3 * number, line, fontsize=SMALL, color=GREY, va="center")


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    arrow = FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.5, shrinkA=0, shrinkB=0
    )
    axes.add_patch(arrow)


def save(path: str | Path) -> None:
    """Write the poster as SVG. The same table gives the same bytes with the same matplotlib."""
    metadata = {"Title": "BERT, forwards and backwards", "Description": text_of(), "Date": None}
    with (
        matplotlib.rc_context(
            {"svg.hashsalt": "minibert", "svg.fonttype": "path", "mathtext.fontset": "dejavusans"}
        ),
        atomic_file(path) as file,
    ):
        draw().savefig(file, format="svg", facecolor="white", metadata=metadata)


if __name__ == "__main__":
    save(sys.argv[1])
