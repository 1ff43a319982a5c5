"""From files to a report: runs of training, results of experiments, clouds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pointvar.data.formats import FORMATS, read_points
from pointvar.report.page import IMAGES, Report
from pointvar.report.results import read, show
from pointvar.report.runs import IN_A_RUN, Run, compare, is_run, show_run

NUMBERS = {".json", ".jsonl", ".csv"}
CLOUDS = set(FORMATS) - {".txt", ".csv"}  # which hold many things
ASIDE = {".html", ".lock", "classes.txt"}
"""Pages, what keeps two processes apart, and names of classes: not shown, and not missed."""
KNOWN = "directories of runs, results of experiments (Markdown, JSON, JSON lines, CSV, SVG, PNG), clouds"


def gather(paths: Sequence[str | Path], title: str | None = None) -> Report:
    """A report on runs, results and clouds.

    Args:
        paths: directories of training runs; folders or files of results; reports of initialisations and
            variances as JSON; clouds, whose columns ``label`` and ``prediction`` are shown, with names of
            classes from a ``classes.txt`` beside them.
        title: of the page; default: the names of the paths.

    Folders are searched to any depth. What is given by name must be known; what is merely found in a folder
    and is not known, is listed at the end of the report.
    """
    if not paths:
        raise ValueError("a report needs at least one run, folder or file")
    given = [Path(path) for path in paths]
    runs, sections, left_out = list[Path](), dict[tuple[Path, str], list[Path]](), list[Path]()
    for path in given:
        if not path.exists():
            raise FileNotFoundError(f"{path}: there is no such file or folder")
        if path.is_file() and not _is_known(path):
            raise ValueError(f"{path}: nothing is known of this kind of file; a report takes {KNOWN}")
        for file in _files(path, runs):
            if _is_known(file):
                sections.setdefault((file.parent, file.stem), []).append(file)
            elif not {file.suffix, file.name} & ASIDE:
                left_out.append(file)
    if not runs and not sections:
        raise ValueError(f"nothing to report in {', '.join(map(str, given))}; a report takes {KNOWN}")
    report = Report(title or ", ".join(path.resolve().name for path in given))
    loaded = [Run(folder, _short_name(folder, runs)) for folder in runs]
    if len(loaded) > 1:
        compare(report, loaded)
    for run in loaded:
        show_run(report, run)
    for (folder, name), files in sections.items():
        report.section(f"{folder.name}: {name}" if folder in runs else name)
        _show_files(report, {file.suffix.lower(): file for file in files})
    if left_out:
        report.section("Not shown")
        report.text(f"Files of which nothing is known: {', '.join(map(str, left_out))}")
    return report


def _files(path: Path, runs: list[Path]) -> list[Path]:
    """All files to any depth, but those of the runs, which are added to the list of runs."""
    if path.is_file():
        return [path]
    own = IN_A_RUN if is_run(path) else set()
    if own:
        runs.append(path)
    inside = sorted(path.iterdir(), key=lambda item: (item.stem.lower() != "readme", item))
    kept = [item for item in inside if not item.name.startswith(".") and item.name not in own]
    return [file for item in kept for file in _files(item, runs)]


def _show_files(report: Report, files: dict[str, Path]) -> None:
    """Files of one name, such as a picture and its numbers: a caption, one picture, text, and the rest."""
    clouds = [file for suffix, file in files.items() if suffix in CLOUDS or _is_text_cloud(file)]
    contents = {s: read(file) for s, file in files.items() if s in NUMBERS and file not in clouds}
    if isinstance(contents.get(".json"), dict) and "caption" in contents[".json"]:
        report.text(str(contents[".json"].pop("caption")))
    for suffix in [suffix for suffix in IMAGES if suffix in files][:1]:
        report.image(files[suffix])
    if ".md" in files:
        report.markdown(read(files[".md"]))
    for content in contents.values():
        show(report, content)
    for file in clouds:
        _show_cloud(report, file)


def _show_cloud(report: Report, path: Path) -> None:
    arrays = read_points(path)
    labels = arrays.get("label")
    found = [arrays[name] for name in ("prediction", "predictions", "predicted") if name in arrays]
    predictions = found[0] if found else None
    if predictions is None and "confidence" in arrays:  # `pointvar predict` gives its labels with one
        labels, predictions = None, labels
    values = {str(name): arrays[name] for name in ("confidence", "density") if name in arrays}
    beside, colors = path.parent / "classes.txt", arrays.get("colors")
    classes = _read_classes(beside) if beside.is_file() else None
    report.cloud(
        arrays["points"], labels, predictions, classes, colors=colors, values=values, title=path.name
    )


def _read_classes(path: Path) -> list[str]:
    """Names of classes, one per line, with their numbers or without; a number that has no name is its own."""
    lines = [line.strip() for line in read(path).splitlines() if line.strip()]
    pairs = [line.split(maxsplit=1) for line in lines]
    if not all(len(pair) == 2 and pair[0].isdecimal() and len(pair[0]) < 4 for pair in pairs):
        return lines
    names = {int(number): name for number, name in pairs}
    return [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]


def _short_name(folder: Path, folders: Sequence[Path]) -> str:
    """As much of the path of a run as tells it from the others."""
    parts = folder.resolve().parts
    others = [other.resolve().parts for other in folders if other != folder]
    lengths = (n for n in range(1, len(parts)) if not any(other[-n:] == parts[-n:] for other in others))
    return "/".join(parts[-next(lengths, len(parts)) :])


def _is_known(path: Path) -> bool:
    return path.suffix.lower() in NUMBERS | CLOUDS | set(IMAGES) | {".md"}


def _is_text_cloud(path: Path) -> bool:
    if path.suffix.lower() != ".csv":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return {"x", "y", "z"} <= {name.strip(' "#\n').lower() for name in file.readline().split(",")}
