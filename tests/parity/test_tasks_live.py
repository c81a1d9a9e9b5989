"""Windows, word labels and entity scores against transformers' tokenizer and seqeval, live.

The drawings are new in every run; the report at its end tells the seed (PARITY_SEED repeats it).
"""

import random

import numpy as np
import pytest

from minibert.data.tasks import RECIPES, question_windows, tagged_features
from minibert.tasks.metrics import entity_scores
from minibert.text import BertTokenizer

TAGS = ["O", "O", *(f"{prefix}-{kind}" for kind in ("person", "place", "creative-work") for prefix in "BI")]


@pytest.fixture(scope="module")
def both(shared_data, tmp_path_factory):
    """Our tokenizer of a released vocabulary, and transformers' from the folder that ours has written."""
    transformers = pytest.importorskip(
        "transformers", reason="compares with transformers, which is not installed"
    )
    ours = BertTokenizer.from_pretrained(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    folder = tmp_path_factory.mktemp("tokenizer")
    ours.save_pretrained(folder)
    return ours, transformers.BertTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(("max_length", "stride"), [(384, 128), (96, 20)])
def test_windows(parity, shared_data, both, max_length, stride):
    """Ids, token types and offsets of every window, where transformers is told the overlap of windows."""
    ours, theirs = both
    questions = RECIPES["squad"].read(shared_data / "squad" / "dev-v1.1.reconstructed.json.gz")
    questions = random.Random(parity.seed).sample(questions, 300)
    windows = question_windows(questions, ours, max_length=max_length, stride=stride)
    expected = []
    for question in questions:
        room = max_length - 3 - len(ours.token_ids(question.text))
        encoded = theirs(
            question.text,
            question.passage,
            max_length=max_length,
            truncation="only_second",
            stride=room - stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        expected += zip(
            *(encoded[key] for key in ("input_ids", "token_type_ids", "offset_mapping")), strict=True
        )
    differing = len(windows) != len(expected)
    for window, (ids, types, offsets) in zip(windows, expected, strict=False):
        passage = window.spans[:, 0] >= 0
        differing += (
            window.inputs["input_ids"].tolist() != ids
            or window.inputs["token_type_ids"].tolist() != types
            or window.spans[passage].tolist()
            != [list(span) for span, own in zip(offsets, passage, strict=True) if own]
        )
    parity.hold(f"windows of {max_length}", f"of {len(windows):,} windows differ", differing, 0, check=False)
    assert differing == 0


def test_labels_of_words(parity, shared_data, both):
    ours, theirs = both
    sentences = RECIPES["wnut17"].read(shared_data / "wnut17" / "emerging.dev.conll")
    sentences = [s for s in sentences if all(map(ours.token_ids, s.words))]  # else theirs loses the word
    label_ids = {tag: i for i, tag in enumerate(sorted({tag for s in sentences for tag in s.tags}))}
    features = tagged_features(sentences, ours, 512, label_ids)
    differing = 0
    for sentence, feature in zip(sentences, features, strict=True):
        encoded = theirs(sentence.words, is_split_into_words=True)
        words = encoded.word_ids()
        labels = [
            -100 if word is None or word == before else label_ids[sentence.tags[word]]
            for word, before in zip(words, [None, *words], strict=False)
        ]
        differing += feature.inputs["input_ids"].tolist() != encoded["input_ids"]
        differing += feature.inputs["labels"].tolist() != labels
    parity.hold("labels of words", f"of {len(features):,} sentences differ", differing, 0, check=False)
    assert len(features) > 900
    assert differing == 0


def test_entity_scores(parity):
    seqeval = pytest.importorskip("seqeval.metrics", reason="compares with seqeval, which is not installed")
    rng = random.Random(parity.seed)
    largest = 0.0
    for _ in range(200):
        labels = [rng.choices(TAGS, k=rng.randint(1, 12)) for _ in range(rng.randint(1, 30))]
        predicted = [[tag if rng.random() < 0.6 else rng.choice(TAGS) for tag in tags] for tags in labels]
        scores = entity_scores(predicted, labels)
        report = seqeval.classification_report(labels, predicted, output_dict=True, zero_division=0)
        scores["micro avg"] = scores.pop("overall")
        assert set(scores) == set(report) - {"macro avg", "weighted avg"}
        for kind, ours in scores.items():
            theirs = [report[kind][name] for name in ("precision", "recall", "f1-score", "support")]
            largest = max(largest, *np.abs(np.subtract(list(ours.values()), theirs)))
    parity.hold("entity scores and seqeval's", "largest difference", largest, 1e-12, check=False)
    assert largest <= 1e-12
