"""The demonstration: variance by depth, and one small network trained in five ways on batches of two clouds.

Every training is a run directory of its own, so that an interrupted demonstration goes on where it was, and
one that is finished is not repeated.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pointvar.experiments.by_depth import Curve, activations, initialisers, plain
from pointvar.experiments.clouds import surface_clouds
from pointvar.experiments.options import Options
from pointvar.progress import span, track

if TYPE_CHECKING:
    from pointvar.train import Config, Data

DEPTH, CHANNELS, CLOUDS = 25, 32, 8
METHODS = ["PCCNN", "KPConvN", "MCConv", "PointConv"]
"""Of the figure on variance."""

BASE: dict[str, Any] = {
    "data": {"name": "shapes", "train_size": 500, "test_size": 250, "num_points": 256, "batch_size": 2},
    "model": {"method": "MCConv", "channels": [16, 32, 64], "head": 64, "radii": [0.1, 0.2, 0.4]},
    "optimizer": {"rate": 0.005, "milestones": [8]},
    "epochs": 10,
    # Batches this small gain little from a second thread, and lose much where another process wants the core.
    "threads": 1,
    "accelerator": "cpu",
}
TRAININGS: dict[str, dict[str, Any]] = {
    "standard": {"init": {"method": "standard"}},
    # In the head each cloud is one row, and two rows have no statistics: there it would lose by itself.
    "batch norm": {"init": {"method": "standard"}, "model": {"norm": "batch", "head_norm": "none"}},
    "group norm": {
        "init": {"method": "standard"},
        "model": {"norm": "group"},
        "optimizer": {"rate": 0.003},
    },
    "variance-aware": {"init": {"method": "direct"}},
    "norm-free": {
        "init": {"method": "direct"},
        "model": {"unit_response": True},
        "optimizer": {"rate": 0.01, "agc": 0.05},
    },
}
MEANING = {
    "standard": "weights as for images, no normalisation",
    "batch norm": "weights as for images, batch normalisation in all but the head",
    "group norm": "weights as for images, group normalisation",
    "variance-aware": "direct initialisation, no normalisation",
    "norm-free": "unit response, direct initialisation, adaptive gradient clipping, no normalisation",
}
SHOWN = range(0, 24, 4)
"""Test clouds in the viewer, by index: classes take turns, so that these differ."""


def run(options: Options, fresh: bool = False) -> Path:
    """Does what is not done yet, prints a table, and gives the page that it writes.

    Args:
        options: ``output`` is the folder for all of it.
        fresh: forgets what an earlier demonstration has left there.
    """
    begin = time.monotonic()
    configs = {name: _config(name, options.output) for name in TRAININGS}
    for config in configs.values():
        _forget_unless_same(config, fresh)
    file = options.output / "variance.json"
    if fresh:
        file.unlink(missing_ok=True)
    waiting = [name for name, config in configs.items() if not _summary_file(config).exists()]
    repeated = not waiting and file.exists()
    if not file.exists():
        file.write_text(json.dumps(variance_by_depth()) + "\n")
    data = _train(configs, waiting)
    rows = [_row(name, config) for name, config in configs.items()]
    page = _write_page(options.output, configs, rows, json.loads(file.read_text()), data)
    print("\n" + _table(rows) + "\n")
    if repeated:
        print(f"All of it was there already; to start over: pointvar demo --output {options.output} --fresh")
    print(f"report: {page}" + ("" if repeated else f" (after {span(time.monotonic() - begin)})"))
    return page


def variance_by_depth() -> dict[str, dict[str, Curve]]:
    """Second moments of the features behind each layer of plain networks, by method and initialisation."""
    batch = surface_clouds(None, CLOUDS).packed(slice(0, CLOUDS))
    result: dict[str, dict[str, Curve]] = {}
    for method in track(METHODS, "variance by depth"):
        result[method] = {}
        for name in ("standard", "direct"):
            net = plain(method, DEPTH, CHANNELS, batch, seed=0)
            initialisers(batch, "synthetic")[name](net, torch.Generator().manual_seed(1000))
            result[method][name] = activations(net, batch)
    return result


# Trainings


def _config(name: str, output: Path) -> Config:
    from pointvar.train import load_config

    return load_config(BASE, TRAININGS[name], {"output": str(output / name.replace(" ", "-"))})


def _folder(config: Config) -> Path:
    assert config.output is not None
    return Path(config.output)


def _summary_file(config: Config) -> Path:
    """Written when a training has ended, not before."""
    return _folder(config) / "summary.json"


def _forget_unless_same(config: Config, fresh: bool) -> None:
    """Removes a run of other settings, which could not go on as this one; and any, if asked to."""
    settings = _folder(config) / "config.yaml"
    if settings.exists() and (fresh or settings.read_text() != config.to_yaml()):
        shutil.rmtree(_folder(config))


def _train(configs: dict[str, Config], waiting: list[str]) -> Data:
    """Trains what is waiting, with a line per epoch."""
    from pointvar.train import fit, load_data

    data = load_data(next(iter(configs.values())).data)
    begin = time.monotonic()
    for done, name in enumerate(waiting):
        left = (time.monotonic() - begin) / done * (len(waiting) - done) if done else None
        rest = "" if left is None else f"; {span(left)} left for all"
        number = list(configs).index(name) + 1
        print(f"\ntraining {number} of {len(configs)}, {name}: {MEANING[name]}{rest}", flush=True)
        result = fit(configs[name], data, resume=True, verbose=True)
        if result.interrupted:
            print("\nstopped; the same command goes on from here")
            raise KeyboardInterrupt
        if result.diverged is not None:
            print(f"diverged: {result.diverged}")
    return data


def _row(name: str, config: Config) -> dict[str, Any]:
    summary = json.loads(_summary_file(config).read_text())
    lines = (_folder(config) / "metrics.jsonl").read_text().splitlines()
    history = [json.loads(line) for line in lines]
    return {
        "training": name,
        "meaning": MEANING[name],
        "rate": config.optimizer.rate,
        "test": summary["metrics"].get("accuracy"),
        "train": history[-1]["train_accuracy"] if history else None,
        "epochs": len(history),
        "seconds": round(summary["seconds"], 1),
        "diverged": summary["diverged"],
        "history": history,
    }


# What is shown


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'training':16}{'test accuracy':>15}{'train accuracy':>16}{'seconds':>10}"]
    for row in rows:
        test, train = ("diverged" if v is None else f"{v:.3f}" for v in (row["test"], row["train"]))
        lines.append(f"{row['training']:16}{test:>15}{train:>16}{row['seconds']:>10.0f}")
    return "\n".join(lines)


def _write_page(
    output: Path,
    configs: dict[str, Config],
    rows: list[dict[str, Any]],
    variance: dict[str, dict[str, Curve]],
    data: Data,
) -> Path:
    from pointvar.report import Report

    config = configs["norm-free"]
    tests = len(data.test)
    report = Report("pointvar: a demonstration", "Point convolutions whose features keep their variance")
    report.section("What was run")
    report.text(
        "One small classifier, trained in five ways on the same shapes, with batches of two clouds: as few "
        "as large scenes often leave memory for. Batch normalisation has little to estimate its statistics "
        "from there; weights that keep the variance need no statistics at all."
    )
    report.facts(
        {
            "data": f"built-in partial scans, {len(data.classes)} classes",
            "training shapes": len(data.train),
            "test shapes": tests,
            "points": config.data.num_points,
            "batch size": config.data.batch_size,
            "convolution": config.model.method,
            "channels": config.model.channels,
            "epochs": config.epochs,
            "seed": config.seed,
            "threads": config.threads,
        }
    )
    report.section("Accuracy")
    columns = {
        "training": "training",
        "meaning": "what it is",
        "rate": "learning rate",
        "test": "test accuracy",
        "train": "training accuracy",
        "seconds": "seconds",
    }
    report.table(rows, columns)
    report.text(
        f"Accuracies after the last epoch, of one seed. With {tests} test shapes one accuracy has a standard "
        f"error of up to {0.5 / tests**0.5:.2f}: small differences mean nothing, and {config.epochs} epochs "
        "show how a training begins, not where it ends."
    )
    for row in rows:
        if row["diverged"] is not None:
            report.text(f"{row['training']} diverged: {row['diverged'].splitlines()[0]}", "bad")
    report.section("Training curves")
    panels = {
        title: {row["training"]: [epoch[key] for epoch in row["history"]] for row in rows}
        for title, key in (("accuracy on test shapes", "accuracy"), ("training loss", "train_loss"))
    }
    report.panels(panels, xlabel="epoch")
    report.section("Variance by depth")
    report.text(
        f"The second moment of the features behind each of {DEPTH} layers, before any training, on one batch "
        f"of {CLOUDS} shapes: weights as for images (standard) and variance-aware ones (direct)."
    )
    report.panels(variance, log=True, reference=1.0, xlabel="layer")
    report.section("Test clouds")
    _show_clouds(report, config, rows[list(configs).index("norm-free")], data)
    return report.save(output / "report.html")


def _show_clouds(report: Any, config: Config, row: dict[str, Any], data: Data) -> None:
    from pointvar.models import load
    from pointvar.train import class_probabilities

    if row["diverged"] is not None:
        report.text("The norm-free network has diverged, so there are no predictions.", "bad")
        return
    report.text("Predictions of the norm-free network. The clouds were chosen before anything was trained.")
    samples = [data.test[index] for index in SHOWN if index < len(data.test)]
    network = load(_folder(config) / "model.safetensors")
    shares = class_probabilities(network, samples, config.data)
    for sample, share in zip(samples, shares, strict=True):
        label, prediction = data.classes[int(sample.label)], data.classes[int(share.argmax())]
        verdict = "right" if label == prediction else "wrong"
        title = f"label {label}, prediction {prediction} ({verdict}, {float(share.max()):.0%} sure)"
        report.cloud(sample.points, values={"height": sample.points[:, 2].numpy()}, title=title)
