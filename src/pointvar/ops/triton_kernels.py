"""The kernels of the convolution in Triton: ``project`` and ``unproject``, which evaluate bases on the way.

One program takes one row, a query with its neighbours, a block of EB of them at a time, and CB channels. The
functions of a basis are padded to KB, a power of two. Nothing is added up by several programs, so that every
run gives the same bits. Places in memory are counted in int64. Numbers that name edges or points are compared
with how many there are: what is out of range is left out, as the host does not wait to look at them.

Neither the numbers of a call nor the places of its edges in memory are specialised for: each batch has
others, often as parts of one buffer, and would be compiled for anew.

With ``TRITON_INTERPRET=1`` the same kernels run on CPU tensors, slowly, for tests.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: ignore-errors

NUMBERS = ["first", "count", "support"]
PLACES = ["operand", "scale", "row_offsets", "points", "edges"]


@triton.jit
def _axis(at, edge, inside, D: tl.constexpr, d: tl.constexpr):
    """One coordinate ``[EB]`` of the offsets; 0 where there are fewer dimensions."""
    return tl.load(at + edge * D + d, mask=inside & (d < D), other=0)


@triton.jit
def _parameter(parameters, k, K: tl.constexpr, D: tl.constexpr, d: tl.constexpr):
    """Column d ``[KB]`` of the kernel points, or of the map, ``[K, D]``."""
    return tl.load(parameters + k * D + d, mask=(k < K) & (d < D), other=0)


@triton.jit
def _affine(x, y, z, parameters, k, K: tl.constexpr, D: tl.constexpr):
    """The map and its bias ``[K]``, which follows it: ``[KB, EB]``."""
    result = tl.load(parameters + K * D + k, mask=k < K, other=0)[:, None]
    result = result + _parameter(parameters, k, K, D, 0)[:, None] * x[None, :]
    if D > 1:
        result = result + _parameter(parameters, k, K, D, 1)[:, None] * y[None, :]
    if D > 2:
        result = result + _parameter(parameters, k, K, D, 2)[:, None] * z[None, :]
    return result


@triton.jit
def _squared(x, y, z, parameters, k, K: tl.constexpr, D: tl.constexpr):
    """Squared distances to the kernel points, ``[KB, EB]``."""
    away = x[None, :] - _parameter(parameters, k, K, D, 0)[:, None]
    result = away * away
    if D > 1:
        away = y[None, :] - _parameter(parameters, k, K, D, 1)[:, None]
        result = result + away * away
    if D > 2:
        away = z[None, :] - _parameter(parameters, k, K, D, 2)[:, None]
        result = result + away * away
    return result


@triton.jit
def _basis(x, y, z, parameters, constant, k, K: tl.constexpr, D: tl.constexpr, BASIS: tl.constexpr):
    """b ``[KB, EB]`` at the offsets, as ``basis.py`` defines it; padding is 0."""
    if BASIS == "dot":
        value = tl.where(k[:, None] == 0, x[None, :], 0)
        if D > 1:
            value = tl.where(k[:, None] == 1, y[None, :], value)
        if D > 2:
            value = tl.where(k[:, None] == 2, z[None, :], value)
        value = tl.where(k[:, None] == D, 1, value)
    elif BASIS == "mlp":
        value = _affine(x, y, z, parameters, k, K, D)
        value = tl.where(value > 0, value, value * tl.load(constant))
    elif BASIS == "linear":
        distance = tl.sqrt(_squared(x, y, z, parameters, k, K, D))
        value = tl.maximum(1 - distance / tl.load(constant), 0)
    elif BASIS == "gaussian":
        sigma = tl.load(constant)
        value = tl.exp(_squared(x, y, z, parameters, k, K, D) * (-0.5 / (sigma * sigma)))
    else:
        tl.static_assert(BASIS == "nearest")
        squared = tl.where((k < K)[:, None], _squared(x, y, z, parameters, k, K, D), float("inf"))
        least = tl.min(squared, 0)
        first = tl.min(tl.where(squared == least[None, :], k[:, None], K - 1), 0)  # of equals
        value = tl.where(k[:, None] == first[None, :], 1.0, 0.0)
    return tl.where((k < K)[:, None], value, 0)


@triton.jit
def _values(
    operand,
    scale,
    parameters,
    constant,
    edge,
    inside,
    k,
    K: tl.constexpr,
    D: tl.constexpr,
    BASIS: tl.constexpr,
):
    """v ``[KB, EB]``: given, or the basis times the estimator's weights."""
    if BASIS == "values":
        known = inside[None, :] & (k < K)[:, None]
        v = tl.load(operand + edge[None, :] * K + k[:, None], mask=known, other=0)
    else:
        x = _axis(operand, edge, inside, D, 0)
        y = _axis(operand, edge, inside, D, 1)
        z = _axis(operand, edge, inside, D, 2)
        b = _basis(x, y, z, parameters, constant, k, K, D, BASIS)
        q = tl.load(scale + edge, mask=inside, other=0)
        v = tl.where(inside[None, :], b * q[None, :], 0).to(operand.dtype.element_ty)
    return v


@triton.jit
def _row(row_offsets, row, count):
    """Where a row begins and ends among ``count`` edges."""
    begin = tl.maximum(tl.load(row_offsets + row), 0)
    return begin, tl.minimum(tl.load(row_offsets + row + 1), count)


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=PLACES)
def project(
    phi,
    norm,
    response,
    squares,
    features,
    operand,
    scale,
    parameters,
    constant,
    row_offsets,
    points,
    edges,
    first,
    count,
    support,
    channels,
    K: tl.constexpr,
    D: tl.constexpr,
    BASIS: tl.constexpr,
    UNIT: tl.constexpr,
    KB: tl.constexpr,
    EB: tl.constexpr,
    CB: tl.constexpr,
):
    r"""phi[x, i, c] = sum over y of v_i(x, y) F[y, c], divided by its response where that is asked for.

    Grid: rows of the chunk x blocks of channels. ``None`` in place of a pointer: not wanted, or not there.

    Shapes (m rows from ``first`` on, E = count edges, N = support points):
        - phi: ``[m, K, C]``; norm: ``[M]``; response: ``[m, K]``; squares: ``[m, blocks]``, sums of phi^2
        - points: ``[E]``; edges: ``[E]``, the numbers by which operand and scale know them; ``None``: none
    """
    T: tl.constexpr = operand.dtype.element_ty
    local = tl.program_id(0).to(tl.int64)
    row = first + local
    k, c = tl.arange(0, KB), tl.program_id(1) * CB + tl.arange(0, CB)
    begin, end = _row(row_offsets, row, count)
    total = tl.zeros([KB, CB], T)
    answers = tl.zeros([KB, EB], T)
    for start in range(begin, end, EB):
        place = start + tl.arange(0, EB)
        inside = place < end
        point = tl.load(points + place, mask=inside, other=0)
        inside = inside & (point >= 0) & (point < support)
        edge = place
        if edges is not None:
            edge = tl.load(edges + place, mask=inside, other=0)
            inside = inside & (edge >= 0) & (edge < count)
        v = _values(operand, scale, parameters, constant, edge, inside, k, K, D, BASIS)
        seen = inside[:, None] & (c < channels)[None, :]
        near = tl.load(features + point[:, None] * channels + c[None, :], mask=seen, other=0).to(T)
        total = tl.dot(v, near, total, input_precision="ieee", out_dtype=T)
        if UNIT:
            answers += v
    if UNIT:
        answer = tl.sum(answers, 1)
        largest = tl.max(tl.abs(answer), 0)  # so that no square under- or overflows
        alive = largest > 0
        unit = tl.where(alive, largest, 1)
        length = tl.where(alive, tl.sqrt(tl.sum((answer / unit) * (answer / unit), 0)) * unit, float("inf"))
        total = tl.where(alive, total / length, 0)
        if tl.program_id(1) == 0:
            if norm is not None:
                tl.store(norm + row, length)
            if response is not None:
                tl.store(response + local * K + k, answer, mask=k < K)
    if squares is not None:
        wide = total.to(tl.float64)
        tl.store(squares + local * tl.num_programs(1) + tl.program_id(1), tl.sum(tl.sum(wide * wide, 1), 0))
    if phi is not None:
        place = (local * K + k)[:, None] * channels + c[None, :]
        tl.store(phi + place, total, mask=(k < K)[:, None] & (c < channels)[None, :])


@triton.jit(do_not_specialize=NUMBERS, do_not_specialize_on_alignment=PLACES)
def unproject(
    grad_operand,
    grad_scale,
    grad_parameters,
    grad_phi,
    norm,
    response,
    inner,
    features,
    operand,
    scale,
    parameters,
    constant,
    row_offsets,
    points,
    first,
    count,
    support,
    channels,
    K: tl.constexpr,
    D: tl.constexpr,
    BASIS: tl.constexpr,
    UNIT: tl.constexpr,
    KB: tl.constexpr,
    EB: tl.constexpr,
    CB: tl.constexpr,
):
    r"""Sends the gradient of phi back along the edges: dL/dv_i(x, y) = sum over c of dL/dphi[x, i, c] F[y, c]

    With unit response phi is divided by s = \|R\|, R the sum of v, and this becomes
    (dL/dv_i - R_i / s <dL/dphi, phi>) / s. From there to offsets, q and parameters of the basis.

    Shapes:
        - grad_phi: ``[m, K, C]``; response: ``[m, K]``; inner: ``[m]``, <dL/dphi, phi>
        - grad_operand: as operand; grad_scale: ``[E]``; grad_parameters: ``[m, parameters]``, sums of a row
    """
    T: tl.constexpr = operand.dtype.element_ty
    local = tl.program_id(0).to(tl.int64)
    row = first + local
    k = tl.arange(0, KB)
    begin, end = _row(row_offsets, row, count)
    sum_x, sum_y, sum_z, sum_one = tl.zeros([KB], T), tl.zeros([KB], T), tl.zeros([KB], T), tl.zeros([KB], T)
    for start in range(begin, end, EB):
        edge = start + tl.arange(0, EB)
        inside = edge < end
        point = tl.load(points + edge, mask=inside, other=0)
        inside = inside & (point >= 0) & (point < support)
        grad = tl.zeros([KB, EB], T)
        for channel in range(0, channels, CB):
            c = channel + tl.arange(0, CB)
            known = (k < K)[:, None] & (c < channels)[None, :]
            of_phi = tl.load(grad_phi + (local * K + k)[:, None] * channels + c[None, :], mask=known, other=0)
            seen = (c < channels)[:, None] & inside[None, :]
            near = tl.load(features + point[None, :] * channels + c[:, None], mask=seen, other=0)
            grad = tl.dot(of_phi.to(T), near.to(T), grad, input_precision="ieee", out_dtype=T)
        if UNIT:
            length = tl.load(norm + row)
            pull = tl.load(response + local * K + k, mask=k < K, other=0) / length * tl.load(inner + local)
            grad = tl.where(length < float("inf"), (grad - pull[:, None]) / length, 0)
        if BASIS == "values":
            known = (edge < end)[None, :] & (k < K)[:, None]
            grad = tl.where(inside[None, :], grad, 0)
            tl.store(grad_operand + edge[None, :] * K + k[:, None], grad, mask=known)
        else:
            x = _axis(operand, edge, inside, D, 0)
            y = _axis(operand, edge, inside, D, 1)
            z = _axis(operand, edge, inside, D, 2)
            grad = tl.where((k < K)[:, None] & inside[None, :], grad, 0)
            if grad_scale is not None:
                b = _basis(x, y, z, parameters, constant, k, K, D, BASIS)
                tl.store(grad_scale + edge, tl.sum(grad * b, 0), mask=edge < end)
            grad = grad * tl.load(scale + edge, mask=inside, other=0)[None, :]
            if BASIS == "mlp":
                slope = tl.load(constant)
                grad = tl.where(_affine(x, y, z, parameters, k, K, D) > 0, grad, grad * slope)
                sum_x += tl.sum(grad * x[None, :], 1)
                sum_y += tl.sum(grad * y[None, :], 1)
                sum_z += tl.sum(grad * z[None, :], 1)
                sum_one += tl.sum(grad, 1)
                grad_x = grad * _parameter(parameters, k, K, D, 0)[:, None]
                grad_y = grad * _parameter(parameters, k, K, D, 1)[:, None]
                grad_z = grad * _parameter(parameters, k, K, D, 2)[:, None]
            elif BASIS == "dot":
                grad_x = tl.where(k[:, None] == 0, grad, 0)
                grad_y = tl.where((k[:, None] == 1) & (D > 1), grad, 0)
                grad_z = tl.where((k[:, None] == 2) & (D > 2), grad, 0)
            elif BASIS == "nearest":
                grad_x = tl.zeros([KB, EB], T)
                grad_y = grad_x
                grad_z = grad_x
            else:  # db/dtau = pull (tau - p)
                squared = _squared(x, y, z, parameters, k, K, D)
                size = tl.load(constant)
                if BASIS == "gaussian":
                    pull = tl.exp(squared * (-0.5 / (size * size))) * (-1 / (size * size))
                else:
                    distance = tl.sqrt(squared)
                    alive = (distance > 0) & (distance < size)
                    pull = tl.where(alive, -1 / (tl.where(alive, distance, 1) * size), 0)
                grad = grad * pull
                grad_x = grad * (x[None, :] - _parameter(parameters, k, K, D, 0)[:, None])
                grad_y = grad * (y[None, :] - _parameter(parameters, k, K, D, 1)[:, None])
                grad_z = grad * (z[None, :] - _parameter(parameters, k, K, D, 2)[:, None])
                sum_x -= tl.sum(grad_x, 1)
                sum_y -= tl.sum(grad_y, 1)
                sum_z -= tl.sum(grad_z, 1)
            if grad_operand is not None:
                tl.store(grad_operand + edge * D, tl.sum(grad_x, 0), mask=edge < end)
                if D > 1:
                    tl.store(grad_operand + edge * D + 1, tl.sum(grad_y, 0), mask=edge < end)
                if D > 2:
                    tl.store(grad_operand + edge * D + 2, tl.sum(grad_z, 0), mask=edge < end)
    if grad_parameters is not None:
        WIDTH: tl.constexpr = K * (D + 1) if BASIS == "mlp" else K * D
        to = grad_parameters + local * WIDTH
        tl.store(to + k * D, sum_x, mask=k < K)
        if D > 1:
            tl.store(to + k * D + 1, sum_y, mask=k < K)
        if D > 2:
            tl.store(to + k * D + 2, sum_z, mask=k < K)
        if BASIS == "mlp":
            tl.store(to + K * D + k, sum_one, mask=k < K)
