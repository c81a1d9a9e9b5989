"""BERT's descendants: what each decides otherwise, on the same operations and layers.

Each file says on a page what one of them changes. The ``config.json`` of a folder names its ``model_type``,
and the table below says which classes open it. For a new descendant add one entry.
"""

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from minibert.assets import model_folder
from minibert.bert import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)
from minibert.errors import UserError
from minibert.files import read_json
from minibert.folders.config import config_file
from minibert.folders.model import PretrainedModel
from minibert.folders.weights import check_folder
from minibert.heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    SentenceEncoder,
)
from minibert.variants import albert, distilbert, electra, modern, roberta, xlnet
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator

Kind = type[PretrainedModel]
ModelT = TypeVar("ModelT", bound=PretrainedModel)


class Family(NamedTuple):
    """The configuration of a kind of models, and its classes, each by BERT's class for the same purpose.

    With ``sentence_order``, pairs of texts teach it whether they were swapped, not whether they belong
    together. ``together`` are two models that are pre-trained as one. ``permuted``: words are predicted in
    random orders, instead of masked ones. ``position_table``: positions are embeddings that are added.
    """

    config: type[BertConfig]
    models: dict[Kind, Kind]
    sentence_order: bool = False
    together: type[ElectraGeneratorAndDiscriminator] | None = None
    permuted: bool = False
    position_table: bool = True


FAMILIES = {
    "bert": Family(
        BertConfig,
        {
            kind: kind
            for kind in (
                BertModel,
                BertForPreTraining,
                BertForMaskedLM,
                BertForNextSentencePrediction,
                BertForSequenceClassification,
                BertForTokenClassification,
                BertForQuestionAnswering,
                SentenceEncoder,
            )
        },
    ),
    "roberta": Family(
        roberta.RobertaConfig,
        {
            BertModel: roberta.RobertaModel,
            BertForMaskedLM: roberta.RobertaForMaskedLM,
            BertForSequenceClassification: roberta.RobertaForSequenceClassification,
            BertForTokenClassification: roberta.RobertaForTokenClassification,
            BertForQuestionAnswering: roberta.RobertaForQuestionAnswering,
            SentenceEncoder: roberta.RobertaSentenceEncoder,
        },
    ),
    "distilbert": Family(
        distilbert.DistilBertConfig,
        {
            BertModel: distilbert.DistilBertModel,
            BertForMaskedLM: distilbert.DistilBertForMaskedLM,
            BertForSequenceClassification: distilbert.DistilBertForSequenceClassification,
            BertForTokenClassification: distilbert.DistilBertForTokenClassification,
            BertForQuestionAnswering: distilbert.DistilBertForQuestionAnswering,
            SentenceEncoder: distilbert.DistilBertSentenceEncoder,
        },
    ),
    "albert": Family(
        albert.AlbertConfig,
        {
            BertModel: albert.AlbertModel,
            BertForPreTraining: albert.AlbertForPreTraining,
            BertForMaskedLM: albert.AlbertForMaskedLM,
            BertForSequenceClassification: albert.AlbertForSequenceClassification,
            BertForTokenClassification: albert.AlbertForTokenClassification,
            BertForQuestionAnswering: albert.AlbertForQuestionAnswering,
            SentenceEncoder: albert.AlbertSentenceEncoder,
        },
        sentence_order=True,
    ),
    "electra": Family(
        electra.ElectraConfig,
        {
            BertModel: electra.ElectraModel,
            BertForMaskedLM: electra.ElectraForMaskedLM,
            BertForSequenceClassification: electra.ElectraForSequenceClassification,
            BertForTokenClassification: electra.ElectraForTokenClassification,
            BertForQuestionAnswering: electra.ElectraForQuestionAnswering,
            SentenceEncoder: electra.ElectraSentenceEncoder,
            electra.ElectraForPreTraining: electra.ElectraForPreTraining,
        },
        together=ElectraGeneratorAndDiscriminator,
    ),
    "xlnet": Family(
        xlnet.XLNetConfig,
        {
            BertModel: xlnet.XLNetModel,
            BertForMaskedLM: xlnet.XLNetLMHeadModel,
            BertForSequenceClassification: xlnet.XLNetForSequenceClassification,
            BertForTokenClassification: xlnet.XLNetForTokenClassification,
            BertForQuestionAnswering: xlnet.XLNetForQuestionAnsweringSimple,
            SentenceEncoder: xlnet.XLNetSentenceEncoder,
        },
        permuted=True,
        position_table=False,
    ),
    "minibert-modern": Family(
        modern.ModernConfig,
        {
            BertModel: modern.ModernModel,
            BertForPreTraining: modern.ModernForPreTraining,
            BertForMaskedLM: modern.ModernForMaskedLM,
            BertForSequenceClassification: modern.ModernForSequenceClassification,
            BertForTokenClassification: modern.ModernForTokenClassification,
            BertForQuestionAnswering: modern.ModernForQuestionAnswering,
            SentenceEncoder: modern.ModernSentenceEncoder,
        },
        position_table=False,
    ),
}


def family(folder: str | Path) -> Family:
    """The family of the model in a pretrained folder, by the ``model_type`` of its ``config.json``.

    Raises UserError if the folder or the file is missing or damaged, or names a type that is not known.
    """
    folder = model_folder(folder)
    check_folder(folder)
    path = config_file(folder)
    values = read_json(path, "model configuration")
    name = values.get("model_type", "bert") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(f"{path}: model_type is {name!r}; expected one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def architectures(folder: str | Path) -> list[str]:
    """The classes that the configuration in a pretrained folder names, as transformers calls them.

    Raises UserError if there is no configuration, or one that is damaged.
    """
    path = config_file(model_folder(folder))
    values = read_json(path, "model configuration")
    named = (values.get("architectures") if isinstance(values, dict) else None) or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise UserError(f"{path}: architectures should be a list of names, found {named!r}")
    return named


def open_config(folder: str | Path, **settings: Any) -> BertConfig:
    """The configuration in a pretrained folder of any family; ``settings`` as for its ``from_pretrained``."""
    return family(folder).config.from_pretrained(folder, **settings)


def model_class(kind: type[ModelT], folder: str | Path) -> type[ModelT]:
    """The class that does for the folder's family what ``kind`` does for BERT.

    A class of the family itself may be given, too. Raises UserError as `family` does, and if the family has
    no such class.
    """
    found = family(folder)
    if kind in found.models.values():
        return kind
    if kind not in found.models:
        raise UserError(
            f"{folder}: a model of type {found.config.model_type!r} cannot be opened as {kind.__name__}; "
            f"there are {', '.join(model.__name__ for model in found.models.values())}"
        )
    return found.models[kind]  # type: ignore[return-value]  # each is a subclass of its kind


def open_model(kind: type[ModelT], folder: str | Path, **options: Any) -> ModelT:
    """The model in a pretrained folder, in evaluation mode: BERT's ``kind``, or its family's class for that.

    ``options`` are those of ``from_pretrained``: device, dtype, precision, seed …
    """
    return model_class(kind, folder).from_pretrained(folder, **options)
