import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minibert import products
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.bert.encoder import BertLayer
from minibert.cli import main
from minibert.data import BatchStream
from minibert.devices import Device
from minibert.errors import UserError
from minibert.files import write_json
from minibert.settings import read_settings
from minibert.tasks import fill_mask, prepare, pretrain, pretraining_model
from minibert.tasks.first_values import repeat_positions
from minibert.tasks.held_out import evaluate
from minibert.tasks.pretraining import _describe, _kept, _needed_memory, evaluation_batches, masked_sentences
from minibert.tasks.pretraining_recipes import PRETRAINING_RECIPES
from minibert.tasks.pretraining_settings import SIZES, PretrainSettings
from minibert.text import BertTokenizer
from minibert.train import checkpoint as checkpoint_module
from minibert.train.checkpoint import describe_environment, list_checkpoints
from minibert.train.metrics import read_metrics
from minibert.train.step import TrainingStep


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def weights(settings):
    return (settings.folder / "final" / "model.safetensors").read_bytes()


def last_report(settings):
    return [r for r in read_metrics(settings.folder / "metrics.jsonl") if "tokens" in r][-1]


# -- A whole run -------------------------------------------------------------------------------------


def test_a_run_leaves_its_files_and_says_how_it_did(small, capsys):
    settings = small()
    summary = pretrain(settings)
    assert names(settings.folder) == [
        *("checkpoint-3", "checkpoint-6", "config.json", "final", "loss.png", "metrics.jsonl", "results.json")
    ]
    assert PretrainSettings.from_dict(
        json.loads((settings.folder / "config.json").read_text())
    ) == settings.with_sizes().replace(precision="float32")
    last = [r for r in read_metrics(settings.folder / "metrics.jsonl") if "held_out_mlm_loss" in r][-1]
    assert last["step"] == 6 and summary["held_out_mlm_loss"] == last["held_out_mlm_loss"]
    assert 2 < summary["plateau_loss"] < np.log(80) and 0 < summary["plateau_accuracy"] < 1
    assert summary["tokens_per_second"] > 0
    results = json.loads((settings.folder / "results.json").read_text())
    assert summary.items() <= results.items()
    assert results["tokens"] == last_report(settings)["tokens"]
    assert results["training_text"]["documents"] == 9 and results["held_out_text"]["documents"] == 3
    assert results["environment"]["device"] == "cpu" and results["environment"]["processor"]
    printed = capsys.readouterr().out
    card = (settings.folder / "final" / "README.md").read_text()
    assert f"| masked words, loss in nats | {summary['held_out_mlm_loss']:.4f} |" in card
    assert f"| the same, guessing by frequency | {summary['plateau_loss']:.4f} |" in card
    assert "| steps 1 to 6 | 4 sequences of 32 tokens, up to 5 predicted in each |" in card
    for told in (
        "steps=6",
        "device: cpu",
        "sha256",
        "vocabulary: ",
        "guessing by frequency: loss",
        "parameters",
    ):
        assert told in printed
    assert printed.count("guesses: ") == 5
    assert f"loss {summary['held_out_mlm_loss']:.3f} nats" in printed
    assert f"written to {settings.folder}" in printed


def test_the_model_it_leaves_can_be_used(small):
    settings = small()
    pretrain(settings)
    final = settings.folder / "final"
    model, tokenizer = BertForMaskedLM.from_pretrained(final), BertTokenizer.from_pretrained(final)
    assert len(fill_mask(model, tokenizer, "the [MASK] river")[0]) == 5
    checkpoint = BertForPreTraining.from_pretrained(settings.folder / "checkpoint-6")
    trained = BertForPreTraining.from_pretrained(final)
    np.testing.assert_array_equal(checkpoint.buffers.value, trained.buffers.value)


def test_the_same_settings_give_the_same_bits_and_another_seed_others(small):
    settings = [small(name="a"), small(name="b", print_every=1), small(name="c", seed=1)]
    for each in settings:
        pretrain(each)
    a, b, c = map(weights, settings)
    assert a == b != c


def test_it_learns_what_there_is_to_learn(small, tmp_path):
    """Every document repeats one word, so the words around a mask say what is behind it."""
    words = "river stone window garden winter summer teacher letter silver bridge music paper".split()
    documents = [
        "\n".join([" ".join([word] * length).capitalize() + " ."] * 6)
        for length in (7, 8, 9, 10)
        for word in words
    ]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    summary = pretrain(
        small(
            steps=500,
            batch_size=8,
            hidden_size=64,
            learning_rate=0.005,
            dropout=0.0,
            short_seq_prob=0.0,
            nsp=False,
            eval_every=500,
            save_every=500,
        )
    )
    assert summary["plateau_loss"] - summary["held_out_mlm_loss"] > 1.0
    assert summary["held_out_mlm_accuracy"] > 2.5 * summary["plateau_accuracy"]


def test_without_sentence_pairs(small, capsys):
    summary = pretrain(small(nsp=False))
    assert "held_out_nsp_accuracy" not in summary
    assert "NSP" not in capsys.readouterr().out
    assert "pooler" not in (small().folder / "final" / "model.safetensors").read_bytes().decode("latin-1")


def test_a_second_run_finds_the_vocabulary_and_the_tokens(small, capsys, tmp_path):
    pretrain(small())
    prepared = names(tmp_path / "prepared")
    capsys.readouterr()
    pretrain(small(name="again", steps=1))
    printed = capsys.readouterr().out
    assert printed.count("reused from") == 2 and "written to" not in printed.split("parameters")[0]
    assert names(tmp_path / "prepared") == prepared and len(prepared) == 2


def test_the_vocabulary_has_not_seen_what_is_held_out(small, tmp_path):
    """Each document has a word of its own, frequent enough for a token."""
    words = {"".join(letters) for letters in itertools.islice(itertools.permutations("stone"), 40)}
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"{' '.join([word] * 9)} ." for word in sorted(words)))
    vocabularies = set()
    for seed in range(3):
        tokenizer, prepared = prepare(small(seed=seed, vocab_size=400))
        train, held_out = (
            {tokenizer.decode(part.tokens[start:stop]).split()[0] for start, stop in part.token_ranges()}
            for part in (prepared.train, prepared.held_out)
        )
        assert len(held_out) == 10 and train == words - held_out
        assert words & set(tokenizer.tokens) == train
        vocabularies.add(tuple(tokenizer.tokens))
    assert len(vocabularies) == 3
    assert len(names(tmp_path / "prepared")) == 6


def test_the_layout_is_that_of_the_settings(small):
    prepare(small(layout="sentences"))
    with pytest.raises(UserError, match="a corpus of one document"):
        prepare(small(layout="paragraphs"))


def test_a_vocabulary_of_ones_own(small, tmp_path):
    tokenizer, _ = prepare(small(vocab_size=60))
    tokenizer.save_pretrained(tmp_path / "mine")
    settings = small(tokenizer=str(tmp_path / "mine"), steps=1)
    pretrain(settings)
    assert BertTokenizer.from_pretrained(settings.folder / "final").tokens == tokenizer.tokens


def test_tokenizers_with_one_vocabulary_do_not_share_what_they_read(small, tmp_path):
    tokens = prepare(small(vocab_size=60))[0].tokens
    folders = []
    for name, options in (("plain", {}), ("accents", {"strip_accents": False})):
        BertTokenizer(tokens, **options).save_pretrained(tmp_path / name)
        tokenizer, prepared = prepare(small(tokenizer=str(tmp_path / name)))
        assert tokenizer.strip_accents == options.get("strip_accents")
        folders.append(prepared.folder)
    assert len(set(folders)) == 2


def test_masked_sentences_hide_one_whole_word(small):
    tokenizer, prepared = prepare(small())
    sentences = list(itertools.islice(masked_sentences(prepared.held_out, tokenizer, seed=0), 400))
    text = Path(small().corpus[0]).read_text()
    assert len(sentences) == 400
    for masked, answer in sentences:
        assert masked.count("[MASK]") == 1
        assert answer in tokenizer.vocab and len(answer) >= 3
        assert masked.replace("[MASK]", answer).removesuffix(".") in text
        assert not re.search(r"\w\[MASK\]|\[MASK\]\w", masked)
    assert list(itertools.islice(masked_sentences(prepared.held_out, tokenizer, seed=0), 400)) == sentences


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_whose_examples_cannot_be_shown_ends_all_the_same(small, tmp_path, plain):
    """Sentences are longer than 12 positions; and BERT's own tokenizer reads no [MASK] in a text."""
    tokens = prepare(small(vocab_size=60))[0].tokens
    options = BertTokenizer.ORIGINAL if plain else {}
    BertTokenizer(tokens, **options).save_pretrained(tmp_path / "tokenizer")
    sizes = {} if plain else {"max_seq_length": 12, "max_position_embeddings": 12}
    settings = small(tokenizer=str(tmp_path / "tokenizer"), **sizes)
    assert pretrain(settings)["held_out_mlm_loss"] > 0
    assert (settings.folder / "results.json").exists()


def test_a_finished_run_without_its_metrics_is_told_in_one_line(small):
    pretrain(small())
    (small().folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics.jsonl: there is no evaluation in it; restore it"):
        pretrain(small(resume=True))


def test_accuracies_are_not_compared_with_none():
    summary = {"plateau_loss": 4.0, "held_out_mlm_loss": 3.0, "held_out_mlm_accuracy": 0.1}
    assert _describe(summary | {"plateau_accuracy": 0.05}, PretrainSettings())[1].endswith(
        "1.000 nats below, 2.00 times the accuracy"
    )
    assert _describe(summary | {"plateau_accuracy": 0.0}, PretrainSettings())[1].endswith("1.000 nats below")


def test_how_a_step_is_divided_does_not_change_what_it_is_measured_on(small, tmp_path, monkeypatch):
    """Even if the held-out text is made in blocks, of which the last batch is smaller than the others."""
    monkeypatch.setattr("minibert.data.batches.BLOCK_TOKENS", 300)
    text = (tmp_path / "corpus.txt").read_text()
    (tmp_path / "corpus.txt").write_text(
        "\n\n".join(text.replace("the", word) for word in "the a my".split())
    )
    batches = {}
    for batch_size, accumulation in ((16, 1), (4, 4), (2, 8)):
        settings = small(batch_size=batch_size, accumulation=accumulation, eval_batches=2)
        batches[batch_size] = evaluation_batches(settings, *prepare(settings))
    for size, divided in batches.items():
        assert max(len(batch["labels"]) for batch in divided) == size
        for name in divided[0]:
            whole, parts = (
                np.concatenate([batch[name] for batch in each]) for each in (batches[16], divided)
            )
            assert len(whole) == 32
            np.testing.assert_array_equal(parts, whole)


def test_accumulation_changes_neither_steps_nor_measurements(small):
    whole = pretrain(small(name="whole", batch_size=16, precision="float64", eval_batches=1))
    divided = small(name="divided", batch_size=4, accumulation=4, precision="float64", eval_batches=1)
    assert pretrain(divided)["held_out_mlm_loss"] == pytest.approx(whole["held_out_mlm_loss"], rel=1e-12)


# -- Stopping and going on ---------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from minibert.tasks import pretrain
from minibert.tasks.pretraining_recipes import PRETRAINING_RECIPES
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train import checkpoint
from minibert.settings import read_settings

moments = []

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def digest(path, digest=checkpoint._digest):
    moments.append(path)
    if path.name == "model.safetensors" and len([p for p in moments if p.name == path.name]) == {checkpoints}:
        die()  # in the middle of writing a checkpoint
    return digest(path)

checkpoint._digest = digest
pretrain(PretrainSettings.from_dict(read_settings(sys.argv[1])))
"""


def test_a_killed_run_goes_on_to_the_same_bits(small, tmp_path):
    """A real kill -9, while the third checkpoint is being written."""
    whole, killed = small(name="whole", steps=14), small(name="killed", steps=14)
    pretrain(whole)
    (tmp_path / "settings.json").write_text(json.dumps(killed.to_dict()))
    process = subprocess.run(
        [sys.executable, "-c", KILLED.format(checkpoints=3), str(tmp_path / "settings.json")],
        capture_output=True,
        text=True,
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    (unfinished,) = killed.folder.glob(".checkpoint-9.*.part")
    assert not (killed.folder / "final").exists()
    assert max(r["step"] for r in read_metrics(killed.folder / "metrics.jsonl")) == 9

    pretrain(killed.replace(resume=True))
    assert weights(killed) == weights(whole)
    assert not unfinished.exists()
    steps = [[r["step"] for r in read_metrics(s.folder / "metrics.jsonl")] for s in (killed, whole)]
    assert steps[0] == steps[1]
    losses = [[r.get("loss") for r in read_metrics(s.folder / "metrics.jsonl")] for s in (killed, whole)]
    assert losses[0] == losses[1]


def test_ctrl_c_saves_and_says_how_to_go_on(small, capsys, monkeypatch):
    settings = small(name="stopped", steps=5)
    draw, drawn = BatchStream.__next__, []

    def draw_and_interrupt(stream):
        drawn.append(1)
        if len(drawn) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(stream)

    monkeypatch.setattr(BatchStream, "__next__", draw_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings)
    assert [path.name for path in settings.folder.glob("checkpoint-*")] == ["checkpoint-2"]
    assert f"minibert pretrain --config {settings.folder / 'config.json'} --resume" in capsys.readouterr().out
    pretrain(settings.replace(resume=True))
    whole = small(name="whole", steps=5)
    pretrain(whole)
    assert weights(settings) == weights(whole)


def test_sigterm_is_treated_like_ctrl_c(small, tmp_path, monkeypatch, capsys):
    """A scheduler's way of stopping a run."""
    settings = small(steps=5)
    write_json(tmp_path / "settings.json", settings.to_dict())
    draw, drawn = BatchStream.__next__, []

    def draw_and_terminate(stream):
        drawn.append(1)
        if len(drawn) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return draw(stream)

    monkeypatch.setattr(BatchStream, "__next__", draw_and_terminate)
    assert main(["pretrain", "--config", str(tmp_path / "settings.json")]) == 130
    assert names(settings.folder) == ["checkpoint-2", "config.json", "metrics.jsonl"]
    assert f"minibert pretrain --config {settings.folder / 'config.json'} --resume" in capsys.readouterr().out
    monkeypatch.setattr(BatchStream, "__next__", draw)
    assert main(["pretrain", "--config", str(settings.folder / "config.json"), "--resume"]) == 0
    whole = small(name="whole", steps=5)
    pretrain(whole)
    assert weights(settings) == weights(whole)


def test_sigterm_before_the_first_step_leaves_nothing(small, tmp_path, monkeypatch):
    def terminate(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("minibert.data.prepared._write_arrays", terminate)
    with pytest.raises(KeyboardInterrupt):
        pretrain(small())
    assert not (tmp_path / "runs").exists()
    assert [name.split("-")[0] for name in names(tmp_path / "prepared")] == ["vocabulary"]


# -- Two runs in one folder --------------------------------------------------------------------------


def test_a_second_run_in_the_folder_is_refused_and_touches_nothing(small, tmp_path, monkeypatch):
    settings = small(save_every=1)
    write_json(tmp_path / "settings.json", settings.to_dict())
    draw, drawn, refused = BatchStream.__next__, [], []

    def draw_and_start_others(stream):
        drawn.append(1)
        if len(drawn) == 4:
            before = {path: path.read_bytes() for path in settings.folder.rglob("*") if path.is_file()}
            command = [
                sys.executable,
                "-m",
                "minibert",
                "pretrain",
                "--config",
                str(tmp_path / "settings.json"),
            ]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ways = [], ["--overwrite"], ["--resume"]
            others = [subprocess.Popen([*command, *way], **pipes) for way in ways]
            refused.extend((other.communicate()[1], other.returncode) for other in others)
            after = {path: path.read_bytes() for path in settings.folder.rglob("*") if path.is_file()}
            assert after == before
        return draw(stream)

    monkeypatch.setattr(BatchStream, "__next__", draw_and_start_others)
    pretrain(settings)
    line = (
        f"minibert: error: another run is at work in {settings.folder}; wait for it to end, or choose another"
    )
    assert refused == [(f"{line} --name\n", 2)] * 3
    monkeypatch.setattr(BatchStream, "__next__", draw)
    alone = small(name="alone", save_every=1)
    pretrain(alone)
    assert names(settings.folder) == names(alone.folder)
    assert weights(settings) == weights(alone)


def test_a_finished_run_can_be_resumed_to_the_same_end(small):
    settings = small()
    pretrain(settings)
    before = weights(settings)
    shutil.rmtree(settings.folder / "final")
    pretrain(settings.replace(resume=True))
    assert weights(settings) == before


def test_another_machine_is_told(small, capsys, monkeypatch):
    """Also that the results are those of the machine that took the last step."""
    settings = small()
    there = describe_environment(Device("cpu", np)) | {"numpy": "1.0"}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "describe_environment", lambda _: there)
        pretrain(settings)
    (settings.folder / "results.json").unlink()
    capsys.readouterr()
    pretrain(settings.replace(resume=True))
    warnings = capsys.readouterr().err.splitlines()
    assert (
        f"warning: numpy was 1.0, is now {np.__version__}; the last bits of the result may differ" in warnings
    )
    assert json.loads((settings.folder / "results.json").read_text())["environment"] == there


# -- Long sequences ----------------------------------------------------------------------------------

# Steps 1 to 4 have 4 sequences of 16 tokens, steps 5 to 8 have 2 of 32.
LONG = {"long_seq_length": 32, "long_share": 0.5}
TWO_LENGTHS = {"max_seq_length": 16, "steps": 8, "save_every": 1, "keep_checkpoints": 100}


def cut_back(settings, step, name):
    """A copy of a run as it was after ``step`` steps; returns how to go on with it."""
    shutil.copytree(settings.folder, settings.folder.with_name(name))
    for checkpoint in list_checkpoints(settings.folder.with_name(name)):
        if int(checkpoint.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(checkpoint)
    return settings.replace(name=name, resume=True)


def test_the_last_steps_have_long_sequences(small, monkeypatch, capsys):
    shapes, take = [], TrainingStep.take

    def note(training, micro_batches, *arguments):
        shapes.append([batch["input_ids"].shape for batch in micro_batches])
        take(training, micro_batches, *arguments)

    monkeypatch.setattr(TrainingStep, "take", note)
    pretrain(small(**TWO_LENGTHS, **LONG, accumulation=2))
    assert shapes == [[(4, 16)] * 2] * 4 + [[(2, 32)] * 2] * 4
    printed = capsys.readouterr().out
    assert "steps 1 to 4: 4 sequences of 16 tokens, up to 2 predicted in each\n" in printed
    assert "steps 5 to 8: 2 sequences of 32 tokens, up to 5 predicted in each\n" in printed


def test_held_out_text_is_measured_at_one_length(small):
    """Where the sequences become long the curve does not leap: the batches are those of a short run."""
    for settings in (small(name="short", **TWO_LENGTHS), small(name="long", **TWO_LENGTHS, **LONG)):
        pretrain(settings)
    short, long = (
        {r["step"]: r for r in read_metrics(small(name=name).folder / "metrics.jsonl") if "lr" not in r}
        for name in ("short", "long")
    )
    assert set(long) == set(short) | {4} == {0, 3, 4, 6, 8}  # and once more between the two
    assert long[3] == short[3] and long[8] != short[8]


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_run_of_two_lengths_goes_on_to_the_same_bits(small, step):
    whole = small(**TWO_LENGTHS, **LONG)
    pretrain(whole)
    resumed = cut_back(whole, step, "resumed")
    pretrain(resumed)
    assert weights(resumed) == weights(whole)
    losses = [
        [(r["step"], r.get("loss")) for r in read_metrics(s.folder / "metrics.jsonl")]
        for s in (whole, resumed)
    ]
    assert losses[0] == losses[1]


def test_positions_that_were_not_learned_are_repeated_when_long_sequences_begin(small, monkeypatch):
    calls = []

    def note(*models, learned):
        table = models[0].bert.embeddings.position_embeddings.weight.value
        calls.append((table[:learned].copy(), table[learned:].copy()))
        repeat_positions(*models, learned=learned)
        assert np.array_equal(table[learned : 2 * learned], table[:learned])

    monkeypatch.setattr(pretraining_model, "repeat_positions", note)
    whole = small(**TWO_LENGTHS, **LONG)
    pretrain(whole)
    (learned, others), *_ = calls
    assert len(calls) == 1 and len(learned) == 16
    for step in (3, 4, 6):
        pretrain(cut_back(whole, step, f"resumed-{step}"))
    assert len(calls) == 3  # but not by the run that has read long sequences already
    for again in calls[1:]:
        assert np.array_equal(again[0], learned) and np.array_equal(again[1], others)
    pretrain(small(name="goes-on", model=str(whole.folder / "final"), **TWO_LENGTHS, **LONG))
    assert len(calls) == 3  # it had learned them


@pytest.mark.parametrize("step", [2, 4])
def test_long_sequences_can_be_added_before_they_begin(small, step):
    whole, short = small(name="whole", **TWO_LENGTHS, **LONG), small(name="short", **TWO_LENGTHS)
    pretrain(whole)
    pretrain(short)
    resumed = cut_back(short, step, "resumed")
    resumed = resumed.replace(**LONG)
    pretrain(resumed)
    assert weights(resumed) == weights(whole) != weights(short)
    kept = PretrainSettings.from_dict(read_settings(resumed.folder / "config.json"))
    assert kept == resumed.with_sizes().replace(resume=False, precision="float32")


@pytest.mark.parametrize(
    ("begun_with", "resumed_with"), [({}, LONG), (LONG, {}), (LONG, {**LONG, "long_share": 0.4})]
)
def test_steps_that_were_taken_keep_their_length(small, begun_with, resumed_with):
    """However the settings were changed: by flags, or in the run's own config.json."""
    begun = small(name="begun", precision="float32", **TWO_LENGTHS, **begun_with)
    pretrain(begun)
    resumed = cut_back(begun, 6, "resumed").replace(
        **{"long_seq_length": None, "long_share": 0.1} | resumed_with
    )
    write_json(resumed.folder / "config.json", resumed.to_dict())
    before = (resumed.folder / "checkpoint-6" / "state.json").read_bytes()
    with pytest.raises(UserError, match=r"resumed has taken 6 steps, but not with long_seq_length="):
        pretrain(resumed)
    assert (resumed.folder / "checkpoint-6" / "state.json").read_bytes() == before


# -- The fast recipe ---------------------------------------------------------------------------------

FAST = PRETRAINING_RECIPES["fast"] | {"steps": 6}


def test_a_run_of_the_fast_recipe_goes_on_to_the_same_bits(small):
    whole = small(**FAST, keep_checkpoints=100)
    summary = pretrain(whole)
    assert "held_out_nsp_loss" not in summary
    resumed = cut_back(whole, 3, "resumed")
    pretrain(resumed)
    assert weights(resumed) == weights(whole)
    plain = small(name="plain", **FAST | {"word_initializer": "normal"})
    pretrain(plain)
    assert weights(plain) != weights(whole)


def test_counting_is_part_of_the_time(small, monkeypatch):
    clock = [5000.0]

    def slowly(*_):
        clock[0] += 1000.0

    monkeypatch.setattr("minibert.tasks.pretraining_model.count_words", slowly)
    monkeypatch.setattr("minibert.tasks.pretraining.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert 1000 < pretrain(small(word_initializer="counts", steps=1))["seconds"] < 2000


def test_runs_of_several_seeds_can_be_measured_on_the_same_text(small):
    runs = [small(name=f"run{seed}", seed=seed, held_out_seed=7, learning_rate=0.0) for seed in (1, 2)]
    prepared = [prepare(settings) for settings in runs]
    assert prepared[0][0].tokens == prepared[1][0].tokens
    assert prepared[0][1].folder == prepared[1][1].folder
    held_out = [evaluation_batches(s, *p) for s, p in zip(runs, prepared, strict=True)]
    for one, other in zip(*held_out, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    others = evaluation_batches(runs[0].replace(held_out_seed=8), *prepared[0])
    assert not np.array_equal(others[0]["labels"], held_out[0][0]["labels"])
    assert pretrain(runs[0])["plateau_loss"] == pretrain(runs[1])["plateau_loss"]
    assert weights(runs[0]) != weights(runs[1])


def test_a_run_can_be_measured_on_other_batches(small):
    settings = small(nsp=False)
    batches = evaluation_batches(settings.replace(seed=5), *prepare(settings))[:1]
    summary = pretrain(settings, batches)
    model = BertForMaskedLM.from_pretrained(settings.folder / "final")
    assert summary["held_out_mlm_loss"] == pytest.approx(evaluate(model, batches)["mlm_loss"], rel=1e-6)


# -- From a model ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("word_initializer", "counts"), ("attention_initializer", "neighbours")]
)
def test_initializers_are_for_new_models(small, name, value):
    pretrain(small(name="first"))
    with pytest.raises(UserError, match=f"{name} is for a new model"):
        pretrain(small(model=str(small(name="first").folder / "final"), **{name: value}))


def test_a_run_goes_on_from_a_model_on_other_text(small, tmp_path, capsys):
    first = small(name="first", steps=20, learning_rate=0.01)
    pretrain(first)
    text = (tmp_path / "corpus.txt").read_text()
    (tmp_path / "mine.txt").write_text(text.replace("river", "winter bridge"))
    mine = {"corpus": (str(tmp_path / "mine.txt"),), "model": str(first.folder / "final"), "seed": 2}
    sizes = dict.fromkeys(("vocab_size", *SIZES))
    settings = small(name="second", learning_rate=0.0, dropout=0.1, **sizes, **mine)
    capsys.readouterr()
    pretrain(settings)
    assert f"starts from {settings.model}\n" in capsys.readouterr().out
    assert weights(settings) == weights(first), "with a learning rate of 0 it stays what it was"
    assert (
        BertTokenizer.from_pretrained(settings.folder / "final").tokens
        == BertTokenizer.from_pretrained(settings.model).tokens
    )
    config = BertForPreTraining.from_pretrained(settings.folder / "final").config
    assert (config.vocab_size, config.hidden_size, config.hidden_dropout_prob) == (80, 16, 0.1)
    third = small(name="third", model=str(settings.folder / "final"), steps=1)
    pretrain(third)
    config = BertForPreTraining.from_pretrained(third.folder / "final").config
    assert config.attention_probs_dropout_prob == 0.1, "as the model was trained"


def test_a_run_from_a_model_is_resumed_to_the_same_bits(small):
    first = small(name="first")
    pretrain(first)
    whole = small(name="whole", model=str(first.folder / "final"), seed=2)
    pretrain(whole)
    assert weights(whole) != weights(first)
    resumed = cut_back(whole, 3, "resumed")
    pretrain(resumed)
    assert weights(resumed) == weights(whole)


def test_a_run_is_not_resumed_with_another_teacher(small):
    first, other = small(name="first"), small(name="other", seed=2)
    pretrain(first)
    taught = {"teacher": str(first.folder / "final"), "variant": "distilbert", "nsp": False}
    pretrain(small(name="taught", **taught))
    resumed = small(name="taught", resume=True, **taught)
    pretrain(resumed)  # to the same end
    pretrain(other)
    shutil.copytree(other.folder / "final", first.folder / "final", dirs_exist_ok=True)
    with pytest.raises(UserError, match="the corpus, the vocabulary or the teacher changed since"):
        pretrain(resumed)


CONTRADICTIONS = [
    *(("hidden_size", 32), ("num_hidden_layers", 2), ("max_position_embeddings", 64)),
    *(("hidden_act", "relu"), ("tokenizer", "elsewhere")),
    *(("preset", "mini"), ("vocab_size", 90)),
    *(("preset", "tiny"), ("vocab_size", 8192)),  # which are the usual ones
]


@pytest.mark.parametrize(("name", "value"), CONTRADICTIONS)
def test_settings_that_contradict_the_model_are_refused(small, tmp_path, name, value):
    pretrain(small(name="first"))
    before = names(tmp_path / "runs"), names(tmp_path / "prepared")
    model = str(small(name="first").folder / "final")
    with pytest.raises(
        UserError, match=f"^{name} is {value!r}, but the model in .*final has its own; leave it"
    ):
        pretrain(small(model=model, **{name: value}))
    assert (names(tmp_path / "runs"), names(tmp_path / "prepared")) == before


def test_a_run_does_not_replace_the_model_that_it_begins_from(small):
    settings = small()
    pretrain(settings)
    before = weights(settings)
    with pytest.raises(
        UserError, match=r"final is in .*small, which would be replaced; choose another --name"
    ):
        pretrain(settings.replace(model=str(settings.folder / "final"), overwrite=True))
    assert weights(settings) == before


def test_a_run_does_not_replace_the_tokenizer_that_it_reads(small):
    settings = small()
    pretrain(settings)
    before, final = weights(settings), str(settings.folder / "final")
    with pytest.raises(UserError, match=r"^the file .*final is in .*small, which would be replaced; choose"):
        pretrain(settings.replace(tokenizer=final, vocab_size=None, overwrite=True))
    assert weights(settings) == before


def test_a_finished_run_that_is_resumed_keeps_its_peak_of_memory(small, monkeypatch):
    settings = small()
    monkeypatch.setattr("minibert.tasks.run.peak_memory", lambda *_: 1000)
    pretrain(settings)
    monkeypatch.setattr("minibert.tasks.run.peak_memory", lambda *_: 10)
    assert pretrain(settings.replace(resume=True))["peak_memory"] == 1000
    with pytest.raises(UserError, match="was started with eval_batches = 30, not 2"):
        pretrain(settings.replace(resume=True, eval_batches=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_predictions": 1},
        {"whole_word_masking": True},
        {"masked_lm_prob": 0.4},
        {"mask_shares": (0, 100, 0)},
    ],
)
def test_what_is_hidden_does_not_change_what_a_run_is_measured_on(small, changes):
    ours, theirs = (small(max_predictions=20), small(**({"max_predictions": 20} | changes)))
    tokenizer, prepared = prepare(ours)
    first, second = (evaluation_batches(settings, tokenizer, prepared) for settings in (ours, theirs))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one["labels"], other["labels"])
        np.testing.assert_array_equal(one["input_ids"], other["input_ids"])


def test_guessing_by_frequency_knows_how_often_a_sequence_ends(small):
    """A left-to-right model has to predict [SEP], which the documents do not have."""
    settings = small(objective="left-to-right", nsp=False)
    tokenizer, prepared = prepare(settings)
    labels = np.concatenate([batch["labels"] for batch in evaluation_batches(settings, tokenizer, prepared)])
    found = labels[labels != -100]
    share = np.mean(found == tokenizer.sep_id)
    assert share > 0.02 and prepared.train.token_counts(len(tokenizer))[tokenizer.sep_id] == 0
    counts = prepared.train.token_counts(len(tokenizer)).astype(float)
    counts[tokenizer.sep_id] = share * counts.sum() / (1 - share)  # so that it has this share of all
    expected = -np.log((counts[found] + 1) / (counts.sum() + len(counts))).mean()
    assert pretrain(settings)["plateau_loss"] == pytest.approx(expected, rel=1e-3)


def test_settings_that_say_what_the_model_is_are_none(small):
    settings = PretrainSettings(preset="mini", max_position_embeddings=64, vocab_size=100)
    folder = Path(small().out) / "model"
    settings.model_config(100).save_pretrained(folder)
    same = settings.replace(model=str(folder), num_hidden_layers=4, num_attention_heads=4).with_sizes()
    assert same.model_config(100) == settings.model_config(100)


def test_a_model_without_its_vocabulary_is_refused(small):
    pretrain(small(name="first"))
    final = small(name="first").folder / "final"
    with open(final / "vocab.txt", "a") as file:
        file.write("another\n")
    with pytest.raises(UserError, match=r"^the vocabulary has 81 tokens but the model knows only 80"):
        pretrain(small(model=str(final)))


# -- Doubts about the corpus --------------------------------------------------------------------------


def write_unmarked(small, words):
    path = Path(small().corpus[0])
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words, 60)) for _ in range(40)]
    path.write_text("\n\n".join(lines))
    return small(layout="sentences", steps=1)


def test_sentences_that_are_too_long_are_told(small, capsys):
    settings = write_unmarked(small, ["house", "garden", "river"])
    pretrain(settings)
    told = "warning: 52% of the tokens are hardly ever read, since sentences are longer than the 29 tokens"
    assert told in capsys.readouterr().out
    pretrain(settings.replace(nsp=False, whole_sentences=False, name="full"))
    assert "warning" not in capsys.readouterr().out


def test_many_unknown_words_are_told(small, capsys):
    settings = write_unmarked(small, ["house", "garden", "r" * 101]).replace(nsp=False, whole_sentences=False)
    pretrain(settings)
    assert re.search(r"warning: 3\d\.\d% of the tokens are unknown: words with", capsys.readouterr().out)


# -- Refusals ----------------------------------------------------------------------------------------


def test_a_folder_with_something_in_it_is_refused(small):
    settings = small()
    settings.folder.mkdir(parents=True)
    (settings.folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"runs/small is not empty; replace what is in it \(--overwrite\)"):
        pretrain(settings)
    assert names(settings.folder) == ["thesis.tex"]


def test_a_run_in_the_way_can_be_resumed_once_it_has_a_checkpoint(small):
    pretrain(small(steps=6))
    with pytest.raises(UserError, match=r"runs/small is not empty; resume .* \(--resume\), replace"):
        pretrain(small(steps=6))


def test_overwriting_removes_a_run_and_nothing_else(small):
    pretrain(small(steps=6))
    (small().folder / "thesis.tex").write_text("years of work")
    pretrain(small(steps=2, overwrite=True))
    assert names(small().folder) == [
        *("checkpoint-2", "config.json", "final", "loss.png", "metrics.jsonl", "results.json", "thesis.tex")
    ]
    assert max(r["step"] for r in read_metrics(small().folder / "metrics.jsonl")) == 2


def test_a_rank_that_does_not_see_the_vocabulary_says_so(tmp_path):
    """The first rank has told all others that it is there."""
    rank = SimpleNamespace(rank=1, first=False, broadcast=lambda _: True)
    settings = PretrainSettings(prepared=str(tmp_path / "elsewhere"))
    with pytest.raises(
        UserError, match="elsewhere: rank 1 does not see what rank 0 has there; choose a folder"
    ):
        _kept(settings, rank, lambda: pytest.fail("made"), "this")


def test_an_overwritten_run_is_kept_until_the_new_one_can_begin(small, tmp_path):
    pretrain(small())
    before = names(small().folder)
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        pretrain(small(overwrite=True, corpus=(str(tmp_path / "nowhere.txt"),)))
    assert names(small().folder) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 33}, "max_seq_length is 33, but the model has only 32 positions"),
        (
            {"max_seq_length": 16, "long_seq_length": 64},
            "long_seq_length is 64, but the model has only 32 pos",
        ),
        ({"long_seq_length": 32}, "long_seq_length is 32; it must be longer than max_seq_length, 32"),
        (
            {"max_seq_length": 12, "long_seq_length": 32},
            "4 sequences of 12 tokens do not add up to whole ones of 32; .* "
            "a batch_size that is a multiple of 8",
        ),
        ({"num_attention_heads": 3}, "hidden_size 16 is not divisible by num_attention_heads 3"),
        ({"resume": True}, "runs/small: no checkpoint to resume from"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(small, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        pretrain(small(**changes))
    assert names(tmp_path) == ["corpus.txt"]


def test_a_corpus_without_text_is_refused(small, tmp_path):
    (tmp_path / "corpus.txt").write_text(" \n\n \n")
    with pytest.raises(UserError, match=r"corpus.txt: no text in this corpus"):
        pretrain(small())
    assert names(tmp_path) == ["corpus.txt"]


def test_a_file_in_the_place_of_the_run_is_refused(small, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "small").write_text("")
    with pytest.raises(UserError, match="runs/small is a file"):
        pretrain(small())


def test_other_settings_or_other_text_do_not_resume_a_run(small, tmp_path):
    pretrain(small())
    with pytest.raises(UserError, match=f"was started with learning_rate = {small().learning_rate}, not 0.5"):
        pretrain(small(resume=True, learning_rate=0.5))
    with open(tmp_path / "corpus.txt", "a") as file:
        file.write("\n\nanother document .\nwith two sentences .\n")
    with pytest.raises(
        UserError, match="checkpoint-6: the corpus, the vocabulary or the teacher changed since"
    ):
        pretrain(small(resume=True))


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.5), ("weight_decay", 0.0), ("steps", 8), ("dropout", 0.1)]
)
def test_settings_that_were_edited_in_the_runs_own_file_are_noticed(small, capsys, name, value):
    """The command that a run tells to resume it reads its settings from that file."""
    pretrain(small())
    path = small().folder / "config.json"
    write_json(path, json.loads(path.read_text()) | {name: value})
    capsys.readouterr()
    assert main(["pretrain", "--config", str(path), "--resume"]) == 2
    error = capsys.readouterr().err
    assert f"small was started with {name} = {getattr(small(), name)}, not {value}; resume it" in error
    assert error.count("\n") == 1


def test_settings_that_may_differ_can_be_edited_in_the_runs_own_file(small):
    pretrain(small())
    path = small().folder / "config.json"
    edited = {"print_every": 1, "save_every": 2, "eval_every": 5, "keep_checkpoints": 1}
    write_json(path, json.loads(path.read_text()) | edited)
    assert main(["pretrain", "--config", str(path), "--resume"]) == 0
    assert edited.items() <= json.loads(path.read_text()).items()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 5),
        ("seconds", "long"),
        *((name, None) for name in ("data", "trained_on", "environment", "phases")),
    ],
)
def test_a_state_that_was_edited_is_noticed(small, name, value):
    pretrain(small())
    path = small().folder / "checkpoint-6" / "state.json"
    state = json.loads(path.read_text()) | {name: value}
    if value is None:
        del state[name]
    write_json(path, state)
    message = r"checkpoint-6 is damaged \(state\.json is not what was written\); delete that folder"
    with pytest.raises(UserError, match=message):
        pretrain(small(resume=True))


@pytest.mark.parametrize(
    "line", ['{"step": 3, "los', "[3]", '{"loss": 1.0}', "", "\x00\x00", '{"step": "3"}']
)
def test_a_damaged_line_of_the_metrics_is_named(small, line):
    settings = small()
    pretrain(settings)
    before = weights(settings)
    path = settings.folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, *lines[3:]]) + "\n")
    with pytest.raises(UserError, match=r"small/metrics\.jsonl: line 3 is damaged; delete that line, which"):
        pretrain(settings.replace(resume=True))
    path.write_text("\n".join([*lines[:2], *lines[3:]]) + "\n")
    pretrain(settings.replace(resume=True))
    assert weights(settings) == before


def test_a_damaged_checkpoint_names_the_way_out_and_that_works(small):
    settings = small()
    pretrain(settings)
    before = weights(settings)
    newest = settings.folder / "checkpoint-6"
    (newest / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"checkpoint-6 is damaged .* delete that folder .* checkpoint-3"):
        pretrain(settings.replace(resume=True))
    shutil.rmtree(newest)
    pretrain(settings.replace(resume=True))
    assert weights(settings) == before


# -- Precision and memory ----------------------------------------------------------------------------


def test_recomputing_the_layers_gives_the_same_bits(small, monkeypatch):
    keeping, recomputing = small(name="a", dropout=0.1), small(name="b", dropout=0.1, recompute=True)
    forward, calls = BertLayer.forward, Counter()
    for settings in (keeping, recomputing):

        def counted(layer, *arguments, run=settings.name, **keywords):
            calls[run] += 1
            return forward(layer, *arguments, **keywords)

        monkeypatch.setattr(BertLayer, "forward", counted)
        pretrain(settings)
    assert weights(keeping) == weights(recomputing)
    assert calls["b"] == calls["a"] + 6, "its one layer, once more in each of the 6 steps"


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_a_precision_that_only_a_gpu_has_is_refused_before_any_work(small, tmp_path, precision):
    with pytest.raises(UserError, match=rf"precision {precision} needs a GPU; on the CPU leave out"):
        pretrain(small(precision=precision))
    assert not (tmp_path / "prepared").exists()


def test_bfloat16_on_a_processor_without_it_is_refused_before_any_work(small, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "_processor_features", lambda: set())
    products._bfloat16.cache_clear()
    with pytest.raises(UserError, match="this processor has no bfloat16 products"):
        pretrain(small(precision="bfloat16", products="auto"))
    assert not (tmp_path / "prepared").exists()


def test_double_precision_all_the_way(small):
    pretrain(small(precision="float64"))
    config = json.loads((small().folder / "final" / "config.json").read_text())
    assert config["dtype"] == "float64"


def test_out_of_memory_is_told_of_the_longer_sequences(small, monkeypatch):
    def run_out(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr(BertForPreTraining, "backward", run_out)
    with pytest.raises(
        UserError, match=r"^not enough memory on cpu: 2 sequences of 32 tokens in float32 take"
    ):
        pretrain(small(**TWO_LENGTHS, **LONG))


def test_the_memory_is_that_of_the_predictions_that_there_can_be():
    """A limit that no sequence reaches takes none."""
    settings = PretrainSettings(batch_size=512, masked_lm_prob=0.25).with_sizes()
    settings = settings.replace(precision="float32")
    needed = [_needed_memory(settings.replace(max_predictions=count), 8192) for count in (16, 1000)]
    assert needed[0] == needed[1] != _needed_memory(settings.replace(max_predictions=8), 8192)


@pytest.mark.parametrize("recompute", [False, True])
def test_out_of_memory_is_told_in_one_line(small, monkeypatch, recompute):
    def run_out(*arguments, **keywords):
        raise MemoryError("Out of memory allocating 8 bytes\n(allocated so far: 3 bytes).")

    monkeypatch.setattr(BertForPreTraining, "backward", run_out)
    expected = (
        r"^not enough memory on cpu: 4 sequences of 32 tokens in float32 take about 0\.00 GiB "
        r"\(Out of memory allocating 8 bytes \(allocated so far: 3 bytes\)\.\); lower --batch-size and raise "
        r"--accumulation by the same factor, for the same step in smaller pieces"
    ) + ("$" if recompute else ", or add --recompute$")
    with pytest.raises(UserError, match=expected):
        pretrain(small(recompute=recompute))
