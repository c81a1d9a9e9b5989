"""00 Start here: which changes of a sentence change the answer? Six times "same" or "other"."""

from collections.abc import Sequence

import numpy as np

from minibert import ops
from minibert.arrays import to_numpy
from minibert.bert import BertForPreTraining
from minibert.course.exercise import Mistake, Trial, exercise
from minibert.text import BertTokenizer

SENTENCE = "she wrote a [MASK] to her mother ."

# What is done to the sentence, and what the model then reads: the changed sentence first.
CHANGES = {
    "A": ("capitals", ["She wrote a [MASK] to her MOTHER ."]),
    "B": ("blanks: more of them, and none before the full stop", ["she wrote a   [MASK] to her mother."]),
    "C": ("no full stop", ["she wrote a [MASK] to her mother"]),
    "D": ("another last word", ["she wrote a [MASK] to her sister ."]),
    "E": ("the same words in another order", ["to her mother she wrote a [MASK] ."]),
    "F": ("a second sentence in the batch", [SENTENCE, "the war was over , and they went home ."]),
}


def probabilities_at_mask(
    model: BertForPreTraining, tokenizer: BertTokenizer, texts: Sequence[str]
) -> np.ndarray:
    """How likely each word is at the first [MASK] of the first of B texts: (V,), sums to 1."""
    batch = tokenizer(texts, padding=True)
    position = batch["input_ids"][0].index(tokenizer.mask_id)
    outputs, _ = model.forward(**batch)
    return to_numpy(ops.softmax(outputs.prediction_logits[0, position])[0])


@exercise(
    "00",
    outputs=" ".join(CHANGES),
    trials=lambda draw: [Trial({})],
    level=1,
    minutes=5,
    needs="sections 1 to 4",
    secret=True,
    hints=(
        'The answers are the words "same" and "other", six of them, for A to F. For each change, ask first: '
        "does the model get other ids? Section 2 shows how to find out.",
        "With the same ids, the answer is the same. With other ids: does the gap see the difference?",
        "Half of them are the same.",
    ),
)
def predictions():
    return "same", "same", "other", "other", "other", "same"


# What is said to somebody who gives the opposite of the right answer.
HINTS = {
    "A": "The tokenizer makes all letters lower case before it looks them up, so the ids are the same.",
    "B": "Blanks only separate words, and a full stop is a token of its own anyway: the ids are the same.",
    "C": "To the model, the full stop is a token like any other. Without it, the sentence is not finished.",
    "D": "The word is after the gap, and BERT reads both sides.",
    "E": (
        "Each token also gets a vector for its position; without it, BERT would see a bag of words. So "
        "another order is another input."
    ),
    "F": "A batch is only a way to compute several answers at once: its sequences do not see each other.",
}


def _answers_without(run: int):
    opposite = {"same": "other", "other": "same"}
    right = predictions.solution()
    return lambda: (*right[:run], opposite[right[run]], *right[run + 1 :])


predictions.mistakes += [
    Mistake(f"change {change} misjudged", _answers_without(i), hint)
    for i, (change, hint) in enumerate(HINTS.items())
]
