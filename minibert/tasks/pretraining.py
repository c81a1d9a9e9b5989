"""Pre-training a BERT: from text to a folder with a model that can be used."""

import functools
import hashlib
import itertools
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from minibert import __version__
from minibert.bert import BertConfig, BertForPreTraining
from minibert.data import (
    BatchStream,
    Corpus,
    Documents,
    PreparedCorpus,
    ReadAhead,
    open_corpus,
    prepare_corpus,
    training_sentences,
    unfinished_folder,
    unigram_plateau,
)
from minibert.devices import resolve_device
from minibert.errors import UserError
from minibert.files import atomic_folder, check_writable, read_json, read_text
from minibert.folders.weights import FINAL
from minibert.nn.targets import IGNORED
from minibert.plots import plot_loss
from minibert.ranks import ALONE, Ranks, silence, world
from minibert.tasks.expectation import expected_loss, verdict
from minibert.tasks.fingerprint import fingerprint
from minibert.tasks.held_out import evaluate, evaluation_batches
from minibert.tasks.info import step_cost
from minibert.tasks.masked_words import fill_mask
from minibert.tasks.new_tokens import with_new_tokens
from minibert.tasks.pretrained_card import write_pretrained_card
from minibert.tasks.pretraining_model import (
    check_teacher,
    learn_longer,
    make_model,
    open_teacher,
    set_first_values,
    with_teacher,
)
from minibert.tasks.pretraining_settings import Phase, PretrainSettings
from minibert.tasks.run import Run, newest_checkpoint
from minibert.text import MODEL_TYPES, PretrainedTokenizer, XLNetTokenizer, learn_tokenizer, open_tokenizer
from minibert.train import Trainer
from minibert.train.checkpoint import Checkpoint, describe_environment, list_checkpoints, open_checkpoint
from minibert.train.metrics import read_metrics
from minibert.variants.electra_training import GENERATOR

EXAMPLES = 5  # masked sentences shown at the end
# Above these shares of the tokens a warning says that something may be wrong with the corpus: of unknown
# ones, and of those in sentences that are too long.
MOST_UNKNOWN, MOST_UNREAD = 0.01, 0.25


def prepare(settings: PretrainSettings, ranks: Ranks = ALONE) -> tuple[PretrainedTokenizer, PreparedCorpus]:
    """The vocabulary and the tokenised corpus of a run, from ``settings.prepared`` if they are there already.

    The vocabulary is learned only from the documents to train on. The two folders are named after hashes of
    what they are made from: ``vocabulary-…`` (corpus, split, sizes, case) and ``tokens-…`` (corpus,
    tokenizer). Several ranks share the work, and what they make is the same, bit for bit. Prints what they
    are. Raises UserError for a corpus that is missing, empty, or not text.
    """
    settings, show_progress = settings.with_sizes(), ranks.first and sys.stderr.isatty()
    corpus = open_corpus(settings.corpus, settings.layout, ranks)
    described = corpus.describe()
    if ranks.first:
        print(described, flush=True)
    tokenizer = _vocabulary(settings, corpus, show_progress)
    key = _hash(corpus.fingerprint(), *tokenizer.definition())
    prepared = prepare_corpus(
        corpus,
        tokenizer,
        Path(settings.prepared) / f"tokens-{key}",
        **settings.split,
        processes=settings.processes,
        progress=show_progress,
    )
    if ranks.first:
        print(prepared.describe(), flush=True)
        unknown = (
            prepared.train.token_counts(len(tokenizer))[tokenizer.unk_id] / prepared.train.lengths().sum()
        )
        if unknown > MOST_UNKNOWN:
            print(
                f"warning: {unknown:.1%} of the tokens are unknown: words with characters that the "
                "vocabulary has not, or of more than 100 characters; --variant roberta can spell any text",
                flush=True,
            )
    return tokenizer, prepared


def _vocabulary(settings: PretrainSettings, corpus: Corpus, show_progress: bool) -> PretrainedTokenizer:
    ranks = corpus.ranks
    if settings.tokenizer is not None:
        folder, origin = Path(settings.tokenizer), "read from"
    else:
        sizes = settings.vocab_size, settings.alphabet_limit
        made_from = corpus.fingerprint(), settings.split, *sizes, settings.lowercase
        kind = MODEL_TYPES[settings.variant].__name__
        others = [] if kind == "BertTokenizer" else [kind]

        def learn() -> PretrainedTokenizer:
            return learn_tokenizer(
                settings.variant,
                training_sentences(corpus, **settings.split),
                settings.vocabulary_size,
                alphabet_limit=settings.alphabet_limit,
                lowercase=settings.lowercase,
                progress=show_progress,
                ranks=ranks,
            )

        folder, origin = _kept(settings, ranks, learn, *made_from, *others)
    try:
        tokenizer = open_tokenizer(folder)
    except UserError as error:
        if settings.tokenizer is not None:
            raise
        raise UserError(f"{error}; delete the folder {folder}, and the vocabulary is learned again") from None
    if isinstance(tokenizer, XLNetTokenizer) != settings.family.permuted:
        raise UserError(
            f"{folder}: the tokenizer is of class {type(tokenizer).__name__}, but models of type "
            f"{settings.variant!r} need {MODEL_TYPES[settings.variant].__name__}; give another, or none"
        )
    if settings.model is not None:
        tokenizer.check_size(settings.vocabulary_size)
    if settings.adds_tokens:
        old = tokenizer
        whole = open_corpus(settings.corpus, settings.layout)  # which every rank reads by itself
        words = settings.add_tokens and read_text(settings.add_tokens, "list of words")
        made_from = *old.definition(), old.model_max_length, words, settings.learn_tokens
        text = (corpus.fingerprint(), settings.split)

        def add() -> PretrainedTokenizer:
            with nullcontext() if ranks.first else silence():
                return with_new_tokens(settings, whole, old, show_progress)

        folder, origin = _kept(settings, ranks, add, *made_from, *text)
        tokenizer = open_tokenizer(folder)
    if ranks.first:
        print(f"vocabulary: {len(tokenizer):,} tokens; {origin} {folder}", flush=True)
    return tokenizer


def _kept(
    settings: PretrainSettings, ranks: Ranks, make: Callable[[], PretrainedTokenizer], *made_from: Any
) -> tuple[Path, str]:
    """The folder of a tokenizer that is made once from these things, and whether it was there already.

    All ``ranks`` make it together, and the first writes it.
    """
    key = _hash(*made_from, __version__)  # another version may learn differently
    folder = Path(settings.prepared) / f"vocabulary-{key}"
    if ranks.broadcast(folder.is_dir()):
        if not folder.is_dir():
            raise UserError(
                f"{folder.parent}: rank {ranks.rank} does not see what rank 0 has there; choose a folder "
                "that all machines share"
            )
        if not any(folder.iterdir()):
            raise UserError(f"{folder}: an empty folder where a vocabulary should be; delete it")
        return folder, "reused from"
    check_writable(folder)
    tokenizer = make()
    with unfinished_folder(folder, ranks) as unfinished:
        if ranks.first:
            tokenizer.save_pretrained(unfinished)
    return folder, "written to"


def _hash(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def pretrain(
    settings: PretrainSettings,
    held_out: Sequence[Mapping[str, Any]] | None = None,
    text: tuple[PretrainedTokenizer, PreparedCorpus] | None = None,
) -> dict[str, Any]:
    """Pre-train a BERT on real text, from scratch or from a model, or resume a run; report how well it does.

    Writes ``OUT/NAME/``: ``config.json`` (these settings), ``metrics.jsonl``, ``loss.png``, checkpoints,
    ``results.json``, and ``final/``, a pretrained folder. Prints the settings, the data, the course of the
    training, and at the end how well it went. ``held_out`` are batches to measure it on, in place of the
    run's own (for runs that arrange their text in different ways and are to be compared). ``text`` is what
    `prepare` returns, in place of what the settings describe.

    Returns how well it went: ``plateau_loss`` and ``plateau_accuracy``, those of guessing by frequency,
    ``held_out_…``, the last evaluation, ``tokens_per_second``, ``seconds`` and ``peak_memory`` (bytes).
    Speed and seconds are those of all steps, also of those that were taken before the run was resumed, and of
    what makes the first values (such as counting words).
    Losses are in nats. ``results.json`` also has the sizes of the text and the model, and the machine.

    Raises UserError for settings or text that do not work and for a folder in which another run is at work,
    and KeyboardInterrupt after Ctrl-C or SIGTERM, once all is saved.
    """
    ranks = world()
    device = resolve_device(settings.device, ranks.local_rank)
    settings = settings.with_name(settings.kind, ranks).with_precision_for(device).with_sizes()
    run = Run(settings, device, ranks=ranks)
    with run.at_work():
        return _pretrain(run, settings, held_out, text)


def _pretrain(
    run: Run,
    settings: PretrainSettings,
    held_out: Sequence[Mapping[str, Any]] | None,
    text: tuple[PretrainedTokenizer, PreparedCorpus] | None,
) -> dict[str, Any]:
    checkpoint = _find_start(run, settings)
    settings.model_config(settings.vocabulary_size)  # sizes that do not fit are reported before any work
    settings.phases()  # and so are lengths
    check_teacher(settings)
    run.prepare_machine()
    tokenizer, prepared = text or prepare(settings, run.ranks)
    _warn_of_long_sentences(settings, prepared)
    held_out = held_out or evaluation_batches(settings, tokenizer, prepared)
    labels = np.concatenate([batch["labels"] for batch in held_out])
    plateau = unigram_plateau(_frequencies(prepared, tokenizer, labels), labels)
    print(f"guessing by frequency: loss {plateau[0]:.3f} nats, accuracy {plateau[1]:.2%}", flush=True)

    with run.training(functools.partial(_needed_memory, settings, len(tokenizer))):
        model = make_model(settings, run.device, tokenizer, checkpoint)
        teacher = open_teacher(settings, run.device, tokenizer)
        trainee = with_teacher(model, teacher)
        trainer = _make_trainer(run, settings, model, trainee, tokenizer, prepared, held_out, checkpoint)
        if checkpoint is None:
            began = time.perf_counter()
            set_first_values(model, settings, prepared.train, teacher)
            trainer.seconds = time.perf_counter() - began
        run.begin()
        run.choose_products(model)
        run.check_alike(trainer, zlib.crc32(prepared.train.tokens.data))
        _run_phases(run, settings, trainer, model, tokenizer, prepared)
    summary = None
    if run.ranks.first:
        summary = _finish(run, settings, trainer, model, tokenizer, prepared, plateau)
    return run.ranks.broadcast(summary)


def _warn_of_long_sentences(settings: PretrainSettings, prepared: PreparedCorpus) -> None:
    """Of a sentence that is too long for a sequence, only about the middle is read."""
    longest = max(phase.instances.max_num_tokens for phase in settings.phases())
    lengths = np.diff(prepared.train.sentence_starts)  # of all sentences, also of those held out
    unread = np.maximum(lengths - longest, 0).sum() / lengths.sum()
    if settings.whole_sentences and unread > MOST_UNREAD:
        print(
            f"warning: {unread:.0%} of the tokens are hardly ever read, since sentences are longer than the "
            f"{longest} tokens that a sequence has room for; are the ends of sentences marked? --layout says "
            "what a line is, and --no-nsp --no-whole-sentences reads everything",
            flush=True,
        )


def _frequencies(prepared: PreparedCorpus, tokenizer: PretrainedTokenizer, labels: np.ndarray) -> np.ndarray:
    """How often each token occurs in the training documents (V,).

    They have no [SEP], which ends the sequences that a left-to-right model reads. It counts as often as it
    has to be predicted in ``labels``.
    """
    counts = prepared.train.token_counts(len(tokenizer))
    ends = np.mean(labels[labels != IGNORED] == tokenizer.sep_id)  # 0 where words are masked
    counts[tokenizer.sep_id] += round(ends / (1 - ends) * counts.sum())
    return counts


def _needed_memory(settings: PretrainSettings, vocab_size: int) -> str:
    """What takes how much memory, as text: a step of the phase that takes most."""
    config = settings.model_config(vocab_size)
    peak = functools.partial(_peak_bytes, settings, config)
    largest = max(settings.phases(), key=peak)
    return (
        f"{largest.batch_size} sequences of {largest.instances.max_seq_length} tokens in "
        f"{settings.precision} take about {peak(largest) / 2**30:,.2f} GiB"
    )


def _peak_bytes(settings: PretrainSettings, config: BertConfig, phase: Phase) -> int:
    """The memory that a step of this phase takes."""
    instances = phase.instances
    sizes = (phase.batch_size, instances.max_seq_length, instances.most_predictions)
    return step_cost(config, *sizes, settings.model_precision, settings.recompute).peak_bytes


# -- Before ------------------------------------------------------------------------------------------


def _find_start(run: Run, settings: PretrainSettings) -> Checkpoint | None:
    """The checkpoint to go on from, if the run is to be resumed.

    Raises UserError if the folder of the run does not allow what is asked for.
    """
    if not settings.resume:
        run.check_new(settings.model, settings.teacher, reads=(settings.tokenizer, settings.add_tokens))
        return None
    newest = newest_checkpoint(run.folder)
    if newest is None:
        raise UserError(
            f"{run.folder}: no checkpoint to resume from; start it anew (--overwrite, not --resume)"
        )
    checkpoint = open_checkpoint(newest)
    run.check_resumes(checkpoint.state["settings"])
    settings.check_phases(checkpoint.state["step"], checkpoint.state["phases"])
    return checkpoint


def _make_trainer(
    run: Run,
    settings: PretrainSettings,
    model: Any,
    trainee: Any,
    tokenizer: PretrainedTokenizer,
    prepared: PreparedCorpus,
    held_out: Sequence[Mapping[str, Any]],
    checkpoint: Checkpoint | None,
) -> Trainer:
    """A trainer at the step of the checkpoint, or at step 0, with the data of the phase of that step."""
    step = checkpoint.state["step"] if checkpoint else 0
    trained_on = prepared.folder.name
    if settings.teacher is not None:
        trained_on += f", teacher {fingerprint(settings.teacher)}"
    phases = settings.phases()
    phase = next(phase for phase in phases if step <= phase.stop)
    trainer = run.make_trainer(
        model,
        settings.steps,
        trainee=trainee,
        folder=run.folder,
        trained_on=trained_on,
        save_model=functools.partial(_save_pretrained, model, tokenizer),
        own_state=lambda step: {"phases": settings.begun_phases(step)},
        batches=_stream(run, settings, phase, tokenizer, prepared),
        evaluate=functools.partial(evaluate, model, held_out, run.ranks),
        seed=settings.seed,
        predictions=max(phase.most_predictions for phase in phases),
        graph=settings.graph,
        eval_every=settings.eval_every,
        save_every=settings.save_every,
    )
    if checkpoint is not None:
        run.restore(trainer, checkpoint, trained_on, "the corpus, the vocabulary or the teacher")
    return trainer


def _stream(
    run: Run,
    settings: PretrainSettings,
    phase: Phase,
    tokenizer: PretrainedTokenizer,
    prepared: PreparedCorpus,
) -> BatchStream | ReadAhead:
    """The training data of a phase, from its beginning. For a GPU of one rank, batches are made in advance.

    On a CPU they would take time from the step; and of several ranks, each skips those of the others.
    """
    stream = BatchStream(prepared.train, tokenizer, phase.instances, phase.batch_size, settings.seed)
    return stream if run.device.name == "cpu" or run.ranks.size > 1 else ReadAhead(stream)


def _run_phases(
    run: Run,
    settings: PretrainSettings,
    trainer: Trainer,
    model: Any,
    tokenizer: PretrainedTokenizer,
    prepared: PreparedCorpus,
) -> None:
    """Take all steps that are left. Every phase ends with an evaluation and a checkpoint."""
    for phase in settings.phases():
        if trainer.step < phase.stop:
            if trainer.step == phase.start > 0:
                learn_longer(model, settings)
                trainer.batches = _stream(run, settings, phase, tokenizer, prepared)
            if settings.long_seq_length is not None:
                print(phase.describe(), flush=True)
            trainer.run(phase.stop)


def _save_pretrained(model: Any, tokenizer: PretrainedTokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if (folder / GENERATOR).is_dir():
        tokenizer.save_pretrained(folder / GENERATOR)


# -- After -------------------------------------------------------------------------------------------


def _finish(
    run: Run,
    settings: PretrainSettings,
    trainer: Trainer,
    model: Any,
    tokenizer: PretrainedTokenizer,
    prepared: PreparedCorpus,
    plateau: tuple[float, float],
) -> dict[str, Any]:
    """Write the model, the results and the plot; print how well the run did, and return that."""
    metrics = read_metrics(run.folder / "metrics.jsonl")
    if not any("held_out_mlm_loss" in record for record in metrics):
        raise UserError(
            f"{run.folder / 'metrics.jsonl'}: there is no evaluation in it; restore it, or start the run "
            "again with --overwrite"
        )
    expected, compared = _compare(settings, model.config, len(tokenizer), plateau[0], metrics)
    plot_loss(metrics, plateau[0], run.folder / "loss.png", expected)
    last = next(record for record in reversed(metrics) if "held_out_mlm_loss" in record)
    summary = {
        "plateau_loss": plateau[0],
        "plateau_accuracy": plateau[1],
        **{name: value for name, value in last.items() if name != "step"},
        "tokens_per_second": trainer.tokens / trainer.seconds,
        "seconds": trainer.seconds,
        "peak_memory": run.peak_memory(trainer.pool_bytes),
    }
    # The last step may have been taken by another process, before the run was resumed.
    last_checkpoint = read_json(list_checkpoints(run.folder)[-1] / "state.json", "checkpoint's state")
    results = summary | {
        "tokens": trainer.tokens,
        "training_text": _sizes(prepared.train),
        "held_out_text": _sizes(prepared.held_out),
        "parameters": sum(parameter.size for parameter in model.buffers.parameters),
        "environment": describe_environment(run.device) | last_checkpoint["environment"],
    }
    with atomic_folder(run.folder / FINAL) as unfinished:
        _save_pretrained(model, tokenizer, unfinished)
        if settings.predicts != "left-to-right":  # there is no card for the others
            write_pretrained_card(unfinished, settings, results)
    if settings.predicts != "left-to-right":
        words = getattr(model, "generator", model)  # the model that predicts words
        _print_examples(words, tokenizer, prepared.held_out, settings.seed)
    run.finish(results, [*_describe(summary, settings), *compared], trainer.seconds, trainer.tokens)
    print(f"written to {run.folder}: final/ (the model), metrics.jsonl, results.json, loss.png")
    return summary


def _compare(
    settings: PretrainSettings,
    config: BertConfig,
    vocab_size: int,
    plateau: float,
    metrics: Sequence[Mapping[str, Any]],
) -> tuple[np.ndarray | None, list[str]]:
    """The curve that the run should have followed, if it is to be drawn, and a line about it."""
    if not settings.expect:
        return None, []
    tokens = next(record["tokens"] for record in reversed(metrics) if "tokens" in record)
    loss = next(r["held_out_mlm_loss"] for r in reversed(metrics) if "held_out_mlm_loss" in r)
    shape = config.num_hidden_layers, config.hidden_size
    expected = expected_loss(settings, *shape, vocab_size, plateau, tokens)
    if isinstance(expected, str):
        return None, [f"no expected loss: {expected}"]
    return expected.points, [verdict(expected, loss, tokens)]


def _sizes(documents: Documents) -> dict[str, int]:
    return {"documents": len(documents), "tokens": int(documents.lengths().sum())}


def _print_examples(
    model: BertForPreTraining, tokenizer: PretrainedTokenizer, documents: Documents, seed: int
) -> None:
    print("\nheld-out sentences with a word masked, and the guesses")
    for text, answer in itertools.islice(masked_sentences(documents, tokenizer, seed), EXAMPLES):
        try:
            guesses = fill_mask(model, tokenizer, text)[0]
        except UserError:  # it is longer than the model can read, or this tokenizer reads no [MASK] in a text
            continue
        told = "  ".join(f"{token} {probability:.0%}" for token, probability in guesses)
        print(f"  {text}\n    was: {answer}   guesses: {told}")


def masked_sentences(
    documents: Documents, tokenizer: PretrainedTokenizer, seed: int
) -> Iterator[tuple[str, str]]:
    """Random sentences of 6 to 24 tokens with one random word masked: (text, the word).

    Only words of at least three letters that are one token are masked, since a guess is one token. The
    search ends after 1,000 sentences.
    """
    rng = np.random.default_rng([seed, 0x6D61736B])  # a stream of its own
    unusable = {tokenizer.unk_id, tokenizer.mask_id}
    texts = [tokenizer.token_text(i).strip() for i in range(len(tokenizer))]
    is_word = np.array([text.isalpha() and len(text) >= 3 for text in texts])  # (V,)
    is_word &= ~tokenizer.continues_word
    for _ in range(1000):
        bounds = documents.sentence_bounds(int(rng.integers(len(documents))))
        sentence = int(rng.integers(len(bounds) - 1))
        ids = np.array(documents.tokens[bounds[sentence] : bounds[sentence + 1]], dtype=np.int64)
        continued = np.append(tokenizer.continues_word[ids[1:]], False)  # by the token after it
        candidates = np.flatnonzero(is_word[ids] & ~continued)
        if 6 <= len(ids) <= 24 and len(candidates) and unusable.isdisjoint(ids.tolist()):
            place = int(rng.choice(candidates))
            answer = texts[ids[place]]
            ids[place] = tokenizer.mask_id
            yield tokenizer.decode(ids), answer


def _describe(summary: dict[str, Any], settings: PretrainSettings) -> list[str]:
    """How well a run did, next to guessing by frequency."""
    predicted = {"masked": "masked words", "left-to-right": "next words", "permuted": "permuted words"}[
        settings.predicts
    ]
    loss, accuracy = summary["held_out_mlm_loss"], summary["held_out_mlm_accuracy"]
    plateau_loss, plateau_accuracy = summary["plateau_loss"], summary["plateau_accuracy"]
    below = f"{abs(plateau_loss - loss):.3f} nats {'below' if loss <= plateau_loss else 'above'}"
    times = f", {accuracy / plateau_accuracy:.2f} times the accuracy" if plateau_accuracy else ""
    lines = [
        f"guessing by frequency  loss {plateau_loss:.3f} nats  accuracy {plateau_accuracy:.2%}",
        f"held-out {predicted}  loss {loss:.3f} nats  accuracy {accuracy:.2%}   {below}{times}",
    ]
    if "held_out_nsp_accuracy" in summary:
        right = summary["held_out_nsp_accuracy"]
        lines.append(f"held-out sentence pairs ({settings.learned_of_pairs})  accuracy {right:.2%}")
    if "held_out_rtd_accuracy" in summary:
        lines.append(
            f"held-out replaced words  loss {summary['held_out_rtd_loss']:.3f} nats  "
            f"accuracy {summary['held_out_rtd_accuracy']:.2%}"
        )
    return lines
