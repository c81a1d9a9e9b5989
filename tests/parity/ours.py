"""Our side of every comparison."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from parity.cases import OUTPUT_DERIVATIVES, Case, draw_weights, named_gradients, numbered
from parity.two_streams import our_streams

import minibert
from minibert.folders.names import name_in_file
from minibert.nn import Context
from minibert.variants import albert, distilbert, electra, roberta, xlnet

FAMILIES = {
    "Bert": minibert,
    "Roberta": roberta,
    "DistilBert": distilbert,
    "Albert": albert,
    "Electra": electra,
    "XLNet": xlnet,
}
OUTPUTS = ("loss", "mlm_loss", "nsp_loss", "prediction_logits", "seq_relationship_logits", "pooler_output")
OUTPUTS += ("logits", "start_logits", "end_logits")


def our_class(case: Case) -> Any:
    """The class of the case's model."""
    return getattr(FAMILIES[case.family], case.model)


def our_model(case: Case, dtype: str) -> Any:
    """The case's model of ours, dropout off, with the case's weights."""
    kind = our_class(case)
    model = kind(kind.config_class(**case.config), dtype=dtype)
    parameters = dict(in_files(model))
    weights = draw_weights({name: parameter.shape for name, parameter in parameters.items()}, case.seed)
    for name, parameter in parameters.items():
        parameter.value[...] = weights[name]
    model.eval()
    return model


def in_files(model: Any) -> list[tuple[str, Any]]:
    """The parameters of a model under the names that transformers has for them."""
    return [(name_in_file(name, model.tensor_names), p) for name, p in model.named_parameters()]


def our_results(
    model: Any, batch: Mapping[str, np.ndarray], *, padding: bool = True
) -> dict[str, np.ndarray]:
    """All that ours computes from a batch: outputs, hidden states, attention maps, losses, gradients.

    Without padding there is only the last of the hidden states, and there are no attention maps.
    """
    inputs = {name: array for name, array in batch.items() if name not in OUTPUT_DERIVATIVES}
    derivatives = {name: batch[name].astype(model.dtype) for name in OUTPUT_DERIVATIVES if name in batch}
    inside = {"return_hidden_states": padding, "return_attentions": padding}
    outputs, cache = model.forward(**inputs, **inside, context=Context(padding=padding))
    model.zero_grad()
    model.backward(cache, **derivatives)
    results = {name: getattr(outputs, name) for name in OUTPUTS if getattr(outputs, name, None) is not None}
    if not isinstance(model, minibert.BertModel):
        results.pop("pooler_output", None)  # transformers keeps it to itself
    if not padding:
        results[f"hidden_states {model.config.num_hidden_layers}"] = outputs.last_hidden_state
    elif "target_mapping" in batch:
        results |= our_streams(outputs.hidden_states, outputs.attentions, batch)
    else:
        results |= numbered("hidden_states", outputs.hidden_states)
        results |= numbered("attentions", outputs.attentions)
    return results | named_gradients(model, {name: p.grad for name, p in in_files(model)})
