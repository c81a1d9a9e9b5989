"""Vectors of words, live: hidden states of transformers, pooled over the characters of each word."""

import numpy as np
import pytest

from minibert.tasks.embed import TextEncoder, WordChoice
from minibert.text import AlbertTokenizer, BertTokenizer, RobertaTokenizer, XLNetTokenizer

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
transformers = pytest.importorskip(
    "transformers", reason="compares with transformers, which is not installed"
)

TEXTS = ["Unhappily she left, and the café closed.", "No.", "a café, then; the café she left"]
CORPUS = [text.lower() for text in TEXTS] * 4
WORDPIECE = BertTokenizer(
    "[PAD] [UNK] [CLS] [SEP] [MASK] un ##happi ##ly she left , and the cafe ##s closed . no a then".split()
)
TOKENIZERS = {
    "Bert": WORDPIECE,
    "DistilBert": WORDPIECE,
    "Electra": WORDPIECE,
    "Roberta": RobertaTokenizer.train(CORPUS, 290),
    "Albert": AlbertTokenizer.train(CORPUS, 50),
    "XLNet": XLNetTokenizer.train(CORPUS, 50),
}
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 60,
    "initializer_range": 0.5,
}
DISTILBERT = {"dim": 12, "n_layers": 3, "n_heads": 2, "hidden_dim": 20, "max_position_embeddings": 60}
XLNET = {"d_model": 12, "n_layer": 3, "n_head": 2, "d_inner": 20, "initializer_range": 0.5}


@pytest.mark.parametrize("family", TOKENIZERS)
def test_words_are_pooled_hidden_states(parity, tmp_path, family):
    tokenizer = TOKENIZERS[family]
    sizes = {"DistilBert": DISTILBERT | {"initializer_range": 0.5}, "XLNet": XLNET}.get(family, SIZES)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_id, **sizes
    )
    torch.manual_seed(parity.seed)
    model = getattr(transformers, f"{family}Model")(config).eval().double()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoder = TextEncoder.open(tmp_path, dtype="float64")
    choice = WordChoice(layers=(0, 1, -1), combine="none")
    [words] = encoder.word_vectors(TEXTS, choice, batch_size=2)
    [pieces] = encoder.word_vectors(TEXTS, WordChoice((0, 1, -1), "none", pieces=True), batch_size=2)
    expected, expected_words, spans = [], [], []
    for number, text in enumerate(TEXTS):
        kinds = family == "XLNet"  # whose <cls> has another type, which its tokenizer does not give unasked
        options = {"return_tensors": "pt", "return_token_type_ids": True if kinds else None}
        batch = theirs(text, return_offsets_mapping=True, **options)
        spans += [
            span
            for span, word in zip(batch.pop("offset_mapping")[0].tolist(), batch.word_ids(), strict=True)
            if word is not None
        ]
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        stacked = np.stack([states[layer][0].numpy() for layer in (0, 1, 3)], axis=1)  # (S, 3, H)
        inside = [place for place, word in enumerate(batch.word_ids()) if word is not None]
        expected.append(stacked[inside])
        own = words.spans[words.texts == number]
        for start, stop in own:  # by characters, which do not depend on what we take for a word
            among = [
                p
                for p in inside
                if start <= batch.token_to_chars(p).start and batch.token_to_chars(p).end <= stop
            ]
            expected_words.append(stacked[among].mean(axis=0))
    assert pieces.spans.tolist() == spans
    ours = {"pieces": pieces.vectors, "words": words.vectors}
    parity.compare(
        "live, vectors of words",
        ours,
        {"pieces": np.concatenate(expected), "words": np.array(expected_words)},
        1e-6,
    )
