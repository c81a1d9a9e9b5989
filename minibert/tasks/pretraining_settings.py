"""The settings of a pre-training run."""

import dataclasses
import math
from dataclasses import dataclass, fields
from typing import Any, Self

from minibert.bert import POSITION_INITIALIZERS, PRESETS, BertConfig, BertForPreTraining
from minibert.data import LAYOUTS, OBJECTIVES, InstanceSettings
from minibert.errors import UserError
from minibert.ops import ACTIVATIONS
from minibert.settings import setting, with_default
from minibert.text import USUAL_ALPHABET, chosen_lowercase, has_alphabet
from minibert.train import RunSettings
from minibert.variants import FAMILIES, Family, open_config
from minibert.variants.modern import NORMALISATIONS, POSITIONS

# What a new model has where nothing else is given. These are not defaults, because a model to start from has
# its own, and any setting that is given must then agree with it.
USUAL_PRESET, USUAL_VOCAB_SIZE = "tiny", 8192
USUAL = {"preset": USUAL_PRESET, "vocab_size": USUAL_VOCAB_SIZE, "hidden_act": "gelu"}
# The settings that are BertConfig's, under its names.
SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "hidden_act"),
)
# Those that only the configurations of some variants have.
OF_SOME_VARIANTS = ("embedding_size", "normalisation", "positions")
INITIALIZERS = ("word_initializer", "attention_initializer", "position_initializer")


@dataclass(frozen=True)
class Phase:
    """A stretch of steps with sequences of one length."""

    start: int  # steps taken before it begins
    stop: int  # steps taken when it ends
    batch_size: int  # sequences in a micro-batch
    instances: InstanceSettings

    @property
    def most_predictions(self) -> int:
        """Tokens that are predicted in a micro-batch, at most."""
        return self.batch_size * self.instances.most_predictions

    def describe(self) -> str:
        """One line."""
        length = self.instances.max_seq_length
        return (
            f"steps {self.start + 1:,} to {self.stop:,}: {self.batch_size} sequences of {length} tokens, "
            f"up to {self.instances.most_predictions} predicted in each"
        )


@dataclass(frozen=True)
class PretrainSettings(RunSettings):
    """The settings of one pre-training run.

    The defaults follow BERT's own recipe, at a size that takes about ten minutes on two cores: short
    sequences, a high learning rate, larger initial weights, β₂ = 0.98 and no dropout. (The paper has
    sequences of 128 and 512 tokens, 1e-4, 0.02, 0.999 and 0.1.)
    """

    command = "minibert pretrain"
    GROUPS = ("Run", "Corpus", "Model", "Instances", "Phases", "Optimiser", "Report", "Machine")
    FREE = ("Run", "Report", "Machine", "Phases")  # (a phase is free until it has begun: see check_phases)

    corpus: tuple[str, ...] = setting(
        (), "Corpus", "text files, folders or globs (default: the documentation installed with Python)"
    )
    layout: str = setting("auto", "Corpus", "what a line of a text file is", choices=LAYOUTS)
    held_out: float = setting(
        0.05, "Corpus", "share of the documents kept for evaluation", least=0.001, most=0.5
    )
    held_out_seed: int | None = setting(
        None,
        "Corpus",
        "random seed for held-out data; runs with the same one are measured on the same text (default: SEED)",
        least=0,
    )
    tokenizer: str | None = setting(
        None, "Corpus", "folder with a vocabulary to use (default: learn one from the training documents)"
    )
    vocab_size: int | None = setting(
        None, "Corpus", f"tokens in the vocabulary to learn (default: {USUAL_VOCAB_SIZE})", least=6
    )
    alphabet_limit: int = setting(
        USUAL_ALPHABET,
        "Corpus",
        "different characters in the vocabulary to learn, the most frequent ones; words with others are "
        "unknown",
        least=1,
    )
    lowercase: bool | None = setting(
        None,
        "Corpus",
        "lower-case and strip accents, for a learned vocabulary (default: as is usual for VARIANT)",
    )
    add_tokens: str | None = setting(
        None, "Corpus", "text file of words, one per line, that become new tokens of MODEL"
    )
    learn_tokens: int | None = setting(
        None,
        "Corpus",
        "words of the training documents that become new tokens of MODEL, those that shorten the text most",
        least=1,
    )

    model: str | None = setting(
        None,
        "Model",
        "folder of a model to start from, with its sizes, vocabulary and weights (default: a new model)",
    )
    variant: str = setting(
        "bert",
        "Model",
        "BERT or the descendant to pre-train, each with its own tokenizer (default with MODEL: its kind)",
        choices=tuple(FAMILIES),
    )
    teacher: str | None = setting(
        None,
        "Model",
        "folder of a teacher, as for DistilBERT; a new model takes its vocabulary and, unless PRESET is "
        "given, its sizes and every second layer",
    )
    preset: str | None = setting(
        None, "Model", f"size of the model (default: {USUAL_PRESET}, or as MODEL)", choices=tuple(PRESETS)
    )
    num_hidden_layers: int | None = setting(
        None, "Model", "layers, if not the preset's", flag="layers", least=1
    )
    hidden_size: int | None = setting(
        None, "Model", "hidden size, if not the preset's", flag="hidden", least=1
    )
    num_attention_heads: int | None = setting(
        None, "Model", "attention heads, if not the preset's (or hidden size / 64)", flag="heads", least=1
    )
    intermediate_size: int | None = setting(
        None,
        "Model",
        "feed-forward size, if not the preset's (or 4 x hidden size)",
        flag="intermediate",
        least=1,
    )
    embedding_size: int | None = setting(
        None,
        "Model",
        "size of a word's vector, in ALBERT and ELECTRA (default: half the hidden size)",
        flag="embedding",
        least=1,
    )
    normalisation: str | None = setting(
        None,
        "Model",
        "in minibert-modern, LayerNorm before each sublayer (pre) or after it (default: pre)",
        choices=NORMALISATIONS,
    )
    positions: str | None = setting(
        None,
        "Model",
        "in minibert-modern, positions as angles (rotary) or as a table (default: rotary)",
        flag="position-kind",
        choices=POSITIONS,
    )
    generator_share: float = setting(
        0.25,
        "Model",
        "in ELECTRA, the generator's share of the discriminator's heads, and so of its sizes",
        least=0.001,
        most=1,
    )
    max_position_embeddings: int | None = setting(
        None, "Model", "longest sequence the model can read, if not the preset's", flag="positions", least=4
    )
    hidden_act: str | None = setting(
        None,
        "Model",
        "activation of the feed-forward layers; gelu is the erf form, gelu_new the tanh form (default: gelu, "
        "or as MODEL)",
        flag="activation",
        choices=tuple(ACTIVATIONS),
    )
    dropout: float | None = setting(
        None,
        "Model",
        "dropout probability of hidden units and attention weights (default: 0, or as MODEL was trained)",
        least=0,
        most=0.99,
    )
    initializer_range: float = setting(
        0.05, "Model", "standard deviation of the initial weights", least=0, most=10
    )
    word_initializer: str = setting(
        "normal",
        "Model",
        "initial word embeddings, random like the other weights or made from counts of the words around each",
        choices=("normal", "counts"),
    )
    attention_initializer: str = setting(
        "normal",
        "Model",
        "initial queries and keys, random like the others or such that half of the heads look at a "
        "neighbour, without or with a head that looks for the same word elsewhere",
        choices=("normal", "neighbours", "same-word"),
    )
    position_initializer: str = setting(
        "normal",
        "Model",
        "initial position embeddings, random like the other weights or sine waves",
        choices=POSITION_INITIALIZERS,
    )

    objective: str | None = setting(
        None,
        "Instances",
        "what is predicted: masked tokens from all others; left-to-right each next token; or permuted, the "
        "last tokens of a random order (default: permuted in XLNet, else masked)",
        choices=OBJECTIVES,
    )
    max_seq_length: int = setting(64, "Instances", "tokens per training sequence, at most", least=8)
    short_seq_prob: float = setting(
        0.1, "Instances", "share of the documents whose sequences are shorter on purpose", least=0, most=1
    )
    masked_lm_prob: float = setting(0.15, "Instances", "share of the tokens to predict", least=0.001, most=1)
    mask_shares: tuple[int, ...] = setting(
        (80, 10, 10),
        "Instances",
        "percent of the tokens to predict that become [MASK], stay as they are, and become any token",
    )
    max_predictions: int = setting(20, "Instances", "tokens to predict per sequence, at most", least=1)
    whole_word_masking: bool = setting(False, "Instances", "mask all subwords of a word or none")
    masking: str = setting(
        "dynamic",
        "Instances",
        "draw new masks in every pass over the corpus, or only DUPE_FACTOR times",
        choices=("dynamic", "fixed"),
    )
    dupe_factor: int = setting(10, "Instances", "passes after which fixed masks and pairs repeat", least=1)
    nsp: bool | None = setting(
        None,
        "Instances",
        "also learn whether the second text of a pair follows the first (NSP) or, in ALBERT, whether the two "
        "are swapped (default: yes in BERT and ALBERT, if tokens are masked)",
    )
    whole_sentences: bool = setting(
        True,
        "Instances",
        "end sequences at the end of a sentence; otherwise, without NSP, anywhere, so that all are full",
    )

    long_seq_length: int | None = setting(
        None,
        "Phases",
        "tokens per sequence in the last steps, at most; held-out text stays at MAX_SEQ_LENGTH (default: "
        "MAX_SEQ_LENGTH in all steps)",
        least=8,
    )
    long_share: float = setting(
        0.1, "Phases", "share of the steps with long sequences, the last ones", least=0, most=1
    )
    long_batch_size: int | None = setting(
        None, "Phases", "long sequences per micro-batch (default: as many tokens as before)", least=1
    )
    long_max_predictions: int | None = setting(
        None,
        "Phases",
        "tokens to predict per long sequence, at most (default: the same share as before)",
        least=1,
    )

    steps: int = setting(6000, "Optimiser", "optimiser steps", least=1)
    learning_rate: float = with_default(RunSettings, "learning_rate", 2e-3)
    beta2: float = with_default(RunSettings, "beta2", 0.98)

    eval_every: int = setting(250, "Report", "steps between evaluations on held-out text", least=1)
    eval_batches: int = setting(
        30,
        "Corpus",
        "held-out batches to evaluate on, at most; each is as large as a step's (BATCH_SIZE x ACCUMULATION)",
        least=1,
    )
    save_every: int = setting(500, "Report", "steps between checkpoints", least=1)
    expect: bool = setting(
        False,
        "Report",
        "draw the loss that such a run should have into loss.png, and say how this one compares",
    )

    graph: bool = setting(True, "Machine", "record the training step and replay it (on a GPU)")
    prepared: str = setting("prepared", "Machine", "folder of vocabularies and prepared corpora, for reuse")
    processes: int | None = setting(
        None, "Machine", "processes that prepare the corpus (default: all cores)", least=1
    )

    def with_sizes(self) -> Self:
        """These settings with the sizes and the vocabulary of ``model``, or the usual ones without a model.

        Raises UserError if there is no such model, or a setting contradicts it.
        """
        if self.teacher is not None and (self._predicts(self.variant) != "masked" or self.family.together):
            raise UserError(
                "a teacher teaches masked words; leave it out, or give another variant or objective"
            )
        if self.teacher is not None:
            self._check_teacher(self.teacher)
        if self.model is None and self.adds_tokens:
            raise UserError(
                "new tokens (add_tokens, learn_tokens) are for a model with a vocabulary: give --model, or "
                "leave them out"
            )
        if self.model is None and self.teacher is not None:
            return self.replace(**self._sizes_of_teacher(self.teacher))._new_sizes()
        return self._new_sizes() if self.model is None else self._sizes_of_model(self.model)

    def _sizes_of_model(self, model: str) -> Self:
        """The settings of a run that starts from this model."""
        for name in INITIALIZERS:
            if getattr(self, name) != "normal":
                raise UserError(f"{name} is for a new model, but {model} has learned; leave it out")
        config = open_config(model)
        self._check_known({f.name for f in fields(config)}, config.model_type)
        if self.variant not in ("bert", config.model_type):
            raise UserError(
                f"variant is {self.variant!r}, but {model} is of type {config.model_type!r}; leave it out"
            )
        objective = self._predicts(config.model_type)
        if config.is_decoder != (objective == "left-to-right"):
            fitting = "left-to-right" if config.is_decoder else "masked"
            raise UserError(
                f"objective is {objective!r}, but the model in {model} has learned with "
                f"{fitting!r}; give --objective {fitting}"
            )
        values: dict[str, Any] = {"tokenizer": model, "vocab_size": config.vocab_size}
        values |= {name: getattr(config, name) for name in SIZES}
        own = {f.name for f in fields(config)} & set(OF_SOME_VARIANTS)
        values |= {name: getattr(config, name) for name in own}
        values["max_position_embeddings"] = config.longest_sequence
        sizes = (config.num_hidden_layers, config.hidden_size)
        has_preset = self.preset is not None and PRESETS[self.preset] == sizes
        for name, fitting in {**values, "preset": self.preset if has_preset else None}.items():
            given = getattr(self, name)
            if given not in (None, fitting):
                raise UserError(f"{name} is {given!r}, but the model in {model} has its own; leave it out")
        return self.replace(**values, **self._decided(config.model_type))

    def _new_sizes(self) -> Self:
        """The settings of a new model, with the usual ones where nothing is given."""
        unsaid = {name: value for name, value in USUAL.items() if getattr(self, name) is None}
        self._check_known(self._config_fields(), self.variant)
        return self.replace(**unsaid, **self._decided(self.variant))

    def _check_known(self, known: set[str], variant: str) -> None:
        """Raise UserError for a setting that only other variants have."""
        for name in OF_SOME_VARIANTS:
            if getattr(self, name) is not None and name not in known:
                raise UserError(f"{name} is no setting of models of type {variant!r}; leave it out")

    @property
    def adds_tokens(self) -> bool:
        """Whether the model to start from gets new tokens."""
        return (self.add_tokens, self.learn_tokens) != (None, None)

    @property
    def _learns_vocabulary(self) -> bool:
        return not (self.tokenizer or self.model or self.teacher)

    def _check_effects(self, variant: str) -> None:
        """Raise UserError for a setting that would change nothing."""
        members, models = FAMILIES[variant], f"models of type {variant!r}"
        in_vain: dict[str, str] = {}
        if self._predicts(variant) != "masked":
            in_vain |= dict.fromkeys(("mask_shares", "whole_word_masking"), "no tokens are masked")
        if not self._learns_vocabulary:
            in_vain |= dict.fromkeys(("alphabet_limit", "lowercase"), "no vocabulary is learned")
        elif not has_alphabet(variant):
            in_vain["alphabet_limit"] = f"{models} spell every character in bytes"
        if not members.together:
            in_vain["generator_share"] = f"{models} have no generator"
        if not members.position_table and self.positions != "learned":
            in_vain["position_initializer"] = f"{models} have no table of positions"
            in_vain["attention_initializer"] = f"{in_vain['position_initializer']}, in which heads could look"
        if self.long_seq_length is None:
            long = ("long_share", "long_batch_size", "long_max_predictions")
            in_vain |= dict.fromkeys(long, "no long_seq_length is given")
        self.refuse(in_vain)

    def without_effect(self) -> dict[str, str]:
        """The settings that change nothing beside the others, and why: see `RunSettings`."""
        found = super().without_effect()
        if self.model is not None:
            found["initializer_range"] = f"the model in {self.model} has its weights"
            found["generator_share"] = f"the model in {self.model} has its generator"
        elif self.tokenizer is not None and self.teacher is None:
            found["vocab_size"] = f"the vocabulary is that in {self.tokenizer}"
        limits = ("max_predictions", "long_max_predictions")
        if self.objective == "left-to-right":
            found |= dict.fromkeys(("masked_lm_prob", *limits), "every next token is predicted")
        elif self.objective == "permuted" or self.family.permuted:
            found |= dict.fromkeys(limits, "the share masked_lm_prob of the tokens is predicted")
        if self.attention_initializer != "normal":
            found["position_initializer"] = "the heads that look at neighbours need waves of their own there"
        if not self.corpus:
            found["layout"] = "without a corpus the text is the documentation"
        if self.masking == "dynamic":
            found["dupe_factor"] = "masking is dynamic: no pass repeats another"
        if not self.whole_sentences:
            found["short_seq_prob"] = "without whole_sentences all sequences are full"
        return found

    def _check_teacher(self, teacher: str) -> None:
        """Raise UserError if this is no model that sees both sides of a masked word."""
        config = open_config(teacher)
        if config.is_decoder or FAMILIES[config.model_type].permuted:
            learned = "left to right" if config.is_decoder else "from permuted text"
            raise UserError(
                f"the teacher in {teacher} has learned {learned}; give one that has learned from masked words"
            )

    def _sizes_of_teacher(self, teacher: str) -> dict[str, Any]:
        """What a new model has from its teacher where nothing else is given.

        Raises UserError if a vocabulary is given that is not the teacher's.
        """
        config = open_config(teacher)
        values: dict[str, Any] = {"tokenizer": teacher, "vocab_size": config.vocab_size}
        for name, its in values.items():
            if getattr(self, name) not in (None, its):
                raise UserError(
                    f"{name} is {getattr(self, name)!r}, but a student has its teacher's; leave it out"
                )
        if self.preset is None:
            sizes = {name: getattr(config, name) for name in SIZES}
            sizes["num_hidden_layers"] = max(1, config.num_hidden_layers // 2)
            sizes["max_position_embeddings"] = config.longest_sequence
            both = self._config_fields() & {f.name for f in fields(config)}
            sizes |= {name: getattr(config, name) for name in both & set(OF_SOME_VARIANTS)}
            values |= {name: size for name, size in sizes.items() if getattr(self, name) is None}
        return values

    def _decided(self, variant: str) -> dict[str, Any]:
        """What the variant decides unless it is given."""
        self._check_effects(variant)
        lowercase = chosen_lowercase(variant, self.lowercase) if self._learns_vocabulary else None
        return {"variant": variant, "lowercase": lowercase, "nsp": self._learns_pairs(variant)}

    def _learns_pairs(self, variant: str) -> bool:
        """Whether pairs of texts are learned, too. Raises UserError if they cannot be."""
        objective = self._predicts(variant)
        if objective != "masked" and FAMILIES[variant].together:
            raise UserError(
                f"objective is {objective!r}, but models of type {variant!r} learn from masked tokens; "
                "leave it out"
            )
        hindrances = {
            f"{objective} prediction": objective != "masked",
            "learning from a teacher": self.teacher is not None,
            f"a model of type {variant!r}": BertForPreTraining not in FAMILIES[variant].models,
        }
        possible = not any(hindrances.values())
        if self.nsp and not possible:
            what = next(name for name, hinders in hindrances.items() if hinders)
            raise UserError(f"{what} has no part about pairs of texts; set nsp to false (--no-nsp)")
        return possible if self.nsp is None else self.nsp

    def _predicts(self, variant: str) -> str:
        """The objective. Raises UserError for one that the variant's models cannot have."""
        permuted = FAMILIES[variant].permuted
        objective = self.objective or ("permuted" if permuted else "masked")
        if (objective == "permuted") != permuted:
            raise UserError(
                f"objective is {objective!r}, but "
                + (
                    "an XLNet learns from permuted text"
                    if permuted
                    else "only XLNet learns from permuted text"
                )
                + "; leave it out"
            )
        return objective

    @property
    def predicts(self) -> str:
        """The objective: what is given or, after `with_sizes`, what the variant's is."""
        return self._predicts(self.variant)

    @property
    def learned_of_pairs(self) -> str:
        """What pairs of texts teach the variant, in words."""
        return "in order or swapped" if self.family.sentence_order else "NSP"

    @property
    def kind(self) -> str:
        """What is trained, in a word or two for the name of the run."""
        if self.model is not None:
            return "continued"
        size = self.preset or USUAL_PRESET
        return size if self.variant == "bert" else f"{self.variant}-{size}"

    @property
    def family(self) -> Family:
        """The configuration and the models of the ``variant``."""
        return FAMILIES[self.variant]

    def _config_fields(self) -> set[str]:
        return {f.name for f in fields(self.family.config)}

    @property
    def vocabulary_size(self) -> int:
        """Tokens in the vocabulary to learn or, after `with_sizes` for a model, in that of the model."""
        return self.vocab_size or USUAL_VOCAB_SIZE

    def model_config(self, vocab_size: int, pad_token_id: int = 0) -> BertConfig:
        """That of ``model``, or the preset with the sizes that were changed, for a vocabulary of this size.

        Raises UserError if the sizes do not fit together, or the sequences do not fit the model's positions.
        """
        if self.model is None:
            config = self._new_config(vocab_size, pad_token_id)
        else:
            config = open_config(self.model, **self.changed_dropout)
            config = config.replace(vocab_size=max(vocab_size, config.vocab_size))  # with new tokens
        for name in ("max_seq_length", "long_seq_length"):
            length = getattr(self, name) or 0
            if length > config.longest_sequence:
                more = "raise max_position_embeddings (--positions)"
                if self.model is not None:
                    export = f"minibert export {self.model} --output longer --positions {length}"
                    more = f"make a longer model:  {export}"
                raise UserError(
                    f"{name} is {length}, but the model has only {config.longest_sequence} positions; lower "
                    f"{name}, or {more}"
                )
        return config

    @property
    def changed_dropout(self) -> dict[str, float]:
        """What ``dropout`` changes in the configuration of ``model``."""
        names = () if self.dropout is None else ("hidden_dropout_prob", "attention_probs_dropout_prob")
        return dict.fromkeys(names, self.dropout or 0.0)

    def _new_config(self, vocab_size: int, pad_token_id: int) -> BertConfig:
        sizes = {name: getattr(self, name) for name in (*SIZES, *OF_SOME_VARIANTS)}
        config = self.family.config.preset(
            self.preset or USUAL_PRESET,
            vocab_size=vocab_size,
            pad_token_id=pad_token_id,
            is_decoder=self.predicts == "left-to-right",
            hidden_dropout_prob=self.dropout or 0.0,
            attention_probs_dropout_prob=self.dropout or 0.0,
            initializer_range=self.initializer_range,
            position_initializer=self.position_initializer,
            **{name: size for name, size in sizes.items() if size is not None},
        )
        if self.embedding_size is None and "embedding_size" in self._config_fields():
            config = config.replace(embedding_size=max(1, config.hidden_size // 2))
        if self.max_position_embeddings is not None:  # tokens, besides what a family needs for padding
            needed = 2 * self.max_position_embeddings - config.longest_sequence
            config = config.replace(max_position_embeddings=needed)
        return config

    @property
    def split(self) -> dict[str, Any]:
        """Which documents are held out, as arguments of ``prepare_corpus``."""
        seed = self.seed if self.held_out_seed is None else self.held_out_seed
        return {"held_out": self.held_out, "seed": seed}

    def instance_settings(self) -> InstanceSettings:
        """How the corpus is cut and masked, except in the long sequences."""
        return InstanceSettings(
            objective=self.predicts,
            max_seq_length=self.max_seq_length,
            max_predictions=self.max_predictions,
            masked_lm_prob=self.masked_lm_prob,
            mask_shares=self.mask_shares,
            short_seq_prob=self.short_seq_prob,
            whole_word_masking=self.whole_word_masking,
            next_sentence=self._learns_pairs(self.variant),
            sentence_order=self.family.sentence_order,
            whole_sentences=self.whole_sentences,
            masking=self.masking,
            dupe_factor=self.dupe_factor,
        )

    def phases(self) -> list[Phase]:
        """The stretches of the run: all steps, or those before the long sequences and those with them.

        A long micro-batch has B · S / S' sequences, so that it has as many tokens as the others, and in each
        sequence P · S' / S predictions. Raises UserError if B · S / S' is not whole, or S' ≤ S.
        """
        instances = self.instance_settings()
        border = self.steps - round(self.long_share * self.steps)
        if self.long_seq_length is None or border == self.steps:
            return [Phase(0, self.steps, self.batch_size, instances)]
        long_instances = dataclasses.replace(
            instances,
            max_seq_length=self.long_seq_length,
            max_predictions=self.long_max_predictions
            or round(self.max_predictions * self.long_seq_length / self.max_seq_length),
        )
        phases = [
            Phase(0, border, self.batch_size, instances),
            Phase(border, self.steps, self._long_batch_size(self.long_seq_length), long_instances),
        ]
        return phases[border == 0 :]

    def _long_batch_size(self, long: int) -> int:
        short = self.max_seq_length
        if long <= short:
            raise UserError(f"long_seq_length is {long}; it must be longer than max_seq_length, {short}")
        if self.long_batch_size is not None:
            return self.long_batch_size
        if self.batch_size * short % long:
            raise UserError(
                f"{self.batch_size} sequences of {short} tokens do not add up to whole ones of {long}; give "
                f"long_batch_size, or a batch_size that is a multiple of {long // math.gcd(short, long)}"
            )
        return self.batch_size * short // long

    def begun_phases(self, step: int) -> list[list[int]]:
        """What the first ``step`` steps were like, as JSON: start, batch size, S and P of each phase.

        A phase has begun when it has taken a step.
        """
        return [
            [phase.start, phase.batch_size, phase.instances.max_seq_length, phase.instances.max_predictions]
            for phase in self.phases()
            if phase.start < step
        ]

    def check_phases(self, step: int, begun: list[list[int]]) -> None:
        """Raise UserError if the first ``step`` steps of a run were not taken as these settings say.

        ``begun`` is what ``begun_phases`` gave when they were taken.
        """
        if begun != self.begun_phases(step):
            settings = "  ".join(
                f"{f.name}={getattr(self, f.name)}" for f in fields(self) if "long_" in f.name
            )
            raise UserError(
                f"{self.folder} has taken {step:,} steps, but not with {settings}; long sequences can be "
                "changed only before their first step: resume with the same settings, or from an earlier "
                "checkpoint"
            )
