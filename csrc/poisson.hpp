// Poisson disk sampling: greedy in the order of random priorities, cloud by cloud. A kept point covers all
// points closer than the radius at once, so that only kept points search.
#pragma once

#include "grid.hpp"
#include "random.hpp"

namespace pointvar {

// The point of each name; names must be the numbers of the points, in another order within each cloud.
template <class T>
Buffer<int32_t> points_by_name(const Batch<T>& batch, Names names) {
    Buffer<int32_t> result(batch.n);
    std::fill(result.data(), result.data() + batch.n, -1);
    for (int64_t cloud = 0; cloud < batch.clouds; ++cloud)
        for (int64_t i = batch.offsets[cloud]; i < batch.offsets[cloud + 1]; ++i) {
            const int64_t name = int64_t(names(i));
            if (name < batch.offsets[cloud] || name >= batch.offsets[cloud + 1] || result[name] >= 0)
                throw std::invalid_argument("names must be the numbers of the points of each cloud, each once");
            result[name] = int32_t(i);
        }
    return result;
}

template <class T>
Buffer<int64_t> poisson_disk(const Batch<T>& batch, const T* radius, uint64_t seed, Names names = {}) {
    const Buffer<int32_t> named = points_by_name(batch, names);
    const Cells<T> cells(batch, radius);
    const Sorted<T> points(cells, batch);
    const int64_t n = batch.n;

    // The ranges around each cell, and each point's cell and place in the sorted order.
    struct Ranges {
        int32_t begin[9], end[9];
    };
    Buffer<int32_t> cell(n), place(n);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += i == 0 || points.key[i] != points.key[i - 1];
        cell[i] = int32_t(count - 1);
        place[points.index[i]] = int32_t(i);
    }
    Buffer<Ranges> ranges(count);
    int rows = 0;
    parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
        Around<T> around(cells, points);
        for (int64_t i = begin; i < end; ++i) {
            if (i > 0 && points.key[i] == points.key[i - 1]) continue;
            around.move_to(points.key[i]);
            Ranges& to = ranges[cell[i]];
            for (int row = 0; row < around.rows; ++row)
                to.begin[row] = int32_t(around.begin[row]), to.end[row] = int32_t(around.end[row]);
        }
    });
    int64_t steps[9];
    rows = cells.rows(steps);

    Buffer<Integer<T>> covered(n);
    Buffer<uint8_t> kept(n);
    parallel_for(batch.clouds, 1, [&](int64_t cloud, int64_t) {
        const int64_t first = batch.offsets[cloud], size = batch.offsets[cloud + 1] - first;
        const T limit = radius[cloud] * radius[cloud];
        Buffer<uint64_t> order(size), spare(size);
        for (int64_t i = 0; i < size; ++i) {
            order[i] = priority(seed, 0, uint64_t(first + i)) >> 31 << 32 | uint64_t(named[first + i]);
            kept[first + i] = 0;
            covered[place[first + i]] = 0;
        }
        radix_sort(order, spare, 32, 64, [](uint64_t item) { return item; });
        for (int64_t i = 0; i < size; ++i) {
            const int64_t index = int64_t(order[i] & 0xFFFFFFFFu), at = place[index];
            if (covered[at]) continue;
            kept[index] = 1;
            const T x = points.x[at], y = points.y[at], z = points.z[at];
            const Ranges& near = ranges[cell[at]];
            for (int row = 0; row < rows; ++row) {
                const T *px = points.x.data(), *py = points.y.data(), *pz = points.z.data();
                Integer<T>* cover = covered.data();
                int64_t j = near.begin[row];
                // By whole vectors as long as these are points of this cloud: one that is near is covered, whatever
                // its cell.
                for (; j < near.end[row] && j + kLanes<T> <= first + size; j += kLanes<T>) {
                    const Vector<T> dx = load(px + j) - x, dy = load(py + j) - y, dz = load(pz + j) - z;
                    const auto inside = (dx * dx + dy * dy + dz * dz) < limit;
                    store(cover + j, load(cover + j) | (Vector<Integer<T>>)inside);
                }
                for (; j < near.end[row]; ++j) {
                    const T dx = px[j] - x, dy = py[j] - y, dz = pz[j] - z;
                    cover[j] |= dx * dx + dy * dy + dz * dz < limit;
                }
            }
        }
    });
    int64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += kept[i];
    Buffer<int64_t> result(total);
    for (int64_t i = 0, k = 0; i < n; ++i)
        if (kept[i]) result[k++] = i;
    return result;
}

}  // namespace pointvar
