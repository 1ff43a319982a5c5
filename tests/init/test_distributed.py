"""Several processes, each with its own batches, end with the same weights: those of all batches together."""

import pytest
import torch
from torch import distributed, multiprocessing, nn

import pointvar as pv

OPTIONS = {
    "direct": {},
    "exact": {"exact": True},
    "orthogonal": {"orthogonal": True, "exact": True},
    "per channel": None,
}


class Scaled(nn.Linear):
    """Measured by a probe, since it computes something of its own."""

    def forward(self, input):
        return 2 * super().forward(input)


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Scaled(8, 8), nn.ReLU(), nn.Linear(8, 8))


def batch(rank):
    return (1 + 3 * rank) * torch.randn(40, 4, generator=torch.Generator().manual_seed(rank))


def start(net, batches, options, seed):
    generator = torch.Generator().manual_seed(seed)
    if options is None:
        return pv.data_dependent_init(net, batches, generator=generator)
    return pv.variance_init(net, batches, generator=generator, **options)


def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    result = {}
    for name, options in OPTIONS.items():
        net = model()
        report = start(net, batch(rank), options, seed=7 + rank)  # ranks that draw different numbers
        result[name] = net.state_dict(), [entry.second_moment for entry in report.layers]
    error = ""
    try:
        start(model(), batch(rank) if rank else torch.full((40, 4), float("nan")), {}, 0)
    except ValueError as problem:
        error = str(problem)
    torch.save((result, error), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this build of torch has no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.start_processes(work, (str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


# Newer Pythons warn of any fork of a process with threads.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", OPTIONS)
def test_two_processes_are_one_with_both_batches(name, ranks):
    (first, moments), (second, other) = (result[name] for result, _ in ranks)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert moments == other
    net = model()
    report = start(net, [batch(0), batch(1)], OPTIONS[name], seed=7)
    torch.testing.assert_close(first, dict(net.state_dict()), rtol=1e-5, atol=1e-6)
    assert moments == pytest.approx([entry.second_moment for entry in report.layers])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_an_error_on_one_rank_is_an_error_on_all(ranks):
    assert all("0: its input" in error for _, error in ranks)
