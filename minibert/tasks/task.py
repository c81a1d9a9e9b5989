"""A task: all that fine-tuning, prediction and evaluation have to know about it."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from tqdm import tqdm

from minibert.arrays import get_array_module
from minibert.assets import model_folder
from minibert.bert import BertConfig
from minibert.data.randomness import generator
from minibert.data.tasks import (
    FORMATS,
    RECIPES,
    Columns,
    Faults,
    Feature,
    FeatureStream,
    Place,
    TextExample,
    ordered_batches,
    read_table,
)
from minibert.data.tasks.tables import USUAL_COLUMNS, column_of
from minibert.errors import UserError
from minibert.files import write_json
from minibert.folders.config import NO_HEAD
from minibert.folders.model import PretrainedModel
from minibert.heads.outputs import TaskOutput
from minibert.heads.task_models import TaskModel
from minibert.nn import Context, Module
from minibert.ranks import Ranks
from minibert.settings import Settings, setting
from minibert.tasks.shared import NO_NUMBERS, PREDICTED, share_out
from minibert.text import PretrainedTokenizer
from minibert.variants import architectures, family, open_config, open_model

READ = ("input_ids", "token_type_ids", "attention_mask", "features")  # of a batch, in order to predict
TASK_FILE = "task.json"  # beside a fine-tuned model: the name of its task, and its options


@dataclass(frozen=True)
class TaskOptions(Settings):
    """How files are read and examples are encoded; a task adds its own options."""

    recipe: str | None = setting(
        None,
        "Data",
        "data set whose layout the files have; docs-… need no files, but use the documentation installed "
        "with Python",
        choices=tuple(RECIPES),
    )
    max_length: int = setting(
        128, "Task", "tokens per sequence, at most; if not given, no more than the model can read", least=4
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name, usual in self.usual_layout().items() if getattr(self, name) != usual]
        check_layout(self.recipe, given)

    @classmethod
    def usual_layout(cls) -> dict[str, Any]:
        """The options that say how files are read, with their defaults."""
        return {f.name: f.default for f in fields(cls) if f.metadata["group"] == "Data"}


def check_layout(recipe: str | None, given: Iterable[str]) -> None:
    """Raise UserError if a recipe and other options, by their names, both say how files are read."""
    others = [name for name in given if name != "recipe"]
    if recipe is not None and others:
        raise UserError(f"recipe {recipe} says how the files are read; leave out {', '.join(others)}")


class Example(Protocol):
    """What is read from files: a text, a tagged sentence, a question."""

    @property
    def content(self) -> tuple[str, ...]:
        """All its text: what is the same in examples that occur more than once."""


ModelT = TypeVar("ModelT", bound=PretrainedModel)
OptionsT = TypeVar("OptionsT", bound=TaskOptions)
ExampleT = TypeVar("ExampleT", bound=Example)  # what is read from files
FeatureT = TypeVar("FeatureT", bound=Feature)  # what examples are encoded as
PredictionT = TypeVar("PredictionT")
OutputT = TypeVar("OutputT", bound=TaskOutput)
ItemT = TypeVar("ItemT")


class Task(Generic[ModelT, OptionsT, ExampleT, FeatureT, PredictionT]):
    """One task. A subclass says how it reads, what the model is given, and what is made of its outputs.

    It names five types: those of its model, its options, the examples that it reads, the features that these
    are encoded as, and its predictions.

    ``labels`` are the names of the classes in the order of their ids; a task without classes has none.
    ``pairs`` says, for tasks that allow both, whether a model reads pairs of texts or single ones; it is None
    if that is not known. `learn_labels` takes both from training data, `open_task` from a model's folder.
    """

    name: ClassVar[str]  # as in --task
    Model: type[ModelT]  # this and the next belong to the class too, but no ClassVar may hold a type variable
    Options: type[OptionsT]
    score_names: ClassVar[tuple[str, ...]]  # of all scores that there may be
    has_labels: ClassVar[bool] = False
    own_ending: ClassVar[str | None] = None  # the suffix of files in the task's `own_format`

    def __init__(
        self, tokenizer: PretrainedTokenizer, options: OptionsT | None = None, labels: Sequence[str] = ()
    ):
        self.tokenizer = tokenizer
        self.options = self.Options() if options is None else options
        self.labels = list(labels)
        self.pairs: bool | None = None
        self.ranks = Ranks()  # among which predictions are shared out
        self.frozen_encoder: Callable[[Sequence[Feature]], Sequence[Feature]] | None = (
            None  # see tasks/frozen.py
        )

    # -- Data -----------------------------------------------------------------------------------

    def read(
        self, path: str | Path, *, labelled: bool = True, faults: Faults | None = None
    ) -> list[ExampleT]:
        """The examples in a person's file, in order. Raises UserError, naming file and line, for bad ones."""
        recipe = self.options.recipe
        if recipe is None:
            return self._read(path, labelled, faults)
        if RECIPES[recipe].task != self.name:
            raise UserError(f"recipe {recipe} is for the task {RECIPES[recipe].task}, not {self.name}")
        return RECIPES[recipe].read(path, labelled=labelled, faults=faults)

    def _read(self, path: str | Path, labelled: bool, faults: Faults | None) -> list[ExampleT]:
        """The same for files without a recipe."""
        raise NotImplementedError

    def set_layout(self, layout: Mapping[str, Any]) -> None:
        """Read files in another format than the training data.

        ``layout`` has options of the group "Data". If it has any, those of the training data are forgotten.
        Raises UserError for an option that the task does not have.
        """
        if layout:
            options = self.options.to_dict() | self.options.usual_layout() | dict(layout)
            self.options = self.Options.from_dict(options, f"task {self.name}")

    def example(self, text: str, pair: str | None, place: Place) -> ExampleT:
        """The example, without a label, of a text that somebody typed, or of a text and its partner.

        Raises `Problem` for what the task cannot read.
        """
        raise NotImplementedError

    @property
    def label_ids(self) -> dict[str, int]:
        """The id of each label."""
        return {name: i for i, name in enumerate(self.labels)}

    def learn_labels(self, examples: Sequence[ExampleT]) -> None:
        """Take from the training data what a task has to know about its labels; usually nothing.

        Raises UserError for labels that nothing can be learned from.
        """

    def check(self, examples: Sequence[ExampleT], faults: Faults | None = None) -> list[ExampleT]:
        """The examples that the model can be evaluated on: those whose labels it knows, if it has any."""
        return list(examples)

    def hold_out(
        self, examples: Sequence[ExampleT], share: float, seed: int
    ) -> tuple[list[ExampleT], list[ExampleT]]:
        """Split examples into those to train on and a random share to evaluate on; see `hold_out`.

        Examples with the same content are on the same side: a model may know the others by heart.
        """
        return hold_out(examples, [example.content for example in examples], share, seed)

    def features(self, examples: Sequence[ExampleT], *, training: bool) -> list[FeatureT]:
        """Examples encoded as rows of batches, for training with what is to be learned."""
        raise NotImplementedError

    def batches(self, features: Sequence[FeatureT], batch_size: int, seed: int) -> FeatureStream:
        """The stream of training batches."""
        return FeatureStream(features, batch_size, self.tokenizer.pad_id, seed=seed)

    # -- Models ---------------------------------------------------------------------------------

    def trainee(self, model: ModelT) -> Module:
        """What a trainer trains: the model, or something around it that has its parameters."""
        return model

    def new_model(self, folder: str | Path, **options: Any) -> ModelT:
        """The encoder in a pretrained folder with a new head; options as for ``from_pretrained``.

        If the folder has a head for this very task, with the same labels, it is kept and goes on learning.
        """
        options = {**NO_HEAD, **self._model_settings(), **options}
        config = open_config(folder)
        self.check_model(config)
        goes_on = (
            self.recognises(model_folder(folder))
            and config.feature_layers == options["feature_layers"]
            and (not self.has_labels or config.labels == self.labels)
            and config.num_labels == options.get("num_labels", config.num_labels)
        )
        if config.is_decoder and not goes_on:  # then the first token knows no other
            options["classifier_pooling"] = "lasttoken"
        return open_model(self.Model, folder, new_head=not goes_on, **options)

    def open_model(self, folder: str | Path, **options: Any) -> ModelT:
        """A model that has been fine-tuned for this task, whose labels become the task's."""
        self.check_model(open_config(folder))
        model = open_model(self.Model, folder, complete=True, **options)
        if self.has_labels:
            self.labels = model.config.labels
        return model

    def _model_settings(self) -> dict[str, Any]:
        """What a new model's configuration says of the task."""
        return {"id2label": dict(enumerate(self.labels))} if self.has_labels else {}

    def check_model(self, config: BertConfig) -> None:
        """Raise UserError if a model cannot read what this task will give it."""
        self.tokenizer.check_size(config.vocab_size)
        if self.options.max_length > config.longest_sequence:
            raise UserError(
                f"max_length is {self.options.max_length}, but the model has only "
                f"{config.longest_sequence} positions; give a smaller one"
            )

    def save(self, model: ModelT, folder: str | Path) -> None:
        """Write a folder that `open_task` can open, and also transformers if it knows the model."""
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        told = {"task": self.name} | ({} if self.pairs is None else {"pairs": self.pairs})
        write_json(Path(folder) / TASK_FILE, told | self.options.to_dict())

    @classmethod
    def recognises(cls, folder: Path) -> bool:
        """Whether a folder without ``task.json`` holds a model of this task."""
        model = family(folder).models.get(cls.Model)
        return model is not None and model.__name__ in architectures(folder)

    # -- Predictions ----------------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The score that chooses the best checkpoint by default; more is better."""
        raise NotImplementedError

    def predict(self, model: ModelT, examples: Sequence[ExampleT], batch_size: int = 32) -> list[PredictionT]:
        """A prediction for each example, on the host. Leaves the model in evaluation mode."""
        raise NotImplementedError

    def outputs(
        self, model: TaskModel[OutputT], features: Sequence[Feature], batch_size: int
    ) -> Iterator[tuple[np.ndarray, OutputT]]:
        """What the model makes of features, dropout off; see `outputs`."""
        if self.frozen_encoder is not None:
            features = self.frozen_encoder(features)
        return outputs(model, features, batch_size, self.tokenizer.pad_id, self.ranks)

    @property
    def fewest_scored(self) -> int:
        """The number of examples without which there are no scores."""
        return 1

    def calibrate(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> None:
        """Choose what the task can choose itself by these predictions (a threshold, say); usually nothing."""

    def scores(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """How good predictions are, as fractions (``tasks.metrics``); the examples must have labels."""
        raise NotImplementedError

    def scores_for(self, examples: Sequence[ExampleT]) -> tuple[str, ...]:
        """The names of the scores that predictions for these examples can have."""
        return self.score_names

    def details(
        self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]
    ) -> dict[str, dict[str, float]]:
        """The scores for parts of the data, such as each kind of entity: by the part, then by the score."""
        return {}

    def record(self, example: ExampleT, prediction: PredictionT) -> dict[str, Any]:
        """An example and its prediction as one JSON object."""
        raise NotImplementedError

    def check_own_format(self, examples: Sequence[ExampleT]) -> None:
        """Raise UserError if the predictions for these examples could not be written in the `own_format`."""

    def own_format(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> str:
        """A file of predictions as other programs for the task expect it, where there is such a format."""
        raise NotImplementedError


def hold_out(
    items: Sequence[ItemT], groups: Sequence[Hashable], share: float, seed: int
) -> tuple[list[ItemT], list[ItemT]]:
    """Split examples into those to train on and those to evaluate on: a random share of the groups.

    ``groups`` says which group each example belongs to. At least one group is held out. Raises UserError if
    none is left to train on.
    """
    different = list(dict.fromkeys(groups))
    count = max(1, round(share * len(different)))
    if count >= len(different):
        raise UserError(
            f"cannot hold out {count} of {len(different)} different example(s); give a dev file or more data"
        )
    order = generator("held-out examples", seed).permutation(len(different))
    chosen = {different[i] for i in order[:count]}
    grouped = list(zip(items, groups, strict=True))
    return (
        [item for item, group in grouped if group not in chosen],
        [item for item, group in grouped if group in chosen],
    )


def outputs(
    model: TaskModel[OutputT],
    features: Sequence[Feature],
    batch_size: int,
    pad_id: int,
    ranks: Ranks | None = None,
) -> Iterator[tuple[np.ndarray, OutputT]]:
    """What a model makes of features, without dropout: batch after batch, the rows and their outputs.

    ``rows`` (B,) says which feature each row of the outputs belongs to; the longest come first. On a
    terminal, a bar shows the progress. Several ``ranks`` share the work; see `share_out`.
    """

    def forward(batch: Mapping[str, Any]) -> OutputT:
        inputs = {name: batch[name] for name in READ if name in batch}
        return model.forward(**inputs, context=Context(backward=False))[0]

    model.eval()
    batches = ordered_batches(features, batch_size, pad_id)
    with tqdm(total=len(features), desc="predicting", unit="", leave=False, disable=None) as bar:
        for rows, output in share_out(batches, forward, ranks or Ranks(), model.device):
            _check_finite(output)
            yield rows, output
            bar.update(len(rows))


def _check_finite(output: TaskOutput) -> None:
    """Raise UserError for scores of which none is the largest, lest a first label pass for a prediction."""
    for name in PREDICTED:
        found = getattr(output, name, None)
        if found is not None and not bool(get_array_module(found).isfinite(found).all()):
            raise UserError(NO_NUMBERS)


# -- Tasks whose examples are rows of tables ---------------------------------------------------------


@dataclass(frozen=True)
class TableOptions(TaskOptions):
    """Which column holds what: a name, or a number from 1."""

    format: str | None = setting(
        None, "Data", "format of the files, if their suffix does not tell", choices=FORMATS
    )
    text_column: str | None = setting(
        None, "Data", "column of the text, by name or number (default: one of the usual names)"
    )
    pair_column: str | None = setting(None, "Data", "column of the second text")
    label_column: str | None = setting(None, "Data", "column of the label or score")
    header: bool = setting(
        False, "Data", "the first line is not an example, although columns are given by number"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column is None and (self.pair_column or self.header):
            raise UserError("which column holds the text? give text_column too")
        named = [name for name in (self.text_column, self.pair_column, self.label_column) if name is not None]
        if len(set(named)) < len(named):
            raise UserError(
                f"text_column, pair_column and label_column name one column twice: {', '.join(named)}"
            )

    def columns(self) -> list[Columns]:
        """The possible columns of a file, of which the first that fits is taken."""
        text, pair, label = map(column_of, (self.text_column, self.pair_column, self.label_column))
        if text is None:
            usual = list(USUAL_COLUMNS)
            return usual if label is None else [replace(columns, label=label) for columns in usual]
        if label is None:
            return [Columns(text, pair, name, self.header) for name in ("label", "score")]
        return [Columns(text, pair, label, self.header or isinstance(label, str))]


TableOptionsT = TypeVar("TableOptionsT", bound=TableOptions)


class TableTask(Task[ModelT, TableOptionsT, TextExample, FeatureT, PredictionT]):
    """A task whose examples are texts or pairs of texts, one per row."""

    has_scores: ClassVar[bool] = False  # whether labels are numbers

    def example(self, text: str, pair: str | None, place: Place) -> TextExample:
        """A row without a label."""
        return TextExample(text, pair, None, place)

    def _read(self, path: str | Path, labelled: bool, faults: Faults | None) -> list[TextExample]:
        return read_table(
            path,
            self.options.columns(),
            file_format=self.options.format,
            labelled=labelled,
            scores=self.has_scores,
            faults=faults,
        )
