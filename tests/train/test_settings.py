"""The name of a run that was given none; who multiplies in which precision."""

from datetime import date
from pathlib import Path

import numpy as np
import pytest

from minibert.devices import Device
from minibert.errors import UserError
from minibert.ranks import ALONE, Ranks
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.train import RunSettings, settings


class Second(Ranks):
    """Rank 1 of two; rank 0 says "theirs"."""

    rank, size = 1, 2

    def gather(self, value):
        return ["theirs", value]


@pytest.fixture(autouse=True)
def fixed_day(monkeypatch, tmp_path):
    class Day(date):
        @classmethod
        def today(cls):
            return cls(2026, 3, 4)

    monkeypatch.setattr(settings, "date", Day)
    monkeypatch.chdir(tmp_path)


def test_a_run_is_named_after_the_day():
    assert RunSettings().with_name("tiny", ALONE).folder == Path("runs/2026-03-04-tiny")
    assert RunSettings(out="mine").with_name("tiny", ALONE).folder == Path("mine/2026-03-04-tiny")


def test_a_name_in_use_is_left_alone():
    for expected in ("2026-03-04-tiny", "2026-03-04-tiny-2", "2026-03-04-tiny-3"):
        named = RunSettings().with_name("tiny", ALONE)
        assert named.name == expected
        named.folder.mkdir(parents=True)


def test_a_given_name_stays():
    Path("runs/mine").mkdir(parents=True)
    for ranks in (ALONE, Second()):  # (whether all ranks have the same one is checked later)
        assert RunSettings(name="mine").with_name("tiny", ranks).name == "mine"


def test_the_command_that_resumes_a_run_can_be_pasted():
    named = PretrainSettings(name="my run", out="my runs")
    assert named.resume_command == "minibert pretrain --config 'my runs/my run/config.json' --resume"


def test_all_ranks_take_the_name_of_the_first():
    assert RunSettings().with_name("tiny", Second()).name == "theirs"


@pytest.mark.parametrize("way", ["resume", "overwrite"])
def test_an_earlier_run_has_to_be_named(way):
    with pytest.raises(UserError, match=f"^{way} needs to know which run: give its --name, or --config RUN/"):
        RunSettings(**{way: True})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "tiny"),
        ({"preset": "small"}, "small"),
        ({"variant": "albert"}, "albert-tiny"),
        ({"model": "runs/books/final"}, "continued"),
    ],
)
def test_what_a_pretraining_run_is_called(changes, kind):
    assert PretrainSettings(**changes).kind == kind


CPU, GPU = Device("cpu", np), Device("another", np)


def test_on_a_cpu_bfloat16_is_a_matter_of_the_products():
    chosen = RunSettings(precision="bfloat16").with_precision_for(CPU)
    assert (chosen.precision, chosen.products, chosen.model_precision) == ("bfloat16", "bfloat16", "float32")
    assert chosen.with_precision_for(CPU) == chosen  # as on resuming with its config.json
    elsewhere = RunSettings(precision="bfloat16").with_precision_for(GPU)
    assert (elsewhere.products, elsewhere.model_precision) == ("auto", "bfloat16")
    usual = RunSettings(products="onednn").with_precision_for(CPU)
    assert (usual.precision, usual.products, usual.model_precision) == ("float32", "onednn", "float32")


@pytest.mark.parametrize(
    ("precision", "products", "device"),
    [("bfloat16", "numpy", CPU), ("float32", "bfloat16", CPU), ("bfloat16", "bfloat16", GPU)],
)
def test_a_precision_and_products_that_contradict_each_other(precision, products, device):
    told = f"precision {precision} and products {products} contradict each other on {device.name}"
    with pytest.raises(UserError, match=told):
        RunSettings(precision=precision, products=products).with_precision_for(device)
