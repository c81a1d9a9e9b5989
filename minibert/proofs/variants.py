"""Gradient checks of BERT's descendants: what each does otherwise, within whole models."""

from functools import partial

from minibert.bert.models import BertForMaskedLM
from minibert.devices import Device
from minibert.gradcheck import Case, Draws, model_case
from minibert.proofs.models import Trained, embeddings_case, outputs_case, zeros
from minibert.proofs.small_bert import (
    BATCH,
    CLASSES,
    CONFIG,
    LABELS,
    NEXT_SENTENCE_LABEL,
    SPAN_ZEROS,
    SPANS,
    TAGS,
    with_twin,
)
from minibert.variants.albert import AlbertConfig, AlbertForPreTraining, AlbertForTokenClassification
from minibert.variants.distilbert import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
)
from minibert.variants.distilbert_training import MaskedWordDistillation
from minibert.variants.electra import (
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
)
from minibert.variants.electra_training import ElectraGeneratorAndDiscriminator, generator_config
from minibert.variants.modern import (
    ModernConfig,
    ModernForMaskedLM,
    ModernForPreTraining,
    ModernForQuestionAnswering,
    ModernModel,
)
from minibert.variants.roberta import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
)

REPLACED = [[0, 0, 1, 0, 0, 1], [-100, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]]  # that at padding must not count


def variant_cases(device: Device) -> list[Case]:
    """Models of every family as they are trained: dropout on, padding, E ≠ H, frozen layers."""
    draw = Draws(device, 20)  # with 17, one gradient was so small beside the others that rounding showed
    sizes = CONFIG.to_dict()
    roberta = RobertaConfig.from_dict(sizes | {"max_position_embeddings": 8})  # padding takes one
    distilbert = DistilBertConfig.from_dict(sizes)
    albert, electra = (
        kind.from_dict(sizes | {"embedding_size": 6}) for kind in (AlbertConfig, ElectraConfig)
    )
    modern = ModernConfig.from_dict(sizes)
    classes, masked = {"labels": CLASSES}, {"labels": LABELS}
    pairs = {"next_sentence_label": NEXT_SENTENCE_LABEL}
    three = {"num_labels": 3}
    trained: list[Trained] = [
        ("RobertaForMaskedLM", RobertaForMaskedLM, roberta, masked),
        ("  classes", RobertaForSequenceClassification, roberta.replace(**three), classes),
        ("  answers", RobertaForQuestionAnswering, roberta, SPANS),
        ("DistilBertForMaskedLM", DistilBertForMaskedLM, distilbert, masked),
        ("  classes", DistilBertForSequenceClassification, distilbert.replace(**three), classes),
        (
            "  classes from two layers",
            DistilBertForSequenceClassification,
            distilbert.replace(**three, feature_layers=[-2, -1]),
            classes,
        ),
        ("AlbertForPreTraining", AlbertForPreTraining, albert, masked | pairs),
        ("  tags", AlbertForTokenClassification, albert.replace(**three), {"labels": TAGS}),
        ("ElectraForMaskedLM", ElectraForMaskedLM, electra, masked),
        ("ElectraForPreTraining", ElectraForPreTraining, electra, {"labels": REPLACED}),
        ("  E = H", ElectraForPreTraining, electra.replace(embedding_size=8), {"labels": REPLACED}),
        ("  classes", ElectraForSequenceClassification, electra.replace(**three), classes),
        ("ModernForPreTraining", ModernForPreTraining, modern, masked | pairs),
        ("  post-LN", ModernForPreTraining, modern.replace(normalisation="post"), masked | pairs),
        ("  learned positions", ModernForPreTraining, modern.replace(positions="learned"), masked | pairs),
        ("  left to right", ModernForMaskedLM, modern.replace(is_decoder=True), masked),
        ("  answers", ModernForQuestionAnswering, modern, SPANS),
    ]
    cases = []
    both = partial(ElectraGeneratorAndDiscriminator, electra, generator_config(electra, 0.5))
    pair, pair_twin = with_twin(partial(both, replaced_weight=2.0, device=device), draw)
    cases.append(model_case("ElectraGeneratorAndDiscriminator", pair, BATCH | masked, zeros(pair), pair_twin))
    cases += [_distillation_case(distilbert, device, draw, weight) for weight in (1.0, 0.0)]
    for what, model_class, config, targets in trained:
        model, twin = with_twin(partial(model_class, config, device=device), draw)
        unused = SPAN_ZEROS if targets is SPANS else ()
        cases.append(model_case(what, model, BATCH | targets, zeros(model, unused), twin))
    inputs_embeds = (RobertaForMaskedLM, roberta), (ElectraForMaskedLM, electra), (ModernForMaskedLM, modern)
    for kind, config in inputs_embeds:
        cases.append(embeddings_case(kind, config, device, draw))
    discriminator, inside = partial(ElectraForPreTraining, electra, device=device), "last_hidden_state"
    for what, names, batch in (
        ("ElectraForPreTraining, log odds", ["logits"], {"labels": REPLACED}),
        ("  all outputs", [inside, "loss", "logits"], {"labels": REPLACED}),
    ):
        cases.append(outputs_case(what, discriminator, draw, names, (), **batch))
    encoder = partial(ModernModel, modern, device=device)
    names = [f"hidden_states[{i}]" for i in range(3)] + [f"attentions[{i}]" for i in range(2)]
    cases.append(outputs_case("ModernModel, all outputs", encoder, draw, [*names, "pooler_output"], ()))
    return cases


def _distillation_case(config: DistilBertConfig, device: Device, draw: Draws, cosine_weight: float) -> Case:
    """A student and its teacher, whose hidden size is another where there is no cosine."""
    other = CONFIG if cosine_weight else CONFIG.replace(hidden_size=12, num_attention_heads=3)
    teacher, teacher_twin = with_twin(partial(BertForMaskedLM, other, device=device), draw)
    for (_, value), (_, complex_value) in zip(
        teacher.named_parameters(), teacher_twin.named_parameters(), strict=True
    ):
        complex_value.value[...] = value.value
    student, twin = (
        MaskedWordDistillation(model, its, cosine_weight=cosine_weight)
        for model, its in zip(
            with_twin(partial(DistilBertForMaskedLM, config, device=device), draw),
            (teacher, teacher_twin),
            strict=True,
        )
    )
    what = "MaskedWordDistillation" if cosine_weight else "  without the cosine"
    return model_case(what, student, BATCH | {"labels": LABELS}, zeros(student), twin)
