// Vectors as wide as the instruction set, in the compiler's own vector types; each module is built with
// its own flags, so the same source serves all.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace pointvar {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T>
constexpr int kLanes = kVectorBytes / int(sizeof(T));

template <class T>
struct VectorOf {
    typedef T type __attribute__((vector_size(kVectorBytes)));
    typedef T loose __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;

template <class T>
inline Vector<T> load(const T* from) {
    return *reinterpret_cast<const typename VectorOf<T>::loose*>(from);
}
template <class T>
inline void store(T* to, Vector<T> v) {
    *reinterpret_cast<typename VectorOf<T>::loose*>(to) = v;
}
template <class T>
inline Vector<T> spread(T value) {
    return value - Vector<T>{};
}
template <class T>
inline T sum(Vector<T> v) {
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) total += v[lane];
    return total;
}

// Asks for memory that will be read soon.
template <class T>
inline void fetch(const T* begin, const T* end) {
    for (const char* at = (const char*)begin; at < (const char*)end; at += 64) __builtin_prefetch(at);
}

template <class T>
struct IntegerOf;
template <>
struct IntegerOf<float> {
    using type = int32_t;
};
template <>
struct IntegerOf<double> {
    using type = int64_t;
};
template <class T>
using Integer = typename IntegerOf<T>::type;

// One bit per lane of a comparison of vectors of T.
template <class T, class Mask>
inline unsigned lane_bits(Mask mask) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return _mm512_movepi32_mask((__m512i)mask);
    else
        return _mm512_movepi64_mask((__m512i)mask);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4)
        return unsigned(_mm256_movemask_ps((__m256)mask));
    else
        return unsigned(_mm256_movemask_pd((__m256d)mask));
#else
    unsigned bits = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) bits |= unsigned(mask[lane] != 0) << lane;
    return bits;
#endif
}

// Turns over a square of as many vectors as a vector has lanes, by exchanging ever smaller corners.
template <class T, int D = kLanes<T> / 2>
inline void turn_over(Vector<T>* rows) {
    constexpr int L = kLanes<T>;
    Vector<Integer<T>> first, second;
    for (int lane = 0; lane < L; ++lane) {
        first[lane] = Integer<T>(lane & D ? L + lane - D : lane);
        second[lane] = Integer<T>(lane & D ? L + lane : lane + D);
    }
    for (int i = 0; i < L; ++i) {
        if (i & D) continue;
        const Vector<T> a = rows[i], b = rows[i + D];
        rows[i] = __builtin_shuffle(a, b, first);
        rows[i + D] = __builtin_shuffle(a, b, second);
    }
    if constexpr (D > 1) turn_over<T, D / 2>(rows);
}

// a * b + c with one rounding where the instruction set can, for what needs no exact rules of rounding.
template <class T>
inline Vector<T> fused(Vector<T> a, Vector<T> b, Vector<T> c) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        return (Vector<T>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    else
        return (Vector<T>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4)
        return (Vector<T>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    else
        return (Vector<T>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

template <class T>
struct Factorials {
    T of[14] = {1};
    constexpr Factorials() {
        for (int k = 1; k < 14; ++k) of[k] = of[k - 1] * T(k);
    }
};

// exp(x) for -700 < x <= 0 (float: -80 < x), to about one unit in the last place.
template <class T>
inline Vector<T> exponential(Vector<T> x) {
    constexpr bool wide = sizeof(T) == 8;
    constexpr int mantissa = wide ? 52 : 23, bias = wide ? 1023 : 127, degree = wide ? 13 : 7;
    constexpr T magic = T(1.5) * T(int64_t(1) << mantissa);  // adding it rounds to an integer
    const Vector<T> rounded = x * T(1.4426950408889634074) + magic;
    const Vector<T> whole = rounded - magic;
    // ln 2 in two parts, the first exact when multiplied by small integers
    constexpr T high = wide ? T(0.693147180369123816490) : T(0.693359375);
    constexpr T low = wide ? T(1.90821492927058770002e-10) : T(-2.12194440e-4);
    const Vector<T> rest = fused<T>(whole, spread(-low), fused<T>(whole, spread(-high), x));
    constexpr Factorials<T> factorials;
    Vector<T> power = spread(T(1) / factorials.of[degree]);
    for (int k = degree - 1; k >= 0; --k) power = fused<T>(power, rest, spread(T(1) / factorials.of[k]));
    using I = Vector<Integer<T>>;
    const I exponent = ((I)rounded - (I)spread(magic) + bias) << mantissa;
    return power * (Vector<T>)exponent;
}

// Room that `append_near` may write beyond the last entry it keeps.
constexpr int kSlack = 16;

#if defined(__AVX2__) && !defined(__AVX512F__)
// For each of 256 masks, the lanes that are set, first ones first, one byte each.
struct CompressTable {
    uint64_t lanes[256];
    constexpr CompressTable() : lanes() {
        for (int mask = 0; mask < 256; ++mask) {
            int place = 0;
            for (int lane = 0; lane < 8; ++lane)
                if (mask >> lane & 1) lanes[mask] |= uint64_t(lane) << (8 * place++);
        }
    }
};
inline constexpr CompressTable kCompress;
#endif

// Writes the lanes of `v` whose bits are set to `to`, one after the other; what follows them is left undefined.
template <class T>
inline void store_chosen(T* to, Vector<T> v, unsigned chosen) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(chosen), (__m512i)v));
    else
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(__mmask8(chosen), (__m512i)v));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_cvtsi64_si128(int64_t(kCompress.lanes[chosen]));
    __m256i lanes;
    if constexpr (sizeof(T) == 4) {
        lanes = _mm256_cvtepu8_epi32(bytes);
    } else {  // each lane is two of 32 bits
        const __m256i even = _mm256_slli_epi64(_mm256_cvtepu8_epi64(bytes), 1);
        lanes = _mm256_or_si256(even, _mm256_slli_epi64(_mm256_add_epi64(even, _mm256_set1_epi64x(1)), 32));
    }
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32((__m256i)v, lanes));
#else
    for (int lane = 0, place = 0; lane < kLanes<T>; ++lane) {
        to[place] = v[lane];
        place += chosen >> lane & 1;
    }
#endif
}

// Candidates as a structure of arrays, padded with infinities to whole vectors.
template <class T>
struct Candidates {
    const T *x, *y, *z;
    const int32_t* id;
    int64_t size;
    bool ordered;  // by ascending id
};

template <class T>
inline Vector<T> squared_distance(const Candidates<T>& c, int64_t i, T x, T y, T z) {
    const Vector<T> dx = load(c.x + i) - x, dy = load(c.y + i) - y, dz = load(c.z + i) - z;
    return dx * dx + dy * dy + dz * dz;
}

// Writes the ids of all candidates with squared distance below `limit` to `out`; returns their number.
template <class T>
inline int64_t append_near(const Candidates<T>& c, T x, T y, T z, T limit, int32_t* out) {
    int64_t found = 0;
    for (int64_t i = 0; i < c.size; i += kLanes<T>) {
        const unsigned near = lane_bits<T>(squared_distance(c, i, x, y, z) < limit);
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) {
            const __m512i ids = _mm512_loadu_si512(c.id + i);
            _mm512_storeu_si512(out + found, _mm512_maskz_compress_epi32(__mmask16(near), ids));
        } else {
            const __m256i ids = _mm256_loadu_si256((const __m256i*)(c.id + i));
            _mm256_storeu_si256((__m256i*)(out + found), _mm256_maskz_compress_epi32(__mmask8(near), ids));
        }
#elif defined(__AVX2__)
        // Four lanes of doubles use the same table: their upper four bits are 0.
        const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(kCompress.lanes[near])));
        const __m256i ids = _mm256_loadu_si256((const __m256i*)(c.id + i));
        _mm256_storeu_si256((__m256i*)(out + found), _mm256_permutevar8x32_epi32(ids, lanes));
#else
        for (int lane = 0, place = 0; lane < kLanes<T>; ++lane) {
            out[found + place] = c.id[i + lane];
            place += near >> lane & 1;
        }
#endif
        found += __builtin_popcount(near);
    }
    return found;
}

}  // namespace pointvar
