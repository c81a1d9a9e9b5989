"""Our side of every comparison."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from parity.cases import OUTPUT_DERIVATIVES, Case, draw_weights, named_gradients, numbered

import minibert

OUTPUTS = ("loss", "mlm_loss", "nsp_loss", "prediction_logits", "seq_relationship_logits", "pooler_output")
OUTPUTS += ("logits", "start_logits", "end_logits")


def our_model(case: Case, dtype: str) -> Any:
    """The case's model of ours, dropout off, with the case's weights."""
    model = getattr(minibert, case.model)(minibert.BertConfig(**case.config), dtype=dtype)
    parameters = dict(model.named_parameters())
    weights = draw_weights({name: parameter.shape for name, parameter in parameters.items()}, case.seed)
    for name, parameter in parameters.items():
        parameter.value[...] = weights[name]
    model.eval()
    return model


def our_results(model: Any, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All that ours computes from a batch: outputs, hidden states, attention maps, losses, gradients."""
    inputs = {name: array for name, array in batch.items() if name not in OUTPUT_DERIVATIVES}
    derivatives = {name: batch[name].astype(model.dtype) for name in OUTPUT_DERIVATIVES if name in batch}
    outputs, cache = model.forward(**inputs, return_hidden_states=True, return_attentions=True)
    model.zero_grad()
    model.backward(cache, **derivatives)
    results = {name: getattr(outputs, name) for name in OUTPUTS if getattr(outputs, name, None) is not None}
    if not isinstance(model, minibert.BertModel):
        results.pop("pooler_output", None)  # transformers keeps it to itself
    results |= numbered("hidden_states", outputs.hidden_states) | numbered("attentions", outputs.attentions)
    return results | named_gradients(model, {name: p.grad for name, p in model.named_parameters()})
