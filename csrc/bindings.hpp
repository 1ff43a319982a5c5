// Arrays between Python and the kernels: checked on the way in, handed over without a copy on the way out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "buffer.hpp"
#include "grid.hpp"

namespace nb = nanobind;

namespace pointvar {

template <class T>
using Values = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Integers = Values<int64_t>;
template <class T, int D = 1>
using Result = nb::ndarray<nb::pytorch, T, nb::ndim<D>, nb::c_contig, nb::device::cpu>;

inline void require(bool fine, const char* what) {
    if (!fine) throw std::invalid_argument(what);
}

template <class T, int D = 1>
Result<T, D> give(Buffer<T>&& buffer, std::initializer_list<size_t> shape) {
    T* data = buffer.release();
    nb::capsule owner(data, [](void* memory) noexcept { Pool::give_back(memory); });
    return Result<T, D>(data, shape, owner);
}
template <class T>
Result<T> give(Buffer<T>&& buffer) {
    const size_t size = size_t(buffer.size());
    return give<T, 1>(std::move(buffer), {size});
}

inline void check_offsets(const Integers& offsets, int64_t total) {
    const int64_t* o = offsets.data();
    const int64_t count = int64_t(offsets.shape(0));
    require(count >= 1 && o[0] == 0 && o[count - 1] == total, "offsets must run from 0 to the number of rows");
    for (int64_t i = 1; i < count; ++i) require(o[i - 1] <= o[i], "offsets must not descend");
}

// Comparisons with NaN lead searches out of bounds, and it can come after a cloud was made: positions may be learned.
template <class T>
bool all_finite(const T* numbers, int64_t count) {
    std::atomic<bool> fine{true};
    parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
        T total = 0;  // a number minus itself is 0, of infinity and NaN it is NaN, which no sum gets rid of
#pragma omp simd reduction(+ : total)
        for (int64_t i = begin; i < end; ++i) total += numbers[i] - numbers[i];
        if (total != 0) fine = false;
    });
    return fine;
}

template <class T>
Batch<T> batch(const Matrix<T>& points, const Integers& offsets) {
    const int64_t n = int64_t(points.shape(0));
    const int dim = int(points.shape(1));
    require(dim >= 1 && dim <= 3, "points must have 1, 2 or 3 coordinates");
    require(n < (int64_t(1) << 31), "at most 2^31 - 1 points");
    check_offsets(offsets, n);
    require(all_finite(points.data(), n * dim), "points must be finite, got NaN or infinity");
    return {points.data(), n, dim, offsets.data(), int64_t(offsets.shape(0)) - 1};
}

}  // namespace pointvar
