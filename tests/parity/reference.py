"""The other side of every comparison: transformers' models, and the optimisers written out, in torch."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from parity.cases import (
    OUTPUT_DERIVATIVES,
    TASKS,
    Case,
    draw_weights,
    named_gradients,
    numbered,
    reference_settings,
)
from parity.two_streams import their_streams
from torch.nn import functional

torch.set_num_threads(1)  # the models are small: threads would wait for each other most of the time


def reference_model(case: Case, dtype: str) -> Any:
    """The case's model of transformers, dropout off, with the case's weights."""
    config_class = getattr(transformers, f"{case.family}Config")
    config = config_class(**reference_settings(case), attn_implementation="eager")  # it keeps attention maps
    model = getattr(transformers, case.model)(config).to(getattr(torch, dtype)).eval()
    parameters = dict(model.named_parameters())
    weights = draw_weights({name: tuple(p.shape) for name, p in parameters.items()}, case.seed)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(weights[name]))
    if case.family == "XLNet" and dtype == "float64":
        compute_distances_in_float64(model)
    return model


def compute_distances_in_float64(model: Any) -> None:
    """XLNet's waves of the distances, which transformers computes in float32, whatever the model's dtype."""
    encoder = getattr(model, "transformer", model)
    original = encoder.relative_positional_encoding

    def exact(*args: Any, **kwargs: Any) -> Any:
        right = torch.Tensor.float
        torch.Tensor.float = torch.Tensor.double
        try:
            return original(*args, **kwargs)
        finally:
            torch.Tensor.float = right

    encoder.relative_positional_encoding = exact


def reference_results(model: Any, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All that transformers computes from a batch, under the names of ``ours.our_results``."""
    outputs = forward(model, batch, output_hidden_states=True, output_attentions=True)
    model.zero_grad()
    if "dlast_hidden_state" in batch:
        given = {name[1:]: torch.from_numpy(batch[name]) for name in OUTPUT_DERIVATIVES if name in batch}
        results = {name: getattr(outputs, name) for name in given}
        torch.autograd.backward(list(results.values()), [given[name].to(model.dtype) for name in results])
        del results["last_hidden_state"]  # it is among the hidden states
    elif isinstance(model, transformers.ElectraForPreTraining):
        # The loss itself is one of float32 labels, whatever the model's type.
        real = torch.from_numpy(batch["attention_mask"]) > 0
        labels = torch.from_numpy(batch["labels"])[real].to(model.dtype)
        loss = functional.binary_cross_entropy_with_logits(outputs.logits[real], labels)
        results = {"logits": outputs.logits, "loss": loss}
        loss.backward()
    else:
        if type(model).__name__.endswith(TASKS):
            own = {name: getattr(outputs, name, None) for name in ("logits", "start_logits", "end_logits")}
            results = {name: logits for name, logits in own.items() if logits is not None}
        else:
            results = _losses_and_logits(outputs, batch)
        results["loss"] = outputs.loss
        outputs.loss.backward()
    if "target_mapping" in batch:
        results |= their_streams(outputs.hidden_states, outputs.attentions, batch)
    else:
        results |= numbered("hidden_states", outputs.hidden_states)
        results |= numbered("attentions", outputs.attentions)
    results |= named_gradients(model, {name: p.grad for name, p in model.named_parameters()})
    return {name: tensor.detach().numpy() for name, tensor in results.items()}


def forward(model: Any, batch: Mapping[str, np.ndarray], **options: Any) -> Any:
    """Transformers' forward for a batch of ours; the next-sentence model calls its label ``labels``."""
    inputs = {name: torch.from_numpy(a) for name, a in batch.items() if name not in OUTPUT_DERIVATIVES}
    if isinstance(model, transformers.XLNetPreTrainedModel):  # which computes with them
        for name in {"attention_mask", "perm_mask", "target_mapping"} & inputs.keys():
            inputs[name] = inputs[name].to(model.dtype)
    if inputs.get("labels", torch.zeros(1, dtype=int)).is_floating_point():
        inputs["labels"] = inputs["labels"].to(model.dtype)  # those of a regression
    if isinstance(model, transformers.BertForNextSentencePrediction):
        inputs["labels"] = inputs.pop("next_sentence_label")
    if isinstance(model, transformers.AlbertForPreTraining) and "next_sentence_label" in inputs:
        inputs["sentence_order_label"] = inputs.pop("next_sentence_label")
    if isinstance(model, transformers.DistilBertPreTrainedModel):
        del inputs["token_type_ids"]
    return model(**inputs, **options)


def _losses_and_logits(outputs: Any, batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Each head's logits, at the labelled positions only, and its loss; transformers has only their sum."""
    results = {}
    only = getattr(outputs, "logits", None)  # of a model with one head
    if "labels" in batch:
        labels = torch.from_numpy(batch["labels"])
        logits = (outputs.prediction_logits if only is None else only)[labels != -100]  # (N, V)
        results["prediction_logits"] = logits
        results["mlm_loss"] = functional.cross_entropy(logits, labels[labels != -100])
    if "next_sentence_label" in batch:
        pair_logits = getattr(outputs, "sop_logits", None)  # of ALBERT
        pair_logits = outputs.seq_relationship_logits if only is None and pair_logits is None else pair_logits
        logits = pair_logits if only is None else only  # (B, 2)
        results["seq_relationship_logits"] = logits
        results["nsp_loss"] = functional.cross_entropy(logits, torch.from_numpy(batch["next_sentence_label"]))
    return results


class BertAdam(torch.optim.Optimizer):
    """AdamWeightDecayOptimizer of google-research/bert (optimization.py): Adam without bias correction."""

    def __init__(self, groups: Iterable, **defaults: Any):
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self) -> None:
        """m = β₁m + (1 − β₁)g, v = β₂v + (1 − β₂)g², p −= lr · (m / (√v + ε) + λp)."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                mean, variance = state.get("mean", 0.0), state.get("variance", 0.0)
                mean = state["mean"] = beta1 * mean + (1 - beta1) * parameter.grad
                variance = state["variance"] = beta2 * variance + (1 - beta2) * parameter.grad.square()
                update = mean / (variance.sqrt() + group["eps"]) + group["weight_decay"] * parameter
                parameter -= group["lr"] * update


def original_schedule(optimiser: torch.optim.Optimizer, warmup: int, steps: int) -> Any:
    """The learning rate of google-research/bert: one line up from step 0, and one down from step 0."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: step / warmup if step < warmup else 1 - step / steps
    )


def trapezoid_schedule(optimiser: torch.optim.Optimizer, warmup: int, steps: int) -> Any:
    """transformers' "warm-up, stable, decay", with the last two fifths of the steps to decay in."""
    return transformers.get_wsd_schedule(
        optimiser, warmup, round(0.4 * steps), num_training_steps=steps, decay_type="linear"
    )


SCHEDULES = {
    "original": original_schedule,
    "triangle": transformers.get_linear_schedule_with_warmup,
    "trapezoid": trapezoid_schedule,
    "cosine": transformers.get_cosine_schedule_with_warmup,
}


def train(
    model: Any,
    batches: Sequence[Mapping[str, np.ndarray]],
    schedule: str,
    *,
    warmup: int,
    peak: float,
    bias_correction: bool,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    clip_norm: float,
) -> list[float]:
    """Train a model of transformers, a step a batch; returns the loss of every step, before its update."""
    groups = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        groups["bias" in name or "LayerNorm" in name]["params"].append(parameter)
    adam = torch.optim.AdamW if bias_correction else BertAdam
    optimiser = adam(groups, lr=peak, betas=betas, eps=eps)
    scheduler = SCHEDULES[schedule](optimiser, warmup, len(batches))
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        loss = forward(model, batch).loss
        loss.backward()
        _clip([parameter.grad for parameter in model.parameters()], clip_norm)
        optimiser.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def _clip(gradients: list[torch.Tensor], clip_norm: float) -> None:
    """As TensorFlow does: exactly. torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6."""
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient in gradients:
        gradient *= clip_norm / torch.clamp(norm, min=clip_norm)
