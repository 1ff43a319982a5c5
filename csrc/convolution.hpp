// The whole convolution of a layer whose weight stays in the cache: a block of rows is projected, and multiplied by the
// weight [K C, O] before the projection leaves the cache too. Columns that do not fill a vector are filled up with zeros.
#pragma once

#include "projection.hpp"

namespace pointvar {

constexpr int64_t kBlockNumbers = 1 << 16;  // in the projection of a block of rows

template <class T>
inline int64_t fill_up(int64_t columns) {
    return (columns + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Rows of a block, and where its projection has them: a vector apart, as rows whose distance is a power of two would
// compete for the same places of the cache.
template <class T>
struct Block {
    int64_t stride, rows;
    Block(int64_t width, int64_t all)
        : stride(fill_up<T>(width) + kLanes<T>),
          rows(std::min(all, std::max<int64_t>(24, kBlockNumbers / stride))) {}
};

// Copies rows of `columns` numbers, named by `row`, to rows filled up with zeros.
template <class T, class Row>
void copy_filled(const T* from, int64_t rows, int64_t columns, const Row& row, T* to) {
    const int64_t filled = fill_up<T>(columns);
    for (int64_t i = 0; i < rows; ++i, to += filled)
        std::fill(std::copy_n(from + row(i) * columns, columns, to), to + filled, T(0));
}

// out[x] = phi[x] W + bias: [M, O]. With norm [M], each row of phi is divided by its response, which is written there.
template <class T>
void convolve(const Basis<T>& basis, const Edges& list, int64_t rows, const T* features, int64_t channels,
              const T* weight, const T* bias, int64_t outputs, T* out, T* norm) {
    const int64_t width = basis.size * channels, filled = fill_up<T>(outputs);
    const int64_t own = grain(rows, rows * width * filled + projection_products(list, 0, rows, width), 12);
    const Block<T> block(width, own);
    const int64_t stride = block.stride;
    Buffer<T> room;
    if (filled != outputs) {
        room = Buffer<T>(width * filled);
        copy_filled(weight, width, outputs, [](int64_t k) { return k; }, room.data());
        weight = room.data();
    }
    parallel_for(rows, own, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        Buffer<T> projection(block.rows * stride), sums(block.rows * filled);
        T *phi = projection.data(), *to = sums.data();
        for (int64_t first = begin; first < end; first += block.rows) {
            const int64_t count = std::min(block.rows, end - first);
            project_rows(basis, list, first, first + count, features, channels, phi, stride, norm, scratch);
            sum_blocks<T>(
                count, filled, width, [=](int64_t k, int64_t r) { return phi[r * stride + k]; },
                [=](int64_t k) { return weight + k * filled; }, [=](int64_t r) { return to + r * filled; });
            for (int64_t r = 0; r < count; ++r) {
                T* target = out + list.row(first + r) * outputs;
                for (int64_t o = 0; o < outputs; ++o) target[o] = to[r * filled + o] + (bias ? bias[o] : T(0));
            }
        }
    });
}

// The gradients from that of `out`, and that of the weight where it is not null. A thread has columns of phi of its own:
// for these it sums phi^T g over the rows, then writes g W^T in place of phi.
template <class T>
void convolve_backward(const Basis<T>& basis, const Edges& list, int64_t rows, const T* features, int64_t channels,
                       const T* weight, const T* grad_out, int64_t outputs, T* norm, T* grad_weight,
                       const Gradients<T>& grads) {
    const int64_t width = basis.size * channels, filled = fill_up<T>(outputs);
    const Block<T> block(width, rows);
    const int64_t stride = block.stride;
    constexpr int64_t tile = 3 * kLanes<T>;  // columns of phi
    Buffer<T> projection(block.rows * stride), gathered(block.rows * filled), room;
    T *phi = projection.data(), *g = gathered.data(), *sums = grad_weight;
    if (grad_weight && filled != outputs) room = Buffer<T>(width * filled), sums = room.data();
    if (grad_weight) std::fill(sums, sums + width * filled, T(0));
    for (int64_t first = 0; first < rows; first += block.rows) {
        const int64_t count = std::min(block.rows, rows - first);
        copy_filled(grad_out, count, outputs, [&](int64_t r) { return list.row(first + r); }, g);
        if (grad_weight) project(basis, list, first, count, features, channels, phi, stride, norm);
        const int64_t tiles = (width + tile - 1) / tile;
        parallel_for(tiles, grain(tiles, 2 * count * width * filled, 1), [&](int64_t begin, int64_t end) {
            Buffer<T> own(tile * outputs);
            T* turned = own.data();
            for (int64_t k = begin * tile; k < std::min(width, end * tile); k += tile) {
                const int64_t columns = std::min(tile, width - k), whole = fill_up<T>(columns);
                if (grad_weight)
                    sum_blocks<T, true>(
                        columns, filled, count, [=](int64_t r, int64_t i) { return phi[r * stride + k + i]; },
                        [=](int64_t r) { return g + r * filled; }, [=](int64_t i) { return sums + (k + i) * filled; });
                if (!grads.any()) continue;
                turn(weight + k * outputs, columns, outputs, outputs, turned, whole);
                sum_blocks<T>(
                    count, whole, outputs, [=](int64_t o, int64_t r) { return g[r * filled + o]; },
                    [=](int64_t o) { return turned + o * whole; }, [=](int64_t r) { return phi + r * stride + k; });
            }
        });
        if (grads.any()) unproject(basis, list, first, count, features, channels, phi, stride, grads);
    }
    if (grad_weight && filled != outputs)
        for (int64_t k = 0; k < width; ++k) std::copy_n(sums + k * filled, outputs, grad_weight + k * outputs);
}

}  // namespace pointvar
