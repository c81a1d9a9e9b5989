"""The list of all runs: what is typed for each, and about how long it takes on two quiet cores.

In commands ``$data`` is the folder of data sets, ``$encoder`` the real sentence encoder, ``$pretrained``,
``$ten`` and ``$tiny`` are models that `minibert pretrain` made, ``$runs`` is the folder of all runs, and
``$run`` that of this one.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Run:
    """Some commands, one after the other, which leave their figures as JSON in ``$run``."""

    name: str
    about: str
    commands: tuple[str, ...]
    minutes: float  # predicted
    needs: tuple[str, ...] = ()  # runs that have to come before


@dataclass(frozen=True)
class DataSet:
    """Files of a recipe: one to learn from, one that chooses the best checkpoint, one to measure that on."""

    title: str
    metric: str
    train: str
    dev: str | None  # none: a share of the training data is held out
    test: str


# The test files of CoLA and RTE have no labels: what GLUE calls dev is the test here, and a part of its
# training data, which comes as a file of its own, chooses.
DATA_SETS = {
    "sst2": DataSet("SST-2", "accuracy", *(f"$data/sst2_glue/{n}.tsv" for n in ("train", "dev", "test"))),
    "cola": DataSet("CoLA", "matthews", *(f"$data/cola/{n}.tsv" for n in ("train", "val", "dev"))),
    "mrpc": DataSet("MRPC", "f1", *(f"$data/mrpc/msr-para-{n}.tsv" for n in ("train", "val", "test"))),
    "rte": DataSet("RTE", "accuracy", *(f"$data/rte/{n}.tsv" for n in ("train", "val", "dev"))),
    "stsb": DataSet("STS-B", "spearman", *(f"$data/stsb/stsb-en-{n}.csv" for n in ("train", "dev", "test"))),
    "wnut17": DataSet(
        "WNUT-17",
        "f1",
        "$data/wnut17/wnut17train.conll",
        "$data/wnut17/emerging.dev.conll",
        "$data/wnut17/emerging.test.annotated",
    ),
    "squad": DataSet("SQuAD", "f1", "$runs/articles/train.json", None, "$runs/articles/test.json"),
}


def data_set(name: str) -> DataSet:
    """The data set that the name of a run begins with."""
    return DATA_SETS[name.split("-")[0]]


def finetune(
    name: str, about: str, flags: str, minutes: float, *, model: str = "$encoder", needs: tuple[str, ...] = ()
) -> Run:
    """Fine-tune on the data set that the name begins with, and measure the best model on its test file."""
    recipe, data = name.split("-")[0], data_set(name)
    dev = f" --dev {data.dev}" if data.dev else ""
    learn = f"minibert finetune --recipe {recipe} --train {data.train}{dev} --model {model} {flags}"
    return Run(name, about, (f"{learn} --out $runs --name {name}", measure(data)), minutes, needs)


def measure(data: DataSet) -> str:
    """The command that measures a run's best model on the test file."""
    return f"minibert evaluate --model $run/best --data {data.test} --json $run/test.json"


# Data that the runs need besides the files in $data.
PREPARATIONS = [
    Run(
        "articles",
        "SQuAD v1.1 split by article: 40 to learn from, 8 to test on",
        (
            "python -m benchmarks.finetuning.squad_articles $data/squad/dev-v1.1.reconstructed.json.gz "
            "--test 8 --output $run",
        ),
        0.1,
    ),
    Run(
        "untrained",
        "a model of the sizes and with the vocabulary of $pretrained, with random weights",
        ("python -m benchmarks.finetuning.untrained $pretrained --output $run/model",),
        0.1,
    ),
    Run(
        "earlier",
        "the model `mini` of the first edition",
        ("python -m benchmarks.finetuning.earlier --output $run/model",),
        0.1,
    ),
    Run(
        "second",
        "the model `mini` that was trained on ten million words in 87 minutes, on two cores",
        ("python -m benchmarks.finetuning.earlier --commit 60cdd99 --output $run/model",),
        0.1,
    ),
]

# From the real encoder, all-MiniLM-L6-v2 (L 6, H 384).
FROM_THE_ENCODER = [
    finetune("sst2", "all", "--epochs 3 --learning-rate 1e-4 --eval-every 700", 13),
    finetune("cola", "all", "--epochs 3 --learning-rate 5e-5 --restarts 3", 4.5),
    finetune("mrpc", "all", "--epochs 3 --learning-rate 1e-4 --restarts 6", 13),
    finetune("rte", "all", "--epochs 3 --learning-rate 5e-5 --max-length 128 --restarts 3", 5.5),
    Run(
        "stsb-untouched",
        "cosine, nothing learned",
        (
            f"minibert evaluate --model $encoder --recipe stsb --data {DATA_SETS['stsb'].test} "
            "--json $run/test.json",
        ),
        0.2,
    ),
    finetune(
        "stsb-cosine",
        "cosine of two vectors",
        "--task similarity --epochs 4 --learning-rate 1e-4 --restarts 2",
        7,
    ),
    finetune(
        "stsb-regression", "both texts read together", "--epochs 3 --learning-rate 1e-4 --restarts 2", 4.5
    ),
    finetune("wnut17", "softmax", "--epochs 4 --learning-rate 1e-4 --restarts 3", 6),
    finetune("wnut17-crf", "CRF", "--crf --epochs 4 --learning-rate 1e-4 --restarts 3", 6.5),
    finetune(
        "squad",
        "38 articles, 2 to choose, 8 to test",
        "--dev-share 0.05 --epochs 2 --learning-rate 1e-4 --max-length 256 --stride 64",
        15,
        needs=("articles",),
    ),
]

ALL_PASSAGES = "--passages $runs/articles/train.json $runs/articles/test.json"
ASKED = "--queries $runs/articles/test.json"  # questions about articles that nothing was learned from
SEARCHES = [
    Run(
        "search-untouched",
        "the encoder as it is",
        (
            f"minibert search index --model $encoder {ALL_PASSAGES} --index $run/index",
            f"minibert search evaluate --index $run/index {ASKED} --json $run/search.json",
        ),
        1,
        needs=("articles",),
    ),
    Run(
        "search-tuned",
        "a dual encoder fine-tuned on the questions about 40 articles",
        (
            "minibert finetune --task similarity --recipe squad --loss softmax "
            "--train $runs/articles/train.json --dev-share 0.05 --model $encoder --max-length 128 "
            "--epochs 1 --learning-rate 3e-5 --out $runs --name search-tuned",
            f"minibert search index --model $run/best {ALL_PASSAGES} --index $run/index",
            f"minibert search evaluate --index $run/index {ASKED} --json $run/search.json",
        ),
        6.5,
        needs=("articles",),
    ),
    Run(
        "search-reranked",
        "the best 20 of the dual encoder, read again by a cross-encoder that began from the SQuAD model; "
        "500 questions",
        (
            "minibert search pairs --index $runs/search-tuned/index --queries $runs/articles/train.json "
            "--limit 1500 --output $run-pairs.jsonl",
            "minibert finetune --task classify --metric f1 --train $run-pairs.jsonl --dev-share 0.05 "
            "--model $runs/squad/best --max-length 192 --epochs 1 --learning-rate 5e-5 "
            "--out $runs --name search-reranked",
            f"minibert search evaluate --index $runs/search-tuned/index {ASKED} --limit 500 "
            "--rerank $run/best --json $run/search.json",
        ),
        7,
        needs=("articles", "search-tuned", "squad"),
    ),
]

# What is learned of the encoder; beside "wnut17" above, in which all is.
STRATEGIES = [
    finetune("wnut17-head", "only the head", "--freeze all --epochs 4 --learning-rate 1e-3 --restarts 3", 2),
    finetune(
        "wnut17-last-four",
        "only a head, on the last four layers side by side, computed once",
        "--features -4 -3 -2 -1 --epochs 10 --learning-rate 1e-3 --restarts 3",
        1.5,
    ),
    finetune(
        "wnut17-upper",
        "the upper three layers",
        "--freeze 3 --epochs 4 --learning-rate 1e-4 --restarts 3",
        3.5,
    ),
    finetune(
        "wnut17-layerwise",
        "all, each layer at 0.8 times the rate of the one above",
        "--layerwise-lr 0.8 --epochs 4 --learning-rate 1e-4 --restarts 3",
        6,
    ),
]

# The same budget for our pretrained model, for the first two that we had, for one that has read only ten
# million words, and for one of the same sizes that has learned nothing: the folder of each.
STARTS = {
    "random": "$runs/untrained/model",
    "earlier": "$runs/earlier/model",
    "second": "$runs/second/model",
    "ten": "$ten",
    "pretrained": "$pretrained",
}
BUDGETS = {
    "sst2": ("8,000 examples", "--limit 8000 --epochs 3", 1.2),
    "cola": ("all", "--epochs 3", 1.5),
    "mrpc": ("all", "--epochs 3", 1.9),
    "stsb": ("all, both texts read together", "--epochs 3", 1.7),
    "stsb-cosine": ("all, cosine of two vectors", "--task similarity --epochs 3", 1.7),
    "wnut17": ("all, softmax", "--epochs 5", 1.8),
}
ALIKE = "--learning-rate 2e-4 --dropout 0.1 --restarts 3"


def maker(model: str) -> tuple[str, ...]:
    """The run that makes a model in ``$runs``; the others are given, and no run makes them."""
    return (model.split("/")[1],) if model.startswith("$runs/") else ()


def _compared(start: str, model: str) -> list[Run]:
    """The runs that begin from a model, and its minimal pairs, which it judges as it is."""
    needs = maker(model)
    runs = [
        finetune(f"{recipe}-{start}", about, f"{flags} {ALIKE}", minutes, model=model, needs=needs)
        for recipe, (about, flags, minutes) in BUDGETS.items()
    ]
    blimp = (
        f"minibert evaluate --model {model} --recipe blimp --data $data/blimp/BLiMP.zip --products bfloat16"
    )
    return [*runs, Run(f"blimp-{start}", "all pairs", (f"{blimp} --json $run/test.json",), 11, needs)]


COMPARISONS = [run for start, model in STARTS.items() for run in _compared(start, model)]
COMPARISONS.append(
    Run(
        "guesses",
        "hidden words, before and after",
        (
            "python -m benchmarks.finetuning.guesses 'the first mini=$runs/earlier/model' "
            "'the second mini=$runs/second/model' mini=$pretrained --json $run/guesses.json",
        ),
        0.1,
        needs=("earlier", "second"),
    )
)


# -- A large model teaches small ones: "sst2", above, is the teacher -----------------------------------


STUDENTS = [
    ("second-mini", "the second mini", STARTS["second"], 9),
    ("ten-mini", "ten million words", STARTS["ten"], 9),
    ("mini", "mini", "$pretrained", 9),
    ("tiny", "tiny", "$tiny", 4),
]


def distill(name: str, about: str, teacher: str, flags: str, minutes: float, *, model: str) -> Run:
    """Let the best model of the run ``teacher`` teach another one; measure that on the test file."""
    data = data_set(name)
    learn = (
        f"minibert distill --teacher $runs/{teacher}/best --recipe sst2 --train {data.train} "
        f"--dev {data.dev} --model {model} {flags} --out $runs --name {name}"
    )
    return Run(name, about, (learn, measure(data)), minutes, (teacher, *maker(model)))


def _students() -> list[Run]:
    """Each student by itself and taught, with the same budget."""
    budget, runs = f"--epochs 3 {ALIKE}", []
    for student, _, model, minutes in STUDENTS:
        runs += [
            finetune(f"sst2-{student}", "all", budget, minutes, model=model, needs=maker(model)),
            distill(f"sst2-{student}-taught", "all, with a teacher", "sst2", budget, minutes, model=model),
        ]
    return runs


def _speed() -> Run:
    """The speed of the teacher and the students. It does not depend on what their weights have learned."""
    data, commands = DATA_SETS["sst2"], []
    made_here = [student for student in STUDENTS if student[2] != STARTS["ten"]]  # which takes hours to make
    models = {f"sst2-{student}": model for student, _, model, _ in made_here}
    for name, model in {"sst2": "$encoder", **models}.items():
        learn = f"minibert finetune --recipe sst2 --train {data.train} --dev {data.dev} --model {model}"
        commands.append(f"{learn} --limit 32 --dev-limit 32 --epochs 1 --out $run --name {name}")
    folders = " ".join(f"$run/{name}/best" for name in ("sst2", *models))
    measure = f"python -m benchmarks.finetuning.speed {data.test} --json $run/speed.json {folders}"
    return Run("sst2-speed", "sentences per second, in turn", (*commands, measure), 2.5, ("second",))


# -- The same with few labels: the teacher labels the rest of the phrases -------------------------------

FEW = BUDGETS["sst2"][1]
LONGER = FEW.replace("--epochs 3", "--epochs 25")  # as many steps as with a teacher
WITH_FEW_LABELS = {  # of each student: the runs by itself and taught
    "mini": ("sst2-pretrained", "sst2-mini-unlabelled"),
    "tiny": ("sst2-tiny-few", "sst2-tiny-unlabelled"),
    "mini, 25 passes": ("sst2-mini-longer", ""),
    "tiny, 25 passes": ("sst2-tiny-longer", ""),
}


def _with_few_labels() -> list[Run]:
    """The teacher, and each student by itself (that of mini is above) and taught."""
    teacher, about = "sst2-few", "8,000 examples; the teacher labels the others"
    flags = f"{FEW} --unlabelled {DATA_SETS['sst2'].train} {ALIKE}"
    again = "8,000 examples, 25 times"
    return [
        finetune(teacher, "8,000 examples", f"{FEW} --learning-rate 1e-4", 3),
        finetune("sst2-tiny-few", "8,000 examples", f"{FEW} {ALIKE}", 0.6, model="$tiny"),
        distill("sst2-mini-unlabelled", about, teacher, flags, 9, model="$pretrained"),
        distill("sst2-tiny-unlabelled", about, teacher, flags, 4, model="$tiny"),
        finetune("sst2-mini-longer", again, f"{LONGER} {ALIKE}", 20, model="$pretrained"),
        finetune("sst2-tiny-longer", again, f"{LONGER} {ALIKE}", 8, model="$tiny"),
    ]


# -- The same with more phrases, which are made of those with labels ------------------------------------

PHRASES = "$runs/sst2-phrases/phrases.txt"
WITH_MORE_PHRASES = {  # of each student: the runs by itself and taught, of about as many steps
    "mini": ("sst2-mini-passes", "sst2-mini-more"),
    "tiny": ("sst2-tiny-passes", "sst2-tiny-more"),
}


def _with_more_phrases() -> list[Run]:
    """The teacher, the phrases that it labels, and the students, by themselves and taught."""
    data, teacher, rounded = DATA_SETS["sst2"], "sst2-rounded", "--precision bfloat16"
    make = f"python -m benchmarks.finetuning.more_phrases {data.train} --model $pretrained --output {PHRASES}"
    learn = f"--epochs 3 --learning-rate 1e-4 --eval-every 700 {rounded}"
    return [
        finetune(teacher, "all, in bfloat16", learn, 20),
        Run("sst2-phrases", "phrases made of those of the training data", (make,), 5),
        *_passes_and_more("tiny", "$tiny", teacher, passes=(12, 3), minutes=35),
        *_passes_and_more("mini", "$pretrained", teacher, passes=(8, 2), flags=f" {rounded}", minutes=100),
    ]


def _passes_and_more(
    student: str, model: str, teacher: str, *, passes: tuple[int, int], minutes: float, flags: str = ""
) -> list[Run]:
    """One student: many passes over the phrases with labels, and fewer over these and the made ones."""
    alone, taught = passes
    often = f"{ALIKE} --eval-every 2100 --threads 1{flags}"
    more = f"--epochs {taught} --unlabelled {PHRASES} {often}"
    name, about = f"sst2-{student}-more", "all, and made phrases"
    run = distill(name, about, teacher, more, minutes, model=model)
    budget = f"--epochs {alone} {often}"
    return [
        finetune(f"sst2-{student}-passes", f"all, {alone} times", budget, minutes, model=model),
        replace(run, needs=(*run.needs, "sst2-phrases")),
    ]


ALL = [
    *(*PREPARATIONS, *FROM_THE_ENCODER, *SEARCHES, *STRATEGIES, *COMPARISONS),
    *(*_students(), _speed(), *_with_few_labels(), *_with_more_phrases()),
]
RUNS = {run.name: run for run in ALL}

# With --quick: what is added to commands so that they take seconds. Of a flag given twice the last counts.
QUICK = {
    "python -m benchmarks.finetuning.squad_articles": "--paragraphs 2",
    "python -m benchmarks.finetuning.more_phrases": "--count 20",
    "minibert finetune": "--limit 16 --dev-limit 8 --epochs 1",
    "minibert distill": f"--limit 16 --dev-limit 8 --epochs 1 --unlabelled {DATA_SETS['sst2'].test}",
    "minibert evaluate": "--limit 8",
    "minibert search evaluate": "--limit 8",
    "minibert search pairs": "--limit 8",
    "python -m benchmarks.finetuning.speed": "--limit 8",
    "python -m benchmarks.finetuning.guesses": "--limit 3",
}


def quick(run: Run) -> Run:
    """The same run on so little data that its figures mean nothing."""
    commands = tuple(
        " ".join([command, *(flags for start, flags in QUICK.items() if command.startswith(start))])
        for command in run.commands
    )
    return replace(run, commands=commands, minutes=0.5)
