"""Runs the walk through docs/own-data.md on the aerial survey of the data folder, and stores what it prints.

    python benchmarks/own_data.py ahn3_delft.npz      # some minutes; stores results/own_data.json

The page shows lines of it; a test compares them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "own_data.json"
SURVEY = {
    "data.path": "scans",
    "output": "runs/survey",
    "data.classes": "{1: vegetation, 2: ground, 6: building, 9: water, 26: bridge}",
    "data.features": "[one, intensity, height]",
    "data.validation": "[tile_00.laz, tile_22.laz]",
    "data.radius": "8",
    "data.context": "12",
    "model.radii": "[1, 2, 4]",
    "data.crops": "60",
    "epochs": "8",
}
COMMANDS = {
    "init": ["init", "scans", "--output=mine.yaml"],
    "train segment": ["train", "segment", *(f"--{name}={value}" for name, value in SURVEY.items())],
    "predict": ["predict", "runs/survey", "scans", "--output=labelled"],
    "train mine": ["train", "mine.yaml", "--epochs=5", "--evaluate_every=1", "--output=runs/mine"],
    "evaluate": ["evaluate", "runs/mine"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="the survey, ahn3_delft.npz")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="JSON (benchmarks/results/own_data.json)"
    )
    arguments = parser.parse_args()
    printed = {}
    with tempfile.TemporaryDirectory() as folder:
        cut = [sys.executable, str(ROOT / "tests/aerial.py"), str(arguments.source.resolve()), "scans"]
        subprocess.run(cut, cwd=folder, check=True, capture_output=True)
        for name, command in COMMANDS.items():
            call = [sys.executable, "-m", "pointvar.cli", *command]
            run = subprocess.run(call, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
            printed[name] = run.stdout.splitlines()
    arguments.output.write_text(json.dumps(printed, indent=1, ensure_ascii=False) + "\n", "utf8")


if __name__ == "__main__":
    main()
