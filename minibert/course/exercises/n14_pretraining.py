"""14 Pre-training: what is wrong with these three runs? The answers are letters, one for each run."""

from minibert.course.exercise import Mistake, Trial, exercise

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
    "14",
    outputs="A B C",
    trials=lambda draw: [Trial({})],
    level=3,
    minutes=12,
    needs="the two lines of sections 4 and 5, section 6, and the gradient norm of section 8",
    secret=True,
    hints=(
        "Look at three things: where the loss is against ln V and against the line of guessing by "
        "frequency; whether training and held-out text agree; and how long the gradient is.",
        "Who knows only how frequent words are ends on the line and not above it; who knows training text "
        "by heart is good there only; who takes steps that are too long does not stay where it was.",
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
            "A rate that is too low makes everything slow, the way down to the line above all. Here it is "
            "as fast as in a healthy run; only then it ends."
        ),
        "c": (
            "Then the loss would fall far below the line, nearly to 0: copying is easy. This run stays on it."
        ),
        "e": (
            "Then training text would be known by heart and its loss fall on, away from held-out text. Here "
            "both stay on the line."
        ),
        "f": (
            "A healthy run passes the line of guessing by frequency early; its plateau (questions of “stuck "
            "at 7” mean it) lies below, and it leaves that, too. This one never passes the line."
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
            "Without use of its input a run still learns how frequent words are, and settles on the line. "
            "This one stays above it."
        ),
        "e": "By heart means: good on training text, bad on the rest. This run is bad on both.",
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
            "Then held-out text, whose words are not hidden either, would be as easy: both losses nearly 0. "
            "Here they part."
        ),
        "d": "Without use of its input the training loss would stay on the line. It is far below it.",
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
