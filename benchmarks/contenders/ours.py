"""Ours."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import threadpoolctl

from benchmarks import inputs, operations, texts
from benchmarks import products as bare_products
from benchmarks.worker import Contender
from minibert import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    open_tokenizer,
    ops,
)
from minibert.cli import parse
from minibert.cli.setting_flags import pretrain_settings
from minibert.data import BatchStream
from minibert.devices import describe_processor, resolve_device
from minibert.dropout_bits import dropout_stream
from minibert.nn import Context
from minibert.products import NUMPY, use_products
from minibert.tasks import prepare
from minibert.tasks.pretraining_model import make_model
from minibert.train import AdamW
from minibert.train.metrics import as_float, peak_memory
from minibert.train.step import TrainingStep

# The first kernel loads Numba's compiler: code, not memory of the model.
ops.global_norm(np.ones(1, dtype=np.float32))


def describe_blas() -> str:
    """The libraries that NumPy and SciPy multiply matrices with, and for which processor."""
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    return ", ".join(sorted({f"{p['internal_api']} {p['version']} ({p.get('architecture')})" for p in pools}))


def training_step(folder: str, batch_size: int, length: int, products: str = NUMPY) -> Contender:
    """A step as the trainer takes it, of the model in a pretrained folder."""
    use_products(products)
    model = BertForPreTraining.from_pretrained(folder)
    batch = inputs.pretraining_batch(model.config.vocab_size, batch_size, length)
    training = TrainingStep(model, AdamW(model))

    def step(number: int) -> None:
        training.take([batch], 1e-5, max(number, 0))
        training.read()

    def loss_without_dropout() -> float:
        model.eval()
        return as_float(model.forward(**batch)[0].loss)

    return {"step": step, "loss": loss_without_dropout, "blas": describe_blas}


def gpu_steps(
    folder: str, batch_size: int, length: int, device: str, precision: str, graph: bool, steps: int
) -> Contender:
    """``steps`` steps and a look at their loss; also for the CPU, with the same words."""
    model = BertForPreTraining.from_pretrained(folder, device=device, precision=precision)
    batch = inputs.pretraining_batch(model.config.vocab_size, batch_size, length)
    predictions = inputs.count_masked(batch_size, length)
    training = TrainingStep(model, AdamW(model), predictions=predictions, graph=graph)
    numbers = itertools.count()

    def take_steps(_: int) -> None:
        for _ in range(steps):
            training.take([batch], 1e-5, next(numbers))
        training.read()

    def loss_without_dropout() -> float:
        model.eval()
        return as_float(model.forward(**batch, return_logits=False)[0].loss)

    return {
        "steps": take_steps,
        "loss": loss_without_dropout,
        "replaying": lambda: training.repetition.replaying,
        "memory": lambda: peak_memory(model.device, training.repetition.pool_bytes),
        "device": lambda: describe_processor(model.device),
    }


def step_and_products(folder: str, batch_size: int, length: int, products: str = NUMPY) -> Contender:
    """The same, and the bare ``products`` of the step, of which there are ``flops``."""
    config = BertConfig.from_pretrained(folder)
    bare = bare_products.step_products(config, batch_size, length, inputs.count_masked(batch_size, length))
    return training_step(folder, batch_size, length, products) | {
        "products": lambda _: bare_products.run(bare),
        "flops": lambda: sum(product.flops for product in bare),
    }


def profile(folder: str, batch_size: int, length: int) -> Contender:
    """Where the time of a step goes: see `operations.profile`."""
    step = training_step(folder, batch_size, length)["step"]
    return {"profile": lambda kernels, steps: operations.profile(step, kernels, steps)}


def inference(folder: str, batch_size: int, length: int, products: str = NUMPY) -> Contender:
    """``encode`` a batch, ``save`` the result: the encoder of seed 0, as in the folder, without a pooler."""
    use_products(products)
    config = BertConfig.from_pretrained(folder)
    model = BertModel(config, seed=0, add_pooling_layer=False)
    model.eval()
    batch = inputs.pretraining_batch(config.vocab_size, batch_size, length)
    ids = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}

    def encode(_: int = 0) -> np.ndarray:
        return model.forward(**ids, context=Context(backward=False))[0].last_hidden_state

    return {"encode": encode, "save": lambda path: np.save(path, encode())}


def real_lengths(
    folder: str, file: str | None, count: int, batch_size: int, ways: Mapping[str, tuple[str, bool]]
) -> Contender:
    """A classifier that can "encode" and "learn" texts of real lengths in each of the ways.

    A way is the order of the texts, "random" or "sorted" by length, and whether padding is computed, too.
    """
    model = BertForSequenceClassification.from_pretrained(folder)
    sentences = texts.sentences(file, count)
    encode_texts = partial(open_tokenizer("mini"), padding=True, truncation=True, max_length=128)
    lengths = np.array(encode_texts(sentences)["attention_mask"]).sum(axis=1)
    orders = {
        "random": np.random.default_rng(0).permutation(count),
        "sorted": np.argsort(lengths, kind="stable"),
    }
    batches = {
        name: [encode_texts([sentences[i] for i in some]) for some in np.split(order, count // batch_size)]
        for name, order in orders.items()
    }

    def encode(order: str, padding: bool, _: int) -> None:
        for batch in batches[order]:
            model.forward(**batch, context=Context(padding=padding, backward=False))

    def learn(order: str, padding: bool, number: int) -> None:
        for step, batch in enumerate(batches[order]):
            context = Context(training=True, stream=dropout_stream(0, step, max(number, 0)), padding=padding)
            _, cache = model.forward(**batch, labels=labels, context=context)
            model.zero_grad()
            model.backward(cache)

    labels = np.arange(batch_size) % 2
    computed = {
        name: sum(np.size(batch["attention_mask"]) for batch in some) for name, some in batches.items()
    }
    return {
        **{f"encode, {way}": partial(encode, *how) for way, how in ways.items()},
        **{f"learn, {way}": partial(learn, *how) for way, how in ways.items()},
        "lengths": lambda: {
            **texts.describe_lengths(lengths),
            "computed": {
                way: computed[order] if padding else int(lengths.sum())
                for way, (order, padding) in ways.items()
            },
        },
    }


def pretraining_lengths(
    flags: Sequence[str], prepared: str, count: int, ways: Mapping[str, bool]
) -> Contender:
    """A new model that can "learn" batches of ``minibert pretrain`` with these flags in each of the ways.

    A way is whether padding is computed, too. The corpus is tokenised into the folder ``prepared``.
    """
    settings = pretrain_settings(
        parse(["pretrain", *flags, "--precision", "float32", "--prepared", prepared])
    ).with_sizes()
    tokenizer, corpus = prepare(settings)
    (phase,) = settings.phases()
    stream = BatchStream(corpus.train, tokenizer, phase.instances, phase.batch_size, settings.seed)
    model = make_model(settings, resolve_device("cpu"), tokenizer, None)
    batches = [model.prepare(**next(stream)) for _ in range(count)]
    lengths = np.concatenate([batch.attention_mask.sum(axis=1) for batch in batches]).astype(int)
    places = sum(batch.attention_mask.size for batch in batches)

    def learn(padding: bool, number: int) -> None:
        for step, batch in enumerate(batches):
            context = Context(training=True, stream=dropout_stream(0, step, max(number, 0)), padding=padding)
            _, cache = model.forward(batch, context=context)
            model.zero_grad()
            model.backward(cache)

    return {
        **{f"learn, {way}": partial(learn, padding) for way, padding in ways.items()},
        "lengths": lambda: {
            **texts.describe_lengths(lengths.tolist()),
            "computed": {way: places if padding else int(lengths.sum()) for way, padding in ways.items()},
        },
    }


def tokenizer(kind: str, vocabulary: str, text: str, pieces: int) -> Contender:
    """``encode`` one piece of a text after the other; afterwards ``digest`` of the ids of all."""
    pieces_of_text = texts.text_pieces(text, pieces)
    tokenizer = open_tokenizer(vocabulary)  # of this kind, as the folder says

    def digest() -> str:
        return texts.digest(ids for piece in pieces_of_text for ids in tokenizer.token_ids_batch(piece))

    return {"encode": lambda number: tokenizer.token_ids_batch(pieces_of_text[number]), "digest": digest}


def learning(text: str, vocab_size: int, limit: int | None) -> Contender:
    """``learn`` a vocabulary from a text's first documents, and tell its ``tokens``."""
    documents = texts.documents(text)[:limit]
    learned: list[BertTokenizer] = []

    def learn(_: int) -> None:
        learned[:] = [BertTokenizer.train(documents, vocab_size)]

    return {"learn": learn, "tokens": lambda: sorted(learned[0].tokens)}
