"""Configurations: YAML in and out, recipes that combine, errors that say what is wrong."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

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
        ("shapes", ["--model.norm=instance"], "norm"),
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


def test_every_setting_is_explained() -> None:
    helps = {action.dest: action.help for action in _parser()._actions}
    for section in fields(Config):
        value = getattr(Config(), section.name)
        names = [f"{section.name}.{f.name}" for f in fields(value)] if is_dataclass(value) else [section.name]
        for name in names:
            assert helps[name], f"{name} has no help"
