// Sorting: a parallel radix sort for keys, and a branch-free sort for the few neighbours of a point.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "buffer.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace pointvar {

// Stable sort of `items` by the bits [low, high) of key(item). `items` and `spare` may change places.
template <class Item, class Key>
void radix_sort(Buffer<Item>& items, Buffer<Item>& spare, int low, int high, const Key& key) {
    const int64_t n = items.size();
    const int digit = n < 1 << 13 ? 8 : 11, buckets = 1 << digit;  // few items fill few buckets
    const int parts = int(std::max<int64_t>(1, std::min<int64_t>(threads(), n >> 13)));
    const auto first = [&](int part) { return n * part / parts; };
    std::vector<int64_t> place(size_t(parts) * buckets);
    for (int shift = low; shift < high; shift += digit) {
        const uint64_t mask = (uint64_t(1) << std::min(digit, high - shift)) - 1;
        parallel_for(parts, 1, [&](int64_t part, int64_t) {
            int64_t* count = place.data() + part * buckets;
            std::fill(count, count + buckets, 0);
            for (int64_t i = first(int(part)); i < first(int(part) + 1); ++i)
                ++count[key(items[i]) >> shift & mask];
        });
        int64_t total = 0;
        for (int bucket = 0; bucket < buckets; ++bucket)
            for (int part = 0; part < parts; ++part)
                total += std::exchange(place[size_t(part) * buckets + bucket], total);
        parallel_for(parts, 1, [&](int64_t part, int64_t) {
            int64_t* to = place.data() + part * buckets;
            for (int64_t i = first(int(part)); i < first(int(part) + 1); ++i)
                spare[to[key(items[i]) >> shift & mask]++] = items[i];
        });
        std::swap(items, spare);
    }
}

// For each of n distinct numbers, how many are smaller. Both arrays have room for kSlack more entries, which
// are read and written.
inline void count_smaller(const int32_t* values, int64_t n, int32_t* rank) {
    constexpr int lanes = kLanes<int32_t>;
    for (int64_t i = 0; i < n; i += lanes) {
        const Vector<int32_t> own = load(values + i);
        Vector<int32_t> smaller{};
        for (int64_t j = 0; j < n; ++j) smaller -= (Vector<int32_t>)(own > values[j]);
        store(rank + i, smaller);
    }
}

// The same; many numbers are sorted, as counting takes the square of their number.
inline void find_ranks(const int32_t* values, int64_t n, int32_t* rank) {
    if (n <= 512) return count_smaller(values, n, rank);
    Buffer<uint64_t> order(n);
    for (int64_t i = 0; i < n; ++i) order[i] = uint64_t(values[i]) << 32 | uint64_t(i);
    std::sort(order.data(), order.data() + n);
    for (int64_t at = 0; at < n; ++at) rank[order[at] & 0xFFFFFFFFu] = int32_t(at);
}

// Sorts n distinct non-negative numbers ascending; `values` has kSlack entries of room behind them.
inline void sort_few(int32_t* values, int64_t n) {
    constexpr int lanes = kLanes<int32_t>, most = 128;
    if (n > most) {
        std::sort(values, values + n);
        return;
    }
    if (n < 2) return;
    int32_t sorted[most + kSlack], rank[most + kSlack];
    count_smaller(values, n, rank);
    for (int64_t i = 0; i < n; ++i) sorted[rank[i]] = values[i];
    for (int64_t i = 0; i < n; i += lanes) store(values + i, load(sorted + i));
}

}  // namespace pointvar
