"""What decisions are worth: the part that compares word vectors, and the page."""

import json

import numpy as np
import pytest

from benchmarks.ablations import word_vectors
from benchmarks.ablations.__main__ import main
from benchmarks.ablations.in_context import Encoder, LstmEncoder, Use, sample_uses
from benchmarks.ablations.word_vectors import ALONE, INPUT, LSTMS, SENTENCES, WORD2VEC
from examples import elmo
from examples.word2vec import WordVectors
from minibert import BertConfig, BertModel, BertTokenizer
from minibert.errors import UserError
from minibert.settings import read_settings
from minibert.tasks.metrics import spearman
from minibert.text.normalise import Normaliser

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the king queen river sea runs ##s eats a . bank cold warm and to by"
WORDS = "king queen river sea runs eats cold warm bank and to by".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny encoder."""
    folder, tokens = tmp_path_factory.mktemp("models") / "tiny", PIECES.split()
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(vocab_size=len(tokens), max_position_embeddings=12, **sizes)
    BertModel(config, seed=3).save_pretrained(folder)
    BertTokenizer(tokens).save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.permutation(WORDS)[:6]).capitalize() + "." for _ in range(200)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def pairs(tmp_path):
    """A set of twelve pairs that can be judged, two that cannot, and a set that is too small."""
    folder, rng = tmp_path / "pairs", np.random.default_rng(1)
    folder.mkdir()
    shared = [(*rng.permutation(WORDS)[:2], score) for score in range(12)]
    lines = [f"{a.title()}\t{b}\t{score}.5\n" for a, b, score in shared] + [
        "king\tzebra\t1\n",
        "a\tking\t2\n",
    ]
    (folder / "EN-Judged.txt").write_text("".join(lines))
    (folder / "EN-Small.txt").write_text("king queen 1\nsea river 2\n")
    return folder


def flags(folder, text, pairs, results, *more):
    places = ["--text", str(text), "--pairs", str(pairs), "--results", str(results)]
    return ["word_vectors", "--quick", "--threads", "1", "--models", f"small={folder}", *places, *more]


# -- Words in sentences -------------------------------------------------------------------------------


def test_uses_are_found_with_their_places_and_all_have_the_same_chance(tmp_path):
    sentences = [f"Once The king saw {word} , and {word} ran ." for word in "abcdefghij"]
    (tmp_path / "text.txt").write_text("\n".join(sentences) + "\n")
    found = sample_uses([tmp_path / "text.txt"], ["king", "c", "nowhere"], 3, None)
    assert [len(found[word]) for word in ("king", "c", "nowhere")] == [3, 2, 0]
    assert [use.text[use.start : use.stop] for use in found["king"]] == ["king"] * 3
    assert [use.start for use in found["c"]] == [18, 26]
    counts = dict.fromkeys(sentences, 0)
    for seed in range(400):
        for use in sample_uses([tmp_path / "text.txt"], ["king"], 3, None, seed)["king"]:
            counts[use.text] += 1
    assert all(80 <= count <= 160 for count in counts.values()), counts  # 120 expected, σ = 9
    some = sample_uses([tmp_path / "text.txt"], ["king", "c"], 9, 16)  # of the first two sentences
    assert [len(some[word]) for word in ("king", "c")] == [2, 0]


def test_contextual_vectors_are_the_hidden_states_of_the_words_pieces(folder):
    encoder = Encoder(folder, layer=1)
    uses = [Use("The king runss to the sea .", 9, 14), Use.alone("queen"), Use("a river", 2, 7)]
    ids = [[5, 6, 10, 11, 19, 5, 9, 14], [7], [13, 8]]
    for vector, row, places in zip(encoder.contextual(uses), ids, ([3, 4], [1], [2]), strict=True):
        outputs, _ = encoder.model.forward(np.array([[2, *row, 3]]), return_hidden_states=True)
        np.testing.assert_allclose(vector, outputs.hidden_states[1][0, places].mean(axis=0), rtol=1e-5)
    assert Encoder(folder).layer == 2
    with pytest.raises(UserError, match=r"there is no layer 3; expected 0 \(embeddings\) to 2"):
        Encoder(folder, layer=3)


def test_a_long_sentence_is_cut_so_that_the_word_stays(folder):
    encoder = Encoder(folder)
    sentence = "the " * 20 + "king " + "by " * 20
    row, places = encoder._row(Use(sentence, 80, 84))
    assert len(row["input_ids"]) == 12 and row["input_ids"][places].tolist() == [6]
    row, places = encoder._row(Use("king " + sentence, 0, 4))
    assert len(row["input_ids"]) == 12 and places == slice(1, 2)


def test_input_embeddings_and_means_over_uses(folder):
    encoder = Encoder(folder)
    table = encoder.model.embeddings.word_embeddings.weight.value
    found = encoder.input_embeddings(["king", "runss"])
    np.testing.assert_array_equal(found, [table[6], (table[10] + table[11]) / 2])
    uses = {"king": [Use("the king", 4, 8), Use("a king .", 2, 6)], "sea": [Use("to sea", 3, 6)]}
    means = encoder.mean_contextual(uses)
    one, two, three = encoder.contextual([*uses["king"], *uses["sea"]])
    np.testing.assert_allclose(means, [(one + two) / 2, three], rtol=1e-6)
    assert encoder.knows("king") and not encoder.knows("zebra")


def small_lstm(tokenizer):
    settings = elmo.LstmSettings(hidden_size=4, num_hidden_layers=1)
    return LstmEncoder(elmo.BidirectionalLM(len(tokenizer.tokens), settings), tokenizer, 12)


def test_vectors_of_lstms_are_the_states_of_both_readers(folder):
    lstm = small_lstm(Encoder(folder).tokenizer)
    uses = [Use("The king runss to the sea .", 9, 14), Use.alone("queen")]
    ids = [[5, 6, 10, 11, 19, 5, 9, 14], [7]]
    for vector, row, places in zip(lstm.contextual(uses), ids, ([3, 4], [1]), strict=True):
        (states,) = lstm.model.hidden_states(np.array([[2, *row, 3]]), np.ones((1, len(row) + 2)))[-1]
        np.testing.assert_allclose(vector, states[places].mean(axis=0), rtol=1e-5)
    assert vector.shape == (8,)


# -- What is compared ---------------------------------------------------------------------------------


def test_correlations_are_of_the_pairs_that_all_know():
    words, rng = list("abcdefg"), np.random.default_rng(0)
    vectors = {WORD2VEC: rng.standard_normal((7, 3)), INPUT: np.ones((7, 2))}
    pairs = [(a, b, rng.random()) for a in words for b in words if a < b]
    found = word_vectors.correlations([*pairs, ("a", "z", 9.0)], words, vectors)
    x = vectors[WORD2VEC] / np.linalg.norm(vectors[WORD2VEC], axis=1, keepdims=True)
    right = spearman([x[words.index(a)] @ x[words.index(b)] for a, b, _ in pairs], [s for *_, s in pairs])
    assert (found["pairs"], found["shared"]) == (22, 21)
    assert found["spearman"] == {WORD2VEC: pytest.approx(right), INPUT: None}  # equal cosines: there is none
    assert word_vectors.correlations(pairs[:9], words, vectors)["spearman"] == {WORD2VEC: None, INPUT: None}


def test_meanings_are_compared_three_sentences_at_a_time():
    near, far = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    right, wrong = np.stack([near, near, far, far]), np.stack([near, far, near, far])
    mixed = np.stack([near, near + 0.1 * far, far, near])
    assert word_vectors.compare({"a": right})["words"] == {"a": 1.0}
    assert word_vectors.compare({"a": np.stack([near] * 4)})["share"] == 0.5
    # Of `wrong`, each sentence has cosine 0 with its partner, and 1 and 0 with the others.
    assert word_vectors.compare({"a": wrong})["share"] == 0.25
    # Cosines: 0 and 1 nearly 1, 0 and 3 exactly 1, 1 and 3 as 0 and 1, 1 and 2 nearly 0, all others 0.
    found = word_vectors.compare({"a": right, "b": mixed})
    by_anchor = [1 + 0, 1 + 0.5, 0.5 + 0, 0 + 0]  # 0 against 2 and 3, 1 against 2 and 3, …
    assert found["words"]["b"] == sum(by_anchor) / 8
    assert found["share"] == (1 + found["words"]["b"]) / 2
    assert word_vectors.compare({}) is None


def test_the_sentences_hold_their_word_once_in_two_meanings():
    meanings, normaliser = read_settings(word_vectors.MEANINGS), Normaliser()
    assert len(meanings) >= 10
    for word, each in meanings.items():
        assert [len(sentences) for sentences in each.values()] == [2, 2], word
        for sentence in (sentence for sentences in each.values() for sentence in sentences):
            assert normaliser.words(sentence).count(word) == 1, sentence
            assert word in sentence, "with a small letter, for models that tell them apart"


def test_a_vector_that_ignores_the_sentence_cannot_tell_meanings_apart(folder):
    encoder = Encoder(folder)
    word2vec = WordVectors(["bank", "sea"], np.random.default_rng(0).standard_normal((2, 5), np.float32), [])
    lstm = small_lstm(encoder.tokenizer)
    found = word_vectors.tell_meanings_apart(word2vec, lstm, encoder)
    assert found[WORD2VEC]["words"] == found[INPUT]["words"] == {"bank": 0.5}
    assert found[WORD2VEC]["same"] == found[WORD2VEC]["other"] == pytest.approx(1)
    for method in (LSTMS, SENTENCES):
        assert list(found[method]["words"]) == ["bank"]
        assert found[method]["same"] != found[method]["other"]


# -- The command --------------------------------------------------------------------------------------


def test_a_quick_run_writes_figures_page_and_picture(folder, text, pairs, tmp_path):
    results = tmp_path / "results"
    assert main(flags(folder, text, pairs, results)) == 0
    record = json.loads((results / "ablations.json").read_text())["word_vectors"]["small"]
    judged = record["pairs"]["Judged"]
    assert (judged["pairs"], judged["shared"], record["words"]) == (14, 12, 12 - 1)
    assert list(judged["spearman"]) == [WORD2VEC, LSTMS, INPUT, ALONE, SENTENCES]
    assert all(-1 <= value <= 1 for value in judged["spearman"].values())
    assert record["pairs"]["Small"]["spearman"] == dict.fromkeys(judged["spearman"])
    assert record["word2vec"]["words"] == 1200 and record["word2vec"]["text"] == ["text.txt"]
    assert set(record["neighbours"]) == {"king", "river"}
    assert record["meanings"][WORD2VEC]["share"] == 0.5
    assert record["lstm"]["tokens"] == 10 * 4 * 8 and len(record["lstm"]["losses"]) == 10
    page = (results / "ablations.md").read_text()
    assert "| Judged | 12 of 14 | " in page and "| Small | 2 of 2 | – | – | – | – | – |" in page
    assert "python -m benchmarks.ablations" in page and "### small" in page
    assert page.rstrip().endswith("The rest is not decided.")
    assert (results / "word_vectors.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_is_written_anew_from_what_was_measured(folder, text, pairs, tmp_path):
    results = tmp_path / "results"
    assert main(flags(folder, text, pairs, results)) == 0
    page = (results / "ablations.md").read_text()
    (results / "ablations.md").unlink()
    assert main(["report", "--results", str(results)]) == 0
    assert (results / "ablations.md").read_text() == page


def test_the_picture_has_a_bar_for_every_set_and_method(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(word_vectors, "save_figure", lambda figure, path: drawn.append(figure))
    heights = dict(zip(word_vectors.COLOURS, (0.1, 0.2, 0.3, 0.4, 0.5), strict=True))
    sets = {
        "A": {"pairs": 50, "shared": 40, "spearman": heights},
        "B": {"pairs": 60, "shared": 30, "spearman": heights | {INPUT: None}},
        "C": {"pairs": 60, "shared": 3, "spearman": dict.fromkeys(heights)},
    }
    case = {"pairs": sets, "layer": 3, "layers": 4}
    word_vectors.plot({"one": case, "two": case}, tmp_path / "plot.png")
    axes = drawn[0].axes
    assert [one.get_title() for one in axes] == ["one, layer 3 of 4", "two, layer 3 of 4"]
    bars = [[bar.get_height() for bar in group] for group in axes[1].containers]
    np.testing.assert_equal(bars, [[0.1, 0.1], [0.2, 0.2], [0.3, np.nan], [0.4, 0.4], [0.5, 0.5]])
    assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["A\n40 pairs", "B\n30 pairs"]


def test_mistakes_are_one_line(folder, text, pairs, tmp_path, capsys):
    def said(*more):
        assert main(flags(folder, text, pairs, tmp_path / "results", *more)) == 2
        error = capsys.readouterr().err
        assert error.startswith("benchmarks.ablations: error: ") and error.count("\n") == 1
        return error

    assert "there is no layer 7" in said("--layer", "7")
    assert "there are no sets of pairs" in said("--pairs", str(folder.parent))
    (pairs / "EN-Wrong.txt").write_text("king queen 1\nking queen\n")
    assert "EN-Wrong.txt: line 2 is 'king queen'; expected two words and a score" in said()
    (pairs / "EN-Wrong.txt").write_text("king queen nan\n")
    assert "line 1 is 'king queen nan'; expected two words and a score" in said()
    assert not (tmp_path / "results").exists()


def test_models_can_be_named():
    assert word_vectors.named("mini") == ("mini", "mini")
    assert word_vectors.named("runs/a/final") == ("final", "runs/a/final")
    assert word_vectors.named("ours=runs/a/final") == ("ours", "runs/a/final")
