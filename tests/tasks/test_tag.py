import numpy as np
import pytest

from minibert.bert import BertConfig, BertModel
from minibert.data.tasks import Faults, read_conll
from minibert.errors import UserError
from minibert.heads import BertForTokenClassification
from minibert.tasks.registry import open_task
from minibert.tasks.tag import Tag, TagOptions
from minibert.text import BertTokenizer

TOKENIZER = BertTokenizer("[PAD] [UNK] [CLS] [SEP] [MASK] ann ##a lee sings in rom ##e to ##day .".split())
SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"initializer_range": 0.7, "max_position_embeddings": 128}  # so that words get different tags
SONG = """Anna\tB-person
Lee\tI-person
sings\tO
in\tO
Rome\tB-place

today\tO
Ann\tB-person
"""


@pytest.fixture
def conll(tmp_path):
    def write(text, name="train.conll"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def encoder(tmp_path):
    """A pretrained folder without a head."""
    BertModel(BertConfig(vocab_size=len(TOKENIZER), **SIZES), seed=1).save_pretrained(tmp_path / "encoder")
    TOKENIZER.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def learn(task, path):
    """The examples of a file, whose labels the task learns."""
    examples = task.read(path)
    task.learn_labels(examples)
    return examples


@pytest.mark.parametrize("crf", [False, True])
def test_what_is_saved_opens_as_it_was(encoder, conll, tmp_path, crf):
    task = Tag(TOKENIZER, TagOptions(crf=crf))
    examples = learn(task, conll(SONG))
    model = task.new_model(encoder, seed=2)
    assert model.config.crf is crf
    assert model.config.labels == ["B-person", "B-place", "I-person", "I-place", "O"]
    task.save(model, tmp_path / "tuned")
    again, opened = open_task(tmp_path / "tuned")
    assert (type(again), again.labels, again.options) == (Tag, task.labels, task.options)
    assert again.predict(opened, examples, batch_size=1) == task.predict(model, examples)


def test_features_for_training_have_a_tag_at_the_first_piece_of_a_word(conll):
    task = Tag(TOKENIZER)
    examples = learn(task, conll(SONG))
    features = task.features(examples, training=True)
    # [CLS] ann ##a lee sings in rom ##e [SEP] and [CLS] to ##day ann [SEP]
    assert features[0].inputs["labels"].tolist() == [-100, 0, -100, 2, 4, 4, 1, -100, -100]
    assert features[1].inputs["labels"].tolist() == [-100, 4, -100, 0, -100]
    assert "labels" not in task.features(examples, training=False)[0].inputs


@pytest.mark.parametrize("crf", [False, True])
def test_a_tag_for_every_word_of_short_and_long_sentences(encoder, conll, crf):
    """Four pieces go into a row: what the model says of each row, written out by hand."""
    task = Tag(TOKENIZER, TagOptions(max_length=6, crf=crf, scheme="plain"))
    words = "Anna Lee sings in Rome today . Lee".split()
    text = "\n".join(f"{word}\t{tag}" for word, tag in zip(words, "abcdabcd", strict=True))
    examples = learn(task, conll(f"Lee\td\n\n{text}\n"))
    model = task.new_model(encoder, seed=2)
    rows = ["ann ##a lee sings", "in rom ##e", "to ##day . lee"]
    expected = []
    for row in rows:
        pieces = ["[CLS]", *row.split(), "[SEP]"]
        first = [piece[0] not in "[#" for piece in pieces]
        output, _ = model.forward([[TOKENIZER.vocab[piece] for piece in pieces]])
        tags = model.best_tags(output.logits, np.array([first]))[0]
        expected += [task.labels[tag] for tag in tags[first]]
    predictions = task.predict(model, examples, batch_size=2)
    assert predictions[1] == expected and len(predictions[0]) == 1
    assert len(set(expected)) > 2, expected  # so that places matter


def test_words_without_pieces_get_a_tag_too(encoder, conll):
    task = Tag(TOKENIZER)
    examples = learn(task, conll("Ann\tB-person\n\u200b\x01\tO\nLee\tO\n"))
    assert len(task.predict(task.new_model(encoder), examples)[0]) == 3


def test_predicted_tags_are_bio(encoder, conll, monkeypatch):
    """A model may say I-x after O; that begins an entity, and is written as one."""
    task = Tag(TOKENIZER)
    examples = learn(task, conll(SONG))  # B-person, B-place, I-person, I-place, O
    said = iter([[4, 2, 2, 1, 2], [2, 2]])

    def say(model, logits, chosen):
        tags = np.full(chosen.shape, -100)
        for row, mask in zip(tags, chosen, strict=True):
            row[mask] = next(said)
        return tags

    monkeypatch.setattr(BertForTokenClassification, "best_tags", say)
    assert task.predict(task.new_model(encoder), examples) == [
        ["O", "B-person", "I-person", "B-place", "B-person"],
        ["B-person", "I-person"],
    ]


def test_scores_and_their_details(conll):
    task = Tag(TOKENIZER)
    examples = learn(task, conll(SONG))
    predictions = [["B-person", "I-person", "O", "B-place", "B-place"], ["O", "O"]]
    assert task.scores(examples, predictions) == pytest.approx(
        {"f1": 4 / 6, "precision": 2 / 3, "recall": 2 / 3, "accuracy": 5 / 7}
    )
    assert task.details(examples, predictions) == {
        "person": {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        "place": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1},
    }
    assert task.metric == "f1"


def test_entities_of_one_word_may_be_longer_elsewhere(conll):
    task = Tag(TOKENIZER)
    learn(task, conll("Ann\tB-person\nsings\tO\n"))
    assert task.labels == ["B-person", "I-person", "O"]
    assert len(task.check(task.read(conll("Ann\tB-person\nLee\tI-person\n", "dev.conll")))) == 1


def test_tags_that_mark_no_entities_are_scored_by_the_word(conll):
    task = Tag(TOKENIZER, TagOptions(scheme="plain"))
    examples = learn(task, conll("Ann\tNN\nsings\tVB\n"))
    assert task.metric == "accuracy"
    assert task.scores(examples, [["NN", "NN"]]) == {"accuracy": 0.5}
    assert task.details(examples, [["NN", "NN"]]) == {}
    assert task.record(examples[0], ["NN", "NN"]) == {
        "words": ["Ann", "sings"],
        "labels": ["NN", "VB"],
        "prediction": ["NN", "NN"],
    }


def test_precision_is_that_of_what_was_predicted(conll):
    task = Tag(TOKENIZER)
    examples = learn(task, conll(SONG))  # three entities, of which one is found, and nothing else
    scores = task.scores(examples, [["B-person", "I-person", "O", "O", "O"], ["O", "O"]])
    assert (scores["precision"], scores["recall"]) == (1.0, pytest.approx(1 / 3))
    assert set(task.scores_for(examples)) == set(scores)


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (["B-x", "I-x", "O"], "f1"),
        (["O", "I-y"], "f1"),
        (["NNP", "VBZ"], "accuracy"),
        (["B-x", "O", "PUNCT"], "accuracy"),
        (["B-", "O"], "accuracy"),
        (["S-x", "O"], "accuracy"),
    ],
)
def test_entities_are_marked_by_bio_tags_and_nothing_else(labels, metric):
    task = Tag(TOKENIZER, labels=labels)
    assert task.metric == metric
    assert (task.scores_for([]) == ("accuracy",)) == (metric == "accuracy")


def test_what_is_predicted_may_have_tags_that_the_model_does_not_know(encoder, conll):
    task = Tag(TOKENIZER, labels=["B-person", "O"])
    (example,) = task.read(conll("Rome\tB-place\n"))
    ((tag,),) = task.predict(task.new_model(encoder), [example])
    assert tag in task.labels


def test_bad_sentences_are_left_out_if_so_asked(conll):
    faults = Faults(skip_bad=True)
    assert len(Tag(TOKENIZER).read(conll(SONG + "\nRome\n"), faults=faults)) == 2
    assert len(faults.skipped) == 1


def test_a_record_tells_the_entities(conll):
    task = Tag(TOKENIZER)
    learn(task, conll(SONG))
    (example,) = task.read(conll("Anna\nLee\nsings\nRome\n", "unlabelled.conll"), labelled=False)
    assert task.record(example, ["B-person", "I-person", "O", "B-place"]) == {
        "words": ["Anna", "Lee", "sings", "Rome"],
        "prediction": ["B-person", "I-person", "O", "B-place"],
        "entities": [
            {"kind": "person", "start": 0, "stop": 2, "text": "Anna Lee"},
            {"kind": "place", "start": 3, "stop": 4, "text": "Rome"},
        ],
    }


def test_predictions_in_conll_are_read_again(conll):
    task = Tag(TOKENIZER)
    examples = learn(task, conll(SONG))
    predictions = [["O", "B-place", "O", "B-person", "I-person"], ["O", "B-place"]]
    again = read_conll(conll(task.own_format(examples, predictions), "predicted.conll"))
    assert [sentence.tags for sentence in again] == predictions
    assert [sentence.words for sentence in again] == [sentence.words for sentence in examples]


def test_columns_and_schemes_of_ones_own(conll):
    task = Tag(TOKENIZER, TagOptions(word_column=2, tag_column=3, scheme="bioes"))
    examples = task.read(conll("1 Ann S-person NNP\n2 sings O VB\n"))
    assert (examples[0].words, examples[0].tags) == (["Ann", "sings"], ["B-person", "O"])
    with pytest.raises(UserError, match="columns count from 1"):
        TagOptions(tag_column=0)


def test_a_recipe_reads_its_files(shared_data):
    task = Tag(TOKENIZER, TagOptions(recipe="wnut17"))
    examples = task.read(shared_data / "wnut17" / "emerging.dev.conll")
    assert len(examples) == 1009
    task.learn_labels(task.read(shared_data / "wnut17" / "wnut17train.conll"))
    assert len(task.labels) == 13 and task.marks_entities
    assert len(task.check(examples)) == 1009
    tags = [sentence.tags for sentence in examples]
    assert task.scores(examples, tags)["f1"] == 1.0


def test_plain_tags_are_never_rewritten(encoder, conll, monkeypatch):
    """They may look like BIO: here the I-x after O is one of somebody's parts of speech."""
    task = Tag(TOKENIZER, TagOptions(scheme="plain"))
    examples = learn(task, conll("Ann\tI-x\nsings\tO\n"))
    assert task.metric == "accuracy" and not task.marks_entities
    monkeypatch.setattr(
        BertForTokenClassification, "best_tags", lambda model, logits, chosen: np.where(chosen, 0, -100)
    )
    assert task.predict(task.new_model(encoder), examples) == [["I-x", "I-x"]]
