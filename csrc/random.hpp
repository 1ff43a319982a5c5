// Random numbers as a function of a seed and a place, so that threads do not matter.
#pragma once

#include <cstdint>

namespace pointvar {

inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

// 63 random bits for the pair (a, b); the same as `_priority` in reference.py.
inline uint64_t priority(uint64_t seed, uint64_t a, uint64_t b) {
    return mix(mix(a * 0x9E3779B97F4A7C15u + seed) + b * 0xD1B54A32D192ED03u) >> 1;
}

// The number by which random choices know a point: its own, or another that is given for it.
struct Names {
    const int64_t* given = nullptr;
    uint64_t operator()(int64_t point) const { return uint64_t(given ? given[point] : point); }
};

}  // namespace pointvar
