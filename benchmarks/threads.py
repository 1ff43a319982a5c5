"""Trainings that share processors: time per step against a training that has them alone.

    python benchmarks/threads.py --output benchmarks/results/threads.json

Threads that wait for each other in a loop lose whole time slices when another process has their processor.
Fair sharing makes two trainings on the same cores about twice as slow; anything far above is a collapse.
Every process counts the steps that it does in the same stretch of time, once all are ready.
"pointvar" is what a user gets, with no environment variable; "libgomp" is how threads would wait
without pointvar's care: GOMP_SPINCOUNT=300000, libgomp's own default.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results" / "threads.json"
APART = "two, each on a core of its own"
CASES = {  # processes, cores, data-loader workers of each
    "alone on two cores": (1, 2, 0),
    "two on two cores": (2, 2, 0),
    "alone on one core": (1, 1, 0),
    APART: (2, 1, 0),
    "two on one core": (2, 1, 0),
    "two on one core, bound after the start": (2, 1, 0),
    "alone with eight loader workers": (1, 2, 8),
    "two with eight loader workers each": (2, 2, 8),
}
FAIR = {  # what a case is compared with, and by how much it would be slower if time were shared fairly
    "two on two cores": ("alone on two cores", 2),
    APART: ("alone on one core", 1),
    "two on one core": ("alone on one core", 2),
    "two on one core, bound after the start": ("alone on one core", 2),
    "alone with eight loader workers": ("alone on two cores", 1),
    "two with eight loader workers each": ("alone with eight loader workers", 2),
}


MOST = {APART: 1.1}  # times slower, at most
WAITING = {"pointvar": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}}


def work(cores: int, late: bool, workers: int, first: int, seconds: float) -> None:
    """One training; says when it is ready, goes on a line of input, prints the seconds of a step."""
    own = sorted(os.sched_getaffinity(0))[first : first + cores]
    if not late:
        os.sched_setaffinity(0, own)
    import torch
    from torch import nn

    from pointvar.data import Shapes, collate
    from pointvar.train import Data, load_config
    from pointvar.train.build import build_model

    config = load_config("shapes")
    shapes = Shapes(64, num_points=config.data.num_points)
    data = Data([0], [0], [str(c) for c in range(15)], shapes[0].features.shape[1], "classification")
    model: Any = build_model(config.model, data, torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Batches(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> Any:
            batch = collate([shapes[(4 * index + i) % 64] for i in range(4)])
            return batch, model.hierarchy(batch.cloud, generator=torch.Generator().manual_seed(index))

    loader = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=workers)
    if late:
        os.sched_setaffinity(0, own)
    begin = steps = 0
    end = float("inf")
    for number, (batch, levels) in enumerate(loader):
        if number == 5:  # warm
            print("ready", flush=True)
            sys.stdin.readline()
            begin, end = time.perf_counter(), time.perf_counter() + seconds
        loss = nn.functional.cross_entropy(model(batch.features, levels), batch.labels % 15)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= 5:
            steps += 1
            if time.perf_counter() > end:
                break
    print((time.perf_counter() - begin) / steps, flush=True)
    os._exit(0)  # workers need not end in order


def measure(case: str, waiting: str, seconds: float) -> float:
    """Seconds per step, the mean over the processes of a case."""
    processes, cores, workers = CASES[case]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    environment |= WAITING[waiting]
    command = [sys.executable, __file__, "--work", str(cores), str(int("after" in case)), str(workers)]
    running = [
        subprocess.Popen(
            [*command, str(number if case == APART else 0), "--seconds", str(seconds)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{case}: a training has failed")
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in running) / processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement (10)")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts (2)")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--waiting", nargs="*", choices=list(WAITING), default=list(WAITING))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        cores, late, workers, first = map(int, given.work)
        work(cores, late == 1, workers, first, given.seconds)
    import harness

    load, rows = harness.busy(), []
    for waiting in given.waiting:
        best = {case: float("inf") for case in given.cases}
        for _ in range(given.rounds):
            for case in given.cases:
                best[case] = min(best[case], measure(case, waiting, given.seconds))
        for case, step in best.items():
            against, fair = FAIR.get(case, (None, None))
            ratio = step / best[against] if against in best else None
            rows.append(
                {
                    "waiting": waiting,
                    "case": case,
                    "milliseconds": 1000 * step,
                    "against": against,
                    "ratio": ratio,
                    "fair": fair,
                    "most": MOST.get(case),
                    "met": ratio <= MOST[case] if ratio is not None and case in MOST else None,
                }
            )
            harness.say(f"{waiting:9} {case:40} {1000 * step:8.1f} ms  {ratio or 1:5.2f}  fair {fair or 1}")
    harness.save({"machine": harness.machine(), "load_before": load, "rows": rows}, given.output)


if __name__ == "__main__":
    main()
