"""A training step on several ranks, held against a case worked out by hand."""

import json
from pathlib import Path

import pytest

from minibert.bert import BertConfig
from minibert.cli import main
from minibert.errors import UserError
from minibert.tasks.info import parameter_table, step_cost
from minibert.tasks.scaling import (
    Machine,
    balance,
    describe_scaling,
    original_hours,
    overtaken_at,
    ring_bytes,
    ring_seconds,
    scaled_step,
    scaling,
    sharded,
)
from minibert.variants.albert import AlbertConfig

SMALL = BertConfig(
    vocab_size=32,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=4,
)
SIZES = 1, 4, 1  # B, S, P
# Forward, by hand: 2 · (2 layers · (4 · (4·8² + 2·8·16) + 2·4²·8) + 8²) = 9,344 FLOPs in the encoder, less
# 2 · 2 · (8² + 2·8·16) = 1,280 for the two tokens that no head reads, and 2 · (8² + 8·32 + 2·8) = 672 in the
# heads. The backward pass takes twice as many: 1,344 in the heads, then 8,064 in each of the layers.
FORWARD, BACKWARD = 8_736, 17_472
# Bytes, 4 per parameter: heads 4 · 138, pooler 4 · 72, layer 4 · 600, embeddings 4 · 320.
BYTES = 4 * (138 + 72 + 2 * 600 + 320)
SLOW = Machine(flops=1.0, bandwidth=1.0)  # one operation and one byte per second


def test_the_ring_moves_each_byte_almost_twice():
    assert [ring_bytes(1200, ranks) for ranks in (1, 2, 3, 4)] == [0, 1200, 1600, 1800]
    assert ring_seconds(1200, 4, Machine(1.0, bandwidth=100.0, latency=0.5)) == 18 + 6 * 0.5


def test_a_step_by_hand():
    step = scaled_step(SMALL, 4, SLOW, *SIZES)
    assert (step.computation, step.communication, step.tokens) == (FORWARD + BACKWARD, 1.5 * BYTES, 16)
    # The link is idle until layer 1 is final, and done with it before layer 0 is, which is when the backward
    # pass ends: 1.5 bytes per byte of layer 0 and of the embeddings are left.
    assert step.waiting == 1.5 * 4 * (600 + 320)
    assert step.seconds == FORWARD + BACKWARD + 5520
    assert step.efficiency == 26_208 / 31_728 and step.tokens_per_second == 16 / 31_728


def test_times_are_told_in_milliseconds():
    told = {
        line[2:36].strip(): line[36:].strip()
        for line in describe_scaling(scaling(SMALL, 4, SLOW, SIZES)).splitlines()
    }
    assert told["computation"] == "26,208,000.00 ms"
    assert told["communication, waited for"] == "5,520,000.00 ms"
    assert told["= a step, without what is hidden"] == "31,728,000.00 ms"


def test_each_of_the_five_pieces_pays_the_latency():
    step = scaled_step(SMALL, 4, Machine(1.0, 1.0, latency=10.0), *SIZES)
    assert step.communication == 1.5 * BYTES + 5 * 6 * 10
    assert step.waiting == 5520 + 2 * 6 * 10


def test_a_slow_link_is_busy_from_the_first_piece_to_the_last():
    step = scaled_step(SMALL, 2, Machine(1.0, 1e-3), *SIZES)
    assert step.waiting == pytest.approx(1_344 + 1000 * BYTES - BACKWARD, rel=1e-12)


def test_a_sharded_optimiser_gathers_parameters_after_the_backward_pass():
    step = scaled_step(SMALL, 4, SLOW, *SIZES, shard_optimiser=True)
    assert step.communication == 1.5 * BYTES
    assert step.waiting == 0.75 * 4 * (600 + 320) + 0.75 * BYTES
    cost = step_cost(SMALL, *SIZES)
    assert cost.peak_bytes - sharded(cost, 4).peak_bytes == cost.moment_bytes * 3 / 4 == 2 * BYTES * 3 / 4


def test_one_rank_waits_for_nobody():
    step = scaled_step(SMALL, 1, Machine(1.0, 1e-9, latency=1e9), *SIZES)
    assert step.communication == step.waiting == 0 and step.efficiency == 1


def test_where_communication_overtakes():
    """1 + G · 26,208 / (2 · 6,920 / bandwidth) ranks: 2.89 for G = 10 sequences at 0.1 bytes per second."""
    slow = Machine(1.0, 0.1)
    assert overtaken_at(SMALL, slow, 10, 4, 1) == 3
    for ranks, longer in ((2, False), (3, True)):
        step = scaled_step(SMALL, ranks, slow, *SIZES)
        assert (step.communication > step.computation * 10 / ranks) == longer
    assert overtaken_at(SMALL, SLOW, 10, 4, 1) is None


def test_the_balance_is_where_communication_takes_as_long_as_the_backward_pass():
    step = scaled_step(SMALL, 4, Machine(balance(SMALL, 4, *SIZES), 1.0), *SIZES)
    assert step.communication == pytest.approx(2 / 3 * step.computation, rel=1e-12)


def test_the_gradient_of_a_shared_layer_is_final_at_its_first_use():
    sizes = {name: getattr(SMALL, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    config = AlbertConfig(**sizes, embedding_size=8, intermediate_size=16, num_hidden_layers=4)
    step = scaled_step(config, 2, Machine(1.0, 1e6), *SIZES)
    last = [matrix.count for matrix in parameter_table(config) if matrix.part in ("layer 0", "embeddings")]
    assert step.waiting == pytest.approx(4 * sum(last) / 1e6, rel=1e-12)


def test_the_originals_pre_training():
    """With a link that takes no time: the FLOPs of a million steps, by the speed of all ranks together."""
    base, machine = BertConfig.preset("base"), Machine(1e14, 1e30)
    flops = [
        steps * 256 * 3 * step_cost(base, 1, *sizes).forward_flops
        for steps, sizes in ((900_000, (128, 20)), (100_000, (512, 77)))
    ]
    assert original_hours(base, 8, machine) == pytest.approx(sum(flops) / 8e14 / 3600, rel=1e-9)
    # 256 sequences on 3 ranks: one has 86
    assert original_hours(base, 3, machine) == pytest.approx(sum(flops) * 86 / 256 / 1e14 / 3600, rel=1e-9)
    assert original_hours(base, 257, machine) is None
    assert original_hours(SMALL, 8, machine) is None  # its sequences do not have 512 tokens


def test_the_tables_of_the_page_are_what_the_functions_say():
    """docs/scaling.md: hours and efficiency of base for three speeds; steps on eight small machines."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    base = BertConfig.preset("base")

    def row(*starts: str) -> list[str]:
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {' | '.join(starts)} |"))
        return [cell.strip() for cell in line.strip("|").split("|")[len(starts) :]]

    def gpus(bandwidth: float) -> list[Machine]:
        return [Machine(tflops * 1e12, bandwidth, 5e-6) for tflops in (200, 400, 600)]

    for ranks, bandwidth, start in (
        (1, 450e9, "1 GPU, 256 sequences"),
        (8, 450e9, "8 GPUs, 32 sequences each"),
        (64, 50e9, "64 GPUs, 4 sequences each"),
    ):
        hours = [original_hours(base, ranks, machine) for machine in gpus(bandwidth)]
        assert row(start) == [f"{each:.1f}" for each in hours]
    for sequences in (256, 2048, 16384, 32768):
        steps = [scaled_step(base, 64, machine, sequences // 64, 128, 20) for machine in gpus(50e9)]
        assert row(f"{sequences:,}") == [f"{100 * step.efficiency:.0f} %" for step in steps]
    for preset, batch_size in (("small", 32), ("small", 256), ("base", 32)):
        machine = Machine(0.395e12, 0.125e9, 50e-6)
        step = scaled_step(BertConfig.preset(preset), 8, machine, batch_size, 128, 20)
        expected = [f"{1e3 * step.seconds:,.0f} ms", f"{100 * step.efficiency:.0f} %"]
        assert row(preset, str(batch_size)) == expected


def test_wrong_numbers():
    with pytest.raises(UserError, match="at least 1 rank, got 0"):
        scaled_step(SMALL, 0, SLOW, *SIZES)
    for numbers in ((0.0, 1.0), (1.0, -1.0), (1.0, float("nan")), (1.0, 1.0, -1.0)):
        with pytest.raises(UserError, match="above 0"):
            Machine(*numbers)


# -- The command ------------------------------------------------------------------------------------


def info(capsys, *flags: str) -> str:
    assert main(["info", "--preset", "tiny", *flags]) == 0
    return capsys.readouterr().out


def test_info_without_speeds_says_what_needs_none(capsys):
    out = info(capsys, "--ranks", "8")
    assert "sent by each rank" in out and "efficiency" not in out and "hours" not in out


def test_a_latency_alone_gives_no_times(capsys):
    assert main(["info", "--ranks", "8", "--latency", "50"]) == 2
    assert "--latency alone gives no times; give --tflops and --link, too" in capsys.readouterr().err


def test_info_with_speeds_as_text_and_as_json(capsys):
    flags = ["--ranks", "8", "--tflops", "0.3", "--link", "0.125", "--latency", "50"]
    out = info(capsys, *flags)
    found = json.loads(info(capsys, *flags, "--json"))
    expected = scaled_step(BertConfig.preset("tiny"), 8, Machine(0.3e12, 0.125e9, 50e-6), 32, 128, 20)
    assert found["scaling"]["seconds"] == expected.seconds
    assert f"{expected.efficiency:.1%}" in out
    assert found["parameters"] == sum(matrix["count"] for matrix in found["matrices"])
    assert found["step"]["peak_bytes"] == step_cost(BertConfig.preset("tiny"), 32, 128, 20).peak_bytes


def test_a_sharded_optimiser_takes_less_memory(capsys):
    whole, part = (
        json.loads(info(capsys, "--ranks", "8", "--json", *more))["scaling"]["peak_bytes"]
        for more in ((), ("--shard-optimiser",))
    )
    moments = step_cost(BertConfig.preset("tiny"), 32, 128, 20).moment_bytes
    assert whole - part == moments * 7 / 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--link", "50"], "give --ranks"),
        (["--shard-optimiser"], "give --ranks"),
        (["--ranks", "8", "--link", "50"], "--link alone gives no times"),
        (["--ranks", "8", "--tflops", "300"], "--tflops alone gives no times"),
        (["--ranks", "-1"], "at least 1 rank"),
    ],
)
def test_flags_that_do_not_fit(capsys, flags, message):
    assert main(["info", "--preset", "tiny", *flags]) == 2
    assert message in capsys.readouterr().err
