"""The commands: ``minibert pretrain | fill-mask | predict | evaluate | tokenizer | prepare | info | …``.

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
from minibert.data.tasks import Faults
from minibert.errors import UserError
from minibert.files import write_json
from minibert.gradcheck import report
from minibert.ops import require_kernels
from minibert.settings import Settings, read_settings
from minibert.tasks import evaluate, export, fill_mask, finetune, open_task, prepare, pretrain
from minibert.tasks.finetune_settings import FinetuneSettings, split_settings
from minibert.tasks.predict import (
    examples_of,
    examples_of_lines,
    json_lines,
    records,
    write_predictions,
)
from minibert.tasks.registry import TASKS
from minibert.tasks.task import Task
from minibert.text import BertTokenizer
from minibert.train.settings import PretrainSettings


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
            'minibert fill-mask "this function returns the [MASK] of a list ."',
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
        return {"help": help, "nargs": "+", "metavar": "PATH"}
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
        "train a BERT from nothing on real text",
        "minibert pretrain",
        "minibert pretrain --corpus books/*.txt --name books --steps 20000",
        "minibert pretrain --config runs/books/config.json --resume",
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
    finetune(*split_settings(_given(flags), flags.config or "settings"))


def _add_fill_mask(commands: Any) -> None:
    parser = _add_command(
        commands,
        "fill-mask",
        _fill_mask,
        "guess the words behind [MASK]",
        'minibert fill-mask "this function returns the [MASK] of a list ."',
        'minibert fill-mask --model runs/books/final --top-k 3 "it was a [MASK] and [MASK] night ."',
    )
    parser.add_argument("text", help="a text with one [MASK] or several")
    parser.add_argument("--model", metavar="FOLDER", help="a model (default: the newest runs/*/final)")
    parser.add_argument("--top-k", type=int, default=5, metavar="N", help="guesses (default: %(default)s)")
    _add_machine_flags(parser)


def _fill_mask(flags: argparse.Namespace) -> None:
    folder = flags.model or _newest_model()
    tokenizer = BertTokenizer.from_pretrained(folder)
    warnings.filterwarnings("ignore", ".* does not use")  # that there is a pooler as well is no news here
    model = BertForMaskedLM.from_pretrained(folder, device=_device(flags))
    print(f"model: {folder}")
    for guesses in fill_mask(model, tokenizer, flags.text, top_k=flags.top_k):
        print("[MASK]")
        for token, probability in guesses:
            print(f"  {probability:7.2%}  {token}")


def _newest_model() -> str:
    """The folder of the model that was finished last. Raises UserError if there is none."""
    models = sorted(Path("runs").glob("*/final"), key=lambda folder: folder.stat().st_mtime)
    if not models:
        raise UserError("no model in runs/*/final; make one with  minibert pretrain,  or name one's folder")
    return str(models[-1])


def _add_model_use_flags(parser: argparse.ArgumentParser) -> None:
    """What ``predict`` and ``evaluate`` have in common; how files are read goes to `Task.set_layout`."""
    parser.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="sequences at a time (default: %(default)s)"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out and count what cannot be read")
    _add_machine_flags(parser)
    layout = parser.add_argument_group("files unlike those of the training (said in full, or not at all)")
    for name, (f, annotation) in _layout_options().items():
        flag = "--" + name.replace("_", "-")
        layout.add_argument(flag, default=argparse.SUPPRESS, **_flag_options(f, annotation))


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
    if flags.input and flags.output and os.path.realpath(flags.input) == os.path.realpath(flags.output):
        raise UserError(f"{flags.output}: the predictions would replace what is read; give another --output")


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
            "--tokenizer", metavar="FOLDER", help="(default: that of the newest runs/*/final)"
        )


def _tokenizer_train(flags: argparse.Namespace) -> None:
    output = Path(flags.output)
    if (output / "vocab.txt").exists():
        raise UserError(f"{output / 'vocab.txt'}: there is a vocabulary already; choose another --output")
    settings = _settings(flags)
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
    tokenizer = BertTokenizer.from_pretrained(flags.tokenizer or _newest_model())
    ids = tokenizer(*flags.text)["input_ids"]
    print(" ".join(tokenizer.tokens[i] for i in ids))
    print(" ".join(map(str, ids)))


def _tokenizer_decode(flags: argparse.Namespace) -> None:
    tokenizer = BertTokenizer.from_pretrained(flags.tokenizer or _newest_model())
    print(tokenizer.decode(flags.ids, skip_special_tokens=flags.skip_special_tokens))


def _add_export(commands: Any) -> None:
    parser = _add_command(
        commands,
        "export",
        _export,
        "write a model into a new folder, in 16 bits or in several files",
        "minibert export runs/tiny/final --output tiny --dtype float16",
        "minibert export runs/small/final --output small --dtype bfloat16 --max-shard-size 16MiB",
    )
    parser.add_argument("folder", metavar="FOLDER", help="a pretrained or fine-tuned model")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where it goes, a new folder")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="type of the weights (default: as they are)")
    parser.add_argument("--max-shard-size", metavar="SIZE", help="of a file of weights, at most, like 16MiB")
    parser.add_argument("--encoder-only", action="store_true", help="leave out the heads")


def _export(flags: argparse.Namespace) -> None:
    export(flags.folder, flags.output, flags.dtype, flags.max_shard_size, flags.encoder_only)
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
