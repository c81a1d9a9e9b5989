"""Finding passages by meaning: their vectors are in an embedded vector database, on disk.

The database is LanceDB (benchmarks/README.md says why). An index is a folder with one table, which has a row
per passage: id, title, text and vector (H,) of length 1. The table's metadata say how the vectors were made,
so that one commit holds everything. Every change is a new version of the table, written whole or not at all.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from minibert import ops
from minibert.data.tasks import Passage
from minibert.errors import UserError, check_count
from minibert.files import atomic_folder, check_writable, folder_locked
from minibert.tasks.embed import TextEncoder, check_finite
from minibert.variants import open_config

TABLE = "passages"
COLUMNS = ["id", "title", "text"]  # and the vector
METADATA = "minibert"  # the key in the table's metadata
VERSION = 2  # of that metadata

# The approximate search uses HNSW graphs over vectors of 8 bits per number. It looks into PROBES parts of the
# index, and compares REFINE times as many candidates as are wanted with the exact vectors.
PROBES, REFINE = 20, 5

BLOCK = 256  # queries that are searched for together


@dataclass(frozen=True)
class IndexInfo:
    """What an index says about the encoder that made it."""

    version: int
    model: str  # the folder
    digest: str  # TextEncoder.digest
    pooling: str
    max_length: int
    dimension: int


@dataclass(frozen=True)
class Hit:
    """A passage that was found, and how well it matches: its cosine, or the score of a re-ranker."""

    passage: Passage
    score: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"score": self.score, **asdict(self.passage)}


class PassageIndex:
    """An index on disk. ``PassageIndex.open(folder)`` opens one, ``PassageIndex.create`` makes one."""

    def __init__(self, folder: str | Path, table: Any, info: IndexInfo):
        self.folder, self.info = Path(folder), info
        self._table = table

    # -- Folders --------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        folder: str | Path,
        encoder: TextEncoder,
        passages: Sequence[Passage],
        *,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> "PassageIndex":
        """Make an index of passages in a folder that does not exist yet.

        Raises UserError if the folder exists or cannot be made, if there are no passages, and if two have the
        same id.
        """
        lancedb = _lancedb()
        folder = Path(folder)
        if folder.exists():
            raise UserError(f"{folder} exists already; choose another folder for the index")
        check_writable(folder)
        info = IndexInfo(
            version=VERSION,
            model=encoder.folder,
            digest=encoder.digest,
            pooling=encoder.model.pooling,
            max_length=encoder.max_length,
            dimension=encoder.dimension,
        )
        rows = _rows(info, encoder, passages, set(), batch_size, progress)
        with folder_locked(folder.parent), atomic_folder(folder) as new:  # locked until it is in its place
            if folder.exists():
                raise UserError(
                    f"{folder} has been made by another process meanwhile; add to it, or choose another"
                )
            lancedb.connect(new).create_table(TABLE, rows)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "PassageIndex":
        """Open the index in a folder. Raises UserError if there is none, or if it has another version."""
        lancedb = _lancedb()
        folder = Path(folder)
        if not (folder / f"{TABLE}.lance").is_dir():
            if folder.exists():
                raise UserError(f"{folder}: this is not an index of passages; choose another folder")
            raise UserError(
                f"{folder}: no index of passages; make one with  "
                f"minibert search index --model FOLDER --passages FILE --index {folder}"
            )
        try:
            table = lancedb.connect(folder).open_table(TABLE)
            info = IndexInfo(**json.loads(table.schema.metadata[METADATA.encode()]))
        except Exception as error:  # LanceDB raises many kinds
            raise UserError(f"{folder}: damaged, or not made by minibert ({_first_line(error)})") from None
        if info.version != VERSION:
            raise UserError(
                f"{folder}: an index of version {info.version}, expected {VERSION}; make it again"
            )
        return cls(folder, table, info)

    def add(
        self,
        encoder: TextEncoder,
        passages: Sequence[Passage],
        *,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> None:
        """Add passages, all or none.

        Raises UserError for another encoder, an id that is there already, or a folder that cannot be written.
        """
        self.check(encoder)
        self._check_writable()
        with folder_locked(self.folder):  # so that no other process adds the same ids meanwhile
            self._table.checkout_latest()
            known = set(self._read(["id"])["id"].to_pylist())
            self._table.add(_rows(self.info, encoder, passages, known, batch_size, progress))
            self._table.optimize()  # without it, an approximate search finds new rows too, but more slowly

    def open_encoder(self, folder: str | Path | None = None, **options: Any) -> TextEncoder:
        """The encoder that made the index, from ``folder`` if it is no longer where it was.

        Raises UserError for another encoder, or if there is none any more. ``options`` are those of
        ``TextEncoder.open``: device …
        """
        if folder is None and not self.info.model:
            raise UserError(f"{self.folder}: the encoder was in no folder; say where it is now (--model)")
        if folder is None and not Path(self.info.model).is_dir():
            raise UserError(
                f"{self.folder}: the encoder is no longer in {self.info.model}; say where it is (--model)"
            )
        if folder and open_config(folder).longest_sequence < self.info.max_length:
            raise self._made_otherwise()
        made: dict[str, Any] = {"pooling": self.info.pooling, "max_length": self.info.max_length}
        encoder = TextEncoder.open(folder or self.info.model, **(made | options))
        self.check(encoder)
        return encoder

    def make_approximate(self) -> None:
        """Build the graph that makes searching in very many passages fast."""
        self._check_writable()
        config = _lancedb().index.HnswSq(distance_type="cosine")
        self._table.create_index("vector", config=config)

    def _check_writable(self) -> None:
        check_writable(self.folder / f"{TABLE}.lance" / "data" / "new")

    def check(self, encoder: TextEncoder) -> None:
        """Raise UserError if the vectors in the index were made by another encoder."""
        if encoder.digest != self.info.digest:
            raise self._made_otherwise()

    def _made_otherwise(self) -> UserError:
        return UserError(
            f"{self.folder}: made with another model ({self.info.model}, pooling {self.info.pooling}, "
            f"{self.info.max_length} tokens), or it has changed since; use that one, or make a new index"
        )

    # -- What is in it ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._table.count_rows()

    @property
    def version(self) -> int:
        """How often it has changed: the number of the table's newest version."""
        return self._table.version

    def passages(self) -> list[Passage]:
        """All passages."""
        return [_passage(row) for row in self._read(COLUMNS).to_pylist()]

    def vectors(self) -> tuple[list[str], np.ndarray]:
        """The ids of all passages, and their vectors (N, H), of length 1."""
        table = self._read(["id", "vector"])
        vectors = table["vector"].combine_chunks().flatten().to_numpy()
        return table["id"].to_pylist(), vectors.reshape(-1, self.info.dimension)

    def _read(self, columns: list[str]) -> Any:
        """Some columns of all rows, as an Arrow table. Raises UserError if they cannot be read."""
        try:
            return self._table.search().select(columns).to_arrow()
        except (ValueError, RuntimeError, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> UserError:
        return UserError(f"{self.folder}: damaged ({_first_line(error)}); make the index again")

    # -- Searching ------------------------------------------------------------------------------

    def search(
        self, vectors: np.ndarray, top_k: int = 10, *, exact: bool = False, where: str | None = None
    ) -> list[list[Hit]]:
        """For each of Q vectors (Q, H) the passages with the highest cosines, at most ``top_k``, best first.

        All passages are compared, unless the index is approximate and ``exact`` is False. ``where`` is a
        condition in SQL on id, title and text that passages must meet.

        Raises UserError for vectors of another length, or with NaN or infinity, for a ``top_k`` below 1, for
        a condition that is not SQL, and for an index that is damaged.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.info.dimension:
            raise UserError(
                f"{self.folder}: vectors of shape {vectors.shape}; expected (Q, {self.info.dimension})"
            )
        check_count("top_k", top_k)
        if not len(vectors):
            return []
        check_finite(vectors)
        blocks = np.split(vectors, range(BLOCK, len(vectors), BLOCK))
        return [hits for block in blocks for hits in self._search(block, top_k, exact, where)]

    def _search(self, vectors: np.ndarray, top_k: int, exact: bool, where: str | None) -> list[list[Hit]]:
        query = self._table.search(vectors, vector_column_name="vector").distance_type("cosine")
        query = query.limit(min(top_k, len(self)))
        query = query.bypass_vector_index() if exact else query.nprobes(PROBES).refine_factor(REFINE)
        query = query.select([*COLUMNS, "_distance"])
        if where is not None:
            query = query.where(where, prefilter=True)
        try:
            rows = query.to_arrow().to_pylist()
        except (ValueError, RuntimeError, OSError) as error:
            if where is None:
                raise self._damaged(error) from None
            self._read(COLUMNS)  # if that works, it is the condition itself, or computing it, that does not
            raise UserError(f"the condition {where!r} cannot be used ({_first_line(error)})") from None
        found: list[list[Hit]] = [[] for _ in vectors]
        for row in rows:
            found[row.get("query_index", 0)].append(Hit(_passage(row), 1.0 - row["_distance"]))
        return found


def _lancedb() -> ModuleType:
    """The database's module, loaded when it is needed: not everybody has it, and loading takes a second."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # its warnings are for programmers
    try:
        import lancedb
        import lancedb.index
    except ImportError:
        raise UserError(
            "searching needs the vector database LanceDB, which is not installed; run  "
            "python -m pip install lancedb"
        ) from None
    return lancedb


def _rows(
    info: IndexInfo,
    encoder: TextEncoder,
    passages: Sequence[Passage],
    known: set[str],
    batch_size: int | None,
    progress: bool,
) -> Any:
    """The rows of new passages as an Arrow table. Raises UserError if an id is among the ``known`` ones."""
    import pyarrow

    if not passages:
        raise UserError("there are no passages to put into the index")
    for passage in passages:
        if passage.id in known:
            raise UserError(
                f"two passages have the id {passage.id!r}, or one in the index has it already; every passage "
                "needs an id of its own"
            )
        known.add(passage.id)
    texts = [passage.text for passage in passages]
    vectors, _ = ops.unit_length(encoder.embed(texts, batch_size, progress))  # (N, H)
    check_finite(vectors)
    columns = [
        pyarrow.array([passage.id for passage in passages]),
        pyarrow.array([passage.title for passage in passages]),
        pyarrow.array(texts),
        pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), info.dimension),
    ]
    table = pyarrow.table(columns, names=[*COLUMNS, "vector"])
    return table.replace_schema_metadata({METADATA: json.dumps(asdict(info))})


def _passage(row: dict[str, Any]) -> Passage:
    return Passage(row["id"], row["text"], row["title"])


def _first_line(error: Exception) -> str:
    """What an error says, without the source locations that some errors add."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(", /")[0]


# -- Without a database ------------------------------------------------------------------------------


def exact_search(
    queries: np.ndarray, vectors: np.ndarray, top_k: int, block: int = 16_384
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest vectors by brute force: every cosine is computed, so nothing is missed.

    queries (Q, H) and vectors (N, H), all of length 1 → rows of ``vectors`` (Q, K) and their cosines
    (Q, K), best first, K = min(top_k, N). No more than ``BLOCK`` · ``block`` cosines are held at a time.
    """
    parts = [
        _exact_search(part, vectors, top_k, block)
        for part in np.split(queries, range(BLOCK, len(queries), BLOCK))
    ]
    rows, cosines = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return rows, cosines


def _exact_search(
    queries: np.ndarray, vectors: np.ndarray, top_k: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.empty((len(queries), 0), np.int64)
    cosines = np.empty((len(queries), 0), vectors.dtype)
    for start in range(0, len(vectors), block):
        new = queries @ vectors[start : start + block].T  # (Q, block)
        new_rows = np.broadcast_to(np.arange(start, start + new.shape[1]), new.shape)
        rows, cosines = np.hstack([rows, new_rows]), np.hstack([cosines, new])
        if cosines.shape[1] > top_k:
            best = np.argpartition(-cosines, top_k - 1, axis=1)[:, :top_k]
            rows, cosines = np.take_along_axis(rows, best, 1), np.take_along_axis(cosines, best, 1)
    order = np.lexsort((rows, -cosines), axis=1)  # of equal cosines the first row first
    return np.take_along_axis(rows, order, 1), np.take_along_axis(cosines, order, 1)
