"""The two tracks: text, vocabulary and held-out batches that are the same for every run, by their hashes."""

import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT
from minibert.data import PreparedCorpus
from minibert.errors import UserError
from minibert.files import atomic_folder, folder_locked
from minibert.settings import read_settings
from minibert.tasks import prepare
from minibert.tasks.held_out import evaluation_batches
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import BertTokenizer

SHARED = ROOT.parent / "shared" / "data"
TRACKS_FILE = Path(__file__).with_name("tracks.toml")
WORDS = 5_000_000  # of each half of the large corpus that are trained on; a twentieth more is held out


@dataclass(frozen=True)
class Track:
    """A corpus that is prepared, the batches that every run is measured on, and the budget.

    ``settings`` are those of the text; a run adds all others.
    """

    name: str
    settings: PretrainSettings
    tokenizer: BertTokenizer
    prepared: PreparedCorpus
    held_out: list[dict[str, np.ndarray]]
    passes: int

    def held_out_of(self, length: int) -> list[dict[str, np.ndarray]]:
        """The held-out text in sequences of another length, for runs that learn no further positions."""
        return _held_out(self.settings, self.tokenizer, self.prepared, length)


def open_track(name: str, folder: Path) -> Track:
    """Prepare the text of a track in a folder, and check that it is what all records were made with.

    Raises UserError, naming what differs, if it is not.
    """
    about = read_settings(TRACKS_FILE)[name]
    corpus = (str(ten_million_words(folder / "10m")),) if name == "10m" else ()
    settings = PretrainSettings(
        corpus=corpus, held_out_seed=about["held_out_seed"], prepared=str(folder / "prepared")
    )
    tokenizer, prepared = prepare(settings)
    batches = _held_out(settings, tokenizer, prepared, about["sequence_length"])
    hashes = {
        "vocabulary": _digest(["\n".join(tokenizer.tokens).encode()]),
        "training_text": _digest(_pieces(prepared.train.tokens, prepared.train.token_ranges())),
        "held_out_batches": _digest(array.tobytes() for batch in batches for array in batch.values()),
    }
    for what, digest in hashes.items():
        if digest != about[what]:
            raise UserError(
                f"track {name}: the {what.replace('_', ' ')} has the SHA-256 {digest[:16]}…, not that of the "
                f"records, {about[what][:16]}…; records can be compared only on the same text"
            )
    return Track(name, settings, tokenizer, prepared, batches, about["passes"])


def _held_out(
    settings: PretrainSettings, tokenizer: BertTokenizer, prepared: PreparedCorpus, length: int
) -> list[dict[str, np.ndarray]]:
    """Single full sequences, whatever a run reads, with the masks of seed 0."""
    sizes = {"max_seq_length": length, "max_predictions": length}
    single = settings.replace(nsp=False, whole_sentences=False, held_out_seed=0, **sizes)
    return evaluation_batches(single, tokenizer, prepared)


def _pieces(tokens: np.ndarray, ranges: np.ndarray) -> Iterator[bytes]:
    return (np.asarray(tokens[start:stop], dtype="<u2").tobytes() for start, stop in ranges)


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


# -- Ten million words -------------------------------------------------------------------------------

# Novels that may not be in the public domain where copyright ends 70 years after an author's death, or 95
# years after publication.
NOT_FREE = ("Forster", "_1928", "_1929", "_1930", "_1931", "_1932", "_1933", "_1937")


def ten_million_words(folder: Path) -> Path:
    """Write five million words of Wikipedia and five of novels, and a twentieth more to hold out.

    Whole articles and whole novels, in the order of the files, but novels by the hash of their names, so that
    authors mix. Raises UserError if the texts are not there.
    """
    limit = WORDS + WORDS // 20
    parts = {"wikipedia": _first(all_articles(), limit), "novels": _first(all_novels(), limit)}
    return write_texts(folder, "the track of ten million words", parts)


def main() -> None:
    """Write the texts into ``prepared/10m``, for runs that are no records."""
    print(ten_million_words(ROOT / "prepared" / "10m"))


def write_texts(folder: Path, what: str, parts: Mapping[str, Iterable[str]]) -> Path:
    """Write the documents of each part to a file of its own, unless the folder is there already.

    Raises UserError, naming ``what`` is to be made, if the data sets for it are not there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder_locked(folder.parent):  # another run may begin at the same time
        if folder.is_dir():
            return folder
        if not SHARED.is_dir():
            raise UserError(f"{SHARED}: no such folder; {what} is made of texts in it")
        with atomic_folder(folder) as unfinished:
            for name, documents in parts.items():
                with (unfinished / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps({"text": text}) + "\n" for text in documents)
    return folder


def _first(documents: Iterator[str], words: int) -> Iterator[str]:
    """Documents until there are so many words, the last one with them."""
    while words > 0:
        document = next(documents)
        words -= len(document.split())
        yield document


def all_articles() -> Iterator[str]:
    """The articles of Wikipedia, a paragraph a line."""
    for path in sorted((SHARED / "wikipedia_en").glob("*.txt.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            article: list[str] = []
            for line in lines:
                if line.startswith("</doc>"):
                    yield "\n".join(article)
                    article = []
                elif line.strip() and not line.startswith("<doc "):
                    article.append(line.strip())


def all_novels() -> Iterator[str]:
    """The novels that are free, a paragraph a line."""
    with tarfile.open(SHARED / "novels100" / "100_english_novels.tar.gz") as archive:
        names = [name for name in archive.getnames() if name.endswith(".txt")]
        free = [name for name in names if not any(part in name for part in NOT_FREE)]
        for name in sorted(free, key=lambda name: hashlib.sha256(Path(name).name.encode()).digest()):
            file = archive.extractfile(name)
            assert file is not None  # names of files only
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n")
            yield "\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())


def with_track(settings: Mapping[str, Any], track: Track) -> PretrainSettings:
    """A run's settings with those of the track's text."""
    text = ("corpus", "held_out_seed", "prepared")
    return PretrainSettings.from_dict({**settings, **{name: getattr(track.settings, name) for name in text}})


if __name__ == "__main__":
    main()
