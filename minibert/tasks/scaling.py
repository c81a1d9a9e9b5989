"""What a training step costs on several ranks, on paper: each computes its share, a ring adds the gradients.

A rank is one process with one device. Nothing is measured here: how fast ranks and links are has to be given.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from minibert.bert import BertConfig
from minibert.errors import UserError
from minibert.tasks.info import StepCost, parameter_table, step_cost
from minibert.variants import Kind

ORIGINAL_BATCH = 256  # sequences per step in the original's pre-training, on all ranks together
ORIGINAL_PHASES = ((900_000, 128, 20), (100_000, 512, 77))  # steps, tokens, predictions per sequence


@dataclass(frozen=True)
class Machine:
    """What the slowest rank and the slowest link of the ring achieve.

    flops: per second, over a whole training step: the FLOPs of `step_cost` by the seconds that a step takes.
    bandwidth: bytes per second that a rank sends while it receives as many.
    latency: seconds that a message takes, however short it is.
    """

    flops: float
    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        usable = math.isfinite(self.flops) and math.isfinite(self.bandwidth) and math.isfinite(self.latency)
        if not usable or self.flops <= 0 or self.bandwidth <= 0 or self.latency < 0:
            raise UserError(
                "expected a speed and a bandwidth above 0 and a latency of at least 0, got "
                f"{self.flops:g} FLOP/s, {self.bandwidth:g} B/s and {self.latency:g} s"
            )


@dataclass(frozen=True)
class ScaledStep:
    """A training step on N ranks, in seconds; ``tokens`` are those of all ranks together.

    communication: for how long the link is busy. waiting: for how much of this there is nothing to compute.
    """

    ranks: int
    tokens: int
    computation: float
    communication: float
    waiting: float

    @property
    def seconds(self) -> float:
        """What the whole step takes."""
        return self.computation + self.waiting

    @property
    def efficiency(self) -> float:
        """The share of the step in which a rank computes: 1 if N ranks are N times as fast as one."""
        return self.computation / self.seconds

    @property
    def tokens_per_second(self) -> float:
        """On all ranks together."""
        return self.tokens / self.seconds


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that each rank sends, and receives, to add up ``size`` bytes over N ranks: 2 (N − 1)/N · size.

    In N − 1 rounds, each sends one N-th of the bytes to its neighbour, which adds its own; then each holds
    one N-th of the sum (reduce-scatter). In N − 1 more rounds, these are passed on (all-gather).
    """
    return 2 * (ranks - 1) / ranks * size


def ring_seconds(size: float, ranks: int, machine: Machine) -> float:
    """What this takes: 2 (N − 1) messages of size/N bytes, one after the other."""
    return ring_bytes(size, ranks) / machine.bandwidth + 2 * (ranks - 1) * machine.latency


def sharded(cost: StepCost, ranks: int) -> StepCost:
    """The same step if each rank keeps only its N-th of the optimiser's moments (ZeRO-1).

    Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
    """
    return dataclasses.replace(cost, moment_bytes=-(-cost.moment_bytes // ranks))


def scaled_step(
    config: BertConfig,
    ranks: int,
    machine: Machine,
    batch_size: int,
    length: int,
    predictions: int,
    shard_optimiser: bool = False,
    kind: Kind | None = None,
) -> ScaledStep:
    """A pre-training step on N ranks with B sequences of S tokens each and P predictions per sequence.

    The backward pass takes twice as long as the forward pass. The gradients of the heads are final first,
    then those of the layers, the last one first, then those of the embeddings. As soon as a piece is final,
    the ring adds it up while the rank computes on, one piece after the other:

        done(piece) = max(final(piece), done(the piece before)) + ring_seconds(its bytes)

    What is not done when the backward pass ends has to be waited for. With ``shard_optimiser``, only the
    first half of each ring (reduce-scatter) runs then, and the updated parameters are passed on (all-gather)
    after it. Gradients and parameters travel in float32. Precision and ``recompute`` are not asked for, since
    they change how fast a rank is, and not how much it sends. ``kind`` is the class of the model, as for
    `step_cost`, here and below.

    Raises UserError for sizes that `step_cost` refuses and for less than one rank.
    """
    check_ranks(ranks)
    cost = step_cost(config, batch_size, length, predictions, kind=kind)
    halves = 0.5 if shard_optimiser else 1.0
    backward = cost.backward_flops / machine.flops
    done = communication = 0.0
    for final, size in _pieces(config, cost, machine, kind):
        seconds = ring_seconds(size, ranks, machine)
        communication += seconds
        done = max(final, done) + halves * seconds
    gathering = ring_seconds(cost.gradient_bytes, ranks, machine) / 2 if shard_optimiser else 0.0
    return ScaledStep(
        ranks=ranks,
        tokens=ranks * batch_size * length,
        computation=cost.forward_flops / machine.flops + backward,
        communication=halves * communication + gathering,
        waiting=max(0.0, done - backward) + gathering,
    )


def check_ranks(ranks: int) -> None:
    """Raises UserError for less than one rank."""
    if ranks < 1:
        raise UserError(f"expected at least 1 rank, got {ranks}")


def _pieces(
    config: BertConfig, cost: StepCost, machine: Machine, kind: Kind | None
) -> list[tuple[float, int]]:
    """The gradients as they become final: seconds after the backward pass began, and bytes.

    All layers are taken to need the same time, although the last one has less to compute.
    """
    heads = 2 * cost.heads_flops / machine.flops
    layer = 2 * cost.encoder_flops / config.num_hidden_layers / machine.flops
    final: dict[str, float] = {}
    sizes: dict[str, int] = {}
    for matrix in parameter_table(config, kind):
        sizes[matrix.part] = sizes.get(matrix.part, 0) + 4 * matrix.count
    for part in sizes:
        if part.startswith("layer "):  # a shared layer's gradient is final where it was used first
            number = int(part.removeprefix("layer ")) * config.num_hidden_layers // config.different_layers
            final[part] = heads + (config.num_hidden_layers - number) * layer
        else:
            final[part] = heads + config.num_hidden_layers * layer if part == "embeddings" else heads
    return sorted((final[part], sizes[part]) for part in sizes)


def overtaken_at(
    config: BertConfig,
    machine: Machine,
    sequences: int,
    length: int,
    predictions: int,
    kind: Kind | None = None,
) -> int | None:
    """From how many ranks on, sharing these sequences, exchanging gradients takes longer than computing.

    Without latency, this is the first N above 1 + T₁ / (2 · bytes / bandwidth), T₁ being what one rank takes
    for all the sequences. None if that is more ranks than there are sequences.
    """
    cost = step_cost(config, 1, length, predictions, kind=kind)
    alone = sequences * (cost.forward_flops + cost.backward_flops) / machine.flops
    sizes = [size for _, size in _pieces(config, cost, machine, kind)]
    for ranks in range(2, sequences + 1):
        if sum(ring_seconds(size, ranks, machine) for size in sizes) > alone / ranks:
            return ranks
    return None


def original_hours(
    config: BertConfig,
    ranks: int,
    machine: Machine,
    shard_optimiser: bool = False,
    kind: Kind | None = None,
) -> float | None:
    """Hours for the original's pre-training: 900,000 steps of 256 × 128 tokens and 100,000 of 256 × 512.

    If these cannot be shared out evenly, the rank with the most decides. None if there are more ranks than
    sequences, or fewer than 512 positions.

    Source: Devlin et al. 2019, appendix A.2; the predictions are those of google-research/bert.
    """
    if ranks > ORIGINAL_BATCH or config.longest_sequence < 512:
        return None
    share = -(-ORIGINAL_BATCH // ranks)
    return sum(
        steps
        * scaled_step(config, ranks, machine, share, length, count, shard_optimiser, kind).seconds
        / 3600
        for steps, length, count in ORIGINAL_PHASES
    )


def balance(
    config: BertConfig,
    ranks: int,
    batch_size: int,
    length: int,
    predictions: int,
    kind: Kind | None = None,
) -> float:
    """FLOP per byte: what a rank may achieve per byte of bandwidth for its backward pass to hide the ring.

    In other words, the link keeps up as long as flops / bandwidth is at most this. That leaves out latency,
    and that the ring cannot end before the embeddings' gradient is final. Infinite for one rank.
    """
    cost = step_cost(config, batch_size, length, predictions, kind=kind)
    sent = ring_bytes(cost.gradient_bytes, ranks)
    return cost.backward_flops / sent if sent else math.inf


def scaling(
    config: BertConfig,
    ranks: int,
    machine: Machine | None,
    sizes: tuple[int, int, int],
    precision: str = "float32",
    recompute: bool = False,
    shard_optimiser: bool = False,
    kind: Kind | None = None,
) -> dict[str, Any]:
    """All of the above by name, for ``sizes`` (B, S, P) per rank; without a machine, what needs no speeds."""
    check_ranks(ranks)
    batch_size, length, predictions = sizes
    cost = step_cost(config, *sizes, precision, recompute, kind)
    step = {
        "ranks": ranks,
        "sequences": ranks * batch_size,
        "tokens": ranks * batch_size * length,
        "sent_bytes": round(ring_bytes(step_cost(config, *sizes, kind=kind).gradient_bytes, ranks)),
        "peak_bytes": (sharded(cost, ranks) if shard_optimiser else cost).peak_bytes,
        "flop_per_byte": balance(config, ranks, *sizes, kind) if ranks > 1 else None,
    }
    if machine is None:
        return step
    times = scaled_step(config, ranks, machine, *sizes, shard_optimiser, kind)
    return step | {
        "computation_seconds": times.computation,
        "communication_seconds": times.communication,
        "waiting_seconds": times.waiting,
        "seconds": times.seconds,
        "efficiency": times.efficiency,
        "tokens_per_second": times.tokens_per_second,
        "overtaken_at_ranks": overtaken_at(config, machine, ranks * batch_size, length, predictions, kind),
        "original_hours": original_hours(config, ranks, machine, shard_optimiser, kind),
    }


# -- As text ----------------------------------------------------------------------------------------


def describe_scaling(found: dict[str, Any]) -> str:
    """What `scaling` returned, as text."""
    count, sequences = found["ranks"], found["sequences"]
    rows = [
        ("sent by each rank", f"{found['sent_bytes'] / 2**20:,.1f} MiB"),
        ("peak memory of each rank", f"{found['peak_bytes'] / 2**20:,.1f} MiB"),
    ]
    if count > 1:
        rows.append(("backward pass per byte sent", f"{found['flop_per_byte']:,.0f} FLOP"))
    if "seconds" in found:
        overtaken, hours = found["overtaken_at_ranks"], found["original_hours"]
        hidden = found["communication_seconds"] - found["waiting_seconds"]
        rows += [
            ("computation", _milliseconds(found["computation_seconds"])),
            ("communication, hidden behind it", _milliseconds(hidden)),
            ("communication, waited for", _milliseconds(found["waiting_seconds"])),
            ("= a step, without what is hidden", _milliseconds(found["seconds"])),
            ("computation's share (efficiency)", f"{found['efficiency']:.1%}"),
            ("tokens per second", f"{found['tokens_per_second']:,.0f}"),
            (
                "communication > computation from",
                f"{overtaken:,} ranks" if overtaken else f"over {sequences:,} ranks",
            ),
        ]
        if hours is not None:
            rows.append(("the original's pre-training", f"{hours:,.1f} hours"))
    title = (
        f"A step on {count} ranks, each with as many sequences: {sequences:,} together "
        f"({found['tokens']:,} tokens)"
    )
    return "\n".join([title, *(f"  {what:<34}{amount:>16}" for what, amount in rows)])


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f} ms"
