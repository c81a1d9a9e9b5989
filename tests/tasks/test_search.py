import json
import os
import sys

import numpy as np
import pytest
from small_encoder import PASSAGES, TOKENIZER

from minibert.data.tasks import Passage
from minibert.errors import UserError
from minibert.files import folder_locked
from minibert.heads import SentenceEncoder
from minibert.tasks.embed import TextEncoder
from minibert.tasks.search import PassageIndex, exact_search


def ids(found):
    return [[hit.passage.id for hit in hits] for hits in found]


# -- Brute force ------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 7, 100])
def test_exact_search_is_a_sort_of_all_cosines(block):
    rng = np.random.default_rng(0)
    queries, vectors = rng.normal(size=(300, 5)), rng.normal(size=(40, 5))
    rows, cosines = exact_search(queries, vectors, 6, block=block)
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :6]
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(cosines, np.take_along_axis(queries @ vectors.T, expected, 1), rtol=1e-12)


def test_exact_search_gives_no_more_than_there_is():
    rows, cosines = exact_search(np.ones((2, 3)), np.ones((4, 3)), 10)
    assert rows.tolist() == [[0, 1, 2, 3]] * 2 and cosines.shape == (2, 4)


def test_of_equal_cosines_the_first_row_comes_first():
    vectors = np.tile([1.0, 0.0], (40, 1))
    vectors[::2] = [0.0, 1.0]
    rows, _ = exact_search(np.array([[1.0, 0.0]]), vectors, 40)
    assert rows[0].tolist() == [*range(1, 40, 2), *range(0, 40, 2)]


# -- The database -----------------------------------------------------------------------------------


def test_a_passage_is_nearest_to_itself(index, encoder):
    vectors = encoder.embed([passage.text for passage in PASSAGES])
    found = index.search(vectors, 2)
    assert [hits[0].passage for hits in found] == PASSAGES
    assert [hits[0].score for hits in found] == pytest.approx([1] * 6, abs=1e-5)
    assert sorted(ids(index.search(vectors[:1], 10))[0]) == list("012345"), "no more than there are"


def test_the_index_finds_what_brute_force_finds(index, encoder):
    names, vectors = index.vectors()
    assert index.passages() == PASSAGES and names == [passage.id for passage in PASSAGES]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    queries = encoder.embed(["who sings ?", "what river ?", "rome"])
    rows, cosines = exact_search(queries / np.linalg.norm(queries, axis=1, keepdims=True), vectors, 3)
    found = index.search(queries, 3)
    assert ids(found) == [[names[row] for row in best] for best in rows]
    scores = [[hit.score for hit in hits] for hits in found]
    np.testing.assert_allclose(scores, cosines, atol=1e-5)


def test_without_queries_nothing_is_found(index, encoder):
    assert index.search(np.zeros((0, encoder.dimension), np.float32)) == []


def test_conditions_choose_among_all_passages(index, encoder):
    query = encoder.embed(["ann sings"])
    places = [passage.id for passage in PASSAGES if passage.title == "places"]
    assert sorted(ids(index.search(query, 9, where="title = 'places'"))[0]) == places
    assert ids(index.search(query, 5, where="id in ('0', '1')")) == [["0", "1"]]
    nearest = ids(index.search(query, 1, where="title = 'places'"))[0]
    assert len(nearest) == 1 and nearest[0] in places, "before the nearest ones are chosen"
    with pytest.raises(UserError, match=r"the condition 'colour = 3' cannot be used .*No field named colour"):
        index.search(query, 1, where="colour = 3")
    with pytest.raises(UserError, match=r"the condition 'cast\(title as int\) = 1' cannot be used") as caught:
        index.search(query, 1, where="cast(title as int) = 1")
    assert "/" not in str(caught.value)


def test_more_passages_than_there_are(index, encoder):
    assert len(index.search(encoder.embed(["ann sings"]), 2**40)[0]) == len(PASSAGES)


def test_an_index_is_opened_and_added_to(index, encoder, tmp_path):
    new = Passage("new", "what ?", "more")
    index.add(encoder, [new])
    again = PassageIndex.open(tmp_path / "index")
    assert len(again) == 7 and again.passages() == [*PASSAGES, new]
    assert again.version > 1
    assert ids(again.search(encoder.embed(["what ?"]), 1)) == [["new"]]


def test_an_index_that_cannot_be_written_is_told_in_one_line(index, encoder, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for change in (lambda: index.add(encoder, [Passage("new", "rome")]), index.make_approximate):
        with pytest.raises(UserError, match=r"cannot write here \(Permission denied\)"):
            change()
    assert len(index) == 6


def test_ids_are_not_taken_twice(index, encoder, tmp_path):
    new = Passage("new", "what ?")
    with pytest.raises(UserError, match="two passages have the id '1'"):
        index.add(encoder, [new, PASSAGES[1]])
    assert len(PassageIndex.open(tmp_path / "index")) == 6, "nothing was added"
    index.add(encoder, [Passage(f"n{i}", "rome") for i in range(30)])
    with pytest.raises(UserError, match="two passages have the id 'n29'"):
        index.add(encoder, [Passage("n29", "rome")])
    with pytest.raises(UserError, match="two passages have the id 'new'"):
        PassageIndex.create(tmp_path / "other", encoder, [new, new])
    assert not (tmp_path / "other").exists()


def test_an_approximate_index_finds_the_new_passages_too(index, encoder, tmp_path):
    more = [Passage(f"n{i}", f"ann in rome {'a ' * i}") for i in range(30)]
    index.make_approximate()
    index.add(encoder, more)
    again = PassageIndex.open(tmp_path / "index")
    queries = encoder.embed(["ann in rome a a a", "bob dances"])
    assert ids(again.search(queries, 1)) == ids(again.search(queries, 1, exact=True)) == [["n3"], ["1"]]


def test_a_query_by_another_model_is_refused(index, encoder_folder, tmp_path):
    other = TextEncoder.open(encoder_folder, pooling="max")
    message = r"index: made with another model \(.*encoder, pooling mean, 128 tokens\)"
    for act in (index.check, lambda encoder: index.add(encoder, [Passage("new", "rome")])):
        with pytest.raises(UserError, match=message):
            act(other)
    SentenceEncoder(other.model.config, seed=2).save_pretrained(encoder_folder)  # trained on, say
    with pytest.raises(UserError, match=message):
        index.open_encoder()


def test_the_index_knows_how_its_encoder_was_opened(index, encoder_folder, tmp_path):
    """``index`` is asked for LanceDB's sake only."""
    encoder = TextEncoder.open(encoder_folder, pooling="max", max_length=7)
    other = PassageIndex.create(tmp_path / "other", encoder, PASSAGES)
    again = other.open_encoder()
    assert (again.model.pooling, again.max_length, again.digest) == ("max", 7, encoder.digest)
    with pytest.raises(UserError, match="other: made with another model"):
        other.open_encoder(max_length=8)


def test_an_approximate_index_is_one_of_cosines(index, encoder):
    index.add(encoder, [Passage(f"n{i}", f"ann in rome {'a ' * i}") for i in range(30)])
    assert not index._table.list_indices()
    index.make_approximate()
    (made,) = index._table.list_indices()
    assert (made.columns, index._table.index_stats(made.name).distance_type) == (["vector"], "cosine")


def test_an_encoder_that_reads_less_than_the_index_needs_is_another_one(index, encoder, tmp_path):
    config = encoder.model.config.replace(max_position_embeddings=64)
    SentenceEncoder(config).save_pretrained(tmp_path / "short")
    TOKENIZER.save_pretrained(tmp_path / "short")
    with pytest.raises(UserError, match="index: made with another model"):
        index.open_encoder(tmp_path / "short")


def test_a_damaged_index_is_told_in_one_line(index, encoder, tmp_path):
    vectors = encoder.embed(["rome"])
    for path in (tmp_path / "index" / "passages.lance" / "data").iterdir():
        path.write_bytes(path.read_bytes()[:-30])
    damaged = PassageIndex.open(tmp_path / "index")
    for act in (
        damaged.passages,
        lambda: damaged.search(vectors),
        lambda: damaged.search(vectors, where="id = '1'"),  # which is a good condition
        lambda: damaged.add(encoder, [Passage("new", "rome")]),
    ):
        with pytest.raises(UserError, match=r"index: damaged \(.*\); make the index again$"):
            act()


def test_vectors_that_cannot_be_compared_are_refused(index, encoder, tmp_path):
    message = "the model gives vectors with NaN or infinity"
    with pytest.raises(UserError, match=message):
        index.search(np.full((1, 8), np.nan, np.float32))
    encoder.model.buffers.value[...] = np.nan
    with pytest.raises(UserError, match=message):
        PassageIndex.create(tmp_path / "new", encoder, PASSAGES)
    assert not (tmp_path / "new").exists()


def test_two_openings_of_an_index_do_not_add_the_same_id(index, encoder, tmp_path):
    other = PassageIndex.open(tmp_path / "index")
    index.add(encoder, [Passage("new", "rome")])
    with pytest.raises(UserError, match="two passages have the id 'new'"):
        other.add(encoder, [Passage("new", "rome")])


def test_an_index_that_somebody_has_made_meanwhile_is_not_replaced(encoder, tmp_path, monkeypatch):
    """Between the look whether there is one and the end of the embedding, hours may pass."""
    embed, folder = TextEncoder.embed, tmp_path / "new"

    def slowly(*arguments):
        monkeypatch.setattr(TextEncoder, "embed", embed)
        PassageIndex.create(folder, encoder, PASSAGES[:2])
        return embed(*arguments)

    monkeypatch.setattr(TextEncoder, "embed", slowly)
    with pytest.raises(UserError, match="new has been made by another process meanwhile"):
        PassageIndex.create(folder, encoder, PASSAGES)
    assert PassageIndex.open(folder).passages() == PASSAGES[:2]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".new")] == []


def test_an_index_comes_to_its_place_while_others_are_locked_out(encoder, tmp_path, monkeypatch):
    replace, held = os.replace, []

    def look(*paths):
        with folder_locked(tmp_path, wait=False) as free:
            held.append(not free)
        replace(*paths)

    monkeypatch.setattr("minibert.files.os.replace", look)
    PassageIndex.create(tmp_path / "new", encoder, PASSAGES)
    assert held == [True]


def test_the_index_knows_its_encoder(index, encoder, encoder_folder, tmp_path):
    assert index.open_encoder().digest == encoder.digest
    encoder_folder.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"the encoder is no longer in .*/encoder; say where it is"):
        index.open_encoder()
    assert index.open_encoder(tmp_path / "moved").digest == encoder.digest


def test_an_encoder_that_was_never_in_a_folder(encoder, tmp_path):
    nowhere = TextEncoder(encoder.model, encoder.tokenizer, encoder.max_length)
    made = PassageIndex.create(tmp_path / "made", nowhere, PASSAGES)
    with pytest.raises(UserError, match="made: the encoder was in no folder; say where it is"):
        made.open_encoder()


def test_what_is_no_index(index, encoder, tmp_path):
    with pytest.raises(UserError, match="nowhere: no index of passages; make one with"):
        PassageIndex.open(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(UserError, match=r"vectors of shape \(8,\); expected \(Q, 8\)"):
        index.search(np.ones(8, np.float32))
    with pytest.raises(UserError, match="index exists already"):
        PassageIndex.create(tmp_path / "index", encoder, PASSAGES)
    with pytest.raises(UserError, match="there are no passages"):
        PassageIndex.create(tmp_path / "new", encoder, [])
    with pytest.raises(UserError, match=r"vectors of shape \(1, 3\); expected \(Q, 8\)"):
        index.search(np.ones((1, 3), np.float32))
    for top_k in (0, 2.5):
        with pytest.raises(UserError, match=f"top_k must be a whole number of at least 1, got {top_k}"):
            index.search(np.ones((1, 8), np.float32), top_k)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, r"damaged, or not made by minibert"),
        ({"minibert": "{"}, r"damaged, or not made by minibert"),
        ({"minibert": "version 3"}, r"an index of version 3, expected 2; make it again"),
    ],
)
def test_tables_of_others_are_refused(index, tmp_path, metadata, message):
    import lancedb

    rows = lancedb.connect(tmp_path / "index").open_table("passages").to_arrow()
    if metadata == {"minibert": "version 3"}:
        info = json.loads(rows.schema.metadata[b"minibert"]) | {"version": 3}
        metadata = {"minibert": json.dumps(info)}
    database = lancedb.connect(tmp_path / "other")
    database.create_table("passages", rows.replace_schema_metadata(metadata))
    with pytest.raises(UserError, match=message):
        PassageIndex.open(tmp_path / "other")


def test_without_the_database_one_line_says_what_to_install(encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    for make in (
        lambda: PassageIndex.open(tmp_path),
        lambda: PassageIndex.create(tmp_path / "new", encoder, PASSAGES),
    ):
        with pytest.raises(
            UserError, match="LanceDB, which is not installed; run  python -m pip install lancedb"
        ):
            make()
