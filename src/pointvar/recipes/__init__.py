"""Named recipes for the data sets of the paper, for built-in data and for your own. Two are for any data:
``norm-free``, the default, and ``published``, the paper's training.

Each is a YAML file in this folder, with the settings of ``pointvar.train.Config`` that differ from defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RECIPES: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text("utf8")) for path in sorted(Path(__file__).parent.glob("*.yaml"))
}
"""Name -> settings, by section."""
