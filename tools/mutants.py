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
import compileall
import contextlib
import difflib
import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
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
    plain, found = _meaning(source), []
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
    return files


# Runs


class Tree:
    """A copy of the tree in which one mutant at a time is tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns(".*", "results", "build", "__pycache__", "docs", "benchmarks")
        shutil.copytree(ROOT, folder, ignore=ignored)
        installed = Path(sysconfig.get_path("platlib"), PACKAGE.name)
        for kernels in installed.glob("_native*"):  # of an editable install
            shutil.copy(kernels, folder / PACKAGE)
        (folder / "src/sitecustomize.py").write_text(FORGET_INSTALLED)
        compileall.compile_dir(folder / "src", quiet=2)
        self.pid, self.begin, self.limit = 0, 0.0, 0.0

    def start(self, tests: list[str], limit: float, file: str = "", source: str = "") -> None:
        """Runs the tests in a fork, with ``source`` in the place of ``file``."""
        if file:
            path = self.folder / PACKAGE / file
            self.original = path, path.read_text("utf8")
            path.write_text(source, "utf8")
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                compiled.unlink()
        self.begin, self.limit = time.monotonic(), limit
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            self._run(tests, bool(file))

    def _run(self, tests: list[str], mutated: bool) -> None:
        os.setsid()
        os.chdir(self.folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        exec(FORGET_INSTALLED)
        sys.path.insert(0, str(self.folder / "src"))
        sys.dont_write_bytecode = mutated  # two mutants of one second would be taken for the same
        os.environ |= {"PYTHONPATH": str(self.folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        import pytest

        code = 70
        try:
            preloaded = "ignore::pytest.PytestAssertRewriteWarning"
            code = pytest.main(["-xq", "-p", "no:cacheprovider", "--tb=line", "-W", preloaded, *tests])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def finished(self) -> str | None:
        """How the tests ended, if they have: passed, failed or timeout."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = not pid and time.monotonic() - self.begin > self.limit
        if not pid and not late:
            return None
        self.kill()
        if late:
            os.waitpid(self.pid, 0)
        if hasattr(self, "original"):
            path, source = self.original
            path.write_text(source, "utf8")
        return "timeout" if late else "passed" if status == 0 else "failed"

    def kill(self) -> None:
        """Also what the tests have left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def failure(self) -> str:
        """The first test that failed."""
        lines = (self.folder / "log.txt").read_text("utf8", "replace").splitlines()
        failed = [x.split(" ")[1] for x in lines if x.startswith(("FAILED ", "ERROR "))]
        return failed[0] if failed else "\n".join(lines[-15:])

    def wait(self) -> str:
        while (outcome := self.finished()) is None:
            time.sleep(0.02)
        return outcome


def _tests_of(file: str, config: dict[str, Any]) -> list[str]:
    fitting = [module for module in config["tests"] if file == module or file.startswith(f"{module}/")]
    if not fitting:
        raise SystemExit(f"{CONFIG.name} says no tests for {file}")
    return config["tests"][max(fitting, key=len)]


def _tests_digest(tests: list[str]) -> str:
    """Of the tests, and of what they share."""
    paths = [ROOT / test for test in tests if not test.startswith("-")] + sorted(
        (ROOT / "tests").glob("[!t]*.py")
    )
    files = [f for path in paths for f in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return _digest(*(f.read_text("utf8") for f in files))


def reason(mutant: Mutant, config: dict[str, Any]) -> str | None:
    """Why a mutant may live, if it may."""
    for entry in config.get("left") or ():
        fits = mutant.file == entry["file"] and entry["code"] in mutant.change
        if fits and entry.get("operator", "") in mutant.operator:
            return entry["reason"]
    return None


def main() -> None:
    config = yaml.safe_load(CONFIG.read_text("utf8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="*", help="files and folders of the package (those in mutants.yaml)")
    parser.add_argument("--sample", type=int, default=25, help="mutants per file, 0 for all (25)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--jobs", type=int, default=1, choices=(1, 2), help="processes (1)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/mutants.jsonl", help="results, by line")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as an interrupt: the copy is removed
    output: Path = options.output
    output.parent.mkdir(parents=True, exist_ok=True)
    output.touch()
    known = {
        (r["file"], r["source"], r["operator"], r["occurrence"]): r
        for r in map(json.loads, output.read_text("utf8").splitlines())
    }
    results: list[dict[str, Any]] = []
    work: list[tuple[Mutant, list[str], str]] = []
    for file in sources(options.modules or list(config["tests"])):
        mutants = mutants_of(file, options.sample, random.Random(f"{options.seed} {file}"))
        tests = _tests_of(file, config)
        digest = _tests_digest(tests)
        for mutant in mutants:
            record = known.get((mutant.file, mutant.source, mutant.operator, mutant.occurrence))
            if record and (record["outcome"] in ("killed", "timeout") or record["tests"] == digest):
                results.append(record)
            elif reason(mutant, config) is None:
                work.append((mutant, tests, digest))
            else:
                results.append({**asdict(mutant), "outcome": "left"})
    print(f"{len(work)} mutants to try, {len(results)} known already", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        for record in try_all(work, options.jobs, Path(folder)):
            results.append(record)
            with output.open("a", encoding="utf8") as file:
                file.write(json.dumps(record) + "\n")
    for record in results:
        if record["outcome"] == "survived" and reason(_mutant(record), config) is not None:
            record["outcome"] = "left"
    counts = Counter(record["outcome"] for record in results)
    print(f"{len(results)} mutants: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.most_common()))
    news = [record for record in results if record["outcome"] == "survived"]
    for record in sorted(news, key=lambda r: (r["file"], r["line"])):
        print(_line(record))
    sys.exit(bool(news))


def _mutant(record: dict[str, Any]) -> Mutant:
    return Mutant(**{name: record[name] for name in Mutant.__dataclass_fields__})


def _line(record: dict[str, Any]) -> str:
    place = f"{record['file']}:{record['line']}"
    return f"{record['outcome']}  {place}  {record['operator']}\n    {record['change']}"


def try_all(work: list[tuple[Mutant, list[str], str]], jobs: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The results of mutants, as they come."""
    if not work:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for module in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    trees = [Tree(folder / str(i)) for i in range(jobs)]
    limits: dict[tuple[str, ...], float] = {}
    for tests in sorted({tuple(tests) for _, tests, _ in work}):
        trees[0].start(list(tests), 3600)
        if trees[0].wait() != "passed":
            raise SystemExit(f"the tests fail without any mutant: {trees[0].failure()}")
        limits[tests] = 30 + 4 * (time.monotonic() - trees[0].begin)
    begin, waiting, counts = time.monotonic(), list(reversed(work)), Counter[str]()
    running: dict[Tree, tuple[Mutant, str]] = {}
    try:
        while waiting or running:
            for tree in trees:
                if tree not in running and waiting:
                    mutant, tests, digest = waiting.pop()
                    tree.start(tests, limits[tuple(tests)], mutant.file, mutant.code())
                    running[tree] = mutant, digest
                if tree not in running or (outcome := tree.finished()) is None:
                    continue
                mutant, digest = running.pop(tree)
                outcome = {"passed": "survived", "failed": "killed"}.get(outcome, outcome)
                record = {**asdict(mutant), "outcome": outcome, "tests": digest}
                record["by"] = tree.failure() if outcome == "killed" else ""
                record["seconds"] = round(time.monotonic() - tree.begin, 1)
                yield record
                counts[outcome] += 1
                done, left = counts.total(), len(waiting) + len(running)
                if outcome != "killed":
                    print(_line(record))
                if outcome != "killed" or done % 10 == 0 or not left:
                    minutes = (time.monotonic() - begin) / done * left / 60
                    shown = ", ".join(f"{n} {name}" for name, n in counts.most_common())
                    print(f"[{done}/{done + left}, {minutes:.0f} min left] {shown}", flush=True)
            time.sleep(0.02)
    finally:
        for tree in running:
            tree.kill()


if __name__ == "__main__":
    main()
