"""What pre-training and fine-tuning make of their settings."""

import pytest

from minibert.devices import Device, resolve_device
from minibert.ranks import Ranks
from minibert.tasks.run import Run, learning_rates, make_optimiser
from minibert.threads import get_threads, set_threads
from minibert.train.optimiser import Muon

OPTIMISER = {
    "beta1": 0.8,
    "beta2": 0.98,
    "adam_eps": 1e-7,
    "weight_decay": 0.02,
    "clip_norm": 0.5,
    "bias_correction": True,
}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_the_optimiser_has_all_of_its_settings(small, model, kind):
    own = {"matrix_rate": 0.03, "matrix_momentum": 0.9} if kind == "muon" else {}
    optimiser = make_optimiser(small(optimiser=kind, **OPTIMISER, **own), model)
    assert isinstance(optimiser, Muon) == (kind == "muon")
    for name, value in (OPTIMISER | own).items():
        assert getattr(optimiser, name.removeprefix("adam_")) == value, name


def test_the_warm_up_is_a_share_of_the_steps(small):
    settings = small(schedule="triangle", learning_rate=2.0, warmup=0.25)
    rate = learning_rates(settings, 8)
    assert [rate(step) for step in range(8)] == pytest.approx([0, 1, *(2 * n / 6 for n in range(6, 0, -1))])


@pytest.mark.parametrize(("given", "expected"), [(None, 3), (5, 5)])
def test_processes_of_one_machine_share_its_threads(small, restore_threads, given, expected):
    class OfTwo(Ranks):
        local_size = 2

    set_threads(6)
    Run(small(threads=given), resolve_device("cpu"), ranks=OfTwo()).prepare_machine()
    assert get_threads() == expected


@pytest.mark.parametrize(("device", "log_every"), [("cpu", 1), ("cuda:0", 10)])
def test_the_trainer_has_its_settings(small, model, tmp_path, device, log_every):
    def trainer(**changes):
        run = Run(small(**changes), Device(device, resolve_device("cpu").xp))
        arguments = {"folder": tmp_path, "trained_on": "a", "save_model": None, "own_state": None}
        arguments |= {"batches": None, "evaluate": None}
        return run.make_trainer(model, 8, **arguments)

    usual = trainer()
    assert (usual.steps, usual.log_every, usual.fast_reduce) == (8, log_every, False)
    other = trainer(log_every=3, print_every=5, accumulation=2, fast_reduce=True)
    assert (other.log_every, other.print_every, other.accumulation, other.fast_reduce) == (3, 5, 2, True)
