"""Preconditioned steps: the same layer, drawn and saved as published, and the steps of the formula."""

import copy
import pickle

import numpy as np
import pytest
import torch
from convolution_cases import BASES, features_of, seeded, two_clouds
from test_orthonormal import NETWORKS, gram
from torch import nn
from torch.nn.utils import prune

import pointvar as pv
from pointvar import basis, estimator
from pointvar.precondition import overlap, preconditioner
from pointvar.train import AdaptiveClipping


class Waves(pv.Basis):
    """A basis of one's own in ten lines, for any dimension; its functions overlap, one is 0."""

    size = 5

    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.tensor([0.0, 0.5, 1.0, 1.5]))

    def forward(self, offsets, radius):
        return nn.functional.pad(torch.cos(self.frequency * (1 + offsets.sum(1, keepdim=True))), (0, 1))


KINDS = {**{name: BASES[name] for name in BASES if "orthonormal" not in name}, "own": lambda dim: Waves()}


MANY = 100  # outputs, with which mixing the functions takes less time than mixing the weights


def conv_of(kind, dim=3, dtype=torch.float64, outputs=2, **options):
    options = {"precondition": True, "generator": seeded(1), **options}
    return pv.PointConvolution(3, outputs, KINDS[kind](dim), estimator.Average(), **options).to(dtype)


def by_hand(b, radius=None):
    """s^2 A^-1 in float64, from the formula."""
    c = overlap(b, radius)
    a = c + 1e-3 * torch.linalg.eigvalsh(c)[-1] * torch.eye(b.size, dtype=torch.float64)
    return a.trace() / b.size * torch.linalg.inv(a)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix(kind, dim):
    b = KINDS[kind](dim)
    m = preconditioner(b)
    assert torch.equal(m, m.T)
    torch.testing.assert_close(m @ m, by_hand(b), rtol=1e-8, atol=1e-8)
    if kind != "MLP with norm":  # which normalises the offsets that it is given
        torch.testing.assert_close(
            overlap(b), gram(b, dim, getattr(b, "radius", None) or 1), rtol=0.2, atol=0.05
        )


def test_the_radius_that_a_basis_sees():
    """The bias of PointConv's map is in units of length: C depends on the radius."""
    b = basis.MLP(6, 3, 0.0, scaled=False, radius=0.2, generator=seeded())
    nn.init.normal_(b.linear.bias, generator=seeded(1))
    assert torch.equal(overlap(b), overlap(b, 0.2))
    torch.testing.assert_close(overlap(b, 0.7), gram(b, 3, 0.7), rtol=0.2, atol=0.05)
    assert not torch.allclose(overlap(b, 0.7), overlap(b), rtol=0.1)
    conv = pv.PointConvolution(3, 2, b, estimator.Sum(), precondition=True).double()
    conv.refresh_precondition(0.7)
    torch.testing.assert_close(conv.preconditioner.data, preconditioner(b, 0.7))
    conv.refresh_precondition()
    torch.testing.assert_close(conv.preconditioner.data, preconditioner(b, 0.7))


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_an_optimiser_are_those_of_the_formula(kind, dim):
    """SGD with momentum and weight decay, three steps, in coordinates and by hand:
    B <- mu B + s^2 A^-1 G + lambda W, W <- W - eta B."""
    hood, rate, momentum, decay = two_clouds(dim), 0.1, 0.9, 0.05
    conv = conv_of(kind, dim)
    features, target = features_of(hood), torch.randn(7, 2, generator=seeded(9), dtype=torch.float64)
    plain = conv_of(kind, dim, precondition=False)
    conv.refresh_precondition()  # in float64
    conv.weight = plain.weight.detach()
    for part in (conv, plain):
        part.basis.requires_grad_(False)
    assert torch.allclose(conv.weight, plain.weight)
    matrix, buffer = by_hand(conv.basis), torch.zeros_like(plain.weight)
    learned = [conv.coordinates, conv.bias]
    optimizer = torch.optim.SGD(learned, rate, momentum, weight_decay=decay)
    hand_bias = torch.optim.SGD([plain.bias], rate, momentum, weight_decay=decay)
    for _ in range(3):
        for part in (conv, plain):
            part.zero_grad()
            (part(features, hood) - target).square().sum().backward()
        optimizer.step()
        hand_bias.step()
        with torch.no_grad():
            step = torch.einsum("ij,jco->ico", matrix, plain.weight.grad) + decay * plain.weight
            buffer = momentum * buffer + step
            plain.weight -= rate * buffer
        torch.testing.assert_close(conv.weight, plain.weight, rtol=1e-7, atol=1e-7)
    assert not torch.allclose(conv.weight, conv_of(kind, dim, precondition=False).weight, rtol=1e-2)


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_few_points_and_many_are_the_same_layer(kind, unit):
    """Whichever is mixed, functions or weights: the layer without preconditioning, and its gradients."""
    hood = two_clouds()
    assert 6 < hood.num_edges < 3 * MANY
    features = features_of(hood).requires_grad_()
    pair = [conv_of(kind, outputs=MANY, unit_response=unit, precondition=on).eval() for on in (True, False)]
    pair[1].load_state_dict(pair[0].state_dict())
    outputs = [conv(features, hood) for conv in pair]
    torch.testing.assert_close(*outputs)
    back = torch.randn(outputs[0].shape, generator=seeded(), dtype=torch.float64)
    grads = []
    for conv, out in zip(pair, outputs, strict=True):
        wanted = [features, conv.learned, *(p for p in conv.basis.parameters())]
        grads.append(torch.autograd.grad(out, wanted, back))
    first, second = grads
    mixed = torch.einsum("ij,jco->ico", pair[0].preconditioner, second[1])
    torch.testing.assert_close(first, (second[0], mixed, *second[2:]))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("outputs", [2, MANY])
@pytest.mark.parametrize("kind", ["Gaussian", "MLP", "unscaled MLP", "MLPCorrelation", "own"])
def test_gradients(kind, outputs, unit):
    conv, hood = conv_of(kind, outputs=outputs, unit_response=unit), two_clouds()
    parameters = {name: p for name, p in conv.named_parameters() if p.requires_grad}

    def run(features, *values):
        return torch.func.functional_call(conv, dict(zip(parameters, values, strict=True)), (features, hood))

    assert torch.autograd.gradcheck(
        run, (features_of(hood).requires_grad_(), *parameters.values()), fast_mode=True
    )


def test_clipping_sees_the_coordinates():
    """G_i <- G_i min(1, lambda |V_i| / |G_i|), of V."""
    conv = conv_of("Gaussian")
    net = nn.Sequential(conv, nn.Linear(2, 2).double())
    conv.coordinates.grad = 10 * torch.randn(conv.coordinates.shape, generator=seeded(), dtype=torch.float64)
    AdaptiveClipping(net, 0.05)()
    for o in range(2):
        ratio = conv.coordinates.grad[..., o].norm() / conv.coordinates[..., o].norm()
        assert float(ratio.detach()) == pytest.approx(0.05)


# The weight is W, always


@pytest.mark.parametrize("name", pv.methods.METHODS)
def test_weights_are_drawn_as_published(name):
    """By the layer itself and by every initialisation, up to the rounding that the module states."""
    hood = two_clouds(dtype=torch.float32)
    features = features_of(hood)
    make = pv.methods.METHODS[name]
    pair = [make(3, 2, unit_response=True, precondition=on, generator=seeded()) for on in (False, True)]
    assert not isinstance(pair[1].weight, nn.Parameter)

    def same():
        plain, learned = (conv.weight.detach() for conv in pair)
        assert float((plain - learned).abs().max()) < 2e-6 * float(plain.abs().max())

    same()
    reports = []
    for initialise in (
        lambda conv: pv.standard_init(conv, generator=seeded(1)),
        lambda conv: pv.closed_form_init(conv, generator=seeded(1)),
        lambda conv: pv.variance_init(conv, (features, hood), generator=seeded(2)),
        lambda conv: pv.variance_init(conv, (features, hood), exact=True, generator=seeded(2)),
        lambda conv: pv.lsuv_init(conv, (features, hood), generator=seeded(3)),
        lambda conv: pv.data_dependent_init(conv, (features, hood), generator=seeded(4)),
    ):
        reports = [initialise(conv) for conv in pair]
        same()
        first, second = (report.layers[0].variance for report in reports)
        assert first == pytest.approx(second, rel=1e-5)
        torch.testing.assert_close(*(conv(features, hood) for conv in pair), rtol=1e-4, atol=1e-4)


def test_setting_the_weight():
    conv = conv_of("LinearCorrelation")
    value = torch.randn(conv.weight.shape, generator=seeded(), dtype=torch.float64)
    conv.weight = value
    torch.testing.assert_close(conv.weight, value)
    with pytest.raises(ValueError, match=r"shape \[6, 3, 2\], got a .*\[3, 2\]"):
        conv.weight = value[0]
    plain = conv_of("LinearCorrelation", precondition=False)
    plain.weight = nn.Parameter(value)  # as torch has it
    assert torch.equal(plain.weight, value)
    with pytest.raises(TypeError):
        plain.weight = value


READS = {
    "a pass": lambda conv: None,
    "the weight": lambda conv: conv.weight,
    "a state dict": lambda conv: conv.state_dict(),
    "a refresh": lambda conv: conv.refresh_precondition(),
    "a copy": lambda conv: conv.load_state_dict(copy.deepcopy(conv).state_dict()),
}


@pytest.mark.parametrize("read", READS)
def test_what_is_written_into_the_weight_is_not_lost(read):
    """As users of torch do it, with any weight of any layer."""
    conv, features, hood = conv_of("Gaussian"), features_of(two_clouds()), two_clouds()
    nn.init.constant_(conv.weight, 0.25)
    READS[read](conv)
    plain = conv_of("Gaussian", precondition=False)
    with torch.no_grad():
        plain.weight.fill_(0.25)
    torch.testing.assert_close(conv(features, hood), plain(features, hood))
    with torch.no_grad():
        conv.weight[0].mul_(2)
        plain.weight[0].mul_(2)
    torch.testing.assert_close(conv(features, hood), plain(features, hood))
    torch.testing.assert_close(conv.state_dict()["weight"], plain.weight.detach())
    before = conv.coordinates.clone()
    conv(features, hood)
    assert conv.weight.shape == plain.weight.shape
    conv(features, hood)
    assert torch.equal(conv.coordinates, before)  # who only looks changes nothing
    nn.init.constant_(conv.weight, 7.0)
    conv.load_state_dict(plain.state_dict())  # what is loaded later counts
    torch.testing.assert_close(conv.weight, plain.weight)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(conv)))
    torch.testing.assert_close(twin(features, hood), plain(features, hood))


def _copy_by_hand(conv):
    state = conv.state_dict()
    state["weight"].copy_(2 * state["weight"])


def _replace_by_a_parameter(conv):
    conv.weight = nn.Parameter(2 * conv.weight.detach())


def _assign_data(conv):
    conv.weight.data = 2 * conv.weight.data


DOUBLED = {
    "data": lambda conv: conv.weight.data.mul_(2),
    "data, assigned": _assign_data,
    "numpy": lambda conv: np.multiply(conv.weight.numpy(force=True), 2, conv.weight.numpy(force=True)),
    "read once more": lambda conv: conv.weight.mul_(2 * conv.weight.numel() / conv.weight[:].numel()),
    "a loader of one's own": _copy_by_hand,
    "a parameter": _replace_by_a_parameter,
    "inference": torch.inference_mode()(lambda conv: conv.weight.mul_(2)),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("write", DOUBLED)
def test_no_way_to_write_is_lost(write, grad):
    conv, features, hood = conv_of("Gaussian", bias=False), features_of(two_clouds()), two_clouds()
    before = conv(features, hood)
    with torch.set_grad_enabled(grad):
        DOUBLED[write](conv)
    torch.testing.assert_close(conv(features, hood), 2 * before)
    torch.testing.assert_close(conv.state_dict()["weight"], conv.weight.detach())
    assert [name for name, _ in conv.named_parameters()] == ["coordinates"]


def test_who_looks_at_a_broken_weight_changes_nothing():
    conv = conv_of("Gaussian")
    with torch.no_grad():
        conv.coordinates[0, 0, 0] = torch.nan
    before = conv.coordinates.detach().clone()
    assert conv.weight.isnan().any()
    assert conv.weight.isnan().any()
    torch.testing.assert_close(conv.coordinates.detach(), before, rtol=0, atol=0, equal_nan=True)


def test_a_weight_that_is_read_twice_has_a_graph_of_its_own_each_time():
    conv = conv_of("Gaussian")
    for _ in range(2):
        conv.weight.square().sum().backward()
    twice = conv.coordinates.grad.clone()
    conv.zero_grad()
    (2 * conv.weight.square().sum()).backward()
    torch.testing.assert_close(twice, conv.coordinates.grad)
    value = torch.func.vmap(
        lambda c: torch.func.functional_call(_Reading(conv), {"conv.coordinates": c}, ())
    )(torch.stack([conv.coordinates.detach()] * 2))
    torch.testing.assert_close(value, conv.weight.detach().sum().expand(2))


class _Reading(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self):
        return self.conv.weight.sum()


def test_tools_that_replace_a_parameter_still_do():
    conv, hood = conv_of("Gaussian", precondition=False), two_clouds()
    prune.l1_unstructured(conv, "weight", 0.5)
    assert int((conv.weight == 0).sum()) == conv.weight.numel() // 2
    conv(features_of(hood), hood).sum().backward()
    assert conv.weight_orig.grad is not None


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_go_across(kind):
    learned, plain = (
        conv_of(kind, dtype=torch.float32),
        conv_of(kind, precondition=False, dtype=torch.float32),
    )
    with torch.no_grad():
        for parameter in learned.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)  # trained, the basis too
    state = learned.state_dict()
    assert torch.equal(state["weight"], learned.weight)
    assert not state["weight"].requires_grad
    plain.load_state_dict(state)
    assert torch.equal(plain.weight, state["weight"])
    # Back, by way of the weights alone: W to rounding, and M of the basis that came with them.
    again = conv_of(kind, dtype=torch.float32, generator=seeded(7))
    again.load_state_dict(plain.state_dict())
    error = (again.weight - state["weight"]).abs().max() / state["weight"].abs().max()
    assert float(error.detach()) < 2e-6
    torch.testing.assert_close(again.preconditioner.data, preconditioner(plain.basis).float())


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_without_end(kind):
    """The same bits, of all that is learned, of W and of M, which may be that of an earlier basis."""
    conv = conv_of(kind, dtype=torch.float32)
    with torch.no_grad():
        conv.coordinates.add_(0.1)
        for parameter in conv.basis.parameters():
            parameter.mul_(1.5)
    state = copy.deepcopy(conv.state_dict())
    for _ in range(3):
        conv = conv_of(kind, dtype=torch.float32, generator=seeded(7))
        assert not conv.load_state_dict(conv.state_dict() | state).missing_keys
        assert conv.state_dict().keys() == state.keys()
        assert all(torch.equal(value, state[name]) for name, value in conv.state_dict().items())


def test_a_weight_that_was_changed_counts():
    conv = conv_of("Gaussian")
    state = conv.state_dict()
    state["weight"] = 2 * state["weight"]
    conv.load_state_dict(state)
    torch.testing.assert_close(conv.weight, state["weight"])
    conv.load_state_dict(state, assign=True)
    torch.testing.assert_close(conv.weight, state["weight"])
    with pytest.raises(RuntimeError, match="size mismatch"):
        conv.load_state_dict({**state, "weight": state["weight"][1:]})
    del state["weight"], state["coordinates"]
    with pytest.raises(RuntimeError, match="Missing key"):
        conv.load_state_dict(state)


def test_copies():
    conv, hood = conv_of("MLP"), two_clouds()
    features = features_of(hood)
    conv(features, hood).sum().backward()
    for twin in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
        assert torch.equal(twin(features, hood), conv(features, hood))
        with torch.no_grad():
            twin.coordinates.zero_()
        assert float(twin.weight.abs().max().detach()) == 0 < float(conv.weight.abs().max().detach())


def test_refreshed_for_the_basis_of_today():
    conv, hood = conv_of("MLP"), two_clouds()
    features, weight, before = features_of(hood), conv.weight.detach(), conv.preconditioner.clone()
    with torch.no_grad():
        conv.basis.linear.bias.add_(0.5)
    out = conv(features, hood)
    conv.refresh_precondition()
    assert not torch.allclose(conv.preconditioner, before, rtol=1e-2)
    torch.testing.assert_close(conv.preconditioner.data, preconditioner(conv.basis))
    torch.testing.assert_close(conv.weight, weight)
    torch.testing.assert_close(conv(features, hood), out)


def test_drawing_refreshes():
    conv = conv_of("MLP")
    for redraw in (lambda: conv.reset_parameters(seeded()), lambda: pv.standard_init(conv)):
        conv.basis.reset_parameters(seeded(5))
        with torch.no_grad():
            conv.basis.linear.bias.add_(torch.rand(6, generator=seeded(6)))
        redraw()
        torch.testing.assert_close(conv.preconditioner.data, preconditioner(conv.basis))


def test_direct_initialisation_of_a_basis_that_sees_lengths():
    hood = two_clouds()
    conv = pv.PointConv(3, 4, num_basis=5, precondition=True, generator=seeded()).double()
    (entry,) = pv.variance_init(conv, (features_of(hood), hood), exact=False, generator=seeded(1)).layers
    assert float(conv.second_moment(features_of(hood), hood)) == pytest.approx(1 / entry.variance)
    torch.testing.assert_close(conv.preconditioner.data, preconditioner(conv.basis, 0.55))


def test_an_error_leaves_everything_as_it_was():
    conv, hood = conv_of("unscaled MLP"), two_clouds()
    before = copy.deepcopy(conv.state_dict())
    with pytest.raises(ValueError, match="its input is 0 everywhere"):
        pv.variance_init(conv, (0 * features_of(hood), hood))
    assert all(torch.equal(value, before[name]) for name, value in conv.state_dict().items())


@pytest.mark.parametrize("method", ["KPConvN", "PointConv", ("Gaussian", "Average")])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_the_option(name, method):
    sizes, options = NETWORKS[name]
    net = getattr(pv.models, name)(*sizes, method=method, precondition=True, **options)
    convs = [m for m in net.modules() if isinstance(m, pv.PointConvolution)]
    assert convs
    assert all(conv.precondition for conv in convs)
    plain = getattr(pv.models, name)(*sizes, method=method, **options)
    plain.load_state_dict(net.state_dict())


def test_low_precision_is_for_the_product_with_features_alone():
    conv = conv_of("LinearCorrelation", dtype=torch.float32)
    expected, hood = conv.weight.detach(), two_clouds(dtype=torch.float32)
    wide = conv_of("LinearCorrelation", dtype=torch.float32, outputs=MANY, unit_response=True)
    out = wide(features_of(hood), hood)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(conv.weight.detach(), expected)
        low = wide(features_of(hood), hood)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), out, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("outputs", [2, MANY])
@pytest.mark.parametrize("name", ["KPConvN", "MCConv"])
def test_compiles_as_one_graph(name, outputs):
    torch._dynamo.reset()
    hood = two_clouds(dtype=torch.float32)
    hood.density = estimator.density(hood, 0.4)
    conv = pv.methods.resolve(name, 3, outputs, unit_response=True, precondition=True)
    f = features_of(hood)
    out = torch.compile(conv, fullgraph=True, backend="aot_eager")(f, hood)
    torch.testing.assert_close(out, conv(f, hood))
    (grad,) = torch.autograd.grad(out.square().sum(), conv.coordinates)
    (expected,) = torch.autograd.grad(conv(f, hood).square().sum(), conv.coordinates)
    torch.testing.assert_close(grad, expected)


def test_orthonormal_bases_say_what_to_use():
    with pytest.warns(DeprecationWarning, match="precondition=True"):
        pv.orthonormalise(pv.KPConvN(2, 2))
    with pytest.warns(DeprecationWarning, match="precondition=True"):
        pv.models.PlainNet(1, 2, orthonormal=True)
