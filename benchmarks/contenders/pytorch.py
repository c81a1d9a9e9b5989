"""The fastest BERT that we could write in PyTorch.

As in ours, the vocabulary is scored only where a word is masked, the last layer is computed only where a head
reads it, and one product makes queries, keys and values. On top of that, what PyTorch offers:
``scaled_dot_product_attention``, the fused AdamW, ``torch.compile``. No attention mask, as there is no
padding (ours always has one).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._inductor.compile_fx  # torch.compile would import it later: code, not memory of the model
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.inputs import IGNORED, pretraining_batch, read_config
from benchmarks.worker import Contender

Tensors = dict[str, Tensor]  # of a pretrained folder, by Hugging Face's names


def linear(tensors: Tensors, *names: str) -> nn.Linear:
    """A linear map with the weights of that name; of several names, their outputs side by side."""
    weight, bias = (torch.cat([tensors[f"{name}.{part}"] for name in names]) for part in ("weight", "bias"))
    module = nn.Linear(weight.shape[1], weight.shape[0])
    module.weight, module.bias = nn.Parameter(weight), nn.Parameter(bias)
    return module


def norm(tensors: Tensors, name: str, eps: float) -> nn.LayerNorm:
    """A LayerNorm with the weights of that name."""
    weight = tensors[f"{name}.weight"]
    module = nn.LayerNorm(weight.shape, eps)
    module.weight, module.bias = nn.Parameter(weight.clone()), nn.Parameter(tensors[f"{name}.bias"].clone())
    return module


class Layer(nn.Module):
    """One layer of the encoder."""

    def __init__(self, config: SimpleNamespace, tensors: Tensors, name: str):
        super().__init__()
        self.heads = config.num_attention_heads
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        self.qkv = linear(tensors, *(f"{name}.attention.self.{part}" for part in ("query", "key", "value")))
        self.attended = linear(tensors, f"{name}.attention.output.dense")
        self.attended_norm = norm(tensors, f"{name}.attention.output.LayerNorm", config.layer_norm_eps)
        self.up = linear(tensors, f"{name}.intermediate.dense")
        self.down = linear(tensors, f"{name}.output.dense")
        self.norm = norm(tensors, f"{name}.output.LayerNorm", config.layer_norm_eps)

    def forward(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """x (B, S, H) → (B, S, H) or, at R places b·S + s, (R, H)."""
        B, S, H = x.shape
        q, k, v = self.qkv(x).view(B, S, 3, self.heads, H // self.heads).permute(2, 0, 3, 1, 4)
        probability = self.attention_dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=probability)  # (B, A, S, D)
        context = context.transpose(1, 2).reshape(B, S, H)
        if read is not None:
            context, x = (each.reshape(-1, H).index_select(0, read) for each in (context, x))
        context = self.attended(context)
        x = self.attended_norm(x + F.dropout(context, self.hidden_dropout, self.training))
        wide = self.down(F.gelu(self.up(x)))
        return self.norm(x + F.dropout(wide, self.hidden_dropout, self.training))


class Encoder(nn.Module):
    """Embeddings and L layers."""

    def __init__(self, config: SimpleNamespace, tensors: Tensors, prefix: str = ""):
        super().__init__()
        name = f"{prefix}embeddings"
        self.word, self.position, self.token_type = (
            nn.Parameter(tensors[f"{name}.{table}_embeddings.weight"].clone())
            for table in ("word", "position", "token_type")
        )
        self.norm = norm(tensors, f"{name}.LayerNorm", config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob
        self.layers = nn.ModuleList(
            Layer(config, tensors, f"{prefix}encoder.layer.{i}") for i in range(config.num_hidden_layers)
        )

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, read: Tensor | None = None) -> Tensor:
        """Ids (B, S) → hidden states (B, S, H) or, at R places b·S + s, (R, H)."""
        x = F.embedding(input_ids, self.word) + F.embedding(token_type_ids, self.token_type)
        x = self.norm(x + self.position[: input_ids.shape[1]])
        x = F.dropout(x, self.dropout, self.training)
        *others, last = self.layers
        for layer in others:
            x = layer(x)
        return last(x, read)


class Pretraining(nn.Module):
    """The encoder and both heads."""

    def __init__(self, config: SimpleNamespace, tensors: Tensors):
        super().__init__()
        predictions = "cls.predictions"
        self.encoder = Encoder(config, tensors, "bert.")
        self.transform = linear(tensors, f"{predictions}.transform.dense")
        self.transform_norm = norm(tensors, f"{predictions}.transform.LayerNorm", config.layer_norm_eps)
        self.bias = nn.Parameter(tensors[f"{predictions}.bias"].clone())
        self.pooler = linear(tensors, "bert.pooler.dense")
        self.relation = linear(tensors, "cls.seq_relationship")

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        read: Tensor,
        masked_rows: Tensor,
        first_rows: Tensor,
        labels: Tensor,
        is_random: Tensor,
    ) -> Tensor:
        """The loss of both heads.

        Ids (B, S); the R places that are read; which of these are masked (N,), and which are the first of a
        text (B,); the labels (N,), and is_random (B,).
        """
        x = self.encoder(input_ids, token_type_ids, read)  # (R, H)
        masked = x[masked_rows]  # (N, H)
        masked = self.transform_norm(F.gelu(self.transform(masked)))
        scores = F.linear(masked, self.encoder.word, self.bias)  # (N, V)
        relation = self.relation(torch.tanh(self.pooler(x[first_rows])))  # (B, 2)
        return F.cross_entropy(scores, labels) + F.cross_entropy(relation, is_random)


def tensors_of(batch: dict[str, np.ndarray]) -> Tensors:
    """The same batch as tensors."""
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def training_functions(
    model: nn.Module, loss: Callable[[], Tensor], optimiser: torch.optim.Optimizer
) -> Contender:
    """What a training step is in PyTorch: ``step``, and the ``loss`` without dropout to compare."""

    def step(_: int) -> None:
        optimiser.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        value.item()

    def loss_without_dropout() -> float:
        model.eval()
        with torch.no_grad():
            value = loss().item()
        model.train()
        return value

    return {"step": step, "loss": loss_without_dropout}


def prepare(
    folder: str, batch_size: int, length: int, device: str = "cpu"
) -> tuple[Pretraining, tuple[Tensor, ...], torch.optim.Optimizer]:
    """The model in a pretrained folder, a batch for its forward, and its optimiser."""
    config = read_config(folder)
    model = Pretraining(config, load_file(Path(folder) / "model.safetensors")).to(device)
    batch = tensors_of(pretraining_batch(config.vocab_size, batch_size, length))
    labels = batch["labels"].reshape(-1)
    (positions,) = torch.nonzero(labels != IGNORED, as_tuple=True)
    first = torch.arange(batch_size) * length
    read = torch.cat([positions, first]).unique()  # in order
    inputs = (
        batch["input_ids"],
        batch["token_type_ids"],
        read,
        torch.searchsorted(read, positions),
        torch.searchsorted(read, first),
        labels[positions],
        batch["next_sentence_label"],
    )
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-5, fused=True)
    return model, tuple(tensor.to(device) for tensor in inputs), optimiser


def training_step(
    folder: str, batch_size: int, length: int, compile: dict[str, Any] | None, autocast: bool = False
) -> Contender:
    """A step of the model in a pretrained folder, eager, or with these arguments of ``torch.compile``.

    It is in float32, or under autocast to bfloat16.
    """
    model, inputs, optimiser = prepare(folder, batch_size, length)
    run = model if compile is None else torch.compile(model, **compile)

    return training_functions(model, partial(loss_of, run, inputs, "cpu", autocast), optimiser)


def loss_of(
    run: Callable[..., Tensor], inputs: tuple[Tensor, ...], device: str, autocast: bool = True
) -> Tensor:
    """The loss of a batch, under autocast to bfloat16 or not."""
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        return run(*inputs)


def gpu_steps(
    folder: str, batch_size: int, length: int, device: str, compile: dict[str, Any] | None, steps: int
) -> Contender:
    """``steps`` steps under autocast to bfloat16, and a look at the last one's loss."""
    model, inputs, optimiser = prepare(folder, batch_size, length, device)
    run = model if compile is None else torch.compile(model, **compile)
    loss = partial(loss_of, run, inputs, device)

    def take_steps(_: int) -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            value = loss()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        value.item()

    def memory() -> int | None:
        return torch.cuda.max_memory_reserved() if device == "cuda" else None

    functions = training_functions(model, loss, optimiser)
    return {"steps": take_steps, "loss": functions["loss"], "memory": memory}


def inference(folder: str, batch_size: int, length: int, compile: dict[str, Any] | None) -> Contender:
    """The encoder in a pretrained folder (of a ``BertModel``): ``encode`` a batch, ``save`` the result."""
    config = read_config(folder)
    model = Encoder(config, load_file(Path(folder) / "model.safetensors")).eval()
    batch = tensors_of(pretraining_batch(config.vocab_size, batch_size, length))
    run = model if compile is None else torch.compile(model, **compile)

    @torch.inference_mode()
    def encode(_: int = 0) -> Tensor:
        return run(batch["input_ids"], batch["token_type_ids"])

    return {"encode": encode, "save": lambda path: np.save(path, encode().numpy())}
