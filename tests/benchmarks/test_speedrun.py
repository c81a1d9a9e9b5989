"""The records: their settings, their texts, what a run leaves, and the page."""

import gzip
import io
import json
import re
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.speedrun import __main__ as speedrun
from benchmarks.speedrun import tracks
from benchmarks.speedrun.page import curve, write_page
from benchmarks.speedrun.timing import measure
from minibert.errors import UserError
from minibert.settings import read_settings
from minibert.tasks import prepare
from minibert.tasks.held_out import evaluation_batches
from minibert.tasks.pretraining_settings import PretrainSettings
from minibert.threads import get_threads, set_threads

SMALL = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
    "max_seq_length": 32,
    "batch_size": 2,
    "processes": 1,
}


def test_every_record_has_settings_that_exist_and_a_reason():
    names, about = set(), read_settings(tracks.TRACKS_FILE)
    for track, record in speedrun.read_records():
        assert (track, record["name"]) not in names
        names.add((track, record["name"]))
        settings = PretrainSettings.from_dict(record["settings"])
        assert settings.steps > 0
        longest = max(settings.max_seq_length, settings.long_seq_length or 0)
        assert longest >= about[track]["sequence_length"], f"{record['name']} does not learn all positions"
        assert record["why"].endswith(".")
    assert {track for track, _ in names} <= {"docs", "10m"}


def test_a_record_has_the_settings_of_those_above_it_but_not_of_what_was_tried(monkeypatch, tmp_path):
    monkeypatch.setattr(speedrun, "RECORDS_FILE", tmp_path / "records.toml")
    (tmp_path / "records.toml").write_text(
        '[[docs]]\\nname = "a"\\nsettings = {steps = 9, seed = 1}\\n'
        '[[docs]]\\nname = "b"\\ntried = true\\nsettings = {steps = 8}\\n'
        '[[docs]]\\nname = "c"\\nsettings = {seed = 2}\\n'
        '[[10m]]\\nname = "a"\\nsettings = {seed = 3}\\n'.replace("\\n", "\n")
    )
    found = {(track, record["name"]): record["settings"] for track, record in speedrun.read_records()}
    assert found == {
        ("docs", "a"): {"steps": 9, "seed": 1},
        ("docs", "b"): {"steps": 8, "seed": 1},
        ("docs", "c"): {"steps": 9, "seed": 2},
        ("10m", "a"): {"seed": 3},
    }


@pytest.fixture
def track(tmp_path):
    text = "\n\n".join(f"the {word} is old .\nthe {word} is new ." for word in "abcdefghij")
    (tmp_path / "corpus.txt").write_text(text + "\n")
    settings = PretrainSettings(
        corpus=(str(tmp_path / "corpus.txt"),), held_out_seed=0, prepared=str(tmp_path / "prepared")
    )
    settings = settings.replace(vocab_size=60)
    tokenizer, prepared = prepare(settings)
    batches = evaluation_batches(
        settings.replace(nsp=False, max_seq_length=32, batch_size=4), tokenizer, prepared
    )
    return tracks.Track("docs", settings, tokenizer, prepared, batches, 3)


def test_a_run_keeps_what_it_reached_and_one_that_was_killed_goes_on(track, tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun, "RESULTS", tmp_path)
    settings = SMALL | {"vocab_size": 60, "steps": 2, "save_every": 1, "eval_every": 1}
    for seed in (0, 1):
        speedrun.run(track, "docs/a", settings, seed, tmp_path)
    runs = speedrun.read_results()["docs/a"]["runs"]
    assert list(runs) == ["0", "1"] and runs["0"]["loss"] != runs["1"]["loss"]
    assert runs["0"]["steps"] == 2 and [e["step"] for e in runs["0"]["evaluations"]] == [0, 1, 2]
    before = runs["0"]["loss"]
    speedrun.run(track, "docs/a", settings, 0, tmp_path)  # it is there already, and is resumed at its end
    assert speedrun.read_results()["docs/a"]["runs"]["0"]["loss"] == before
    with pytest.raises(UserError, match="reads more than 3 times the text"):
        speedrun.run(track, "docs/b", settings | {"steps": 100}, 0, tmp_path)


def test_the_page_and_the_picture(track, tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun, "RESULTS", tmp_path)
    settings = SMALL | {"vocab_size": 60, "steps": 2}
    for name, more in (("docs/a", {}), ("docs/b", {"nsp": False, "word_initializer": "counts"})):
        speedrun.run(track, name, settings | more, 0, tmp_path)
    monkeypatch.setattr("benchmarks.speedrun.timing.ROUNDS", 1)
    speedrun.time_steps(track, {"docs/a": settings, "docs/b": settings | {"word_initializer": "counts"}})
    results = speedrun.read_results()
    assert results["docs/b"]["time"]["start_seconds"] > 0
    results["docs/a"]["time"] |= {"step_seconds": 60.0, "start_seconds": 0.0}
    results["docs/b"]["time"] |= {"step_seconds": 10.0, "start_seconds": 10.0}
    results["docs/a"]["runs"]["0"]["loss"] = results["docs/b"]["runs"]["0"]["loss"] = 9.0
    records = [
        ("docs", {"name": name, "why": f"{name}, of course.", "settings": {"steps": 2}})
        for name in ("a", "b", "c", "d")
    ]
    records[3] = ("docs", records[3][1] | {"tried": True})
    write_page(records, results, tmp_path)
    page = (tmp_path / "speedrun.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if "| 2 |" in line]
    assert [(row[0], row[2], *row[4:]) for row in rows] == [
        ("a", "2", "60000", "2:00", "1.00", "1"),
        ("b", "2", "10000", "0:30", "4.00", "1"),
        ("c", "2", "–", "–", "–", "0"),  # which has not been run
    ]
    assert "- **b**: b, of course." in page and "**d**" not in page
    results["docs/b"]["runs"]["0"]["loss"] = 9.1
    write_page(records, results, tmp_path)
    assert re.search(r"\| b \| 9.100 .* 0:30 \| not reached \| 1 \|", (tmp_path / "speedrun.md").read_text())
    results["docs/c"] = {"runs": {"0": results["docs/a"]["runs"]["0"] | {"loss": 9.5}}}
    write_page([*records[:2], ("docs", records[2][1] | {"tried": True})], results, tmp_path)
    records_above, tried = (tmp_path / "speedrun.md").read_text().split(" nats), with its other settings:")
    assert "| c | 9.500 | 2 | 0.0 | 1 |\n\n- **c**: c, of course." in tried and "**c**" not in records_above
    assert (tmp_path / "speedrun.png").stat().st_size > 1000
    results["10m/b"] = results["docs/b"]
    write_page([*records, *(("10m", record) for _, record in records)], results, tmp_path)
    # Without the first record of a track there is nothing to compare with.
    assert "Ten million" not in (tmp_path / "speedrun.md").read_text()


def test_a_curve_is_the_mean_of_the_seeds():
    first = [{"step": 0, "mlm_loss": 9.0}, {"step": 6, "mlm_loss": 4.0}]
    second = [{"step": 0, "mlm_loss": 8.0}, {"step": 6, "mlm_loss": 5.0}]
    runs = {"0": {"evaluations": first}, "1": {"evaluations": second}}
    found = {"runs": runs, "time": {"start_seconds": 30.0, "step_seconds": 10.0}}
    assert curve(found) == ([0.5, 1.5], [8.5, 4.5])


def test_steps_are_timed_in_turn(track, monkeypatch):
    monkeypatch.setattr("benchmarks.speedrun.timing.ROUNDS", 2)
    settings = SMALL | {"vocab_size": 60}
    times = measure(track, {"a": settings, "b": settings | {"optimiser": "muon"}})
    assert set(times) == {"a", "b"} and all(time["step_seconds"] > 0 for time in times.values())


def test_steps_are_timed_with_the_products_that_a_run_would_choose(track, monkeypatch):
    monkeypatch.setattr("benchmarks.speedrun.timing.ROUNDS", 1)
    monkeypatch.setattr("benchmarks.speedrun.timing.fastest_library", lambda shapes: "another")
    used = []
    monkeypatch.setattr("benchmarks.speedrun.timing.use_products", used.append)
    times = measure(track, {"a": SMALL | {"vocab_size": 60}})
    assert times["a"]["products"] == "another" and used == ["another", "another", "numpy"]
    with pytest.raises(UserError, match="are not all alike"):
        measure(track, {"a": SMALL | {"vocab_size": 60, "max_seq_length": 16, "long_seq_length": 32}})


def test_only_runs_of_the_records_present_length_count(tmp_path):
    run = {"loss": 4.0, "steps": 2, "tokens": 10, "evaluations": [{"step": 2, "mlm_loss": 4.0}]}
    record = {"name": "a", "why": "Because.", "settings": {"steps": 2}}
    results = {"docs/a": {"runs": {"0": run, "1": run | {"steps": 3, "loss": 9.0}}}}
    write_page([("docs", record)], results, tmp_path)
    assert "| a | 4.000 | 2 | 0.0 | – | – | – | 1 |" in (tmp_path / "speedrun.md").read_text()


def test_the_large_corpus_is_whole_articles_and_whole_free_novels(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    (shared / "wikipedia_en").mkdir(parents=True)
    (shared / "novels100").mkdir()
    with gzip.open(shared / "wikipedia_en" / "a.txt.gz", "wt") as file:
        for name in "ABCD":
            file.write(f'<doc id="{name}">\n{name} one two .\n\n  three four .\n</doc>\n')
    with tarfile.open(shared / "novels100" / "100_english_novels.tar.gz", "w:gz") as archive:
        for name in ("Burnett_Garden_1911", "Forster_Angels_1905", "Woolf_Years_1937"):
            text = f"\ufeff{name}\r\n\r\nwrapped\r\nline .\r\n\r\n\r\nmore .".encode()
            info = tarfile.TarInfo(f"corpus/{name}.txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    monkeypatch.setattr(tracks, "SHARED", shared)
    monkeypatch.setattr(tracks, "WORDS", 5)
    folder = tracks.ten_million_words(tmp_path / "10m")
    articles = [json.loads(line)["text"] for line in (folder / "wikipedia.jsonl").read_text().splitlines()]
    novels = [json.loads(line)["text"] for line in (folder / "novels.jsonl").read_text().splitlines()]
    assert articles == ["A one two .\nthree four ."]  # as soon as there are five words
    assert novels == ["Burnett_Garden_1911\nwrapped line .\nmore ."]
    monkeypatch.setattr(tracks, "SHARED", tmp_path / "nowhere")
    assert tracks.ten_million_words(folder) == folder  # which is there
    with pytest.raises(UserError, match="no such folder; the track of ten million words"):
        tracks.ten_million_words(tmp_path / "other")


def test_runs_that_begin_at_the_same_time_write_the_texts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tracks, "SHARED", tmp_path)
    written = []

    def documents(run):
        for number in range(20):
            time.sleep(0.005)
            written.append(run)
            yield f"text {number}"

    def write(run):
        tracks.write_texts(tmp_path / "runs" / "texts", "a corpus", {"part": documents(run)})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ("one", "other")))
    assert len(written) == 20 and len(set(written)) == 1
    lines = (tmp_path / "runs" / "texts" / "part.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 20


def test_another_text_is_no_track(tmp_path, monkeypatch, track):
    (tmp_path / "tracks.toml").write_text(
        "[docs]\nheld_out_seed = 0\nsequence_length = 32\npasses = 3\n"
        'vocabulary = "0123"\ntraining_text = ""\nheld_out_batches = ""\n'
    )
    monkeypatch.setattr(tracks, "TRACKS_FILE", tmp_path / "tracks.toml")
    monkeypatch.setattr(tracks, "prepare", lambda settings: prepare(track.settings))
    with pytest.raises(
        UserError, match=r"track docs: the vocabulary has the SHA-256 .*, not that of the records, 0123"
    ):
        tracks.open_track("docs", tmp_path)


def test_the_threads_are_those_that_were_asked_for(track, tmp_path, monkeypatch, restore_threads):
    """For a run, and for the timing of steps."""
    seen = []
    monkeypatch.setattr(speedrun, "open_track", lambda *_: track)
    monkeypatch.setattr(speedrun, "write_page", lambda *_: None)
    monkeypatch.setattr(speedrun, "run", lambda *_: seen.append(get_threads()))
    monkeypatch.setattr(speedrun, "time_steps", lambda *_: seen.append(get_threads()))
    for more in (["--seeds", "0"], ["--time"]):
        set_threads(2)
        monkeypatch.setattr("sys.argv", ["speedrun", "docs/start", "--threads", "1", *more])
        assert speedrun.main() == 0
    assert seen == [1, 1]


def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["speedrun", "docs/nothing", "--folder", str(tmp_path)])
    assert speedrun.main() == 2
    assert "unknown record docs/nothing; expected one of docs/start" in capsys.readouterr().err
