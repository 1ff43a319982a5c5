"""Configurations: YAML in and out, recipes that combine, errors that say what is wrong."""

import re
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

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


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "norm-free"])
def test_norm_free_goes_with_any_recipe(name: str) -> None:
    alone, combined = load_config(name), load_config(name, "norm-free")
    assert combined.model.unit_response
    assert combined.optimizer.agc == 0.05
    assert combined.optimizer.rate == 0.01
    assert combined.optimizer.milestones == alone.optimizer.milestones
    assert combined.data == alone.data


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
        ("nothing", [], "neither a YAML file nor a recipe; recipes: modelnet40, norm-free"),
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
    ],
)
def test_errors(source: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(source, overrides=overrides)


SETTINGS = """
data: name path variant scenes task columns train_size test_size num_points poisson normals box up rotate
  scale mirror jitter radius context crops batch_size drop_last workers cache
model: network method basis estimator num_basis channels head radii reach max_neighbors norm head_norm
  unit_response orthonormal dropout head_dropout bias first_reach recompute
init: method layers batches table target
optimizer: rate milestones gamma momentum weight_decay clip_norm agc accumulate class_weights
"""
TOP = "epochs evaluate_every votes seed threads bf16 output checkpoint_steps accelerator devices nodes"


def test_settings_keep_their_names() -> None:
    """A config.yaml of an earlier version has them, and must still load."""
    now = asdict(Config())
    assert set(TOP.split()) <= set(now)
    for section, names in yaml.safe_load(SETTINGS).items():
        assert set(names.split()) <= set(now[section])


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
