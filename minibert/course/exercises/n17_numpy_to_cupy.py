"""17 NumPy to CuPy: a kernel in NumPy, LayerNorm of one row as the threads of a GPU share it out.

What a thread holds in registers is a row of an array here, so that what all threads do at once is one line.
See kernels/cuda/norm.cuh and common.cuh.
"""

import numpy as np

from minibert.course.exercise import Trial, exercise
from minibert.gradcheck import Draws
from minibert.ops.layer_normalisation import layer_norm


def butterfly(values: np.ndarray) -> np.ndarray:
    """The sum of all threads' values, in every thread. values (threads,), a power of two of them.

    In each round thread i adds what thread i XOR distance holds, for distances threads/2, …, 2, 1: the
    instruction __shfl_xor_sync. Everyone reads before anyone writes.
    """
    threads = np.arange(len(values))
    distance = len(values) // 2
    while distance > 0:
        values = values + values[threads ^ distance]
        distance //= 2
    return values


@exercise(
    "17",
    outputs="rounds",
    trials=lambda draw: [Trial({"values": draw.normal(n)}, f"{n} threads") for n in (8, 16)],
    level=1,
    minutes=10,
    needs="the shuffles of section 4",
    hints=(
        "Play it with four threads on paper: after the first round every thread holds a sum of two, after "
        "the second the sum of four.",
        "In a round, thread i adds what thread i ^ distance holds, and all threads read before one of them "
        "writes. The distances are n/2, n/4, …, 1.",
        "threads = np.arange(n); for each distance: values = values + values[threads ^ distance]; keep "
        "values; at the end np.stack what was kept. See `over_row` in minibert/kernels/cuda/common.cuh.",
    ),
)
def sum_row(values):
    threads = np.arange(len(values))
    rounds = []
    distance = len(values) // 2
    while distance > 0:
        values = values + values[threads ^ distance]
        rounds.append(values)
        distance //= 2
    return np.stack(rounds)  # (log₂ threads, threads)


@sum_row.mistake(
    "Threads read what others have just written: thread 4 adds a value of thread 0 that already has 4's in "
    "it. On a GPU that would be a race. Read all old values, then write all new ones."
)
def written_before_all_have_read(values):
    values, rounds, distance = values.copy(), [], len(values) // 2
    while distance > 0:
        for thread in range(len(values)):
            values[thread] += values[thread ^ distance]
        rounds.append(values.copy())
        distance //= 2
    return np.stack(rounds)


@sum_row.mistake(
    "Thread i adds what thread i + distance holds. Then only thread 0 ends with the sum of all (threads "
    "past the end have nothing to read). With XOR the partners swap, and every thread has it."
)
def shifted_instead_of_swapped(values):
    rounds, distance = [], len(values) // 2
    while distance > 0:
        beyond = np.concatenate([values, np.zeros(distance)])
        values = values + beyond[distance : distance + len(values)]
        rounds.append(values)
        distance //= 2
    return np.stack(rounds)


@sum_row.mistake(
    "The last round, at distance 1, is missing: neighbours hold two halves of the sum. The loop runs while "
    "distance > 0."
)
def one_round_too_few(values):
    return sum_row.solution(values)[:-1]


@sum_row.mistake(
    "The distances rise: 1, 2, 4. The sum at the end is right, but the kernel begins with the largest, n/2."
)
def distances_rising(values):
    threads = np.arange(len(values))
    rounds, distance = [], 1
    while distance < len(values):
        values = values + values[threads ^ distance]
        rounds.append(values)
        distance *= 2
    return np.stack(rounds)


@sum_row.mistake(
    "Every row is what the threads hold at the end: += changes the array that you kept earlier. "
    "values = values + … makes a new one."
)
def the_same_array_kept_three_times(values):
    rounds = sum_row.solution(values)
    return np.stack([rounds[-1]] * len(rounds))


@sum_row.mistake(
    "In each round, only half as many threads add as before: a tree. Thread 0 ends with the sum, and "
    "would have to tell the others. In a butterfly all threads add in every round."
)
def a_tree_instead_of_a_butterfly(values):
    rounds, distance = [], len(values) // 2
    while distance > 0:
        values = np.concatenate([values[:distance] + values[distance : 2 * distance], values[distance:]])
        rounds.append(values)
        distance //= 2
    return np.stack(rounds)


# -- LayerNorm of one row -----------------------------------------------------------------------------------


def _rows(draw: Draws) -> list[Trial]:
    """A row of H = 11 numbers, held by 4 threads with 4 registers each, some empty; one of 16 by 8 with 2."""
    trials = []
    for size, threads, pack in ((11, 4, 4), (16, 8, 2)):
        arrays = {"x": draw.normal(size), "weight": draw.normal(size), "bias": draw.normal(size)}
        y, _ = layer_norm(**arrays, eps=0.5)
        arguments = {**arrays, "eps": 0.5, "threads": threads, "pack": pack}
        trials.append(Trial(arguments, f"H = {size}", {"y": y}))
    return trials


@exercise(
    "17",
    outputs="registers y",
    trials=_rows,
    independent="minibert",
    level=2,
    minutes=20,
    needs="the kernel of section 4, line by line, and the forward pass of [05](05_layer_norm.ipynb)",
    hints=(
        "Who holds what? Thread t has the `pack` neighbours from column t · pack on, and some columns do "
        "not exist.",
        "A sum over the row: each thread adds up its registers, then `butterfly`. It is divided by H, not "
        "by the number of registers; and a register beyond the row must add nothing to the squares either.",
        "column = np.arange(threads · pack).reshape(threads, pack); inside = column < H. After the mean is "
        "subtracted, registers beyond the row hold −mean: set them to 0 again. See `normalise` in "
        "minibert/kernels/cuda/norm.cuh.",
    ),
    hints_for={
        "y": (
            "The registers are right. Only what comes after the division by σ is left.",
            "Only the first H registers, in the order of the columns, are in the row.",
            "y = registers.reshape(−1)[:H] · weight + bias.",
        ),
    },
)
def layer_norm_row(x, weight, bias, eps, threads, pack):
    size = len(x)
    registers = np.zeros(threads * pack)
    registers[:size] = x
    registers = registers.reshape(threads, pack)  # thread t has the columns t·pack, …, t·pack + pack − 1
    inside = np.arange(threads * pack).reshape(threads, pack) < size
    mean = butterfly(registers.sum(axis=1)) / size  # (threads,): each has it
    registers = np.where(inside, registers - mean[:, None], 0.0)
    variance = butterfly((registers**2).sum(axis=1)) / size
    registers = registers / np.sqrt(variance + eps)[:, None]
    return registers, registers.reshape(-1)[:size] * weight + bias


def _normalised(x, threads, pack, eps, counted=None, cleared=True, outside_root=False, everyone=butterfly):
    """The solution's registers, with its choices left open."""
    registers = np.zeros(threads * pack)
    registers[: len(x)] = x
    registers = registers.reshape(threads, pack)
    inside = np.arange(threads * pack).reshape(threads, pack) < len(x)
    mean = everyone(registers.sum(axis=1)) / (counted or len(x))
    registers = registers - mean[:, None]
    if cleared:
        registers = np.where(inside, registers, 0.0)
    variance = everyone((registers**2).sum(axis=1)) / (counted or len(x))
    deviation = np.sqrt(variance) + eps if outside_root else np.sqrt(variance + eps)
    return np.where(inside, registers / deviation[:, None], 0.0)


def _with_y(registers, x, weight, bias):
    return registers, registers.reshape(-1)[: len(x)] * weight + bias


@layer_norm_row.mistake(
    "Registers beyond the row are 0 when the mean is taken, but −mean when the squares are summed: each "
    "adds mean² to the variance. Set them to 0 again after subtracting. (It does not show where the row "
    "fills all registers.)"
)
def squares_from_beyond_the_row(x, weight, bias, eps, threads, pack):
    return _with_y(_normalised(x, threads, pack, eps, cleared=False), x, weight, bias)


@layer_norm_row.mistake(
    "The sums are divided by the number of registers, threads · pack. The row has H numbers."
)
def divided_by_the_registers(x, weight, bias, eps, threads, pack):
    return _with_y(_normalised(x, threads, pack, eps, counted=threads * pack), x, weight, bias)


@layer_norm_row.mistake(
    "Each thread uses the sum of its own registers: the sums have to go through `butterfly`, so that every "
    "thread has that of the whole row."
)
def threads_do_not_exchange(x, weight, bias, eps, threads, pack):
    return _with_y(_normalised(x, threads, pack, eps, everyone=np.copy), x, weight, bias)


@layer_norm_row.mistake("ε is added to σ; it belongs inside the root, √(variance + ε).")
def epsilon_outside_the_root(x, weight, bias, eps, threads, pack):
    return _with_y(_normalised(x, threads, pack, eps, outside_root=True), x, weight, bias)


@layer_norm_row.mistake(
    "y is right, but thread t holds the columns t, t + threads, …. A thread loads 16 bytes at once, so its "
    "columns have to be neighbours: t · pack, t · pack + 1, …"
)
def columns_dealt_out_in_turn(x, weight, bias, eps, threads, pack):
    registers, y = layer_norm_row.solution(x, weight, bias, eps, threads, pack)
    return registers.reshape(pack, threads).T.copy(), y


@layer_norm_row.mistake(
    "y is right, but registers beyond the row hold −mean/σ. They have to be 0: the next sum over the "
    "registers, as in the backward pass, would include them."
)
def not_cleared_beyond_the_row(x, weight, bias, eps, threads, pack):
    registers, y = layer_norm_row.solution(x, weight, bias, eps, threads, pack)
    inside = np.arange(threads * pack).reshape(threads, pack) < len(x)
    return np.where(inside, registers, -x.mean() / np.sqrt(x.var() + eps)), y


@layer_norm_row.mistake(
    "y is right, but the registers hold γ x̂ + β. Return x̂: the backward pass will need it."
)
def registers_hold_y(x, weight, bias, eps, threads, pack):
    _, y = layer_norm_row.solution(x, weight, bias, eps, threads, pack)
    registers = np.zeros(threads * pack)
    registers[: len(x)] = y
    return registers.reshape(threads, pack), y


@layer_norm_row.mistake("y is x̂: weight and bias are missing, y = γ x̂ + β.")
def weight_and_bias_forgotten(x, weight, bias, eps, threads, pack):
    registers, _ = layer_norm_row.solution(x, weight, bias, eps, threads, pack)
    return registers, registers.reshape(-1)[: len(x)]
