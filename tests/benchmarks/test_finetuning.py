import json
import shlex
import sys
from string import Template

import numpy as np
import pytest

from benchmarks.finetuning import __main__ as program
from benchmarks.finetuning import comparison, figures, guesses, more_phrases, page
from benchmarks.finetuning.runs import RUNS, Run, quick
from benchmarks.finetuning.squad_articles import as_squad
from minibert import BertForMaskedLM, BertTokenizer
from minibert.cli import parse
from minibert.data.randomness import generator
from minibert.data.tasks import read_squad
from minibert.files import read_json, write_json
from minibert.settings import read_settings
from minibert.tasks import fill_mask

MACHINE = {"processor": "An Abacus 9000", "cores": 2, "system": "Linux 6", "python": "3.12"}


def make_run(folder, name, *, dev=(), test=None, metric="f1", search=None, seconds=60.0):
    """The files of a run that has ended; ``dev`` are the scores of its seeds."""
    run = folder / name
    if dev:
        runs = [
            {"seed": seed, "step": 10, "scores": {metric: score, "accuracy": score}, "seconds": 90.0}
            for seed, score in enumerate(dev)
        ]
        examples = {"train": 3000, "dev": 200, "left_out": 0}
        results = {"runs": runs, "examples": examples, "began_from": "/home/me/model", "metric": metric}
        write_json(run / "results.json", results)
        write_json(run / "config.json", {"train": "/home/me/data"})
    if test is not None:
        scores = {metric: test, "accuracy": test}
        write_json(run / "test.json", {"model": "/home/me/best", "examples": 500, "scores": scores})
    if search:
        write_json(run / "search.json", {"queries": 50, "passages": 100, "agreement": 1.0, **search})
    record = {"when": "2026-01-01T12:00:00", "machine": MACHINE, "versions": {"numpy": "2.4"}}
    commands = [f"minibert finetune --out $runs --name {name}", f"minibert evaluate {name}"]
    write_json(
        run / figures.MEASURED,
        {
            **record,
            "commands": commands,
            "seconds": [seconds, seconds],
            "processor_seconds": [2 * seconds, 2 * seconds],
        },
    )


def row_of(text, beginning):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {beginning}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_page_shows_every_figure_beside_its_aim(tmp_path):
    runs, results = tmp_path / "runs", tmp_path / "results"
    make_run(runs, "sst2", dev=[0.91], test=0.88, metric="accuracy")
    make_run(runs, "mrpc", dev=[0.85, 0.87, 0.89], test=0.8594)
    make_run(runs, "stsb-untouched", test=0.82031, metric="spearman")
    text = page.write_page(runs, results).read_text()
    assert row_of(text, "SST-2")[1:] == [
        "3,000 / 200 / 500",
        "accuracy",
        "91.0",
        "88.0",
        "90 on dev: reached",
        "2.0 / 4.0",
    ]
    told = row_of(text, "MRPC: all | 3,000 / 200 / 500 | F1")
    assert told[3:6] == ["87.0 ± 2.0 (3 seeds)", "85.9", "86 on test: missed"]
    assert row_of(text, "STS-B: cosine, nothing")[1:6] == [
        "500",
        "Spearman",
        "–",
        "82.0",
        "82 on test: reached",
    ]
    assert "minibert finetune --out $runs --name mrpc   # 60 s" in text
    assert text.count("An Abacus 9000") == 1, "what was measured alike is told once"
    assert "## Search" not in text and "transformers" not in text.replace("in_transformers", "")
    for path in results.iterdir():
        assert b"/home/me" not in path.read_bytes(), "paths of one machine have no place in a report"


def test_a_correlation_that_is_not_a_number_does_not_stop_the_page(tmp_path):
    make_run(tmp_path, "stsb-regression", dev=[0.8, None], test=None, metric="spearman")
    write_json(tmp_path / "stsb-regression" / "test.json", {"examples": 5, "scores": {"spearman": None}})
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    assert row_of(text, "STS-B")[3:6] == ["nan ± nan (2 seeds)", "nan", "86 on test: missed"]


def test_runs_of_earlier_calls_stay_on_the_page(tmp_path):
    make_run(tmp_path / "one", "mrpc", dev=[0.5], test=0.5)
    make_run(tmp_path / "two", "sst2", dev=[0.5], test=0.5, metric="accuracy")
    page.write_page(tmp_path / "one", tmp_path)
    page.write_page(tmp_path / "two", tmp_path)
    assert list(read_json(tmp_path / "finetuning.json")) == ["sst2", "mrpc"], "in the order of the list"


def test_pretrained_models_stand_side_by_side(tmp_path):
    starts = {
        "random": [0.40, 0.50],
        "earlier": [0.5, 0.5],
        "second": [0.8, 0.84],
        "pretrained": [0.60, 0.71],
    }
    for start, dev in starts.items():
        make_run(tmp_path, f"mrpc-{start}", dev=dev, test=dev[0] + 0.04)
    make_run(tmp_path, "stsb-pretrained", dev=[0.7, 0.7], test=0.6, metric="spearman")
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    first = ["F1", "random", "45.0 ± 7.1 (2 seeds)", "44.0", "–"]
    assert row_of(text, "MRPC")[1:] == first
    rest = text.split("| MRPC")[1].splitlines()[1:4]
    assert [[cell.strip() for cell in line.split("|")[3:-1]] for line in rest] == [
        ["the first mini", "50.0 ± 0.0 (2 seeds)", "54.0", "–"],
        ["the second mini", "82.0 ± 2.8 (2 seeds)", "84.0", "82 on dev: reached"],
        ["mini", "65.5 ± 7.8 (2 seeds)", "64.0", "82 on dev: missed"],
    ]
    assert row_of(text, "STS-B")[2:] == ["mini", "70.0 ± 0.0 (2 seeds)", "60.0", "75 on dev: missed"]
    assert (tmp_path / "results" / "finetuning.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_has_a_dot_for_every_seed(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(comparison, "save_figure", lambda figure, path: drawn.append(figure))
    make_run(tmp_path, "mrpc-random", dev=[0.40, 0.50, 0.45], test=0.4)
    make_run(tmp_path, "mrpc-pretrained", dev=[0.60, 0.70], test=0.6)
    page.write_page(tmp_path, tmp_path / "results")
    (axes,) = [axes for axes in drawn[0].axes if axes.get_title() == "MRPC: F1"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[40, 50, 45], [60, 70]]
    assert len(drawn[0].axes) == 1, "no panel without runs"


def test_minimal_pairs_by_phenomenon(tmp_path):
    """A phenomenon's share is that of its pairs; what the paper counts as one is one here."""
    details = {name: {"accuracy": 0.5, "pairs": 10} for name in read_settings(comparison.ANCHORS)}
    details |= {
        "argument_structure": {"accuracy": 0.6, "pairs": 30},
        "s-selection": {"accuracy": 0.8, "pairs": 10},
    }
    for start in ("random", "pretrained"):
        make_run(tmp_path, f"blimp-{start}", test=0.55)
        test = {"examples": 150, "scores": {"accuracy": 0.55}, "details": details}
        write_json(tmp_path / f"blimp-{start}" / "test.json", test)
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    assert row_of(text, "argument structure")[1:] == ["40", "65.0", "65.0", "71.9", "73.2", "72.2", "81.8"]
    assert row_of(text, "overall")[1:4] == ["150", "55.0", "55.0"]
    assert "selection" not in text.split("## BLiMP")[1].split("## ")[0]


def test_guesses_before_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr(
        guesses, "best_words", lambda folder, sentences: [[folder, word] for word in sentences]
    )
    make_run(tmp_path, "guesses")
    path = tmp_path / "guesses" / "guesses.json"
    flags = ["the first mini=old/model", "mini=new", "--limit", "2", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["guesses", *flags])
    assert guesses.main() == 0
    first, second = read_json(path)["sentences"]
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    assert row_of(text, first) == [first, f"old/model, {first}", f"new, {first}"]
    assert row_of(text, second)[1:] == [f"old/model, {second}", f"new, {second}"]


def test_the_best_words_are_those_of_fill_mask():
    sentence = "the capital of france is [MASK] ."
    model, tokenizer = BertForMaskedLM.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")
    (expected,) = fill_mask(model, tokenizer, sentence)
    assert guesses.best_words("mini", [sentence]) == [[word for word, _ in expected]]


def test_new_phrases_differ_in_words_that_were_hidden():
    model, tokenizer = BertForMaskedLM.from_pretrained("mini"), BertTokenizer.from_pretrained("mini")
    phrases = [
        "the film is a charming and often moving comedy about old friends who meet again in paris".split()
    ]
    made = [
        list(more_phrases.more_phrases(model, tokenizer, phrases, 40, generator("phrases", seed)))
        for seed in (0, 0, 1)
    ]
    assert made[0] == made[1] != made[2]
    same = [np.array(phrase.split()) == np.array(phrases[0]) for phrase in made[0]]  # it is too long to join
    assert 0.6 < np.mean(same) < 0.95  # on average, a quarter are hidden, and a few are guessed
    words = {word for phrase in made[0] for word in phrase.split()}
    assert len(words) > 50 and words <= {word for word in tokenizer.tokens if word.isalpha()}


def test_short_phrases_are_joined():
    joined = [more_phrases.join([["good"], ["bad", "!"]], generator("phrases", seed)) for seed in range(200)]
    endings = {"".join(phrase[1:]) for phrase in joined if phrase[0] == "good"}
    assert endings >= {"", "bad!", ",bad!", "andbad!", ",butgood"}
    assert 120 < sum(phrase not in (["good"], ["bad", "!"]) for phrase in joined) < 160  # 0.7 of them


def test_a_hidden_word_beyond_the_positions_is_left_out():
    tokenizer = BertTokenizer.from_pretrained("mini")
    assert more_phrases.fill(["a", "[MASK]", "b", "[MASK]"], ["new"], tokenizer) == "a new b"


def test_students_beside_their_teacher(tmp_path):
    students = {"sst2-second-mini": [0.7], "sst2-mini": [0.8, 0.82], "sst2-mini-taught": [0.84, 0.86]}
    for name, dev in {"sst2": [0.9], **students}.items():
        make_run(tmp_path, name, dev=dev, test=dev[0], metric="accuracy")
    make_run(tmp_path, "sst2-speed")
    speeds = {
        "sst2": {"parameters": 22_000_000, "bytes": 9e7, "sentences_per_second": 80.0},
        "sst2-second-mini": {"parameters": 5_400_000, "bytes": 2e7, "sentences_per_second": 1234.5},
        "sst2-mini": {"parameters": 5_400_000, "bytes": 2e7, "sentences_per_second": 1234.5},
    }
    write_json(tmp_path / "sst2-speed" / "speed.json", {"speeds": speeds})
    text = page.write_page(tmp_path, tmp_path / "results").read_text().split("## Distillation")[1]
    assert row_of(text, "teacher")[1:] == ["22.0 M", "90 MB", "80", "90.0", "–", "–", "90.0", "–"]
    assert row_of(text, "mini")[1:4] == ["5.4 M", "20 MB", "1,234"]
    assert row_of(text, "mini")[6:] == ["4.0", "80.0", "84.0"]
    same_size = ["5.4 M", "20 MB", "1,234"]
    assert row_of(text, "the second mini")[1:] == [*same_size, "70.0", "–", "–", "70.0", "–"]
    assert "(aims: the second mini, 85 on dev: missed; mini, 85 on dev: missed)" in text
    assert "| tiny" not in text


def test_students_of_a_teacher_that_has_few_labels(tmp_path):
    make_run(tmp_path, "sst2-few", dev=[0.86], test=0.85, metric="accuracy")
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    assert "## Distillation" not in text  # a teacher without students is no comparison
    for name, dev in {"sst2-pretrained": [0.79, 0.81], "sst2-mini-unlabelled": [0.83, 0.85]}.items():
        make_run(tmp_path, name, dev=dev, test=dev[0], metric="accuracy")
    text = page.write_page(tmp_path, tmp_path / "results").read_text().split("## Distillation")[1]
    assert row_of(text, "teacher")[1:] == ["86.0", "–", "–", "85.0", "–"]
    assert row_of(text, "mini")[3:] == ["4.0", "79.0", "83.0"]
    assert "| tiny" not in text


def test_students_with_more_phrases(tmp_path):
    scores = {"sst2-rounded": [0.9], "sst2-tiny-passes": [0.7, 0.72], "sst2-tiny-more": [0.74, 0.78]}
    for name, dev in scores.items():
        make_run(tmp_path, name, dev=dev, test=dev[0], metric="accuracy")
    text = page.write_page(tmp_path, tmp_path / "results").read_text().split("with more phrases")[1]
    assert row_of(text, "teacher")[1:] == ["90.0", "–", "–", "90.0", "–"]
    assert row_of(text, "tiny")[3:] == ["5.0", "70.0", "74.0"]


def test_searches_before_and_after_re_ranking(tmp_path):
    scores = {"recall@10": 0.9, "mrr@20": 0.7}
    found = {"database": scores, "brute_force": scores, "reranked": None}
    make_run(tmp_path, "search-tuned", search=found)
    make_run(tmp_path, "search-reranked", search=found | {"reranked": {"recall@10": 0.95, "mrr@20": 0.8}})
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| fine-tuned")]
    assert [line.split(" | ")[0] for line in lines].count("| fine-tuned, LanceDB") == 2
    assert row_of(text, "fine-tuned, re-ranked")[1:4] == ["50 / 100", "0.950", "0.800"]


def test_the_strategies_begin_with_the_run_in_which_all_learns(tmp_path):
    for name in ("wnut17", "wnut17-head", "wnut17-last-four"):
        make_run(tmp_path, name, dev=[0.3, 0.4], test=0.35)
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    table = text.split("what learns")[1].split("\n\n")[0]
    assert row_of(table, "all |") == ["all", "35.0 ± 7.1 (2 seeds)", "35.0", "2.0 / 4.0"]
    assert row_of(table, "only the head")[1] == "35.0 ± 7.1 (2 seeds)"


def test_transformers_side_by_side(tmp_path):
    make_run(tmp_path, "mrpc", dev=[0.85, 0.87], test=0.84)
    theirs = {"runs": [{"scores": {"f1": 0.8, "accuracy": 0.7}}], "scores": {"f1": 0.83, "accuracy": 0.75}}
    write_json(tmp_path / "mrpc" / "transformers.json", theirs)
    text = page.write_page(tmp_path, tmp_path / "results").read_text()
    assert row_of(text, "mrpc: F1")[1:] == ["86.0 ± 1.4 (2 seeds)", "84.0", "80.0", "83.0"]


def test_no_run_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(program, "unfinished", lambda *arguments: [])
    arguments = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["finetuning", *arguments])
    assert program.main() == 2
    assert "no run that has ended" in capsys.readouterr().err


# -- The list of runs, and what becomes of it ---------------------------------------------------------


@pytest.mark.parametrize("run", RUNS.values(), ids=lambda run: run.name)
def test_every_command_of_minibert_is_one(run):
    places = dict.fromkeys(("data", "encoder", "pretrained", "ten", "tiny", "runs", "run"), "folder")
    for version in (run, quick(run)):
        for command in version.commands:
            words = shlex.split(Template(command).substitute(places))
            if words[0] == "minibert":
                parse(words[1:])
            else:
                assert words[:2] == ["python", "-m"]


def test_a_run_that_has_ended_is_not_repeated(tmp_path):
    assert [run.name for run in program.unfinished(RUNS, tmp_path)] == list(RUNS)
    make_run(tmp_path, "articles")
    make_run(tmp_path, "sst2")
    left = [run.name for run in program.unfinished(RUNS, tmp_path)]
    assert left == [name for name in RUNS if name not in ("articles", "sst2")]


def test_what_a_run_needs_comes_before_it(tmp_path):
    plan = [run.name for run in program.unfinished(["search-reranked"], tmp_path)]
    assert plan == ["articles", "search-tuned", "squad", "search-reranked"]


def test_a_run_that_fails_keeps_back_only_those_that_need_it(tmp_path, capfd):
    code = "import sys; sys.exit({})"
    plan = [
        Run("good", "works", (f"python -c '{code.format(0)}'",), 0),
        Run("bad", "fails", (f"python -c '{code.format(3)}'",), 0),
        Run("after", "waits", (f"python -c '{code.format(0)}'",), 0, needs=("bad",)),
        Run("other", "leaves a file", ('python -c \'open("$run/x.json", "w").write("{}")\'',), 0),
    ]
    assert program.run_all(plan, {"runs": tmp_path}) == ["bad", "after"]
    assert [path.parent.name for path in sorted(tmp_path.glob(f"*/{figures.MEASURED}"))] == ["good", "other"]
    record = read_json(tmp_path / "other" / figures.MEASURED)
    assert "$runs/other/x.json" in record["commands"][0] and len(record["seconds"]) == 1
    assert "exit code 3" in capfd.readouterr().err


def test_articles_written_out_are_read_as_they_were(tmp_path):
    asked = [
        {"id": f"{n}", "question": f"which {n}?", "answers": [{"text": "one", "answer_start": start}]}
        for n, start in enumerate((4, 0))  # the second stands elsewhere
    ]
    passages = [
        {"context": "The one.", "qas": asked},
        {"context": "No one?", "qas": [{**asked[0], "id": "9"}]},
    ]
    content = {"data": [{"title": "A", "paragraphs": passages}, {"title": "B", "paragraphs": passages[:1]}]}
    (tmp_path / "all.json").write_text(json.dumps(content))
    questions = read_squad(tmp_path / "all.json")
    write_json(tmp_path / "again.json", as_squad(questions))
    assert read_squad(tmp_path / "again.json") == questions
    assert [len(article["paragraphs"]) for article in as_squad(questions, most=1)["data"]] == [1, 1]
