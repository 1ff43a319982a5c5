"""Every table: its cells are valid trainings by both presets, and what was run counts still."""

import ast
import itertools
import json
from dataclasses import asdict
from importlib import import_module

import numpy as np
import pytest
from conftest import ROOT
from experiments import TABLES, load, markdown, scenarios, table_transfer
from experiments.__main__ import main
from experiments.claims import published
from experiments.columns import COLUMNS
from experiments.grid import weights_generator
from experiments.options import Options
from experiments.settings import configuration, flat
from experiments.store import Store

import pointvar as pv
from pointvar.init import tables as shipped
from pointvar.train import RECIPES

RESULTS = ROOT / "results"


def test_the_experiments_use_public_names_alone():
    """What is in ``__all__``, and modules that have none because all in them is public."""
    whole = {"pointvar.atomic", "pointvar.basis", "pointvar.estimator", "pointvar.methods"}
    used = set()
    for path in (ROOT / "experiments").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf8"))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("pointvar"):
                used |= {(node.module, alias.name) for alias in node.names}
    assert len(used) > 20
    for module, name in used:
        public = getattr(import_module(module), "__all__", None)
        assert module in whole if public is None else name in public, f"{module}.{name}"


def grids_of(name, options):
    """The grids of an experiment; nothing is run or measured for them."""
    options.report = True
    return list(load(name).grids(options))


def test_every_cell_is_a_training(folder, tmp_path):
    """Every value of every setting is parsed in some cell, which holds it against its name and type."""
    tried = {("seed", "1"), ("seed", "2")}  # as 0
    for name, preset in itertools.product(TABLES, ["laptop", "paper"]):
        for grid in grids_of(name, Options(tmp_path, folder, preset)):
            cells = grid.cells()
            assert len({json.dumps(cell) for cell in cells}) == len(cells) > 0
            for cell in cells:
                settings = grid.settings(cell)
                values = {(key, json.dumps(value)) for key, value in settings.items()}
                if not values <= tried:
                    tried |= values
                    found = flat(asdict(configuration(settings)))
                    assert {key: found[key] for key in settings} == settings


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_on_to_one_recipe(name, folder, tmp_path):
    """Columns differ in norm, initialisation, unit response, orthonormal bases, clipping and rate alone."""
    free = {"model.norm", "model.head_norm", "model.unit_response", "model.orthonormal", "model.method"}
    free |= {"init.method", "init.layers", "init.table", "optimizer.rate", "optimizer.agc"}
    for grid in grids_of(name, Options(tmp_path, folder)):
        recipes = {}
        for cell in grid.cells():
            settings = {k: v for k, v in grid.settings(cell).items() if k not in free}
            varied = ("column", "measured", "source", "rate", "method")
            axes = tuple((k, v) for k, v in cell.items() if k not in varied)
            assert settings == recipes.setdefault(axes, settings)
        rates = {grid.settings(cell)["optimizer.rate"] for cell in grid.cells()}
        assert len(rates) == 1 or "norm-free" in name


def test_norm_free_is_the_recipe_at_the_rate_of_all():
    recipe = flat(RECIPES["norm-free"])
    assert {
        **COLUMNS["norm-free"],
        "optimizer.rate": recipe["optimizer.rate"],
        "model.norm": "none",
    } == recipe
    assert COLUMNS["unit + direct + AGC"] == COLUMNS["norm-free"]


@pytest.mark.parametrize("name", TABLES)
def test_what_the_paper_says_has_a_cell(name, folder, tmp_path):
    for grid in grids_of(name, Options(tmp_path, folder)):
        cells = [cell.items() for cell in grid.cells()]
        for part in published(grid.name).drop(columns=["data", "mean"]).to_dict("records"):
            quoted = name == "table-orig-arch" and part["network"] == "original"
            assert quoted or any(part.items() <= cell for cell in cells), part
        for claim in grid.claims.values():
            assert all(any(side.items() <= cell for cell in cells) for side in claim.sides()), claim


@pytest.mark.parametrize(
    ("name", "number", "verdict"),
    [
        ("table-scanobjnn", 0, "holds (5 of 5)"),  # 85.7 against 23.3, ...
        ("table-scanobjnn", 4, "holds (15 of 20)"),
        ("table-segment", 0, "holds (5 of 5)"),
        ("table-class", 2, "holds (3 of 5)"),
        ("table-kpconv", 0, "holds (1 of 1)"),
        ("pointconv-architecture", 1, "holds (1 of 1)"),
    ],
)
def test_claims_on_the_paper_s_own_numbers(name, number, verdict, tmp_path):
    (grid,) = grids_of(name, Options(tmp_path))
    assert [*grid.claims.values()][number].check(published(name)) == verdict


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_no_transfer_from_the_same_data(preset, folder, tmp_path):
    family = {"ModelNet10": "modelnet40", "ModelNet40": "modelnet40", "Shapes": "synthetic"}
    for name in TABLES:
        for grid in grids_of(name, Options(tmp_path, folder, preset)):
            for cell in grid.cells():
                settings = grid.settings(cell)
                if settings.get("init.method") == "transfer":
                    assert family.get(cell["data"]) != settings["init.table"]
                    assert settings["init.table"] in shipped() or cell["source"] != cell["data"]


def test_without_data_the_built_in_ones_serve(tmp_path):
    grids = [grid for name in TABLES for grid in grids_of(name, Options(tmp_path))]
    assert {scenario.name for grid in grids for scenario in grid.scenarios} == {"Shapes", "Rooms"}
    with pytest.raises(ValueError, match="give their folder by --data"):
        grids_of("table-class", Options(tmp_path, preset="paper"))


def write_tile(folder, points=4000):
    random = np.random.default_rng(0)
    xyz = (random.random((points, 3)) * [60, 40, 5]).astype(np.float32)
    label = (xyz[:, 2] > 2.5).astype(np.uint8)
    label[:5] = 2  # fewer than one in a hundred
    classes = np.array(["low", "high", "rare"])
    intensity = random.integers(1, 200, points).astype(np.uint16)
    np.savez(folder / "ahn3_delft.npz", xyz=xyz, intensity=intensity, label=label, classes=classes)


def test_the_tile_is_split_by_position(tmp_path):
    write_tile(tmp_path)
    data = scenarios.aerial(Options(tmp_path, tmp_path)).load(None)
    (train,), (test,) = list(data.train), list(data.test)
    assert train.points[:, 0].max() < test.points[:, 0].min()
    assert abs(len(train) - len(test)) <= 2  # the lower median is in the east
    assert data.classes == ["low", "high"]
    assert {int(v) for v in train.label.unique()} | {int(v) for v in test.label.unique()} == {-1, 0, 1}


@pytest.mark.parametrize("make", [scenarios.shapes, scenarios.aerial])
def test_validation_data_are_no_test_data(make, tmp_path):
    write_tile(tmp_path)
    scenario = make(Options(tmp_path, tmp_path))
    few = {"data.train_size": 20, "data.test_size": 10} if scenario.name == "Shapes" else {}
    config = configuration({**scenario.settings, **few})
    whole, parted = scenario.load(config), scenarios.with_validation(scenario).load(config)
    train, rest, every, tested = (
        {tuple(point) for sample in part for point in sample.points.tolist()}
        for part in (parted.train, parted.test, whole.train, whole.test)
    )
    assert train | rest == every
    assert not train & rest
    assert not rest & tested
    assert 0.15 < len(rest) / len(every) < 0.25


FEW = scenarios.Scenario(
    "Shapes",
    "few shapes",
    {
        **{"data.name": "shapes", "data.train_size": 8, "data.test_size": 4, "data.num_points": 64},
        **{"model.channels": [4, 8], "model.head": 8, "model.radii": [0.3, 0.6], "init.batches": 2},
        **{"epochs": 1, "data.drop_last": True},
    },
    "modelnet40",
    resumable=True,
)


def test_a_long_table_from_the_command_to_the_report(tmp_path, monkeypatch):
    """Each column is trained; a cell keeps checkpoints in a folder of its own; its line is written once."""
    monkeypatch.setattr("experiments.table_kpconv.many_classes", lambda options: FEW)
    command = ["table-kpconv", "--output", str(tmp_path)]
    chosen = ["--only", "method=KPConv", "batch=2", "seed=0"]
    assert main([*command, *chosen]) == 0
    lines = (tmp_path / "table-kpconv.jsonl").read_text()
    records = [json.loads(line) for line in lines.splitlines()]
    columns = ["direct", "BN", "BN, not in the head", "LSUV", "norm-free"]
    assert [record["cell"]["column"] for record in records] == columns
    for record, column in zip(records, columns, strict=True):
        run = tmp_path / "table-kpconv" / f"Shapes-2-KPConv-{column}-0"
        assert (
            record["result"]["accuracy"]
            == json.loads((run / "summary.json").read_text())["metrics"]["accuracy"]
        )
        assert {"cpu", "cores", "threads"} == set(record["hardware"])
        assert (run / "last.ckpt").exists()
    assert main([*command, *chosen]) == 0  # nothing is left to do
    assert main([*command, "--report"]) == 0
    assert (tmp_path / "table-kpconv.jsonl").read_text() == lines
    shown = " | ".join(f"{100 * record['result']['accuracy']:.1f} (1/3)" for record in records)
    shown = shown.replace("(1/3)", "(1/3) [4.1]", 1).replace("(1/3) |", "(1/3) [21.4] |", 1)
    assert f"| KPConv | {shown} |" in (tmp_path / "table-kpconv.md").read_text()
    assert "few shapes" in (tmp_path / "table-kpconv.html").read_text()


def test_a_table_to_transfer_from_is_made_once(tmp_path, monkeypatch):
    for name, value in {"CLOUDS": 2, "DEPTH": 2, "CHANNELS": 4, "PAPER_METHODS": ("KPConvN",)}.items():
        monkeypatch.setattr(table_transfer, name, value)
    path = tmp_path / "table-transfer" / "Shapes.json"
    table_transfer.make_table(FEW, path)
    made = path.stat().st_mtime_ns
    assert len(json.loads(path.read_text())["z"]["KPConvN"]) == 2
    assert len(pv.transfer_init(pv.KPConvN(3, 4), str(path)).layers) == 1
    table_transfer.make_table(FEW, path)
    assert path.stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("table-depth", {"depth": 10, "method": "KPConvN", "column": "unit + direct + AGC"}),
        ("table-third-party", {"depth": 5, "column": "variance_init"}),
        ("pointconv-architecture", {"batch": 1, "column": "direct"}),
        ("table-orig-arch", {"network": "original"}),
        ("init-time", {"method": "MCConv", "measured": "direct", "data": "Shapes"}),
        ("init-time", {"method": "MCConv", "measured": "epoch", "data": "AHN3"}),
    ],
)
def test_networks_and_measures_of_their_own_run(name, only, tmp_path):
    if name == "table-third-party":
        pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    write_tile(tmp_path)
    (grid,) = grids_of(name, Options(tmp_path, tmp_path))
    cells = [cell for cell in grid.cells() if only.items() <= cell.items() and cell["seed"] == 0]
    scenario = grid.scenario(cells[0])
    small = {
        **{"data.train_size": 4, "data.test_size": 2, "data.num_points": 64, "data.batch_size": 2},
        **{"epochs": 1, "evaluate_every": 1, "init.batches": 1, "data.crops": 2},
        **{"data.radius": 15.0, "data.context": 20.0},
    }
    data = None
    for cell in cells:
        config = configuration({**grid.settings(cell), **small})
        data = data or scenario.load(config)
        result = grid.run(config, data, cell, grid.model(config, data, cell, weights_generator(0)))
        assert result["diverged"] is None
        assert result["history"][0]["train_loss"] > 0
        assert 0 <= result["accuracy"] <= 1
        if name == "init-time":
            assert result["shown"] == result["seconds" if cell["measured"] == "epoch" else "init_seconds"] > 0


@pytest.mark.parametrize("name", TABLES)
def test_committed_results_are_of_the_recipes_as_they_are(name, folder):
    """`make experiments` goes on from them: a new setting must not make what was run count no more. And what
    is said about them is what the code says of them."""
    for grid in grids_of(name, Options(RESULTS, folder)):
        store = Store(RESULTS / f"{grid.name}.jsonl")
        same, changed = grid.done(store)
        assert changed == 0
        assert len(same) == len({json.dumps(record["cell"]) for record in store.read()})
        assert markdown.markdown(grid, same) == (RESULTS / f"{grid.name}.md").read_text("utf8")
