"""Inspect a folder of your own files, print what is in it, and write settings to train on it.

    pointvar init scans/ --output=mine.yaml
    pointvar train mine.yaml

One folder per class is a classification. Files with a label per point are a segmentation. The file has a
comment for each setting. Sizes come from the measured spacing of the points.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from math import floor
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pointvar.data.inspect import InspectedFile, Inspection

SPACINGS = 2.5
"""Radius of the first level in distances of a point to the nearest: about the side of a grid as dense."""
INNER = 0.6
"""Radius of the sphere that is predicted, as a share of that of the sphere that is seen."""
STEPS = 4000
"""Steps of the optimiser that a training should have, about."""
SHARE = 0.15
"""Of the files, for validation."""
GROUND = {None: 40, "metre": 40, "foot": 130, "US survey foot": 130}
"""Side of a window wider than a house, by unit."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="folder of your files, or one scene")
    parser.add_argument("--output", type=Path, default=Path("mine.yaml"), help="file to write (mine.yaml)")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument(
        "--task",
        choices=("classification", "segmentation"),
        help="what to learn, if the layout of the folder leaves it open",
    )
    parser.add_argument("--label", help="column of the labels per point, if it has a name of its own")
    parser.add_argument("--points", type=int, help="points of a sphere (8192) or of an object (1024)")


def run(arguments: argparse.Namespace) -> None:
    output = arguments.output
    if output.exists() and not arguments.force:
        raise ValueError(f"{output} is there already: choose another name by --output, or give --force")
    if arguments.points is not None and arguments.points < 1:
        raise ValueError(f"--points must be positive, got {arguments.points}")

    from pointvar.atomic import write_atomically
    from pointvar.data import inspect_folder

    sphere, num_points = arguments.points or 8192, arguments.points or 1024
    found = inspect_folder(arguments.path, arguments.task, arguments.label, sphere, num_points, show=True)
    print(summary(found))
    write_atomically(output, settings(found, num_points if found.task == "classification" else sphere))
    print(f"\nwrote {output}; look through it, then: pointvar train {quote(str(output))}")


# What is printed


def summary(found: Inspection) -> str:
    """What a folder holds, as a short table, and what to look at."""
    from pointvar.report.tables import plain

    kinds = ", ".join(f"{count} {kind}" for kind, count in found.formats.items())
    sides = [f"{side:.4g}" for side in found.high - found.low]
    unit = f" {found.unit}" if found.unit else ""
    columns = [
        name if column.low == column.high else f"{name} {plain(column.low)} to {plain(column.high)}"
        for name, column in found.columns.items()
        if column.count and not column.low == column.high == 0
    ]
    rows = {
        "task": found.task,
        "files": f"{len(found.files):,} ({kinds})" + (", in train and test" if found.splits else ""),
        "points": f"{found.points:,}",
        "extent": f"{' x '.join(sides)}{unit or '; the files do not say in which unit'}",
        "spacing": f"{found.spacing:.3g}{unit} from a point to the nearest",
        "columns": ", ".join(columns) or "coordinates only",
        "labels": f"column {found.label}" if found.label else "names of folders",
    }
    if found.task == "classification":
        del rows["extent"]
        rows["points"] = f"{median(file.points for file in found.read):,.0f} in a file, sampled on meshes"
        rows["spacing"] = f"{found.spacing:.3g} from a point to the nearest, in a box from -1 to 1"
    lines = [f"{name:8}  {text}" for name, text in rows.items()]
    total, noun = sum(found.counts.values()) or 1, _noun(found)
    width = max(map(len, found.classes.values()), default=5)
    lines += ["", f"{'label':>8}  {'class':{width}}  {noun:>12}  share"]
    lines += [
        f"{code:8}  {name:{width}}  {found.counts[code]:12,}  {found.counts[code] / total:5.1%}"
        for code, name in found.classes.items()
    ]
    if found.suspicious:
        lines += ["", "look at:", *(f"- {sentence}" for sentence in found.suspicious)]
    return "\n".join(lines)


def _noun(found: Inspection) -> str:
    return "files" if found.task == "classification" else "points"


# What is written


def settings(found: Inspection, points: int) -> str:
    """The settings of a training on what was found, as YAML with comments.

    Args:
        points: of a sphere of a segmentation, or of a cloud of a classification.
    """
    from pointvar import __version__
    from pointvar.recipes import RECIPES

    recipe = RECIPES["norm-free"]
    make = _segmentation if found.task == "segmentation" else _classification
    sections = make(found, points)
    reasons = {
        "norm": "the recipe norm-free: no normalisation of features, ...",
        "unit_response": "... convolutions that do not depend on the density of points, ...",
        "precondition": "... and weights in coordinates in which basis functions do not overlap",
        "method": "weights that keep the variance, measured on the first batches",
        "rate": "largest learning rate; the first thing to change if the loss does not fall",
        "schedule": "it rises during the warm-up and falls along a cosine",
        "warmup": "share of all steps",
        "agc": "clips gradients by the norm of their weights",
    }
    for section in ("model", "init", "optimizer"):
        for name, value in recipe[section].items():
            sections.setdefault(section, []).append((name, value, reasons.get(name, "")))
    top = sections.pop("")
    lines = [
        f"# Settings of a training on {_yaml(str(found.root))}, by pointvar {__version__} init.",
        "# Explained by: pointvar train --settings",
        "# Changed for one run by: pointvar train THIS_FILE --epochs=10 --optimizer.rate=0.01",
    ]
    for section, entries in sections.items():
        lines += [f"{section}:", *(line for entry in entries for line in _written(*entry, indent="  "))]
    lines += [line for entry in top for line in _written(*entry)]
    return "\n".join(lines) + "\n"


Entry = tuple[str, Any, str]
"""Name, value and comment of a setting."""
Entries = dict[str, list[Entry]]
"""By section."""


def _segmentation(found: Inspection, points: int) -> Entries:
    context, batch_size = _round(found.sphere), 2
    inside = points * INNER**2  # of points on a surface
    crops = int(min(max(found.points / inside, 64), 2000))
    total = sum(found.counts.values())
    classes = {
        code: (name, f"{found.counts[code]:,} points, {found.counts[code] / total:.1%}")
        for code, name in found.classes.items()
    }
    never = [code for code, name in found.classes.items() if name == "never classified" and len(classes) > 2]
    features = _features(found)
    data = [
        *_files(found),
        ("label", found.label, "column of the labels"),
        ("classes", classes, "names by label in the files: labels of one name are one class"),
        ("ignore", never, "labels or names that are neither learned nor evaluated"),
        ("features", features, _scales(found, features)),
    ]
    if "height" in features:
        data.append(("ground", GROUND[found.unit], "window of the ground, wider than the largest building"))
    data += [
        ("validation", _validation(found), "the best network is chosen on it"),
        ("context", context, f"radius of the spheres that the network sees: about {points:,} points"),
        ("radius", _round(INNER * context), "radius of the spheres in which it predicts"),
        ("crops", crops, "spheres per epoch"),
        ("batch_size", batch_size, "spheres per step"),
        ("mirror", True, "mirrors spheres at random; they are also rotated and scaled"),
    ]
    model = [
        ("network", "unet", ""),
        *_levels(found, 4, 32, context),
        ("first_reach", 1.5, "reach of the first convolution, from the points to the first level"),
    ]
    return _sections(found, data, model, crops / batch_size)


def _classification(found: Inspection, points: int) -> Entries:
    features, batch_size = _features(found), 8
    sizes = [(name, found.counts[index]) for index, name in found.classes.items()]
    counts = [(name, f"{size:,} file{'s' * (size != 1)}") for name, size in sizes]
    data = [
        *_files(found),
        ("classes", counts, "names of folders"),
        ("features", features, _scales(found, features)),
        ("validation", _validation(found), "the best network is chosen on it"),
        ("num_points", points, "points of a cloud, drawn anew in each epoch"),
        ("box", True, "scales each cloud to a box from -1 to 1: radii are in units of it"),
        ("up", "z", "axis that points upwards: clouds are rotated about it at random"),
        ("batch_size", batch_size, "clouds per step"),
    ]
    model = [
        ("network", "classifier", ""),
        *_levels(found, 3, 64, 2.0),
        ("head", 256, "hidden units behind the last level"),
    ]
    return _sections(found, data, model, len(found.files) / batch_size)


def _sections(found: Inspection, data: list[Entry], model: list[Entry], steps: float) -> Entries:
    """What both tasks share; ``steps`` are those of an epoch."""
    counts = [count for count in found.counts.values() if count]
    uneven = max(counts) > 5 * min(counts)
    optimizer = [("class_weights", uneven, "rare classes weigh more in the loss")]
    epochs = int(min(max(STEPS / steps, 10), 200))
    every = max(epochs // 20, 1)
    epochs -= epochs % every  # the last network is evaluated, too
    top = [
        ("epochs", epochs, f"about {steps * epochs:,.0f} steps"),
        ("evaluate_every", every, "epochs between evaluations on the part for validation"),
    ]
    return {"data": data, "model": model, "init": [], "optimizer": optimizer, "": top}


def _levels(found: Inspection, count: int, channels: int, size: float) -> list[Entry]:
    """At most so many levels: the last ones have to have several points within a sphere of this size."""
    first = _round(SPACINGS * found.spacing)
    radii = [float(f"{first * 2**level:.4g}") for level in range(count)]
    radii = [radius for level, radius in enumerate(radii) if level < 2 or 3 * radius <= size]
    told = f"{SPACINGS:g} times the measured spacing of {found.spacing:.3g}, then doubled"
    return [
        ("channels", [channels * 2**level for level in range(len(radii))], "features by level"),
        ("radii", radii, f"distances between points by level: {told}"),
    ]


def _files(found: Inspection) -> list[Entry]:
    splits = ", in train and test" if found.splits else ""
    unlabelled = found.task == "segmentation" and any(not file.labels for file in found.read)
    errors = "skip" if found.bad or unlabelled else "raise"
    return [
        ("name", "folder", "files of your own"),
        ("path", str(found.root.resolve()), f"{len(found.files):,} files{splits}"),
        ("task", found.task, ""),
        ("errors", errors, "files that cannot be used: skip them with a warning, or raise an error"),
    ]


def _features(found: Inspection) -> list[str]:
    """The constant, and what all files have and what is not the same everywhere."""
    from pointvar.data.inspect import FEATURES, LAS

    known = {name: found.columns[name] for name in FEATURES if name in found.columns}
    useful = [
        name
        for name, column in known.items()
        if column.files == len(found.read) and column.low < column.high and not column.missing
    ]
    aerial = found.task == "segmentation" and found.unit in GROUND
    aerial = aerial and all(Path(file.name).suffix.lower() in LAS for file in found.read)
    return ["one", *useful, *(["height"] if aerial else [])]


def _scales(found: Inspection, features: list[str]) -> str:
    from pointvar.report.tables import plain

    columns = {name: found.columns[name] for name in features if name in found.columns}
    measured = [f"{name} {plain(c.mean)} ± {plain(c.deviation)}" for name, c in columns.items()]
    told = "one is the constant 1"
    told += "; height is above the ground" if "height" in features else ""
    if measured:
        told += f"; scaled by median and spread (mean ± deviation: {', '.join(measured)})"
    return told


def _validation(found: Inspection) -> float | list[str] | dict[str, list[float]]:
    """Files that have many of the classes while half of each remains in the others; a region, if there is one
    file; a share, if not all were read; folders named test, if there are any."""
    tests = [name for name in found.files if Path(name).parent.name == "test" and not found.splits]
    if 0 < len(tests) < len(found.files):
        return ["test/*"]
    if found.task == "classification" or len(found.read) + len(found.bad) < len(found.files):
        return 0.1
    trained = [file for file in found.read if not found.splits or Path(file.name).parts[0] == "train"]
    files = [file for file in trained if file.labels]
    if len(files) < 2:
        low, high = found.low[:2], found.high[:2]
        axis = int((high - low).argmax())
        low[axis] = high[axis] - 0.2 * (high - low)[axis]
        return {"min": [floor(value) for value in low], "max": [floor(value) + 1 for value in high]}
    total = sum(found.counts.values())
    left = Counter(found.counts) - sum((Counter(f.labels) for f in found.read if f not in files), Counter())
    least = {code: count / 2 for code, count in left.items()}  # to remain for training
    chosen: list[InspectedFile] = []
    covered: set[int] = set()

    def worth(file: InspectedFile) -> tuple[bool, int, float]:
        spared = all(left[code] - count >= least.get(code, 0) for code, count in file.labels.items())
        shares = {code: count / file.points for code, count in file.labels.items()}
        unlike = sum(abs(shares.get(code, 0.0) - count / total) for code, count in found.counts.items())
        return spared, len(file.labels.keys() - covered), -unlike

    while len(chosen) < max(1, round(SHARE * len(files))):
        best = max((file for file in files if file not in chosen), key=worth)
        chosen.append(best)
        covered |= best.labels.keys()
        left.subtract(best.labels)
    return sorted(file.name for file in chosen)


def _round(value: float) -> float:
    """Two digits are enough for a size."""
    return float(f"{value:.2g}")


def _written(name: Any, value: Any, comment: str, indent: str = "") -> list[str]:
    """A setting as lines of YAML; pairs in a list or a dictionary are values with comments of their own."""
    begin, note = f"{indent}{name}:", f"  # {comment}" if comment else ""
    if isinstance(value, dict) and isinstance(next(iter(value.values()), None), tuple):
        rows = [f"{indent}  {key}: {_yaml(item)}  # {told}" for key, (item, told) in value.items()]
        return [begin + note, *rows]
    if isinstance(value, list) and isinstance(next(iter(value), None), tuple):
        return [begin + note, *(f"{indent}  - {_yaml(item)}  # {told}" for item, told in value)]
    return [f"{begin} {_yaml(value)}{note}"]


def _yaml(value: Any) -> str:
    """A value on one line; what is not plain words is quoted, whatever a reader of YAML takes it for."""
    import yaml

    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(item)}' for key, item in value.items())}}}"
    words = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][\w/.-]*( [\w/.-]+)*", value)
    return value if words and yaml.safe_load(value) == value else json.dumps(value, ensure_ascii=False)
