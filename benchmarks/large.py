"""``python -m benchmarks.large FLAGS``: `minibert pretrain FLAGS` on more text than the tracks have.

The text is 90 novels and, in the order of the files, as many articles of Wikipedia as fit into 60.5 million
tokens of the vocabulary of `mini`. What the track "10m" holds out is held out here, too, and the runs are
measured on it.

Three runs of this kind, two on a GPU and the last on two cores, made the `mini` of the package:

    python -m benchmarks.large --name mini-begun --recipe fast --preset mini --positions 128 \\
        --attention-initializer same-word --whole-sentences --masked-lm-prob 0.3 --batch-size 1024 \\
        --steps 7000 --max-seq-length 64 --long-seq-length 128 --long-batch-size 512 --long-share 0.2 \\
        --learning-rate 2e-3 --warmup 0.03
    python -m benchmarks.large --name mini-pairs --model runs/mini-begun/final --nsp --optimiser muon \\
        --schedule trapezoid --batch-size 1024 --steps 1400 --max-seq-length 64 --short-seq-prob 0.5 \\
        --masked-lm-prob 0.2 --max-predictions 1000 --weight-decay 0.1 --learning-rate 7e-4 --warmup 0.05
    python -m benchmarks.large --name mini --model runs/mini-pairs/final --nsp --optimiser muon \\
        --schedule trapezoid --batch-size 256 --steps 700 --max-seq-length 32 --short-seq-prob 0.5 \\
        --masked-lm-prob 0.2 --max-predictions 1000 --weight-decay 0.1 --learning-rate 1.5e-4 --warmup 0.05

except that the first word vectors were counted in 4 million tokens instead of in all. This one read only the
ten million words of the track, on two cores:

    python -m benchmarks.speedrun.tracks
    minibert pretrain --name ten --recipe fast --corpus prepared/10m --held-out-seed 12 \\
        --vocab-size 24576 --alphabet-limit 128 --preset mini --positions 128 \\
        --attention-initializer same-word --nsp --whole-sentences --short-seq-prob 0.3 --masked-lm-prob 0.3 \\
        --mask-shares 100 0 0 --batch-size 128 --steps 9200 --max-seq-length 64 --long-seq-length 128 \\
        --long-batch-size 64 --long-share 0.08 --learning-rate 4e-4 --warmup 0.03 --precision bfloat16

The runs before it are in results/pretraining.md, too. `second-ten` had a vocabulary of 16,384 tokens, 6,800
steps, and ``--long-share 0.2``. `first-ten` had the vocabulary of `mini` (``--tokenizer mini`` instead of
``--vocab-size`` and ``--alphabet-limit``), 8,000 steps, and ``--long-share 0.2``. The run after it,
`fourth-ten`, had 8,000 steps, and ``--long-share 0.03``.

These two made a larger one. Neither it nor that of ten million words is in the package:

    python -m benchmarks.large --name six-begun --recipe fast --preset mini --layers 6 --hidden 384 \\
        --heads 6 --positions 128 --attention-initializer same-word --nsp --whole-sentences \\
        --short-seq-prob 0.3 --masked-lm-prob 0.3 --batch-size 1024 --steps 8800 --max-seq-length 64 \\
        --long-seq-length 128 --long-batch-size 512 --long-share 0.2 --learning-rate 2e-3 --warmup 0.03
    python -m benchmarks.large --name six --model runs/six-begun/final --nsp --optimiser muon \\
        --schedule trapezoid --batch-size 2048 --steps 1000 --max-seq-length 32 --short-seq-prob 0.5 \\
        --masked-lm-prob 0.2 --max-predictions 1000 --weight-decay 0.1 --learning-rate 5e-4 --warmup 0.05
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measure import ROOT
from benchmarks.speedrun.tracks import all_articles, all_novels, open_track, write_texts
from minibert.cli import parse
from minibert.cli.setting_flags import pretrain_settings
from minibert.data import PreparedCorpus
from minibert.errors import UserError
from minibert.tasks import prepare, pretrain
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.text import BertTokenizer

TOKENS = 60_542_164  # the documents to train on lie in so many tokens of the corpus, as it is prepared
MINI = "mini"
FOLDER = ROOT / "prepared"


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        settings = pretrain_settings(parse(["pretrain", *sys.argv[1:]]))
        if settings.corpus or settings.tokenizer:
            raise UserError("the corpus and its vocabulary are given; leave --corpus and --tokenizer out")
        vocabulary = None if settings.model else MINI
        pretrain(settings.replace(corpus=("large",), tokenizer=vocabulary), text=large_text(FOLDER))
    except UserError as error:
        print(f"benchmarks.large: error: {error}", file=sys.stderr)
        return 2
    return 0


def large_text(folder: Path) -> tuple[BertTokenizer, PreparedCorpus]:
    """The vocabulary of `mini`, and the corpus. Raises UserError if the texts are not there."""
    parts = {"novels": all_novels(), "wikipedia": all_articles()}
    corpus = write_texts(folder / "large", "the large corpus", parts)
    settings = PretrainSettings(corpus=(str(corpus),), tokenizer=MINI, prepared=str(folder))
    tokenizer, prepared = prepare(settings)
    track = open_track("10m", folder).prepared
    return tokenizer, split(prepared, _keys(track)[track.held_out.chosen], TOKENS)


def split(prepared: PreparedCorpus, held_out_keys: np.ndarray, tokens: int) -> PreparedCorpus:
    """The corpus with the documents of these keys held out; to learn, all others of its first ``tokens``."""
    held_out = np.isin(_keys(prepared), held_out_keys)
    documents = prepared.train
    ends = documents.sentence_starts[documents.document_starts[1:]]
    has_tokens = np.diff(documents.sentence_starts[documents.document_starts]) > 0
    parts = (~held_out & (ends <= tokens), held_out)
    train, rest = (replace(documents, chosen=np.flatnonzero(part & has_tokens)) for part in parts)
    return replace(prepared, train=train, held_out=rest)


def _keys(prepared: PreparedCorpus) -> np.ndarray:
    """A hash of each document's text."""
    return np.fromfile(prepared.folder / "document_keys.bin", "uint64")


if __name__ == "__main__":
    sys.exit(main())
