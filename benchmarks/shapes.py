"""How far simple histograms get on the built-in shapes: a random forest on distances, heights and radii.

    python benchmarks/shapes.py --output benchmarks/results/shapes.json

The forest is trained on ten times as many shapes as the small recipes train a network on. If it solved the
data, they would not be worth a network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import sklearn
from sklearn.ensemble import RandomForestClassifier

from pointvar.data import NormalizeBox, Shapes
from pointvar.progress import track

BINS, PAIRS, TREES, POINTS = 32, 2000, 300, 512


def histograms(points: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Of distances of random pairs, of each coordinate, of distances from the axis and the centre."""
    first, second = points[random.integers(len(points), size=(2, PAIRS))]
    centred = points - points.mean(0)
    values = {
        4.0: [np.linalg.norm(first - second, axis=1)],
        1.0: list(points.T),
        2.0: [np.linalg.norm(centred[:, :2], axis=1), np.linalg.norm(centred, axis=1)],
    }
    return np.concatenate(
        [
            np.histogram(each, BINS, (-end if end == 1 else 0, end))[0] / len(each)
            for end, every in values.items()
            for each in every
        ]
    )


def features(split: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Histograms and classes of so many shapes."""
    shapes, box, random = Shapes(size, split, POINTS), NormalizeBox(), np.random.default_rng(0)
    samples = [box(shapes[i], None) for i in track(range(size), split)]
    rows = [histograms(sample.points.numpy(), random) for sample in samples]
    return np.stack(rows), np.array([sample.label for sample in samples])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=1500)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/shapes.json"))
    arguments = parser.parse_args()
    train, test = features("train", arguments.train), features("test", arguments.test)
    forest = RandomForestClassifier(TREES, random_state=0, n_jobs=1).fit(*train)
    result = {
        "accuracy": round(float(forest.score(*test)), 4),
        "classes": int(train[1].max()) + 1,
        "train": arguments.train,
        "test": arguments.test,
        "points": POINTS,
        "trees": TREES,
        "histograms": f"{train[0].shape[1]} numbers",
        "scikit-learn": sklearn.__version__,
    }
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
