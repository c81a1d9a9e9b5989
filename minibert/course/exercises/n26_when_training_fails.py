"""26 When training fails: what is wrong with three runs, and which examples a resumed run goes on with."""

import numpy as np

from minibert.course.exercise import Mistake, Trial, exercise
from minibert.gradcheck import Draws

# -- What is wrong with these three runs? The answers are letters, one for each run ----------------------

# What can be answered. The notebook shows the three runs.
CAUSES = {
    "a": "the learning rate is far too high",
    "b": "the learning rate is far too low",
    "c": "the words to be predicted are not hidden: the input still shows them",
    "d": "the labels belong to other sequences: they were shuffled without their inputs",
    "e": "there is too little text: the same few documents again and again",
    "f": "nothing is wrong: a healthy run looks like this",
}


@exercise(
    "26",
    outputs="A B C",
    trials=lambda draw: [Trial({})],
    level=3,
    minutes=12,
    needs="the two lines and the plateau of [14](14_pretraining.ipynb), and the gradient norm of section 2",
    secret=True,
    hints=(
        "Look at three things: where the loss is, compared with ln V and with the line of guessing by "
        "frequency; whether training and held-out text agree; and how long the gradient is.",
        "A run that only learns how frequent words are ends on the line, not above it. One that knows its "
        "training text by heart is good only there. One whose steps are too long does not stay where it was.",
        "One run cannot use its input, one has learned its text by heart, one takes steps that are too long.",
    ),
)
def diagnosis():
    return "d", "a", "e"


# What a wrong answer is told, by run and letter.
WRONG = {
    "A": {
        "a": (
            "With steps that are too long the loss ends above the line and the gradient is long; this one "
            "settles on it quietly, and its gradient is the shortest of all."
        ),
        "b": (
            "A rate that is too low makes everything slow, above all the way down to the line. Here that is "
            "as fast as in a healthy run; only after it nothing more is learned."
        ),
        "c": (
            "Then the loss would fall far below the line, nearly to 0: copying is easy. This run stays on it."
        ),
        "e": (
            "Then the training text would be known by heart, and its loss would fall on, away from that of "
            "held-out text. Here both stay on the line."
        ),
        "f": (
            "A healthy run passes the line of guessing by frequency early. Its plateau (the one that people "
            "call “stuck at 7”) lies below, and it leaves that, too. This one never passes the line."
        ),
    },
    "B": {
        "b": (
            "Too low a rate gives a curve that is smooth and slow. This one rises, and its gradient is long."
        ),
        "c": (
            "Then the loss would fall nearly to 0. This one does not even reach the line of guessing by "
            "frequency."
        ),
        "d": (
            "A run that cannot use its input still learns how frequent words are, and settles on the line. "
            "This one stays above it."
        ),
        "e": "Learned by heart means: good on training text, bad on the rest. This run is bad on both.",
        "f": (
            "In a healthy run the loss falls, and by the end of the warm-up it is below the line. Look at "
            "what happens here as the rate rises, and at the gradient."
        ),
    },
    "C": {
        "a": (
            "With steps that are too long training does not get this far: the training loss is lower than "
            "anywhere else."
        ),
        "b": "With too low a rate the training loss would be high. It is lower than anywhere else.",
        "c": (
            "Then the training loss would be under 1 after the first two hundred steps, since copying is "
            "easy (section 4 shows such a run). Here it falls slowly, as when a text is learned by heart."
        ),
        "d": "If the input were of no use, the training loss would stay on the line. It is far below it.",
        "f": (
            "In a healthy run of this length, training and held-out text lie close together. Here they part."
        ),
    },
}


def _answers_with(run: int, letter: str):
    right = diagnosis.solution()
    return lambda: (*right[:run], letter, *right[run + 1 :])


diagnosis.mistakes += [
    Mistake(f"run {run} is not {letter}", _answers_with(i, letter), hint)
    for i, (run, told) in enumerate(WRONG.items())
    for letter, hint in told.items()
]


# -- Which examples come next? ----------------------------------------------------------------------------


def _steps(draw: Draws) -> list[Trial]:
    """Steps of several epochs; 23 examples make 5 batches of 4, and 3 examples are left over."""
    return [
        Trial({"step": step, "examples": examples, "batch_size": size, "seed": seed}, label)
        for label, step, examples, size, seed in (
            ("the first step", 0, 23, 4, 5),
            ("within the first epoch", 3, 23, 4, 5),
            ("the last batch of an epoch", 4, 23, 4, 5),
            ("the second epoch begins", 5, 23, 4, 5),
            ("much later", 1234, 23, 4, 6),
            ("nothing left over", 7, 24, 6, 5),
        )
    ]


@exercise(
    "26",
    outputs="rows",
    trials=_steps,
    level=2,
    minutes=12,
    needs="section 6",
    hints=(
        "How many whole batches are in an epoch? The epoch and the batch in it then follow from the step.",
        "per_epoch = examples // batch_size; divmod(step, per_epoch) gives both. The order is drawn from "
        "(seed, epoch).",
        "order = np.random.default_rng((seed, epoch)).permutation(examples); batch number b is "
        "order[b · batch_size : (b + 1) · batch_size].",
    ),
)
def batch_of_step(step, examples, batch_size, seed):
    return _batch(step, examples, batch_size, seed)


def _batch(step, examples, batch_size, seed, per_epoch=None, order=None, shift=0):
    """The rows, with one thing done in another way."""
    epoch, batch = divmod(step, per_epoch or examples // batch_size)
    if order is None:
        order = np.random.default_rng((seed, epoch)).permutation(examples)
    return order[batch * batch_size :][shift : batch_size + shift]


@batch_of_step.mistake(
    "Every epoch has the same order. Draw it anew for each: a generator made of (seed, epoch)."
)
def same_order_in_every_epoch(step, examples, batch_size, seed):
    return _batch(
        step, examples, batch_size, seed, order=np.random.default_rng((seed, 0)).permutation(examples)
    )


@batch_of_step.mistake("The examples are not shuffled: these rows are in their original order.")
def not_shuffled(step, examples, batch_size, seed):
    return _batch(step, examples, batch_size, seed, order=np.arange(examples))


@batch_of_step.mistake(
    "A short batch at the end of an epoch is counted. What is left over is dropped: examples // batch_size."
)
def short_batch_kept(step, examples, batch_size, seed):
    return _batch(step, examples, batch_size, seed, per_epoch=-(-examples // batch_size))


@batch_of_step.mistake("This begins at row number `step`. One batch later is batch_size rows later.")
def step_taken_for_a_row(step, examples, batch_size, seed):
    epoch, batch = divmod(step, examples // batch_size)
    order = np.random.default_rng((seed, epoch)).permutation(examples)
    return order[batch : batch + batch_size]


@batch_of_step.mistake(
    "The generator was made from seed + epoch. Then another seed gives the same orders, only earlier or "
    "later: use the pair (seed, epoch)."
)
def seed_plus_epoch(step, examples, batch_size, seed):
    epoch = step // (examples // batch_size)
    return _batch(
        step, examples, batch_size, seed, order=np.random.default_rng(seed + epoch).permutation(examples)
    )


@batch_of_step.mistake("One batch too late: step 0 is the first batch of the first epoch.")
def counted_from_one(step, examples, batch_size, seed):
    return _batch(step + 1, examples, batch_size, seed)


@batch_of_step.mistake(
    "The batches are drawn at random in each step. Then one example comes twice before another comes once: "
    "cut one order of the epoch into batches."
)
def drawn_in_every_step(step, examples, batch_size, seed):
    return np.random.default_rng((seed, step)).permutation(examples)[:batch_size]
