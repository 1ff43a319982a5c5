"""Blocks: what stands before a layer, and linear layers drawn from a generator."""

import torch
from network_cases import clouds, features_of, seeded

import pointvar as pv
from pointvar.nn import ConvolutionBlock, LinearBlock, NoNorm, NormActivation, linear


def test_norm_then_activation_then_dropout():
    assert isinstance(NormActivation(2).norm, NoNorm)
    assert NormActivation(2, "batch").norm.norm.momentum == 0.1
    features = torch.tensor([[-10.0, 1.0], [2.0, 3.0]])
    before = NormActivation(2, bias=True, dropout=0.5)
    before.norm.bias.data = torch.tensor([5.0, 0.0])
    assert torch.equal(before.eval()(features), torch.tensor([[-1.0, 1.0], [7.0, 3.0]]))
    torch.manual_seed(0)
    dropped = before.train()(torch.ones(1000, 2) - torch.tensor([5.0, 0.0]))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_activation_is_copied():
    shared = torch.nn.PReLU()
    one, two = (NormActivation(2, activation=shared) for _ in range(2))
    assert one.activation.weight is not two.activation.weight


def test_blocks():
    cloud = clouds(20, 10)
    hood, features = pv.ball_query(cloud, cloud, 0.5), features_of(cloud, 4)
    before = NormActivation(4, "group")
    conv, layer = pv.KPConv(4, 3), linear(4, 3)
    assert torch.equal(ConvolutionBlock(None, conv)(features, hood), conv(features, hood))
    assert torch.equal(ConvolutionBlock(before, conv)(features, hood), conv(before(features, cloud), hood))
    assert torch.equal(LinearBlock(None, layer)(features), layer(features))
    assert torch.equal(LinearBlock(before, layer)(features, cloud), layer(before(features, cloud)))


def test_linear_starts_as_torchs_own():
    """Uniform between -1/sqrt(in) and 1/sqrt(in): the largest of 40,000 values comes near the bound."""
    ours, theirs = linear(100, 400, seeded()), torch.nn.Linear(100, 400)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert a.shape == b.shape
        assert a.requires_grad
        assert 0.097 < a.abs().max() <= 0.1
        assert abs(a.std() - b.std()) < 0.004  # the bias has 400 values: 3 sigma of either is 0.003
    same = linear(100, 400, seeded())
    assert torch.equal(same.weight, ours.weight)
    assert torch.equal(same.bias, ours.bias)
    state = torch.get_rng_state()
    linear(100, 400, seeded())
    assert torch.equal(torch.get_rng_state(), state)
