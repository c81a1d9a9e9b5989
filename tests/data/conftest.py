"""What the tests of the data room share: a small tokenizer, and documents whose tokens tell their place."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.data import Documents
from minibert.text import BertTokenizer

TEXT = """The old house stood at the end of the lane. Nobody had lived in it for years.
Its windows were broken. The garden was overgrown with nettles and brambles. A gate hung on one hinge.
Children were told to keep away. They went there all the same. One summer evening a light was seen in
the attic. It moved from window to window. Nobody in the village could explain it. The old postman
laughed at the story. He had seen stranger things."""


@pytest.fixture(scope="session")
def tokenizer() -> BertTokenizer:
    return BertTokenizer.train([TEXT] * 2, vocab_size=150)


@pytest.fixture
def numbered_vocabulary() -> SimpleNamespace:
    """Ids 0 to 4 are special; of the text's ids 5 to 999, those divisible by 3 continue a word."""
    ids = np.arange(1000)
    return SimpleNamespace(
        vocab_size=1000,
        pad_id=0,
        unk_id=1,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        continues_word=(ids % 3 == 0) & (ids > 4),
    )


@pytest.fixture
def make_documents() -> Callable[[Sequence[Sequence[int]]], Documents]:
    """Documents with sentences of the given lengths; token t of the corpus is 5 + t modulo 995."""

    def make(lengths: Sequence[Sequence[int]]) -> Documents:
        sentences = np.array([length for document in lengths for length in document])
        return Documents(
            tokens=(5 + np.arange(sentences.sum()) % 995).astype(np.uint16),
            sentence_starts=np.concatenate([[0], np.cumsum(sentences)]),
            document_starts=np.concatenate([[0], np.cumsum([len(document) for document in lengths])]),
            chosen=np.arange(len(lengths)),
        )

    return make
