import json
import sys

import pytest

from benchmarks import pretraining
from minibert.bert import BertConfig, BertForPreTraining
from minibert.files import read_json, write_json
from minibert.tasks.pretraining_settings import PretrainSettings

PROCESSOR = "An Abacus 9000"


def make_run(folder, name, steps=40, accuracy=0.005, **changes):
    """The files of a run that was measured every second step and got better by ``accuracy`` a step."""
    settings = PretrainSettings(name=name, corpus=("/home/me/books",), steps=steps, **changes).with_sizes()
    write_json(folder / name / "config.json", settings.to_dict())
    lines = []
    for step in range(0, steps + 1, 2):
        if step:
            lines.append({"step": step, "mlm_loss": 3.0, "tokens": 1000 * step, "seconds": 30.0 * step})
        held_out = {"held_out_mlm_loss": 9.0 - step / 10, "held_out_mlm_accuracy": accuracy * step}
        lines.append({"step": step, **held_out, "held_out_nsp_accuracy": 0.75})
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = {
        **{key: value for key, value in lines[-1].items() if key != "step"},
        **dict(plateau_loss=6.5, plateau_accuracy=0.07, tokens_per_second=33.3, seconds=30.0 * steps),
        **dict(tokens=1000 * steps, parameters=12345, peak_memory=None),
        "training_text": {"documents": 95, "tokens": 10**6},
        "held_out_text": {"documents": 5, "tokens": 10**5},
        "environment": {
            **dict(minibert="0.1.0", python="3.12", numpy="2.4", device="cpu", threads=2),
            **dict(blas=["openblas 0.3"], processor=PROCESSOR),
        },
    }
    write_json(folder / name / "results.json", results)
    return folder / name


def test_every_evaluation_knows_its_tokens_and_seconds(tmp_path):
    found = pretraining.read_run(make_run(tmp_path, "one"))["evaluations"]
    assert [e["step"] for e in found] == list(range(0, 41, 2))
    assert all((e["tokens"], e["seconds"]) == (1000 * e["step"], 30.0 * e["step"]) for e in found)


def test_a_run_that_goes_on_from_another_says_only_from_which(tmp_path):
    before = make_run(tmp_path, "one")
    BertForPreTraining(BertConfig.preset("tiny", vocab_size=9)).save_pretrained(before / "final")
    run = make_run(tmp_path, "two", model=str(before / "final"), out=str(tmp_path))
    told = pretraining.read_run(run)["settings"]
    assert told["model"] == "runs/one/final" and told["hidden_size"] is None and told["tokenizer"] is None
    text = pretraining.write_page([run], tmp_path / "results").read_text()
    line = next(line for line in text.splitlines() if line.startswith("Settings that are not"))
    assert line == "Settings that are not the defaults: `vocab_size=9`, `model=runs/one/final`, `steps=40`."


def test_what_the_model_before_had_reached_is_not_told_again(tmp_path):
    record = pretraining.read_run(make_run(tmp_path, "one"))
    for evaluation in record["evaluations"]:
        evaluation["mlm_accuracy"] = 0.35 + evaluation["step"] / 2000
    assert pretraining.milestones(record) == "The accuracy stayed below 40%."


def test_a_page_of_two_runs_measured_one_after_the_other(tmp_path):
    results = tmp_path / "results"
    first = make_run(tmp_path, "one")
    second = make_run(tmp_path, "two", accuracy=0.002, batch_size=8, long_seq_length=128, long_share=0.25)
    pretraining.write_page([first], results)
    text = pretraining.write_page([second], results).read_text()
    assert list(read_json(results / "pretraining.json")) == ["one", "two"]
    assert (results / "pretraining.png").read_bytes().startswith(b"\x89PNG")
    assert f"| one | {PROCESSOR}, 2 threads | 12,345 | 40 | 40,000 | 20:00 | 33 | 5.000 | 20.00% | " in text
    assert "| 20 | 20,000 | 10.0 | 7.000 | 10.00% | 75.00% |" in text
    assert "10% after 10.0 minutes (20,000 tokens); 20% after 20.0 minutes (40,000 tokens)." in text
    assert "The accuracy stayed below 10%." in text
    assert "Steps 31 to 40: 4 sequences of 128 tokens, up to 19 predicted in each" in text
    (changed,) = [line for line in text.splitlines() if "`long_seq_length=128`" in line]
    assert set(changed.removesuffix(".").split(": ")[1].split(", ")) == {
        *("`batch_size=8`", "`long_seq_length=128`", "`long_share=0.25`", "`steps=40`")
    }
    assert "Text (books): 1,000,000 tokens in 95 documents to train on, 100,000 in 5 held out." in text
    for path in (results / "pretraining.json", results / "pretraining.md"):
        assert "/home/me" not in path.read_text(), "paths of one machine have no place in a report"


@pytest.fixture
def draw(monkeypatch, tmp_path):
    """A function that draws runs; it returns the lines of the six pictures."""
    drawn = []
    monkeypatch.setattr(pretraining, "save_figure", lambda figure, path: drawn.append(figure))

    def of(*runs):
        records = {run.name: pretraining.read_run(run) for run in runs}
        pretraining.plot(records, tmp_path / "x.png")
        return [axes.lines for axes in drawn[-1].axes]

    return of


def test_the_picture_shows_where_the_sequences_become_long(tmp_path, draw):
    curves, borders = zip(*draw(make_run(tmp_path, "two", long_seq_length=128, long_share=0.25)), strict=True)
    assert [line.get_xdata()[0] for line in borders] == [30, 0.03, 15.0] * 2
    assert [line.get_ydata()[0] for line in borders] == pytest.approx([6.0] * 3 + [0.15] * 3)
    assert [line.get_xdata()[-1] for line in curves] == [40, 0.04, 20.0] * 2
    assert [line.get_ydata()[-1] for line in curves] == pytest.approx([5.0] * 3 + [0.2] * 3)


def test_a_run_that_goes_on_is_drawn_behind_the_one_before(tmp_path, draw):
    first, other = make_run(tmp_path, "one"), make_run(tmp_path, "other")
    BertForPreTraining(BertConfig.preset("tiny", vocab_size=9)).save_pretrained(first / "final")
    going_on = make_run(tmp_path, "two", steps=10, model=str(first / "final"), out=str(tmp_path))
    for lines in draw(first, other, going_on):
        before, after, alone = sorted(lines, key=lambda line: line.get_color())
        assert before.get_color() == after.get_color() != alone.get_color()
        assert (before.get_linestyle(), after.get_linestyle(), alone.get_linestyle()) == ("-", "--", "-")
        assert after.get_xdata()[-1] == pytest.approx(before.get_xdata()[-1] * 50 / 40)
        assert [line.get_label() for line in (before, alone)] == ["two", "other"]


def test_a_run_that_was_renamed_on_the_page_has_that_name_in_the_picture(tmp_path):
    record = pretraining.read_run(make_run(tmp_path, "ten"))
    assert [list(chain) for chain in pretraining.chains({"first-ten": record, "ten": record})] == [
        ["first-ten"],
        ["ten"],
    ]
    _, axes = pretraining.new_axes(3, 3)
    pretraining._draw_chain(axes, {"first-ten": record}, "step", "mlm_loss", 1, "C0")
    assert [line.get_label() for line in axes.lines] == ["first-ten"]


@pytest.mark.parametrize(
    ("missing", "said"), [("config.json", "no such settings file"), ("results.json", "a finished run leaves")]
)
def test_what_is_no_finished_run_is_told_in_one_line(tmp_path, monkeypatch, capsys, missing, said):
    run = make_run(tmp_path, "one")
    (run / missing).unlink()
    monkeypatch.setattr(sys, "argv", ["pretraining", str(run), "--results", str(tmp_path / "results")])
    assert pretraining.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(run / missing) in line and said in line
    assert not (tmp_path / "results").exists()


def test_no_run_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pretraining", "--results", str(tmp_path / "results")])
    assert pretraining.main() == 2
    assert "has no runs; name the folder of one" in capsys.readouterr().err
