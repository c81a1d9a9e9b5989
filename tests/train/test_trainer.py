import itertools
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from minibert.bert import BertForPreTraining
from minibert.errors import UserError
from minibert.ranks import Ranks
from minibert.train import AdamW, Trainer
from minibert.train.gradient_sum import ExactSum, FastSum
from minibert.train.metrics import MetricsLog, read_metrics
from minibert.train.progress import Progress


@dataclass
class Batches:
    """Batches by their number, with something that may happen when one is asked for."""

    make: object
    happenings: dict = field(default_factory=dict)
    number: int = 0

    def __next__(self):
        self.happenings.get(self.number, lambda: None)()
        self.number += 1
        return self.make(4, seed=self.number)

    def state(self):
        return {"batch": self.number}

    def restore(self, state):
        self.number = state["batch"]


@pytest.fixture
def make_trainer(tmp_path, config, make_batch):
    """A trainer of a new model that notes what it is asked to save."""

    def make(device="cpu", dtype="float64", happenings=None, dropout=0.1, precision=None, **options):
        config.hidden_dropout_prob = dropout
        if precision is not None:
            dtype = "float32"
        model = BertForPreTraining(config, device=device, dtype=dtype, precision=precision, seed=3)
        trainer = Trainer(
            model,
            AdamW(model),
            Batches(make_batch, happenings or {}),
            learning_rate=lambda step: 0.01,
            evaluate=lambda: {"mlm_loss": 1.0},
            save=lambda state: saved.append(state) or tmp_path / f"checkpoint-{state['step']}",
            metrics=MetricsLog(tmp_path / "metrics.jsonl"),
            **{"steps": 6, **options},
        )
        trainer.saved = saved = []
        return trainer

    return make


def losses(trainer):
    """Step → loss, as reported."""
    return {r["step"]: r["loss"] for r in read_metrics(trainer.metrics.path) if "loss" in r}


# -- The loop ----------------------------------------------------------------------------------------


def test_training_learns_a_batch_by_heart(make_trainer, make_batch):
    trainer = make_trainer(dropout=0.0, steps=150)
    trainer.batches.make = lambda rows, seed: make_batch(rows, seed=0)
    trainer.run()
    reported = losses(trainer)
    assert list(reported) == list(range(1, 151))
    assert reported[1] > 4.0 and reported[150] < 0.5  # ln 40 + ln 2 = 4.4 before it has learned anything


def test_it_reports_evaluates_and_saves_when_due_and_at_the_end(make_trainer):
    trainer = make_trainer(steps=7, log_every=2, eval_every=3, save_every=5)
    trainer.run()
    records = read_metrics(trainer.metrics.path)
    assert [r["step"] for r in records if "held_out_mlm_loss" in r] == [0, 3, 6, 7]
    assert [r["step"] for r in records if "loss" in r] == [2, 3, 4, 5, 6, 7]
    assert [state["step"] for state in trainer.saved] == [5, 7]
    assert [state["data"]["batch"] for state in trainer.saved] == [5, 7]


def test_training_in_two_stretches_ends_in_the_same_bits(make_trainer):
    whole, twice = (make_trainer(save_every=100) for _ in range(2))
    whole.run()
    twice.run(4)
    twice.run()
    np.testing.assert_array_equal(twice.model.buffers.value, whole.model.buffers.value)
    assert [state["step"] for state in whole.saved] == [6]
    assert [state["step"] for state in twice.saved] == [4, 6]  # each stretch ends with a checkpoint


def test_a_report_gives_the_mean_since_the_last_and_counts_tokens(make_trainer, make_batch):
    often = make_trainer(log_every=1)
    often.run()
    single = list(losses(often).values())
    often.metrics.path.unlink()
    seldom = make_trainer(log_every=3)
    seldom.run()
    assert losses(seldom) == pytest.approx({3: np.mean(single[:3]), 6: np.mean(single[3:])})
    last = read_metrics(seldom.metrics.path)[-2]
    assert last["tokens"] == sum(int(make_batch(4, seed)["attention_mask"].sum()) for seed in range(1, 7))
    assert set(last) >= {"mlm_loss", "nsp_loss", "lr", "grad_norm", "tokens_per_second", "seconds"}
    assert last["loss"] == pytest.approx(last["mlm_loss"] + last["nsp_loss"])


def test_the_speed_of_a_report_is_that_since_the_last(make_trainer, monkeypatch):
    clock = itertools.accumulate(itertools.count(1))  # every interval is longer than the one before
    monkeypatch.setattr("minibert.train.trainer.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    trainer = make_trainer(log_every=2)
    trainer.run()
    reports = [r for r in read_metrics(trainer.metrics.path) if "tokens_per_second" in r]
    assert len(reports) == 3
    tokens, seconds = (np.diff([r[name] for r in reports], prepend=0) for name in ("tokens", "seconds"))
    assert [r["tokens_per_second"] for r in reports] == np.round(tokens / seconds, 1).tolist()


def test_a_report_has_the_rate_of_the_step_before_it(make_trainer):
    trainer = make_trainer(log_every=2)
    trainer.learning_rate = lambda step: 0.001 * (step + 1)  # steps count from 0
    trainer.run()
    records = [r for r in read_metrics(trainer.metrics.path) if "lr" in r]
    assert [(r["step"], r["lr"]) for r in records] == [(s, pytest.approx(0.001 * s)) for s in (2, 4, 6)]


def test_a_run_that_is_resumed_is_not_measured_at_its_beginning(make_trainer, tmp_path):
    trainer = make_trainer(eval_every=6)
    trainer.restore(tmp_path / "checkpoint-3", {"step": 3, "tokens": 0, "seconds": 0.0, "data": {"batch": 3}})
    trainer.run()
    records = read_metrics(trainer.metrics.path)
    assert [r["step"] for r in records if "held_out_mlm_loss" in r] == [6]


def test_the_seed_decides_on_dropout(make_trainer):
    found = []
    for seed in (1, 1, 2):
        trainer = make_trainer(steps=2, dropout=0.5, seed=seed)
        trainer.run()
        found.append(losses(trainer))
        trainer.metrics.path.unlink()
    assert found[0] == found[1] != found[2]


def test_accumulation_takes_several_batches_a_step(make_trainer):
    trainer = make_trainer(steps=2, accumulation=3)
    trainer.run()
    assert trainer.batches.number == 6


def test_a_resumed_run_ends_in_the_same_bits(make_trainer, tmp_path):
    whole = make_trainer(steps=6, save_every=3)
    whole.run()
    expected = read_metrics(whole.metrics.path)

    first = make_trainer(steps=6, save_every=3)
    first.steps = 3
    first.run()
    second = make_trainer(steps=6, save_every=3)
    second.model.buffers.value[...] = first.model.buffers.value
    second.optimiser.load_state_arrays(first.optimiser.state_arrays(), "memory")
    second.restore(tmp_path / "checkpoint-3", first.saved[-1])
    second.run()
    np.testing.assert_array_equal(second.model.buffers.value, whole.model.buffers.value)
    assert second.tokens == whole.tokens
    bits = ("step", "loss", "grad_norm", "tokens")
    kept = [[r.get(name) for name in bits] for r in read_metrics(second.metrics.path) if r["step"] > 3]
    assert kept == [[r.get(name) for name in bits] for r in expected if r["step"] > 3]


def test_a_resumed_run_shows_its_own_speed_and_the_time_left_at_that(make_trainer, tmp_path, monkeypatch):
    """The machine that took the first steps was slow: it says nothing about this one."""
    shown = []
    monkeypatch.setattr(Progress, "update", lambda _, step, loss, *speed: shown.append(speed))
    ticks = itertools.count()  # a clock that goes on by one second each time that it is read
    monkeypatch.setattr("minibert.train.trainer.time.perf_counter", lambda: float(next(ticks)))
    trainer = make_trainer(steps=6)
    state = {"step": 3, "tokens": 1000, "seconds": 1e6, "data": {"batch": 3}}
    trainer.restore(tmp_path / "checkpoint-3", state)
    trainer.run()
    records = [r for r in read_metrics(trainer.metrics.path) if "loss" in r]
    assert [r["seconds"] for r in records] == [1e6 + 1, 1e6 + 2, 1e6 + 3]  # of the whole run
    assert shown == [((r["tokens"] - 1000) / n, 3.0 - n) for n, r in enumerate(records, start=1)]


def test_the_shown_speed_is_that_of_the_steps_since_run_began(make_trainer, monkeypatch):
    """What came before them, such as counting words or shorter sequences, says nothing about those left."""
    shown = []
    monkeypatch.setattr(Progress, "update", lambda _, step, loss, *speed: shown.append(speed))
    ticks = itertools.count()
    monkeypatch.setattr("minibert.train.trainer.time.perf_counter", lambda: float(next(ticks)))
    trainer = make_trainer(steps=6)
    trainer.seconds = 1e6
    trainer.run(3)
    trainer.seconds += 1e6
    trainer.run()
    assert [left for _, left in shown] == [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]


def test_the_loop_runs_on_every_array_library_in_its_own_precision(device, make_trainer):
    here = make_trainer(device, "float32", dropout=0.0, steps=2)
    here.run()
    got = losses(here)
    here.metrics.path.unlink()
    reference = make_trainer("cpu", "float32", dropout=0.0, steps=2)
    reference.run()
    assert got == pytest.approx(losses(reference), rel=1e-5)
    assert here.optimiser.variance.dtype == np.dtype("float32")


# -- float16 -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_overflowing_steps_are_left_out_until_the_scale_fits(make_trainer):
    trainer = make_trainer(precision="float16", steps=10)
    trainer.optimiser.loss_scale.value[...] = 2.0**21
    trainer.run()
    records = [record for record in read_metrics(trainer.metrics.path) if "loss" in record]
    skipped = [record["grad_norm"] is None for record in records]
    assert 1 <= sum(skipped) < 10 and skipped == sorted(skipped, reverse=True)
    for before, record in itertools.pairwise(records):
        factor = 0.5 if record["grad_norm"] is None else 1.0
        assert record["loss_scale"] == factor * before["loss_scale"]
    assert records[-1]["loss"] < records[0]["loss"]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_gradient_that_no_scale_makes_finite_ends_the_run(make_trainer, monkeypatch):
    trainer = make_trainer(precision="float16", steps=30)
    trainer.optimiser.loss_scale.value[...] = 4.0
    monkeypatch.setattr(AdamW, "update", overflow)
    with pytest.raises(UserError, match="gradient norm inf at step 2"):
        trainer.run()


def overflow(optimiser, rates):
    norm = np.asarray(np.inf, dtype="float32")
    optimiser.loss_scale.update(norm)
    return norm


def test_a_resumed_run_in_float16_ends_in_the_same_bits(make_trainer, tmp_path):
    def make():
        trainer = make_trainer(precision="float16", save_every=3)
        trainer.optimiser.loss_scale.patience = 2
        return trainer

    whole, first, second = make(), make(), make()
    whole.run()
    first.steps = 3
    first.run()
    first.model.save_pretrained(tmp_path / "saved")
    second.model = type(whole.model).from_pretrained(tmp_path / "saved", precision="float16")
    second.optimiser = AdamW(second.model)
    second.optimiser.loss_scale.patience = 2
    second.optimiser.load_state_arrays(first.optimiser.state_arrays(), "memory")
    second.restore(tmp_path / "checkpoint-3", first.saved[-1])
    second.run()
    np.testing.assert_array_equal(second.model.buffers.value, whole.model.buffers.value)
    np.testing.assert_array_equal(second.model.buffers.operand, whole.model.buffers.operand)
    assert second.optimiser.loss_scale.value == whole.optimiser.loss_scale.value > 2.0**16


# -- Ways to end -------------------------------------------------------------------------------------


def poison(trainer):
    trainer.model.buffers.value[0] = np.nan


def test_a_nan_ends_the_run_before_it_is_saved(make_trainer, tmp_path):
    trainer = make_trainer(steps=9, save_every=2)
    trainer.batches.happenings[4] = lambda: poison(trainer)
    with pytest.raises(UserError, match=r"loss is nan .* at step 5, in the batch .* batch 4 .*checkpoint-4"):
        trainer.run()
    assert [state["step"] for state in trainer.saved] == [2, 4]
    assert max(losses(trainer)) == 4


@pytest.mark.parametrize("when", [4, 9])
def test_weights_that_the_last_update_spoiled_are_not_saved(make_trainer, when):
    """The loss of their step was still finite. This is so at the end of the run, too."""
    trainer = make_trainer(steps=9, save_every=2, eval_every=100)
    take = trainer._training.take

    def spoil(*arguments):
        take(*arguments)
        if trainer.step == when - 1:
            poison(trainer)

    trainer._training.take = spoil
    with pytest.raises(UserError, match=f"some weights are not finite at step {when}, .*; the last good"):
        trainer.run()
    assert [state["step"] for state in trainer.saved] == [*range(2, when, 2)]


def test_a_nan_between_two_reports_is_found_before_the_next_checkpoint(make_trainer):
    trainer = make_trainer(steps=9, save_every=3, log_every=100)
    trainer.batches.happenings[1] = lambda: poison(trainer)
    with pytest.raises(UserError, match=r"at steps 1 to 3, .* begins at batch 0.*no checkpoint"):
        trainer.run()
    assert trainer.saved == []


def test_an_infinite_gradient_ends_the_run_too(make_trainer, monkeypatch):
    trainer = make_trainer()
    monkeypatch.setattr(trainer.optimiser, "update", lambda rates: np.float64(np.inf))
    with pytest.raises(UserError, match="gradient norm inf at step 1"):
        trainer.run()


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_the_step_and_saves(make_trainer):
    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(happenings={3: press_ctrl_c})
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert [state["step"] for state in trainer.saved] == [4]
    assert trainer.checkpoint.name == "checkpoint-4"
    assert max(losses(trainer)) == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once(make_trainer):
    def press_twice():
        press_ctrl_c()
        press_ctrl_c()

    trainer = make_trainer(happenings={3: press_twice})
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.saved == [] and trainer.step == 3


def test_ctrl_c_in_the_last_evaluation_is_not_lost(make_trainer):
    trainer = make_trainer()
    trainer.evaluate = lambda: {"mlm_loss": 1.0} if trainer.step < 4 else press_ctrl_c() or {"mlm_loss": 1.0}
    with pytest.raises(KeyboardInterrupt):
        trainer.run(4)
    assert [state["step"] for state in trainer.saved] == [4]


def test_signals_are_left_alone_outside_the_main_thread(make_trainer):
    """Python lets no other thread catch them."""
    trainer = make_trainer(steps=2)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert [state["step"] for state in trainer.saved] == [2]


# -- Several ranks -----------------------------------------------------------------------------------


class Rank(Ranks):
    """One of several ranks, which needs none of the others."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


@pytest.mark.parametrize(("fast_reduce", "kind"), [(False, ExactSum), (True, FastSum)])
def test_gradients_are_added_up_exactly_unless_it_is_to_be_fast(make_trainer, fast_reduce, kind):
    trainer = make_trainer(accumulation=2, ranks=Rank(0, 2), fast_reduce=fast_reduce)
    assert type(trainer._training._sum) is kind


class Instances:
    """A corpus of numbered instances: batches of their numbers, endlessly, one pass after the other."""

    def __init__(self, count, rows):
        self.numbers = itertools.cycle(range(count))
        self.rows = rows

    def __next__(self):
        return list(itertools.islice(self.numbers, self.rows))

    def skip(self):
        next(self)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_instance_is_computed_once_a_pass_on_all_ranks_together(make_trainer, size):
    computed = Counter()
    for rank in range(size):
        trainer = make_trainer(accumulation=6, ranks=Rank(rank, size))
        trainer.batches = Instances(count=90, rows=5)
        for _ in range(2 * 90 // (6 * 5)):  # the steps of two passes
            batches = list(trainer._own_batches())
            assert len(batches) == 6 // size
            computed.update(itertools.chain.from_iterable(batches))
    assert computed == Counter(dict.fromkeys(range(90), 2))
