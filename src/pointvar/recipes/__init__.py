"""Named recipes: the paper's, small ones on built-in data, and ``norm-free``, which goes over any of them.

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
