"""The named methods: their pairs, their published numbers, their names."""

import copy
import inspect
import pickle

import pytest
import torch

import pointvar as pv
from pointvar import kernel_points, methods

PAIRS = {
    "PCCNN": ("Gaussian", "MonteCarlo"),
    "PointwiseCNN": ("NearestPoint", "Average"),
    "SPHConv": ("SphericalBins", "Average"),
    "KPConv": ("LinearCorrelation", "Sum"),
    "KPConvN": ("LinearCorrelation", "MonteCarlo"),
    "InterpCNN": ("LinearCorrelation", "Average"),
    "ConvPoint": ("MLPCorrelation", "Average"),
    "MCConv": ("MLP", "MonteCarlo"),
    "PointConv": ("MLP", "LearnedDensity"),
    "FlexConv": ("Dot", "Sum"),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


OWN = {  # what a method takes beside what all take, and its default
    **{name: {"bandwidth": 0.2} for name in ("PCCNN", "KPConvN", "MCConv")},
    "SPHConv": {"radial": 1, "authors_azimuth": False},
    "PointConv": {"radius": None, "batch_norm": False, "bandwidth": 0.2},
}


def test_all_are_there():
    assert list(methods.METHODS) == list(PAIRS)
    for name, make in methods.METHODS.items():
        assert getattr(pv, name) is make is getattr(methods, name) is pickle.loads(pickle.dumps(make))
        size = None if name == "FlexConv" else 16
        shared = {"num_basis": size, "dim": 3, "bias": True, "unit_response": False, "precondition": False}
        first, second, *options = inspect.signature(make).parameters.values()
        assert (first.name, second.name) == ("in_channels", "out_channels")
        expected = {**shared, **OWN.get(name, {}), "generator": None}
        assert [(option.name, option.default) for option in options] == list(expected.items())
        assert "https://arxiv.org/abs/" in make.__doc__
        assert name in pv.basis.__doc__


@pytest.mark.parametrize("name", PAIRS)
def test_pair(name):
    conv = methods.METHODS[name](8, 5)
    assert isinstance(conv, pv.PointConvolution)
    assert (type(conv.basis).__name__, type(conv.estimator).__name__) == PAIRS[name]
    assert conv.basis.size == (4 if name == "FlexConv" else 16)
    assert conv.weight.shape == (conv.basis.size, 8, 5)
    assert conv.bias is not None
    assert not conv.unit_response
    for twin in (conv, copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert twin.method == name
        assert repr(twin).startswith(f"PointConvolution(\n  {name}, 8, 5, bias=True")


@pytest.mark.parametrize("name", PAIRS)
def test_a_generator_fixes_everything(name):
    one, same = (methods.METHODS[name](3, 4, generator=seeded()).state_dict() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.values(), same.values(), strict=True))


def test_numbers_are_drawn_for_basis_estimator_and_weights_in_this_order():
    """So that a seed means the same layer in every version."""
    conv, generator = methods.PointConv(3, 4, radius=0.3, generator=seeded()), seeded()
    basis = pv.basis.MLP(16, 3, 0.0, scaled=False, radius=0.3, generator=generator)
    twin = pv.PointConvolution(
        3, 4, basis, pv.estimator.LearnedDensity(0.2, generator=generator), generator=generator
    )
    assert all(torch.equal(a, b) for a, b in zip(conv.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_runs_in_every_dimension(name, dim):
    size = {"FlexConv": dim + 1}.get(name, 9)
    options = {"radial": 4} if (name, dim) == ("SPHConv", 1) else {}  # on a line there are two directions
    conv = methods.METHODS[name](3, 2, size, dim, bias=False, unit_response=True, **options)
    cloud = pv.PointCloud(torch.rand(30, dim, generator=seeded()), [20, 10])
    hood = pv.ball_query(cloud, cloud, 0.4, max_neighbors=6, generator=seeded())
    out = conv(torch.randn(30, 3, generator=seeded()), hood)
    assert out.shape == (30, 2)
    assert torch.isfinite(out).all()
    assert conv.bias is None
    assert conv.basis.size == size


def test_published_widths():
    """In units of the receptive field, with m from the arrangement of 16 points."""
    raw = kernel_points.repulsion(16)
    m = float(raw.norm(dim=1)[1:].min())
    assert methods.KPConv(1, 1).basis.width == pytest.approx(m / (1 + m))
    assert methods.KPConvN(1, 1).basis.width == pytest.approx(2 * m / (1 + m))
    assert methods.PCCNN(1, 1).basis.sigma == pytest.approx(0.4 * m / (1 + m))
    assert methods.InterpCNN(1, 1, num_basis=27).basis.width == pytest.approx(0.5)
    assert methods.MCConv(1, 1).estimator.bandwidth == 0.2


def test_published_networks():
    mcconv, pointconv = methods.MCConv(1, 1).basis, methods.PointConv(1, 1, radius=0.3).basis
    assert (mcconv.slope, mcconv.scaled, mcconv.radius) == (0.2, True, None)
    assert (pointconv.slope, pointconv.scaled, pointconv.radius) == (0.0, False, 0.3)
    normed = methods.PointConv(1, 1, batch_norm=True)
    assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in normed.modules()) == 3
    assert isinstance(methods.ConvPoint(1, 1).basis.points, torch.nn.Parameter)


def test_spherical_bins_are_split_evenly():
    def bins(**options):
        b = methods.SPHConv(1, 1, **options).basis
        return b.radial, b.azimuth, b.polar

    assert bins() == (1, 5, 3)
    assert bins(num_basis=33, radial=2) == (2, 4, 4)
    assert bins(num_basis=16, dim=2) == (1, 15, 1)
    assert bins(num_basis=7, dim=1, radial=3) == (3, 2, 1)
    assert methods.SPHConv(1, 1, authors_azimuth=True).basis.authors_azimuth
    with pytest.raises(ValueError, match="each coordinate needs a bin, got 0 x"):
        pv.SPHConv(3, 2, radial=0)
    with pytest.raises(ValueError, match=r"16 bins are not 1 \+ 2 shells of equal bins in 3D"):
        methods.SPHConv(1, 1, radial=2)


def test_arguments_by_place_and_by_name():
    conv = methods.KPConvN(3, 4, 9, 2, False, True, False, 0.4, seeded())
    same = methods.KPConvN(
        out_channels=4,
        in_channels=3,
        generator=seeded(),
        bandwidth=0.4,
        unit_response=True,
        bias=False,
        dim=2,
        num_basis=9,
    )
    assert repr(conv) == repr(same)
    assert torch.equal(conv.weight, same.weight)
    assert (conv.basis.size, conv.basis.dim, conv.estimator.bandwidth) == (9, 2, 0.4)
    with pytest.raises(TypeError, match=r"KPConvN\(\) got an unexpected keyword argument 'bandwith'"):
        methods.KPConvN(3, 4, bandwith=0.4)
    with pytest.raises(TypeError, match=r"KPConv\(\) missing a required argument: 'out_channels'"):
        methods.KPConv(3)


def test_flexconv_has_no_choice():
    assert methods.FlexConv(1, 1, num_basis=4).basis.size == 4
    with pytest.raises(ValueError, match=r"FlexConv has D \+ 1 = 4 basis functions, got num_basis=16"):
        methods.FlexConv(1, 1, num_basis=16)


def test_resolve():
    assert methods.resolve("KPConvN", 3, 4, dim=2).method == "KPConvN"
    own = methods.resolve(lambda i, o, bias=True: methods.KPConv(i, o, bias=bias), 3, 4, bias=False)
    assert own.weight.shape == (16, 3, 4)
    with pytest.raises(ValueError, match=r"no method 'KPCon' .*'KPConv'.*; known are PCCNN, .*FlexConv"):
        methods.resolve("KPCon", 3, 4)
    with pytest.raises(TypeError, match="a name or a function, got int"):
        methods.resolve(3, 3, 4)
