"""Ablations by pre-training: the groups, what a run leaves, and the page."""

import argparse
import json
import shlex
from pathlib import Path
from string import Template

import pytest

from benchmarks.ablations import experiments, fine_tuned
from benchmarks.ablations.__main__ import main
from benchmarks.ablations.experiments import QUICK, Group, groups
from benchmarks.ablations.fine_tuned import TASKS
from benchmarks.finetuning.runs import Run
from benchmarks.results import Results
from benchmarks.speedrun import tracks
from minibert.cli import parse
from minibert.files import write_json
from minibert.tasks import prepare
from minibert.tasks.held_out import evaluation_batches
from minibert.tasks.pretraining_settings import PretrainSettings

RECORD = {"held_out_mlm_loss": 4.0, "tokens": 2_000_000, "seconds": 60.0}


@pytest.mark.parametrize("name", groups())
def test_every_run_of_a_group_has_settings_that_go_together(name):
    group = groups()[name]
    assert set(group.about["tasks"]) <= set(TASKS) and group.about["question"].endswith((".", "?"))
    names = [run["name"] for run in group.about["runs"]]
    assert len(names) == len(set(names)) > 1
    for run in group.about["runs"]:
        values = group.about["common"] | run["settings"]
        settings = PretrainSettings.from_dict(values).with_sizes()
        settings.model_config(8192)
        settings.instance_settings()
        assert "seconds" in group.about or settings.steps == group.about["common"]["steps"]


@pytest.fixture
def track(tmp_path, monkeypatch):
    """A text of ten documents in place of the tracks."""
    text = "\n\n".join(f"the {word} is old .\nthe {word} is new ." for word in "abcdefghij")
    (tmp_path / "corpus.txt").write_text(text + "\n")
    settings = PretrainSettings(
        corpus=(str(tmp_path / "corpus.txt"),), held_out_seed=0, prepared=str(tmp_path / "prepared")
    )
    tokenizer, prepared = prepare(settings)
    single = settings.replace(nsp=False, max_seq_length=64, batch_size=4)
    batches = evaluation_batches(single, tokenizer, prepared)
    track = tracks.Track("docs", settings, tokenizer, prepared, batches, 3)
    monkeypatch.setattr(experiments, "open_track", lambda name, folder: track)
    return track


def test_runs_are_made_once_and_the_page_tells_of_all(track, tmp_path, monkeypatch, capsys):
    asked = []

    def score(task, settings, options):
        asked.append((task, settings.name))
        return None if settings.predicts == "left-to-right" else 0.5 + 0.1 * settings.seed

    monkeypatch.setattr(experiments, "score", score)
    flags = ["objective", "--quick", "--threads", "1", "--track", "docs", "--seeds", "0", "1"]
    places = ["--folder", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    read = []

    def pretrain(settings, held_out):
        read.append((settings.max_seq_length, held_out and held_out[0]["input_ids"].shape[1]))
        return real(settings, held_out)

    real = experiments.pretrain
    monkeypatch.setattr(experiments, "pretrain", pretrain)
    assert main([*flags, *places]) == 0
    assert set(read) == {(32, 32), (32, None)}  # no further positions than were learned; None: the run's own
    assert len(asked) == 3 * 2 * 4 and ("sst2", "objective-no-nsp-1") in asked
    page = (tmp_path / "results" / "ablations.md").read_text()
    assert "## The next sentence, and both sides of a word" in page and "Devlin et al. 2019, table 5" in page
    row = next(line for line in page.splitlines() if line.startswith("| no NSP"))
    assert "55.0 ± 7.1" in row and row.rstrip(" |").endswith("2")
    row = next(line for line in page.splitlines() if line.startswith("| left to right"))
    assert row.count("–") == 4
    assert (tmp_path / "results" / "ablation-objective.png").stat().st_size > 5000
    records = json.loads((tmp_path / "results" / "ablations.json").read_text())["objective"]
    assert set(records) == {
        f"{name}, seed {seed}" for name in ("BERT", "no NSP", "left to right, no NSP") for seed in (0, 1)
    }
    first = (tmp_path / "runs" / "docs-quick" / "objective-bert-0" / "results.json").stat().st_mtime_ns
    assert main([*flags, *places]) == 0 and len(asked) == 3 * 2 * 4
    assert main([*flags, *places, "--only", "BERT", "--again"]) == 0 and len(asked) == 4 * 2 * 4
    assert (
        tmp_path / "runs" / "docs-quick" / "objective-bert-0" / "results.json"
    ).stat().st_mtime_ns == first
    monkeypatch.setitem(experiments.QUICK, "seed", 5)  # as if the file of experiments had been changed
    assert main([*flags, *places, "--only", "BERT", "--again"]) == 2
    assert "was started with seed = 0, not 5" in capsys.readouterr().err


def test_a_task_without_a_test_file_is_scored_on_its_dev_data(tmp_path):
    run = fine_tuned._run("docs-questions", "docs-questions-a", "mini", 2)
    (command,) = run.commands
    flags = parse(shlex.split(Template(command).substitute(runs="folder"))[1:])
    assert (flags.recipe, flags.model, flags.seed, flags.restarts) == ("docs-questions", "mini", 2, 1)
    write_json(tmp_path / "measured.json", {})
    write_json(tmp_path / "results.json", {"runs": [{"scores": {"f1": 0.25}}]})
    assert fine_tuned._read(tmp_path, "f1") == 0.25


def test_held_out_batches_of_the_track_are_only_for_its_vocabulary(track):
    common = track.settings.replace(nsp=False)
    assert experiments._fits(common, track) and experiments._fits(common.replace(nsp=True), track)
    others = [{"vocab_size": 300}, {"alphabet_limit": 9}, {"variant": "roberta"}]
    for values in [*others, {"objective": "left-to-right"}]:
        assert not experiments._fits(common.replace(**values), track)


def test_runs_of_equal_time_take_as_many_steps_as_fit(track, tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "score", lambda *_: 0.5)
    monkeypatch.setattr(experiments, "TIMED", 3)
    times = [{"lr": 1e-3, "seconds": seconds} for seconds in (0.5, 0.6, 0.7)]  # a step takes 0.1 s
    read = experiments.read_metrics
    monkeypatch.setattr(
        experiments, "read_metrics", lambda path: times if "timed" in str(path) else read(path)
    )
    about = dict(groups()["variants"].about)
    about |= {"seconds": 1.5, "common": {**QUICK, "vocab_size": 400}, "runs": about["runs"][:2]}
    group = Group("variants", about)
    options = argparse.Namespace(
        track="docs",
        texts=Path(),
        folder=tmp_path / "runs",
        results=tmp_path,
        seeds=[0],
        only=None,
        again=False,
        quick=False,
        threads=1,
    )
    cases = dict(group.measure(options))
    assert set(cases) == {"BERT, seed 0", "RoBERTa, seed 0"}
    for record in cases.values():
        assert record["steps"] == 10 and record["seconds"] > 0  # 1.5 s, of which 0.5 s come before the steps
    assert (tmp_path / "runs" / "docs" / "variants-roberta-timed").is_dir()

    results = Results(tmp_path, "ablations")
    bert = cases["BERT, seed 0"] | {"steps": 5}  # on another machine, where more or fewer fitted
    results.save("variants", "BERT, seed 0", bert, 1)
    options.seeds, options.only, options.folder = [1], ["BERT"], tmp_path / "elsewhere"
    assert dict(group.measure(options))["BERT, seed 1"]["steps"] == 5
    assert not (tmp_path / "elsewhere" / "docs" / "variants-bert-timed").exists()


def test_mistakes_are_told_in_a_line(capsys):
    assert main(["rate", "--only", "50 %"]) == 2
    assert "unknown --only '50 %'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["rate", "--help"])
    assert "15 %, 30 %, 40 %" in " ".join(capsys.readouterr().out.split())


def test_a_run_is_made_again_if_its_commands_have_changed(tmp_path, monkeypatch):
    made = []

    def make(run, places):
        made.append(run.commands)
        (tmp_path / run.name).mkdir(exist_ok=True)
        write_json(tmp_path / run.name / "measured.json", {"commands": list(run.commands)})

    monkeypatch.setattr(fine_tuned, "make", make)
    for command in ("minibert a", "minibert a", "minibert b"):
        fine_tuned.make_once(Run("one", "", (command,), 1), tmp_path, tmp_path, make_quick=False)
    assert made == [("minibert a",), ("minibert b",)]
