"""A model's configuration: named, checked values, and the file that they are stored in."""

import dataclasses
import re
import reprlib
from pathlib import Path
from typing import Any, ClassVar, Self

from minibert.assets import model_folder
from minibert.errors import UserError, did_you_mean
from minibert.files import read_json, write_json
from minibert.folders.weights import check_folder

PROBLEM_TYPES = (None, "regression", "single_label_classification", "multi_label_classification")
# transformers understands these in the files of all models, and prefers them to the names of a model's own.
COMMON_NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
MOST_LABELS = 10_000  # a new head is compared with no file, so this is what limits its memory


class Sizes:
    """Fields that every configuration has, each with a default of its own."""

    hidden_size: int
    hidden_act: str
    num_hidden_layers: int
    max_position_embeddings: int
    is_decoder: bool


@dataclasses.dataclass(kw_only=True)
class PretrainedConfig(Sizes):
    """What the configurations of all models have in common: ``config.json``, and the fine-tuning heads.

    Subclasses are dataclasses with more fields, under Hugging Face's names, including those of ``Sizes``.

    ``id2label`` names the ``num_labels`` labels, and its inverse ``label2id`` follows from it.
    ``problem_type`` is "single_label_classification", "regression", or None for regression with one label and
    classification with more. ``classifier_dropout`` is the dropout before the head, None for
    ``hidden_dropout_prob``. ``classifier_pooling`` is the token that stands for a whole text: "cls", the
    first, or "lasttoken". The pooler reads it, or a classifier without one. With ``crf`` a token classifier
    scores whole tag sequences. With ``feature_layers`` the encoder is frozen, and a head reads the hidden
    states of these layers side by side (0: the embeddings, 1 … L, or −1 for the last). transformers does not
    know the last three.

    Raises UserError if a value is out of range.
    """

    model_type: ClassVar[str] = "bert"
    names_in_file: ClassVar[dict[str, str]] = {}  # fields that ``config.json`` calls otherwise
    if_absent: ClassVar[dict[str, Any]] = {}  # what a file without a field means, if not our default

    num_labels: int = 2
    id2label: dict[int, str] | None = None
    label2id: dict[str, int] | None = None
    problem_type: str | None = None
    classifier_dropout: float | None = None
    classifier_pooling: str = "cls"
    crf: bool = False
    feature_layers: list[int] | None = None

    def __post_init__(self) -> None:
        self._name_labels()
        check_size("num_labels", self.num_labels, MOST_LABELS)
        check_choice("problem_type", self.problem_type, PROBLEM_TYPES)
        if self.problem_type == "single_label_classification" and self.num_labels == 1:
            raise UserError("single_label_classification needs at least 2 labels; with 1 use regression")
        if self.classifier_dropout is not None:
            check_number("classifier_dropout", self.classifier_dropout, 1)
        check_choice("classifier_pooling", self.classifier_pooling, ("cls", "lasttoken"))
        check_flag("crf", self.crf)
        if self.feature_layers is not None:
            self.check_layers(self.feature_layers)

    def check_layers(self, layers: Any) -> None:
        """Raise UserError unless this is a list of at least one layer number."""
        count = self.num_hidden_layers
        if not isinstance(layers, list | tuple) or not layers:
            raise UserError(f"layers must be a list of at least one number, got {reprlib.repr(layers)}")
        for layer in layers:
            if type(layer) is not int or not -count - 1 <= layer <= count:
                raise UserError(
                    f"no layer {reprlib.repr(layer)}; there are 0 (the embeddings) to {count}, and −1 to "
                    f"−{count + 1}"
                )

    @property
    def head_size(self) -> int:
        """How many numbers a head reads per token."""
        return self.hidden_size * len(self.feature_layers or [-1])

    @property
    def embedding_size(self) -> int:
        """E, the size of a word's vector: H in BERT, less in some of its descendants."""
        return self.hidden_size

    @property
    def head_act(self) -> str:
        """The activation of the masked-word head."""
        return self.hidden_act

    @property
    def different_layers(self) -> int:
        """How many layers have weights of their own: all of them, except in ALBERT."""
        return self.num_hidden_layers

    @property
    def longest_sequence(self) -> int:
        """The most tokens that the model can read at once."""
        return self.max_position_embeddings

    @property
    def needs_padding(self) -> bool:
        """Whether attention reads where a token stands in its row, so that padding cannot be left out."""
        return self.is_decoder

    @property
    def is_regression(self) -> bool:
        """Whether the labels of sequences are numbers instead of classes."""
        kind = self.problem_type
        return kind == "regression" or (kind is None and self.num_labels == 1)

    def _name_labels(self) -> None:
        """Check ``id2label``, and set the number of labels and ``label2id`` from it."""
        self.label2id = None
        if self.id2label is None:
            return
        names = self.id2label
        count = len(names) if isinstance(names, dict) else 0
        if not count or {str(i) for i in names} != {str(i) for i in range(count)}:
            raise UserError(f"id2label must name the labels 0, 1, 2, …, got {reprlib.repr(names)}")
        if not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"id2label must map every label to a text, got {reprlib.repr(names)}")
        if self.num_labels not in (2, count):  # 2 is also the default
            raise UserError(f"num_labels is {self.num_labels}, but id2label names {count} labels")
        self.id2label = {int(i): name for i, name in sorted(names.items(), key=lambda item: int(item[0]))}
        self.label2id = {name: i for i, name in self.id2label.items()}
        self.num_labels = count

    @property
    def labels(self) -> list[str]:
        """The names of the labels in order: LABEL_0, LABEL_1, … where none were given, as in transformers."""
        names = self.id2label or {i: f"LABEL_{i}" for i in range(self.num_labels)}
        return list(names.values())

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """A configuration from its fields. Raises UserError for a field that it does not have."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise UserError(f"unknown model setting {name!r}; {did_you_mean(name, known)}")
        return cls(**values)

    def replace(self, **settings: Any) -> Self:
        """The same configuration with other settings. New labels replace the old ones and their names."""
        if settings.keys() & {"num_labels", "id2label"}:
            settings = {"num_labels": 2, "id2label": None} | settings
        return self.from_dict(self.to_dict() | settings)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **settings: Any) -> Self:
        """The configuration in a folder's `config_file`; entries that are not our fields are ignored.

        ``folder`` may also be the name of a model that comes with the package, "mini". ``settings`` are
        fields that override those of the file. Raises UserError if the folder or the file is missing or
        damaged, or describes another kind of model.
        """
        folder = model_folder(folder)
        check_folder(folder)
        path = config_file(folder)
        values = read_json(path, "model configuration")
        kind = cls.model_type
        if not isinstance(values, dict) or values.get("model_type", kind) != kind:
            raise UserError(
                f"{path}: not the configuration of a model of type {kind!r} (as model_type should say)"
            )
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise UserError(f"{path}: only absolute position embeddings are supported")
        try:
            config = cls(**(cls.if_absent | cls._fields_in(values)))
        except UserError as error:
            words = set(re.findall(r"\w+", str(error)))
            called = [
                f"{name} is {theirs!r} there" for name, theirs in cls.names_in_file.items() if name in words
            ]
            raise UserError("; ".join([f"{path}: {error}", *called])) from None
        return config.replace(**settings) if settings else config

    @classmethod
    def _fields_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Our fields among the entries of a file, which may also have the names of ``COMMON_NAMES``."""
        fields = [field.name for field in dataclasses.fields(cls)]
        known = {cls.names_in_file.get(name, name): name for name in fields}
        found = {name: values[theirs] for theirs, name in known.items() if theirs in values}
        return found | {name: values[name] for name in COMMON_NAMES if name in values}

    def save_pretrained(self, folder: str | Path, **more: Any) -> None:
        """Write ``folder/config.json`` as transformers reads and sorts it, with the entries of ``more``."""
        fields = {self.names_in_file.get(name, name): value for name, value in self.to_dict().items()}
        values = {"model_type": self.model_type, **more, **fields}
        write_json(Path(folder) / "config.json", dict(sorted(values.items())))

    def to_dict(self) -> dict[str, Any]:
        """The fields and their values."""
        return dataclasses.asdict(self)


HEAD_FIELDS = tuple(field.name for field in dataclasses.fields(PretrainedConfig))
# What a configuration says of fine-tuning heads if there is none, so that a new model forgets an old task.
NO_HEAD: dict[str, Any] = {"id2label": None, "problem_type": None, "crf": False, "feature_layers": None}


def config_file(folder: Path) -> Path:
    """``config.json`` or, in a folder as Google released it, ``bert_config.json``."""
    names = ("config.json", "bert_config.json")
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def check_size(name: str, value: Any, largest: int) -> None:
    """Raise UserError unless the value is a whole number from 1 to ``largest``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{name} must be a whole number of at least 1, got {reprlib.repr(value)}")
    if value > largest:
        raise UserError(f"{name} must be at most {largest:,}, got {reprlib.repr(value)}")


def check_choice(what: str, value: Any, choices: Any) -> None:
    """Raise UserError unless the value is one of the choices."""
    if value not in tuple(choices):
        names = ", ".join(choice for choice in choices if choice is not None)
        raise UserError(f"unknown {what} {reprlib.repr(value)}; expected one of {names}")


def check_number(name: str, value: Any, stop: float) -> None:
    """Raise UserError unless the value is a number of at least 0 and below ``stop``."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < stop:
        raise UserError(f"{name} must be a number of at least 0 and below {stop}, got {reprlib.repr(value)}")


def check_flag(name: str, value: Any) -> None:
    """Raise UserError unless the value is true or false."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, got {reprlib.repr(value)}")
