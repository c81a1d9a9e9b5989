import json
import zipfile

import pytest

from minibert.data.tasks import Faults, MinimalPair, read_blimp
from minibert.errors import UserError

ROW = dict(
    sentence_good="It is.",
    sentence_bad="It are.",
    UID="agreement_1",
    linguistics_term="agreement",
    pairID="0",
)


@pytest.fixture
def places(tmp_path):
    """The same two files as a folder and as an archive with what a Mac adds to it."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("b", "a"):
        (folder / f"{name}.jsonl").write_text(json.dumps(ROW | dict(UID=name)) + "\n")
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"data/{file.name}")
        archive.writestr("__MACOSX/data/._a.jsonl", b"\0\1")
    return folder, tmp_path / "pairs.zip"


def test_folders_archives_and_single_files(places):
    folder, archive = places
    expected = [MinimalPair("It is.", "It are.", name, "agreement") for name in "ab"]
    assert read_blimp(folder) == read_blimp(archive) == expected
    assert read_blimp(folder / "a.jsonl") == expected[:1]


@pytest.mark.parametrize(
    "bad", ["", "{", "[]", "3", json.dumps(ROW | dict(UID=1)), '{"sentence_good": "It is."}']
)
def test_a_bad_row_is_refused_by_file_and_line_or_skipped(places, bad):
    folder, _ = places
    (folder / "b.jsonl").write_text(f"{json.dumps(ROW)}\n{bad}\n")
    with pytest.raises(UserError, match=r"b\.jsonl: line 2: expected a JSON object"):
        read_blimp(folder)
    faults = Faults(skip_bad=True)
    assert len(read_blimp(folder, faults=faults)) == 2
    assert len(faults.skipped) == 1


def test_half_a_surrogate_pair_is_a_bad_row(places):
    folder, _ = places
    (folder / "b.jsonl").write_text(json.dumps(ROW | {"sentence_bad": "It \ud800."}) + "\n")
    with pytest.raises(UserError, match=r"b\.jsonl: line 1: holds half a surrogate pair"):
        read_blimp(folder)


def test_places_without_pairs(tmp_path):
    with pytest.raises(UserError, match="no minimal pair found"):
        read_blimp(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        read_blimp(tmp_path / "none.zip")
    (tmp_path / "broken.zip").write_text("no archive")
    with pytest.raises(UserError, match="cannot read this archive"):
        read_blimp(tmp_path / "broken.zip")


@pytest.mark.parametrize(("place", "value"), [(6, 1), (8, 97)])  # encrypted, and compressed in another way
def test_an_archive_that_python_does_not_open(places, place, value):
    _, archive = places
    data = bytearray(archive.read_bytes())
    for header, offset in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
        at = data.find(header)
        data[at + place + offset] = value
    archive.write_bytes(data)
    with pytest.raises(UserError, match="cannot read this archive"):
        read_blimp(archive)
