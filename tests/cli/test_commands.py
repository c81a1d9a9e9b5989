"""The commands as a person meets them: what they print, and what they say when something is wrong."""

import contextlib
import errno
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from parsers import every_parser, subcommands
from safetensors.numpy import load_file, save_file

from minibert import ops
from minibert.cli import COMMANDS, main, make_parser, parse
from minibert.data import open_corpus
from minibert.kernels import cuda
from minibert.kernels.cuda.launch import KernelError
from minibert.tasks.pretraining_recipes import PRETRAINING_RECIPES
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import BertTokenizer

SENTENCES = [
    "The river rose in the night and took the bridge away.",
    "Nobody in the village had seen such a flood before.",
    "In the morning the children went down to look at it.",
    "An old boat lay upside down in the middle of the road.",
]
SMALL = "--layers 1 --hidden 16 --heads 2 --steps 3 --batch-size 2 --max-seq-length 32 --vocab-size 120"
SMALL += " --eval-batches 1 --eval-every 2 --save-every 2 --device cpu --processes 1 --threads 1"


def write_corpus(path: Path, documents: int = 8) -> Path:
    text = "\n\n".join(
        "\n".join(SENTENCES[i % 4 :] + SENTENCES[: i % 4] + [f"Day {i}."]) for i in range(documents)
    )
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ``minibert pretrain`` has made runs/small and prepared/ from corpus.txt."""
    folder = tmp_path_factory.mktemp("trained")
    write_corpus(folder / "corpus.txt")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(["pretrain", "--name", "small", "--corpus", "corpus.txt", *SMALL.split()]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def workplace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder to do damage in, as the current directory."""
    folder = shutil.copytree(trained, tmp_path / "workplace")
    monkeypatch.chdir(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the vocabularies kept for reuse, which are complete whatever fails after them."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and "prepared/vocabulary-" not in path.as_posix()
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


# -- What goes right --------------------------------------------------------------------------------


def test_pretrain_leaves_what_it_promises(trained):
    run = trained / "runs" / "small"
    assert {"config.json", "metrics.jsonl", "loss.png", "final"} <= {path.name for path in run.iterdir()}
    assert (run / "final" / "model.safetensors").is_file()


MODEL = "--model runs/small/final"
TOKENIZER = "--tokenizer runs/small/final"


def test_fill_mask_says_which_model_it_takes(workplace, capsys):
    assert main([*f"fill-mask {MODEL} --top-k 3 --device cpu".split(), "the [MASK] of the [MASK] ."]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model: runs/small/final"
    assert [line for line in lines[1:] if not line.startswith(" ")] == ["[MASK]", "[MASK]"]
    assert len(lines) == 1 + 2 * (1 + 3)


def test_fill_mask_and_the_tokenizer_need_no_model_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fill-mask", "the capital of france is [MASK] .", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["model: mini, which comes with minibert", "[MASK]"] and len(lines) == 2 + 5
    assert main(["tokenizer", "encode", "the river"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "[CLS] the river [SEP]"


def test_fill_mask_refuses_a_head_that_knows_nothing(workplace, capsys):
    model = "runs/small/final"
    assert main(["fill-mask", "the [MASK] .", "--model", model, "--device", "cpu"]) == 0
    assert capsys.readouterr().err == "", "that it has other heads as well is not worth a word"
    path = Path(model) / "model.safetensors"
    tensors = {
        name: array for name, array in load_file(path).items() if not name.startswith("cls.predictions")
    }
    save_file(tensors, path)
    assert main(["fill-mask", "the [MASK] .", "--model", model, "--device", "cpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = "has no cls.predictions, which BertForMaskedLM needs; use another model, or train this one first"
    assert line == f"minibert: error: {model} {told}"


def test_tokenizer_encodes_and_decodes(workplace, capsys):
    assert main(["tokenizer", "encode", *TOKENIZER.split(), "The river", "the night"]) == 0
    tokens, ids = capsys.readouterr().out.splitlines()
    assert tokens.split()[0] == "[CLS]" and tokens.split().count("[SEP]") == 2
    assert main(["tokenizer", "decode", *TOKENIZER.split(), *ids.split(), "--skip-special-tokens"]) == 0
    assert capsys.readouterr().out == "the river the night\n"


def test_tokenizer_learns_a_vocabulary(workplace, capsys):
    assert main("tokenizer train --corpus corpus.txt --vocab-size 100 --output vocabulary".split()) == 0
    vocabulary = Path("vocabulary/vocab.txt").read_text(encoding="utf-8").splitlines()
    told = capsys.readouterr().out
    assert f"{len(vocabulary)} tokens written to vocabulary" in told
    assert vocabulary[0] == "[PAD]" and len(vocabulary) == 100
    assert told.endswith("tokens written to vocabulary\n")
    assert main("tokenizer train --corpus corpus.txt --vocab-size 9999 --output large".split()) == 0
    assert capsys.readouterr().out.endswith("tokens written to large (of 9,999; the corpus has no more)\n")
    few = "tokenizer train --corpus corpus.txt --vocab-size 100 --alphabet-limit 12 --output few"
    assert main(few.split()) == 0
    characters = [token for token in Path("few/vocab.txt").read_text().splitlines() if len(token) == 1]
    assert len(characters) == 12


def test_tokenizer_train_takes_the_settings_of_a_run(workplace, capsys):
    Path("mine.toml").write_text('layout = "wrapped"\ncorpus = ["corpus.txt"]\nsteps = 2\n', encoding="utf-8")
    learn = "tokenizer train --config mine.toml --vocab-size 100 --output"
    assert main(f"{learn} one".split()) == 0
    assert f"sha256 {open_corpus(['corpus.txt'], 'wrapped').fingerprint()[:16]}" in capsys.readouterr().out
    assert main(f"{learn} two --layout sentences --no-lowercase".split()) == 0
    assert f"sha256 {open_corpus(['corpus.txt'], 'sentences').fingerprint()[:16]}" in capsys.readouterr().out
    assert not BertTokenizer.from_pretrained("two").lowercase


@pytest.mark.parametrize("flags", ["", "--held-out 0.4 --held-out-seed 5 --seed 3 --layout sentences"])
def test_prepare_is_what_pretrain_would_do(workplace, capsys, flags):
    shutil.rmtree("prepared")
    assert main(f"prepare --corpus corpus.txt --vocab-size 120 --processes 1 {flags}".split()) == 0
    prepared, folders = contents(Path("prepared")), set(Path("prepared").iterdir())
    assert main(f"pretrain --name again --corpus corpus.txt {SMALL} {flags}".split()) == 0
    assert contents(Path("prepared")) == prepared and set(Path("prepared").iterdir()) == folders


def test_export_writes_shards_that_other_commands_read(workplace, capsys):
    assert (
        main("export runs/small/final --output out/small --dtype bfloat16 --max-shard-size 20KB".split()) == 0
    )
    files = sorted(Path("out/small").glob("model-*.safetensors"))
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert told == [[f"{path.stat().st_size:,}", "bytes", str(path)] for path in files] and len(files) > 1
    assert main(["fill-mask", "--model", "out/small", "the [MASK] .", "--device", "cpu"]) == 0
    assert main("export out/small --output encoder --encoder-only".split()) == 0
    assert main(["info", "encoder", "--max-seq-length", "32"]) == 0


def test_info_counts_bert_base(capsys):
    assert main(["info", "--preset", "base"]) == 0
    printed = capsys.readouterr().out
    assert "= the encoder (BertModel)" in printed and "109,482,240" in printed
    assert "bert.encoder.layer.0.attention.self.query.weight" in printed and "768 × 768" in printed
    assert "GFLOP" in printed and "MiB" in printed


def test_info_predicts_the_memory_of_a_precision(capsys):
    peaks = []
    for flags in ([], ["--precision", "bfloat16"], ["--precision", "bfloat16", "--recompute"]):
        assert main(["info", "--preset", "mini", *flags]) == 0
        printed = capsys.readouterr().out
        assert ("their copy in 16 bits" in printed) == bool(flags)
        last = printed.splitlines()[-1]
        assert last.split()[:3] == ["=", "peak,", "bfloat16" if flags else "float32"]
        peaks.append(float(last.split()[3].replace(",", "")))
    assert peaks == sorted(peaks, reverse=True) and peaks[2] < 0.6 * peaks[0]


def test_a_flag_that_changes_nothing_is_refused_but_not_the_same_in_a_file(workplace, monkeypatch, capsys):
    """A file may be meant for other flags, and who resumes a run may repeat its flags."""
    read = []
    monkeypatch.setattr("minibert.cli.pretrain.pretrain", read.append)
    monkeypatch.setattr("minibert.cli.finetune.finetune", lambda source, **values: read.append(values))
    Path("own.toml").write_text('optimiser = "muon"\nmatrix_rate = 8.0\ninitializer_range = 0.1\n')
    Path("tuned.toml").write_text('task = "classify"\ntrain = "a"\nmodel = "m"\nmatrix_momentum = 0.5\n')
    for line in (
        "pretrain --config own.toml",
        "pretrain --config own.toml --optimiser adamw",
        "pretrain --config own.toml --model mini",
        "pretrain --recipe fast --matrix-rate 4",
        "pretrain --matrix-rate 4 --name mine --resume",
        f"pretrain {TOKENIZER}",
        "finetune --config tuned.toml",
        "finetune --config tuned.toml --optimiser muon --matrix-rate 4",
    ):
        assert main(line.split()) == 0, line
    assert len(read) == 8 and capsys.readouterr().err == ""
    for line in (
        "finetune --config tuned.toml --matrix-rate 4",
        f"prepare {TOKENIZER} --vocab-size 99",
        "tokenizer train --output learned --layout wrapped",
    ):
        assert main(line.split()) == 2, line
        assert re.fullmatch(r".*\w+ is .*, but .*; leave it out.*\n", capsys.readouterr().err)


def test_a_recipe_is_overridden_by_the_file_and_the_flags(workplace, monkeypatch, capsys):
    """And a run that goes on from a model does not take its first values."""
    seen = []
    monkeypatch.setattr("minibert.cli.pretrain.pretrain", seen.append)
    (workplace / "own.toml").write_text("nsp = true\nwhole_sentences = true\nmasked_lm_prob = 0.2\n")
    assert main(["pretrain"]) == 0
    assert main("pretrain --recipe fast".split()) == 0
    assert main("pretrain --recipe fast --config own.toml --masked-lm-prob 0.3".split()) == 0
    assert main("pretrain --recipe fast --model mini".split()) == 0
    (workplace / "fast.toml").write_text('recipe = "fast"\n')
    assert main("pretrain --config fast.toml".split()) == 0
    assert main("pretrain --config fast.toml --recipe original".split()) == 0
    assert seen[-2:] == [seen[1], seen[0]]
    (workplace / "slow.toml").write_text('recipe = "slow"\n')
    assert main("pretrain --config slow.toml".split()) == 2
    assert "slow.toml: recipe must be one of original, fast, got 'slow'" in capsys.readouterr().err
    plain, fast, own, further = seen[:4]
    assert plain == PretrainSettings()
    assert fast == PretrainSettings(**PRETRAINING_RECIPES["fast"]) != plain
    assert own == fast.replace(nsp=True, whole_sentences=True, masked_lm_prob=0.3)
    assert further == fast.replace(model="mini", word_initializer="normal", attention_initializer="normal")


def test_info_reads_a_pretrained_folder(workplace, capsys):
    assert main(["info", "runs/small/final", "--max-seq-length", "32"]) == 0
    shown = capsys.readouterr().out
    rows = len(Path("runs/small/final/vocab.txt").read_text(encoding="utf-8").splitlines())
    assert shown.startswith("runs/small/final\n") and f" {rows} × 16 " in shown


def test_flags_go_before_the_config_file(workplace, capsys):
    Path("mine.toml").write_text('name = "from-file"\nsteps = 2\ncorpus = ["corpus.txt"]\n', encoding="utf-8")
    assert main(["pretrain", "--config", "mine.toml", *SMALL.split()]) == 0
    config = json.loads(Path("runs/from-file/config.json").read_text(encoding="utf-8"))
    assert config["steps"] == 3 and config["corpus"] == ["corpus.txt"]
    assert "steps=3" in capsys.readouterr().out


# -- What goes wrong --------------------------------------------------------------------------------


def damage(pattern: str, content: bytes) -> Callable[[], None]:
    """Overwrite the last file that matches."""
    return lambda: sorted(Path().glob(pattern))[-1].write_bytes(content)


def write(name: str, content: bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(content)


def edit_config(**changes: object) -> Callable[[], None]:
    def edit():
        path = Path("runs/small/final/config.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


NOTHING = write("unrelated.txt", b"")
PRETRAIN = f"pretrain {SMALL} --name other --corpus"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GZIP = b"\x1f\x8b\x08\x00" + b"\0" * 20

MISTAKES = {
    # what is made first, the command line, what the message has to say
    "no such corpus": (NOTHING, f"{PRETRAIN} nowhere.txt", ["nowhere.txt", "no such"]),
    "no match": (NOTHING, f"{PRETRAIN} no*.where", ["no*.where", "no file matches"]),
    "empty corpus": (write("e.txt", b""), f"{PRETRAIN} e.txt", ["e.txt", "empty"]),
    "blank corpus": (write("e.txt", b"\n \n"), f"{PRETRAIN} e.txt", ["e.txt", "no text"]),
    "one document": (write("o.txt", b"A day.\nA night.\n"), f"{PRETRAIN} o.txt", ["o.txt", "one document"]),
    "one document in this layout": (
        NOTHING,
        f"{PRETRAIN} corpus.txt --layout paragraphs",
        ["corpus.txt", "one document"],
    ),
    "unknown layout": (NOTHING, f"{PRETRAIN} corpus.txt --layout words", ["layout", "'words'", "wrapped"]),
    "not UTF-8": (write("l.txt", b"caf\xe9\n\nb.\n"), f"{PRETRAIN} l.txt", ["l.txt", "UTF-8"]),
    "binary": (write("b.txt", b"a\0b" * 99), f"{PRETRAIN} b.txt", ["b.txt", "binary"]),
    "damaged gzip": (write("g.txt.gz", GZIP), f"{PRETRAIN} g.txt.gz", ["g.txt.gz", "damaged"]),
    "vocabulary too small": (NOTHING, f"{PRETRAIN} corpus.txt --vocab-size 7", ["vocab_size 7"]),
    "vocabulary without special tokens": (
        damage("runs/small/final/vocab.txt", b"the\nof\n"),
        f"tokenizer encode {TOKENIZER} hello",
        ["vocab.txt", "[PAD]"],
    ),
    "vocabulary with duplicates": (
        lambda: Path("runs/small/final/vocab.txt").write_text("\n".join([*SPECIALS, "the", "the", ""])),
        f"tokenizer encode {TOKENIZER} hello",
        ["vocab.txt", "'the'"],
    ),
    "vocabulary larger than the model": (
        lambda: Path("runs/small/final/vocab.txt").write_text(
            "\n".join([*SPECIALS, *map(str, range(999)), ""])
        ),
        f"fill-mask {MODEL} [MASK]",
        ["vocabulary has 1004 tokens but the model knows only"],
    ),
    "too long for the positions": (
        NOTHING,
        f"{PRETRAIN} corpus.txt --positions 16",
        ["max_seq_length", "32", "16 positions"],
    ),
    "text too long for the positions": (
        NOTHING,
        f"fill-mask {MODEL} '{'night ' * 600}[MASK]'",
        ["512 positions"],
    ),
    "no mask": (NOTHING, "fill-mask hello", ["[MASK]"]),
    "id outside the vocabulary": (NOTHING, f"tokenizer decode {TOKENIZER} 5 99999", ["99999"]),
    "hidden size and heads": (NOTHING, f"{PRETRAIN} corpus.txt --hidden 18 --heads 4", ["18", "4"]),
    "no such model": (NOTHING, "fill-mask [MASK] --model nowhere", ["nowhere: no such folder"]),
    "a file as a model": (
        NOTHING,
        "fill-mask [MASK] --model corpus.txt",
        ["corpus.txt: a model is a folder with config.json"],
    ),
    "a file as an encoder": (
        NOTHING,
        "embed --model corpus.txt --input corpus.txt --skip-bad --output vectors.npy",
        ["corpus.txt: a model is a folder with config.json"],
    ),
    "a file as a model to view": (
        NOTHING,
        "view a --model corpus.txt",
        ["corpus.txt: a model is a folder with config.json"],
    ),
    "damaged model": (
        damage("runs/small/final/model.*", b"1"),
        f"fill-mask {MODEL} [MASK]",
        ["model.safetensors"],
    ),
    "model of another shape": (
        edit_config(hidden_size=32),
        f"fill-mask {MODEL} [MASK]",
        ["model.safetensors", "shape"],
    ),
    "damaged configuration": (
        damage("runs/small/final/config.json", b"{"),
        f"fill-mask {MODEL} [MASK]",
        ["config.json", "JSON"],
    ),
    "a run in the way": (
        NOTHING,
        f"pretrain {SMALL} --name small --corpus corpus.txt",
        ["--overwrite", "--resume"],
    ),
    "a model without weights": (
        lambda: Path("runs/small/final/model.safetensors").unlink(),
        f"pretrain {MODEL} --name other --corpus nowhere.txt",  # which is not even looked for
        ["runs/small/final", "model.safetensors"],
    ),
    "nothing to resume": (NOTHING, f"{PRETRAIN} corpus.txt --resume", ["other"]),
    "resumed with other settings": (
        NOTHING,
        f"pretrain {SMALL} --name small --corpus corpus.txt --resume --batch-size 3",
        ["batch_size"],
    ),
    "a recipe that is a list": (
        write("c.toml", b'recipe = ["fast"]'),
        "pretrain --config c.toml",
        ["recipe"],
    ),
    "a zero byte in a path": (
        write("c.json", b'{"prepared": "a\\u0000b", "corpus": ["corpus.txt"]}'),
        "pretrain --config c.json",
        ["prepared", "zero byte"],
    ),
    "half a surrogate pair in a path": (
        write("c.json", b'{"corpus": ["a\\ud800b"]}'),
        "prepare --config c.json",
        ["corpus", "surrogate"],
    ),
    "a number without quotes": (
        write("c.toml", b'task = "classify"\ntrain = "t.tsv"\nfreeze = 2\n'),
        "finetune --config c.toml",
        ["freeze", 'in quotes, "2"'],
    ),
    "passes without end": (
        NOTHING,
        "finetune --task classify --train t.tsv --epochs 1e308",
        ["epochs must be at most"],
    ),
    "too many threads": (NOTHING, "fill-mask [MASK] --threads 40000", ["threads must be at most"]),
    "a misspelt flag that is needed": (NOTHING, "predict --modle x y", ["did you mean '--model'?"]),
    "an empty settings file's name": (NOTHING, "pretrain --config ''", ["--config is empty"]),
    "an empty folder's name": (NOTHING, "info ''", ["FOLDER is empty"]),
    "an empty preset": (NOTHING, "info --preset ''", ["unknown preset ''"]),
    "an empty preset to check": (NOTHING, "gradcheck --preset ''", ["unknown preset ''"]),
    "a link that leads nowhere": (
        lambda: Path("gone.txt").symlink_to("nowhere"),
        "prepare --corpus gon*.txt",
        ["gone.txt", "leads nowhere"],
    ),
    "a damaged vocabulary that was learned": (
        damage("prepared/vocabulary-*/vocab.txt", b""),
        f"pretrain {SMALL} --name other --corpus corpus.txt",
        ["prepared/vocabulary-", "delete the folder"],
    ),
    "a copy of a run": (
        lambda: shutil.copytree("runs/small", "runs/copy"),
        "pretrain --config runs/copy/config.json --resume",
        ["copy of the run runs/small", "--name"],
    ),
    "resumed from another folder": (
        lambda: Path("runs").rename("elsewhere"),
        "pretrain --config elsewhere/small/config.json --resume",
        ["settings of the run runs/small, which is not here", "in which it was started"],
    ),
    "a text that looks like a flag": (
        NOTHING,
        "tokenizer encode -10%",
        ["arguments are required: text; if '-10%' is one, put -- before it"],
    ),
    "damaged checkpoint": (
        damage("runs/small/checkpoint-*/*.safetensors", b"1"),
        f"pretrain {SMALL} --name small --corpus corpus.txt --resume",
        ["checkpoint-", ".safetensors"],
    ),
    "unknown key": (
        write("c.toml", b"stepz = 3\n"),
        "pretrain --config c.toml",
        ["c.toml", "'stepz'", "did you mean 'steps'"],
    ),
    "broken settings": (write("c.toml", b"steps ="), "pretrain --config c.toml", ["c.toml", "TOML"]),
    "broken JSON settings": (write("c.json", b"{"), "pretrain --config c.json", ["c.json", "JSON"]),
    "setting of the wrong type": (
        write("c.toml", b'steps = "3"'),
        "pretrain --config c.toml",
        ["steps", "'3'"],
    ),
    "no settings file": (NOTHING, "pretrain --config c.toml", ["c.toml"]),
    "setting out of its limits": (NOTHING, f"{PRETRAIN} corpus.txt --batch-size 0", ["batch_size", "0"]),
    "an empty name": (NOTHING, f"{PRETRAIN} corpus.txt --name ''", ["name is ''", "name of a folder"]),
    "a name of two folders": (NOTHING, f"{PRETRAIN} corpus.txt --name a/b", ["name is 'a/b'", "in runs"]),
    "the folder above": (NOTHING, f"{PRETRAIN} corpus.txt --name ..", ["name is '..'", "in runs"]),
    "unknown flag": (NOTHING, "pretrain --stpes 3", ["--stpes", "did you mean '--steps'?"]),
    "unknown flag and its value": (
        NOTHING,
        "pretrain --stpes=3",
        ["unknown argument '--stpes'", "did you mean '--steps'?"],
    ),
    "flag before its command": (NOTHING, "--preset=tiny info", ["'--preset'; see  minibert --help"]),
    "text without quotes": (NOTHING, "fill-mask a [MASK] .", ["'[MASK]'", "quotes"]),
    "a word that no flag takes": (NOTHING, "pretrain corpus.txt", ["'corpus.txt'", "the value of a flag?"]),
    "wrong value": (NOTHING, "pretrain --steps many", ["--steps: expected a whole number, got 'many'"]),
    "no number": (NOTHING, "info --ranks 2 --link fast", ["--link: expected a number, got 'fast'"]),
    "unknown command": (NOTHING, "pretain", ["pretain", "did you mean 'pretrain'?"]),
    "no command": (NOTHING, "", ["minibert --help"]),
    "unknown device": (NOTHING, "fill-mask [MASK] --device tpu", ["tpu", "cuda"]),
    "unknown preset": (NOTHING, "info --preset tyni", ["tyni", "tiny"]),
    "sequence longer than a preset's": (NOTHING, "info --max-seq-length 513", ["513", "512"]),
    "16 bits on the CPU": (NOTHING, "pretrain --device cpu --precision float16", ["float16", "needs a GPU"]),
    "unknown precision": (NOTHING, "pretrain --precision half", ["half", "bfloat16"]),
    "unknown precision of a step": (NOTHING, "info --precision half", ["half", "bfloat16"]),
    "more predictions than tokens": (
        NOTHING,
        "info --max-seq-length 16 --max-predictions 17",
        ["17", "16", "--max-predictions"],
    ),
    "no sequences": (NOTHING, "info --batch-size 0", ["at least 1", "got 0 of 128, and 20"]),
    "the folder of a run, not of its model": (
        NOTHING,
        "export runs/small --output out",
        ["runs/small: ", "folder of a run", "runs/small/final"],
    ),
    "export in the way": (
        NOTHING,
        "export runs/small/final --output prepared",
        ["prepared", "exists already"],
    ),
    "no size": (NOTHING, "export runs/small/final --output out --max-shard-size big", ["16MiB", "'big'"]),
    "shards too small": (
        NOTHING,
        "export runs/small/final --output out --max-shard-size 1KB",
        ["takes", "at least"],
    ),
    "type of weights": (NOTHING, "export runs/small/final --output out --dtype int8", ["int8", "float16"]),
    "vocabulary in the way": (
        NOTHING,
        "tokenizer train --corpus corpus.txt --output runs/small/final",
        ["runs/small/final", "already"],
    ),
}


@pytest.mark.parametrize(("prepare", "line", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing_behind(prepare, line, said, workplace, capsys):
    prepare()
    before = contents(workplace)
    capsys.readouterr()
    assert main(shlex.split(line)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and errors[0].startswith("minibert: error: ")
    for words in said:
        assert words in errors[0]
    assert contents(workplace) == before


@pytest.mark.parametrize(
    "line",
    [
        f"pretrain {SMALL} --name small --out corpus.txt --corpus corpus.txt",
        f"{PRETRAIN} corpus.txt --prepared corpus.txt --vocab-size 99",
        "tokenizer train --corpus corpus.txt --output corpus.txt/v",
    ],
)
def test_a_place_is_looked_for_before_a_vocabulary_is_learned(line, workplace, capsys, monkeypatch):
    monkeypatch.setattr(BertTokenizer, "train", lambda *arguments, **options: pytest.fail("too late"))
    before = contents(workplace)
    assert main(line.split()) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("minibert: error: corpus.txt/") and "cannot write here" in said
    assert contents(workplace) == before


def test_a_full_disk_leaves_nothing_behind(workplace, capsys, monkeypatch):
    def no_space(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(workplace)
    monkeypatch.setattr(os, "fsync", no_space)
    assert main("tokenizer train --corpus corpus.txt --vocab-size 100 --output vocabulary".split()) == 2
    assert "no space left" in capsys.readouterr().err
    assert contents(workplace) == before


@pytest.mark.parametrize(
    "command",
    [
        "export {} --output new",
        "pretrain --corpus corpus.txt --prepared {}",
        "tokenizer encode --tokenizer {} text",
    ],
)
def test_a_name_that_no_folder_can_have(workplace, capsys, command):
    before = contents(workplace)
    assert main(command.format("x" * 300).split()) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"x{300}.*(File name too long|no such)", told)
    assert contents(workplace) == before


# -- The process --------------------------------------------------------------------------------------


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "minibert", *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_exit_code_and_message_reach_the_shell():
    result = run_process("info", "--preset", "tyni")
    assert result.returncode == 2
    assert result.stdout == "" and result.stderr.startswith("minibert: error: unknown preset 'tyni'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_the_exit_code_is_told_even_if_the_message_cannot_be():
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-m", "minibert", "nonsense"], stderr=full).returncode == 2


def test_a_terminal_that_knows_only_ascii_is_no_error():
    result = run_process("info", "--preset", "tiny", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and "30522 ? 128" in result.stdout


def test_a_stream_that_is_no_file_is_no_error():
    """As a notebook's, and what contextlib redirects to."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert main(["info", "--preset", "tiny"]) == 0
    assert "30522 × 128" in told.getvalue()


def test_cuda_without_cupy_says_how_to_install_it(monkeypatch, workplace, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)  # importing it fails from here on
    assert main(["fill-mask", "[MASK]", "--device", "cuda"]) == 2
    assert "pip install -e '.[cuda12]'" in capsys.readouterr().err


@pytest.mark.parametrize("strict", [True, False])
def test_strict_kernels_make_a_broken_kernel_an_error_in_one_line(strict, workplace, monkeypatch, capsys):
    """A kernel registered for NumPy that does not compile stands for one on a GPU."""
    broken = cuda._function_with_fallback("global_norm", fail_to_compile)
    monkeypatch.setattr(cuda, "_warned", set())
    kernels = ops.TABLE["global_norm"].kernels
    monkeypatch.setitem(kernels, ("numpy", "float32"), type(kernels["numpy", "float32"])(broken))
    line = f"pretrain --name strict --corpus corpus.txt {SMALL}" + " --strict-kernels" * strict
    code = main(line.split())
    said = capsys.readouterr().err
    ops.require_kernels(False)
    assert "global_norm cannot be used" in said and "norm.cu does not compile" in said
    if strict:
        assert code == 2 and said.count("\n") == 1 and "--strict-kernels" in said
    else:
        assert code == 0 and "warning" in said


def fail_to_compile(*arguments):
    raise KernelError("norm.cu does not compile")


def test_ctrl_c_exits_with_130(monkeypatch, capsys):
    def interrupt(config, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("minibert.cli.info.describe_step", interrupt)
    assert main(["info"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="needs a shell's pipe")
def test_a_reader_that_has_seen_enough_is_no_error():
    """It is gone before there is anything to read: a pipe would hold all of it."""
    command = f"{{ {sys.executable} -m minibert info --preset large; echo $? >&2; }} | true"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert result.stderr == "141\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which Linux has")
def test_output_for_which_there_is_no_space():
    command = f"{sys.executable} -m minibert info --preset tiny > /dev/full"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr == "minibert: error: cannot write the output (No space left on device)\n"


@pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")
def test_streams_may_be_closed():
    for command in ("info --preset tiny >&- 2>&- <&-", "predict --model nowhere <&-"):
        full = f"{sys.executable} -m minibert {command}"
        result = subprocess.run(["sh", "-c", full], capture_output=True, text=True, timeout=120)
        assert result.returncode == (2 if "nowhere" in command else 0)
        assert "Traceback" not in result.stderr


EVERY_COMMAND = {  # with the actions of those that have some
    parser.prog.removeprefix("minibert "): parser
    for parser in every_parser(make_parser())
    if not subcommands(parser)
}


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_has_examples_that_can_be_typed(command, capsys):
    with pytest.raises(SystemExit) as exit:
        main([*command.split(), "--help"])
    assert exit.value.code == 0
    shown, _, examples = capsys.readouterr().out.partition("\nfor example:\n")
    assert shown.startswith("usage: ") and examples
    for line in examples.splitlines():
        words = shlex.split(line)
        if words[0] == "mpirun":
            words = words[3:]
        assert words[0] == "minibert" and parse(words[1:]).run is EVERY_COMMAND[command].get_default("run")


def test_help_lists_every_command_once_in_its_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    listed = re.findall(r"^  ([a-z-]+)  ", shown.split("options:")[0], flags=re.MULTILINE)
    assert listed == list(subcommands(make_parser()))
    assert max(map(len, shown.splitlines())) <= 80
    titles = re.findall(r"^(\w.*):$", shown.split("options:")[0], flags=re.MULTILINE)
    assert titles == list(COMMANDS)


def test_pretrain_shows_the_settings_that_were_changed_and_all_on_demand(workplace, capsys):
    flags = shlex.split(f"pretrain --corpus corpus.txt --name shown --overwrite {SMALL}")
    for verbose in (False, True):
        assert main([*flags, *["--verbose"] * verbose]) == 0
        shown = capsys.readouterr().out.split("\n\n")[0]
        assert "num_hidden_layers=1" in shown and "steps=3" in shown
        assert ("weight_decay=0.01" in shown) is verbose


@pytest.mark.skipif(importlib.util.find_spec("shtab") is None, reason="needs shtab")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_shell_completes_commands_and_flags(tmp_path):
    script = tmp_path / "completion.bash"
    make = [sys.executable, "-m", "shtab", "--shell=bash", "minibert.cli.make_parser"]
    script.write_text(subprocess.run(make, check=True, capture_output=True, text=True).stdout)
    ask = "COMP_WORDS=(minibert {}); COMP_CWORD={}; _shtab_minibert; echo ${{COMPREPLY[@]}}"
    lines = [f"source {script}", ask.format("pre", 1), ask.format("pretrain --mask", 2)]
    answer = subprocess.run(["bash", "-c", "\n".join(lines)], check=True, capture_output=True, text=True)
    commands, found = answer.stdout.splitlines()
    assert commands.split() == ["pretrain", "predict", "prepare"]
    assert "--masked-lm-prob" in found.split()
