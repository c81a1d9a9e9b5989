"""Corpora turned into token arrays on disk, which training maps into memory.

A prepared folder holds
  tokens.bin           the ids of all tokens, one after the other: uint16 if V ≤ 65,536, else int32
  sentence_starts.bin  int64: where each sentence begins in the tokens, and where the last one ends
  document_starts.bin  int64: where each document begins in the sentences, and where the last one ends
  document_keys.bin    uint64: a hash of each document's text, by which some are held out
  meta.json            the sizes, and what it was made from
"""

import glob
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from tqdm import tqdm

from minibert.data.corpora import Corpus, RawDocument
from minibert.data.randomness import generator
from minibert.errors import UserError
from minibert.files import atomic_folder, explain_write_errors, folder_locked, read_json, write_json
from minibert.ranks import Ranks

FORMAT = 5
PIECE_CHARACTERS = 1_000_000  # documents go to the workers in pieces of about this size


class SupportsTokenIds(Protocol):
    """What a tokenizer must offer here."""

    tokens: list[str]

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""

    def token_ids_batch(self, texts: list[str]) -> list[list[int]]:
        """The token ids of each text."""

    def definition(self) -> list[Any]:
        """All that the ids of a text depend on, as JSON can hold it."""


@dataclass(frozen=True)
class Documents:
    """Some documents of a prepared corpus, by their numbers ``chosen`` (M,), ascending.

    tokens (T,): the ids of the whole corpus; sentence_starts (N + 1,): into the tokens;
    document_starts (corpus documents + 1,): into the sentences.
    """

    tokens: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray
    chosen: np.ndarray

    def __len__(self) -> int:
        return len(self.chosen)

    def sentence_bounds(self, index: int) -> list[int]:
        """Where in the tokens each sentence of the index-th document begins, and where the last one ends."""
        document = self.chosen[index]
        first, stop = self.document_starts[document], self.document_starts[document + 1]
        return self.sentence_starts[first : stop + 1].tolist()

    def token_ranges(self) -> np.ndarray:
        """Where each document begins and ends in the tokens: (M, 2) int64."""
        sentences = np.stack(
            [self.document_starts[self.chosen], self.document_starts[self.chosen + 1]], axis=1
        )
        return self.sentence_starts[sentences]

    def lengths(self) -> np.ndarray:
        """How many tokens each document has: (M,) int64."""
        starts, stops = self.token_ranges().T
        return stops - starts

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token occurs in these documents: (V,) int64."""
        starts, stops = self.token_ranges().T
        gaps = np.flatnonzero(starts[1:] != stops[:-1]) + 1  # neighbours are counted in one run
        counts = np.zeros(vocab_size, dtype=np.int64)
        for run in np.split(np.arange(len(self)), gaps):
            for start in range(starts[run[0]], stops[run[-1]], 1 << 22):
                piece = self.tokens[start : min(start + (1 << 22), stops[run[-1]])]
                counts += np.bincount(piece, minlength=vocab_size)
        return counts


@dataclass(frozen=True)
class PreparedCorpus:
    """A prepared folder, with its arrays mapped into memory and its documents split into two parts.

    ``reused`` says whether ``prepare_corpus`` found the folder ready.
    """

    folder: Path
    train: Documents
    held_out: Documents
    reused: bool = False

    @classmethod
    def open(cls, folder: str | Path, *, held_out: float = 0.05, seed: int = 0) -> "PreparedCorpus":
        """Map a folder written by ``prepare_corpus``, with a share ``held_out`` of its documents held out.

        ``split_documents`` says which ones. The text on disk is the same for every seed and share.

        Raises UserError if the folder is missing or damaged, or the share is not between 0 and 1.
        """
        folder = Path(folder)
        meta = read_json(folder / "meta.json", "prepared corpus")
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise UserError(
                f"{folder / 'meta.json'}: not a prepared corpus of this version; prepare it again"
            )
        kinds = {"corpus": str, "tokens": int, "sentences": int, "documents": int}
        sound = all(type(meta.get(name)) is kind for name, kind in kinds.items())
        if not sound or meta.get("dtype") not in ("uint16", "int32"):
            raise UserError(
                f"{folder / 'meta.json'}: damaged; delete the folder {folder} and prepare the corpus again"
            )
        documents = meta["documents"]
        tokens = _map(folder / "tokens.bin", meta["dtype"], meta["tokens"])
        sentence_starts = _map(folder / "sentence_starts.bin", "int64", meta["sentences"] + 1)
        document_starts = np.array(_map(folder / "document_starts.bin", "int64", documents + 1))
        document_keys = _map(folder / "document_keys.bin", "uint64", documents)
        is_held_out = split_documents(meta["corpus"], document_keys, held_out, seed)
        has_tokens = np.diff(document_starts) > 0
        documents = partial(Documents, tokens, sentence_starts, document_starts)
        train, rest = (documents(np.flatnonzero(part & has_tokens)) for part in (~is_held_out, is_held_out))
        if not len(train) or not len(rest):
            raise UserError(
                f"{meta['corpus']}: only {len(train) + len(rest)} of {len(has_tokens)} documents have any "
                "token, too few to train on and to hold out; give more text"
            )
        return cls(folder, train, rest)

    def describe(self) -> str:
        """One line with the sizes of both parts."""
        sizes = [
            f"{int(part.lengths().sum()):,} tokens in {len(part):,} documents"
            for part in (self.train, self.held_out)
        ]
        how = "reused from" if self.reused else "written to"
        return f"prepared corpus: {sizes[0]} to train on, {sizes[1]} held out; {how} {self.folder}"


def split_documents(name: str, document_keys: np.ndarray, held_out: float, seed: int) -> np.ndarray:
    """Which documents of the corpus called ``name`` are held out: (documents,) bool.

    The seed puts the n different texts, identified by ``document_keys`` (documents,) uint64, in a random
    order. The first round(held_out · n) are held out, but at least two if that leaves two to train on. So
    documents with the same text are all on the same side, in whatever order the corpus has them.

    Raises UserError if there are no two different texts, or the share is not between 0 and 1.
    """
    if not 0 < held_out < 1:
        raise UserError(f"the share of held-out documents must lie between 0 and 1, got {held_out}")
    # The keys are spread evenly over 64 bits already. An odd factor reorders them and keeps them different.
    factor = generator("held-out split", seed).integers(1 << 64, dtype=np.uint64) | np.uint64(1)
    ranks = document_keys * factor  # modulo 2⁶⁴
    different = np.unique(ranks)  # (n,), ascending
    n = len(different)
    if n < 2:
        raise UserError(_too_few_documents(name, len(document_keys)))
    least = 2 if n >= 4 else 1
    count = min(max(least, round(held_out * n)), n - least)
    return ranks < different[count]


def _too_few_documents(name: str, documents: int) -> str:
    if documents == 0:
        return f"{name}: no text in this corpus; give files with sentences in them"
    found = "a corpus of one document" if documents == 1 else "all documents have the same text"
    return (
        f"{name}: {found}, but one is needed to train on and another to hold out (for next-sentence "
        "prediction, two of each); give several files, or one sentence per line with blank lines "
        "between documents (and --layout sentences, if that is what it has)"
    )


def training_sentences(corpus: Corpus, *, held_out: float, seed: int) -> Iterator[str]:
    """The sentences of the documents that ``prepare_corpus`` leaves to train on, for the vocabulary.

    Each is as in `running_text`. Several ranks get those of their share. Reads the corpus twice, and keeps 8
    bytes per document. Raises UserError as ``split_documents`` does, and what reading the corpus raises.
    """
    own = corpus.share()
    gathered = corpus.ranks.gather_arrays({"keys": own.document_keys()})
    everybody = np.concatenate([each["keys"] for each in gathered])
    start = sum(len(each["keys"]) for each in gathered[: corpus.ranks.rank])
    is_held_out = split_documents(corpus.name, everybody, held_out, seed)[start:]
    for document, left_out in zip(own.raw_documents(), is_held_out, strict=False):
        if not left_out:
            yield from running_text(document.sentences())


def running_text(sentences: Iterable[str]) -> list[str]:
    """The sentences of a document, each but the first with the space before it that running text has.

    Byte-level tokenizers, such as RoBERTa's, read " The" and "The" as different tokens. To others it makes no
    difference.
    """
    return [f" {sentence}" if number else sentence for number, sentence in enumerate(sentences)]


def prepare_corpus(
    corpus: Corpus,
    tokenizer: SupportsTokenIds,
    folder: str | Path,
    *,
    held_out: float = 0.05,
    seed: int = 0,
    processes: int | None = None,
    progress: bool = False,
) -> PreparedCorpus:
    """Tokenise a corpus into ``folder``, unless that already holds this corpus from this tokenizer.

    Memory is bounded: each of the ``processes`` (default: all cores) has a few documents in progress, about
    a million characters or one long document at a time. Several ranks turn their shares of the corpus into
    tokens, each in that many processes (default: its share of the cores), in a folder that all of them see;
    the first rank puts these parts together. The result does not depend on how many ranks and processes there
    are.

    The folder appears only once it is complete. A corpus that was prepared there from something else is
    replaced, and what a killed run left unfinished beside it is removed. Any other folder that is not empty
    is refused. ``held_out`` and ``seed``: see ``split_documents``.

    Raises UserError for such a folder, for a corpus that cannot be split or that changes meanwhile, if a
    process is killed, and what reading the corpus raises.
    """
    folder = Path(folder)
    source = {
        "corpus_sha256": corpus.fingerprint(),
        "tokenizer_sha256": _tokenizer_fingerprint(tokenizer),
        "dtype": "uint16" if tokenizer.vocab_size <= 1 << 16 else "int32",
    }
    ranks = corpus.ranks
    if ranks.broadcast(_is_prepared_from(folder, source)):
        prepared = PreparedCorpus.open(folder, held_out=held_out, seed=seed)
        return replace(prepared, reused=True)
    if ranks.first and folder.is_file():
        raise UserError(f"{folder}: expected a folder for the prepared corpus, found a file; choose another")
    if ranks.first and folder.exists() and not (folder / "meta.json").is_file() and any(folder.iterdir()):
        raise UserError(f"{folder}: this folder is not empty and holds no prepared corpus; choose another")
    processes = processes or max(1, (os.cpu_count() or 1) // ranks.local_size)
    with unfinished_folder(folder, ranks) as unfinished:
        own = unfinished if ranks.size == 1 else _part(unfinished, ranks.rank)
        own.mkdir(exist_ok=True)
        sizes = ranks.gather(
            _write_arrays(corpus.share(), tokenizer, own, source["dtype"], processes, progress)
        )
        if ranks.first:
            if ranks.size > 1:
                _join([_part(unfinished, rank) for rank in range(ranks.size)], sizes, unfinished)
            corpus.check_unchanged()
            keys = np.fromfile(unfinished / "document_keys.bin", np.uint64)
            split_documents(corpus.name, keys, held_out, seed)  # raises before the folder is there
            total = {name: sum(each[name] for each in sizes) for name in sizes[0]}
            write_json(unfinished / "meta.json", {"format": FORMAT, "corpus": corpus.name, **source, **total})
    return PreparedCorpus.open(folder, held_out=held_out, seed=seed)


def _is_prepared_from(folder: Path, source: dict[str, str]) -> bool:
    try:
        meta = read_json(folder / "meta.json")
    except UserError:  # missing or damaged: it has to be made
        return False
    return isinstance(meta, dict) and meta | {"format": FORMAT, **source} == meta


def _tokenizer_fingerprint(tokenizer: SupportsTokenIds) -> str:
    """A hash of the tokenizer, and of how its code treats case, accents, scripts and marks."""
    probe = "Ça, the naïve CAFÉ — 東京 ΟΔΟΣ [MASK] don't e-mail\u200b x\u0301 " + "a" * 150
    behaviour = json.dumps([tokenizer.token_ids_batch([probe]), *tokenizer.definition()])
    return hashlib.sha256(behaviour.encode()).hexdigest()


def _map(path: Path, dtype: str, count: int) -> np.ndarray:
    expected = np.dtype(dtype).itemsize * count
    size = path.stat().st_size if path.is_file() else 0
    if size != expected:
        raise UserError(
            f"{path}: damaged: {size:,} bytes, expected {expected:,}; delete the folder {path.parent} and "
            "prepare the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.empty(0, dtype)


# -- Writing ----------------------------------------------------------------------------------------


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """`atomic_folder`, after removing what killed preparations of the same folder have left behind.

    Whoever prepares a folder holds a lock on the temporary one. If that is not locked, its owner is dead.
    """
    with explain_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks, ExitStack() as workshop:
        # Nobody may see a temporary folder before its owner has locked it.
        with folder_locked(folder.parent):
            for abandoned in folder.parent.glob(f".{glob.escape(folder.name)}.*.part"):
                with folder_locked(abandoned, wait=False) as free:
                    if free:
                        shutil.rmtree(abandoned, ignore_errors=True)
            unfinished = workshop.enter_context(atomic_folder(folder))
            locks.enter_context(folder_locked(unfinished.parent))
        yield unfinished


@contextmanager
def unfinished_folder(folder: Path, ranks: Ranks) -> Iterator[Path]:
    """A folder for all ranks to work in, which becomes ``folder`` at the end of the block (`atomic_folder`).

    What killed runs have left of it is removed. Raises UserError on a rank that does not see the folder which
    rank 0 has made.
    """
    if ranks.first:
        with _unfinished(folder) as unfinished:
            ranks.broadcast(str(unfinished))
            yield unfinished
    else:
        unfinished = Path(ranks.broadcast(None))
        if not unfinished.is_dir():
            raise UserError(
                f"{folder.parent}: rank {ranks.rank} does not see what rank 0 writes there; choose a folder "
                "that all machines share"
            )
        with explain_write_errors(folder):
            yield unfinished
    ranks.barrier()  # now it is there


def _part(unfinished: Path, rank: int) -> Path:
    """Where a rank writes its part: beside the unfinished folder, to be removed with it."""
    return unfinished.parent / f"rank-{rank}"


def _join(parts: list[Path], sizes: list[dict[str, int]], folder: Path) -> None:
    """Put the arrays of all ranks one after the other; where sentences and documents begin moves on."""
    before = {"tokens": 0, "sentences": 0, "documents": 0}
    with (
        open(folder / "tokens.bin", "wb") as tokens,
        open(folder / "sentence_starts.bin", "wb") as sentence_starts,
        open(folder / "document_starts.bin", "wb") as document_starts,
        open(folder / "document_keys.bin", "wb") as document_keys,
    ):
        for part, size in zip(parts, sizes, strict=True):
            _append(part / "tokens.bin", tokens)
            _append_starts(part / "sentence_starts.bin", size["sentences"], before["tokens"], sentence_starts)
            _append_starts(
                part / "document_starts.bin", size["documents"], before["sentences"], document_starts
            )
            _append(part / "document_keys.bin", document_keys)
            before = {name: before[name] + size[name] for name in before}
            shutil.rmtree(part)
        sentence_starts.write(np.int64(before["tokens"]).data)
        document_starts.write(np.int64(before["sentences"]).data)


def _append(path: Path, to: BinaryIO) -> None:
    with open(path, "rb") as file:
        shutil.copyfileobj(file, to)


def _append_starts(path: Path, count: int, offset: int, to: BinaryIO) -> None:
    """Append the first ``count`` numbers, each plus ``offset``, a million at a time."""
    for start in range(0, count, 1 << 20):
        numbers = np.fromfile(path, np.int64, min(1 << 20, count - start), offset=8 * start)
        to.write((numbers + offset).data)


@dataclass(frozen=True)
class _Piece:
    """Some consecutive documents as tokens; sentences without tokens are left out."""

    tokens: np.ndarray  # ids
    sentence_lengths: np.ndarray  # int64, in tokens
    document_lengths: np.ndarray  # int64, in sentences
    document_keys: np.ndarray  # uint64
    position: int  # how far into the corpus it ends


def _write_arrays(
    corpus: Corpus,
    tokenizer: SupportsTokenIds,
    folder: Path,
    dtype: str,
    processes: int,
    progress: bool,
) -> dict[str, int]:
    """Write the four arrays piece by piece; return how many tokens, sentences and documents there are."""
    sizes = {"tokens": 0, "sentences": 0, "documents": 0}
    pieces = _ordered_map(_cut(corpus.raw_documents()), tokenizer, dtype, processes)
    with (
        open(folder / "tokens.bin", "wb") as tokens,
        open(folder / "sentence_starts.bin", "wb") as sentence_starts,
        open(folder / "document_starts.bin", "wb") as document_starts,
        open(folder / "document_keys.bin", "wb") as document_keys,
        tqdm(
            total=corpus.size, unit=corpus.unit, unit_scale=True, desc="preparing", disable=not progress
        ) as bar,
    ):
        for piece in pieces:
            tokens.write(piece.tokens.data)
            sentence_starts.write((sizes["tokens"] + _starts(piece.sentence_lengths)).data)
            document_starts.write((sizes["sentences"] + _starts(piece.document_lengths)).data)
            document_keys.write(piece.document_keys.data)
            sizes["tokens"] += len(piece.tokens)
            sizes["sentences"] += len(piece.sentence_lengths)
            sizes["documents"] += len(piece.document_lengths)
            bar.update(piece.position - bar.n)
        sentence_starts.write(np.int64(sizes["tokens"]).data)
        document_starts.write(np.int64(sizes["sentences"]).data)
    return sizes


def _starts(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


def _cut(documents: Iterable[RawDocument]) -> Iterator[list[RawDocument]]:
    """Gather documents into lists of about PIECE_CHARACTERS."""
    gathered, characters = [], 0
    for document in documents:
        gathered.append(document)
        characters += sum(map(len, document.paragraphs))
        if characters >= PIECE_CHARACTERS:
            yield gathered
            gathered, characters = [], 0
    if gathered:
        yield gathered


def _ordered_map(
    pieces: Iterator[list[RawDocument]], tokenizer: SupportsTokenIds, dtype: str, processes: int
) -> Iterator[_Piece]:
    """Tokenise the pieces in ``processes`` processes, in order, with a bounded number of them in progress."""
    if processes == 1:
        yield from (_tokenise(piece, tokenizer, dtype) for piece in pieces)
        return
    with ProcessPoolExecutor(processes, initializer=_start_worker, initargs=(tokenizer, dtype)) as pool:
        under_way = deque(pool.submit(_work, piece) for piece in itertools.islice(pieces, 2 * processes))
        while under_way:
            try:
                done = under_way.popleft().result()
                under_way.extend(pool.submit(_work, piece) for piece in itertools.islice(pieces, 1))
            except BrokenProcessPool:
                raise UserError(
                    "a process that prepared the corpus was killed, perhaps for want of memory; give fewer "
                    f"--processes than {processes}"
                ) from None
            yield done


_worker_state: tuple[SupportsTokenIds, str]  # set once in each worker process


def _start_worker(tokenizer: SupportsTokenIds, dtype: str) -> None:
    global _worker_state
    _worker_state = tokenizer, dtype
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work, and hold its files and locks, forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _work(documents: list[RawDocument]) -> _Piece:
    return _tokenise(documents, *_worker_state)


def _tokenise(documents: list[RawDocument], tokenizer: SupportsTokenIds, dtype: str) -> _Piece:
    ids: list[int] = []
    sentence_lengths: list[int] = []
    document_lengths: list[int] = []
    for document in documents:
        texts = running_text(document.sentences())
        sentences = [sentence for sentence in tokenizer.token_ids_batch(texts) if sentence]
        ids.extend(itertools.chain.from_iterable(sentences))
        sentence_lengths.extend(map(len, sentences))
        document_lengths.append(len(sentences))
    return _Piece(
        np.array(ids, dtype=dtype),
        np.array(sentence_lengths, dtype=np.int64),
        np.array(document_lengths, dtype=np.int64),
        np.array([document.key() for document in documents], dtype=np.uint64),
        documents[-1].position,
    )
