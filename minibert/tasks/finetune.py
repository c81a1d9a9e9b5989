"""Fine-tuning: a pretrained encoder and a labelled file in, a model for one task out."""

import functools
import hashlib
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minibert.arrays import Device, resolve_device
from minibert.bert import BertConfig, freeze, layerwise_lr
from minibert.bert.fine_tuning import check_frozen_layers, encoder_of
from minibert.bert.models import PretrainedModel
from minibert.data.randomness import generator
from minibert.data.tasks import Faults, Feature
from minibert.errors import UserError
from minibert.files import atomic_folder, explain_write_errors, read_json, write_json
from minibert.plots import plot_finetuning
from minibert.settings import read_settings
from minibert.tasks.finetune_settings import FinetuneSettings, split_settings
from minibert.tasks.frozen import FrozenEncoder
from minibert.tasks.model_card import write_model_card
from minibert.tasks.registry import TASKS
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
from minibert.tasks.task import Task, TaskOptions
from minibert.text import BertTokenizer
from minibert.train import Trainer
from minibert.train.checkpoint import (
    Checkpoint,
    describe_environment,
    list_checkpoints,
    open_checkpoint,
    save_checkpoint,
)
from minibert.train.metrics import MetricsLog, peak_memory, read_metrics, without_nan
from minibert.train.progress import format_seconds

BEST = "best"  # the folder of the model whose score on the dev data was best


def finetune(source: str = "settings", /, **values: Any) -> dict[str, Any]:
    """Teach a pretrained encoder a task (or go on with a run), and say how well it does.

    ``values`` are those of ``minibert finetune --help``: the fields of `FinetuneSettings` and of the task's
    options (``TASKS[task].Options``); ``source`` is where they come from, should one be wrong. A model of
    few positions reads texts as long as it can, unless ``max_length`` is given.

    Writes ``OUT/NAME/``: ``config.json`` (all that this was told), ``results.json`` (what is returned),
    ``best/``, the model of the best evaluation on the dev data, ``training.png``, and for each restart a
    folder ``seed-N`` with its ``metrics.jsonl`` and, until it has ended, its checkpoints.

    Returned are ``runs``, one a restart: its seed, the step of its best evaluation, the scores there,
    seconds and tokens; ``best``, the one of them that is kept; for several ``mean`` and ``deviation`` (of
    a sample) of each score; and what it was all made from. Scores are fractions, on the dev data.

    Raises UserError for settings, files or models that do not work, and KeyboardInterrupt after Ctrl-C, once
    all is saved.
    """
    settings, options = split_settings(values, source)
    if "max_length" not in values:  # then it is no more than the model can read
        positions = BertConfig.from_pretrained(settings.model).max_position_embeddings
        options = options.replace(max_length=min(options.max_length, positions))
    device = resolve_device(settings.device)
    settings = settings.with_precision_for(device)
    _check_start(settings, options)
    prepare_machine(settings, device)
    print(f"{settings.describe()}\n{options.describe()}\n", flush=True)
    data = read_data(settings, options)
    runs = _finished_runs(settings.folder) if settings.resume else []
    with _out_of_memory_explained(settings, options, device):
        for number, seed in enumerate(settings.seeds, start=1):
            if seed in [run["seed"] for run in runs]:
                _remove_leftovers(settings.folder / f"seed-{seed}")
                continue
            if settings.restarts > 1:
                print(f"\nrestart {number} of {settings.restarts}: seed {seed}", flush=True)
            restart = _Restart(settings, data, seed, device)
            if not settings.resume and not runs:
                _begin(settings, options)
            runs.append(restart.run())
            _keep_best(settings, runs, restart)
    return _finish(settings, options, data, runs, device)


@contextmanager
def _out_of_memory_explained(
    settings: FinetuneSettings, options: TaskOptions, device: Device
) -> Iterator[None]:
    """Turn a lack of memory into a UserError that says what to lower."""
    try:
        yield
    except MemoryError as error:  # CuPy's OutOfMemoryError is one
        raise UserError(
            f"not enough memory on {device.name} for {settings.batch_size} sequences of up to "
            f"{options.max_length} tokens ({' '.join(str(error).split())}); lower --max-length, or lower "
            "--batch-size and raise --accumulation as much, or add --recompute"
        ) from None


# -- Before ------------------------------------------------------------------------------------------


def _check_start(settings: FinetuneSettings, options: TaskOptions) -> None:
    """Raise UserError if the run's folder says no, or a new run has nothing to begin from."""
    run = settings.folder
    if not settings.resume:
        check_folder_is_free(settings, settings.model)
        check_has_weights(settings.model)
        return
    saved, saved_options = split_settings(read_settings(run / "config.json"), str(run / "config.json"))
    settings.check_resumes(saved)
    settings.check_resumes(saved_options, options)


def _begin(settings: FinetuneSettings, options: TaskOptions) -> None:
    """Make the run's folder, without what an earlier run left there, and nothing that is not a run's."""
    run = settings.folder
    for folder in (*run.glob("seed-*"), run / BEST):
        shutil.rmtree(folder, ignore_errors=True)
    with explain_write_errors(run):
        for name in ("results.json", "training.png"):
            (run / name).unlink(missing_ok=True)
    write_json(run / "config.json", settings.to_dict() | options.to_dict())


@dataclass(frozen=True)
class Data:
    """What a run learns from and is measured on."""

    task: Task
    train: Sequence[Any]
    dev: Sequence[Any]
    features: Sequence[Feature]  # the examples of ``train`` written out
    digest: str  # of the examples
    skipped: int  # examples left out

    def describe(self) -> str:
        """One line."""
        return (
            f"{len(self.train):,} examples ({len(self.features):,} rows) to learn from, "
            f"{len(self.dev):,} to measure on"
        )


def read_data(settings: FinetuneSettings, options: TaskOptions) -> Data:
    """What a run with these settings learns from and is measured on.

    Tells what is wrong with the files, and raises UserError if that is too much.
    """
    faults = Faults(settings.skip_bad)
    task = TASKS[settings.task](BertTokenizer.from_pretrained(settings.model), options)
    _check_model(settings, task)
    train = task.read(settings.train, faults=faults)
    task.learn_labels(train)
    if settings.dev is None:
        train, dev = task.hold_out(train, settings.dev_share, settings.seed)
    else:
        dev = task.check(task.read(settings.dev, faults=faults), faults)
    train, dev = _some(train, settings.limit, settings.seed), _some(dev, settings.dev_limit, settings.seed)
    if _metric(settings, task) not in task.scores_for(dev):
        raise UserError(
            f"there is no score {settings.metric!r} on this data; choose one of "
            f"{', '.join(task.scores_for(dev))}"
        )
    for line in faults.describe():
        print(line, flush=True)
    features = task.features(train, training=True)
    digest = hashlib.sha256(repr((train, dev)).encode()).hexdigest()
    data = Data(task, train, dev, features, digest, len(faults.skipped))
    print(data.describe(), flush=True)
    return data


def _check_model(settings: FinetuneSettings, task: Task) -> None:
    """Raise UserError if the model to begin from is too small for what is asked of it."""
    config = BertConfig.from_pretrained(settings.model)
    task.check_model(config)
    if settings.features:
        config.check_layers(settings.features)
    if settings.freeze not in (None, "all"):
        check_frozen_layers(config, int(settings.freeze))


def _some(examples: Sequence[Any], limit: int | None, seed: int) -> Sequence[Any]:
    """No more than ``limit`` random examples, in their order; with None all."""
    chosen = generator("some examples", seed).permutation(len(examples))[:limit]
    return [examples[i] for i in sorted(chosen.tolist())]


# -- One restart -------------------------------------------------------------------------------------


class _Restart:
    """One run, from one seed: a new model, or where its newest checkpoint left it."""

    def __init__(self, settings: FinetuneSettings, data: Data, seed: int, device: Device):
        self.settings, self.data, self.seed = settings, data, seed
        self.folder = settings.folder / f"seed-{seed}"
        checkpoints = list_checkpoints(self.folder) if settings.resume else []
        checkpoint = open_checkpoint(checkpoints[-1]) if checkpoints else None
        self.model = _open_model(settings, data.task, seed, device, checkpoint)
        self.best: dict[str, Any] = checkpoint.state["best"] if checkpoint else {}  # the best evaluation
        if settings.features and data.task.frozen_encoder is None:  # the same for all restarts
            pad_id, size = data.task.tokenizer.pad_id, settings.batch_size
            data.task.frozen_encoder = FrozenEncoder(self.model, pad_id, size, Path(settings.out))
        self.trainer = self._make_trainer()
        if checkpoint is not None:
            self._restore(checkpoint)

    def _make_trainer(self) -> Trainer:
        settings, task = self.settings, self.data.task
        rows = self.data.features
        if task.frozen_encoder is not None:
            rows = task.frozen_encoder(rows)
        batches = task.batches(rows, settings.batch_size, self.seed)
        steps, eval_every, save_every = settings.intervals(batches.batches_per_epoch)
        return Trainer(
            task.trainee(self.model),
            make_optimiser(settings, self.model),
            batches,
            learning_rates(settings, steps),
            evaluate=self._evaluate,
            save=self._save,
            metrics=MetricsLog(self.folder / "metrics.jsonl"),
            steps=steps,
            accumulation=settings.accumulation,
            seed=self.seed,
            graph=False,  # for batches of one shape
            log_every=report_interval(settings, self.model.device),
            print_every=settings.print_every,
            eval_every=eval_every,
            save_every=save_every,
        )

    def run(self) -> dict[str, Any]:
        """Train to the end; what became of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(self.folder)
        if self.trainer.checkpoint is None:
            self.trainer.metrics.truncate(-1)  # of a run that was killed before it had a checkpoint
        try:
            self.trainer.run()
        except KeyboardInterrupt:
            tell_stopped(self.trainer.checkpoint, self.settings)
            raise
        return {
            "seed": self.seed,
            **self.best,
            "steps": self.trainer.steps,
            "tokens": self.trainer.tokens,
            "seconds": self.trainer.seconds,
        }

    def _evaluate(self) -> dict[str, float]:
        """The scores on the dev data. The model is kept if it is the best so far."""
        task, dev = self.data.task, self.data.dev
        predictions = task.predict(self.model, dev, self.settings.batch_size)
        task.calibrate(dev, predictions)
        scores = task.scores(dev, predictions)
        evaluation = {"step": self.trainer.step, "scores": without_nan(scores)}
        if not self.best or self._is_better(evaluation):
            self.best = evaluation
            with atomic_folder(self.folder / BEST) as unfinished:
                task.save(self.model, unfinished)
        return scores

    def _is_better(self, evaluation: Mapping[str, Any]) -> bool:
        """Whether an evaluation is better than the best so far, or as good as before anything was learned."""
        metric = _metric(self.settings, self.data.task)
        score, best = _comparable(evaluation, metric), _comparable(self.best, metric)
        return score > best or (score == best and self.best["step"] == 0)

    def _save(self, state: dict[str, Any]) -> Path:
        state = {**state, "seed": self.seed, "best": self.best, "digest": self.data.digest}
        save_model = functools.partial(self.data.task.save, self.model)
        return save_checkpoint(
            self.folder, state, save_model, self.trainer.optimiser, self.settings.keep_checkpoints
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        if checkpoint.state["digest"] != self.data.digest:
            raise UserError(
                f"{checkpoint.folder}: the files to learn from have changed since this run began; restore "
                "them, or begin the run anew with --overwrite"
            )
        self.trainer.optimiser.load_state_arrays(*checkpoint.optimiser_arrays())
        self.trainer.restore(checkpoint.folder, checkpoint.state)
        tell_resuming(checkpoint, self.model.device)


def _open_model(
    settings: FinetuneSettings, task: Task, seed: int, device: Device, checkpoint: Checkpoint | None
) -> PretrainedModel:
    """A new model, or the checkpoint's, with as much of it frozen as was asked for."""
    options = {"device": device, "precision": settings.precision}
    if checkpoint is not None:
        model = task.open_model(checkpoint.folder, **options)
    else:
        if settings.dropout is not None:
            names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
            options |= dict.fromkeys(names, settings.dropout)
        options["feature_layers"] = list(settings.features) or None
        model = task.new_model(settings.model, seed=seed, **options)
    encoder_of(model).encoder.recompute = settings.recompute
    if settings.freeze is not None:
        freeze(model, None if settings.freeze == "all" else int(settings.freeze))
    layerwise_lr(model, settings.layerwise_lr)
    return model


def _metric(settings: FinetuneSettings, task: Task) -> str:
    return settings.metric or task.metric


def _comparable(run: Mapping[str, Any], metric: str) -> float:
    """The score of an evaluation; one that is not a number is worse than all others."""
    score = run["scores"][metric]
    return float("-inf") if score is None else score


# -- After -------------------------------------------------------------------------------------------


def _finished_runs(run: Path) -> list[dict[str, Any]]:
    """The restarts that have ended."""
    path = run / "results.json"
    return read_json(path, "results file")["runs"] if path.exists() else []


def _best_of(runs: Sequence[dict[str, Any]], metric: str) -> dict[str, Any]:
    """Of several restarts the best, of equally good ones the first."""
    return max(runs, key=functools.partial(_comparable, metric=metric))


def _keep_best(settings: FinetuneSettings, runs: Sequence[dict[str, Any]], restart: _Restart) -> None:
    """Take over the model of the restart that has just ended, if it is the best; note that it has ended.

    In this order, so that a run which is killed in between repeats it, and loses nothing.
    """
    if _best_of(runs, _metric(settings, restart.data.task)) is runs[-1]:
        with atomic_folder(settings.folder / BEST) as unfinished:
            shutil.copytree(restart.folder / BEST, unfinished, dirs_exist_ok=True)
    write_json(settings.folder / "results.json", {"runs": runs})
    _remove_leftovers(restart.folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a restart that has ended needs no longer."""
    for old in (folder / BEST, *list_checkpoints(folder)):
        shutil.rmtree(old, ignore_errors=True)


def _finish(
    settings: FinetuneSettings, options: TaskOptions, data: Data, runs: list[dict[str, Any]], device: Device
) -> dict[str, Any]:
    """Write the results, the picture and the model's card; print how well the run did, and return it."""
    run, metric = settings.folder, _metric(settings, data.task)
    best = _best_of(runs, metric)
    scores = {name: [one["scores"][name] for one in runs] for name in best["scores"]}
    results = {
        "task": settings.task,
        "metric": metric,
        "began_from": settings.model,
        "examples": {"train": len(data.train), "dev": len(data.dev), "left_out": data.skipped},
        "runs": runs,
        "best": best,
        **_spread(scores),
        "peak_memory": peak_memory(device),
        "environment": describe_environment(device),
    }
    write_json(run / "results.json", results)
    curves = {one["seed"]: read_metrics(run / f"seed-{one['seed']}" / "metrics.jsonl") for one in runs}
    plot_finetuning(curves, metric, run / "training.png")
    _write_card(settings, options, data, scores, runs.index(best))
    _print_summary(settings, results)
    return results


def _spread(scores: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float]]:
    """Mean and deviation of each score that all restarts have, if there are several."""
    whole = {name: values for name, values in scores.items() if len(values) > 1 and None not in values}
    functions = {"mean": statistics.fmean, "deviation": statistics.stdev}
    return {
        what: {name: f(values) for name, values in whole.items()} for what, f in functions.items() if whole
    }


def _write_card(
    settings: FinetuneSettings,
    options: TaskOptions,
    data: Data,
    scores: Mapping[str, Sequence[float | None]],
    best: int,
) -> None:
    dev = settings.dev or f"{settings.train}, a random part that was held out"
    write_model_card(
        settings.folder / BEST,
        name=settings.name,
        data={
            "train": f"{settings.train}: {len(data.train):,} examples",
            "dev": f"{dev}: {len(data.dev):,} examples",
        },
        recipe={"began from": settings.model}
        | {
            name: getattr(settings, name)
            for name in ("epochs", "batch_size", "accumulation", "learning_rate")
        },
        command=settings.command_line(options),
        scores={name: values for name, values in scores.items() if None not in values},
        scored_on="the dev data, by which this model was chosen",
        best=best,
        pairs=bool(data.task.pairs),
    )


def _print_summary(settings: FinetuneSettings, results: Mapping[str, Any]) -> None:
    best = results["best"]
    told = "  ".join(f"{name} {value:.4f}" for name, value in best["scores"].items() if value is not None)
    print(f"\nbest on the dev data  {told}   (seed {best['seed']}, step {best['step']})")
    if "mean" in results:
        spread = "  ".join(
            f"{name} {mean:.4f} ± {results['deviation'][name]:.4f}" for name, mean in results["mean"].items()
        )
        print(f"{len(results['runs'])} restarts        {spread}")
    seconds, tokens = (sum(run[name] for run in results["runs"]) for name in ("seconds", "tokens"))
    print(
        f"training {format_seconds(seconds)}, {tokens / seconds:,.0f} tokens/s"
        f"\nwritten to {settings.folder}: {BEST}/ (the model), results.json, training.png"
    )
