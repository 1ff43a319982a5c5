// Adaptive gradient clipping: the gradient of each unit is limited by the norm of its weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "buffer.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace pointvar {

// A weight and its gradient as [outer, units, inner]: a unit is what has the same middle index.
template <class T>
struct Units {
    const T* weight;
    T* gradient;
    int64_t outer, units, inner;
};

// 1 where nothing is to be done: also if the gradient is 0, or not finite, which others have to notice.
template <class T>
T clipping_factor(T weight_squares, T gradient_squares, T limit, T eps) {
    const T largest = std::max(std::sqrt(weight_squares), eps) * limit, size = std::sqrt(gradient_squares);
    return size > largest ? largest / size : T(1);
}

// Units whose numbers lie in runs.
template <class T>
void clip_runs(const Units<T>& u, int64_t begin, int64_t end, T limit, T eps) {
    const auto squares = [&](const T* values) {
        T total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < u.inner; ++i) total += values[i] * values[i];
        return total;
    };
    for (int64_t unit = begin; unit < end; ++unit) {
        T weight = 0, gradient = 0;
        for (int64_t at = unit * u.inner; at < u.outer * u.units * u.inner; at += u.units * u.inner) {
            weight += squares(u.weight + at);
            gradient += squares(u.gradient + at);
        }
        const T factor = clipping_factor(weight, gradient, limit, eps);
        if (factor == 1) continue;
        for (int64_t at = unit * u.inner; at < u.outer * u.units * u.inner; at += u.units * u.inner)
            for (int64_t i = at; i < at + u.inner; ++i) u.gradient[i] *= factor;
    }
}

// Adds the squares of some rows of a matrix, column by column.
template <class T>
void add_squares(const T* values, int64_t rows, int64_t columns, T* __restrict sums) {
    constexpr int64_t kAhead = 4096 / sizeof(T);  // memory is read in order, but in two places in turns
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) {  // four at once: a sum that has just been stored is slow to load
        const T *a = values + row * columns, *b = a + columns, *c = b + columns, *d = c + columns;
        fetch(a + kAhead, d + columns + kAhead);
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) sums[i] += (a[i] * a[i] + b[i] * b[i]) + (c[i] * c[i] + d[i] * d[i]);
    }
    for (; row < rows; ++row)
        for (int64_t i = 0; i < columns; ++i) sums[i] += values[row * columns + i] * values[row * columns + i];
}

// In place. What is summed at once does not depend on the number of threads, so neither do the results.
template <class T>
void clip_units(const Units<T>& u, T limit, T eps) {
    const int64_t each = u.outer * u.inner, total = each * u.units;
    constexpr int64_t kBlock = int64_t(1) << 16, kTeam = int64_t(1) << 20;  // numbers
    if (!total) return;
    // Waking a team costs more than little work.
    const auto in_blocks = [&](int64_t n, int64_t grain, const auto& body) {
        if (total >= kTeam) return parallel_for(n, grain, body);
        for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
    };
    if (u.inner > 1) {
        in_blocks(u.units, std::max<int64_t>(kBlock / each, 1),
                  [&](int64_t begin, int64_t end) { clip_runs(u, begin, end, limit, eps); });
        return;
    }
    // At most 64 blocks, and few rows in each: rounding grows with the rows that are summed one by one.
    const int64_t few = std::clamp<int64_t>(kBlock / u.units, 1, 128), rows = std::max(few, (u.outer + 63) / 64);
    Buffer<T> sums((u.outer + rows - 1) / rows * 2 * u.units);
    in_blocks(u.outer, rows, [&](int64_t begin, int64_t end) {
        T* own = sums.data() + begin / rows * 2 * u.units;  // first of the weights, then of the gradients
        std::fill(own, own + 2 * u.units, T(0));
        add_squares(u.weight + begin * u.units, end - begin, u.units, own);
        add_squares(u.gradient + begin * u.units, end - begin, u.units, own + u.units);
    });
    T *weight = sums.data(), *gradient = weight + u.units, *factor = weight;
    for (int64_t block = 2 * u.units; block < sums.size(); block += 2 * u.units)
        for (int64_t c = 0; c < 2 * u.units; ++c) weight[c] += weight[block + c];
    bool any = false;
    for (int64_t c = 0; c < u.units; ++c) {
        factor[c] = clipping_factor(weight[c], gradient[c], limit, eps);
        any |= factor[c] != 1;
    }
    if (!any) return;
    in_blocks(u.outer, rows, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            T* __restrict g = u.gradient + row * u.units;
#pragma omp simd
            for (int64_t c = 0; c < u.units; ++c) g[c] *= factor[c];
        }
    });
}

}  // namespace pointvar
