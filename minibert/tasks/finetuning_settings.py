"""Everything that a fine-tuning run can be told, besides the options of its task."""

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


@dataclass(frozen=True)
class FinetuneSettings(RunSettings):
    """The settings of one fine-tuning run.

    They default to the recipe of Devlin et al. (2019), appendix A.3, but for Adam's bias correction, which
    the original code leaves out and small data sets need (Zhang et al., 2021; Mosbach et al., 2021).
    """

    command = "minibert finetune"
    GROUPS = ("Run", "Data", "Task", "Model", "Optimiser", "Report", "Machine")

    name: str = with_default(RunSettings, "name", "tuned")
    restarts: int = setting(
        1, "Run", "runs from the seeds SEED, SEED + 1, …, of which the best on the dev data is kept", least=1
    )

    task: str = setting(None, "Task", "what is learned", choices=tuple(TASKS))
    metric: str | None = setting(
        None, "Task", "score on the dev data that chooses the best checkpoint; none: the task's usual one"
    )

    train: str = setting(None, "Data", "file to learn from")
    dev: str | None = setting(
        None, "Data", "file to measure on; none: a share of the training data is held out"
    )
    dev_share: float = setting(
        0.1, "Data", "share of the training data that is held out", least=0.001, most=0.9
    )
    limit: int | None = setting(None, "Data", "examples to learn from, at most: random ones", least=1)
    dev_limit: int | None = setting(None, "Data", "examples to measure on, at most: random ones", least=1)
    skip_bad: bool = setting(False, "Data", "leave out and count the examples that cannot be used")

    model: str = setting(
        "mini", "Model", "pretrained folder to begin from, or the name of a model that comes with the package"
    )
    dropout: float | None = setting(
        None, "Model", "probability of dropping something; none: as the model was trained", least=0, most=0.99
    )
    freeze: str | None = setting(
        None, "Model", "how many layers do not learn, from the lowest, nor do the embeddings; or: all"
    )
    features: tuple[int, ...] = setting(
        (),
        "Model",
        "layers whose hidden states, side by side, a head learns from while the encoder stays as it is; 0 is "
        "that of the embeddings, -1 the last",
    )
    layerwise_lr: float = setting(
        1.0, "Model", "factor of the learning rate from each layer to the one below", least=1e-6, most=1
    )

    epochs: float = setting(3.0, "Optimiser", "how often each example is learned from", least=1e-6)
    learning_rate: float = with_default(RunSettings, "learning_rate", 5e-5)
    bias_correction: bool = with_default(RunSettings, "bias_correction", True)
    eval_every: int | None = setting(
        None, "Optimiser", "steps between evaluations on the dev data; none: an epoch", least=1
    )
    save_every: int | None = setting(
        None, "Report", "steps between checkpoints to resume from; none: as evaluations", least=1
    )

    def __post_init__(self) -> None:
        for name, what in (  # these two have no default
            ("task", f"one of {', '.join(TASKS)}, or a recipe"),
            ("train", "the file to learn from"),
        ):
            if getattr(self, name) is None:
                raise UserError(f"{name} is missing: give {what}")
        super().__post_init__()
        scores = TASKS[self.task].score_names
        if self.metric is not None and self.metric not in scores:
            raise UserError(
                f"metric must be one of {', '.join(scores)} for the task {self.task}, got {self.metric!r}"
            )
        if self.freeze is not None and self.freeze != "all" and not self.freeze.isdecimal():
            raise UserError(f"freeze must be a number of layers or all, got {self.freeze!r}")
        if self.features and not issubclass(TASKS[self.task].Model, TaskModel):
            raise UserError(
                f"features are what a head learns from, and {self.task} has no head; leave them out"
            )
        if self.features and (self.freeze or self.layerwise_lr != 1.0):
            raise UserError("with features no layer of the encoder learns; leave out freeze and layerwise_lr")

    @property
    def seeds(self) -> range:
        """Of each restart."""
        return range(self.seed, self.seed + self.restarts)

    def intervals(self, batches_per_epoch: int) -> tuple[int, int, int]:
        """How many steps there are, and after how many come evaluations and checkpoints."""
        per_epoch = batches_per_epoch / self.accumulation
        eval_every = self.eval_every or max(1, round(per_epoch))
        return max(1, round(self.epochs * per_epoch)), eval_every, self.save_every or eval_every

    def command_line(self, options: TaskOptions) -> str:
        """What one would have to type for the same result."""
        run = self.replace(resume=False, overwrite=False)
        return shlex.join(
            [*self.command.split(), *run.flags(without=("Report", "Machine")), *options.flags()]
        )


def split_settings(
    values: Mapping[str, Any], source: str = "settings"
) -> tuple[FinetuneSettings, TaskOptions]:
    """Names and values, of a command line or a file, as the settings of a run and the options of its task.

    A recipe brings its own defaults, and its name. Raises UserError for a name that neither has.
    """
    TaskOptions(recipe=values.get("recipe"))  # refuses one that does not exist
    if values.get("recipe") is not None:
        recipe = RECIPES[values["recipe"]]
        if recipe.task not in TASKS:
            raise UserError(
                f"recipe {values['recipe']} is for {recipe.task}, which nothing learns; choose another"
            )
        values = {"task": recipe.task, "name": values["recipe"], **recipe.settings, **values}
    own = [f.name for f in fields(FinetuneSettings)]
    settings = {name: value for name, value in values.items() if name in own}
    Options = TASKS[settings["task"]].Options if settings.get("task") in TASKS else TaskOptions
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
