"""Random tensors for every operator: whatever they are given, the process lives.

    python tests/fuzz/operators.py --calls 3000 --seed 0

Each call starts from arguments that fit and spoils some of them: other lengths, dtypes, strides, devices,
NaN, infinity, huge and negative integers, empty tensors, None. Calls are made in worker processes. It counts
how they end: a result, an error (ValueError, or one of torch's own), a signal, or no end at all. A fault
names the seed that repeats it. Two calls with the same arguments must agree: unwritten memory does not.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
EXPECTED = (
    "ValueError",
    "TypeError",
    "RuntimeError",
    "IndexError",
    "MemoryError",
    "AttributeError",
)  # the last: of None
MEMORY = 8 << 30  # bytes of a worker: a size of 2^31 is one that a large machine may have room for
FLOATS = [0.0, -0.0, 1e-45, 1e-38, 1e-20, 1e20, 3e38, 1e300, -1e30, math.nan, math.inf, -math.inf]
INTEGERS = [
    -1,
    0,
    1,
    2,
    63,
    64,
    1 << 31,
    (1 << 31) - 1,
    1 << 32,
    1 << 48,
    1 << 61,
    1 << 62,
    (1 << 63) - 1,
    -(1 << 63),
]


class Call:
    """One random call, from its seed alone."""

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        self.seed, self.random = seed, random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = self.random.choice([torch.float32, torch.float64])
        self.name = self.random.choice(list(self.makers()))
        self.arguments = [
            self.spoiled(a) if self.random.random() < 0.15 else a for a in self.makers()[self.name]()
        ]

    def makers(self) -> dict[str, Any]:
        return {
            "ball_query": lambda: [*self.pair(), self.lengths(), self.random.choice([-1, 0, 1, 5]), 3],
            "knn": lambda: [*self.pair(), self.random.choice([1, 3, 40, 1000])],
            "poisson_disk": lambda: [*self.cloud(), self.lengths(), 3],
            "farthest_points": self.farthest,
            "kernel_density": lambda: [*self.cloud(), self.lengths()],
            "kernel_density_backward": self.density_backward,
            "transpose": lambda: [*self.rows(), self.support],
            "convolve": lambda: self.convolution(0),
            "convolve_backward": lambda: self.convolution(1),
            "project": lambda: self.projection(False),
            "project_backward": lambda: self.projection(True),
            "second_moment": lambda: self.convolution(2),
        }

    # Arguments that fit

    def rand(self, *shape: int) -> Any:
        scale = self.random.choice([1.0, 1.0, 1.0, 1e-12, 1e12])
        return self.torch.rand(*shape, generator=self.generator, dtype=self.dtype) * scale

    def cloud(self) -> list[Any]:
        self.sizes = [self.random.choice([0, 1, 7, 40, 300]) for _ in range(self.random.choice([1, 2, 3, 9]))]
        self.dim = self.random.choice([1, 2, 3])
        return [self.rand(sum(self.sizes), self.dim), self.offsets(self.sizes)]

    def offsets(self, sizes: list[int]) -> Any:
        return self.torch.tensor([0, *sizes]).cumsum(0)

    def lengths(self) -> Any:
        return self.torch.full(
            (len(self.sizes),), self.random.choice([1e-3, 0.1, 0.5, 3.0]), dtype=self.dtype
        )

    def pair(self) -> list[Any]:
        support = self.cloud()
        if self.random.random() < 0.4:
            return [*support, *support]
        sizes = [self.random.choice([0, 1, 33]) for _ in self.sizes]
        return [*support, self.rand(sum(sizes), self.dim), self.offsets(sizes)]

    def farthest(self) -> list[Any]:
        cloud = self.cloud()
        counts = self.torch.tensor([self.random.randint(0, size) for size in self.sizes])
        start = self.torch.tensor([self.random.randint(0, max(size - 1, 0)) for size in self.sizes])
        return [*cloud, counts, start, int(counts.sum())]

    def density_backward(self) -> list[Any]:
        cloud = self.cloud()
        return [self.rand(len(cloud[0])), *cloud, self.lengths()]

    def rows(self) -> list[Any]:
        self.support = self.random.choice([1, 2, 50, 300])
        counts = [self.random.choice([0, 0, 1, 3, 20]) for _ in range(self.random.choice([0, 1, 5, 100]))]
        self.queries, self.edges = len(counts), sum(counts)
        return [
            self.offsets(counts),
            self.torch.randint(self.support, (self.edges,), generator=self.generator),
        ]

    def projection(self, backward: bool) -> list[Any]:
        rows, size, channels = self.rows(), self.random.choice([1, 3, 16]), self.random.choice([0, 1, 3, 20])
        flags = [self.random.random() < 0.7 for _ in range(2)]
        grad = [self.rand(self.queries, size * channels)] if backward else []
        pair = [self.rand(self.support, channels), self.rand(self.edges, size), *rows]
        return [*grad, *pair, *([flags] if backward else [])]

    def convolution(self, which: int) -> list[Any]:
        from pointvar import ops

        rows, dim = self.rows(), self.random.choice([1, 2, 3])
        channels, outputs = self.random.choice([0, 1, 3, 20]), self.random.choice([0, 1, 8])
        basis = self.random.choice([None, "gaussian", "linear", "nearest", "spherical", "mlp", "dot"])
        size = self.random.choice([1, 3, 13, 16])
        constants: list[float] = [0.5] if basis in ("gaussian", "linear", "mlp") else []
        if basis == "dot":
            size = dim + 1
        if basis == "spherical":
            size, constants = 13, [2.0, 3.0, 2.0, float(self.random.random() < 0.5)]
        numbers = {
            "mlp": size * (dim + 1),
            "gaussian": size * dim,
            "linear": size * dim,
            "nearest": size * dim,
        }
        parameters = self.rand(numbers[basis]) if basis in numbers else None
        operand = self.rand(self.edges, dim if basis else size)
        scale = self.rand(self.edges) if basis else None
        columns = list(ops.transpose(*rows, self.support)) if self.random.random() < 0.4 else [None] * 3
        orders: list[Any] = [None, None]
        if self.random.random() < 0.4:
            orders = [self.torch.randperm(n, generator=self.generator) for n in (self.queries, self.support)]
        unit = self.random.random() < 0.5
        mixing = self.rand(size, size) if self.random.random() < 0.3 else None
        flat = [*rows, operand, scale, parameters, *columns, *orders, mixing, basis, size, constants, unit]
        features = self.rand(self.support, channels)
        if which == 2:
            return [features, *flat]
        weight, bias = self.rand(size, channels, outputs), self.rand(outputs)
        if which == 0:
            return [features, weight, self.random.choice([None, bias]), *flat]
        wanted = [self.random.random() < 0.6 for _ in range(5)]
        wanted[3] &= scale is not None
        wanted[4] &= basis == "mlp"
        norm = self.rand(self.queries if unit else 0)
        return [self.rand(self.queries, outputs), norm, features, weight, *flat, wanted]

    # Arguments that do not

    def spoiled(self, value: Any) -> Any:
        pick = self.random
        if isinstance(value, self.torch.Tensor):
            return self.spoiled_tensor(value)
        if isinstance(value, bool) or value is None or isinstance(value, str):
            return pick.choice([value, None, "values", "spherical", "gaussian", "nonsense"])
        if isinstance(value, int):
            return pick.choice(INTEGERS)
        if isinstance(value, list):
            if value and isinstance(value[0], bool):
                return pick.choice([value[1:], [*value, True], [True] * len(value), []])
            return pick.choice(
                [[], [pick.choice(FLOATS) for _ in value], [*value, 1.0], [1e300] * 4, [-1.0] * 4]
            )
        return value

    def spoiled_tensor(self, tensor: Any) -> Any:
        torch, pick = self.torch, self.random
        kind = pick.choice(
            ["values"] * 4 + ["shorter", "longer", "dtype", "strides", "empty", "rank", "device", "none"]
        )
        tensor = tensor.clone()
        if kind == "values" and tensor.numel():
            flat = tensor.view(-1)
            for _ in range(pick.choice([1, 1, 2, 9])):
                at = pick.randrange(len(flat))
                if tensor.dtype == torch.int64:
                    flat[at] = pick.choice([*INTEGERS, int(flat[pick.randrange(len(flat))])])
                else:
                    flat[at] = torch.tensor(pick.choice(FLOATS), dtype=torch.float64).to(flat.dtype)
            return tensor
        return {
            "shorter": lambda: tensor[: pick.randrange(max(len(tensor), 1))],
            "longer": lambda: torch.cat([tensor, tensor[:1], tensor]),
            "dtype": lambda: tensor.to(
                pick.choice([torch.float16, torch.float32, torch.float64, torch.int32, torch.bool])
            ),
            "strides": lambda: torch.stack([tensor, tensor], -1)[..., 0],
            "empty": lambda: tensor.new_empty(pick.choice([(0,), (0, 3), (5, 0), ()])),
            "rank": lambda: pick.choice([tensor[None], tensor.flatten(), tensor[..., None]]),
            "device": lambda: tensor.to("meta"),
            "none": lambda: None,
        }.get(kind, lambda: tensor)()

    def run(self) -> str:
        """How it ended: the name of an error, or "result"."""
        try:
            first, second = (self.bits() for _ in range(2))
        except Exception as error:
            kind = next((t.__name__ for t in type(error).__mro__ if t.__name__ in EXPECTED), None)
            if kind is None:
                return f"unexpected {type(error).__name__}: {error}"
            return kind
        return "result" if first == second else "unexpected: two calls with the same arguments differ"

    def bits(self) -> list[bytes]:
        found = getattr(self.torch.ops.pointvar, self.name)(*self.arguments)
        parts = found if isinstance(found, tuple | list) else [found]
        return [p.contiguous().numpy().tobytes() for p in parts if p.device.type == "cpu"]


def work(seeds: range) -> None:
    """Makes the calls of these seeds; a line before each and one after it."""
    import sanitized
    import torch

    import pointvar as pv

    pv.native_info()
    from pointvar import ops  # noqa: F401

    if not sanitized.FILE:  # whose shadow memory is beyond any limit; there ASAN_OPTIONS sets one
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    torch.set_num_threads(2)
    for seed in seeds:
        print(json.dumps({"seed": seed}), flush=True)
        call = Call(seed)
        print(json.dumps({"operator": call.name, "end": call.run()}), flush=True)


def fuzz(calls: int, seed: int, limit: float) -> dict[str, Any]:
    """Counts of how the calls ended, by operator; and what must not happen, with its seed."""
    ends: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    faults: list[dict[str, Any]] = []
    at, last = seed, seed + calls
    while at < last:
        # A worker at a time, with a limit for each block of calls, so that one that hangs is found.
        stop = min(at + 500, last)
        command = [sys.executable, __file__, "--work", str(at), str(stop)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=os.environ)
            output, error, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as expired:
            output = (
                (expired.stdout or b"").decode()
                if isinstance(expired.stdout, bytes)
                else expired.stdout or ""
            )
            error, code = "", "no end"
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        begun = [line["seed"] for line in lines if "seed" in line]
        for number, line in zip(begun, (line for line in lines if "end" in line), strict=False):
            ends[line["operator"]][line["end"] if line["end"] in (*EXPECTED, "result") else "unexpected"] += 1
            if line["end"].startswith("unexpected"):
                faults.append({"seed": number, "operator": line["operator"], "what": line["end"]})
        if code == 0:
            at = stop
            continue
        if not begun:
            raise RuntimeError(f"the worker does not start: {error[-2000:]}")
        faults.append({"seed": begun[-1], "what": f"ended with {code}", "error": error[-3000:]})
        at = begun[-1] + 1
    return {
        "calls": calls,
        "seed": seed,
        "ends": {k: dict(v) for k, v in sorted(ends.items())},
        "faults": faults,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0, help="of the first call; each has the next one (0)")
    parser.add_argument("--limit", type=float, default=600, help="seconds for 500 calls (600)")
    parser.add_argument("--output", type=Path, help="JSON of the counts")
    parser.add_argument("--work", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(range(*given.work))
        return 0
    report = fuzz(given.calls, given.seed, given.limit)
    if given.output:
        given.output.write_text(json.dumps(report, indent=1) + "\n")
    total: collections.Counter[str] = collections.Counter()
    for operator, ends in report["ends"].items():
        total.update(ends)
        print(f"{operator:24}", ", ".join(f"{n} {end}" for end, n in sorted(ends.items())))
    for fault in report["faults"]:
        print("FAULT", fault, file=sys.stderr)
    print(f"{given.calls} calls: {total['result']} results, {len(report['faults'])} faults")
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
