import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from minibert.errors import UserError
from minibert.settings import read_settings
from minibert.tasks.finetuning_settings import FinetuneSettings
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.tasks.registry import TASKS


def test_numbers_of_too_many_digits_are_refused(tmp_path):
    with pytest.raises(UserError, match="learning_rate is too large"):
        PretrainSettings.from_dict({"learning_rate": 10**400})
    path = tmp_path / "run.toml"
    path.write_text(f"steps = {'9' * 5000}\n")
    with pytest.raises(UserError, match=r"run\.toml: this settings file is not valid TOML"):
        read_settings(path)
    with pytest.raises(UserError, match=r"^none\.toml: no such settings file; check the path$"):
        read_settings("none.toml")


def test_every_setting_has_a_group_and_a_help_text():
    for field in dataclasses.fields(PretrainSettings):
        assert field.metadata["group"] and field.metadata["help"]


def test_numbers_of_numpy_and_paths_are_settings_too(tmp_path):
    settings = PretrainSettings(
        steps=np.int64(7), learning_rate=np.float32(0.5), nsp=np.True_, tokenizer=Path("a") / "vocab.txt"
    )
    assert settings == PretrainSettings(steps=7, learning_rate=0.5, nsp=True, tokenizer="a/vocab.txt")
    assert json.loads(json.dumps(settings.to_dict()))["steps"] == 7
    lists = PretrainSettings(corpus=(Path("a") / "b", "c"), mask_shares=np.array([80, 10, 10]))
    assert (lists.corpus, lists.mask_shares) == (("a/b", "c"), (80, 10, 10))


@pytest.mark.parametrize(("name", "text"), [("run.toml", "steps = 7\n"), ("run.json", '{"steps": 7}')])
def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert read_settings(tmp_path / name) == {"steps": 7}


def test_the_name_of_a_settings_file_tells_its_language(tmp_path):
    (tmp_path / "run.TOML").write_text("steps = 7\n")
    assert read_settings(tmp_path / "run.TOML") == {"steps": 7}
    (tmp_path / "run.conf").write_text("steps = 7\n")
    with pytest.raises(UserError, match=r"run\.conf: settings are read from files named \.toml or \.json"):
        read_settings(tmp_path / "run.conf")


def test_settings_survive_their_file(tmp_path):
    settings = PretrainSettings(
        name="mine", corpus=("a", "b"), num_hidden_layers=3, learning_rate=1, nsp=False, resume=True
    )
    (tmp_path / "config.json").write_text(json.dumps(settings.to_dict()))
    again = PretrainSettings.from_dict(read_settings(tmp_path / "config.json"))
    assert again == settings.replace(resume=False)  # how a run was called is not what it is


def test_an_unknown_setting_is_named_with_the_nearest_known():
    with pytest.raises(
        UserError, match=r"mine.json: unknown setting 'learning_rat'; did you mean 'learning_rate'"
    ):
        PretrainSettings.from_dict({"learning_rat": 1}, "mine.json")
    with pytest.raises(UserError, match="'heads'; the flag of this name sets 'num_attention_heads'"):
        PretrainSettings.from_dict({"heads": 4})
    with pytest.raises(UserError, match=r"unknown setting 'qqq'; expected one of name, out"):
        PretrainSettings.from_dict({"qqq": 1})


def test_a_settings_file_must_be_an_object(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UserError, match=r"list.json: expected an object of settings, found list"):
        read_settings(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "100"}, "steps must be of type int, got '100'"),
        ({"steps": True}, "steps must be of type int, got True"),
        ({"steps": np.float64(3)}, "steps must be of type int, got 3.0"),
        ({"steps": Path("3")}, "steps must be of type int, got "),
        ({"hidden_size": 1.5}, "hidden_size must be of type int, got 1.5"),
        ({"nsp": 1}, "nsp must be of type bool, got 1"),
        ({"corpus": "a.txt"}, "corpus must be a list of strings, got 'a.txt'"),
        ({"corpus": [1]}, r"corpus must be a list of strings, got \[1\]"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"warmup": 1.5}, "warmup must be at most 1, got 1.5"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number, got nan"),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number, got inf"),
        ({"learning_rate": -0.1}, "learning_rate must be at least 0, got -0.1"),
        ({"preset": "huge"}, "preset must be one of tiny, .*, got 'huge'"),
        ({"masking": "none"}, "masking must be one of dynamic, fixed, got 'none'"),
        ({"resume": True, "overwrite": True}, "resume and overwrite contradict each other"),
    ],
)
def test_a_wrong_value_is_refused(values, message):
    with pytest.raises(UserError, match=f"^{message}"):
        PretrainSettings.from_dict(values)


@pytest.mark.parametrize(
    ("given", "in_vain"),
    [
        ({"attention_initializer": "neighbours"}, "position_initializer"),
        ({"model": "mini"}, "generator_share"),
        ({"objective": "left-to-right"}, "long_max_predictions"),
        ({"variant": "xlnet"}, "long_max_predictions"),
        ({}, "layout"),
    ],
)
def test_settings_that_change_nothing_beside_others(given, in_vain):
    assert in_vain in PretrainSettings(**given).without_effect()
    assert in_vain not in PretrainSettings(corpus=("a",), variant="electra").without_effect()


def test_what_is_to_be_typed_again_changes_something():
    """The commands in model cards, which are checked as all others are."""
    for settings in (PretrainSettings(tokenizer="a", vocab_size=99), FinetuneSettings(task="tag", train="a")):
        again = settings.replace(matrix_rate=4.0, seed=3).as_typed()
        assert again.without_effect() and again.seed == 3
        again.refuse(again.without_effect())
    muon = PretrainSettings(optimiser="muon", matrix_rate=4.0, initializer_range=0.1, short_seq_prob=0.3)
    assert muon.as_typed() == muon


def test_the_preset_gives_way_to_sizes_of_ones_own():
    config = PretrainSettings(
        preset="mini", num_hidden_layers=3, dropout=0.2, max_position_embeddings=256
    ).model_config(1000)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 256, 4)
    assert (config.vocab_size, config.max_position_embeddings, config.hidden_dropout_prob) == (1000, 256, 0.2)
    wider = PretrainSettings(preset="tiny", hidden_size=192).model_config(1000)
    assert (wider.num_attention_heads, wider.intermediate_size) == (3, 768)


def test_sizes_that_do_not_fit_each_other_are_refused():
    with pytest.raises(UserError, match="max_seq_length is 600, but the model has only 512 positions"):
        PretrainSettings(max_seq_length=600).model_config(1000)
    with pytest.raises(UserError, match="hidden_size 128 is not divisible by num_attention_heads 3"):
        PretrainSettings(num_attention_heads=3).model_config(1000)


def test_a_run_is_resumed_with_the_settings_it_began_with():
    begun = PretrainSettings(name="mine", learning_rate=0.5)
    begun.replace(resume=True, threads=1, device="cpu", save_every=7).check_resumes(begun.to_dict())
    with pytest.raises(
        UserError, match=r"started with learning_rate = 0.5, not 0.25; .*config.json --resume"
    ):
        begun.replace(learning_rate=0.25).check_resumes(begun.to_dict())


def test_a_setting_that_is_younger_than_a_run_had_its_default_there():
    saved = {name: value for name, value in PretrainSettings().to_dict().items() if name != "clip_norm"}
    PretrainSettings(corpus=()).check_resumes(saved)
    with pytest.raises(UserError, match=r"started with clip_norm = 1.0, not 2.0"):
        PretrainSettings(name="mine", clip_norm=2.0).check_resumes(saved)


def test_the_instances_follow_the_settings():
    instances = PretrainSettings(max_seq_length=64, nsp=False, masking="fixed").instance_settings()
    assert (instances.max_seq_length, instances.next_sentence, instances.masking) == (64, False, "fixed")


def lengths(settings):
    return [
        (phase.start, phase.stop, phase.batch_size, *map(phase.instances.__getattribute__, LENGTH_AND_MOST))
        for phase in settings.phases()
    ]


LENGTH_AND_MOST = ("max_seq_length", "max_predictions")


def test_the_steps_of_the_paper():
    """128 tokens for 90 % of the steps, then 512; as many tokens, and predictions, in every step."""
    paper = PretrainSettings(steps=1_000_000, batch_size=256, max_seq_length=128, max_predictions=20)
    assert lengths(paper) == [(0, 1_000_000, 256, 128, 20)]
    paper = paper.replace(long_seq_length=512)
    assert lengths(paper) == [(0, 900_000, 256, 128, 20), (900_000, 1_000_000, 64, 512, 80)]
    assert [phase.instances.most_predictions for phase in paper.phases()] == [19, 77]
    own = paper.replace(long_share=0.25, long_batch_size=256, long_max_predictions=77)
    assert lengths(own) == [(0, 750_000, 256, 128, 20), (750_000, 1_000_000, 256, 512, 77)]


@pytest.mark.parametrize(("share", "expected"), [(0.0, [64]), (0.04, [64]), (0.06, [64, 128]), (1.0, [128])])
def test_a_phase_without_steps_is_none(share, expected):
    phases = PretrainSettings(steps=10, long_seq_length=128, long_share=share).phases()
    assert [phase.instances.max_seq_length for phase in phases] == expected
    assert phases[0].start == 0 and phases[-1].stop == 10


def test_a_phase_begins_with_its_first_step():
    settings = PretrainSettings(steps=10, long_seq_length=128, long_share=0.5)
    assert settings.begun_phases(1) == settings.begun_phases(5) == [[0, 32, 64, 20]]
    assert settings.begun_phases(6) == [[0, 32, 64, 20], [5, 16, 128, 40]]


def test_all_settings_are_described():
    text = PretrainSettings(corpus=("a", "b")).describe()
    assert all(f"{field.name}=" in text for field in dataclasses.fields(PretrainSettings))
    assert "corpus=a b" in text


def test_settings_of_a_run_and_of_its_task_share_the_lines_of_their_groups():
    run = FinetuneSettings(task="classify", train="a.tsv")
    task = TASKS["classify"].Options(text_column="review", max_length=64)
    told = run.describe(task, changed_only=True).splitlines()
    assert told == ["Data       train=a.tsv  text_column=review", "Task       task=classify  max_length=64"]
    assert run.describe(changed_only=True).splitlines() == [
        "Data       train=a.tsv",
        "Task       task=classify",
    ]


def test_the_sizes_have_short_flags():
    settings = PretrainSettings(num_hidden_layers=3, hidden_act="relu", nsp=False, batch_size=4)
    expected = ["--batch-size", "4", "--layers", "3", "--activation", "relu", "--no-nsp"]
    assert settings.flags() == expected
