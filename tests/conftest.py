"""The axes that tests are crossed with, and what they must leave as they found it."""

import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from pointvar import ops

settings.register_profile(
    "pointvar",
    derandomize=True,
    deadline=None,
    max_examples=12,
    database=None,
    # The axes below are function-scoped, but the same for all examples of a test.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("pointvar")


def pytest_configure(config: pytest.Config) -> None:
    # Two workers are two workers on one core, too: torch's advice is for users, who get it as a warning.
    config.addinivalue_line("filterwarnings", "ignore:This DataLoader will create .* worker processes")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Converted files stay out of the user's home, which need not be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POINTVAR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """What a test draws without a generator does not depend on which tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture(params=[1, 2, 3], ids=["1D", "2D", "3D"])
def dim(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the operators with the native kernels, then with plain torch."""
    if request.param == "native" and not ops.native.available:
        pytest.skip("the native kernels are not in use")
    if request.param == "reference":
        monkeypatch.setattr(ops.backends, "BACKENDS", {})
    return request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """For tests that change the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def time_limit() -> Iterator[Callable[[int], None]]:
    """Turns an endless loop in Python into a failure after so many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError("this should have ended long ago")

    before = signal.signal(signal.SIGALRM, stop)
    yield signal.alarm
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
