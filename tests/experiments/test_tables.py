"""Every table: its cells are valid trainings by both presets; one is run from the command to the report."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import pointvar as pv
from pointvar.cli import main
from pointvar.experiments import TABLES, Options, load, scenarios, table_transfer
from pointvar.experiments.claims import as_summaries
from pointvar.experiments.columns import PAPER_METHODS
from pointvar.experiments.store import Store
from pointvar.init import tables as shipped
from pointvar.init import transfer
from pointvar.train import load_config, load_data
from pointvar.train.build import build_model


def tables_of(name, options):
    """The tables of an experiment; nothing is run or measured for them."""
    options.report = True
    return list(load(name).tables(options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which all files are there whose names decide; they are not read."""
    path = tmp_path_factory.mktemp("data")
    for name in ("modelnet10_small.npz", "modelnet40_small.npz", "ahn3_delft.npz"):
        (path / name).touch()
    return path


@pytest.mark.parametrize("preset", ["laptop", "paper"])
@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_a_training(name, preset, folder, tmp_path):
    for table in tables_of(name, Options(tmp_path, folder, preset)):
        cells = table.cells()
        assert len({json.dumps(cell) for cell in cells}) == len(cells) > 0
        configs = [table.config(cell) for cell in cells]
        axis = next(k for k in ("column", "measured", "source") if k in cells[0])
        kinds = {(c["data"], c[axis]): config for c, config in zip(cells, configs, strict=True)}
        for config in kinds.values():  # one of each kind is held against the types of all settings
            assert load_config(asdict(config)) == config
        rates = {config.optimizer.rate for config in configs}
        assert len(rates) == 1 or axis == "column"


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_on_to_one_recipe(name, folder, tmp_path):
    """Columns differ in norm, initialisation, unit response, orthonormal bases, clipping and rate alone."""
    free = {
        "model": ("norm", "head_norm", "unit_response", "orthonormal", "method"),
        "init": ("method", "layers", "table"),
    }
    for table in tables_of(name, Options(tmp_path, folder)):
        recipes = {}
        for cell in table.cells():
            config = asdict(table.config(cell))
            for section, keys in {**free, "optimizer": ("rate", "agc")}.items():
                for key in keys:
                    del config[section][key]
            axes = tuple(
                (k, v) for k, v in cell.items() if k not in ("column", "measured", "source", "rate", "method")
            )
            recipes.setdefault(axes, config)
            assert config == recipes[axes]


@pytest.mark.parametrize("name", TABLES)
def test_what_the_paper_says_has_a_cell(name, folder, tmp_path):
    for table in tables_of(name, Options(tmp_path, folder)):
        for part, _ in table.paper:
            quoted = name == "table-orig-arch" and part["network"] == "original"
            assert quoted or any(part.items() <= cell.items() for cell in table.cells()), part
        for claim in table.claims:
            assert all(
                any(side.items() <= cell.items() for cell in table.cells())
                for side in (claim.better, claim.than)
            ), claim


@pytest.mark.parametrize(
    ("name", "claim", "verdict"),
    [
        ("table-scanobjnn", 0, "holds (5 of 5)"),  # 85.7 against 23.3, ...
        ("table-scanobjnn", 4, "holds (15 of 20)"),
        ("table-segment", 0, "holds (5 of 5)"),
        ("table-class", 2, "holds (3 of 5)"),
        ("table-kpconv", 0, "holds (1 of 1)"),
        ("pointconv-architecture", 1, "holds (1 of 1)"),
    ],
)
def test_claims_on_the_paper_s_own_numbers(name, claim, verdict, tmp_path):
    (table,) = tables_of(name, Options(tmp_path))
    assert table.claims[claim].check(as_summaries(table.paper)) == verdict


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_no_transfer_from_the_same_data(preset, folder, tmp_path):
    options = Options(tmp_path, folder, preset)
    family = {"ModelNet10": "modelnet40", "ModelNet40": "modelnet40", "Shapes": "synthetic"}
    for name in TABLES:
        for table in tables_of(name, options):
            for cell in table.cells():
                config = table.config(cell)
                if config.init.method == "transfer":
                    assert family.get(cell["data"]) != config.init.table
                    assert config.init.table in shipped() or cell["source"] != cell["data"]


def test_without_data_the_built_in_ones_serve(tmp_path):
    names = {
        scenario.name
        for name in TABLES
        for table in tables_of(name, Options(tmp_path))
        for scenario in table.scenarios
    }
    assert names == {"Shapes", "Rooms"}
    with pytest.raises(ValueError, match="give their folder by --data"):
        tables_of("table-class", Options(tmp_path, preset="paper"))


def test_the_methods_of_the_paper_s_tables():
    assert PAPER_METHODS == ("PCCNN", "KPConvN", "MCConv", "PointConv", "SPHConv")


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
    scenario = scenarios.aerial(Options(tmp_path, tmp_path))
    data = scenario.load(None)
    (train,), (test,) = list(data.train), list(data.test)
    assert train.points[:, 0].max() < test.points[:, 0].min()
    assert abs(len(train) - len(test)) <= 2  # the lower median is in the east
    assert data.classes == ["low", "high"]
    assert {int(v) for v in train.label.unique()} | {int(v) for v in test.label.unique()} == {-1, 0, 1}


@pytest.mark.parametrize("make", [scenarios.shapes, scenarios.aerial])
def test_validation_data_are_no_test_data(make, tmp_path):
    write_tile(tmp_path)
    scenario = make(Options(tmp_path, tmp_path))
    load_small = {"data": {**scenario.settings["data"]}}
    if scenario.name == "Shapes":
        load_small["data"] |= {"train_size": 20, "test_size": 10}
    config = load_config(scenario.settings, load_small)
    whole, parted = scenario.load(config), scenarios.with_validation(scenario).load(config)
    rows = [{tuple(p) for s in part for p in s.points.tolist()} for part in (parted.train, parted.test)]
    every = {tuple(p) for s in whole.train for p in s.points.tolist()}
    tested = {tuple(p) for s in whole.test for p in s.points.tolist()}
    assert rows[0] | rows[1] == every
    assert not rows[0] & rows[1]
    assert not rows[1] & tested
    assert 0.15 < len(rows[1]) / len(every) < 0.25


SMALL = {
    "data": {"train_size": 8, "test_size": 4, "num_points": 64, "drop_last": True},
    "model": {"channels": [4, 8], "head": 8, "radii": [0.3, 0.6]},
    "init": {"batches": 2},
    "optimizer": {"rate": 0.005, "milestones": []},
    "epochs": 1,
}


def test_a_table_from_the_command_to_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(scenarios, "LAPTOP", SMALL)
    monkeypatch.setattr(
        scenarios,
        "shapes",
        lambda options: scenarios.Scenario(
            "Shapes", "few shapes", {**SMALL, "data": {**SMALL["data"], "name": "shapes"}}, "modelnet40"
        ),
    )
    command = ["reproduce", "table-scanobjnn", "--output", str(tmp_path), "--synthetic", "--only"]
    chosen = ["method=MCConv", "batch=2", "seed=0"]
    assert main([*command, *chosen]) == 0
    records = Store(tmp_path / "table-scanobjnn.jsonl").read()
    assert [r["cell"]["column"] for r in records] == [
        *("direct", "GN", "BN", "standard", "Xavier", "BN, not in the head", "LSUV", "norm-free"),
        "direct + BN, not in the head",
    ]
    for record in records:
        assert 0 <= record["result"]["accuracy"] <= 1
        assert len(record["result"]["history"]) == 1
        assert {"cpu", "cores", "threads"} == set(record["hardware"])
    first = (tmp_path / "table-scanobjnn.jsonl").read_bytes()
    assert main([*command, *chosen]) == 0  # nothing is left to do
    assert main(["reproduce", "table-scanobjnn", "--output", str(tmp_path), "--synthetic", "--report"]) == 0
    assert (tmp_path / "table-scanobjnn.jsonl").read_bytes() == first
    page = (tmp_path / "table-scanobjnn.html").read_text()
    assert "few shapes" in page
    assert "[86.3]" in page


def test_a_table_to_transfer_from_is_whole_or_not_there(tmp_path, monkeypatch):
    for name, value in {"CLOUDS": 2, "DEPTH": 2, "CHANNELS": 4, "PAPER_METHODS": ("KPConvN",)}.items():
        monkeypatch.setattr(table_transfer, name, value)
    settings = {**SMALL, "data": {**SMALL["data"], "name": "shapes"}}
    few = scenarios.Scenario("Shapes", "few shapes", settings, "modelnet40")
    path = tmp_path / "table-transfer" / "Shapes.json"

    def killed(self, file):
        file.write_text('{"name"')
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transfer.Table, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            table_transfer.make_table(few, path)
    assert not path.exists()
    table_transfer.make_table(few, path)
    assert len(json.loads(path.read_text())["z"]["KPConvN"]) == 2
    report = pv.transfer_init(pv.KPConvN(3, 4), str(path))
    assert len(report.layers) == 1


def test_paper_cells_resume_from_their_own_folder(tmp_path, monkeypatch):
    """A long training keeps checkpoints by cell; when it is done, its record is written once."""
    settings = {**SMALL, "data": {**SMALL["data"], "name": "shapes"}}
    long = scenarios.Scenario("Shapes", "few shapes", settings, "modelnet40", resumable=True)
    monkeypatch.setattr("pointvar.experiments.table_kpconv.many_classes", lambda options: long)
    command = ["reproduce", "table-kpconv", "--output", str(tmp_path), "--only", "seed=0", "batch=2"]
    assert main([*command, "column=direct", "method=KPConv"]) == 0
    (run,) = (tmp_path / "table-kpconv").iterdir()
    assert run.name == "Shapes-2-KPConv-direct-0"
    assert (run / "last.ckpt").exists()


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("table-depth", {"depth": 10, "method": "KPConvN"}),
        ("table-third-party", {"depth": 5}),
        ("pointconv-architecture", {}),
        ("table-orig-arch", {"network": "original"}),
        ("init-time", {"method": "MCConv"}),
    ],
)
def test_networks_and_measures_of_their_own_run(name, only, tmp_path, monkeypatch):
    if name == "table-third-party":
        pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
    write_tile(tmp_path)
    (table,) = tables_of(name, Options(tmp_path, tmp_path))
    kinds = {}
    for cell in table.cells():
        if only.items() <= cell.items():
            key = tuple(v for k, v in cell.items() if k in ("data", "column", "layer", "measured"))
            kinds.setdefault(key, cell)
    loaded = {}
    for cell in kinds.values():
        scenario, config = table.scenario(cell), table.config(cell)
        if scenario.name not in loaded:
            config.data.train_size, config.data.test_size, config.data.num_points = 4, 2, 64
            loaded[scenario.name] = scenario.load(config)
        config.epochs, config.data.crops, config.init.batches, config.data.batch_size = 1, 2, 1, 2
        config.data.radius, config.data.context, config.evaluate_every = 15, 20, 1
        data = loaded[scenario.name]
        model = table.model(config, data, cell, grid_generator())
        result = table.run(config, data, cell, model)
        assert result["diverged"] is None or isinstance(result["diverged"], str)
        assert result[table.measure or scenario.metric] is not None


def grid_generator():
    import torch

    return torch.Generator().manual_seed(0)


def test_columns_make_the_networks_they_name(tmp_path):
    (table,) = tables_of("table-scanobjnn", Options(tmp_path))
    found = {}
    for cell in table.cells()[: len(table.axes["column"])]:
        config = table.config(cell)
        config.data.train_size, config.data.test_size = 2, 2
        model = build_model(config.model, load_data(config.data))
        found[cell["column"]] = sorted(
            {type(m).__name__ for m in model.modules() if "Norm1d" in type(m).__name__}
        )
        if cell["column"] == "BN, not in the head":
            assert not any("Norm1d" in type(m).__name__ for m in model.head.modules())
    assert found["direct"] == found["norm-free"] == []
    assert found["BN"]


@pytest.mark.parametrize("name", TABLES)
def test_committed_results_are_of_the_recipes_as_they_are(name, folder):
    """`make experiments` goes on from them: a new setting must not make what was run count no more."""
    results = Path(__file__).parents[2] / "results"
    for table in tables_of(name, Options(results, folder, report=True)):
        store = Store(results / f"{table.name}.jsonl")
        same, changed = store.done(table)
        assert changed == 0
        assert len(same) == len({json.dumps(record["cell"]) for record in store.read()})
