"""27 Parity: how far apart two implementations are, and where they begin to differ."""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws

# -- A number for the difference of two hidden states ---------------------------------------------------


def _states(draw: Draws) -> list[Trial]:
    """Two libraries' hidden states, (B, S, H) = (3, 4, 5); what stands at padding is large, and differs."""
    trials = []
    for label, scale in (("numbers of order one", 1.0), ("tiny numbers", 1e-3)):
        mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])
        theirs = scale * draw.normal(3, 4, 5)
        ours = theirs + 0.1 * scale * draw.normal(3, 4, 5)
        padding = mask[:, :, None] == 0
        ours, theirs = (np.where(padding, 30 * scale * draw.normal(3, 4, 5), x) for x in (ours, theirs))
        pairs = [
            (a - b, b)
            for a, b, real in zip(ours, theirs, mask, strict=True)
            for a, b in [(a[real == 1], b[real == 1])]
        ]
        by_text = [sum((part**2).sum() for part in parts) for parts in zip(*pairs, strict=True)]
        expected = np.array((by_text[0] / by_text[1]) ** 0.5)
        trials.append(Trial({"ours": ours, "theirs": theirs, "mask": mask}, label, {"difference": expected}))
    return trials


def _norms(ours, theirs, weight):
    return np.linalg.norm((ours - theirs) * weight), np.linalg.norm(theirs * weight)


@exercise(
    "27",
    outputs="difference",
    trials=_states,
    independent="text by text",
    level=1,
    minutes=8,
    needs="section 1, and padding",
    hints=(
        "A norm is the root of the sum of all squares. Two norms are asked for, and their quotient.",
        "What stands at padding means nothing in either library. It must not count in either norm.",
        "weight = mask[:, :, None]; norm((ours − theirs) · weight) / norm(theirs · weight).",
    ),
)
def relative_difference(ours, theirs, mask):
    apart, size = _norms(ours, theirs, mask[:, :, None])
    return apart / size


@relative_difference.mistake(
    "Padding counts here. What stands at padding means nothing, so two right libraries may differ there: "
    "multiply by mask[:, :, None]."
)
def padding_compared(ours, theirs, mask):
    apart, size = _norms(ours, theirs, 1.0)
    return apart / size


@relative_difference.mistake("This is the absolute difference: divide by the norm of theirs.")
def not_relative(ours, theirs, mask):
    return _norms(ours, theirs, mask[:, :, None])[0]


@relative_difference.mistake(
    "The mask is in the difference only. Padding must not count in the denominator either."
)
def padding_in_the_denominator(ours, theirs, mask):
    return _norms(ours, theirs, mask[:, :, None])[0] / np.linalg.norm(theirs)


@relative_difference.mistake("Divide by the norm of theirs: the reference is the yardstick, not the suspect.")
def relative_to_ours(ours, theirs, mask):
    apart, _ = _norms(ours, theirs, mask[:, :, None])
    return apart / np.linalg.norm(ours * mask[:, :, None])


@relative_difference.mistake("This is the square of the quotient: take the root of each sum of squares.")
def without_the_root(ours, theirs, mask):
    return relative_difference.solution(ours, theirs, mask) ** 2


@relative_difference.mistake("The mask is turned around: 1 is a token, 0 is padding.")
def only_padding(ours, theirs, mask):
    return relative_difference.solution(ours, theirs, 1 - mask)


@relative_difference.mistake(
    "Each number is divided by its own size. Where theirs happens to be near 0, that is huge for no reason: "
    "divide one norm by the other."
)
def number_by_number(ours, theirs, mask):
    real = mask == 1
    return np.abs((ours[real] - theirs[real]) / theirs[real]).max()


@relative_difference.mistake(
    "This is the largest difference. It depends on how many numbers there are; take norms."
)
def the_largest(ours, theirs, mask):
    real = mask == 1
    return np.abs(ours[real] - theirs[real]).max() / np.abs(theirs[real]).max()


# -- Where two implementations differ ---------------------------------------------------------------------

NOWHERE = "nowhere"


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """‖ours − theirs‖ / ‖theirs‖; NaN if one of ours is NaN."""
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def _traces(draw: Draws) -> list[Trial]:
    """Values by the name of the place, in the order of their computation; ours go wrong at some place."""
    places = ["embeddings", *(f"layer {n}" for n in (1, 2, 9, 10, 11, 12))]

    def two(differences, size=1.0):
        theirs = {place: size * draw.normal(2, 3, 4) for place in places}
        ours = {
            place: theirs[place] * (1 + 1e-12 * draw.normal(2, 3, 4)) + size * far * draw.normal(2, 3, 4)
            for place, far in zip(places, differences, strict=True)
        }
        return {"ours": ours, "theirs": theirs, "bound": 1e-8}

    broken = two((0, 0, 0, 0, 1e-4, 1e-4, 1e-4))
    for place in places[5:]:
        broken["ours"][place][0, 1, 2] = np.nan
    nothing_but_nan = two([0] * 7)
    for place in places[4:]:
        nothing_but_nan["ours"][place][...] = np.nan
    cancelling = two([0] * 7)
    for place in places[3:]:
        cancelling["ours"][place] = cancelling["theirs"][place] + 0.01 * np.resize((1.0, -1.0), (2, 3, 4))
    large = two((0, 0, 1e-12, 0, 0, 0, 0), 1e6)
    for side in ("ours", "theirs"):  # a 0 of theirs, from which ours differs by as little as elsewhere
        large[side]["layer 2"][0, 0, 0] -= large["theirs"]["layer 2"][0, 0, 0]
    return [
        Trial(two((0, 0, 1e-5, 1e-3, 1e-1, 1e-2, 1e-2)), "small where it begins"),
        Trial(two((0, 0, 0, 0, 1e-3, 1e-3, 1e-3)), "from layer 10 on"),
        Trial(two((0, 0, 0, 1e-4, 1e-4, 0, 0), 1e-6), "tiny numbers"),
        Trial(large, "large numbers, no mistake"),
        Trial(cancelling, "differences of both signs"),
        Trial(broken, "not a number, later on"),
        Trial(nothing_but_nan, "not a number, from layer 10 on"),
    ]


@exercise(
    "27",
    outputs="place",
    trials=_traces,
    level=2,
    minutes=10,
    needs="`relative_difference`, and what comparisons with NaN give",
    hints=(
        "Go through the places in their order, and stop at the first that is too far from the reference.",
        "“Too far” is relative: the norm of the difference over the norm of theirs. If the loop ends, "
        "nothing was found.",
        "A comparison with NaN is always false. So ask whether the difference is within the bound: "
        "`if not difference <= bound: return place`.",
    ),
)
def first_difference(ours, theirs, bound):
    for place in theirs:
        if not distance(ours[place], theirs[place]) <= bound:
            return place
    return NOWHERE


@first_difference.mistake(
    "A NaN slips through: every comparison with it is false, so “difference > bound” is, too. Ask "
    "“not difference <= bound”."
)
def blind_to_nan(ours, theirs, bound):
    return next((place for place in theirs if distance(ours[place], theirs[place]) > bound), NOWHERE)


@first_difference.mistake(
    "This is where the difference is largest. A mistake may begin small and grow; look for the first place."
)
def where_it_is_largest(ours, theirs, bound):
    far = {place: distance(ours[place], theirs[place]) for place in theirs}
    worst = max(far, key=lambda place: far[place])
    return worst if far[worst] > bound else NOWHERE


@first_difference.mistake(
    "Absolute differences are compared with the bound. They depend on the size of the numbers: divide by the "
    "norm of theirs."
)
def absolute_differences(ours, theirs, bound):
    for place in theirs:
        if not np.linalg.norm(ours[place] - theirs[place]) <= bound:
            return place
    return NOWHERE


@first_difference.mistake("This is the last place that differs. The mistake is at the first.")
def the_last(ours, theirs, bound):
    return first_difference.solution(*(dict(reversed(side.items())) for side in (ours, theirs)), bound)


@first_difference.mistake("Only the last place is compared. That says whether there is a mistake, not where.")
def only_the_end(ours, theirs, bound):
    place = list(theirs)[-1]
    return first_difference.solution({place: ours[place]}, {place: theirs[place]}, bound)


@first_difference.mistake(
    "The places are in alphabetical order, where layer 10 comes before layer 2. Take them as they come."
)
def in_alphabetical_order(ours, theirs, bound):
    return first_difference.solution(ours, {place: theirs[place] for place in sorted(theirs)}, bound)


@first_difference.mistake(
    "Means are compared. Differences of both signs cancel in a mean: compare all numbers."
)
def only_means(ours, theirs, bound):
    means = [{place: np.array([x.mean()]) for place, x in side.items()} for side in (ours, theirs)]
    return first_difference.solution(*means, bound)


@first_difference.mistake("This is the last place that agrees. The mistake is in the place after it.")
def one_too_early(ours, theirs, bound):
    place = first_difference.solution(ours, theirs, bound)
    places = [*theirs, NOWHERE]
    return places[places.index(place) - 1] if place != NOWHERE else place
