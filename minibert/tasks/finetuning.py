"""Fine-tuning: a pretrained encoder and a labelled file in, a model for one task out."""

import functools
import hashlib
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minibert.data.lines import read_lines, suffix
from minibert.data.randomness import generator
from minibert.data.tasks import Faults, Feature
from minibert.devices import Device, resolve_device
from minibert.errors import UserError
from minibert.files import atomic_folder, read_json, write_json
from minibert.folders.model import PretrainedModel
from minibert.folders.weights import BEST
from minibert.heads import BertForSequenceClassification, Distillation, freeze, layerwise_lr
from minibert.heads.freezing import check_frozen_layers, encoder_of
from minibert.heads.task_models import TaskModel
from minibert.nn import Module
from minibert.plots import plot_finetuning
from minibert.ranks import world
from minibert.settings import read_settings
from minibert.tasks.distillation import ask_teacher
from minibert.tasks.finetuning_settings import FinetuneSettings, split_settings
from minibert.tasks.fingerprint import fingerprint
from minibert.tasks.frozen import FrozenEncoder
from minibert.tasks.model_card import write_model_card
from minibert.tasks.predict import examples_of_lines
from minibert.tasks.registry import TASKS
from minibert.tasks.run import Run, newest_checkpoint
from minibert.tasks.task import Task, TaskOptions
from minibert.text import open_tokenizer
from minibert.train import Trainer
from minibert.train.checkpoint import Checkpoint, describe_environment, list_checkpoints, open_checkpoint
from minibert.train.metrics import read_metrics, without_nan
from minibert.variants import open_config

DROPOUTS = (  # what --dropout sets; the last two are of heads, if a configuration has one
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("classifier_dropout", "seq_classif_dropout"),
)
ORIGINS = "the data files, the model to begin from or the teacher"  # what must not change before a resume


def finetune(source: str = "settings", /, **values: Any) -> dict[str, Any]:
    """Fine-tune a pretrained encoder for a task (or resume a run), and report how well it does.

    ``values`` are those of ``minibert finetune --help``: the fields of `FinetuneSettings` and of the task's
    options (``TASKS[task].Options``); ``source`` says where they come from, for error messages. Unless
    ``max_length`` is given, it is no larger than the number of positions of the model.

    Writes ``OUT/NAME/``: ``config.json`` (all settings), ``results.json`` (what is returned),
    ``best/``, the model of the best evaluation on the dev data, ``training.png``, and for each restart a
    folder ``seed-N`` with its ``metrics.jsonl`` and, until it has ended, its checkpoints.

    Returns ``runs``, one per restart (its seed, the step of its best evaluation, the scores there, steps,
    tokens and seconds); ``best``, the one of them whose model is kept; with several restarts the ``mean`` and
    the sample standard ``deviation`` of each score; and all that the run was made from. Scores are fractions,
    measured on the dev data.

    Raises UserError for settings, files or models that do not work and for a folder in which another run is
    at work, and KeyboardInterrupt after Ctrl-C or SIGTERM, once all is saved.
    """
    settings, options = split_settings(values, source)
    if "max_length" not in values:  # then it is no more than the model can read
        positions = open_config(settings.model).longest_sequence
        options = options.replace(max_length=min(options.max_length, positions))
    ranks = world()
    device = resolve_device(settings.device, ranks.local_rank)
    kind = options.recipe or ("distilled" if settings.teacher else settings.task)
    settings = settings.with_precision_for(device).with_name(kind, ranks)
    run = Run(settings, device, options, ranks)
    with run.at_work():
        return _finetune(run, settings, options)


def _finetune(run: Run, settings: FinetuneSettings, options: TaskOptions) -> dict[str, Any]:
    begun, checkpoint = _find_start(run, settings)
    ended = begun["runs"]
    run.prepare_machine()
    data = read_data(settings, options)
    data.task.ranks = run.ranks
    if ended:
        kept = begun.get("trained_on", data.digest)  # minibert 0.1 did not write it at first
        run.check_trained_on(kept, data.digest, run.folder / "results.json", ORIGINS)
    left = set(settings.seeds) - {restart["seed"] for restart in ended}
    if settings.teacher is not None and left:
        data = _ask_teacher(settings, data, run.device)
    needs = f"{settings.batch_size} sequences of up to {options.max_length} tokens"
    environment = begun.get("environment") if checkpoint is None else None  # of the restarts that have ended
    if settings.resume:
        run.begin()
    with run.training(lambda: needs, "lower --max-length"):
        for number, seed in enumerate(settings.seeds, start=1):
            if seed in [restart["seed"] for restart in ended]:
                if run.ranks.first:
                    _remove_leftovers(run.folder / f"seed-{seed}")
                continue
            if settings.restarts > 1:
                print(f"\nrestart {number} of {settings.restarts}: seed {seed}", flush=True)
            restart = _Restart(run, settings, data, seed, checkpoint)
            checkpoint = None  # it was that of the first restart that had not ended
            if not settings.resume and not ended:
                run.begin()
            if environment:
                run.go_on_in(environment)
                environment = None
            run.choose_products(restart.model)
            run.check_alike(restart.trainer, data.digest)
            ended.append(restart.run_to_the_end())
            if run.ranks.first:
                _keep_best(run, ended, restart)
    results = None
    if run.ranks.first:
        environment = describe_environment(run.device) if left else begun.get("environment")
        results = _finish(run, settings, options, data, ended, environment)
    return run.ranks.broadcast(results)


# -- Before ------------------------------------------------------------------------------------------


def _find_start(run: Run, settings: FinetuneSettings) -> tuple[dict[str, Any], Checkpoint | None]:
    """What a run to be resumed has done: its results so far, with the ``runs`` that ended; then a checkpoint.

    Raises UserError if the folder of the run does not allow what is asked for.
    """
    if not settings.resume:
        run.check_new(settings.model, settings.teacher)
        return {"runs": []}, None
    run.check_resumes(read_settings(run.folder / "config.json"))
    results = _read_results(run.folder / "results.json") or {"runs": []}
    if results["runs"]:
        run.check_resumes(results["settings"])
    ended = [restart["seed"] for restart in results["runs"]]
    if ended:
        _check_here(run.folder / BEST)
    if not set(ended) <= set(settings.seeds):
        raise UserError(
            f"{run.folder} has {len(ended)} restarts already; give --restarts {len(ended)} or more"
        )
    left = [seed for seed in settings.seeds if seed not in ended]
    newest = newest_checkpoint(run.folder / f"seed-{left[0]}") if left else None
    if newest is None:
        return results, None
    checkpoint = open_checkpoint(newest)
    run.check_resumes(checkpoint.state["settings"])
    _check_here(newest.parent / f"{BEST}-{checkpoint.state['best']['step']}")
    return results, checkpoint


def _check_here(best: Path) -> None:
    """Raise UserError if the best model so far, which the end of the run needs, has been removed."""
    if not best.is_dir():
        raise UserError(
            f"{best}: the best model so far is not here any more; put it back, or start the run again with "
            "--overwrite"
        )


def _read_results(path: Path) -> dict[str, Any] | None:
    """What ``_keep_best`` or ``_finish`` wrote; None if they have not."""
    if not path.exists():
        return None
    results = read_json(path, "results file")
    kinds = {"seed": int, "step": int, "scores": dict, "steps": int, "tokens": int, "seconds": float}
    try:
        intact = isinstance(results["settings"], dict) and isinstance(results.get("environment"), dict | None)
        intact &= isinstance(results.get("peak_memory"), int | None)
        for restart in results["runs"]:
            intact &= all(type(restart[name]) is kind for name, kind in kinds.items())
            intact &= all(isinstance(score, float | None) for score in restart["scores"].values())
            intact &= restart["scores"].keys() == results["runs"][0]["scores"].keys() != set()
    except (AttributeError, KeyError, TypeError):
        intact = False
    if not intact:
        raise UserError(
            f"{path}: not the results of a run; restore the file, or start the run again with --overwrite"
        )
    return results


@dataclass(frozen=True)
class Data:
    """What a run is trained and evaluated on."""

    task: Task
    train: Sequence[Any]
    dev: Sequence[Any]
    features: Sequence[Feature]  # the examples of ``train`` written out
    digest: str  # of the examples, the model to begin from and the teacher
    skipped: int  # examples left out
    unlabelled: Sequence[Any] = ()  # examples that the teacher labels
    teacher: BertForSequenceClassification | None = None  # whose layers are imitated

    def sizes(self) -> dict[str, int]:
        """The number of examples of each part that there is."""
        parts = {"train": self.train, "unlabelled": self.unlabelled, "dev": self.dev}
        return {name: len(part) for name, part in parts.items() if part}

    def describe(self) -> str:
        """One line."""
        unlabelled = f"{len(self.unlabelled):,} without labels, " if self.unlabelled else ""
        return (
            f"{len(self.train):,} examples ({len(self.features):,} rows) to train on, {unlabelled}"
            f"{len(self.dev):,} to evaluate on"
        )


def read_data(settings: FinetuneSettings, options: TaskOptions) -> Data:
    """What a run with these settings is trained and evaluated on.

    Prints how many bad examples were left out. Raises UserError for files that cannot be used.
    """
    faults = Faults(settings.skip_bad)
    task = TASKS[settings.task](open_tokenizer(settings.model), options)
    _check_model(settings, task)
    train = task.read(settings.train, faults=faults)
    task.learn_labels(train)
    if settings.dev is None:
        train, dev = task.hold_out(train, settings.dev_share, settings.seed)
    else:
        dev = task.check(task.read(settings.dev, faults=faults), faults)
        _tell_of_known(train, dev)
    whole_dev = dev
    train, dev = _some(train, settings.limit, settings.seed), _some(dev, settings.dev_limit, settings.seed)
    if _metric(settings, task) not in task.scores_for(dev):
        raise UserError(
            f"there is no score {settings.metric!r} for this data; choose one of "
            f"{', '.join(task.scores_for(dev))}"
        )
    if len(dev) < task.fewest_scored:
        raise UserError(
            f"{len(dev)} example to evaluate on; the scores of this task need {task.fewest_scored} or more; "
            "give a larger dev file or dev_share"
        )
    if task.fewest_scored > 1 and len({example.label for example in dev}) == 1:
        raise UserError(
            f"all {len(dev)} examples to evaluate on have the score {dev[0].label}, with which nothing "
            "correlates; give another dev file or a larger dev_share"
        )
    unlabelled = _read_unlabelled(settings, task, [*train, *whole_dev], faults)
    for line in faults.describe():
        print(line, flush=True)
    features = task.features(train, training=True)
    models = [fingerprint(folder) for folder in (settings.model, settings.teacher) if folder is not None]
    read = (train, dev, unlabelled, models)
    digest = hashlib.sha256(repr(read).encode()).hexdigest()
    data = Data(task, train, dev, features, digest, len(faults.skipped), unlabelled)
    print(data.describe(), flush=True)
    return data


def _tell_of_known(train: Sequence[Any], dev: Sequence[Any]) -> None:
    """Say how many examples of ``dev`` a model will know, because they are in ``train``, too."""
    known = {example.content for example in train}
    if count := sum(example.content in known for example in dev):
        print(f"{count:,} of {len(dev):,} examples to evaluate on are also in the training data", flush=True)


def _read_unlabelled(
    settings: FinetuneSettings, task: Task, labelled: Sequence[Any], faults: Faults
) -> list[Any]:
    """The examples without labels, if a file of them is given, whose texts are not among the ``labelled``.

    Texts are equal if only their white space differs. Raises UserError if no example is left.
    """
    path = settings.unlabelled
    if path is None:
        return []
    if suffix(path) == "txt" and suffix(settings.train) != "txt":  # else it has the same columns as that
        examples = examples_of_lines(task, read_lines(path), path, faults)
    else:
        examples = task.read(path, labelled=False, faults=faults)
    known = {example.content for example in labelled}
    new = [example for example in examples if example.content not in known]
    if not new:
        raise UserError(f"{path}: all its texts have labels already, in {settings.train} or in the dev data")
    return new


def _ask_teacher(settings: FinetuneSettings, data: Data, device: Device) -> Data:
    """The same data, whose features say also what the teacher thinks of each example; and the teacher."""
    assert settings.teacher is not None
    print(f"asking the teacher {settings.teacher}", flush=True)
    features, teacher = ask_teacher(
        settings.teacher,
        data.task,
        data.train,
        data.features,
        device,
        settings.model_precision,
        unlabelled=data.unlabelled,
        same_vocabulary=settings.imitates_layers,
    )
    return replace(data, features=features, teacher=teacher if settings.imitates_layers else None)


def _check_model(settings: FinetuneSettings, task: Task) -> None:
    """Raise UserError if the model to begin from is too small for these settings."""
    config = open_config(settings.model)
    task.check_model(config)
    if settings.features:
        config.check_layers(settings.features)
        numbers = {layer % (config.num_hidden_layers + 1) for layer in settings.features}
        if len(numbers) < len(settings.features):
            raise UserError(f"features names a layer twice: {' '.join(map(str, settings.features))}")
    if settings.freeze not in (None, "all"):
        check_frozen_layers(config, int(settings.freeze))


def _some(examples: Sequence[Any], limit: int | None, seed: int) -> list[Any]:
    """At most ``limit`` random examples, in their original order; with None, all of them."""
    chosen = generator("some examples", seed).permutation(len(examples))[:limit]
    return [examples[i] for i in sorted(chosen.tolist())]


# -- One restart -------------------------------------------------------------------------------------


class _Restart:
    """The training with one seed, of a new model or from a checkpoint on."""

    def __init__(
        self, run: Run, settings: FinetuneSettings, data: Data, seed: int, checkpoint: Checkpoint | None
    ):
        self.settings, self.data, self.seed = settings, data, seed
        self.folder = settings.folder / f"seed-{seed}"
        self.model = _open_model(settings, data.task, seed, run.device, checkpoint)
        self.best: dict[str, Any] = checkpoint.state["best"] if checkpoint else {}  # the best evaluation
        self._saved = self.best.get("step")  # of the best evaluation that the last checkpoint knows
        if isinstance(self.model, TaskModel) and settings.features and data.task.frozen_encoder is None:
            pad_id, size = data.task.tokenizer.pad_id, settings.batch_size  # the same for all restarts
            data.task.frozen_encoder = FrozenEncoder(self.model, pad_id, size, Path(settings.out), run.ranks)
        self.trainer = self._make_trainer(run)
        if checkpoint is not None:
            run.restore(self.trainer, checkpoint, data.digest, ORIGINS)

    def _make_trainer(self, run: Run) -> Trainer:
        settings, task = self.settings, self.data.task
        rows = self.data.features
        if task.frozen_encoder is not None:
            rows = task.frozen_encoder(rows)
        batches = task.batches(rows, settings.batch_size, self.seed)
        steps, eval_every, save_every = settings.intervals(batches.batches_per_epoch)
        return run.make_trainer(
            self.model,
            steps,
            folder=self.folder,
            trained_on=self.data.digest,
            save_model=functools.partial(task.save, self.model),
            own_state=self._own_state,
            trainee=self._trainee(),
            batches=batches,
            evaluate=self._evaluate,
            seed=self.seed,
            graph=False,  # for batches of one shape
            eval_every=eval_every,
            save_every=save_every,
        )

    def _trainee(self) -> Module:
        """What is trained: the model, or something around it."""
        settings, model = self.settings, self.model
        if settings.teacher is None:
            return self.data.task.trainee(model)
        assert isinstance(model, BertForSequenceClassification)  # of the tasks that can be taught
        return Distillation(
            model,
            temperature=settings.temperature,
            weight=settings.teacher_weight,
            teacher=self.data.teacher,
            hidden_weight=settings.hidden_weight,
            attention_weight=settings.attention_weight,
        )

    def run_to_the_end(self) -> dict[str, Any]:
        """Take the steps that are left; return the restart's results."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.trainer.checkpoint is None and self.trainer.ranks.first:
            self.trainer.metrics.truncate(-1)  # of a run that was killed before it had a checkpoint
        self.trainer.run()
        return {
            "seed": self.seed,
            **self.best,
            "steps": self.trainer.steps,
            "tokens": self.trainer.tokens,
            "seconds": self.trainer.seconds,
        }

    def _evaluate(self) -> dict[str, float]:
        """The scores on the dev data. The model is saved if it is the best so far."""
        task, dev = self.data.task, self.data.dev
        predictions = task.predict(self.model, dev, self.settings.batch_size)
        task.calibrate(dev, predictions)
        scores = task.scores(dev, predictions)
        evaluation = {"step": self.trainer.step, "scores": without_nan(scores)}
        if not self.best or self._is_better(evaluation):
            self.best = evaluation
            if not self.trainer.ranks.first:
                return scores
            with atomic_folder(self.best_folder) as unfinished:
                task.save(self.model, unfinished)
            needed = self.best_folder.name, f"{BEST}-{self._saved}"  # a killed run goes on with the second
            for old in self.folder.glob(f"{BEST}-*"):
                if old.name not in needed:
                    shutil.rmtree(old)
        return scores

    @property
    def best_folder(self) -> Path:
        """Where the model of the best evaluation is."""
        return self.folder / f"{BEST}-{self.best['step']}"

    def _own_state(self, _: int) -> dict[str, Any]:
        """What a checkpoint has to know besides."""
        self._saved = self.best["step"]
        return {"best": self.best}

    def _is_better(self, evaluation: Mapping[str, Any]) -> bool:
        """Whether an evaluation beats the best so far, or equals one from before anything was learned."""
        metric = _metric(self.settings, self.data.task)
        score, best = _comparable(evaluation, metric), _comparable(self.best, metric)
        return score > best or (score == best and self.best["step"] == 0)


def _open_model(
    settings: FinetuneSettings, task: Task, seed: int, device: Device, checkpoint: Checkpoint | None
) -> PretrainedModel:
    """A new model, or that of the checkpoint, frozen as far as the settings say."""
    options: dict[str, Any] = {"device": device, "precision": settings.model_precision}
    if checkpoint is not None:
        model = task.open_model(checkpoint.folder, **options)
    else:
        if settings.dropout is not None:
            config = open_config(settings.model)
            names = [name for name in DROPOUTS if getattr(config, name, None) is not None]
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


def _best_of(runs: Sequence[dict[str, Any]], metric: str) -> dict[str, Any]:
    """The best of several restarts; of equally good ones, the first."""
    return max(runs, key=functools.partial(_comparable, metric=metric))


def _keep_best(run: Run, ended: Sequence[dict[str, Any]], restart: _Restart) -> None:
    """Keep the model of the restart that has just ended, if it is the best; then record that it has ended.

    In this order a run that is killed in between repeats the restart, and loses nothing.
    """
    if _best_of(ended, _metric(restart.settings, restart.data.task)) is ended[-1]:
        with atomic_folder(run.folder / BEST) as unfinished:
            shutil.copytree(restart.best_folder, unfinished, dirs_exist_ok=True)
    results = {
        "runs": ended,
        "trained_on": restart.data.digest,
        "peak_memory": run.peak_memory(),
        "environment": describe_environment(run.device),
        "settings": run.values(),
    }
    write_json(run.folder / "results.json", results)
    _remove_leftovers(restart.folder)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a restart no longer needs once it has ended."""
    for old in (*folder.glob(f"{BEST}*"), *list_checkpoints(folder)):
        shutil.rmtree(old, ignore_errors=True)


def _finish(
    run: Run,
    settings: FinetuneSettings,
    options: TaskOptions,
    data: Data,
    ended: list[dict[str, Any]],
    environment: dict[str, Any] | None,
) -> dict[str, Any]:
    """Write the results, the plot and the model card; print how well the run did, and return the results.

    ``environment`` is that of the last step, which another process may have taken.
    """
    metric = _metric(settings, data.task)
    best = _best_of(ended, metric)
    scores = {name: [restart["scores"][name] for restart in ended] for name in best["scores"]}
    results = {
        "task": settings.task,
        "metric": metric,
        "began_from": settings.model,
        "examples": {**data.sizes(), "left_out": data.skipped},
        "runs": ended,
        "trained_on": data.digest,
        "best": best,
        **_spread(scores),
        "peak_memory": run.peak_memory(),
        "environment": environment,
        "settings": run.values(),
    }
    seeds = [restart["seed"] for restart in ended]
    curves = {seed: read_metrics(run.folder / f"seed-{seed}" / "metrics.jsonl") for seed in seeds}
    plot_finetuning(curves, metric, run.folder / "training.png")
    _write_card(settings, options, data, scores, ended.index(best))
    seconds, tokens = (sum(restart[name] for restart in ended) for name in ("seconds", "tokens"))
    run.finish(results, _describe(results), seconds, tokens)
    print(f"written to {run.folder}: {BEST}/ (the model), results.json, training.png")
    return results


def _spread(scores: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation of each score that all restarts have, if there are several."""
    several = {name: values for name, values in _whole(scores).items() if len(values) > 1}
    if not several:
        return {}
    return {
        "mean": {name: statistics.fmean(values) for name, values in several.items()},
        "deviation": {name: statistics.stdev(values) for name, values in several.items()},
    }


def _whole(scores: Mapping[str, Sequence[float | None]]) -> dict[str, list[float]]:
    """The scores that are a number in all restarts."""
    numbers = {name: [value for value in values if value is not None] for name, values in scores.items()}
    return {name: found for name, found in numbers.items() if len(found) == len(scores[name])}


def _write_card(
    settings: FinetuneSettings,
    options: TaskOptions,
    data: Data,
    scores: Mapping[str, Sequence[float | None]],
    best: int,
) -> None:
    dev = settings.dev or f"{settings.train}, a random part that was held out"
    files = {"train": settings.train, "unlabelled": settings.unlabelled, "dev": dev}
    write_model_card(
        settings.folder / BEST,
        name=settings.folder.name,
        data={part: f"{files[part]}: {size:,} examples" for part, size in data.sizes().items()},
        recipe={"began from": settings.model}
        | {
            name: getattr(settings, name)
            for name in ("epochs", "batch_size", "accumulation", "learning_rate")
        },
        command=settings.command_line(options),
        scores=_whole(scores),
        scored_on="the dev data, by which this model was chosen",
        best=best,
        pairs=bool(data.task.pairs),
    )


def _describe(results: Mapping[str, Any]) -> list[str]:
    """How well a run did: the scores of the best restart, and their spread over all."""
    best = results["best"]
    told = "  ".join(f"{name} {value:.4f}" for name, value in best["scores"].items() if value is not None)
    lines = [f"best on the dev data  {told}   (seed {best['seed']}, step {best['step']})"]
    if best["step"] == 0:
        lines.append(
            f"no evaluation was better than the one before training, so {BEST}/ has not learned anything; "
            "train longer, or with another learning rate"
        )
    if "mean" in results:
        spread = "  ".join(
            f"{name} {mean:.4f} ± {results['deviation'][name]:.4f}" for name, mean in results["mean"].items()
        )
        lines.append(f"{len(results['runs'])} restarts        {spread}")
    return lines
