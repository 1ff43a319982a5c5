// The order of points along a Z-shaped curve through each cloud: what is near in space is near in memory.
#pragma once

#include "grid.hpp"

namespace pointvar {

// D - 1 zeros after each bit of a number of 30 / D bits.
inline uint32_t spread_bits(uint32_t x, int dim) {
    if (dim == 2) {
        x = (x | x << 8) & 0x00FF00FF;
        x = (x | x << 4) & 0x0F0F0F0F;
        x = (x | x << 2) & 0x33333333;
        x = (x | x << 1) & 0x55555555;
    } else if (dim == 3) {
        x = (x | x << 16) & 0x030000FF;
        x = (x | x << 8) & 0x0300F00F;
        x = (x | x << 4) & 0x030C30C3;
        x = (x | x << 2) & 0x09249249;
    }
    return x;
}

// Cloud by cloud, points of the same cell in the order of their numbers; `reference.py` has the formula.
template <class T>
Buffer<int64_t> spatial_order(const Batch<T>& batch) {
    Buffer<int64_t> result(batch.n);
    const int bits = 30 / batch.dim;
    const double cells = double(1 << bits);
    for (int64_t cloud = 0; cloud < batch.clouds; ++cloud) {
        const int64_t first = batch.offsets[cloud], size = batch.offsets[cloud + 1] - first;
        const T* points = batch.points + first * batch.dim;
        double low[3], scale[3];
        for (int axis = 0; axis < batch.dim && size; ++axis) {
            T least = points[axis], most = least;
            for (int64_t i = 0; i < size; ++i) {
                least = std::min(least, points[i * batch.dim + axis]);
                most = std::max(most, points[i * batch.dim + axis]);
            }
            low[axis] = double(least);
            scale[axis] = cells / std::max(double(most) - double(least), 1e-200);
        }
        Buffer<uint64_t> items(size), spare(size);
        parallel_for(size, 1 << 14, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                uint64_t code = 0;
                for (int axis = 0; axis < batch.dim; ++axis) {
                    const double cell = (double(points[i * batch.dim + axis]) - low[axis]) * scale[axis];
                    // An extent beyond all numbers gives NaN, which is no cell but the first.
                    const uint32_t number = cell > 0 ? uint32_t(std::min(cell, cells - 1)) : 0;
                    code |= uint64_t(spread_bits(number, batch.dim)) << axis;
                }
                items[i] = code << 32 | uint64_t(i);
            }
        });
        radix_sort(items, spare, 32, 62, [](uint64_t item) { return item; });
        for (int64_t i = 0; i < size; ++i) result[first + i] = first + int64_t(items[i] & 0xFFFFFFFFu);
    }
    return result;
}

}  // namespace pointvar
