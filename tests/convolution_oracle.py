"""The paper's sums as loops over Python floats. Parameters are read off the modules, nothing else."""

import itertools
import math

import torch


def convolve(conv, features, hood):
    """(out [M, O], phi [M, K * C]) of a layer, in float64."""
    weight, features = conv.weight.tolist(), features.tolist()
    bias = [0.0] * conv.out_channels if conv.bias is None else conv.bias.tolist()
    q = _estimate(conv.estimator, hood)
    outs, phis = [], []
    for x, neighbors in enumerate(_rows(hood)):
        size, channels = len(weight), conv.in_channels
        phi = [[0.0] * channels for _ in range(size)]
        response = [0.0] * size
        for y in neighbors:
            b = basis_values(conv.basis, _offset(hood, x, y), float(hood.radius[x]))
            for i in range(size):
                response[i] += q[x, y] * b[i]
                for c in range(channels):
                    phi[i][c] += q[x, y] * b[i] * features[y][c]
        if conv.unit_response:
            s = math.sqrt(sum(value * value for value in response))
            phi = [[value / s if s else 0.0 for value in row] for row in phi]
        out = list(bias)
        for o in range(conv.out_channels):
            for i in range(size):
                for c in range(channels):
                    out[o] += phi[i][c] * weight[i][c][o]
        outs.append(out)
        phis.append([value for row in phi for value in row])
    return torch.tensor(outs, dtype=torch.float64), torch.tensor(phis, dtype=torch.float64)


def basis_values(basis, offset, radius):
    """b_i(offset), where offset = (y - x) / r is a list of floats."""
    kind = type(basis).__name__
    if kind == "Orthonormal":
        values = basis_values(basis.inner, offset, radius)
        return [sum(m * v for m, v in zip(row, values, strict=True)) for row in basis.mixing.T.tolist()]
    if kind == "Gaussian":
        return [math.exp(-(math.dist(p, offset) ** 2) / (2 * basis.sigma**2)) for p in basis.points.tolist()]
    if kind == "LinearCorrelation":
        return [max(1 - math.dist(p, offset) / basis.width, 0.0) for p in basis.points.tolist()]
    if kind == "NearestPoint":
        distances = [math.dist(p, offset) for p in basis.points.tolist()]
        return [1.0 if i == distances.index(min(distances)) else 0.0 for i in range(basis.size)]
    if kind == "SphericalBins":
        chosen = _bin(basis, offset)
        return [1.0 if i == chosen else 0.0 for i in range(basis.size)]
    if kind == "MLP":
        seen = offset if basis.scaled else [value * radius for value in offset]
        values = _norm(basis.norm, _affine(basis.linear, seen))
        return [value if value > 0 else basis.slope * value for value in values]
    if kind == "MLPCorrelation":
        values = [o - c for p in basis.points.tolist() for o, c in zip(offset, p, strict=True)]
        for linear in basis.mlp[::2]:
            values = [max(value, 0.0) for value in _affine(linear, values)]
        return values
    assert kind == "Dot"
    return [*offset, 1.0]


def _estimate(estimator, hood):
    """q(x, y) for all edges."""
    kind, q = type(estimator).__name__, {}
    dim = hood.support.dim
    density = None if kind in ("Sum", "Average") else _density(estimator.bandwidth, hood)
    for x, neighbors in enumerate(_rows(hood)):
        for y in neighbors:
            if kind == "Sum":
                q[x, y] = 1.0
            elif kind == "Average":
                q[x, y] = 1 / len(neighbors)
            elif kind == "MonteCarlo":
                ratio = int(hood.total_counts[x]) / len(neighbors)
                q[x, y] = ratio / (float(hood.radius[x]) ** dim * density[y])
            else:
                assert kind == "LearnedDensity"
                relative = (1 / density[y]) / max(1 / density[n] for n in neighbors)
                first, first_norm, _, second, second_norm, _ = estimator.mlp
                hidden = [max(v, 0.0) for v in _norm(first_norm, _affine(first, [relative]))]
                q[x, y] = 1 / (1 + math.exp(-_norm(second_norm, _affine(second, hidden))[0]))
    return q


def _density(bandwidth, hood):
    """Normalised Gaussians around all points of the cloud, cut at 4 h."""
    points, cloud_of = hood.support.points.tolist(), _clouds(hood.support)
    queries_in, dim = _clouds(hood.queries), hood.support.dim
    density = []
    for a, cloud in zip(points, cloud_of, strict=True):
        radii = [float(r) for r, c in zip(hood.radius, queries_in, strict=True) if c == cloud]
        h = bandwidth * sum(radii) / len(radii)
        total = 0.0
        for b, other in zip(points, cloud_of, strict=True):
            if other == cloud and math.dist(a, b) < 4 * h:
                total += math.exp(-(math.dist(a, b) ** 2) / (2 * h * h)) / (2 * math.pi * h * h) ** (dim / 2)
        density.append(total)
    return density


def _rows(hood):
    offsets, indices = hood.row_offsets.tolist(), hood.indices.tolist()
    return [indices[a:b] for a, b in itertools.pairwise(offsets)]


def _offset(hood, x, y):
    pair = zip(hood.support.points[y].tolist(), hood.queries.points[x].tolist(), strict=True)
    return [(a - b) / float(hood.radius[x]) for a, b in pair]


def _clouds(cloud):
    return [b for b, length in enumerate(cloud.lengths.tolist()) for _ in range(length)]


def _bin(basis, offset):
    distance = math.hypot(*offset)
    if distance < 1e-4:
        return 0
    number = _part(distance, 1.0, basis.radial)
    if len(offset) == 1:
        return 1 + number * 2 + (offset[0] > 0)
    if basis.authors_azimuth:
        azimuth = math.atan(offset[1] / (offset[0] + 1e-6))
    else:
        azimuth = math.atan2(offset[1], offset[0]) % (2 * math.pi)
    number = number * basis.azimuth + _part(azimuth, 2 * math.pi, basis.azimuth)
    if len(offset) == 3:
        number = number * basis.polar + _part(math.acos(offset[2] / distance), math.pi, basis.polar)
    return 1 + number


def _part(value, whole, count):
    """The first of ``count`` equal parts whose upper end is not below the value; else the last."""
    return next((i for i in range(count) if value <= whole * (i + 1) / count), count - 1)


def _affine(linear, values):
    rows = zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
    return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in rows]


def _norm(norm, values):
    """Batch normalisation with its stored statistics, or nothing."""
    if not isinstance(norm, torch.nn.BatchNorm1d):
        return values
    stored = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    parts = zip(values, *(t.tolist() for t in stored), strict=True)
    return [(v - mean) / math.sqrt(var + norm.eps) * w + b for v, mean, var, w, b in parts]
