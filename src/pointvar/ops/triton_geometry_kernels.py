"""The kernels of geometry in Triton: one program for each query, or for each cloud of farthest points.

A query looks at R ranges of the support points, which are sorted by cell (``grid.py``), BLOCK at a time.
Squared distances are summed from the first axis to the last with one rounding per operation, as everywhere:
these kernels must be compiled without fused multiply-adds, or points at the radius change sides.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: ignore-errors

PLACES = ["queries", "points", "offsets"]  # which may be parts of a buffer, as on the levels of a hierarchy


@triton.jit
def _coordinate(points, at, inside, D: tl.constexpr, d: tl.constexpr):
    return tl.load(points + at * D + d, mask=inside & (d < D), other=0)


@triton.jit
def _squared(points, at, inside, x, y, z, D: tl.constexpr):
    """``[BLOCK]``: of the points at these places, from (x, y, z)."""
    away = _coordinate(points, at, inside, D, 0) - x
    result = away * away
    if D > 1:
        away = _coordinate(points, at, inside, D, 1) - y
        result = result + away * away
    if D > 2:
        away = _coordinate(points, at, inside, D, 2) - z
        result = result + away * away
    return result


@triton.jit
def _query(queries, query, D: tl.constexpr):
    y = tl.load(queries + query * D + 1) if D > 1 else 0.0
    z = tl.load(queries + query * D + 2) if D > 2 else 0.0
    return tl.load(queries + query * D), y, z


@triton.jit
def _range(begin, sizes, query, r, R: tl.constexpr):
    first = tl.load(begin + query * R + r)
    return first, first + tl.load(sizes + query * R + r)


@triton.jit
def _is_near(squared, inside, reach):
    """Closer than the reach, a squared radius; nothing is beyond a reach that is not a number."""
    return tl.where(squared >= reach, False, inside)


@triton.jit(do_not_specialize=["number"], do_not_specialize_on_alignment=PLACES)
def neighbours(
    counts,
    keys,
    row_offsets,
    support,
    order,
    queries,
    reaches,
    begin,
    sizes,
    number,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How many support points are near, or, with ``keys``, query * number + each of them."""
    query = tl.program_id(0).to(tl.int64)
    x, y, z = _query(queries, query, D)
    reach = tl.load(reaches + query)
    found = tl.zeros([], tl.int64)
    if keys is not None:
        found += tl.load(row_offsets + query)
    for r in range(R):
        first, last = _range(begin, sizes, query, r, R)
        for start in range(first, last, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < last
            near = _is_near(_squared(support, place, inside, x, y, z, D), inside, reach).to(tl.int64)
            if keys is not None:
                point = tl.load(order + place, mask=inside, other=0)
                to = found + tl.cumsum(near, 0) - 1
                tl.store(keys + to, query * number + point, mask=near > 0)
            found += tl.sum(near, 0)
    if keys is None:
        tl.store(counts + query, found)


@triton.jit(do_not_specialize=["number"], do_not_specialize_on_alignment=PLACES)
def nearest(
    keys,
    farthest,
    done,
    row_offsets,
    support,
    order,
    queries,
    reaches,
    begin,
    sizes,
    number,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The nearest support points of queries that have as many as they need within the radius.

    One after the other: the least of those beyond the last one, by distance and then by number.
    """
    query = tl.program_id(0).to(tl.int64)
    if tl.load(done + query) == 0:
        x, y, z = _query(queries, query, D)
        reach = tl.load(reaches + query)
        base = tl.load(row_offsets + query)
        need = tl.load(row_offsets + query + 1) - base
        found = tl.zeros([], tl.int64)
        for r in range(R):
            first, last = _range(begin, sizes, query, r, R)
            for start in range(first, last, BLOCK):
                place = start + tl.arange(0, BLOCK)
                inside = place < last
                near = _is_near(_squared(support, place, inside, x, y, z, D), inside, reach)
                found += tl.sum(near.to(tl.int64), 0)
        if found >= need:
            last_squared = tl.zeros([], support.dtype.element_ty) - 1
            last_point = tl.zeros([], tl.int64) - 1
            for i in range(need):
                best = tl.full([BLOCK], float("inf"), support.dtype.element_ty)
                which = tl.full([BLOCK], 1 << 62, tl.int64)
                for r in range(R):
                    first, last = _range(begin, sizes, query, r, R)
                    for start in range(first, last, BLOCK):
                        place = start + tl.arange(0, BLOCK)
                        inside = place < last
                        squared = _squared(support, place, inside, x, y, z, D)
                        point = tl.load(order + place, mask=inside, other=0)
                        beyond = (squared > last_squared) | ((squared == last_squared) & (point > last_point))
                        better = (squared < best) | ((squared == best) & (point < which))
                        better = better & beyond & _is_near(squared, inside, reach)
                        best = tl.where(better, squared, best)
                        which = tl.where(better, point, which)
                last_squared = tl.min(best, 0)
                last_point = tl.min(tl.where(best == last_squared, which, 1 << 62), 0)
                tl.store(keys + base + i, query * number + last_point)
            tl.store(farthest + query, last_point)
            tl.store(done + query, 1)


@triton.jit(do_not_specialize_on_alignment=PLACES)
def disks(
    state,
    rank,
    support,
    order,
    queries,
    reaches,
    begin,
    sizes,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decides those of the points that can be decided: 0 not yet, 1 kept, 2 covered by a kept one.

    A point is covered if a kept one of lower rank is near, and kept if all of lower rank are covered. Whether
    one sees in time what others have decided in the same round changes the number of rounds and nothing else.
    """
    query = tl.program_id(0).to(tl.int64)
    if tl.load(state + query) == 0:
        x, y, z = _query(queries, query, D)
        reach = tl.load(reaches + query)
        own = tl.load(rank + query)
        kept = tl.zeros([], tl.int32)
        waits = tl.zeros([], tl.int32)
        for r in range(R):
            first, last = _range(begin, sizes, query, r, R)
            for start in range(first, last, BLOCK):
                place = start + tl.arange(0, BLOCK)
                inside = place < last
                near = _is_near(_squared(support, place, inside, x, y, z, D), inside, reach)
                point = tl.load(order + place, mask=near, other=0)
                lower = near & (tl.load(rank + point, mask=near, other=0) < own)
                theirs = tl.load(state + point, mask=lower, other=2)
                kept += tl.sum((theirs == 1).to(tl.int32), 0)
                waits += tl.sum((theirs == 0).to(tl.int32), 0)
        if kept > 0:
            tl.store(state + query, 2)
        elif waits == 0:
            tl.store(state + query, 1)


@triton.jit(do_not_specialize_on_alignment=PLACES)
def farthest(
    chosen,
    distance,
    points,
    offsets,
    counts,
    start,
    chosen_offsets,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Picks of one cloud: each the farthest from all before, the first of equals; distances begin at inf."""
    cloud = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(offsets + cloud), tl.load(offsets + cloud + 1)
    pick = begin + tl.load(start + cloud)
    to = chosen + tl.load(chosen_offsets + cloud)
    for i in range(tl.load(counts + cloud)):
        tl.store(to + i, pick)
        x, y, z = _query(points, pick, D)
        best = tl.full([BLOCK], -2, points.dtype.element_ty)
        which = tl.full([BLOCK], 1 << 62, tl.int64)
        for first in range(begin, end, BLOCK):
            place = first + tl.arange(0, BLOCK)
            inside = place < end
            squared = _squared(points, place, inside, x, y, z, D)
            least = tl.minimum(tl.load(distance + place, mask=inside, other=-2), squared)
            least = tl.where(place == pick, -1, least)  # never twice, also where points coincide
            tl.store(distance + place, least, mask=inside)
            better = inside & (least > best)
            best = tl.where(better, least, best)
            which = tl.where(better, place, which)
        most = tl.max(best, 0)
        pick = tl.min(tl.where(best == most, which, 1 << 62), 0)
        tl.debug_barrier()  # whichever thread reads a distance next sees what was written here


@triton.jit(do_not_specialize_on_alignment=PLACES)
def density(
    result,
    slopes,
    grad,
    support,
    order,
    queries,
    bandwidth,
    reaches,
    begin,
    sizes,
    D: tl.constexpr,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums of g = exp(-|y - x|^2 / 2 h^2) over the points within the radius.

    Or, with ``slopes``, of (grad(x) + grad(y)) g (y - x).
    """
    query = tl.program_id(0).to(tl.int64)
    x, y, z = _query(queries, query, D)
    h = tl.load(bandwidth + query)
    reach = tl.load(reaches + query)
    total = tl.zeros([BLOCK], support.dtype.element_ty)
    total_y, total_z = total, total
    for r in range(R):
        first, last = _range(begin, sizes, query, r, R)
        for start in range(first, last, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < last
            squared = _squared(support, place, inside, x, y, z, D)
            near = _is_near(squared, inside, reach)
            each = tl.where(near, tl.exp(-squared / (2 * h * h)), 0)
            if slopes is None:
                total += each
            else:
                point = tl.load(order + place, mask=near, other=0)
                each = each * (tl.load(grad + query) + tl.load(grad + point, mask=near, other=0))
                total += each * (_coordinate(support, place, inside, D, 0) - x)
                total_y += each * (_coordinate(support, place, inside, D, 1) - y)
                total_z += each * (_coordinate(support, place, inside, D, 2) - z)
    if slopes is None:
        tl.store(result + query, tl.sum(total, 0))
    else:
        tl.store(slopes + query * D, tl.sum(total, 0))
        if D > 1:
            tl.store(slopes + query * D + 1, tl.sum(total_y, 0))
        if D > 2:
            tl.store(slopes + query * D + 2, tl.sum(total_z, 0))
