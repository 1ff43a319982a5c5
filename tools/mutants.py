"""Mutation testing: changes the source in one place at a time, and shows the changes that no test notices.

    python tools/mutants.py                             # a sample of each module in mutants.yaml
    python tools/mutants.py nn estimator.py --sample 0  # all mutants of these
    python tools/mutants.py init/walk.py --seed 1       # another sample

The operators are those of cosmic-ray, and three of our own that fit code made of tensor calls: a statement is
removed, a keyword argument is dropped, a method call is dropped (``x.detach()`` becomes ``x``).
Mutants are made in a copy of the tree. Each runs in a fork of this process, which has imported torch already,
and stops at the first test that fails. ``mutants.yaml`` says which tests belong to a module, and which
mutants may live, and why.

Each result is written at once, so that a run which was stopped goes on where it was. A mutant that lived is
tried again when its tests have changed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import OPERATOR_PROVIDERS
from parso.python.tree import Keyword, Name

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Path(__file__).with_suffix(".yaml")
PACKAGE = Path("src/pointvar")
PRELOADED = (
    "torch",
    "pytest",
    "hypothesis.extra.numpy",
    "torch._dynamo",
    "lightning.pytorch",
    "jsonargparse",
)
# An editable install finds the package before PYTHONPATH does, and so not the copy.
FORGET_INSTALLED = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in repr(f)]
"""


# Operators


class OwnOperator(Operator):
    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class RemoveStatement(OwnOperator):
    """``f(x)``, ``raise error``, ``x = f(x)`` or ``y.x = f(x)`` as a whole statement becomes ``pass``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.parent is not None and node.parent.type == "simple_stmt" and self._can_be_missed(node):
            yield node.start_pos, node.end_pos

    @staticmethod
    def _can_be_missed(node: Any) -> bool:
        """Without the first assignment to a name nothing runs: that says nothing about the tests."""
        if node.type != "expr_stmt":
            return node.type in ("atom_expr", "raise_stmt")
        left, right = node.children[0], node.children[-1].get_code()
        if left.type == "atom_expr":
            return not left.get_code().strip().startswith("self.")
        return left.type == "name" and (node.children[1] != "=" or left.value in right)

    def mutate(self, node: Any, index: int) -> Any:
        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)


class DropArgument(OwnOperator):
    """``f(x, a=b)`` becomes ``f(x, **{})``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "argument" and len(node.children) == 3 and node.children[1] == "=":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return Name("**{}", node.start_pos, prefix=node.get_first_leaf().prefix)


class DropCall(OwnOperator):
    """``x.f(...)`` becomes ``x``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        spans = [(node.children[i].start_pos, node.children[i + 1].end_pos) for i in self._calls(node)]
        return iter(spans)  # all, before the first is mutated

    def mutate(self, node: Any, index: int) -> Any:
        i = self._calls(node)[index]
        del node.children[i : i + 2]
        return node

    @staticmethod
    def _calls(node: Any) -> list[int]:
        if node.type not in ("atom_expr", "power"):
            return []
        parts = node.children
        starts = [p.children[0].value if p.type == "trailer" else "" for p in parts]
        calls = [i for i in range(1, len(parts) - 1) if (starts[i], starts[i + 1]) == (".", "(")]
        if not calls or parts[0].type != "name":
            return calls
        base = parts[0].value
        if base in ("self", "super") or base in _imported(parts[0].get_root_node()):
            return [i for i in calls if "(" in starts[:i]][base == "super" :]  # nn.Linear(2, 2) is never nn
        return calls


@functools.lru_cache(maxsize=4)
def _imported(module: Any) -> set[str]:
    return {name.value for part in module.iter_imports() for name in part.get_defined_names()}


def operators() -> Iterator[tuple[str, str, type[Operator]]]:
    """Name, family and type. Of one family, one mutant is made at each place."""
    provider = OPERATOR_PROVIDERS["core"]
    for name in provider:
        # Variables are replaced by given names only; "|" is a type here, not an operation.
        if not name.startswith("Variable") and "BitOr" not in name:
            yield name, name.split("_")[0], provider[name]
    for kind in (RemoveStatement, DropArgument, DropCall):
        yield kind.__name__, kind.__name__, kind


# Mutants


@dataclass
class Mutant:
    file: str
    line: int
    operator: str
    occurrence: int
    change: str
    source: str
    """Of the file, a digest."""

    def code(self) -> str:
        """The file with the change."""
        kind = next(kind for name, _, kind in operators() if name == self.operator)
        source = (ROOT / PACKAGE / self.file).read_text("utf8")
        return MutationVisitor.mutate_code(source, kind(), self.occurrence)


def mutants_of(file: str, count: int, rng: random.Random) -> list[Mutant]:
    """Mutants of a file that differ from it in more than annotations and messages, at most one for each place
    and family of operators: ``count`` of them, or all if that is 0."""
    source = (ROOT / PACKAGE / file).read_text("utf8")
    places: dict[tuple[str, Any], list[tuple[str, type[Operator], int]]] = {}
    tree = get_ast(source)
    for name, family, kind in operators():
        for occurrence, position in enumerate(_positions(tree, kind())):
            places.setdefault((family, position), []).append((name, kind, occurrence))
    plain, found = _meaning(source), list[Mutant]()
    shuffled = sorted(places, key=lambda place: (place[1], place[0]))
    rng.shuffle(shuffled)
    for place in shuffled:
        if count and len(found) == count:
            break
        position = place[1]
        name, kind, occurrence = rng.choice(places[place])
        changed = MutationVisitor.mutate_code(source, kind(), occurrence)
        if changed is not None and _meaning(changed) not in (None, plain):
            line = position[0][0]
            found.append(Mutant(file, line, name, occurrence, _change(source, changed), _digest(source)))
    return found


def _positions(node: Any, operator: Operator) -> Iterator[Any]:
    """In the order of ``MutationVisitor``."""
    yield from operator.mutation_positions(node)
    for child in getattr(node, "children", ()):
        yield from _positions(child, operator)


def _meaning(source: str) -> str | None:
    """What Python runs, without annotations and the texts of errors."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.arguments):  # the "*" of arguments by name is not a product
            node.args = node.posonlyargs + node.args + node.kwonlyargs
            node.defaults = node.defaults + [d for d in node.kw_defaults if d is not None]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("object")
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = []
    return ast.dump(tree)


def _change(before: str, after: str) -> str:
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    old = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
    return f"{old}  ->  {' '.join(line[2:].strip() for line in lines if line.startswith('+ '))}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def sources(modules: list[str]) -> list[str]:
    """Files of the package, from the names of files and folders in it."""
    files: list[str] = []
    for module in modules:
        path = ROOT / PACKAGE / module
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not all(f.is_file() for f in found):
            raise SystemExit(f"there is no {PACKAGE / module}")
        files += [str(f.relative_to(ROOT / PACKAGE)) for f in found if f.name != "__init__.py"]
    return list(dict.fromkeys(files))


# Runs


def copy_tree(folder: Path) -> None:
    """A copy of the tree to change, with the compiled kernels of an editable install."""
    ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "docs", "benchmarks")
    shutil.copytree(ROOT, folder, ignore=ignored)
    for kernels in Path(sysconfig.get_path("platlib"), PACKAGE.name).glob("_native*"):
        shutil.copy(kernels, folder / PACKAGE)
    (folder / "src/sitecustomize.py").write_text(FORGET_INSTALLED)  # for processes that tests start


def run(folder: Path, tests: list[str], limit: float, mutated: bool) -> tuple[str, str]:
    """Runs tests in a fork: survived, killed or timeout; and the first test that failed."""
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=_test, args=(folder, tests, mutated))
    process.start()
    try:
        process.join(limit)
    finally:
        outcome = {None: "timeout", 0: "survived"}.get(process.exitcode, "killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # also what the tests have left behind
        process.join()
    lines = (folder / "log.txt").read_text("utf8", "replace").splitlines()
    failed = [line.split(" ")[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return outcome, failed[0] if failed else "\n".join(lines[-15:])


def _test(folder: Path, tests: list[str], mutated: bool) -> None:
    os.setsid()
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    exec(FORGET_INSTALLED)
    source = str(folder / "src")
    sys.path.insert(0, source)
    sys.dont_write_bytecode = mutated  # two mutants of one second would be taken for the same
    os.environ |= {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    found = importlib.util.find_spec(PACKAGE.name)
    if found is None or not str(found.origin).startswith(source):
        print(f"tests would import {found and found.origin}, which is not the copy")
        os._exit(70)
    import pytest

    preloaded = "ignore::pytest.PytestAssertRewriteWarning"
    code = 70
    try:
        code = pytest.main(["-xq", "-p", "no:cacheprovider", "--tb=line", "-W", preloaded, *tests])
    finally:
        sys.stdout.flush()
        os._exit(code)


def tests_of(file: str, config: dict[str, Any]) -> list[str]:
    fitting = [module for module in config["tests"] if file == module or file.startswith(f"{module}/")]
    if not fitting:
        raise SystemExit(f"{CONFIG.name} says no tests for {file}")
    return config["tests"][max(fitting, key=len)]


def _tests_digest(tests: list[str]) -> str:
    """Of the tests, and of what they share."""
    paths = [ROOT / test for test in tests if not test.startswith("-")]
    paths += sorted((ROOT / "tests").glob("[!t]*.py"))
    files = [f for path in paths for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return _digest(*(f.read_text("utf8") for f in files))


def reason(record: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Why a mutant may live, if it may."""
    for entry in config["left"]:
        fits = record["file"] == entry["file"] and entry["code"] in record["change"]
        if fits and entry.get("operator", "") in record["operator"]:
            return entry["reason"]
    return None


def try_all(work: list[Mutant], config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The results of mutants, as they come."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in PRELOADED if work else ():
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    limits: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="mutants") as temporary:
        folder = Path(temporary, "tree")
        copy_tree(folder)
        for mutant in work:
            tests, path = tests_of(mutant.file, config), folder / PACKAGE / mutant.file
            if str(tests) not in limits:
                begin = time.monotonic()
                outcome, failure = run(folder, tests, 3600, mutated=False)
                if outcome != "survived":
                    raise SystemExit(f"the tests fail without any mutant: {failure}")
                limits[str(tests)] = 30 + 4 * (time.monotonic() - begin)
            original = path.read_text("utf8")
            path.write_text(mutant.code(), "utf8")
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
            outcome, failure = run(folder, tests, limits[str(tests)], mutated=True)
            path.write_text(original, "utf8")
            by = failure if outcome == "killed" else ""
            yield {**asdict(mutant), "outcome": outcome, "by": by, "tests": _tests_digest(tests)}


def main() -> None:
    config = yaml.safe_load(CONFIG.read_text("utf8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files and folders of the package (those in mutants.yaml)")
    parser.add_argument("--sample", type=int, default=12, help="mutants per file, 0 for all (12)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/mutants.jsonl", help="results, by line")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as an interrupt: the copy is removed
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.touch()
    earlier = map(json.loads, output.read_text("utf8").splitlines())
    known = {(r["file"], r["source"], r["operator"], r["occurrence"]): r for r in earlier}
    results: list[dict[str, Any]] = []
    work: list[Mutant] = []
    for file in sources(options.modules or list(config["tests"])):
        digest = _tests_digest(tests_of(file, config))
        for mutant in mutants_of(file, options.sample, random.Random(f"{options.seed} {file}")):
            record = known.get((mutant.file, mutant.source, mutant.operator, mutant.occurrence))
            if record and (record["outcome"] != "survived" or record["tests"] == digest):
                results.append(record)
            elif reason(asdict(mutant), config) is None:
                work.append(mutant)
            else:
                results.append({**asdict(mutant), "outcome": "survived"})
    print(f"{len(work)} mutants to try, {len(results)} known already", flush=True)
    for number, record in enumerate(try_all(work, config), 1):
        results.append(record)
        with output.open("a", encoding="utf8") as lines:
            lines.write(json.dumps(record) + "\n")
        if record["outcome"] != "killed" or number % 10 == 0:
            print(f"[{number}/{len(work)}] {_line(record)}", flush=True)
    counts: dict[str, Counter[str]] = {}
    for record in results:
        if record["outcome"] == "survived" and reason(record, config) is not None:
            record["outcome"] = "left with a reason"
        counts.setdefault(record["file"], Counter())[record["outcome"]] += 1
    for name, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        print(f"{name}: {count.total()} mutants, " + ", ".join(f"{n} {o}" for o, n in count.most_common()))
    news = [record for record in results if record["outcome"] == "survived"]
    for record in sorted(news, key=lambda r: (r["file"], r["line"])):
        print(_line(record))
    sys.exit(bool(news))


def _line(record: dict[str, Any]) -> str:
    place = f"{record['file']}:{record['line']}"
    return f"{record['outcome']}  {place}  {record['operator']}\n    {record['change']}"


if __name__ == "__main__":
    main()
