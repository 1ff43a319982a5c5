"""From files of results to a report: runs of training, figures and grids of experiments, clouds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from pointvar.data.formats import FORMATS, read_points
from pointvar.report.markdown import show_markdown
from pointvar.report.numbers import show_json, show_rows
from pointvar.report.page import IMAGES, Report
from pointvar.report.read import read_classes, read_csv, read_json, read_lines, read_text
from pointvar.report.runs import IN_A_RUN, Run, compare, is_run, show_run

TABLES = {".json", ".jsonl", ".csv"}
CLOUDS = set(FORMATS) - {".txt", ".csv"}  # which hold many things
KNOWN = "directories of runs, results of `pointvar reproduce` (JSON, JSON lines, CSV, SVG, PNG), clouds"


def gather(paths: Sequence[str | Path], title: str | None = None) -> Report:
    """A report on runs, results and clouds.

    Args:
        paths: directories of training runs; folders or files that ``pointvar reproduce`` has written; reports
            of initialisations and variances as JSON; clouds, whose columns ``label`` and ``prediction`` are
            shown, with names of classes from a ``classes.txt`` beside them.
        title: of the page; default: the names of the paths.

    Folders are searched to any depth. What is given by name must be known; what is merely found in a folder
    and is not known, is listed at the end of the report.
    """
    if not paths:
        raise ValueError("a report needs at least one run, folder or file")
    given = [Path(path) for path in paths]
    for path in given:
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file or folder")
        if path.is_file() and not _is_known(path):
            raise ValueError(f"{path}: nothing is known of this kind of file; a report takes {KNOWN}")
    runs, groups, left_out = list[Path](), list[_Group](), list[Path]()
    for path in given:
        if path.is_dir():
            _search(path, runs, groups, left_out)
        else:
            groups.append(_Group(path.stem, [path]))
    if not runs and not groups:
        raise ValueError(f"nothing to report in {', '.join(map(str, given))}; a report takes {KNOWN}")
    report = Report(title or ", ".join(path.resolve().name for path in given))
    read = [Run.read(path, _common(path, runs)) for path in runs]
    if len(read) > 1:
        compare(report, read)
    for run in read:
        show_run(report, run)
    for group in groups:
        group.show(report)
    if left_out:
        report.section("Not shown")
        report.text(f"Files of which nothing is known: {', '.join(str(path) for path in left_out)}")
    return report


class _Group:
    """Files of one name in one folder, such as a picture and its numbers: a section."""

    def __init__(self, name: str, files: list[Path]) -> None:
        self.name, self.files = name, files

    def show(self, report: Report) -> None:
        report.section(self.name)
        pictures = {path.suffix.lower(): path for path in self.files if path.suffix.lower() in IMAGES}
        if pictures:
            report.image(next(pictures[suffix] for suffix in IMAGES if suffix in pictures))
        for path in sorted(self.files, key=lambda path: path.suffix.lower() != ".md"):
            if path.suffix.lower() in TABLES and not _is_text_cloud(path):
                _show_table(report, path)
            elif path.suffix.lower() in CLOUDS or _is_text_cloud(path):
                _show_cloud(report, path)
            elif path.suffix.lower() == ".md":
                show_markdown(report, read_text(path))


def _search(folder: Path, runs: list[Path], groups: list[_Group], left_out: list[Path]) -> None:
    inside_run = is_run(folder)
    if inside_run:
        runs.append(folder)
    by_name: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (path.stem.lower() != "readme", path)):
        if path.name.startswith(".") or (inside_run and path.name in IN_A_RUN):
            continue
        if path.is_dir():
            _search(path, runs, groups, left_out)
        elif _is_known(path):
            by_name.setdefault(path.stem, []).append(path)
        elif not _is_told_elsewhere(path):
            left_out.append(path)
    groups += [
        _Group(f"{folder.name}: {name}" if inside_run else name, files) for name, files in by_name.items()
    ]


def _is_known(path: Path) -> bool:
    return path.suffix.lower() in TABLES | CLOUDS | set(IMAGES) | {".md"}


def _is_told_elsewhere(path: Path) -> bool:
    """Names of classes, the page of a Markdown file, and what keeps two processes from the same cells."""
    beside = {".html": ".md", ".lock": ".jsonl"}.get(path.suffix)
    return path.name == "classes.txt" or (beside is not None and path.with_suffix(beside).is_file())


def _common(path: Path, paths: Sequence[Path]) -> str:
    """The name of a run: as much of its path as tells it from the others."""
    parts = path.resolve().parts
    others = [other.resolve().parts for other in paths if other != path]
    length = 1
    while length < len(parts) and any(other[-length:] == parts[-length:] for other in others):
        length += 1
    return "/".join(parts[-length:])


def _show_table(report: Report, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".json":
        content = read_json(path)
        if isinstance(content, dict) and isinstance(content.get("caption"), str):
            report.text(content.pop("caption"))  # what a figure shows
        show_json(report, content)
    else:
        show_rows(report, read_csv(path) if suffix == ".csv" else read_lines(path))


def _is_text_cloud(path: Path) -> bool:
    if path.suffix.lower() != ".csv":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return {"x", "y", "z"} <= {name.strip(' "#\n').lower() for name in file.readline().split(",")}


def _show_cloud(report: Report, path: Path) -> None:
    arrays = read_points(path)
    labels = arrays.get("label")
    found = [arrays[name] for name in ("prediction", "predictions", "predicted") if name in arrays]
    predictions = found[0] if found else None
    if (
        predictions is None and "confidence" in arrays
    ):  # `pointvar predict` gives its labels with a confidence
        labels, predictions = None, labels
    values: dict[str, ArrayLike] = {n: arrays[n] for n in ("confidence", "density") if n in arrays}
    beside = path.parent / "classes.txt"
    classes = read_classes(beside) if beside.is_file() else None
    report.cloud(
        arrays["points"],
        labels,
        predictions,
        classes,
        colors=arrays.get("colors"),
        values=values,
        title=path.name,
    )
