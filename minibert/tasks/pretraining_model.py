"""The model that a pre-training run trains: from a checkpoint, a folder or new, alone or with a teacher."""

from pathlib import Path
from typing import Any

from minibert.assets import model_folder
from minibert.bert import BertForMaskedLM, BertForPreTraining
from minibert.bert.encoder import BertEncoder
from minibert.data import Documents
from minibert.devices import Device
from minibert.errors import UserError
from minibert.folders.config import NO_HEAD
from minibert.tasks.first_values import count_words, look_at_neighbours, pass_through, repeat_positions
from minibert.tasks.new_tokens import add_rows
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import PretrainedTokenizer, open_tokenizer
from minibert.text.new_tokens import old_pieces
from minibert.train.checkpoint import Checkpoint
from minibert.variants import model_class, open_model
from minibert.variants.distilbert_training import MaskedWordDistillation, take_layers
from minibert.variants.electra_training import GENERATOR, ElectraGeneratorAndDiscriminator, generator_config


def make_model(
    settings: PretrainSettings,
    device: Device,
    tokenizer: PretrainedTokenizer,
    checkpoint: Checkpoint | None,
) -> Any:
    """The model of the checkpoint, or that of a folder, or a new one."""
    options: dict[str, Any] = {"device": device, "precision": settings.model_precision, "seed": settings.seed}
    if checkpoint is not None:
        model = _model_class(settings, checkpoint.folder).from_pretrained(checkpoint.folder, **options)
    elif settings.model is not None:
        Model = _model_class(settings, settings.model)
        model = Model.from_pretrained(settings.model, **options, **NO_HEAD, **settings.changed_dropout)
        old = open_tokenizer(settings.model)
        if len(tokenizer) > len(old):
            add_rows(model, old_pieces(tokenizer, old), len(old))
    else:
        vocab_size = settings.vocabulary_size if settings.teacher else len(tokenizer)  # with spare rows
        config = settings.model_config(vocab_size, tokenizer.pad_id)
        generators = [generator_config(config, settings.generator_share)] if settings.family.together else []
        model = _model_class(settings)(config, *generators, **options)
    for module in model.modules():
        if isinstance(module, BertEncoder):
            module.recompute = settings.recompute
    config = model.config
    parameters = sum(parameter.size for parameter in model.buffers.parameters)
    print(
        f"model: {config.num_hidden_layers} layers, hidden size {config.hidden_size}, "
        f"{config.num_attention_heads} heads, {parameters:,} parameters"
        + (f"; starts from {settings.model}\n" if settings.model else "\n"),
        flush=True,
    )
    return model


def _model_class(settings: PretrainSettings, folder: str | Path | None = None) -> Any:
    """The class of a new model, or of that in a folder.

    Of an ELECTRA that was not pre-trained here there may be the generator alone, which predicts masked words.
    """
    family = settings.family
    if family.together and (folder is None or (model_folder(folder) / GENERATOR).is_dir()):
        return family.together
    return family.models[BertForPreTraining if settings.nsp else BertForMaskedLM]


def check_teacher(settings: PretrainSettings) -> None:
    """Raise UserError if there is a teacher, but without a head for masked words. Loads nothing."""
    if settings.teacher is not None:
        model_class(BertForMaskedLM, settings.teacher).check_pretrained(settings.teacher)


def open_teacher(
    settings: PretrainSettings, device: Device, tokenizer: PretrainedTokenizer
) -> BertForMaskedLM | None:
    """The model to learn from, if there is one.

    Raises UserError if it has no head for masked words, or another vocabulary than the student.
    """
    if settings.teacher is None:
        return None
    if open_tokenizer(settings.teacher).tokens != tokenizer.tokens:
        raise UserError(
            f"the teacher in {settings.teacher} has another vocabulary than the student; give a teacher with "
            "the same one, or leave MODEL out, for a student with the teacher's"
        )
    options: dict[str, Any] = {"device": device, "precision": settings.model_precision, "complete": True}
    return open_model(BertForMaskedLM, settings.teacher, **options)


def with_teacher(model: Any, teacher: BertForMaskedLM | None) -> Any:
    """What a trainer trains: the model, or the model with its teacher."""
    if teacher is None:
        return model
    same = model.config.hidden_size == teacher.config.hidden_size
    return MaskedWordDistillation(model, teacher, cosine_weight=1.0 if same else 0.0)


def set_first_values(
    model: Any, settings: PretrainSettings, documents: Documents, teacher: BertForMaskedLM | None = None
) -> None:
    """Change a new model's random values as the settings say. A student takes what fits from its teacher."""
    parts = _parts(model)
    counts, heads = settings.word_initializer == "counts", settings.attention_initializer
    for part in parts:
        if counts or heads != "normal":
            pass_through(part)
        if counts:
            count_words(part, documents, settings.seed)
    if heads != "normal":
        look_at_neighbours(*parts, same_word=heads == "same-word", seed=settings.seed)
    if teacher and settings.model is None:
        taken = take_layers(model, teacher)
        print(f"of the teacher's numbers the student has taken {taken:,}", flush=True)


def learn_longer(model: Any, settings: PretrainSettings) -> None:
    """Prepare a new model, which has read sequences of MAX_SEQ_LENGTH, for LONG_SEQ_LENGTH.

    Any other model has learned its positions before, or has them from its teacher.
    """
    if settings.model is None and settings.teacher is None:
        repeat_positions(*_parts(model), learned=settings.max_seq_length)


def _parts(model: Any) -> tuple[Any, ...]:
    """The models that are trained: one, or the two of ELECTRA."""
    together = isinstance(model, ElectraGeneratorAndDiscriminator)
    return (model.discriminator, model.generator) if together else (model,)
