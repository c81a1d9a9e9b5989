"""The recipes on small files of the same layout, and on the real ones, where these are."""

from collections import Counter

import pytest

from minibert.data.tasks import (
    RECIPES,
    Faults,
    check_labels,
    label_names,
    question_windows,
    tagged_features,
)
from minibert.text import BertTokenizer

LAYOUTS = {
    "sst2": ("sst2", "a.tsv", "sentence\tlabel\na fine film\t1\n", [("a fine film", None, "1")]),
    "sst2, another header": ("sst2", "a.tsv", "content\tlabel\ndull\t0\n", [("dull", None, "0")]),
    "cola": (
        "cola",
        "a.tsv",
        "gj04\t1\t\tHe sings.\nbc01\t0\t*\tHe sing.\n",
        [("He sings.", None, "1"), ("He sing.", None, "0")],
    ),
    "mrpc": (
        "mrpc",
        "a.txt",
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t70\t71\tHe said "no\t"No", he said\n',
        [('He said "no', '"No", he said', "1")],
    ),
    "rte": (
        "rte",
        "a.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tentailment\n",
        [("It rains.", "It is wet.", "entailment")],
    ),
    "rte, no header": (
        "rte",
        "a.tsv",
        "0\tIt rains.\tIt snows.\tnot_entailment\n",
        [("It rains.", "It snows.", "not_entailment")],
    ),
    "stsb": ("stsb", "a.csv", '"A man, here","A man",3.75\n', [("A man, here", "A man", 3.75)]),
}


@pytest.mark.parametrize(("recipe", "name", "text", "expected"), LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_tables(tmp_path, recipe, name, text, expected):
    (tmp_path / name).write_text(text, encoding="utf-8")
    examples = RECIPES[recipe].read(tmp_path / name)
    assert [(example.text, example.text_pair, example.label) for example in examples] == expected


def test_the_layout_of_cola_without_labels(tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tHe sings.\n", encoding="utf-8")
    (example,) = RECIPES["cola"].read(tmp_path / "test.tsv", labelled=False)
    assert (example.text, example.label) == ("He sings.", None)


def test_the_layout_of_wnut17(tmp_path):
    (tmp_path / "a.conll").write_text("Rome\tB-location\nfalls\tO\n\nwow\tO\n", encoding="utf-8")
    sentences = RECIPES["wnut17"].read(tmp_path / "a.conll")
    assert [(s.words, s.tags) for s in sentences] == [
        (["Rome", "falls"], ["B-location", "O"]),
        (["wow"], ["O"]),
    ]


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    return BertTokenizer.from_pretrained(shared_data / "vocab" / "bert-base-uncased-vocab.txt")


@pytest.mark.parametrize(
    ("recipe", "files", "counts", "labels"),
    [
        ("sst2", "sst2_glue/{train,dev,test}.tsv", (67_349, 872, 1_821), ["0", "1"]),
        ("cola", "cola/{train,val,dev}.tsv", (7_250, 1_301, 1_043), ["0", "1"]),
        ("mrpc", "mrpc/msr-para-{train,val,test}.tsv", (3_576, 500, 1_725), ["0", "1"]),
        ("rte", "rte/{train,val,dev}.tsv", (2_127, 363, 277), ["entailment", "not_entailment"]),
    ],
)
def test_classification(shared_data, recipe, files, counts, labels):
    head, _, rest = files.partition("{")
    names, _, tail = rest.partition("}")
    parts = [RECIPES[recipe].read(shared_data / f"{head}{name}{tail}") for name in names.split(",")]
    assert tuple(map(len, parts)) == counts
    assert label_names(parts[0]) == labels
    faults = Faults()
    for part in parts[1:]:
        assert len(check_labels(part, labels, faults)) == len(part)
    assert not faults.notes
    is_pair = recipe in ("mrpc", "rte")
    assert all((example.text_pair is not None) == is_pair for part in parts for example in part)


@pytest.mark.parametrize(
    ("recipe", "file", "count"), [("cola", "cola/test.tsv", 1_063), ("rte", "rte/test.tsv", 3_000)]
)
def test_files_without_labels(shared_data, recipe, file, count):
    assert len(RECIPES[recipe].read(shared_data / file, labelled=False)) == count


def test_scores(shared_data):
    parts = [
        RECIPES["stsb"].read(shared_data / "stsb" / f"stsb-en-{name}.csv")
        for name in ("train", "dev", "test")
    ]
    assert [len(part) for part in parts] == [5_749, 1_500, 1_379]
    assert all(0 <= example.label <= 5 for part in parts for example in part)


def test_tags(shared_data, tokenizer):
    names = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    parts = [RECIPES["wnut17"].read(shared_data / "wnut17" / name) for name in names]
    assert [len(part) for part in parts] == [3_394, 1_009, 1_287]
    tags = label_names(parts[0])
    assert len(tags) == 13
    for part in parts:
        check_labels(part, tags)
        features = tagged_features(part, tokenizer, 32)
        assert sum(len(f.positions) for f in features) == sum(len(s.words) for s in part)
        assert len(features) > len(part)
    entities = Counter(tag for sentence in parts[2] for tag in sentence.tags if tag.startswith("B-"))
    assert entities.total() == 1_079


@pytest.mark.parametrize(("version", "count", "impossible"), [("1.1", 10_570, 0), ("2.0", 11_873, 5_945)])
def test_questions(shared_data, tokenizer, version, count, impossible):
    faults = Faults()
    path = shared_data / "squad" / f"dev-v{version}.reconstructed.json.gz"
    questions = RECIPES["squad"].read(path, faults=faults)
    assert len(questions) == count
    assert sum(not question.answers for question in questions) == impossible
    assert not faults.notes
    questions = questions[::10]
    windows = question_windows(questions, tokenizer, training=True)
    held, exact = set(), 0
    for window in windows:
        start, end = window.inputs["start_positions"], window.inputs["end_positions"]
        if start:
            question = questions[window.example]
            held.add(window.example)
            begin, stop = window.answer_span(start, end)
            answer = question.answers[0]
            exact += question.passage[begin:stop] == answer.text
            assert begin <= answer.start < answer.start + len(answer.text) <= stop
    answerable = sum(bool(question.answers) for question in questions)
    assert len(held) == answerable
    assert exact >= 0.99 * answerable  # the others begin or end inside a token


def test_minimal_pairs(shared_data):
    pairs = RECIPES["blimp"].read(shared_data / "blimp" / "BLiMP.zip")
    assert len(pairs) == 67_000
    assert set(Counter(pair.paradigm for pair in pairs).values()) == {1_000}
    assert len({pair.phenomenon for pair in pairs}) == 13
