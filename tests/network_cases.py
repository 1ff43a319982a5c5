"""Small clouds and networks that the tests of networks share."""

import torch

import pointvar as pv

METHODS = list(pv.methods.METHODS)
NORMS = ["none", "batch", "group", "layer"]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def clouds(*lengths, dim=3, dtype=torch.float32, seed=0):
    """A batch of clouds of so many points in the unit cube."""
    points = torch.rand(sum(lengths), dim, generator=seeded(seed), dtype=torch.float64).to(dtype)
    return pv.PointCloud(points, list(lengths))


def features_of(cloud, channels, seed=1):
    values = torch.randn(cloud.num_points, channels, generator=seeded(seed), dtype=torch.float64)
    return values.to(cloud.dtype)


def executed(model, *inputs, kinds=(pv.PointConvolution, torch.nn.Linear)):
    """Names of the layers of the network itself in the order of their execution; not those inside a layer."""
    names, handles = [], []
    for name, _ in registered(model, kinds):
        hook = lambda *_, name=name: names.append(name)  # noqa: E731
        handles.append(model.get_submodule(name).register_forward_hook(hook))
    model(*inputs)
    for handle in handles:
        handle.remove()
    return names


def registered(model, kinds=(pv.PointConvolution, torch.nn.Linear)):
    """The layers of the network itself in the order of their registration."""
    inside = [name for name, m in model.named_modules() if isinstance(m, pv.PointConvolution)]
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and not any(name.startswith(f"{outer}.") for outer in inside)
    ]
