"""Tables and picture of what `convolution.py` has measured."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from harness import table
from peers import PASSES

COLUMNS = {
    "limits": {
        "method": "method",
        "order": "points are",
        "points": "points",
        "channels": "C = O",
        "pass": "pass",
        "ms": "ms",
        "gflops": "GFLOP/s",
        "percent": "% of limit",
        "target": "target",
        "met": "met",
    },
    "peers": {
        "points": "points",
        "layer": "layer",
        "pass": "pass",
        "ours": "pointvar (ms)",
        "peer": "peer",
        "theirs": "peer (ms)",
        "ratio": "times faster",
        "target": "target",
        "met": "met",
    },
    "memory": {"side": "side", "mb": "MB", "ratio": "times pointvar", "target": "at least", "met": "met"},
    "growth": {
        "points": "points",
        "ms": "ms",
        "us_per_point": "µs per point",
        "mb": "MB",
        "bytes_per_point": "bytes per point",
    },
    "methods": {
        "method": "method",
        "forward": "forward (ms)",
        "forward_ratio": "times KPConvN",
        "both": "forward+backward (ms)",
        "both_ratio": "times KPConvN ",
        "limit": "at most",
        "met": "met",
    },
    "unit_response": {
        "pass": "pass",
        "without": "without (ms)",
        "with": "with (ms)",
        "percent": "more (%)",
        "limit": "at most",
        "met": "met",
    },
}
TITLES = {
    "limits": "Against the matrix product:",
    "peers": "Against plain torch code:",
    "memory": "Peak memory of forward+backward above inputs, outputs, gradients and parameters, "
    "{points:,} points, 64 → 64:",
    "growth": "KPConvN 64 → 64, forward+backward, as the cloud grows:",
    "methods": "The named methods, {points:,} points, {channels} → {channels}:",
    "unit_response": "Unit response, KPConvN, as above:",
}


def rows_of(results: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of one table, from all sections that were measured."""
    return [row for section in results.values() for row in section["tables"].get(name, [])]


def markdown(results: dict[str, Any]) -> str:
    facts: dict[str, Any] = {}
    loads = []
    for section in results.values():
        facts |= section["machine"]
        loads.append(section["machine"]["load_before"])
    # Sections may have been measured on different days, and processors.
    runs = {
        f"{section['machine']['instruction_set'] or 'plain'} on {section['machine']['date']}"
        for section in results.values()
    }
    peaks = [row["peak"] for row in rows_of(results, "limits")]
    text = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, {facts['system']}; "
        f"torch {facts['torch']}, pointvar {facts['pointvar']}, {facts['backend']} backend "
        f"({', '.join(sorted(runs))}); "
        + (f"matrix product {median(peaks):.0f} GFLOP/s; " if peaks else "")
        + f"load before a section at most {max(loads)}."
    ]
    for name, title in TITLES.items():
        if rows := rows_of(results, name):
            text += [title.format(**rows[0]), table(rows, COLUMNS[name])]
            if name == "limits":
                text.append("![GFLOP/s of each row under the peak of the matrix product](img/roofline.png)")
    if skipped := rows_of(results, "skipped"):
        text.append("Left out: " + "; ".join(dict.fromkeys(row["what"] for row in skipped)) + ".")
    return "\n\n".join(text)


def draw(results: dict[str, Any], path: Path) -> None:
    """GFLOP/s of each measured row under the peak of the matrix product."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = rows_of(results, "limits")
    peak = median(row["peak"] for row in rows)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), sharey=True, constrained_layout=True)
    sizes = list(dict.fromkeys((row["points"], row["channels"]) for row in rows))
    styles = list(dict.fromkeys((row["method"], row["order"]) for row in rows))
    colours = {"KPConvN": "tab:blue", "MCConv": "tab:orange"}
    for axis, part in zip(axes, PASSES, strict=True):
        axis.axhline(peak, color="black", lw=1.2)
        axis.annotate("matrix product", (0.01, peak), (0, 3), ("axes fraction", "data"), "offset points")
        for place, (method, order) in enumerate(styles):
            values = {
                (r["points"], r["channels"]): r["gflops"]
                for r in rows
                if (r["method"], r["order"], r["pass"]) == (method, order, part)
            }
            x = [i + 0.2 * (place - (len(styles) - 1) / 2) for i in range(len(sizes))]
            hatch = "" if order == "unsorted" else "///"
            heights = [values[size] for size in sizes]
            label = f"{method}, {order}"
            axis.bar(x, heights, 0.18, color=colours[method], hatch=hatch, ec="white", label=label)
        names = [f"{points / 1000:.0f}k\n{c} → {c}" for points, c in sizes]
        axis.set_xticks(range(len(sizes)), names)
        axis.set(title=part, xlabel="points and channels", ylim=(0, 1.15 * peak))
    axes[0].set_ylabel("GFLOP/s")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
