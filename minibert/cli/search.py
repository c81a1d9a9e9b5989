"""``minibert search index | query | evaluate | pairs``."""

import argparse
from pathlib import Path
from typing import Any

from minibert.cli.flags import (
    BY_LENGTH,
    add_batch_flags,
    add_encoder_flags,
    add_skip_flag,
    check_written,
    chosen_device,
    encoder_options,
    tell,
)
from minibert.cli.parser import add_command, add_group
from minibert.data.tasks import Faults, Query, read_passages, read_queries, some_queries
from minibert.devices import Device
from minibert.errors import UserError, check_count
from minibert.files import write_json, write_text
from minibert.tasks.embed import TextEncoder
from minibert.tasks.predict import json_lines
from minibert.tasks.rerank import DEPTH, Reranker, training_pairs
from minibert.tasks.retrieval import evaluate_search
from minibert.tasks.search import PassageIndex

SHOWN = 200  # characters of a passage


def add(commands: Any) -> None:
    """Add the command and its flags."""
    about = "find passages by meaning: build a vector index, query it, re-rank the results"
    actions = add_group(commands, "search", about)
    for add_action in (_add_index, _add_query, _add_evaluate, _add_pairs):
        add_action(actions)


def _add_index(actions: Any) -> None:
    parser = add_command(
        actions,
        "index",
        _index,
        "add passages to a new or an existing index",
        "minibert search index --model all-MiniLM-L6-v2 --passages notes.txt --index notes.index",
        "minibert search index --passages more.jsonl --index notes.index",
    )
    parser.usage = f"{parser.prog} --passages FILE --index FOLDER [flags]"
    parser.add_argument(
        "--model", metavar="FOLDER", help="the encoder (default: the one that made the index)"
    )
    add_encoder_flags(parser)
    parser.add_argument(
        "--passages",
        required=True,
        nargs="+",
        metavar="FILE",
        help=".tsv, .csv or .jsonl with id, text and perhaps title; SQuAD .json; else one passage per line",
    )
    parser.add_argument("--index", required=True, metavar="FOLDER", help="folder of the index")
    parser.add_argument(
        "--approximate",
        action="store_true",
        help="build a graph for approximate search, which is faster for very many passages",
    )
    add_skip_flag(parser)
    add_batch_flags(parser, None, BY_LENGTH)


def _index(flags: argparse.Namespace) -> None:
    faults = Faults(flags.skip_bad)
    passages = [passage for path in flags.passages for passage in read_passages(path, faults)]
    how = {"batch_size": flags.batch_size, "progress": True}
    if Path(flags.index).exists():
        index = PassageIndex.open(flags.index)
        encoder = index.open_encoder(flags.model, device=chosen_device(flags), **encoder_options(flags))
        index.add(encoder, passages, **how)
    elif flags.model is None:
        raise UserError(f"{flags.index}: a new index needs an encoder; give --model FOLDER")
    else:
        encoder = TextEncoder.open(flags.model, device=chosen_device(flags), **encoder_options(flags))
        index = PassageIndex.create(flags.index, encoder, passages, **how)
    if flags.approximate:
        index.make_approximate()
    print(f"{len(passages):,} passages added; {len(index):,} in {flags.index}, version {index.version}")
    tell(faults)


def _add_index_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the actions that search an index."""
    parser.add_argument("--index", required=True, metavar="FOLDER", help="made by  minibert search index")
    parser.add_argument("--model", metavar="FOLDER", help="the encoder, if its folder has moved")
    parser.add_argument(
        "--exact", action="store_true", help="compare all passages, even if the index is approximate"
    )
    add_batch_flags(parser)


def _add_query(actions: Any) -> None:
    parser = add_command(
        actions,
        "query",
        _query,
        "find the passages that best answer a question",
        'minibert search query --index notes.index "who built the bridge?"',
        'minibert search query --index squad.index "who was Rollo?" --where "title = \'Normans\'" --top-k 3',
        'minibert search query --index notes.index "who built it?" --rerank runs/reranker/best --json',
    )
    parser.add_argument("text", nargs="+", help="one or more questions")
    _add_index_flags(parser)
    parser.add_argument(
        "--top-k", type=int, default=5, metavar="N", help="passages per question (default: %(default)s)"
    )
    parser.add_argument("--where", metavar="SQL", help="SQL condition on id, title and text")
    _add_rerank_flags(parser, "classifier that re-ranks the best passages")
    parser.add_argument(
        "--depth", type=int, metavar="N", help=f"passages to re-rank (default: {DEPTH}, or --top-k)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per passage")


def _query(flags: argparse.Namespace) -> None:
    if not all(map(str.strip, flags.text)):
        raise UserError("an empty question; give some words to search for")
    check_count("top_k", flags.top_k)
    if flags.depth is not None and not flags.rerank:
        raise UserError("--depth is the number of passages to re-rank; give --rerank too")
    if flags.depth is not None and flags.depth < flags.top_k:
        raise UserError(f"depth must be at least top_k, {flags.top_k}, got {flags.depth}")
    index = PassageIndex.open(flags.index)
    device = chosen_device(flags)
    reranker = _reranker(flags, device)
    vectors = index.open_encoder(flags.model, device=device).embed(flags.text, flags.batch_size)
    depth = (flags.depth or max(DEPTH, flags.top_k)) if reranker else flags.top_k
    found = index.search(vectors, depth, exact=flags.exact, where=flags.where)
    if reranker:
        found = reranker.rerank(flags.text, found, flags.batch_size)
    for query, hits in zip(flags.text, found, strict=True):
        if flags.json:
            print(json_lines({"query": query, **hit.to_dict()} for hit in hits[: flags.top_k]), end="")
            continue
        print(query)
        if not hits:
            print("  no passage meets the condition")
        for hit in hits[: flags.top_k]:
            print(f"  {hit.score:7.4f}  {hit.passage.id}  {_beginning(hit.passage.text)}")


def _beginning(text: str) -> str:
    """The first characters of a text on one line; not all scripts have spaces to cut at."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _add_evaluate(actions: Any) -> None:
    parser = add_command(
        actions,
        "evaluate",
        _evaluate,
        "measure how well questions find their passages, next to brute force and re-ranking",
        "minibert search evaluate --index squad.index --queries dev-v1.1.json",
        "minibert search evaluate --index notes.index --queries asked.tsv --rerank runs/reranker/best",
    )
    _add_queries_flag(parser)
    _add_index_flags(parser)
    parser.add_argument(
        "--top-k",
        type=int,
        default=DEPTH,
        metavar="N",
        help="passages per query that count (default: %(default)s)",
    )
    _add_rerank_flags(parser, "classifier that re-ranks those passages")
    parser.add_argument("--json", metavar="FILE", help="also write the scores to FILE, as JSON")


def _add_rerank_flags(parser: argparse.ArgumentParser, told: str) -> None:
    parser.add_argument("--rerank", metavar="FOLDER", help=told)
    parser.add_argument(
        "--right-label",
        metavar="LABEL",
        help="its label of passages that answer the question (default: 1, as search pairs writes it)",
    )


def _reranker(flags: argparse.Namespace, device: Device) -> Reranker | None:
    if flags.right_label is not None and not flags.rerank:
        raise UserError("--right-label is a label of the classifier that re-ranks; give --rerank too")
    return Reranker.open(flags.rerank, flags.right_label, device=device) if flags.rerank else None


def _add_queries_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries",
        required=True,
        metavar="FILE",
        help=".tsv, .csv or .jsonl with query and id (that of its passage), or SQuAD .json",
    )
    add_skip_flag(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N queries, chosen at random")
    parser.add_argument("--seed", type=_seed, default=0, help="seed of random choices (default: %(default)s)")


def _seed(text: str) -> int:
    if int(text) < 0:
        raise ValueError
    return int(text)


_seed.__name__ = "a whole number, 0 or more"  # in the message for others


def _queries(flags: argparse.Namespace, index: PassageIndex, faults: Faults) -> list[Query]:
    queries = read_queries(flags.queries, index.passages(), faults)
    return queries if flags.limit is None else some_queries(queries, flags.limit, flags.seed)


def _evaluate(flags: argparse.Namespace) -> None:
    check_written(flags.json, flags.queries)
    index, faults = PassageIndex.open(flags.index), Faults(flags.skip_bad)
    queries = _queries(flags, index, faults)
    device = chosen_device(flags)
    result = evaluate_search(
        index,
        index.open_encoder(flags.model, device=device),
        queries,
        top_k=flags.top_k,
        exact=flags.exact,
        reranker=_reranker(flags, device),
        batch_size=flags.batch_size,
        progress=True,
    )
    print(result.describe())
    tell(faults)
    if flags.json:
        write_json(flags.json, result.to_dict())


def _add_pairs(actions: Any) -> None:
    parser = add_command(
        actions,
        "pairs",
        _pairs,
        "make pairs to fine-tune a re-ranker on: right passages, and wrong ones that the search finds",
        "minibert search pairs --index squad.index --queries train.json --output pairs.jsonl",
    )
    _add_queries_flag(parser)
    _add_index_flags(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="where to write the pairs (.jsonl)")
    parser.add_argument(
        "--negatives",
        type=int,
        default=3,
        metavar="N",
        help="wrong passages per query (default: %(default)s)",
    )
    parser.add_argument(
        "--depth",
        type=int,
        default=DEPTH,
        metavar="N",
        help="take them from the best N (default: %(default)s)",
    )


def _pairs(flags: argparse.Namespace) -> None:
    check_written(flags.output, flags.queries)
    if Path(flags.output).suffix.lower() != ".jsonl":
        raise UserError(f"{flags.output}: pairs are written as JSON lines; give a name that ends in .jsonl")
    index, faults = PassageIndex.open(flags.index), Faults(flags.skip_bad)
    queries = _queries(flags, index, faults)
    pairs = training_pairs(
        index,
        index.open_encoder(flags.model, device=chosen_device(flags)),
        queries,
        negatives=flags.negatives,
        depth=flags.depth,
        exact=flags.exact,
        seed=flags.seed,
        batch_size=flags.batch_size,
        progress=True,
    )
    write_text(flags.output, json_lines(pair.to_dict() for pair in pairs))
    print(f"{len(pairs):,} pairs for {len(queries):,} queries written to {flags.output}")
    tell(faults)
