"""The settings of a fine-tuning run, besides the options of its task."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from minibert.data.tasks import RECIPES
from minibert.errors import UserError
from minibert.heads.task_models import TaskModel
from minibert.settings import check_names, setting, with_default
from minibert.tasks.registry import TASKS
from minibert.tasks.task import TaskOptions
from minibert.train import RunSettings

TAUGHT = ("classify", "regress")  # the tasks that can be learned from a teacher


@dataclass(frozen=True)
class FinetuneSettings(RunSettings):
    """The settings of one fine-tuning run.

    They default to the recipe of Devlin et al. (2019), appendix A.3, except for Adam's bias correction, which
    the original code leaves out and small data sets need (Zhang et al., 2021; Mosbach et al., 2021).
    """

    command = "minibert finetune"
    GROUPS = ("Run", "Data", "Task", "Model", "Teacher", "Optimiser", "Report", "Machine")

    restarts: int = setting(
        1, "Run", "runs, with the seeds SEED, SEED + 1, …; the best on the dev data is kept", least=1
    )

    task: str = setting(None, "Task", "what to learn", choices=tuple(TASKS))
    metric: str | None = setting(
        None, "Task", "dev score that chooses the best checkpoint (default: the usual one of the task)"
    )

    train: str = setting(None, "Data", "training file")
    dev: str | None = setting(
        None, "Data", "file to evaluate on (default: a held-out share of the training data)"
    )
    dev_share: float = setting(
        0.1, "Data", "share of the training data to hold out if there is no dev file", least=0.001, most=0.9
    )
    limit: int | None = setting(None, "Data", "train on at most LIMIT examples, chosen at random", least=1)
    dev_limit: int | None = setting(
        None, "Data", "evaluate on at most DEV_LIMIT examples, chosen at random", least=1
    )
    skip_bad: bool = setting(False, "Data", "skip examples that cannot be used, and count them")

    model: str = setting(
        "mini", "Model", "pretrained folder to start from, or the name of a model that comes with minibert"
    )
    dropout: float | None = setting(
        None, "Model", "dropout probability (default: as the model was trained)", least=0, most=0.99
    )
    freeze: str | None = setting(
        None, "Model", "freeze the embeddings and the lowest FREEZE layers; all: the whole encoder"
    )
    features: tuple[int, ...] = setting(
        (),
        "Model",
        "train only a head, on the concatenated hidden states of these layers of the frozen encoder; 0 is "
        "the embeddings, -1 the last layer",
    )
    layerwise_lr: float = setting(
        1.0, "Model", "factor of the learning rate from each layer to the one below", least=1e-6, most=1
    )

    teacher: str | None = setting(
        None,
        "Teacher",
        "folder of a model fine-tuned for the same task, whose scores are learned, too (classify, regress)",
    )
    teacher_weight: float = setting(
        0.5, "Teacher", "share of the teacher's scores in the loss; the labels have the rest", least=0, most=1
    )
    temperature: float = setting(
        2.0, "Teacher", "divides both models' scores of classes, so that unlikely ones count", least=1e-3
    )

    unlabelled: str | None = setting(
        None,
        "Teacher",
        "file of more texts, whose labels the teacher guesses: with the columns of the training file, but "
        "labels are not read; or .txt, one text per line (texts that are also in DEV, or trained on with a "
        "label, are left out)",
    )
    hidden_weight: float = setting(
        0.0, "Teacher", "weight of a loss that compares how both models' layers relate the tokens", least=0
    )
    attention_weight: float = setting(
        0.0, "Teacher", "weight of a loss that compares what both models' layers attend to", least=0
    )

    epochs: float = setting(3.0, "Optimiser", "passes over the training data", least=1e-6, most=1e9)
    learning_rate: float = with_default(RunSettings, "learning_rate", 5e-5)
    bias_correction: bool = with_default(RunSettings, "bias_correction", True)
    eval_every: int | None = setting(
        None, "Optimiser", "steps between evaluations on the dev data (default: an epoch)", least=1
    )
    save_every: int | None = setting(
        None, "Report", "steps between checkpoints to resume from (default: as EVAL_EVERY)", least=1
    )

    def __post_init__(self) -> None:
        for name, what in (  # these two have no default
            ("task", f"one of {', '.join(TASKS)}, or a recipe"),
            ("train", "the training file"),
        ):
            if getattr(self, name) is None:
                raise UserError(f"{name} is missing: give {what}")
        super().__post_init__()
        if self.teacher is not None and self.task not in TAUGHT:
            raise UserError(f"a teacher is for {' and '.join(TAUGHT)}, not for {self.task}; leave it out")
        for f in self.groups()["Teacher"]:
            if self.teacher is None and getattr(self, f.name) != f.default:
                raise UserError(f"{f.name} needs a teacher; give one (--teacher), or leave it out")
        if self.task == "regress" and self.teacher is not None:
            self.refuse({"temperature": "a number has no probabilities to soften"})
        if self.imitates_layers and (self.features or self.freeze == "all"):
            raise UserError(
                "hidden_weight and attention_weight teach the encoder, which does not learn here; leave them "
                "out, or leave out features and freeze"
            )
        scores = TASKS[self.task].score_names
        if self.metric is not None and self.metric not in scores:
            raise UserError(
                f"metric must be one of {', '.join(scores)} for the task {self.task}, got {self.metric!r}"
            )
        if self.freeze is not None and self.freeze != "all" and not self.freeze.isdecimal():
            raise UserError(f"freeze must be a number of layers or all, got {self.freeze!r}")
        if self.features and not issubclass(TASKS[self.task].Model, TaskModel):
            raise UserError(
                f"features are what a head is trained on, but {self.task} has no head; leave them out"
            )
        if self.features and (self.freeze or self.layerwise_lr != 1.0):
            raise UserError("with features no layer of the encoder learns; leave out freeze and layerwise_lr")
        if self.freeze == "all":
            self.refuse({"layerwise_lr": "with freeze all no layer of the encoder learns"})

    def without_effect(self) -> dict[str, str]:
        """The settings that change nothing beside the others, and why: see `RunSettings`."""
        found = super().without_effect()
        if self.dev is not None:
            found["dev_share"] = "there is a dev file"
        return found

    @property
    def imitates_layers(self) -> bool:
        """Whether the student learns from the teacher's layers, too."""
        return self.hidden_weight > 0 or self.attention_weight > 0

    @property
    def seeds(self) -> range:
        """The seed of each restart."""
        return range(self.seed, self.seed + self.restarts)

    def intervals(self, batches_per_epoch: int) -> tuple[int, int, int]:
        """The number of steps, and the numbers of steps between evaluations and between checkpoints."""
        per_epoch = batches_per_epoch / self.accumulation
        eval_every = self.eval_every or max(1, round(per_epoch))
        return max(1, round(self.epochs * per_epoch)), eval_every, self.save_every or eval_every

    def command_line(self, options: TaskOptions) -> str:
        """The command line that gives the same result."""
        usual = RECIPES[options.recipe].settings if options.recipe else {}
        flags = [*self.as_typed().flags(usual, without=("Report", "Machine")), *options.flags(usual)]
        return shlex.join([*self.command.split(), *flags])


def split_settings(
    values: Mapping[str, Any], source: str = "settings"
) -> tuple[FinetuneSettings, TaskOptions]:
    """Split names and values, of a command line or a file, into a run's settings and its task's options.

    A recipe has its own defaults. Raises UserError for a name that neither has.
    """
    TaskOptions(recipe=values.get("recipe"))  # refuses one that does not exist
    if values.get("recipe") is not None:
        recipe = RECIPES[values["recipe"]]
        if recipe.task not in TASKS:
            raise UserError(
                f"recipe {values['recipe']} is for {recipe.task}, which cannot be learned; choose another"
            )
        values = {"task": recipe.task, **recipe.settings, **values}
    own = [f.name for f in fields(FinetuneSettings)]
    settings = {name: value for name, value in values.items() if name in own}
    Options = TASKS[settings["task"]].Options if settings.get("task") in tuple(TASKS) else TaskOptions
    options = {name: value for name, value in values.items() if name not in own}
    known = [f.name for f in fields(Options)]
    for name in options.keys() - known:
        others = [task.name for task in TASKS.values() if name in {f.name for f in fields(task.Options)}]
        if others:
            raise UserError(
                f"{source}: {name} is for the task {' and '.join(others)}, not {settings.get('task')}"
            )
    check_names(values, own + known, source)
    return FinetuneSettings(**settings), Options(**options)
