"""Every table: its cells are valid trainings by both presets, and what was run counts still."""

import ast
import itertools
import json
import os
import signal
from dataclasses import asdict, replace
from importlib import import_module

import numpy as np
import pytest
import torch
from conftest import ROOT
from experiments import TABLES, load, markdown, scenarios, table_transfer
from experiments.__main__ import main
from experiments.claims import published
from experiments.columns import COLUMNS, NORM_FREE, PARTS, SCHEDULE, SGD
from experiments.grid import Grid, run, weights_generator
from experiments.long import shapes_long, shapes_short
from experiments.options import Options
from experiments.rates import best_rates
from experiments.settings import configuration, fingerprint, flat
from experiments.store import Store

import pointvar as pv
from pointvar.data import Shapes
from pointvar.init import tables as shipped
from pointvar.train import RECIPES, Data
from pointvar.without_norms import NormFreeReport

RESULTS = ROOT / "results"
WITH_RATES = (
    *("table-norm-free", "table-parts", "table-depth", "table-any-network"),
    *("table-long", "table-size", "table-segment-long"),
)


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
    """Columns differ in norm, initialisation, the parts of the recipe, optimiser and rate alone."""
    free = {"model.norm", "model.head_norm", "model.unit_response", "model.precondition", "model.method"}
    free |= {"init.method", "init.layers", "init.table", "init.center"}
    free |= {"optimizer.rate", "optimizer.agc", "optimizer.name"}
    for grid in grids_of(name, Options(tmp_path, folder)):
        recipes = {}
        for cell in grid.cells():
            settings = {k: v for k, v in grid.settings(cell).items() if k not in free}
            varied = ("column", "measured", "source", "rate", "method")
            axes = tuple((k, v) for k, v in cell.items() if k not in varied)
            assert settings == recipes.setdefault(axes, settings)
        rates = {grid.settings(cell)["optimizer.rate"] for cell in grid.cells()}
        assert len(rates) == 1 or grid.name.removesuffix("-rates") in WITH_RATES


def test_norm_free_is_the_recipe_at_the_rate_of_all():
    recipe = flat(RECIPES["norm-free"])
    shared = {**SCHEDULE, "optimizer.rate": recipe["optimizer.rate"], "model.norm": "none"}
    assert {**COLUMNS["norm-free"], **shared} == recipe


def test_a_part_of_the_recipe_is_taken_out_by_its_default():
    """Without all of its parts, and with SGD, the recipe is direct, and no part is left out."""
    parts = {name: value for part in PARTS.values() for name, value in part.items()}
    without = {**NORM_FREE, **parts, **SGD}
    assert configuration(without) == configuration(COLUMNS["direct"])
    assert all(configuration({**NORM_FREE, **part}) != configuration(NORM_FREE) for part in PARTS.values())


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


def test_rates_of_long_trainings_are_chosen_on_two_tenths_of_the_shapes(tmp_path):
    """One to train, another to choose by; what is trained is the same but for its length."""
    long = shapes_long(Options(tmp_path))
    short = shapes_short(replace(long, settings={**long.settings, "data.train_size": 40}))
    data = short.load(configuration(short.settings))
    train, rest = ({sample.name for sample in part} for part in (data.train, data.test))
    assert (len(train), len(rest), len(train & rest)) == (4, 4, 0)
    assert {**short.settings, "evaluate_every": 1, "data.train_size": 500} == long.settings
    assert short.batch(2)["epochs"] < long.batch(2)["epochs"]


def test_the_features_of_the_tile_are_scaled_by_the_half_to_train(tmp_path):
    write_tile(tmp_path)
    data = scenarios.tile(tmp_path / "ahn3_delft.npz", scaled=True)
    (train,), (test,) = list(data.train), list(data.test)
    assert train.features[:, 1].mean().abs() < 1e-5
    assert train.features[:, 1].std() == pytest.approx(1, abs=1e-5)
    assert test.features[:, 1].mean().abs() > 1e-5  # it has no part in it


def test_a_rate_counts_as_chosen_when_all_were_tried(tmp_path):
    choice, table = grids_of("table-long", Options(tmp_path))
    assert table.notes[-2].endswith("none yet.")
    store = Store(tmp_path / "table-long-rates.jsonl")
    for cell in choice.select(["batch=2", "column=GN"]):
        result = {"accuracy": 0.5 - abs(cell["rate"] - 0.01), "diverged": None}
        store.append({"cell": cell, "result": result, "recipe": fingerprint(choice.settings(cell))})
    *_, table = grids_of("table-long", Options(tmp_path))
    assert table.notes[-2].endswith("validation data: Shapes batch 2 GN 0.01.")
    chosen = [table.settings(c) for c in table.cells() if (c["batch"], c["column"]) == (2, "GN")]
    assert {settings["optimizer.rate"] for settings in chosen} == {0.01}


@pytest.mark.parametrize("name", ["table-long", "table-size", "table-segment-long", "table-parts"])
def test_norm_free_is_trained_at_the_rate_of_its_recipe(name, tmp_path):
    """As a user gets it; where the recipe as such is compared, nothing chooses another rate for it."""
    choice, table = grids_of(name, Options(tmp_path))
    assert "norm-free" not in {cell["column"] for cell in choice.cells()}
    rates = {table.settings(c)["optimizer.rate"] for c in table.cells() if c["column"] == "norm-free"}
    assert rates == {RECIPES["norm-free"]["optimizer"]["rate"]}
    assert "recipe: norm-free 0.003" in table.notes[-1]


FEW = scenarios.Scenario(
    "Shapes",
    "few shapes",
    {
        **{"data.name": "shapes", "data.train_size": 8, "data.test_size": 4, "data.num_points": 64},
        **{"model.channels": [4, 8], "model.head": 8, "model.radii": [0.3, 0.6], "init.batches": 2},
        **{"epochs": 1, "data.drop_last": True},
    },
    "modelnet40",
    preset="paper",
)


def test_a_long_table_from_the_command_to_the_report(tmp_path, monkeypatch):
    """Each column is trained; a cell keeps checkpoints in a folder of its own; its line is written once."""
    monkeypatch.setattr("experiments.table_kpconv.many_classes", lambda options: FEW)
    command = ["table-kpconv", "--output", str(tmp_path)]
    chosen = ["--only", "method=KPConv", "batch=2", "seed=0"]
    assert main([*command, *chosen]) == 0
    lines = (tmp_path / "table-kpconv.jsonl").read_text()
    records = [json.loads(line) for line in lines.splitlines()]
    columns = ["direct", "BN", "BN, not in the head", "LSUV"]
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


class Stopping(list):
    """Samples; when one has been read so often in all, the process is asked to end."""

    def __init__(self, samples, reads):
        super().__init__(samples)
        self.left = reads

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__getitem__(index)


def test_a_long_cell_that_was_stopped_goes_on_where_it_was(tmp_path):
    """In the middle of an epoch; what comes out is what would have come out."""
    axes = {"batch": (2,), "method": ("MCConv",), "column": ("norm-free",)}
    samples = [Shapes(8, "train", 64)[i] for i in range(8)]

    def grid(reads):
        data = Data(Stopping(samples, reads), Shapes(6, "test", 64), Shapes(1).classes, 1)
        scenario = replace(
            FEW, settings={**FEW.settings, "epochs": 3}, preset="long", load=lambda config: data
        )
        return Grid("toy", "A toy", [scenario], axes, seeds=1)

    def result(folder):
        (record,) = Store(folder / "toy.jsonl").read()
        rows = record["result"].pop("history")
        assert [row["epoch"] for row in rows] == [1, 2, 3]
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows], record["result"][
            "accuracy"
        ]

    stopped, whole = Options(tmp_path / "stopped"), Options(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(grid(reads=18), stopped)
    cell = stopped.output / "toy" / "Shapes-2-MCConv-norm-free-0"
    assert not (stopped.output / "toy.jsonl").exists()
    assert len((cell / "metrics.jsonl").read_text().splitlines()) == 1  # in the second epoch
    step = torch.load(cell / "last.ckpt", weights_only=True)["global_step"]
    assert 4 < step < 8
    assert run(grid(reads=0), stopped)
    assert run(grid(reads=0), whole)
    assert result(stopped.output) == result(whole.output)


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
        ("table-depth", {"depth": 10, "method": "KPConvN", "column": "norm-free"}),
        ("table-third-party", {"depth": 5, "column": "variance_init"}),
        ("table-any-network", {"batch": 2, "network": "DGCNN"}),
        ("table-any-network", {"batch": 1, "network": "PointNet"}),
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
    grid = grids_of(name, Options(tmp_path, tmp_path))[-1]
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
        model = grid.model(config, data, cell, weights_generator(0))
        if model is not None:
            convolutions = [m for m in model.modules() if isinstance(m, pv.PointConvolution)]
            for part in ("unit_response", "precondition"):
                assert {getattr(conv, part) for conv in convolutions} <= {getattr(config.model, part)}
        result = grid.run(config, data, cell, model)
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


def test_the_rate_of_the_recipe_is_the_one_that_validation_data_chose(folder):
    """By the stored results, not by hand."""
    choice, _ = grids_of("table-norm-free", Options(RESULTS, folder))
    chosen = best_rates(choice, Options(RESULTS, folder))
    assert {r for (*_, column), r in chosen.items() if column == "norm-free"} == {
        RECIPES["norm-free"]["optimizer"]["rate"]
    }


def test_the_parts_of_norm_free_are_trained_at_the_rate_of_its_report(tmp_path):
    (grid,) = grids_of("table-any-parts", Options(tmp_path))
    assert {grid.config(cell).optimizer.rate for cell in grid.cells()} == {NormFreeReport().settings["rate"]}


def test_the_parts_of_norm_free_are_those_of_their_columns(tmp_path):
    """The same network in four ways: the head is centred or not, branches end with or without a size."""
    (grid,) = grids_of("table-any-parts", Options(tmp_path))
    scenario, nets = grid.scenarios[0], {}
    for cell in grid.cells():
        if cell["network"] == "PointNeXt":
            small = {"data.train_size": 4, "data.test_size": 2, "data.num_points": 64, "init.batches": 2}
            config = configuration({**grid.settings(cell), **small})
            data = scenario.load(config)
            nets[cell["column"]] = grid.model(config, data, cell, weights_generator(0))
    assert not any(isinstance(m, torch.nn.BatchNorm1d) for net in nets.values() for m in net.modules())
    sizes = {
        column: torch.stack([p.detach().square().mean() for p in net.parameters() if p.dim() > 1])
        for column, net in nets.items()
    }
    free, apart, share, zero = (sizes[column] for column in grid.axes["column"])
    assert float(min(free.min(), share.min())) > 0
    branches = zero == 0
    assert 0 < int(branches.sum()) < len(zero)
    assert bool((share[branches] < 0.8 * free[branches]).all())
    assert not torch.allclose(free[-1], apart[-1], rtol=1e-3)


def test_rates_are_the_best_on_validation_data(tmp_path):
    """Each column its own at each batch size, by the mean of two networks, and by the numbers of no other
    table."""
    options = Options(tmp_path)
    choice, _ = grids_of("table-any-network", options)
    assert {cell["network"] for cell in choice.cells()} == {"PointNet++", "PointNeXt"}
    store, sums = Store(tmp_path / f"{choice.name}.jsonl"), {}
    for number, cell in enumerate(choice.cells()):
        place, value = (cell["batch"], cell["column"]), (0.37 * number) % 1
        rates = sums.setdefault(place, {})
        rates[cell["rate"]] = rates.get(cell["rate"], 0.0) + value
        record = {"result": {"accuracy": value}, "recipe": fingerprint(choice.settings(cell))}
        store.append({"cell": cell, **record})
    best = {place: max(rates, key=rates.get) for place, rates in sums.items()}
    assert len(best) == 2 * 6 - 1  # batch norm cannot train on single shapes
    assert any(best[1, column] != best[2, column] for batch, column in best if batch == 1)
    _, table = grids_of("table-any-network", options)
    for cell in table.cells():
        assert table.settings(cell)["optimizer.rate"] == best[cell["batch"], cell["column"]], cell
    assert f"Shapes batch 2 BN {best[2, 'BN']:g}, " in table.notes[-1]


def test_norm_free_has_one_rate_and_others_one_per_place(tmp_path):
    """norm-free is best at 0.1 in one place, but at 0.03 by the mean; AdamW has a tenth. BN has one each."""
    options = Options(tmp_path)
    choice, _ = grids_of("table-norm-free", options)
    store = Store(tmp_path / f"{choice.name}.jsonl")
    large = {("norm-free", 16), ("BN", 16)}
    for cell in choice.cells():
        best = 0.1 if (cell["column"], cell["batch"]) in large else 0.03
        value = {best: 0.8, 0.03: 0.7}.get(cell["rate"], 0.1)
        metric = choice.scenario(cell).metric
        record = {"result": {metric: value}, "recipe": fingerprint(choice.settings(cell))}
        store.append({"cell": cell, **record})
    _, table = grids_of("table-norm-free", options)
    rates = {(c["column"], c["batch"]): table.settings(c)["optimizer.rate"] for c in table.cells()}
    assert {batch: rates["norm-free", batch] for batch in (1, 2, 16)} == dict.fromkeys((1, 2, 16), 0.003)
    assert {batch: rates["BN", batch] for batch in (1, 2, 16)} == {1: 0.03, 2: 0.03, 16: 0.1}


def test_every_depth_has_rates_of_its_own_norm_free_too(tmp_path):
    """One rate of norm-free is for all data and batches, not for all depths."""
    options = Options(tmp_path)
    choice, _ = grids_of("table-depth", options)
    store, best = Store(tmp_path / f"{choice.name}.jsonl"), {10: 0.1, 25: 0.03, 50: 0.01, 100: 0.003}
    for cell in choice.cells():
        result = {"accuracy": float(cell["rate"] == best[cell["depth"]])}
        store.append({"cell": cell, "result": result, "recipe": fingerprint(choice.settings(cell))})
    _, table = grids_of("table-depth", options)
    for cell in table.cells():
        tenth = 0.1 if cell["column"].startswith("norm-free") else 1
        assert table.settings(cell)["optimizer.rate"] == pytest.approx(tenth * best[cell["depth"]]), cell
