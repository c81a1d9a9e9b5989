"""Pretrained models side by side: what pre-training is worth, and what a teacher is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.finetuning.figures import (
    AIMS,
    NAMES,
    Record,
    by_phenomenon,
    describe_aim,
    dev_scores,
    points,
    score,
    spread,
)
from benchmarks.finetuning.runs import (
    BUDGETS,
    DATA_SETS,
    RUNS,
    STARTS,
    STUDENTS,
    WITH_FEW_LABELS,
    WITH_MORE_PHRASES,
    data_set,
)
from benchmarks.parts.common import BLUE, GREY, new_axes, save_figure
from benchmarks.results import paragraph, table
from minibert.settings import read_settings

TITLES = {
    "random": "random",
    "earlier": "the first mini",
    "second": "the second mini",
    "ten": "ten million words",
    "pretrained": "mini",
}
COLOURS = dict(zip(STARTS, (GREY, "#c6d7ec", "#9cbde0", "#6d9dd2", BLUE), strict=True))
ANCHORS = Path(__file__).with_name("blimp_anchors.toml")


def comparison(records: Mapping[str, Record]) -> str:
    """What pre-training is worth, as a table and a picture."""
    rows = []
    for recipe in (*BUDGETS, "blimp"):
        title, metric = compared(recipe)
        data = [f"{title}: {RUNS[f'{recipe}-pretrained'].about}", NAMES.get(metric, metric)]
        for start in filter(lambda start: f"{recipe}-{start}" in records, STARTS):
            name = f"{recipe}-{start}"
            figures = records[name]["figures"]
            dev = spread(dev_scores(figures["results"], metric)) if recipe in BUDGETS else "–"
            aim = describe_aim(name, metric, figures)
            rows.append([*data, TITLES[start], dev, points(score(figures["test"], metric)), aim])
            data = ["", ""]
    told = paragraph("""
        The second mini and the model called "ten million words" have read so many; mini, which comes with the
        package, has read more. The aims are for ten million words.""")
    picture = f"![Scores on dev data, a dot for each seed: {', '.join(TITLES.values())}](finetuning.png)"
    header = ["data", "score", "model", "dev", "test", "aim"]
    return f"{told}\n\n{table(header, rows)}\n\n{picture}" if rows else ""


def compared(recipe: str) -> tuple[str, str]:
    """The title and the score of a data set; BLiMP's pairs are judged without any fine-tuning."""
    if recipe == "blimp":
        return "BLiMP, nothing fine-tuned", "accuracy"
    data = data_set(recipe)
    return data.title, data.metric


# -- BLiMP -------------------------------------------------------------------------------------------


def phenomena(records: Mapping[str, Record]) -> str:
    """The share of pairs judged correctly by phenomenon, beside that of other models."""
    starts = [name for name in STARTS if f"blimp-{name}" in records]
    if not starts:
        return ""
    anchors = read_settings(ANCHORS)
    names, rows = anchors.pop("names"), []
    tests = [records[f"blimp-{name}"]["figures"]["test"] for name in starts]
    shares = [by_phenomenon(test["details"]) for test in tests]
    for phenomenon, theirs in anchors.items():
        if phenomenon == "overall":
            ours, pairs = [score(test, "accuracy") for test in tests], tests[-1]["examples"]
        else:
            ours, pairs = [share[phenomenon][0] for share in shares], shares[-1][phenomenon][1]
        row = [phenomenon.replace("_", " "), f"{pairs:,}", *map(points, ours)]
        rows.append([*row, *(f"{value:.1f}" for value in theirs)])
    told = paragraph("""
        A model passes where it finds the good sentence likelier than the bad one. Guessing passes in 50 of
        100. The pseudo-log-likelihood hides the rest of a word while one piece of it is scored
        (`within_word_l2r`). The figures of the last four come with the data (Warstadt et al. 2020).
        These models read from left to right, and have read more: 83 million words (LSTM), 103 million
        (Transformer-XL), billions (5-gram, GPT-2). From ten million words the GPT-BERT baselines of BabyLM
        2025 reach 69.1 to 71.3 overall as masked language models, and RoBERTa-base 69.5 (BabyLM 2023).""")
    header = ["phenomenon", "pairs", *(TITLES[name] for name in starts), *names]
    return f"{told}\n\n{table(header, rows)}"


# -- Hidden words ------------------------------------------------------------------------------------


def guesses(records: Mapping[str, Record]) -> str:
    """The five likeliest words of each sentence's [MASK], for the models side by side."""
    if "guesses" not in records:
        return ""
    found = records["guesses"]["figures"]["guesses"]
    models = found["guesses"]
    rows = [
        [sentence, *(", ".join(words[row]) for words in models.values())]
        for row, sentence in enumerate(found["sentences"])
    ]
    return table(["sentence", *models], rows)


# -- Distillation ------------------------------------------------------------------------------------


def distillation(records: Mapping[str, Record]) -> str:
    """The teacher, and each student by itself and taught."""
    names = {title: f"sst2-{student}" for student, title, *_ in STUDENTS}
    runs = {title: (name, f"{name}-taught") for title, name in names.items()}
    metric, rows = DATA_SETS["sst2"].metric, _students(records, "sst2", runs)
    aims = "; ".join(
        f"{title}, {describe_aim(name, metric, records[name]['figures'])}"
        for title, name in names.items()
        if name in records and (name, metric) in AIMS
    )
    told = paragraph(f"""
        The teacher is all-MiniLM-L6-v2, fine-tuned on SST-2; the students learn from the same 67,349 phrases,
        first from the labels alone (aims: {aims}), then half from the teacher's scores, at temperature
        2. Size is that of the file of weights. Sentences per second are those of the test data, with
        tokenizing: the median of five rounds in which the models took turns. (These models had learned from
        32 phrases. Speed does not depend on what a model has learned.)""")
    header = ["model", "parameters", "size", "sentences/s", "dev", "dev, taught", "gain"]
    sizes = {title: _size(records, name) for title, name in {"teacher": "sst2", **names}.items()}
    rows = [[title, *sizes[title], *figures] for title, *figures in rows]
    return f"{told}\n\n{table([*header, 'test', 'test, taught'], rows)}" if rows else ""


def with_few_labels(records: Mapping[str, Record]) -> str:
    """The same where only 8,000 phrases have labels, and the teacher guesses those of the others."""
    rows = _students(records, "sst2-few", WITH_FEW_LABELS)
    told = paragraph("""
        The teacher, all-MiniLM-L6-v2, was fine-tuned on 8,000 phrases of SST-2. Each student learns from the
        same 8,000 alone, and then from all 67,349: the teacher gives the others their labels
        (`--unlabelled`). Both times it takes three passes, so taught it takes eight times as many steps.
        With 25 passes over the 8,000, a student takes as many by itself.""")
    return _with_scores(told, rows)


def with_more_phrases(records: Mapping[str, Record]) -> str:
    """The same with phrases that nobody has labelled, made of those that have labels."""
    rows = _students(records, "sst2-rounded", WITH_MORE_PHRASES)
    told = paragraph("""
        The teacher, all-MiniLM-L6-v2, has learned from all 67,349 phrases of SST-2, in bfloat16 (so it is
        not the teacher above). Other phrases were made of these: short ones were joined, and a tenth to four
        tenths of the words hidden and drawn anew from what `mini` guesses
        (`python -m benchmarks.finetuning.more_phrases`). The teacher labels them (`--unlabelled`), and the
        student learns from them and from the labelled ones: tiny in three passes, mini in two, in bfloat16.
        By itself it takes twelve or eight passes over the labelled ones, somewhat more steps.""")
    return _with_scores(told, rows)


def _with_scores(told: str, rows: Sequence[Sequence[str]]) -> str:
    """What is told, and the table of ``_students``."""
    header = ["model", "dev", "dev, taught", "gain", "test", "test, taught"]
    return f"{told}\n\n{table(header, rows)}" if rows else ""


def _students(
    records: Mapping[str, Record], teacher: str, students: Mapping[str, tuple[str, str]]
) -> list[list[str]]:
    """The scores of the teacher's run, and of each student's two: by itself and taught.

    Without any student there is no row at all.
    """
    if not any(alone in records for alone, _ in students.values()):
        return []
    metric, rows = DATA_SETS["sst2"].metric, []
    for title, runs in {"teacher": (teacher, ""), **students}.items():
        if runs[0] not in records:
            continue
        both = [records[run]["figures"] if run in records else None for run in runs]
        dev = [dev_scores(figures["results"], metric) if figures else [] for figures in both]
        test = [points(score(figures["test"], metric)) if figures else "–" for figures in both]
        gain = points(np.mean(dev[1]) - np.mean(dev[0])).replace("-0.0", "0.0") if dev[1] else "–"
        rows.append([title, *(spread(scores) if scores else "–" for scores in dev), gain, *test])
    return rows


def _size(records: Mapping[str, Record], name: str) -> list[str]:
    """Parameters, bytes and speed of a run's model, if they have been measured."""
    if "sst2-speed" not in records:
        return ["–"] * 3
    one = records["sst2-speed"]["figures"]["speed"]["speeds"].get(name)
    if one is None:
        return ["–"] * 3
    megabytes = f"{one['bytes'] / 1e6:.0f} MB"
    return [f"{one['parameters'] / 1e6:.1f} M", megabytes, f"{one['sentences_per_second']:,.0f}"]


# -- As a picture ------------------------------------------------------------------------------------


def plot(records: Mapping[str, Record], path: Path) -> None:
    """All starts side by side: a panel for each data set, a dot for each seed, a line at the mean.

    Data sets on which fewer than two were measured have no panel.
    """
    shown = [recipe for recipe in BUDGETS if sum(f"{recipe}-{start}" in records for start in STARTS) > 1]
    if not shown:
        return
    rows = -(-len(shown) // 3)
    columns = min(len(shown), 3)
    figure, grid = new_axes(3.3 * columns, 3.2 * rows, nrows=rows, ncols=columns, squeeze=False)
    for empty in grid.flat[len(shown) :]:
        empty.remove()
    for one, recipe in zip(grid.flat, shown, strict=False):
        data = data_set(recipe)
        title = f"{data.title}, cosine" if recipe.endswith("-cosine") else data.title
        one.set_title(f"{title}: {NAMES.get(data.metric, data.metric)}", fontsize=10)
        one.set_xticks(range(len(STARTS)), [title.replace(" ", "\n") for title in TITLES.values()])
        one.set_xlim(-0.6, len(STARTS) - 0.4)
        for place, start in enumerate(STARTS):
            if record := records.get(f"{recipe}-{start}"):
                scores = [100 * value for value in dev_scores(record["figures"]["results"], data.metric)]
                one.plot([place] * len(scores), scores, "o", color=COLOURS[start], alpha=0.7)
                one.hlines(np.mean(scores), place - 0.25, place + 0.25, color=COLOURS[start])
    for one in grid[:, 0]:
        one.set_ylabel("on dev data, points")
    save_figure(figure, path)
