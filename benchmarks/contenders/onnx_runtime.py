"""ONNX Runtime, with the encoder as PyTorch exports Hugging Face's."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks.inputs import pretraining_batch, read_config
from benchmarks.worker import Contender

EXPORTED, FUSED = "exported.onnx", "fused.onnx"


def export(folder: str, batch_size: int, length: int) -> Contender:
    """Write the encoder in a pretrained folder as ONNX: as exported, and with ONNX Runtime's own fusions.

    For sequences of exactly this size and without padding. ``fused`` tells how many operators of which kind
    the fusions have put in.
    """
    import torch
    from onnxruntime.transformers import optimizer
    from transformers import AttentionInterface, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self, model: BertModel):
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, token_type_ids: Any) -> Any:
            return self.model(input_ids=input_ids, token_type_ids=token_type_ids).last_hidden_state

    def attention(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> tuple[Any, None]:
        """Without a mask, and in the words that the fusions know: they look for a division."""
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        return torch.matmul(torch.softmax(scores, dim=-1), v).transpose(1, 2).contiguous(), None

    AttentionInterface.register("for_export", attention)
    model = BertModel.from_pretrained(
        folder, add_pooling_layer=False, attn_implementation="for_export"
    ).eval()
    batch = pretraining_batch(model.config.vocab_size, batch_size, length)
    names = ["input_ids", "token_type_ids"]
    inputs = tuple(torch.from_numpy(batch[name]) for name in names)
    exported = str(Path(folder) / EXPORTED)
    torch.onnx.export(Encoder(model), inputs, exported, input_names=names, dynamo=False)
    heads, hidden = model.config.num_attention_heads, model.config.hidden_size
    fused = optimizer.optimize_model(exported, "bert", heads, hidden, opt_level=1)
    fused.save_model_to_file(str(Path(folder) / FUSED))
    return {"fused": lambda: {k: n for k, n in fused.get_fused_operator_statistics().items() if n}}


def inference(folder: str, batch_size: int, length: int, file: str, threads: int) -> Contender:
    """One of the two files, with all graph optimisations: ``encode`` a batch, ``save`` the result."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        str(Path(folder) / file), options, providers=["CPUExecutionProvider"]
    )
    batch = pretraining_batch(read_config(folder).vocab_size, batch_size, length)
    ids = {node.name: batch[node.name] for node in session.get_inputs()}

    def encode(_: int = 0) -> np.ndarray:
        return session.run(None, ids)[0]

    return {"encode": encode, "save": lambda path: np.save(path, encode())}
