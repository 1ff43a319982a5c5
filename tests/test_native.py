"""The native module as a guest in the process: threads, OpenMP, forks, instruction sets, its absence."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
import torch
from strategies import random_cloud

import pointvar
from pointvar import PointCloud
from pointvar.ops import native

needs_native = pytest.mark.skipif(not native.available, reason="the native kernels are not in use")

LEVELS = ["baseline", "avx2", "avx512"]
RESULTS = """
import hashlib, torch, pointvar as pv
torch.set_num_threads(2)
digest = hashlib.sha256()
for dtype in (torch.float32, torch.float64):
    for dim in (1, 2, 3):
        generator = torch.Generator().manual_seed(dim)
        points = torch.rand(900, dim, generator=generator, dtype=dtype)
        points[::3] = (points[::3] * 32).round() / 32
        cloud = pv.PointCloud(points, [500, 0, 400])
        hood = pv.ball_query(cloud, cloud, 1 / 16, 8, generator)
        nearest = pv.knn(cloud, cloud[::5], 12)
        kept = pv.poisson_disk(cloud, 1 / 16, generator), pv.farthest_points(cloud, count=100)
        parts = (hood.row_offsets, hood.indices, hood.total_counts, *hood.transposed())
        for part in (*parts, nearest.indices, nearest.radius, *kept):
            digest.update(part.numpy().tobytes())
print(pv.native_info()["backend"], pv.native_info()["instruction_set"], digest.hexdigest())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter in which no choice of backend is inherited."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("POINTVAR_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def output(code: str, **environment: str) -> list[str]:
    result = run(code, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.fixture(scope="module")
def reference() -> list[str]:
    """What the reference prints: its name, no instruction set, the digest of its results."""
    return output(RESULTS, POINTVAR_BACKEND="reference")


@pytest.fixture(scope="module")
def chosen() -> str:
    """The instruction set that is taken when none is asked for."""
    return output("import pointvar; print(pointvar.native_info()['instruction_set'])")[0]


class TestInfo:
    def test_says_what_runs(self):
        info = pointvar.native_info()
        assert set(info) == {"backend", "instruction_set", "threads", "openmp", "devices"}
        assert info["backend"] == ("native" if native.available else "reference")

    @needs_native
    def test_names_the_instruction_set_and_the_runtime(self):
        info = pointvar.native_info()
        assert info["instruction_set"] in LEVELS
        assert "omp" in info["openmp"]

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_threads_follow_torch(self, count, threads):
        torch.set_num_threads(count)
        assert pointvar.native_info()["threads"] == count


class TestInstructionSets:
    @needs_native
    @pytest.mark.parametrize("level", LEVELS)
    def test_give_the_same_bits_and_the_best_is_chosen(self, level, chosen, reference):
        result = run(RESULTS, POINTVAR_ISA=level)
        if "does not run here" in result.stderr:
            pytest.skip(f"this processor or build has no {level}")
        assert result.stdout.split() == ["native", level, reference[2]], result.stderr
        assert LEVELS.index(chosen) >= LEVELS.index(level)

    def test_unknown_ones_are_refused(self):
        result = run("import pointvar; pointvar.native_info()", POINTVAR_ISA="mmx")
        assert result.returncode != 0
        assert "ValueError: POINTVAR_ISA must be one of" in result.stderr


class TestBackends:
    def test_reference_can_be_forced(self, reference):
        assert reference[:2] == ["reference", "None"]

    def test_unknown_ones_are_refused(self):
        result = run("import pointvar; pointvar.native_info()", POINTVAR_BACKEND="nonsense")
        assert result.returncode != 0
        assert (
            "ValueError: POINTVAR_BACKEND must be 'native', 'triton' or 'reference', got 'nonsense'"
            in result.stderr
        )

    def test_a_broken_native_module_gives_one_warning_and_the_same_results(self, reference):
        code = """
import sys, warnings, torch
sys.modules["pointvar._native_baseline"] = None  # the import system then raises ImportError
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import pointvar; pointvar.native_info()
print(*[warning.category.__name__ for warning in caught], "POINTVAR_BACKEND" in str(caught[0].message))
warnings.simplefilter("error")
"""
        assert output(code + RESULTS) == ["RuntimeWarning", "True", *reference]


@needs_native
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="reads Linux's list of mapped libraries")
def test_one_openmp_runtime_serves_torch_and_pointvar():
    code = """
import re, torch, pointvar as pv
cloud = pv.PointCloud(torch.rand(20_000, 3))
pv.ball_query(cloud, cloud, 0.05)
torch.rand(1_000_000).sort()
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if re.search(r"lib(gomp|omp|iomp)[^/]*\\.so", line)}
print(pv.native_info()["openmp"], *libraries)
"""
    used, *libraries = output(code)
    assert len(libraries) == 1
    assert os.path.basename(used) in libraries[0]


@needs_native
def test_python_threads_may_call_at_the_same_time():
    """The interpreter's lock is released while the kernels run."""
    clouds = [random_cloud([5_000], seed=seed) for seed in range(4)]
    alone = [indices(cloud) for cloud in clouds]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(indices, clouds * 4)) == alone * 4


@needs_native
def test_results_keep_their_values_while_memory_is_used_again():
    """The kernels reuse memory: only what no tensor holds any more."""
    cloud, other = random_cloud([20_000], seed=1), random_cloud([20_000], seed=2)
    first = pointvar.ball_query(cloud, cloud, 0.04)
    copies = [first.row_offsets.clone(), first.indices.clone(), first.total_counts.clone()]
    for _ in range(3):
        pointvar.ball_query(other, other, 0.04)
        pointvar.kernel_density(PointCloud(other.points), 0.02)
    for now, then in zip((first.row_offsets, first.indices, first.total_counts), copies, strict=True):
        assert torch.equal(now, then)


def indices(cloud: PointCloud) -> bytes:
    hood = pointvar.ball_query(cloud, cloud, 0.04, 8, torch.Generator().manual_seed(0))
    return hood.indices.numpy().tobytes()


def send_indices(connection: Connection, cloud: PointCloud) -> None:
    connection.send_bytes(indices(cloud))


def send_indices_as_a_loader_does(connection: Connection, cloud: PointCloud) -> None:
    torch.set_num_threads(1)
    connection.send_bytes(indices(PointCloud(cloud.points.clone())))


def send_layer(connection: Connection, cloud: PointCloud) -> None:
    """Torch's operators and ours, as a worker of a data loader mixes them: on one thread."""
    torch.set_num_threads(1)
    connection.send_bytes(layer(cloud))


def layer(cloud: PointCloud) -> bytes:
    torch.manual_seed(0)
    hood = pointvar.knn(cloud, cloud, 4)
    convolution = pointvar.methods.KPConv(8, 8)
    out = convolution(torch.ones(len(cloud), 8), hood).relu()
    out.sum().backward()
    return out.detach().sort(0).values.numpy().tobytes()


# Newer Pythons warn of any fork of a process with threads; torch's data loaders make such forks.
@needs_native
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
class TestFork:
    """The parent has used its OpenMP threads, which do not exist in the child.

    The child gets a ready cloud: torch's own parallel operators hang there, unless the child sets
    the number of threads to 1 first, as a worker of a data loader does.
    """

    @pytest.fixture
    def cloud(self, threads: None) -> PointCloud:
        torch.set_num_threads(2)
        return random_cloud([30_000])

    @pytest.mark.parametrize("target", [send_indices, send_indices_as_a_loader_does])
    def test_process_of_multiprocessing(self, target, cloud):
        expected = indices(cloud)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=target, args=(sender, cloud), daemon=True)
        child.start()
        try:
            assert indices(cloud) == expected  # the parent goes on with its threads
            assert receiver.poll(60), "the child hangs"
            assert receiver.recv_bytes() == expected
            child.join(60)
            assert child.exitcode == 0
        finally:
            child.kill()

    def test_torch_and_pointvar_in_turns(self, cloud):
        """The parent has used the threads of both before."""
        layer(cloud)
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=send_layer, args=(sender, cloud), daemon=True)
        child.start()
        try:
            assert receiver.poll(120), "the child hangs"
            assert len(receiver.recv_bytes()) == 4 * 8 * len(cloud)
        finally:
            child.kill()

    def test_bare_fork(self, cloud):
        expected = indices(cloud)
        child = os.fork()
        if child == 0:  # no exception may leave: pytest would go on twice
            try:
                os._exit(0 if indices(cloud) == expected else 3)
            finally:
                os._exit(4)
        deadline = time.monotonic() + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hangs")
            time.sleep(0.05)
        assert os.waitstatus_to_exitcode(ended[1]) == 0


@needs_native
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="counts threads as Linux does")
def test_threads_that_wait_go_to_sleep():
    """Spinning threads take the processor from other processes: while one waits, it uses no time."""
    code = """
import os, time, torch, pointvar as pv
torch.set_num_threads(2)
cloud = pv.PointCloud(torch.rand(20_000, 3))
pv.ball_query(cloud, cloud, 0.05)
used = 0.0
for _ in range(50):
    torch.rand(100_000).sqrt()  # a team of torch's, which then waits for more
    before = time.process_time()
    time.sleep(0.005)
    used += time.process_time() - before
print(used)
"""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))}
    result = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, timeout=300, check=True
    )
    assert float(result.stdout) < 0.05, "threads run while they wait"
