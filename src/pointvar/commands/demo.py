"""Shows on built-in shapes what variance-aware weights do, in minutes: a table and an HTML report.

Variance over 25 layers, and one small network trained at batch size 2 with standard weights, batch norm,
group norm, variance-aware weights and the norm-free recipe. Stopped, the same command goes on; finished, it
shows what there is.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointvar.report import Report
    from pointvar.report.runs import Run
    from pointvar.train import Config, Data

DEPTH, CHANNELS, CLOUDS = 25, 32, 8
METHODS = ["PCCNN", "KPConvN", "MCConv", "PointConv"]
"""Of the curves of variance by depth."""

BASE: dict[str, Any] = {
    "data": {"name": "shapes", "train_size": 500, "test_size": 250, "num_points": 256, "batch_size": 2},
    "model": {"method": "MCConv", "channels": [16, 32, 64], "head": 64, "radii": [0.1, 0.2, 0.4]},
    "optimizer": {"rate": 0.005, "milestones": [8]},
    "epochs": 10,
    # Batches this small gain little from a second thread, and lose much where another process wants the core.
    "threads": 1,
    "accelerator": "cpu",
}
STANDARD = {"method": "standard"}
TRAININGS: dict[str, dict[str, Any] | str] = {
    "standard": {"init": STANDARD},
    # In the head each cloud is one row, and two rows have no statistics: there it would lose by itself.
    "batch norm": {"init": STANDARD, "model": {"norm": "batch", "head_norm": "none"}},
    "group norm": {"init": STANDARD, "model": {"norm": "group"}, "optimizer": {"rate": 0.003}},
    "variance-aware": {"init": {"method": "direct"}},
    "norm-free": "norm-free",
}
"""Settings over those of BASE, or the recipe of that name."""
MEANING = {
    "standard": "weights as for images, no normalisation",
    "batch norm": "weights as for images, batch normalisation in all but the head",
    "group norm": "weights as for images, group normalisation",
    "variance-aware": "direct initialisation, no normalisation",
    "norm-free": "unit response, direct initialisation, adaptive gradient clipping, no normalisation",
}
SHOWN = range(0, 24, 4)
"""Test clouds in the viewer, by index: classes take turns, so that these differ."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder to write to (demo)")
    parser.add_argument("--fresh", action="store_true", help="start over, whatever is there")


def run(arguments: argparse.Namespace) -> None:
    from pointvar.atomic import write_atomically
    from pointvar.progress import span
    from pointvar.report.runs import Run
    from pointvar.train import load_config, load_data

    begin, output = time.monotonic(), arguments.output
    output.mkdir(parents=True, exist_ok=True)
    folders = {name: output / name.replace(" ", "-") for name in TRAININGS}
    configs = {n: load_config(BASE, s, {"output": str(folders[n])}) for n, s in TRAININGS.items()}
    for name, config in configs.items():  # a run of other settings could not go on as this one
        settings = folders[name] / "config.yaml"
        if settings.exists() and (
            arguments.fresh or settings.read_text(encoding="utf-8") != config.to_yaml()
        ):
            shutil.rmtree(folders[name])
    curves = output / "variance.json"
    if arguments.fresh:
        curves.unlink(missing_ok=True)
    waiting = [name for name, folder in folders.items() if not (folder / "summary.json").exists()]
    repeated = not waiting and curves.exists()
    if not curves.exists():
        write_atomically(curves, json.dumps(_variance_by_depth()) + "\n")
    data = load_data(configs["norm-free"].data)
    _train(configs, waiting, data)
    runs = [Run(folder, name) for name, folder in folders.items()]
    report = _report(configs["norm-free"], runs, json.loads(curves.read_text(encoding="utf-8")), data)
    page = report.save(output / "report.html")
    print("\n" + _table(runs) + "\n")
    if repeated:
        again = f"pointvar demo --output {quote(str(output))} --fresh"
        print(f"All of it was there already; to start over: {again}")
    print(f"report: {page}" + ("" if repeated else f" (after {span(time.monotonic() - begin)})"))


def _variance_by_depth() -> dict[str, dict[str, list[float]]]:
    """Second moments of the features behind each layer of plain networks, by method and initialisation."""
    import torch

    import pointvar as pv
    from pointvar.commands.tables import surface_batch
    from pointvar.progress import track

    batch = surface_batch(CLOUDS)
    features, hood = batch
    radius, result = float(hood.radius.mean()), dict[str, dict[str, list[float]]]()
    for method in track(METHODS, "variance by depth"):
        net = pv.models.PlainNet(
            DEPTH,
            CHANNELS,
            features.shape[1],
            method=method,
            radius=radius,
            generator=torch.Generator().manual_seed(0),
        )
        pv.standard_init(net, generator=torch.Generator().manual_seed(1000))
        standard = pv.variance_report(net, batch, backward=False)
        pv.variance_init(net, batch, generator=torch.Generator().manual_seed(1000))
        direct = pv.variance_report(net, batch, backward=False)
        reports = {"standard": standard, "direct": direct}
        result[method] = {name: [layer.variance for layer in r.layers] for name, r in reports.items()}
    return result


def _train(configs: dict[str, Config], waiting: list[str], data: Data) -> None:
    """Trains what is waiting, with a line per epoch."""
    from pointvar.progress import span
    from pointvar.train import fit

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


def _table(runs: list[Run]) -> str:
    lines = [f"{'training':16}{'test accuracy':>15}{'train accuracy':>16}{'seconds':>10}"]
    for run in runs:
        values = run.metrics.get("accuracy"), _train_accuracy(run)
        test, train = ("diverged" if value is None else f"{value:.3f}" for value in values)
        lines.append(f"{run.name:16}{test:>15}{train:>16}{run.summary['seconds']:>10.0f}")
    return "\n".join(lines)


def _train_accuracy(run: Run) -> float | None:
    return run.rows[-1]["train_accuracy"] if run.rows else None


def _report(config: Config, runs: list[Run], variance: dict[str, Any], data: Data) -> Report:
    from pointvar.report import Report
    from pointvar.report.runs import compare

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
            "channels": config.model.channels,
            "threads": config.threads,
        }
    )
    meanings = [(run.name, MEANING[run.name], _train_accuracy(run)) for run in runs]
    report.table(meanings, ["training", "what it is", "training accuracy"])
    compare(report, runs)
    report.text(
        f"Accuracies after the last epoch, of one seed. With {tests} test shapes one accuracy has a standard "
        f"error of up to {0.5 / tests**0.5:.2f}: small differences mean nothing, and {config.epochs} epochs "
        "show how a training begins, not where it ends."
    )
    for run in runs:
        if run.summary["diverged"] is not None:
            report.text(f"{run.name} diverged: {run.summary['diverged'].splitlines()[0]}", "bad")
    report.section("Variance by depth")
    report.text(
        f"The second moment of the features behind each of {DEPTH} layers, before any training, on one batch "
        f"of {CLOUDS} shapes: weights as for images (standard) and variance-aware ones (direct)."
    )
    report.panels(variance, log=True, reference=1.0, xlabel="layer")
    report.section("Test clouds")
    _show_clouds(report, config, runs[-1], data)
    return report


def _show_clouds(report: Report, config: Config, run: Run, data: Data) -> None:
    from pointvar.models import load
    from pointvar.train import class_probabilities

    if run.summary["diverged"] is not None:
        report.text("The norm-free network has diverged, so there are no predictions.", "bad")
        return
    report.text("Predictions of the norm-free network. The clouds were chosen before anything was trained.")
    samples = [data.test[index] for index in SHOWN if index < len(data.test)]
    network = load(Path(str(config.output), "model.safetensors"))
    shares = class_probabilities(network, samples, config.data)
    for sample, share in zip(samples, shares, strict=True):
        label, prediction = data.classes[int(sample.label)], data.classes[int(share.argmax())]
        verdict = "right" if label == prediction else "wrong"
        title = f"label {label}, prediction {prediction} ({verdict}, {float(share.max()):.0%} sure)"
        report.cloud(sample.points, values={"height": sample.points[:, 2].numpy()}, title=title)
