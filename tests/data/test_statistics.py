"""The statistics of very many instances: against the original's procedure, and against its numbers.

The full draw, with a table of what it finds: pytest tests/data/test_statistics.py --instances 1000000 -s

Every number is held to 5 of its standard errors. Those of independent draws are known; one fair number in
1.7 million lies beyond. Those of shares that depend on the course of a document are found from 100 groups
of instances; of such numbers (Student's t) one in 400,000 lies beyond. All tests together look at some
2,300 numbers, of which the largest should be about 3.5; the seeds are fixed.
"""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from data import original
from scipy import stats

from minibert.data import BatchStream, Documents, InstanceSettings

GROUPS = 100
SEQ_LENGTH = 128
ROOM = SEQ_LENGTH - 3  # text tokens in an instance
ORIGINAL = InstanceSettings()
WHOLE_WORDS = InstanceSettings(whole_word_masking=True)


class Text:
    """A corpus in which a token's id tells its place: token t of the text has the id 5 + t.

    About 0.3 of the tokens continue a word, but never the first of a sentence.
    """

    def __init__(self, lengths: Sequence[Sequence[int]]):
        sentences = np.array([length for document in lengths for length in document])
        self.sentence_starts = np.concatenate([[0], np.cumsum(sentences)])
        self.document_starts = np.concatenate([[0], np.cumsum([len(document) for document in lengths])])
        count = int(sentences.sum())
        self.documents = Documents(
            tokens=np.arange(5, 5 + count, dtype=np.int32),
            sentence_starts=self.sentence_starts,
            document_starts=self.document_starts,
            chosen=np.arange(len(lengths)),
        )
        continues_word = np.random.default_rng(1).random(5 + count) < 0.3
        continues_word[:5] = False
        continues_word[5 + self.sentence_starts[:-1]] = False
        self.vocabulary = SimpleNamespace(
            vocab_size=5 + count,
            pad_id=0,
            unk_id=1,
            cls_id=2,
            sep_id=3,
            mask_id=4,
            continues_word=continues_word,
        )

    def ours(self, settings: InstanceSettings, instances: int) -> Iterator[dict[str, np.ndarray]]:
        """``instances`` of them in GROUPS batches, by minibert."""
        stream = BatchStream(self.documents, self.vocabulary, settings, instances // GROUPS)
        return itertools.islice(stream, GROUPS)

    def originals(self, whole_words: bool, instances: int) -> Iterator[dict[str, np.ndarray]]:
        """The same by the original's procedure."""
        documents = [
            [list(range(5 + a, 5 + b)) for a, b in itertools.pairwise(self.documents.sentence_bounds(index))]
            for index in range(len(self.documents))
        ]
        continues_word = self.vocabulary.continues_word.tolist() if whole_words else None
        batches = original.batches(
            documents, SEQ_LENGTH, instances // GROUPS, self.vocabulary.vocab_size, continues_word
        )
        return itertools.islice(batches, GROUPS)


@pytest.fixture(scope="module")
def instances(pytestconfig) -> int:
    return pytestconfig.getoption("--instances")


@pytest.fixture(scope="module")
def text() -> Text:
    """Documents of 1 to 30 sentences of some 15 tokens; a sentence in 20 is longer than an instance."""
    rng = np.random.default_rng(0)

    def sentence() -> int:
        return int(rng.integers(130, 200)) if rng.random() < 0.05 else 1 + int(rng.gamma(2, 7))

    return Text([[sentence() for _ in range(rng.integers(1, 31))] for _ in range(600)])


def read(batch: dict[str, np.ndarray], text: Text) -> SimpleNamespace:
    """An unmasked batch again, where it comes from, and what was done to it."""
    labels = batch["labels"]
    predicted = labels >= 0
    ids = np.where(predicted, labels, batch["input_ids"])  # (n, S)
    length = batch["attention_mask"].sum(1)
    b = batch["token_type_ids"].sum(1) - 1
    a = length - b - 3
    rows = np.arange(len(ids))
    a_start, b_start = ids[:, 1] - 5, ids[rows, a + 2] - 5
    position = np.arange(ids.shape[1])
    in_a = (position > 0) & (position <= a[:, None])
    in_b = (position > a[:, None] + 1) & (position < length[:, None] - 1)
    # Every row is [CLS] A [SEP] B [SEP] and padding, A and B runs of the text.
    expected = np.where(in_a, 5 + a_start[:, None] + position - 1, 0)
    expected += np.where(in_b, 5 + b_start[:, None] + position - a[:, None] - 2, 0)
    expected[:, 0] = text.vocabulary.cls_id
    expected[rows, a + 1] = expected[rows, length - 1] = text.vocabulary.sep_id
    assert (ids == expected).all() and not (predicted & ~in_a & ~in_b).any()
    assert (batch["attention_mask"] == (position < length[:, None])).all()
    assert (batch["token_type_ids"] == (in_b | (position == length[:, None] - 1))).all()
    return SimpleNamespace(
        **dict(
            a_start=a_start, a_stop=a_start + a, b_start=b_start, b_stop=b_start + b, a=a, b=b, length=length
        ),
        **dict(ids=ids, predicted=predicted, text=in_a | in_b, is_random=batch["next_sentence_label"]),
        put_there=batch["input_ids"][predicted],
        stood_there=labels[predicted],
    )


def fates(seen: SimpleNamespace, text: Text) -> np.ndarray:
    """What became of each predicted token: 0 [MASK], 1 kept, 2 another."""
    return np.where(
        seen.put_there == text.vocabulary.mask_id, 0, np.where(seen.put_there == seen.stood_there, 1, 2)
    )


def observations(seen: SimpleNamespace, text: Text) -> dict[str, np.ndarray]:
    """What is counted: small numbers, one an instance or one a prediction."""
    a_sentence = np.searchsorted(text.sentence_starts, seen.a_start, side="right") - 1
    b_sentence = np.searchsorted(text.sentence_starts, seen.b_start, side="right") - 1
    a_document = np.searchsorted(text.document_starts, a_sentence, side="right") - 1
    b_document = np.searchsorted(text.document_starts, b_sentence, side="right") - 1
    assert ((a_document == b_document) == (seen.is_random == 0)).all()
    return {
        "random next": seen.is_random,
        "length": seen.length,
        "length of A": seen.a,
        "length of B": seen.b,
        "length of a B that follows": np.where(seen.is_random == 0, seen.b, 0),
        "A begins in the document's sentence": a_sentence - text.document_starts[a_document],
        "B begins in the document's sentence": b_sentence - text.document_starts[b_document],
        "document of a random B": np.where(seen.is_random == 1, 1 + b_document // 20, 0),
        "A begins with a sentence": np.isin(seen.a_start, text.sentence_starts),
        "A ends with a sentence": np.isin(seen.a_stop, text.sentence_starts),
        "B begins with a sentence": np.isin(seen.b_start, text.sentence_starts),
        "B ends with a sentence": np.isin(seen.b_stop, text.sentence_starts),
        "tokens of its first sentence that A lacks": seen.a_start - text.sentence_starts[a_sentence],
        "tokens of its first sentence that B lacks": seen.b_start - text.sentence_starts[b_sentence],
        "predictions": seen.predicted.sum(1),
        "position of a prediction": np.nonzero(seen.predicted)[1],
        "fate of a prediction": fates(seen, text),
    }


def totals(seen: SimpleNamespace, text: Text) -> dict[str, np.ndarray]:
    """What has an expectation in closed form, to be added up over batches."""
    predictions = seen.predicted.sum(1)
    wanted = np.minimum(20, np.maximum(1, np.rint(0.15 * seen.length)))
    p = (wanted / (seen.length - 3))[:, None] * seen.text  # of each position to be predicted, (n, S)
    random = fates(seen, text) == 2
    parted = text.vocabulary.continues_word[seen.ids[:, 1:]] & seen.text[:, :-1]  # a piece and the one before
    parted &= seen.predicted[:, 1:] != seen.predicted[:, :-1]
    return {
        "instances": len(wanted),
        "fewer predictions than wanted": (predictions < wanted).sum(),
        "more predictions than wanted": (predictions > wanted).sum(),
        "at position": seen.predicted.sum(0),
        "expected at position": p.sum(0),
        "variance at position": (p * (1 - p)).sum(0),
        "fates": np.bincount(fates(seen, text), minlength=3),
        "random tokens": np.bincount(
            seen.put_there[random] * 100 // text.vocabulary.vocab_size, minlength=100
        ),  # in a hundred parts of the vocabulary
        "split words": parted.sum(),
    }


Counts = dict[str, np.ndarray]  # name → (GROUPS, values): how often each value was observed in each group


def count(groups: list[dict[str, np.ndarray]]) -> Counts:
    values = {name: 1 + max(int(group[name].max()) for group in groups) for name in groups[0]}
    return {
        name: np.array([np.bincount(group[name], minlength=values[name]) for group in groups])
        for name in values
    }


def survey(batches: Iterator[dict[str, np.ndarray]], text: Text) -> tuple[Counts, dict[str, np.ndarray]]:
    """The counts of all observations, and the sums of all totals."""
    groups, sums = [], {}
    for batch in batches:
        seen = read(batch, text)
        groups.append(observations(seen, text))
        for name, number in totals(seen, text).items():
            sums[name] = sums.get(name, 0) + number
    return count(groups), sums


def deviations(one: Counts, other: Counts) -> dict[str, np.ndarray]:
    """The differences of the shares, each in standard errors; values seen less than 100 times are one."""
    found = {}
    for name in one:
        width = max(one[name].shape[1], other[name].shape[1])
        both = [np.pad(counts[name], [(0, 0), (0, width - counts[name].shape[1])]) for counts in (one, other)]
        rare = both[1].sum(0) < 100
        both = [np.column_stack([counts[:, ~rare], counts[:, rare].sum(1)]) for counts in both]
        shares = [counts / counts.sum(1, keepdims=True) for counts in both]
        shares = [share[:, both[0].any(0) | both[1].any(0)] for share in shares]
        difference = shares[0].mean(0) - shares[1].mean(0)
        error = np.sqrt(sum(share.var(0, ddof=1) for share in shares) / GROUPS)
        found[name] = difference / np.maximum(error, 1e-9)  # nothing varies where a share is 0 or 1
    return found


def hold(what: str, numbers: np.ndarray | float) -> None:
    """Print the largest of some deviations, in standard errors, and hold it to 5."""
    numbers = np.atleast_1d(numbers)
    worst = abs(numbers).max()
    print(f"{what:48} {len(numbers):4} numbers, the largest deviation {worst:.2f} standard errors")
    assert worst <= 5, what


def binomial(successes: np.ndarray | int, trials: np.ndarray | int, p: np.ndarray | float) -> np.ndarray:
    """Deviations of independent draws from their expectation, in standard errors."""
    return (successes - trials * p) / np.sqrt(trials * p * (1 - p))


@pytest.fixture(scope="module")
def ours(text, instances) -> tuple[Counts, dict[str, np.ndarray]]:
    return survey(text.ours(ORIGINAL, instances), text)


@pytest.fixture(scope="module")
def ours_by_words(text, instances) -> tuple[Counts, dict[str, np.ndarray]]:
    return survey(text.ours(WHOLE_WORDS, instances), text)


# ---------------------------------------------------------------- against the original's procedure


@pytest.mark.parametrize("whole_words", [False, True])
def test_instances_are_distributed_as_the_originals(text, instances, whole_words, request):
    counts, _ = request.getfixturevalue("ours_by_words" if whole_words else "ours")
    theirs, _ = survey(text.originals(whole_words, instances // 4), text)
    print(f"\n{instances:,} instances, {instances // 4:,} of the original's procedure, {whole_words=}")
    for name, numbers in deviations(counts, theirs).items():
        hold(name, numbers)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (dict(short_seq_prob=0.2), "length"),
        (dict(max_predictions=18), "predictions"),
        (dict(masked_lm_prob=0.13), "predictions"),
    ],
)
def test_another_distribution_is_noticed(text, ours, options, name):
    other, _ = survey(text.ours(InstanceSettings(**options), 40_000), text)
    assert abs(deviations(ours[0], other)[name]).max() > 5


# ---------------------------------------------------------------- against the original's numbers


def test_as_many_predictions_as_the_original(ours, ours_by_words):
    assert ours[1]["fewer predictions than wanted"] == ours[1]["more predictions than wanted"] == 0
    assert ours_by_words[1]["more predictions than wanted"] == 0
    # Fewer only where the words that are left are too long.
    assert ours_by_words[1]["fewer predictions than wanted"] < 0.001 * ours_by_words[1]["instances"]


def test_no_word_is_split(ours, ours_by_words):
    assert ours_by_words[1]["split words"] == 0
    assert ours[1]["split words"] > ours[1]["instances"]  # which is how it looks without whole words


def test_every_position_is_predicted_alike(ours):
    _, sums = ours
    inner = sums["variance at position"] > 0
    assert np.flatnonzero(inner).tolist() == list(range(1, SEQ_LENGTH - 1))
    difference = sums["at position"] - sums["expected at position"]
    hold("predictions at a position", difference[inner] / np.sqrt(sums["variance at position"][inner]))


def test_shares_of_masked_kept_and_random(text, ours):
    _, sums = ours
    once = 0.1 / text.vocabulary.vocab_size  # a random token is [MASK], or the one that stood there
    print("\n[MASK] {:.3%}, kept {:.3%}, random {:.3%}".format(*sums["fates"] / sums["fates"].sum()))
    expected = np.array([0.8 + once, 0.1 + once, 0.1 - 2 * once])
    hold("[MASK], kept, random", binomial(sums["fates"], sums["fates"].sum(), expected))


def test_random_tokens_are_any_of_the_vocabulary(text, ours):
    _, sums = ours
    sizes = np.bincount(np.arange(text.vocabulary.vocab_size) * 100 // text.vocabulary.vocab_size)
    share = sizes / text.vocabulary.vocab_size
    hold(
        "random tokens, by hundredths of the vocabulary",
        binomial(sums["random tokens"], sums["fates"][2], share),
    )


def test_shares_of_short_and_of_random_pairs(instances):
    """In documents of 130 sentences of one token, nothing is cut off, and so the target shows."""
    text = Text([[1] * 130] * 400)
    rows = [read(batch, text) for batch in text.ours(ORIGINAL, instances // 5)]
    a_start, a, b, is_random = (
        np.concatenate([getattr(row, name) for row in rows]) for name in ("a_start", "a", "b", "is_random")
    )
    # A chunk of one sentence, which is at a document's end, always gets a random B; others by a fair coin.
    fair = ~((a == 1) & ((a_start + 1) % 130 == 0))
    assert is_random[~fair].all()
    print(f"\nrandom next {is_random[fair].mean():.3%}, apart from single sentences")
    hold("random next", binomial(is_random[fair].sum(), fair.sum(), 0.5))
    # The first pair of a document has the target's length, if B follows: the full 125, or any from 2 to 125.
    lengths = (a + b)[(a_start % 130 == 0) & (is_random == 0)]
    counts = np.bincount(lengths, minlength=ROOM + 1)
    assert len(counts) == ROOM + 1 and counts[:2].sum() == 0
    print(f"short sequences {(lengths < ROOM).mean():.3%}")
    hold("short sequences", binomial(counts[:ROOM].sum(), len(lengths), 0.1 * 123 / 124))
    hold("lengths of short sequences", binomial(counts[2:ROOM], len(lengths), 0.1 / 124))
    # Given its length, a pair has its border anywhere.
    border = a[(a_start % 130 == 0) & (is_random == 0) & (a + b == ROOM)]
    hold("where A ends", binomial(np.bincount(border)[1:], len(border), 1 / (ROOM - 1)))


def test_truncation_at_front_and_back_alike(instances):
    """Of two sentences of 200 tokens, 63 and 62 stay; each token goes from the front by a fair coin."""
    text = Text([[200] * 3] * 400)
    for name, left in (("a", 63), ("b", 62)):
        fronts = []
        for batch in text.ours(ORIGINAL, instances // 5):
            row = read(batch, text)
            assert (getattr(row, name) == left).all()
            fronts.append(getattr(row, f"{name}_start") % 200)
        fronts, gone = np.concatenate(fronts), 200 - left
        hold(f"front and back of {name.upper()}", binomial(fronts.sum(), fronts.size * gone, 0.5))
        counts = np.bincount(fronts, minlength=gone + 1)
        p = stats.binom.pmf(np.arange(gone + 1), gone, 0.5)
        frequent = p * fronts.size >= 100
        hold(
            f"tokens gone from the front of {name.upper()}",
            binomial(counts[frequent], fronts.size, p[frequent]),
        )
