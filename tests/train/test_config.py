"""Configurations: YAML in and out, recipes that combine, errors that say what is wrong."""

import re
from copy import deepcopy
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointvar.train import RECIPES, Config, load_config
from pointvar.train.config import _parser


@pytest.mark.parametrize("name", RECIPES)
def test_yaml_and_back(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config
    assert list(yaml.safe_load(path.read_text())) == [setting.name for setting in fields(Config)]


WAYS = ("norm-free", "published")


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in WAYS])
def test_recipes_of_data_are_norm_free_unless_published_goes_over_them(name: str) -> None:
    """A recipe of data says nothing that belongs to the way of training; both ways say the same settings."""
    alone, again, published = (load_config(name, *way) for way in ((), ("norm-free",), ("published",)))
    assert alone == again
    assert (alone.model.unit_response, alone.model.precondition, alone.init.center) == (True, True, 0)
    chosen = alone.optimizer
    assert (chosen.name, chosen.rate, chosen.schedule, chosen.agc) == ("adamw", 0.003, "cosine", 0.05)
    off = published.model
    assert (off.unit_response, off.precondition, published.init.center) == (False, False, 0)
    found = published.optimizer
    assert (found.agc, found.rate, found.schedule) == (None, 0.005, "milestones")
    assert load_config(name, "published", "norm-free") == alone
    assert published.data == alone.data


def test_the_default_is_the_recipe_norm_free() -> None:
    assert Config() == load_config("norm-free") == load_config("published", "norm-free")
    for section, settings in RECIPES["norm-free"].items():
        assert set(settings) == set(RECIPES["published"][section])


def test_order_of_precedence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {batch_size: 3}\nepochs: 7\n")
    config = load_config("shapes", path, {"seed": 4}, overrides=["--epochs", "9", "--model.norm=group"])
    assert (config.data.batch_size, config.epochs, config.seed) == (3, 9, 4)
    assert config.model.norm == "group"
    assert config.model.channels == [32, 64, 128]


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("nothing", [], "neither a YAML file nor a recipe; recipes: classify, modelnet40, norm-free"),
        ("shapes", ["--data.batch_size=many"], "batch_size"),
        ("shapes", ["--data.batchsize=1"], "batchsize"),
        ("shapes", ["--model.norm=instance"], "no norm 'instance'; known are none, batch, group, layer"),
        ("shapes", ["--model.head_norm=grup"], "no norm 'grup' .did you mean 'group'"),
        ("shapes", ["--data.name=shape"], "no data set 'shape' .did you mean 'shapes'"),
        ("shapes", ["--model.network=net"], "no network 'net'.*; known are classifier, unet"),
        ("shapes", ["--init.method=he"], "no initialisation 'he'"),
        ("shapes", ["--epochs=0"], "epochs must be positive, got 0"),
        ("shapes", ["--model.basis=Gaussian"], "come together"),
        ("shapes", ["--seed=-1"], "must not be negative"),
        ("rooms", ["--data.radius=-1"], "data.radius must be positive, got -1.0"),
        ("rooms", ["--data.crops=0"], "data.crops must be positive, got 0"),
        ("rooms", ["--data.context=0.5"], r"data.context must not be less than data.radius.*0.5 and 1.0"),
        ("shapes", ["--data.scale=1"], "data.scale must be from 0 to below 1"),
        ("shapes", ["--optimizer.warmup=1"], "optimizer.warmup must be from 0 to below 1"),
        ("shapes", ["--optimizer.name=adam"], "sgd"),
        ("shapes", ["--init.center=some"], "auto"),
        ("shapes", ["--data.scale=-0.1"], "data.scale must be from 0 to below 1"),
        ("shapes", ["--data.jitter=-0.1"], r"data.jitter not negative, got 0\.1 and -0\.1"),
        ("shapes", ["--data.workers=-1"], "must not be negative, got 0 and -1"),
        ("shapes", ["--model.estimator=Sum"], "come together"),
    ],
)
def test_errors(source: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(source, overrides=overrides)


DEFAULTS = """
data: {name: shapes, path: null, variant: null, scenes: null, task: classification, columns: [],
  train_size: null, test_size: null, num_points: null, poisson: null, normals: false, box: true, up: z,
  rotate: true, scale: 0.1, mirror: false, jitter: 0.0, radius: 2.0, context: 4.0, crops: null, batch_size: 8,
  drop_last: false, workers: 0, cache: true}
model: {network: classifier, method: MCConv, basis: null, estimator: null, num_basis: null, channels: null,
  head: null, radii: null, reach: null, max_neighbors: 16, norm: none, head_norm: null, unit_response: false,
  orthonormal: false, dropout: null, head_dropout: null, bias: null, first_reach: null, recompute: false}
init: {method: direct, layers: convolutions, batches: 8, table: modelnet40, target: 1.0}
optimizer: {rate: 0.005, milestones: [], gamma: 0.1, momentum: 0.9, weight_decay: 0.0001, clip_norm: null,
  agc: null, accumulate: 1, class_weights: false}
top: {epochs: 30, evaluate_every: 1, votes: 1, seed: 0, threads: null, bf16: false, output: null,
  logger: tensorboard, checkpoint_steps: null, accelerator: auto, devices: 1, nodes: 1}
"""


@pytest.mark.parametrize(
    ("given", "wrong", "right"),
    [
        ({"data": {"bath_size": 1}}, "--data.bath_size=1", "data.batch_size"),
        ({"epoch": 1}, "--epoch=1", "epochs"),
        ({"lr": 1}, "--lr=1", "optimizer.lr"),
        ({"optimiser": {"rate": 1}}, "--optimiser.rate=1", "optimizer.rate"),
    ],
)
def test_did_you_mean(given: dict[str, Any], wrong: str, right: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(given))
    for sources, overrides in (([given], []), ([path], []), (["shapes"], [wrong])):
        with pytest.raises(ValueError, match=rf"\(did you mean '{right}'\?\)"):
            load_config(*sources, overrides=overrides)
    with pytest.raises(ValueError, match=r"zzzzz=1$"):
        load_config("shapes", overrides=["--zzzzz=1"])


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_the_rate_as_others_call_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"optimizer: {{{name}: 1e-3, momentum: 0.5}}\n")
    assert (load_config(path).optimizer.rate, load_config(path).optimizer.momentum) == (1e-3, 0.5)
    assert load_config(path, overrides=[f"--optimizer.{name}=0.25"]).optimizer.rate == 0.25
    assert load_config(path, {"optimizer": {name: 0.5}}).optimizer.rate == 0.5
    assert "lr" not in load_config(path).to_yaml().split()


def test_a_run_of_an_earlier_version_means_what_it_meant(tmp_path: Path) -> None:
    """Its config.yaml has all settings of its time, whose names stay; those that are newer were off."""
    sections = yaml.safe_load(DEFAULTS)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(sections | sections.pop("top")))
    assert load_config(path) == load_config("published")
    path.write_text("model: {unit_response: false}\n")  # not a whole run: all else is as it is now
    assert load_config(path).model.precondition


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("data", "train_size test_size num_points poisson radius crops batch_size"),
        ("init", "batches"),
        ("optimizer", "rate clip_norm agc accumulate"),
        (None, "epochs evaluate_every votes threads checkpoint_steps"),
    ],
)
def test_what_must_be_positive(section: str | None, names: str) -> None:
    for name in names.split():
        dotted = name if section is None else f"{section}.{name}"
        with pytest.raises(ValueError, match=f"{dotted} must be positive, got 0"):
            load_config({name: 0} if section is None else {section: {name: 0}})


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"scale": 0.0, "jitter": 0.0, "workers": 0}},
        {"data": {"scale": 0.5, "jitter": 3.0, "workers": 2}},
        {"data": {"radius": 0.5, "context": 0.5}},
        {"model": {"basis": "Gaussian", "estimator": "Sum"}},
        {"seed": 0},
    ],
    ids=str,
)
def test_at_the_edge_of_what_is_allowed(change: dict[str, Any]) -> None:
    now = asdict(load_config(change))
    for section, values in change.items():
        assert values == ({k: now[section][k] for k in values} if isinstance(values, dict) else now[section])


def test_every_setting_is_explained_by_a_sentence() -> None:
    helps = {action.dest: action.help for action in _parser()._actions}
    for name, *_ in Config()._settings():
        assert re.fullmatch(r"(?s)[A-Z0-9]\S* \S+ .*[.]", helps[name]), f"{name}: {helps[name]}"


def test_lists_and_dictionaries_are_replaced_not_mixed() -> None:
    first = {"data": {"scenes": {"train": "a", "test": "b"}, "columns": ["colors", "normals"]}}
    config = load_config(first, {"data": {"scenes": {"test": "c"}, "columns": ["normals"]}})
    assert (config.data.scenes, config.data.columns) == ({"test": "c"}, ["normals"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: [", "mine.yaml: Problems parsing config"),
        ("just words", "mine.yaml: Unexpected config: just words"),
        ("data: {names: shapes}", "mine.yaml: .*data.*names"),
        ("epochs: many", "mine.yaml: .*epochs.*many"),
    ],
)
def test_a_file_that_is_no_configuration(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(path)


def test_sources_are_left_as_they_are() -> None:
    before = deepcopy(RECIPES)
    load_config("shapes", "norm-free", {"data": {"batch_size": 3}}, overrides=["--model.channels=[1]"])
    assert before == RECIPES
