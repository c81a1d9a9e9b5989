"""The commands with models of every family: each opens the folder by what ``config.json`` says."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from minibert.bert import BertForMaskedLM, BertModel
from minibert.cli import main
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer, open_tokenizer
from minibert.variants import FAMILIES, open_config

TEXTS = [
    "ann sings a fine song in rome .",
    "lee is in a bad film .",
    "a fine film , ann .",
    "lee sings a bad song .",
]
QUESTION = {"id": "1", "question": "who sings ?", "answers": [{"text": "ann", "answer_start": 0}]}
WORDPIECE = BertTokenizer(
    "[PAD] [UNK] [CLS] [SEP] [MASK] ann lee sings is in rome a fine bad film song . ,".split()
)
TOKENIZERS = {
    "bert": WORDPIECE,
    "distilbert": WORDPIECE,
    "electra": WORDPIECE,
    "minibert-modern": WORDPIECE,
    "roberta": RobertaTokenizer.train(TEXTS * 2, 280),
    "albert": AlbertTokenizer.train(TEXTS * 2, 60),
    "xlnet": XLNetTokenizer.train(TEXTS * 2, 60),
}


@pytest.fixture(params=TOKENIZERS)
def workplace(request, tmp_path, monkeypatch):
    """The current directory: an encoder and a model for masked words of a family, both random, and a file."""
    monkeypatch.chdir(tmp_path)
    members, tokenizer = FAMILIES[request.param], TOKENIZERS[request.param]
    config = members.config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=40,
        initializer_range=0.5,
        pad_token_id=tokenizer.pad_id,
    )
    for name, kind in (("encoder", BertModel), ("words", BertForMaskedLM)):
        members.models[kind](config, seed=1).save_pretrained(name)
        tokenizer.save_pretrained(name)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    rows = [f"{text}\t{int('fine' in text)}" for text in TEXTS * 4]
    (tmp_path / "labelled.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    pairs = [f"{one}\t{other}\t{int(one == other)}" for one in TEXTS for other in TEXTS]
    (tmp_path / "pairs.tsv").write_text("\n".join(["text\ttext_pair\tlabel", *pairs]) + "\n")
    tagged = "\n\n".join("\n".join(f"{word}\tO" for word in text.split()) for text in TEXTS)
    (tmp_path / "tagged.conll").write_text(tagged.replace("ann\tO", "ann\tB-person") + "\n")
    return request.param, tokenizer


def run(line):
    assert main([*shlex.split(line), "--device", "cpu"]) == 0


def test_masked_words_and_vectors(workplace, capsys):
    _, tokenizer = workplace
    mask = tokenizer.special_tokens["mask_token"]
    run(f'fill-mask --model words "ann sings a {mask} song ." --top-k 3')
    guesses = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.strip().splitlines()[2:]]
    assert len(guesses) == 3
    run(f'explore --model words "ann sings a {mask} song ." --output explore.html')
    (data,) = re.findall(r'id="data">(.*?)</script>', Path("explore.html").read_text(), re.DOTALL)
    (shown,) = json.loads(data)["sentences"]
    for told in (shown["look"]["guesses"], shown["look"]["lens"][-1]):
        assert [guess["token"].strip() for guess in told[:3]] == guesses
    told = explained(f'--model words "ann sings a {mask} song ."', capsys, steps=200)
    assert told["relative_gap"] < 1e-3
    run("embed --model encoder --input texts.txt --output vectors.npy")
    vectors = np.load("vectors.npy")
    assert vectors.shape == (4, 8) and np.abs(vectors[0] - vectors[1]).max() > 1e-3


def explained(line, capsys, steps=2):
    """The words of a text by three methods. With enough steps, the integrated gradients add up."""
    capsys.readouterr()
    run(f"explain {line} --json --steps {steps} --dtype float64")
    told = json.loads(capsys.readouterr().out)
    shares = [word["integrated_gradients"] for word in told["words"]]
    assert told["sum"] == pytest.approx(sum(shares))
    assert shares.count(0.0) == line.count("[MASK]") + line.count("<mask>")  # the same in the baseline
    assert told["value"] != told["baseline"]["value"]
    assert any(word["gradient_x_input"] for word in told["words"])
    assert any(word["left_out"] for word in told["words"])
    return told


def refused(line, capsys, *parts):
    assert main([*shlex.split(line), "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert all(part in err for part in parts) and len(err.strip().splitlines()) == 1, err


HEADS = {"bert": "cls.predictions", "minibert-modern": "cls.predictions", "roberta": "lm_head"}
HEADS |= {"albert": "predictions", "electra": "generator_lm_head and generator_predictions"}
HEADS |= {"distilbert": "vocab_layer_norm and vocab_projector and vocab_transform"}


def test_an_untrained_head_guesses_nothing(workplace, capsys):
    """An encoder, or an ELECTRA's discriminator, whose generator can be asked."""
    name, tokenizer = workplace
    mask = tokenizer.special_tokens["mask_token"]
    if name != "xlnet":  # which has nothing but a bias there
        refused(
            f'fill-mask --model encoder "ann {mask} ."',
            capsys,
            f"has no {HEADS[name]}, which",
            "use another model, or train this one first",
        )
    if name == "electra":
        Path("encoder/1_Pooling").mkdir()  # of a sentence encoder; this is no model
        Path("encoder/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
        Path("words").rename("encoder/generator")
        refused(f'fill-mask --model encoder "ann {mask} ."', capsys, "is encoder/generator meant?")
        run(f'fill-mask --model encoder/generator "ann {mask} ."')


@pytest.mark.parametrize(
    ("task", "file", "text"),
    [
        ("classify", "labelled.tsv", '"a fine song"'),
        ("classify", "pairs.tsv", '"a fine film" --pair "a bad film"'),
        ("tag", "tagged.conll", '"ann sings in rome"'),
    ],
)
def test_fine_tuning_and_prediction(workplace, capsys, task, file, text):
    sizes = "--epochs 1 --batch-size 8 --max-length 20 --restarts 1"
    run(f"finetune --task {task} --model encoder --train {file} --dev {file} --name mine {sizes}")
    capsys.readouterr()
    run(f"predict --model runs/mine/best {text}")
    assert "prediction" in json.loads(capsys.readouterr().out)
    explained(f"--model runs/mine/best {text}", capsys)
    run(f"evaluate --model runs/mine/best --data {file}")
    assert "examples" in capsys.readouterr().out


def test_answers_in_passages(workplace, capsys):
    data = [{"title": "films", "paragraphs": [{"context": text, "qas": [QUESTION]}]} for text in TEXTS[:1]]
    Path("squad.json").write_text(json.dumps({"version": "1.1", "data": data}))
    sizes = "--epochs 1 --batch-size 4 --max-length 30 --max-question 8 --stride 8"
    run(f"finetune --task qa --model encoder --train squad.json --dev squad.json --name mine {sizes}")
    capsys.readouterr()
    run(f'predict --model runs/mine/best "who sings ?" --pair "{TEXTS[0]}"')
    assert json.loads(capsys.readouterr().out)["prediction"] in TEXTS[0]
    explained(f'--model runs/mine/best "who sings ?" --pair "{TEXTS[0]}"', capsys)


def test_an_index_of_passages(workplace, capsys):
    run("search index --model encoder --index ix --passages texts.txt")
    capsys.readouterr()
    run('search query --index ix "ann sings"')
    assert "sings" in capsys.readouterr().out


def test_more_pre_training(workplace, capsys):
    name, tokenizer = workplace
    documents = ["\n".join(order) for order in itertools.permutations(TEXTS)]
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n")
    flags = "--corpus corpus.txt --held-out 0.3 --max-seq-length 16 --batch-size 2 --steps 2 --eval-batches 1"
    if name not in ("bert", "albert", "minibert-modern"):
        assert main(shlex.split(f"pretrain --model words --nsp {flags} --name on --device cpu")) == 2
        assert "has no part about pairs of texts" in capsys.readouterr().err
    run(f"pretrain --model words --no-nsp {flags} --name on")
    out = capsys.readouterr().out
    predicted = "permuted" if name == "xlnet" else "masked"
    assert f"held-out {predicted} words" in out and "was: " in out
    assert "Ġ" not in out and "▁" not in out  # tokens are shown as people read them
    mask = tokenizer.special_tokens["mask_token"]
    run(f'fill-mask --model runs/on/final "ann sings a {mask} ."')
    card = Path("runs/on/final/README.md").read_text()
    assert f"a {mask} text" in card and ("[MASK]" in card) == (mask == "[MASK]")


def test_pre_training_from_nothing(workplace, capsys):
    """Each family with its own kind of vocabulary, recipe and head for pairs, and what then opens it."""
    name, tokenizer = workplace
    documents = ["\n".join(order) for order in itertools.permutations(TEXTS)]
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n")
    flags = (
        f"--variant {name} --corpus corpus.txt --held-out 0.3 --max-seq-length 16 --batch-size 2 "
        "--eval-batches 1 --layers 2 --hidden 8 --heads 2 --positions 20 --vocab-size 280"
    )
    run(f"pretrain {flags} --name new --steps 2")
    out = capsys.readouterr().out
    pairs = dict.fromkeys(("bert", "minibert-modern"), "sentence pairs (NSP)")
    pairs |= {"albert": "sentence pairs (in order or swapped)"}
    assert ("sentence pairs" in out) == (name in pairs) and pairs.get(name, "") in out
    config = json.loads(Path("runs/new/final/config.json").read_text())
    assert config["model_type"] == name and config["pad_token_id"] == tokenizer.pad_id
    assert config.get("embedding_size") == (4 if name in ("albert", "electra") else None)
    assert open_config("runs/new/final").longest_sequence == 20
    assert type(open_tokenizer("runs/new/final")) is type(tokenizer)
    mask = tokenizer.special_tokens["mask_token"]
    words = "runs/new/final/generator" if name == "electra" else "runs/new/final"
    run(f'fill-mask --model {words} "ann sings a {mask} ."')
    assert ("held-out replaced words" in out) == (name == "electra")
    card = Path("runs/new/final/README.md").read_text()
    assert ("| masked words (the generator), accuracy |" in card) == (name == "electra")
    run("embed --model runs/new/final --input texts.txt --output vectors.npy")
    assert np.load("vectors.npy").shape == (4, 8)
    run(f"pretrain {flags} --name new --steps 2 --resume")
    rotary = name == "minibert-modern"  # so that heads cannot look for positions at first
    more = "--attention-initializer normal" if rotary else ""
    run(f"pretrain {flags} --name quick --recipe fast --steps 2 {more}")


SMALL = "--layers 1 --hidden 8 --heads 2 --held-out 0.3 --max-seq-length 16 --batch-size 2 --eval-batches 1"


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = ["\n".join(order) for order in itertools.permutations(TEXTS)]
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n")


@pytest.mark.parametrize("variant", ["bert", "roberta", "albert", "minibert-modern"])
def test_a_left_to_right_model(corpus, capsys, variant):
    flags = f"--variant {variant} --corpus corpus.txt --vocab-size 280 {SMALL} --steps 2"
    run(f"pretrain {flags} --objective left-to-right --name ltr")
    out = capsys.readouterr().out
    assert "held-out next words" in out and "sentence pairs" not in out and "was: " not in out
    assert open_config("runs/ltr/final").is_decoder and not Path("runs/ltr/final/README.md").exists()
    on = f"pretrain --model runs/ltr/final --corpus corpus.txt {SMALL} --steps 2 --name on --device cpu"
    on = on.replace("--layers 1 --hidden 8 --heads 2 ", "")
    assert main(shlex.split(on)) == 2
    assert "has learned with 'left-to-right'; give --objective left-to-right" in capsys.readouterr().err
    assert main(shlex.split(f"{on} --objective left-to-right")) == 0
    Path("labelled.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{len(text) % 2}\n" for text in TEXTS))
    data = "--train labelled.tsv --dev labelled.tsv --epochs 1 --max-length 12"
    run(f"finetune --task classify --model runs/ltr/final {data} --name classes")
    assert open_config("runs/classes/best").classifier_pooling == "lasttoken"
    mask = open_tokenizer("runs/ltr/final").special_tokens["mask_token"]
    assert main(["fill-mask", "--model", "runs/ltr/final", f"ann {mask} ."]) == 2
    assert "has learned left to right" in capsys.readouterr().err
    taught = f"--teacher runs/ltr/final --corpus corpus.txt {SMALL} --steps 2 --name taught --device cpu"
    assert main(shlex.split(f"pretrain {taught}")) == 2
    assert "has learned left to right; give one that has learned from masked words" in capsys.readouterr().err
    assert main(shlex.split(f"pretrain {flags} --objective left-to-right --nsp --name no")) == 2
    assert "left-to-right prediction has no part about pairs of texts" in capsys.readouterr().err


def test_two_ideas_that_came_later(corpus):
    flags = f"--corpus corpus.txt {SMALL} --steps 2"
    run(f"pretrain --variant minibert-modern {flags} --normalisation post --position-kind learned --name new")
    config = open_config("runs/new/final")
    assert (config.normalisation, config.positions) == ("post", "learned")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--variant electra --objective left-to-right", "models of type 'electra' learn from masked tokens"),
        ("--variant xlnet --objective masked", "an XLNet learns from permuted text; leave it out"),
        ("--objective permuted", "only XLNet learns from permuted text; leave it out"),
        ("--variant roberta --lowercase", "models of type 'roberta' have a tokenizer that keeps capitals"),
        ("--embedding 4", "embedding_size is no setting of models of type 'bert'"),
        ("--variant roberta --normalisation pre", "normalisation is no setting of models of type 'roberta'"),
        ("--mask-shares 80 30", "mask_shares is 80 30; expected three percentages"),
        ("--variant gpt", "variant"),
        ("--variant xlnet --attention-initializer neighbours", "have no table of positions, in which heads"),
        (
            "--variant xlnet --position-initializer sinusoidal",
            "'sinusoidal', but models of type 'xlnet' have no",
        ),
        ("--variant minibert-modern --position-initializer sinusoidal", "have no table of positions; leave"),
        ("--variant albert --generator-share 0.5", "models of type 'albert' have no generator; leave it out"),
        (
            "--objective left-to-right --mask-shares 100 0 0",
            "no tokens are masked; leave it out, or set it to",
        ),
        ("--variant roberta --alphabet-limit 100", "models of type 'roberta' spell every character in bytes"),
        ("--tokenizer words --alphabet-limit 100", "no vocabulary is learned; leave it out, or set it to"),
        ("--tokenizer words --lowercase", "lowercase is True, but no vocabulary is learned; leave it out"),
        ("--long-batch-size 4", "long_batch_size is 4, but no long_seq_length is given; leave it out"),
        ("--long-share 0.5", "long_share is 0.5, but no long_seq_length is given; leave it out, or set it"),
        ("--variant xlnet --whole-word-masking", "whole_word_masking is True, but no tokens are masked"),
        ("--matrix-rate 8", "matrix_rate is 8.0, but the optimiser is adamw, not muon; leave it out, or set"),
        ("--recipe fast --optimiser adamw --matrix-momentum 0.9", "the optimiser is adamw, not muon"),
        ("--objective left-to-right --max-predictions 9", "9, but every next token is predicted; leave it"),
        ("--objective left-to-right --masked-lm-prob 0.3", "0.3, but every next token is predicted; leave"),
        ("--variant xlnet --max-predictions 9", "9, but the share masked_lm_prob of the tokens is predicted"),
        ("--dupe-factor 4", "dupe_factor is 4, but masking is dynamic: no pass repeats another"),
        ("--recipe fast --short-seq-prob 0.3", "0.3, but without whole_sentences all sequences are full"),
        ("--tokenizer words --vocab-size 99", "vocab_size is 99, but the vocabulary is that in words; leave"),
        (
            "--model words --initializer-range 0.1",
            "0.1, but the model in words has its weights; leave it out",
        ),
    ],
)
def test_settings_that_do_not_go_together(corpus, capsys, flags, message):
    assert main(shlex.split(f"pretrain --corpus corpus.txt {SMALL} --steps 2 {flags} --device cpu")) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1
    assert not Path("runs/tiny/final").exists()


@pytest.mark.parametrize(
    ("variant", "tokenizer"),
    [("bert", "xlnet"), ("roberta", "xlnet"), ("xlnet", "bert"), ("xlnet", "albert")],
)
def test_only_xlnet_reads_cls_at_the_end(variant, tokenizer, corpus, capsys):
    TOKENIZERS[tokenizer].save_pretrained("words")
    its, needed = type(TOKENIZERS[tokenizer]).__name__, type(TOKENIZERS[variant]).__name__
    told = (
        f"words: the tokenizer is of class {its}, but models of type '{variant}' need {needed}; give another"
    )
    line = f"pretrain --variant {variant} --tokenizer words --corpus corpus.txt {SMALL} --steps 2"
    assert main([*shlex.split(line), "--device", "cpu"]) == 2
    assert told in capsys.readouterr().err and not Path("runs/tiny").exists()


def test_albert_is_asked_for_the_order_and_its_card_says_so(corpus):
    run(f"pretrain --variant albert --corpus corpus.txt {SMALL} --steps 2 --name ordered")
    card = Path("runs/ordered/final/README.md").read_text()
    assert "sentence pairs (in order or swapped), accuracy" in card and "NSP" not in card


def test_a_student_of_masked_words(workplace, capsys):
    """Half of the teacher's layers, its vocabulary, and both losses in the metrics."""
    name, tokenizer = workplace
    documents = ["\n".join(order) for order in itertools.permutations(TEXTS)]
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n")
    flags = (
        "--corpus corpus.txt --held-out 0.3 --max-seq-length 16 --batch-size 2 --eval-batches 1 "
        f"--variant {name} --teacher words"
    )
    if name in ("electra", "xlnet"):
        assert main(shlex.split(f"pretrain {flags} --steps 2 --device cpu")) == 2
        assert "a teacher teaches masked words" in capsys.readouterr().err
        return
    run(f"pretrain {flags} --name student --steps 2")
    assert "of the teacher's numbers the student has taken" in capsys.readouterr().out
    first = json.loads(Path("runs/student/metrics.jsonl").read_text().splitlines()[1])
    assert first["loss"] == pytest.approx(
        5 * first["soft_loss"] + 2 * first["mlm_loss"] + first["cosine_loss"], rel=1e-5
    )
    student, teacher = open_config("runs/student/final"), open_config("words")
    assert student.num_hidden_layers == 1 and student.hidden_size == teacher.hidden_size
    assert student.longest_sequence == teacher.longest_sequence
    assert open_tokenizer("runs/student/final").tokens == tokenizer.tokens
    run(f"pretrain {flags} --name student --steps 2 --resume")
    assert main(shlex.split(f"pretrain {flags} --nsp --steps 2 --device cpu")) == 2
    assert "learning from a teacher has no part about pairs" in capsys.readouterr().err
    assert main(shlex.split(f"pretrain {flags} --vocab-size 99 --steps 2 --device cpu")) == 2
    assert "vocab_size is 99, but a student has its teacher's" in capsys.readouterr().err
    shutil.rmtree("prepared")
    headless = flags.replace("--teacher words", "--teacher encoder")
    refused(f"pretrain {headless} --steps 2", capsys, f"encoder has no {HEADS[name]}, which")
    assert not Path("prepared").exists()  # before any work


def test_what_it_is(workplace, capsys):
    name, _ = workplace
    assert main(["info", "encoder"]) == 0  # which reads less than the usual 128 tokens
    assert FAMILIES[name].models[BertModel].__name__ in capsys.readouterr().out
    assert main(["export", "words", "--output", "half", "--dtype", "float16"]) == 0
    capsys.readouterr()
    run('fill-mask --model half "ann sings a ' + workplace[1].special_tokens["mask_token"] + ' ."')
    assert main(["export", "words", "--output", "bare", "--encoder-only"]) == 0
    run("embed --model bare --input texts.txt --output bare.npy")
