"""The commands: ``minibert pretrain | fill-mask | predict | evaluate | embed | search | tokenizer | …``.

Each reads its flags, calls one function of the package and prints what comes back. A person's mistake
(``UserError``) is told in one line on stderr, with exit code 2 and no traceback; Ctrl-C exits with 130.
"""

import argparse
import difflib
import functools
import itertools
import os
import re
import sys
import textwrap
import typing
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

from minibert import __version__
from minibert.arrays import PRECISIONS, Device, resolve_device, set_threads
from minibert.bert import PRESETS, BertConfig, BertForMaskedLM
from minibert.bert.cases import all_cases
from minibert.bert.info import describe_parameters, describe_step
from minibert.bert.weights import DTYPES
from minibert.data import open_corpus
from minibert.data.lines import decoded_lines, read_lines
from minibert.data.tasks import FORMATS, Faults, Query, read_passages, read_queries, read_texts, some_queries
from minibert.data.tasks.tables import column_of
from minibert.errors import UserError
from minibert.files import check_writable, write_json, write_text
from minibert.gradcheck import report
from minibert.ops import POOLING, require_kernels
from minibert.settings import Settings, read_settings
from minibert.tasks import evaluate, export, fill_mask, finetune, open_task, prepare, pretrain
from minibert.tasks.embed import TextEncoder, check_output, write_vectors
from minibert.tasks.finetune_settings import FinetuneSettings
from minibert.tasks.predict import (
    examples_of,
    examples_of_lines,
    json_lines,
    records,
    write_predictions,
)
from minibert.tasks.registry import TASKS
from minibert.tasks.rerank import DEPTH, Reranker, training_pairs
from minibert.tasks.retrieval import evaluate_search
from minibert.tasks.search import PassageIndex
from minibert.tasks.task import Task
from minibert.text import BertTokenizer
from minibert.train.settings import PretrainSettings

DEFAULT_MODEL = "mini"  # of those in minibert.assets


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own); return the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without × or 東 gets a ? and no traceback
        stream.reconfigure(errors="replace")
    try:
        flags = parse(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = flags.run(flags) or 0
        sys.stdout.flush()
    except UserError as error:
        print(f"minibert: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("minibert: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output, head for instance, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"minibert: warning: {message}", file=sys.stderr)


# -- Flags ------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse, but a wrong flag is a UserError like every other mistake, and names the nearest right one."""

    def __init__(self, **options: Any):
        layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=30)
        super().__init__(**options, allow_abbrev=False, formatter_class=layout)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list]:
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = re.findall(r"--[a-z0-9-]+", self.format_help())
            nearest = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.75)
            hint = f"did you mean {nearest[0]}?" if nearest else f"see  {self.prog} --help"
            raise UserError(f"unknown argument {unknown[0]!r}; {hint}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see  {self.prog} --help")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The values of a command line; ``run`` among them is the function of the command.

    Raises UserError for a wrong flag.
    """
    parser = _Parser(
        prog="minibert",
        description="BERT from scratch in NumPy and CuPy. Every command tells more with --help.",
        epilog=_examples(
            "minibert pretrain",
            'minibert fill-mask "the capital of france is [MASK] ."',
            "minibert info --preset base",
        ),
    )
    parser.add_argument("--version", action="version", version=f"minibert {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (
        _add_pretrain,
        _add_finetune,
        _add_fill_mask,
        _add_predict,
        _add_evaluate,
        _add_embed,
        _add_search,
        _add_tokenizer,
        _add_prepare,
        _add_export,
        _add_info,
        _add_gradcheck,
    ):
        add(commands)
    return parser.parse_args(arguments)


def _add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], about: str, *examples: str
) -> _Parser:
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    parser.epilog = _examples(*examples)
    parser.set_defaults(run=run)
    return parser


def _examples(*lines: str) -> str:
    return "\n".join(["for example:", *(f"  {line}" for line in lines)])


def _add_machine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads for the CPU's matrix products")
    parser.add_argument(
        "--strict-kernels",
        action="store_true",
        help="a GPU kernel that cannot be used is an error",
    )


def _device(flags: argparse.Namespace) -> Device:
    """What the flags say of the machine, put into force."""
    if flags.threads is not None:
        set_threads(flags.threads)
    require_kernels(flags.strict_kernels)
    return resolve_device(flags.device)


def _add_setting_flags(
    parser: argparse.ArgumentParser,
    *kinds: type[Settings],
    names: Collection[str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """A flag for each setting of these kinds (or for those named), and --config for a file of them.

    Only flags that are given get a value, so that the others do not hide what the file says. ``notes`` are
    added to the help of some.
    """
    parser.usage = f"{parser.prog} [--config FILE] [flags]"
    parser.add_argument("--config", metavar="FILE", help="settings as TOML or JSON; flags go before them")
    sections: dict[str, Any] = {}
    added: set[str] = set()
    for kind in kinds:
        types = typing.get_type_hints(kind)
        for group, members in kind.groups().items():
            for f in members:
                if f.name not in added and (names is None or f.name in names):
                    if group not in sections:
                        sections[group] = parser.add_argument_group(group.lower())
                    flag = "--" + f.name.replace("_", "-")
                    options = _flag_options(f, types[f.name])
                    options["help"] += (notes or {}).get(f.name, "")
                    sections[group].add_argument(flag, default=argparse.SUPPRESS, **options)
                    added.add(f.name)
    parser.set_defaults(settings=added)


def _flag_options(f: Field, annotation: Any) -> dict[str, Any]:
    """How argparse reads and explains one setting. Limits and choices are checked by the settings."""
    help = f.metadata["help"].replace("%", "%%")
    if "choices" in f.metadata:
        help += f": {', '.join(f.metadata['choices'])}"
    if f.default not in (None, ()):
        default = {True: "yes", False: "no"}[f.default] if isinstance(f.default, bool) else f.default
        help += f" (default: {default})"
    # X of X, X | None and tuple[X, ...]
    (kind,) = set(typing.get_args(annotation) or [annotation]) - {NoneType, ...}
    if kind is bool:
        return {"help": help, "action": argparse.BooleanOptionalAction}
    if typing.get_origin(annotation) is tuple:
        return {"help": help, "nargs": "+", "type": kind, "metavar": "PATH" if kind is str else "N"}
    return {"help": help, "type": kind}


def _settings(flags: argparse.Namespace) -> PretrainSettings:
    """The settings of pre-training that a command line tells."""
    return PretrainSettings.from_dict(_given(flags), flags.config or "settings")


def _given(flags: argparse.Namespace) -> dict[str, Any]:
    """The values of the flags that were given, then those of the --config file."""
    given = {name: value for name, value in vars(flags).items() if name in flags.settings}
    return (read_settings(flags.config) if flags.config else {}) | given


# -- Commands ---------------------------------------------------------------------------------------


def _add_pretrain(commands: Any) -> None:
    parser = _add_command(
        commands,
        "pretrain",
        _pretrain,
        "train a BERT on real text, from nothing or from another",
        "minibert pretrain",
        "minibert pretrain --corpus books/*.txt --name books --steps 20000",
        "minibert pretrain --config runs/books/config.json --resume",
        "minibert pretrain --model bert-base-uncased --corpus mine/ --learning-rate 5e-5 --name mine",
    )
    _add_setting_flags(parser, PretrainSettings)


def _pretrain(flags: argparse.Namespace) -> None:
    pretrain(_settings(flags))


def _add_finetune(commands: Any) -> None:
    parser = _add_command(
        commands,
        "finetune",
        _finetune,
        "teach a pretrained model a task",
        "minibert finetune --recipe mrpc --train train.tsv --dev dev.tsv --model bert-base-uncased",
        "minibert finetune --task classify --train reviews.csv --model runs/books/final --name reviews",
        "minibert finetune --config runs/reviews/config.json --resume",
    )
    options = [task.Options for task in TASKS.values()]
    _add_setting_flags(parser, FinetuneSettings, *options, notes=_task_notes())


def _task_notes() -> dict[str, str]:
    """For which tasks an option is, if not for all; and other defaults than that of the first task."""
    defaults: dict[str, dict[str, Any]] = {}  # by option, then by task
    for task in TASKS.values():
        for f in fields(task.Options):
            defaults.setdefault(f.name, {})[task.name] = f.default
    notes = {}
    for name, values in defaults.items():
        usual = next(iter(values.values()))
        notes[name] = "".join(f" ({task}: {value})" for task, value in values.items() if value != usual)
        notes[name] += f" [{', '.join(values)}]" if len(values) < len(TASKS) else ""
    return notes


def _finetune(flags: argparse.Namespace) -> None:
    finetune(flags.config or "settings", **_given(flags))


def _add_fill_mask(commands: Any) -> None:
    parser = _add_command(
        commands,
        "fill-mask",
        _fill_mask,
        "guess the words behind [MASK]",
        'minibert fill-mask "the capital of france is [MASK] ."',
        'minibert fill-mask --model runs/books/final --top-k 3 "it was a [MASK] and [MASK] night ."',
    )
    parser.add_argument("text", help="a text with one [MASK] or several")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="FOLDER",
        help="a model (default: %(default)s, which comes with minibert)",
    )
    parser.add_argument("--top-k", type=int, default=5, metavar="N", help="guesses (default: %(default)s)")
    _add_machine_flags(parser)


def _fill_mask(flags: argparse.Namespace) -> None:
    tokenizer = BertTokenizer.from_pretrained(flags.model)
    warnings.filterwarnings("ignore", ".* does not use")  # that there is a pooler as well is no news here
    model = BertForMaskedLM.from_pretrained(flags.model, device=_device(flags))
    print(f"model: {flags.model}" + ", which comes with minibert" * (flags.model == DEFAULT_MODEL))
    for guesses in fill_mask(model, tokenizer, flags.text, top_k=flags.top_k):
        print("[MASK]")
        for token, probability in guesses:
            print(f"  {probability:7.2%}  {token}")


def _add_model_use_flags(parser: argparse.ArgumentParser) -> None:
    """What ``predict`` and ``evaluate`` have in common; how files are read goes to `Task.set_layout`."""
    _add_skip_flag(parser)
    _add_batch_flags(parser)
    layout = parser.add_argument_group("files unlike those of the training (said in full, or not at all)")
    for name, (f, annotation) in _layout_options().items():
        flag = "--" + name.replace("_", "-")
        layout.add_argument(flag, default=argparse.SUPPRESS, **_flag_options(f, annotation))


def _add_skip_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-bad", action="store_true", help="leave out and count what cannot be read")


def _add_batch_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="sequences at a time (default: %(default)s)"
    )
    _add_machine_flags(parser)


def _layout_options() -> dict[str, tuple[Field, Any]]:
    """The settings of all tasks that say how files are read, with their types."""
    return {
        f.name: (f, typing.get_type_hints(task.Options)[f.name])
        for task in TASKS.values()
        for f in fields(task.Options)
        if f.metadata["group"] == "Data"
    }


def _layout(flags: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(flags, name) for name in _layout_options() if hasattr(flags, name)}


def _add_predict(commands: Any) -> None:
    parser = _add_command(
        commands,
        "predict",
        _predict,
        "ask a fine-tuned model",
        'minibert predict --model runs/sst2/best "a fine film"',
        "minibert predict --model runs/wnut17/best --input tweets.conll --output tagged.conll",
        "minibert predict --model runs/mrpc/best --input pairs.txt --lines --output answers.jsonl",
    )
    parser.usage = f"{parser.prog} --model FOLDER [TEXT ...] [flags]"
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="texts; without any, and without --input, lines of stdin"
    )
    parser.add_argument(
        "--pair", metavar="TEXT", help="the text that goes with them; of questions, the passage"
    )
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a fine-tuned model")
    parser.add_argument("--input", metavar="FILE", help="a file like those of the training; no labels needed")
    parser.add_argument(
        "--lines", action="store_true", help="FILE has a text in each line, or two with a tab between them"
    )
    endings = ", ".join(f"{task.own_ending} ({task.name})" for task in TASKS.values() if task.own_ending)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=f"where to write: a JSON object a line, or what other programs read if it ends in {endings}",
    )
    _add_model_use_flags(parser)


def _predict(flags: argparse.Namespace) -> None:
    _check_inputs(flags)
    faults = Faults(flags.skip_bad)
    task, model = open_task(flags.model, device=_device(flags))
    task.set_layout(_layout(flags))
    examples = _examples_to_predict(flags, task, faults)
    predictions = task.predict(model, examples, flags.batch_size)
    if flags.output:
        write_predictions(task, examples, predictions, flags.output)
        print(f"{len(predictions):,} prediction(s) written to {flags.output}")
    else:
        print(json_lines(records(task, examples, predictions)), end="")
    _tell(faults)


def _check_inputs(flags: argparse.Namespace) -> None:
    """Raise UserError unless a command line names one source of texts, and another place for predictions."""
    if flags.text and flags.input:
        raise UserError("texts and --input FILE; give one of them")
    if flags.pair is not None and not flags.text:
        raise UserError("--pair goes with a text on the command line; in lines, a tab goes between the two")
    if flags.lines and not flags.input:
        raise UserError("--lines goes with --input FILE; stdin is read by lines without it")
    if not flags.text and not flags.input and sys.stdin.isatty():
        raise UserError("nothing to read; give a text, --input FILE, or lines on stdin")
    _check_written(flags.output, flags.input)


def _check_written(output: str | None, read: str | None) -> None:
    """Raise UserError if the results could not be written, before they are computed."""
    if output is None:
        return
    if read is not None and os.path.realpath(read) == os.path.realpath(output):
        raise UserError(f"{output}: the results would replace what is read; choose another file for them")
    check_writable(output)


def _examples_to_predict(flags: argparse.Namespace, task: Task, faults: Faults) -> list[Any]:
    """Texts of the command line, a file, the lines of a file, or those of stdin."""
    if flags.text:
        return examples_of(task, ((text, flags.pair) for text in flags.text), "the texts given", faults)
    if flags.input and not flags.lines:
        return task.read(flags.input, labelled=False, faults=faults)
    if flags.input:
        return examples_of_lines(task, read_lines(flags.input), flags.input, faults)
    return examples_of_lines(task, decoded_lines(sys.stdin.buffer, Path("stdin")), "stdin", faults)


def _tell(faults: Faults) -> None:
    for line in faults.describe():
        print(f"minibert: {line}", file=sys.stderr)


def _add_evaluate(commands: Any) -> None:
    parser = _add_command(
        commands,
        "evaluate",
        _evaluate,
        "measure a fine-tuned model on a labelled file, or a pretrained one on minimal pairs",
        "minibert evaluate --model runs/wnut17/best --data emerging.test.annotated",
        "minibert evaluate --model runs/mrpc/best --recipe mrpc --data test.txt --json scores.json",
        "minibert evaluate --model runs/tiny/final --recipe blimp --data BLiMP.zip --limit 100",
    )
    parser.usage = f"{parser.prog} --model FOLDER --data FILE [flags]"
    parser.add_argument(
        "--model",
        required=True,
        metavar="FOLDER",
        help="a fine-tuned model; for --recipe blimp a pretrained one",
    )
    parser.add_argument("--data", required=True, metavar="FILE", help="a file with labels")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="use the first N examples only; of blimp, N of each paradigm"
    )
    parser.add_argument("--json", metavar="FILE", help="where to write the scores as JSON, too")
    _add_model_use_flags(parser)


def _evaluate(flags: argparse.Namespace) -> None:
    _check_written(flags.json, flags.data)
    faults = Faults(flags.skip_bad)
    result = evaluate(
        flags.model,
        flags.data,
        layout=_layout(flags),
        limit=flags.limit,
        batch_size=flags.batch_size,
        faults=faults,
        device=_device(flags),
    )
    print(result.describe())
    _tell(faults)
    if flags.json:
        write_json(flags.json, result.to_dict())


def _add_embed(commands: Any) -> None:
    parser = _add_command(
        commands,
        "embed",
        _embed,
        "turn texts into vectors, to be compared by their cosine",
        "minibert embed --model all-MiniLM-L6-v2 --input sentences.txt --output vectors.npy",
        "minibert embed --model runs/tiny/final --pooling cls --input rows.tsv --column title --output v.npz",
    )
    parser.usage = f"{parser.prog} --model FOLDER --input FILE --output FILE [flags]"
    _add_encoder_flags(parser, "a BERT, or a folder of sentence-transformers", required=True)
    parser.add_argument("--input", required=True, metavar="FILE", help="a text a line, or .tsv, .csv, .jsonl")
    parser.add_argument("--column", metavar="NAME", help="of the texts, or its number (default: text)")
    parser.add_argument("--format", choices=FORMATS, help="of FILE, if its name does not end in it")
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help=".npy (texts × H, float32), .npz (with the lines' numbers), .jsonl (with the texts)",
    )
    parser.add_argument(
        "--normalise",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="give every vector the length 1 (default: as the folder says)",
    )
    _add_skip_flag(parser)
    _add_batch_flags(parser)


def _embed(flags: argparse.Namespace) -> None:
    check_output(flags.output)
    _check_written(flags.output, flags.input)
    faults = Faults(flags.skip_bad)
    texts = read_texts(flags.input, column_of(flags.column), file_format=flags.format, faults=faults)
    encoder = TextEncoder.open(flags.model, device=_device(flags), **_encoder_options(flags))
    vectors = encoder.embed([text.text for text in texts], flags.batch_size, progress=True)
    write_vectors(flags.output, texts, vectors)
    print(f"{len(vectors):,} vectors of {encoder.dimension} numbers written to {flags.output}")
    _tell(faults)


def _add_encoder_flags(parser: argparse.ArgumentParser, about: str, required: bool) -> None:
    parser.add_argument("--model", required=required, metavar="FOLDER", help=about)
    parser.add_argument(
        "--pooling",
        choices=tuple(POOLING),
        default=argparse.SUPPRESS,
        help="how a vector is made of hidden states (default: as the folder says, else mean)",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        default=argparse.SUPPRESS,
        metavar="N",
        help="tokens that a text is cut to (default: as the folder says, else what the model can read)",
    )


def _encoder_options(flags: argparse.Namespace) -> dict[str, Any]:
    """What was said of the encoder; the folder tells the rest."""
    names = ("pooling", "max_length", "normalise")
    return {name: getattr(flags, name) for name in names if hasattr(flags, name)}


def _add_search(commands: Any) -> None:
    about = "find passages by what they mean: an index of vectors, queries, re-ranking"
    parser = commands.add_parser("search", help=about, description=about[0].upper() + about[1:] + ".")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for add in (_add_search_index, _add_search_query, _add_search_evaluate, _add_search_pairs):
        add(actions)


def _add_search_index(actions: Any) -> None:
    parser = _add_command(
        actions,
        "index",
        _search_index,
        "put passages into an index, a new one or one that is there",
        "minibert search index --model all-MiniLM-L6-v2 --passages notes.txt --index notes.index",
        "minibert search index --passages more.jsonl --index notes.index",
    )
    parser.usage = f"{parser.prog} --model FOLDER --passages FILE --index FOLDER [flags]"
    _add_encoder_flags(parser, "the encoder (default: the one that made the index)", required=False)
    parser.add_argument(
        "--passages",
        required=True,
        nargs="+",
        metavar="FILE",
        help=".tsv, .csv or .jsonl with id, text and perhaps title; .json of SQuAD; else a passage a line",
    )
    parser.add_argument("--index", required=True, metavar="FOLDER", help="the index")
    parser.add_argument(
        "--approximate", action="store_true", help="search in a graph, faster among very many passages"
    )
    _add_skip_flag(parser)
    _add_batch_flags(parser)


def _search_index(flags: argparse.Namespace) -> None:
    faults = Faults(flags.skip_bad)
    passages = [passage for path in flags.passages for passage in read_passages(path, faults)]
    how = {"batch_size": flags.batch_size, "progress": True}
    if Path(flags.index).exists():
        index = PassageIndex.open(flags.index)
        encoder = index.open_encoder(flags.model, device=_device(flags), **_encoder_options(flags))
        index.add(encoder, passages, **how)
    elif flags.model is None:
        raise UserError(f"{flags.index}: a new index needs an encoder; give --model FOLDER")
    else:
        encoder = TextEncoder.open(flags.model, device=_device(flags), **_encoder_options(flags))
        index = PassageIndex.create(flags.index, encoder, passages, **how)
    if flags.approximate:
        index.make_approximate()
    print(f"{len(passages):,} passages added; {len(index):,} in {flags.index}, version {index.version}")
    _tell(faults)


def _add_index_flags(parser: argparse.ArgumentParser) -> None:
    """Those of the actions that search in an index."""
    parser.add_argument("--index", required=True, metavar="FOLDER", help="made by  minibert search index")
    parser.add_argument("--model", metavar="FOLDER", help="the encoder, if it has moved since then")
    parser.add_argument("--exact", action="store_true", help="compare all, even if the index is approximate")
    _add_batch_flags(parser)


def _add_search_query(actions: Any) -> None:
    parser = _add_command(
        actions,
        "query",
        _search_query,
        "find the passages that answer a question best",
        'minibert search query --index notes.index "who built the bridge?"',
        'minibert search query --index squad.index "who was Rollo?" --where "title = \'Normans\'" --top-k 3',
        'minibert search query --index notes.index "who built it?" --rerank runs/reranker/best --json',
    )
    parser.add_argument("text", nargs="+", help="a question, or several")
    _add_index_flags(parser)
    parser.add_argument("--top-k", type=int, default=5, metavar="N", help="passages (default: %(default)s)")
    parser.add_argument("--where", metavar="SQL", help="a condition on id, title and text")
    parser.add_argument("--rerank", metavar="FOLDER", help="a classifier that looks again at the best ones")
    parser.add_argument(
        "--depth", type=int, default=DEPTH, metavar="N", help="how many it looks at (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each passage")


def _search_query(flags: argparse.Namespace) -> None:
    if not all(map(str.strip, flags.text)):
        raise UserError("an empty question; give some words to search for")
    index = PassageIndex.open(flags.index)
    device = _device(flags)
    reranker = Reranker.open(flags.rerank, device=device) if flags.rerank else None
    vectors = index.open_encoder(flags.model, device=device).embed(flags.text, flags.batch_size)
    depth = max(flags.depth, flags.top_k) if reranker else flags.top_k
    found = index.search(vectors, depth, exact=flags.exact, where=flags.where)
    if reranker:
        found = reranker.rerank(flags.text, found, flags.batch_size)
    for query, hits in zip(flags.text, found, strict=True):
        if flags.json:
            print(json_lines({"query": query, **hit.to_dict()} for hit in hits[: flags.top_k]), end="")
            continue
        print(query)
        for hit in hits[: flags.top_k]:
            print(f"  {hit.score:7.4f}  {hit.passage.id}  {textwrap.shorten(hit.passage.text, 200)}")


def _add_search_evaluate(actions: Any) -> None:
    parser = _add_command(
        actions,
        "evaluate",
        _search_evaluate,
        "measure how well questions find their passages, against brute force and with re-ranking",
        "minibert search evaluate --index squad.index --queries dev-v1.1.json",
        "minibert search evaluate --index notes.index --queries asked.tsv --rerank runs/reranker/best",
    )
    _add_queries_flag(parser)
    _add_index_flags(parser)
    parser.add_argument(
        "--top-k", type=int, default=DEPTH, metavar="N", help="passages that count (default: %(default)s)"
    )
    parser.add_argument("--rerank", metavar="FOLDER", help="a classifier that looks again at those")
    parser.add_argument("--json", metavar="FILE", help="where to write the scores as JSON, too")


def _add_queries_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries",
        required=True,
        metavar="FILE",
        help=".tsv, .csv or .jsonl with query and id, that of its passage; or .json of SQuAD",
    )
    _add_skip_flag(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="no more than N queries, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of what is chosen (default: %(default)s)")


def _queries(flags: argparse.Namespace, index: PassageIndex, faults: Faults) -> list[Query]:
    queries = read_queries(flags.queries, index.passages(), faults)
    return queries if flags.limit is None else some_queries(queries, flags.limit, flags.seed)


def _search_evaluate(flags: argparse.Namespace) -> None:
    _check_written(flags.json, flags.queries)
    index, faults = PassageIndex.open(flags.index), Faults(flags.skip_bad)
    queries = _queries(flags, index, faults)
    device = _device(flags)
    result = evaluate_search(
        index,
        index.open_encoder(flags.model, device=device),
        queries,
        top_k=flags.top_k,
        exact=flags.exact,
        reranker=Reranker.open(flags.rerank, device=device) if flags.rerank else None,
        batch_size=flags.batch_size,
        progress=True,
    )
    print(result.describe())
    _tell(faults)
    if flags.json:
        write_json(flags.json, result.to_dict())


def _add_search_pairs(actions: Any) -> None:
    parser = _add_command(
        actions,
        "pairs",
        _search_pairs,
        "make the pairs that a re-ranker is fine-tuned on: right passages, and wrong ones that were found",
        "minibert search pairs --index squad.index --queries train.json --output pairs.jsonl",
    )
    _add_queries_flag(parser)
    _add_index_flags(parser)
    parser.add_argument("--output", required=True, metavar="FILE", help="where to write the pairs (.jsonl)")
    parser.add_argument(
        "--negatives", type=int, default=3, metavar="N", help="wrong ones a query (default: %(default)s)"
    )
    parser.add_argument(
        "--depth", type=int, default=DEPTH, metavar="N", help="of the best N (default: %(default)s)"
    )


def _search_pairs(flags: argparse.Namespace) -> None:
    _check_written(flags.output, flags.queries)
    index, faults = PassageIndex.open(flags.index), Faults(flags.skip_bad)
    queries = _queries(flags, index, faults)
    pairs = training_pairs(
        index,
        index.open_encoder(flags.model, device=_device(flags)),
        queries,
        negatives=flags.negatives,
        depth=flags.depth,
        exact=flags.exact,
        seed=flags.seed,
        batch_size=flags.batch_size,
        progress=True,
    )
    write_text(flags.output, json_lines(pair.to_dict() for pair in pairs))
    print(f"{len(pairs):,} pairs of {len(queries):,} queries written to {flags.output}")
    _tell(faults)


def _add_tokenizer(commands: Any) -> None:
    about = "learn a vocabulary, or turn text into token ids and back"
    parser = commands.add_parser("tokenizer", help=about, description=about[0].upper() + about[1:] + ".")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    train = _add_command(
        actions,
        "train",
        _tokenizer_train,
        "learn a WordPiece vocabulary from all of a text",
        "minibert tokenizer train --corpus books/*.txt --vocab-size 8192 --output vocabulary",
    )
    _add_setting_flags(train, PretrainSettings, names=("corpus", "layout", "vocab_size", "lowercase"))
    train.add_argument("--output", required=True, metavar="FOLDER", help="where vocab.txt and the rest go")
    train.usage = f"{train.prog} --output FOLDER [--config FILE] [flags]"

    encode = _add_command(
        actions,
        "encode",
        _tokenizer_encode,
        "print the tokens and token ids of a text",
        'minibert tokenizer encode --tokenizer vocabulary "Hello, world!"',
    )
    encode.add_argument("text", nargs="+", help="a text, or two that make a pair")

    decode = _add_command(
        actions,
        "decode",
        _tokenizer_decode,
        "print the text behind token ids",
        "minibert tokenizer decode --tokenizer vocabulary 2 731 4 3",
    )
    decode.add_argument("ids", nargs="+", type=int, metavar="ID", help="token ids")
    decode.add_argument("--skip-special-tokens", action="store_true", help="leave out [CLS], [SEP], [PAD] …")
    for parser in (encode, decode):
        parser.add_argument(
            "--tokenizer",
            default=DEFAULT_MODEL,
            metavar="FOLDER",
            help="of a model, or a vocabulary (default: that of %(default)s, which comes with minibert)",
        )


def _tokenizer_train(flags: argparse.Namespace) -> None:
    output = Path(flags.output)
    if (output / "vocab.txt").exists():
        raise UserError(f"{output / 'vocab.txt'}: there is a vocabulary already; choose another --output")
    check_writable(output / "vocab.txt")
    settings = _settings(flags).with_sizes()
    corpus = open_corpus(settings.corpus, settings.layout)
    print(corpus.describe())
    sentences = itertools.chain.from_iterable(corpus)
    tokenizer = BertTokenizer.train(
        sentences, settings.vocab_size, lowercase=settings.lowercase, progress=sys.stderr.isatty()
    )
    tokenizer.save_pretrained(output)
    print(f"{len(tokenizer):,} tokens written to {output}")


def _tokenizer_encode(flags: argparse.Namespace) -> None:
    if len(flags.text) > 2:
        raise UserError(f"expected a text or a pair of texts, got {len(flags.text)}; quote texts with spaces")
    tokenizer = BertTokenizer.from_pretrained(flags.tokenizer)
    ids = tokenizer(*flags.text)["input_ids"]
    print(" ".join(tokenizer.tokens[i] for i in ids))
    print(" ".join(map(str, ids)))


def _tokenizer_decode(flags: argparse.Namespace) -> None:
    tokenizer = BertTokenizer.from_pretrained(flags.tokenizer)
    print(tokenizer.decode(flags.ids, skip_special_tokens=flags.skip_special_tokens))


def _add_export(commands: Any) -> None:
    parser = _add_command(
        commands,
        "export",
        _export,
        "write a model into a new folder, in 16 bits, in several files, for longer texts",
        "minibert export runs/tiny/final --output tiny --dtype float16",
        "minibert export runs/small/final --output small --dtype bfloat16 --max-shard-size 16MiB",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a pretrained or fine-tuned model")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where it goes, a new folder")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="type of the weights (default: as they are)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="of a file of weights, at most, like 16MiB")
    parser.add_argument("--encoder-only", action="store_true", help="leave out the heads")
    parser.add_argument(
        "--positions", type=int, metavar="N", help="the first N positions, or for more all of them repeated"
    )


def _export(flags: argparse.Namespace) -> None:
    sizes = flags.dtype, flags.max_shard_size
    export(flags.folder, flags.output, *sizes, flags.encoder_only, flags.positions)
    for path in sorted(Path(flags.output).glob("*.safetensors")):
        print(f"{path.stat().st_size:>13,} bytes  {path}")


def _add_prepare(commands: Any) -> None:
    parser = _add_command(
        commands,
        "prepare",
        _prepare,
        "turn a corpus into token arrays on disk, which pretrain then finds ready",
        "minibert prepare --corpus wikipedia/ --vocab-size 30000",
    )
    names = "corpus layout held_out tokenizer vocab_size lowercase seed prepared processes"
    _add_setting_flags(parser, PretrainSettings, names=names.split())


def _prepare(flags: argparse.Namespace) -> None:
    prepare(_settings(flags))


def _add_info(commands: Any) -> None:
    parser = _add_command(
        commands,
        "info",
        _info,
        "show a model's parameters matrix by matrix, and what a training step costs",
        "minibert info --preset base",
        "minibert info runs/tiny/final --batch-size 64",
        "minibert info --preset base --batch-size 256 --max-seq-length 512 --precision bfloat16 --recompute",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="a pretrained folder, instead of --preset"
    )
    source.add_argument("--preset", metavar="NAME", help=f"{', '.join(PRESETS)} (default: base)")
    for flag, default, what in (
        ("--batch-size", 32, "sequences in a step"),
        ("--max-seq-length", 128, "tokens in a sequence"),
        ("--max-predictions", 20, "tokens to predict in a sequence"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{what} (default: {default})")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="of the arithmetic (default: %(default)s)"
    )
    parser.add_argument(
        "--recompute", action="store_true", help="layers are computed again in the backward, not kept"
    )


def _info(flags: argparse.Namespace) -> None:
    preset = flags.preset or "base"
    config = BertConfig.from_pretrained(flags.folder) if flags.folder else BertConfig.preset(preset)
    sizes = flags.batch_size, flags.max_seq_length, flags.max_predictions
    step = describe_step(config, *sizes, flags.precision, flags.recompute)
    print(flags.folder or preset, describe_parameters(config), step, sep="\n\n")


def _add_gradcheck(commands: Any) -> None:
    parser = _add_command(
        commands,
        "gradcheck",
        _gradcheck,
        "compare every hand-written derivative with a numeric one",
        "minibert gradcheck",
    )
    _add_machine_flags(parser)


def _gradcheck(flags: argparse.Namespace) -> int:
    return 0 if report(all_cases(_device(flags))) else 1
