"""A model with new tokens in transformers: the same token ids, and the same scores."""

import numpy as np
import pytest

from minibert.bert import BertForMaskedLM
from minibert.tasks.new_tokens import add_rows
from minibert.text import MODEL_TYPES
from minibert.text.new_tokens import add_tokens, old_pieces
from minibert.variants import FAMILIES

pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytest.importorskip("transformers", reason="compares with transformers, which is not installed")
import torch
import transformers

TEXTS = [
    "The river rose in the night and took the bridge away.",
    "Nobody in the village had seen such a flood of water before, said the teacher.",
    "An old boat lay upside down in the middle of the road. (The optimiser of tensors!)",
]
WORDS = ["tensors", "optimiser", "waterproof", "ωμέγα"]
UNSEEN = ["tensors and the optimiser's optimisers: waterproofed ωμέγα", "Ωμέγα-tensors, unwaterproof"]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "roberta", "albert", "xlnet"])
def test_new_tokens_in_transformers(name, parity, tmp_path):
    kind, family = MODEL_TYPES[name], FAMILIES[name]
    old = kind.train(TEXTS, 300 if name == "roberta" else 110)
    new = add_tokens(old, [whole for word in WORDS for whole in old.whole_tokens(word)])
    sizes = SIZES | ({} if name == "xlnet" else {"max_position_embeddings": 80})
    sizes |= {"embedding_size": 8} if name in ("electra", "albert") else {}
    config = family.config(vocab_size=len(old), pad_token_id=old.pad_id, **sizes)
    dtype, bound = ("float32", 1e-5) if name == "xlnet" else ("float64", 1e-12)  # theirs is float32 inside
    model = family.models[BertForMaskedLM](config, dtype=dtype, seed=3)
    bias = model.cls.predictions.bias
    bias.value = np.random.default_rng(0).standard_normal(bias.shape)
    add_rows(model, old_pieces(new, old), len(old))
    model.eval()
    model.save_pretrained(tmp_path)
    new.save_pretrained(tmp_path)

    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS + UNSEEN:
        ids = new(text)["input_ids"]
        assert theirs(text)["input_ids"] == ids
        assert text != UNSEEN[0] or sum(i >= len(old) for i in ids) >= 3
    their_class = transformers.AutoModelForMaskedLM if name != "xlnet" else transformers.XLNetLMHeadModel
    reference = their_class.from_pretrained(tmp_path, dtype=getattr(torch, dtype)).eval()
    batch = new(UNSEEN, padding=True)
    ours = model.forward(**batch)[0].prediction_logits
    read = [key for key in batch if name != "distilbert" or key != "token_type_ids"]
    given = {key: torch.tensor(batch[key]) for key in read}
    with torch.no_grad():
        logits = reference(**given).logits.numpy()
    real = np.array(batch["attention_mask"]) > 0
    parity.compare(f"{name} with new tokens", {"logits": ours[real]}, {"logits": logits[real]}, bound)
