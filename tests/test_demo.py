"""The demonstration on a small scale: every way with its rates and seeds, a page that needs nothing else, and
no work done twice."""

import json
import multiprocessing
import re
import signal

import pytest

from pointvar.cli import main
from pointvar.commands import trials
from pointvar.commands.trials import ClassifyShapes, SegmentRooms, Trial
from pointvar.train import Result


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Arguments of the command; its sizes are such that it takes seconds, in this process."""
    rooms = SegmentRooms(rooms=2, tests=1, points=150, crops=2, epochs=2, few=1)
    shapes = ClassifyShapes(depth=3, channels=4, shapes=4, tests=4, points=24, epochs=2, few=1)
    monkeypatch.setattr(trials, "TASKS", (rooms, shapes))
    monkeypatch.setattr(trials, "RATES", (0.01, 0.1))
    monkeypatch.setattr(trials, "SEEDS", (0, 1))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    trials._config.cache_clear()
    return ["demo", "--output", str(tmp_path / "demo")]


@pytest.fixture
def trained(monkeypatch):
    """Two of the ways, and nothing is trained; the names of the trials that would be."""
    names = []

    def pretend(trial, folder):
        names.append(trial.name)
        told = {"settings": trial.settings(), "diverged": None, "prediction": [0] * trial.task.points}
        told |= {"metrics": {trial.task.score: 0.5 + 0.1 * (trial.seed or 0)}}
        told["history"] = [{"step": 1, "train_accuracy": 0.3}, {"step": 2, "train_accuracy": 0.4}]
        (folder / f"{trial.name}.json").write_text(json.dumps(told))
        return told

    monkeypatch.setattr(Trial, "run", pretend)
    monkeypatch.setattr(trials, "WAYS", {way: trials.WAYS[way] for way in ("group norm", "as published")})
    return names


def test_all_of_it_is_made(small, tmp_path, capsys):
    assert main(small) == 0
    shown = capsys.readouterr()
    assert len(list((tmp_path / "demo" / "trainings").iterdir())) == trials.count() == 2 * 4 * 4
    table = shown.out[shown.out.index("rooms, mean IoU") :]
    for way in trials.WAYS:
        assert re.search(rf"^{way} +\d+ % \(\d+ to \d+\) +\d+ % \(\d+ to \d+\)$", table, re.MULTILINE)
    assert f"report: {tmp_path / 'demo' / 'report.html'}" in table
    assert re.search(r"epochs of training: 1/48, \S+ so far, \S+ left", shown.err)
    assert "48/48" in shown.err

    page = (tmp_path / "demo" / "report.html").read_text()
    assert not re.search(r"(src|href)=(?!.?(data:|#))", page)
    assert page.count('<figure class="cloud">') == 5
    order = ["<figcaption>truth<", *(f"<figcaption>{way}<" for way in trials.WAYS), 'class="chart"']
    assert sorted(order, key=page.index) == order


def test_nothing_is_trained_twice_unless_asked_for(small, trained, tmp_path, capsys):
    assert main(small) == 0
    assert "there already" not in capsys.readouterr().out
    assert len(trained) == len(set(trained)) == 16
    (tmp_path / "demo" / "trainings" / "mine.json").write_text("kept")
    trained.clear()
    assert main(small) == 0
    text = capsys.readouterr().out
    assert "there already" in text
    assert "--fresh" in text
    assert not trained
    assert main([*small, "--fresh"]) == 0
    assert len(trained) == 16
    assert "there already" not in capsys.readouterr().out
    assert (tmp_path / "demo" / "trainings" / "mine.json").read_text() == "kept"


def test_the_picture_is_of_the_median_seed():
    results = [{"diverged": None, "metrics": {"mean_iou": score}} for score in (0.9, 0.5, 0.7)]
    row = trials.Row(SegmentRooms(), "norm-free", 0.03, results)
    assert row.middle is results[2]
    results[1] = {"diverged": "nan", "metrics": {}}
    assert row.middle is results[0]
    assert (row.scores, row.diverged) == ([0.9, 0.7], 1)


def test_the_rate_is_chosen_on_validation_data_alone(small, monkeypatch, tmp_path):
    best = {"batch norm": 0.01, "group norm": 0.1, "as published": 0.01, "norm-free": 0.1}
    asked = []

    def run(trial, folder):
        asked.append(trial)
        good = (trial.rate == best[trial.way]) == (trial.seed is None)
        return {"diverged": None, "metrics": {trial.task.score: 0.9 if good else 0.2}}

    monkeypatch.setattr(Trial, "run", run)
    assert len(list(trials.run_all(tmp_path, 1))) == trials.count()
    later = [trial for trial in asked if trial.seed is not None]
    assert len(later) == 16
    assert all(trial.rate == best[trial.way] for trial in later)


def test_a_trial_that_chooses_a_rate_is_short_and_sees_no_test_data(small, monkeypatch, tmp_path):
    seen = []

    def fit(config, data, **options):
        seen.append((config.epochs, data.test))
        return Result([], {}, seconds=0.0, steps=0, diverged="stopped here")

    monkeypatch.setattr(trials, "fit", fit)
    for task in trials.TASKS:
        for seed in (None, 0):
            Trial(task, "norm-free", 0.1, seed).run(tmp_path)
        data, validation = trials.data_of(task)
        assert seen == [(task.few, validation.test), (task.epochs, data.test)]
        seen.clear()


def test_the_tasks_take_turns(small, trained, tmp_path):
    """What is trained first takes as long per epoch as what comes later: the time left is told from it."""
    assert len(list(trials.run_all(tmp_path, 1))) == len(trained)
    assert [name.partition("-")[0] for name in trained[:4]] == ["rooms", "shapes"] * 2


def test_what_has_diverged_is_not_chosen_unless_all_have():
    assert trials.chosen_rate({0.1: None, 0.03: 0.0, 0.01: None}) == 0.03
    assert trials.chosen_rate({0.1: None, 0.03: None, 0.01: None}) == 0.01


def test_every_way_is_as_it_says():
    """The same network, data and schedule; what differs is what the name says."""
    for task in trials.TASKS:
        configs = {way: Trial(task, way, 0.03, 0).config() for way in trials.WAYS}
        assert {way: c.model.norm for way, c in configs.items()} == {
            "batch norm": "batch",
            "group norm": "group",
            "as published": "none",
            "norm-free": "none",
        }
        assert configs["as published"].init.method == "direct"
        free = trials.load_config("norm-free")
        assert configs["norm-free"].init == free.init
        for way, config in configs.items():
            sgd = way == "as published"
            assert config.optimizer.name == ("sgd" if sgd else free.optimizer.name)
            assert config.optimizer.rate == pytest.approx(0.03 if sgd else 0.003)
            assert config.optimizer.schedule == free.optimizer.schedule
            assert config.data == configs["norm-free"].data
            assert config.epochs == configs["norm-free"].epochs
            assert config.model.channels == configs["norm-free"].model.channels


def test_validation_rooms_and_shapes_are_no_test_data(small):
    for task in trials.TASKS:
        data, validation = trials.data_of(task)
        parts = [data.train, data.test, validation.test]
        points = {tuple(part[i].points[0].tolist()) for part in parts for i in range(len(part))}
        assert len(points) == sum(map(len, parts))
        assert data.classes == list(task.classes)
    assert sorted(data.test[i].label for i in range(4)) == [0, 1, 2, 3]


def test_a_stopped_demonstration_goes_on_where_it_was(small, trained, monkeypatch, capsys):
    run = Trial.run

    def stopped(trial, folder):
        if len(trained) == 5:
            raise KeyboardInterrupt
        return run(trial, folder)

    with monkeypatch.context() as patch:
        patch.setattr(Trial, "run", stopped)
        assert main(small) == 130
    assert "continues from here" in capsys.readouterr().out
    assert len(trained) == 5
    assert main(small) == 0
    assert len(trained) == len(set(trained)) == 16


def test_a_training_of_other_settings_is_not_taken_for_this_one(small, trained, monkeypatch, tmp_path):
    assert main(small) == 0
    trained.clear()
    other = trials.WAYS | {"as published": {"model": {"norm": "none"}, "init": {"method": "authors"}}}
    monkeypatch.setattr(trials, "WAYS", other)
    trials._config.cache_clear()
    damaged = tmp_path / "demo" / "trainings" / "rooms-group-norm-0.01-rate.json"
    damaged.write_text("{")
    assert main(small) == 0
    assert damaged.stem in trained
    assert {name for name in trained if "as-published" not in name} == {damaged.stem}
    assert len(trained) == 1 + 8


def test_a_page_of_the_users_own_stays(small, tmp_path, trained, capsys):
    page = tmp_path / "demo" / "report.html"
    page.parent.mkdir()
    page.write_text("<title>mine</title>")
    assert main(small) == 2
    assert "not from a demonstration" in capsys.readouterr().err
    assert not trained
    assert page.read_text() == "<title>mine</title>"


def test_a_network_that_diverges_is_told(small, trained, monkeypatch, tmp_path, capsys):
    run = Trial.run

    def diverged(trial, folder):
        told = run(trial, folder)
        if trial.way == "as published":
            told |= {"diverged": "the loss is nan", "metrics": {}, "history": []}
            del told["prediction"]
        elif trial.way == "group norm" and trial.seed:
            told |= {"diverged": "the loss is nan", "metrics": {}, "history": told["history"][:1]}
        return told

    monkeypatch.setattr(Trial, "run", diverged)
    assert main(small) == 0
    text = capsys.readouterr().out
    assert re.search(r"^as published +diverged +diverged$", text, re.MULTILINE)
    assert re.search(r"^group norm +50 % \(50 to 50\) 1 of 2 diverged ", text, re.MULTILINE)
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "<b>diverged</b>" in page
    assert "1 of 2 diverged" in page


def test_processes_give_the_same_and_end_when_they_are_not_wanted(small, monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "TASKS", trials.TASKS[1:])
    running = trials.run_all(tmp_path, 2)
    trial, result = next(running)
    children = multiprocessing.active_children()
    running.close()
    assert [child.exitcode for child in children] == [-signal.SIGKILL] * 2  # nobody waits for what they do
    assert trial.stored(tmp_path) == result
    assert trial.run(tmp_path)["metrics"] == result["metrics"]
