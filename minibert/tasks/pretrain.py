"""Pre-training a BERT: from text to a folder with a model that can be used."""

import functools
import hashlib
import itertools
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from minibert import __version__
from minibert.arrays import Device, default_precision, resolve_device
from minibert.bert import BertConfig, BertForMaskedLM, BertForPreTraining
from minibert.bert.info import step_cost
from minibert.data import (
    BatchStream,
    Corpus,
    Documents,
    PreparedCorpus,
    held_out_batches,
    open_corpus,
    prepare_corpus,
    training_sentences,
    unigram_plateau,
)
from minibert.errors import UserError
from minibert.files import atomic_folder, check_writable, explain_write_errors, read_json, write_json
from minibert.plots import plot_loss
from minibert.settings import read_settings
from minibert.tasks.fill_mask import fill_mask
from minibert.tasks.pretrained_card import write_pretrained_card
from minibert.tasks.run import (
    check_folder_is_free,
    check_has_weights,
    learning_rates,
    make_optimiser,
    prepare_machine,
    remove_unfinished,
    report_interval,
    tell_resuming,
    tell_stopped,
)
from minibert.text import BertTokenizer
from minibert.train import PretrainSettings, Trainer
from minibert.train.checkpoint import (
    Checkpoint,
    describe_environment,
    list_checkpoints,
    open_checkpoint,
    save_checkpoint,
)
from minibert.train.metrics import MetricsLog, evaluate, peak_memory, read_metrics
from minibert.train.progress import format_seconds
from minibert.train.settings import Phase

EXAMPLES = 5  # masked sentences shown at the end


def prepare(settings: PretrainSettings) -> tuple[BertTokenizer, PreparedCorpus]:
    """The vocabulary and the tokenised corpus of a run, from ``settings.prepared`` if they are there already.

    The vocabulary is learned from the documents to train on alone. The two folders are named by hashes of
    what they are made from: ``vocabulary-…`` (corpus, split, size, case) and ``tokens-…`` (corpus,
    vocabulary). Prints what they are. Raises UserError for a corpus that is missing, empty, or no text.
    """
    settings, show_progress = settings.with_sizes(), sys.stderr.isatty()
    corpus = open_corpus(settings.corpus, settings.layout)
    print(corpus.describe(), flush=True)
    tokenizer = _vocabulary(settings, corpus, show_progress)
    key = _hash(corpus.fingerprint(), tokenizer.tokens, tokenizer.lowercase)
    prepared = prepare_corpus(
        corpus,
        tokenizer,
        Path(settings.prepared) / f"tokens-{key}",
        held_out=settings.held_out,
        seed=settings.seed,
        processes=settings.processes,
        progress=show_progress,
    )
    print(prepared.describe(), flush=True)
    return tokenizer, prepared


def _vocabulary(settings: PretrainSettings, corpus: Corpus, show_progress: bool) -> BertTokenizer:
    if settings.tokenizer is not None:
        folder, origin = Path(settings.tokenizer), "read from"
    else:
        split = {"held_out": settings.held_out, "seed": settings.seed}
        # the version, because another may learn differently
        key = _hash(corpus.fingerprint(), split, settings.vocab_size, settings.lowercase, __version__)
        folder, origin = Path(settings.prepared) / f"vocabulary-{key}", "reused from"
        if not folder.is_dir():
            origin = "written to"
            check_writable(folder)
            sentences = training_sentences(corpus, **split)
            tokenizer = BertTokenizer.train(
                sentences, settings.vocab_size, lowercase=settings.lowercase, progress=show_progress
            )
            with atomic_folder(folder) as unfinished:
                tokenizer.save_pretrained(unfinished)
    tokenizer = BertTokenizer.from_pretrained(folder)
    if settings.model is not None:
        tokenizer.check_size(settings.vocab_size)
    print(f"vocabulary: {len(tokenizer):,} tokens; {origin} {folder}", flush=True)
    return tokenizer


def _hash(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def pretrain(settings: PretrainSettings) -> dict[str, Any]:
    """Train a BERT on real text, from nothing, from a model or on from a checkpoint; say how well it does.

    Writes ``OUT/NAME/``: ``config.json`` (these settings), ``metrics.jsonl``, ``loss.png``, checkpoints,
    ``results.json``, and ``final/``, a pretrained folder. Prints the settings, the data, the course of the
    training, and at the end how well it went: that is what is returned, and in ``results.json`` with the
    sizes of text and model and the machine. ``plateau_loss`` and ``plateau_accuracy`` are those of guessing
    by frequency, ``held_out_…`` the last measurements, then ``tokens_per_second``, ``seconds``,
    ``peak_memory`` (bytes). Losses are in nats.

    Raises UserError for settings or text that do not work, and KeyboardInterrupt after Ctrl-C, once all
    is saved.
    """
    device = resolve_device(settings.device)
    settings = settings.with_precision_for(device).with_sizes()
    checkpoint = _find_start(settings)
    settings.model_config(settings.vocab_size)  # sizes that do not fit are told before any work is done
    settings.phases()  # and so are lengths
    prepare_machine(settings, device)
    print(f"{settings.describe()}\n", flush=True)
    tokenizer, prepared = prepare(settings)
    held_out = evaluation_batches(settings, tokenizer, prepared)
    plateau = unigram_plateau(
        prepared.train.token_counts(len(tokenizer)), np.concatenate([batch["labels"] for batch in held_out])
    )
    print(f"guessing by frequency: loss {plateau[0]:.3f} nats, accuracy {plateau[1]:.2%}", flush=True)

    with _out_of_memory_explained(settings, device, len(tokenizer)):
        model = _make_model(settings, device, len(tokenizer), checkpoint)
        step = checkpoint.state["step"] if checkpoint else 0
        trainer = _make_trainer(settings, model, tokenizer, prepared, held_out, step)
        remove_unfinished(settings.folder)
        if checkpoint is not None:
            _restore(trainer, checkpoint, prepared)
        else:
            _clear(settings.folder)
        write_json(settings.folder / "config.json", settings.to_dict())
        try:
            _run_phases(settings, trainer, tokenizer, prepared)
        except KeyboardInterrupt:
            tell_stopped(trainer.checkpoint, settings)
            raise
    return _finish(settings, trainer, tokenizer, prepared, plateau)


@contextmanager
def _out_of_memory_explained(settings: PretrainSettings, device: Device, vocab_size: int) -> Iterator[None]:
    """Turn a lack of memory into a UserError that says what was asked for and what to lower."""
    try:
        yield
    except MemoryError as error:  # CuPy's OutOfMemoryError is one
        config = settings.model_config(vocab_size)
        peak = functools.partial(_peak_bytes, settings, config)
        largest = max(settings.phases(), key=peak)
        ways = ["lower --batch-size and raise --accumulation as much, for the same step in smaller pieces"]
        if not settings.recompute:
            ways.append("add --recompute")
        if settings.precision != "bfloat16" and default_precision(device) == "bfloat16":
            ways.append("use --precision bfloat16")
        raise UserError(
            f"not enough memory on {device.name}: {largest.batch_size} sequences of "
            f"{largest.instances.max_seq_length} tokens in {settings.precision} take about "
            f"{peak(largest) / 2**30:,.2f} GiB ({' '.join(str(error).split())}); {', or '.join(ways)}"
        ) from None


def _peak_bytes(settings: PretrainSettings, config: BertConfig, phase: Phase) -> int:
    """The memory that a step of this phase takes."""
    instances = phase.instances
    sizes = (phase.batch_size, instances.max_seq_length, instances.max_predictions)
    return step_cost(config, *sizes, settings.precision, settings.recompute).peak_bytes


# -- Before ------------------------------------------------------------------------------------------


def _find_start(settings: PretrainSettings) -> Checkpoint | None:
    """The checkpoint to go on from, if the run is to be resumed. Raises UserError if its folder says no."""
    run = settings.folder
    if settings.resume:
        checkpoints = list_checkpoints(run)
        if not checkpoints:
            raise UserError(f"{run}: no checkpoint to resume from; begin the run without --resume")
        settings.check_resumes(PretrainSettings.from_dict(read_settings(run / "config.json")).with_sizes())
        checkpoint = open_checkpoint(checkpoints[-1])
        settings.check_phases(checkpoint.state["step"], checkpoint.state.get("phases"))
        return checkpoint
    check_folder_is_free(settings, settings.model)
    if settings.model is not None:
        check_has_weights(settings.model)
    return None


def _clear(run: Path) -> None:
    """Remove what an earlier run left, and nothing that is not a run's."""
    for folder in (*list_checkpoints(run), run / "final"):
        shutil.rmtree(folder, ignore_errors=True)
    with explain_write_errors(run):
        for name in ("config.json", "metrics.jsonl", "results.json", "loss.png"):
            (run / name).unlink(missing_ok=True)


def evaluation_batches(
    settings: PretrainSettings, tokenizer: BertTokenizer, prepared: PreparedCorpus
) -> list[dict[str, np.ndarray]]:
    """The batches that every evaluation of the run is made on."""
    return list(
        held_out_batches(
            prepared.held_out,
            tokenizer,
            settings.instance_settings(),
            settings.batch_size,
            settings.seed,
            settings.eval_batches,
        )
    )


def _make_model(
    settings: PretrainSettings, device: Device, vocab_size: int, checkpoint: Checkpoint | None
) -> BertForPreTraining:
    """The checkpoint's model, or that of a folder, or a new one."""
    Model = BertForPreTraining if settings.nsp else BertForMaskedLM
    options = {"device": device, "precision": settings.precision, "seed": settings.seed}
    if checkpoint is not None:
        model = Model.from_pretrained(checkpoint.folder, **options)
    elif settings.model is not None:
        if settings.dropout is not None:
            options |= dict.fromkeys(
                ("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout
            )
        model = Model.from_pretrained(settings.model, **options)
    else:
        model = Model(settings.model_config(vocab_size), **options)
    model.bert.encoder.recompute = settings.recompute
    config = model.config
    parameters = sum(parameter.size for parameter in model.buffers.parameters)
    print(
        f"model: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {parameters:,} parameters"
        + (f"; begins as {settings.model}\n" if settings.model else "\n"),
        flush=True,
    )
    return model


def _make_trainer(
    settings: PretrainSettings,
    model: BertForPreTraining,
    tokenizer: BertTokenizer,
    prepared: PreparedCorpus,
    held_out: list[dict[str, np.ndarray]],
    step: int,
) -> Trainer:
    """A new trainer, with the data of the phase that takes, or took, the step number ``step``."""
    run = settings.folder
    optimiser = make_optimiser(settings, model)
    phases = settings.phases()
    phase = next(phase for phase in phases if step <= phase.stop)

    def save(state: dict[str, Any]) -> Path:
        state = {**state, "seed": settings.seed, "text": prepared.folder.name}
        state["phases"] = settings.begun_phases(state["step"])
        save_model = functools.partial(_save_pretrained, model, tokenizer)
        return save_checkpoint(run, state, save_model, optimiser, settings.keep_checkpoints)

    return Trainer(
        model,
        optimiser,
        _stream(settings, phase, tokenizer, prepared),
        learning_rates(settings, settings.steps),
        evaluate=functools.partial(evaluate, model, held_out),
        save=save,
        metrics=MetricsLog(run / "metrics.jsonl"),
        steps=settings.steps,
        accumulation=settings.accumulation,
        seed=settings.seed,
        predictions=max(phase.most_predictions for phase in phases),
        graph=settings.graph,
        log_every=report_interval(settings, model.device),
        print_every=settings.print_every,
        eval_every=settings.eval_every,
        save_every=settings.save_every,
    )


def _restore(trainer: Trainer, checkpoint: Checkpoint, prepared: PreparedCorpus) -> None:
    """Bring a new trainer, whose model is the checkpoint's, to where the checkpoint was written."""
    if checkpoint.state["text"] != prepared.folder.name:
        raise UserError(
            f"{checkpoint.folder}: the corpus or the vocabulary has changed since this run began; "
            "restore them, or begin the run anew with --overwrite"
        )
    trainer.optimiser.load_state_arrays(*checkpoint.optimiser_arrays())
    trainer.restore(checkpoint.folder, checkpoint.state)
    tell_resuming(checkpoint, trainer.model.device)


def _stream(
    settings: PretrainSettings, phase: Phase, tokenizer: BertTokenizer, prepared: PreparedCorpus
) -> BatchStream:
    """The training data of a phase, from its beginning."""
    return BatchStream(prepared.train, tokenizer, phase.instances, phase.batch_size, settings.seed)


def _run_phases(
    settings: PretrainSettings, trainer: Trainer, tokenizer: BertTokenizer, prepared: PreparedCorpus
) -> None:
    """Take all steps that are left. Every phase ends with an evaluation and a checkpoint."""
    for phase in settings.phases():
        if trainer.step < phase.stop:
            if trainer.step == phase.start > 0:
                trainer.batches = _stream(settings, phase, tokenizer, prepared)
            if settings.long_seq_length is not None:
                print(phase.describe(), flush=True)
            trainer.run(phase.stop)


def _save_pretrained(model: BertForPreTraining, tokenizer: BertTokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# -- After -------------------------------------------------------------------------------------------


def _finish(
    settings: PretrainSettings,
    trainer: Trainer,
    tokenizer: BertTokenizer,
    prepared: PreparedCorpus,
    plateau: tuple[float, float],
) -> dict[str, Any]:
    """Write the model, the results and the picture; print how well the run did, and return it."""
    run = settings.folder
    metrics = read_metrics(run / "metrics.jsonl")
    plot_loss(metrics, plateau[0], run / "loss.png")
    last = next(record for record in reversed(metrics) if "held_out_mlm_loss" in record)
    summary = {
        "plateau_loss": plateau[0],
        "plateau_accuracy": plateau[1],
        **{name: value for name, value in last.items() if name != "step"},
        "tokens_per_second": trainer.tokens / trainer.seconds,
        "seconds": trainer.seconds,
        "peak_memory": peak_memory(trainer.model.device, trainer.pool_bytes),
    }
    # The last step may have been taken by another process, before the run was resumed.
    last_checkpoint = read_json(trainer.checkpoint / "state.json", "checkpoint's state")
    about = {
        "tokens": trainer.tokens,
        "training_text": _sizes(prepared.train),
        "held_out_text": _sizes(prepared.held_out),
        "parameters": sum(parameter.size for parameter in trainer.model.buffers.parameters),
        "environment": describe_environment(trainer.model.device) | last_checkpoint["environment"],
    }
    with atomic_folder(run / "final") as unfinished:
        _save_pretrained(trainer.model, tokenizer, unfinished)
        write_pretrained_card(unfinished, settings, summary | about)
    write_json(run / "results.json", summary | about)
    _print_examples(trainer.model, tokenizer, prepared.held_out, settings.seed)
    _print_summary(run, summary)
    return summary


def _sizes(documents: Documents) -> dict[str, int]:
    return {"documents": len(documents), "tokens": int(documents.lengths().sum())}


def _print_examples(
    model: BertForPreTraining, tokenizer: BertTokenizer, documents: Documents, seed: int
) -> None:
    print("\nheld-out sentences with a word masked, and the guesses")
    for text, answer in itertools.islice(masked_sentences(documents, tokenizer, seed), EXAMPLES):
        guesses = fill_mask(model, tokenizer, text)[0]
        told = "  ".join(f"{token} {probability:.0%}" for token, probability in guesses)
        print(f"  {text}\n    was: {answer}   guesses: {told}")


def masked_sentences(documents: Documents, tokenizer: BertTokenizer, seed: int) -> Iterator[tuple[str, str]]:
    """Random sentences of 6 to 24 tokens with one random word masked: (text, the word).

    Only words of at least three letters that are one token are masked, since a guess is one token. The
    search ends after 1,000 sentences.
    """
    rng = np.random.default_rng([seed, 0x6D61736B])  # a stream of its own
    unusable = {tokenizer.unk_id, tokenizer.mask_id}
    is_word = np.array([token.isalpha() and len(token) >= 3 for token in tokenizer.tokens])  # (V,)
    for _ in range(1000):
        bounds = documents.sentence_bounds(int(rng.integers(len(documents))))
        sentence = int(rng.integers(len(bounds) - 1))
        ids = np.array(documents.tokens[bounds[sentence] : bounds[sentence + 1]], dtype=np.int64)
        continued = np.append(tokenizer.continues_word[ids[1:]], False)  # by the token after it
        candidates = np.flatnonzero(is_word[ids] & ~continued)
        if 6 <= len(ids) <= 24 and len(candidates) and unusable.isdisjoint(ids.tolist()):
            place = int(rng.choice(candidates))
            answer = tokenizer.tokens[ids[place]]
            ids[place] = tokenizer.mask_id
            yield tokenizer.decode(ids), answer


def _print_summary(run: Path, summary: dict[str, Any]) -> None:
    loss, accuracy = summary["held_out_mlm_loss"], summary["held_out_mlm_accuracy"]
    plateau_loss, plateau_accuracy = summary["plateau_loss"], summary["plateau_accuracy"]
    below = f"{abs(plateau_loss - loss):.3f} nats {'below' if loss <= plateau_loss else 'above'}"
    times = f", {accuracy / plateau_accuracy:.2f} times the accuracy" if plateau_accuracy else ""
    memory = summary["peak_memory"]
    print(
        f"\nguessing by frequency  loss {plateau_loss:.3f} nats  accuracy {plateau_accuracy:.2%}"
        f"\nheld-out masked words  loss {loss:.3f} nats  accuracy {accuracy:.2%}"
        f"   {below}{times}"
    )
    if "held_out_nsp_accuracy" in summary:
        print(f"held-out sentence pairs (NSP)  accuracy {summary['held_out_nsp_accuracy']:.2%}")
    print(
        f"training {format_seconds(summary['seconds'])}, {summary['tokens_per_second']:,.0f} tokens/s"
        + (f", peak memory {memory / 2**20:,.0f} MiB" if memory else "")
        + f"\nwritten to {run}: final/ (the model), metrics.jsonl, results.json, loss.png"
    )
