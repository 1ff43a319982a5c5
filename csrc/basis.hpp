// The bases that are evaluated natively: K values per edge, vectorised over K, and their gradients.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "simd.hpp"

namespace pointvar {

enum class Kind { values, linear, gaussian, mlp, dot, nearest, spherical };

// v[e, i] = q(e) b_i(offset(e)); `nearest` and `spherical` have one value that is not 0, at `bin`.
template <class T>
class Basis {
   public:
    Kind kind;
    int64_t size;    // K
    int64_t stride;  // from one edge's values to the next
    int dim;

    // edges: [E, K] values (q included) or [E, dim] offsets; scale: q [E] or null; parameters as basis.py gives them:
    // kernel points [K, dim] (linear, gaussian, nearest), or a map [K, dim] and its bias [K] (mlp).
    Basis(Kind kind, int64_t size, int dim, const T* edges, const T* scale, const T* parameters,
          const std::vector<double>& constants)
        : kind(kind), size(size), dim(dim), edges_(edges), scale_(scale), constants_(constants) {
        stride = kind == Kind::values ? size : padded();
        if (kind == Kind::values || kind == Kind::dot || kind == Kind::spherical) return;
        const bool affine = kind == Kind::mlp;
        for (int axis = 0; axis < 4; ++axis) {  // one row per axis, the bias last, padded
            rows_[axis].assign(size_t(padded()), axis < 3 && !affine ? kFar : T(0));
            for (int64_t i = 0; i < size; ++i) {
                if (axis < dim) rows_[axis][size_t(i)] = parameters[i * dim + axis];
                if (axis == 3 && affine) rows_[axis][size_t(i)] = parameters[size * dim + i];
                if (axis >= dim && axis < 3) rows_[axis][size_t(i)] = 0;
            }
        }
    }

    bool one_hot() const { return kind == Kind::nearest || kind == Kind::spherical; }
    bool given() const { return kind == Kind::values; }
    int64_t padded() const { return (size + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }
    T scale(int64_t edge) const { return scale_ ? scale_[edge] : T(1); }
    const T* given(int64_t edge) const { return edges_ + edge * size; }

    // Values of one edge, padded with zeros where q b is meant; without q if `plain`.
    void evaluate(int64_t edge, T* out, bool plain = false) const {
        if (given()) {
            std::copy(given(edge), given(edge) + size, out);
            return;
        }
        const T q = plain ? T(1) : scale(edge);
        T at[3];
        offset(edge, at);
        if (kind == Kind::dot) {
            for (int64_t i = 0; i < padded(); ++i) out[i] = i < dim ? at[i] * q : i == dim ? q : T(0);
            return;
        }
        if (one_hot()) {
            for (int64_t i = 0; i < padded(); ++i) out[i] = 0;
            out[bin(edge)] = q;
            return;
        }
        const T first = T(constants_[0]);
        for (int64_t i = 0; i < padded(); i += kLanes<T>) {
            Vector<T> value;
            if (kind == Kind::mlp) {
                value = affine(at, i);
                value = value > T(0) ? value : value * first;
            } else {
                const Vector<T> squared = squared_distance(at, i);
                if (kind == Kind::linear) {
                    value = T(1) - root(squared) * (T(1) / first);
                    value = value > T(0) ? value : Vector<T>{};
                } else {
                    const Vector<T> exponent = squared * (T(-0.5) / (first * first));
                    const auto inside = exponent > T(-80);
                    value = inside ? exponential<T>(inside ? exponent : Vector<T>{}) : Vector<T>{};
                }
            }
            store(out + i, value * q);
        }
    }

    // The one function that is not 0.
    int64_t bin(int64_t edge) const {
        T at[3];
        offset(edge, at);
        if (kind == Kind::spherical) return spherical_bin(at);
        int64_t best = 0;
        T least = std::numeric_limits<T>::infinity();
        for (int64_t i = 0; i < size; ++i) {
            T squared = 0;
            for (int axis = 0; axis < dim; ++axis) {
                const T d = at[axis] - rows_[axis][size_t(i)];
                squared += d * d;
            }
            if (squared < least) least = squared, best = i;
        }
        return best;
    }

    // How many numbers `backward` adds up for the parameters: the map and the bias, padded, axis by axis.
    int64_t parameter_sums() const { return kind == Kind::mlp ? (dim + 1) * padded() : 0; }

    // grad: of b at one edge, padded with zeros. Adds to `sums`, writes the gradient of the offset.
    void backward(int64_t edge, const T* grad, T* sums, T* grad_offset) const {
        T at[3];
        offset(edge, at);
        if (kind == Kind::dot) {
            for (int axis = 0; axis < dim; ++axis) grad_offset[axis] = grad[axis];
            return;
        }
        Vector<T> slope[3] = {};
        if (!one_hot()) {
            const T first = T(constants_[0]);
            for (int64_t i = 0; i < padded(); i += kLanes<T>) {
                Vector<T> g = load(grad + i);
                if (kind == Kind::mlp) {
                    g = affine(at, i) > T(0) ? g : g * first;
                    for (int axis = 0; axis < dim; ++axis) {
                        slope[axis] += g * row(axis, i);
                        store(sums + axis * padded() + i, load(sums + axis * padded() + i) + g * at[axis]);
                    }
                    store(sums + dim * padded() + i, load(sums + dim * padded() + i) + g);
                } else {
                    const Vector<T> squared = squared_distance(at, i);
                    Vector<T> pull;  // db/dtau = pull (tau - p)
                    if (kind == Kind::linear) {
                        const Vector<T> distance = root(squared);
                        const auto inside = distance < first;
                        const Vector<T> safe = distance > T(0) ? distance : spread(T(1));
                        pull = inside ? T(-1) / (safe * first) : Vector<T>{};
                    } else {
                        const Vector<T> exponent = squared * (T(-0.5) / (first * first));
                        const auto inside = exponent > T(-80);
                        pull = inside ? exponential<T>(inside ? exponent : Vector<T>{}) * (T(-1) / (first * first))
                                      : Vector<T>{};
                    }
                    for (int axis = 0; axis < dim; ++axis) {
                        const Vector<T> d = at[axis] - row(axis, i);
                        slope[axis] += pull == T(0) ? Vector<T>{} : g * pull * d;  // padding is infinitely far
                    }
                }
            }
        }
        for (int axis = 0; axis < dim; ++axis) grad_offset[axis] = sum<T>(slope[axis]);
    }

   private:
    static constexpr T kFar = T(1e18);  // padding: no kernel point is there, and its square is finite

    void offset(int64_t edge, T* at) const {
        for (int axis = 0; axis < 3; ++axis) at[axis] = axis < dim ? edges_[edge * dim + axis] : T(0);
    }
    Vector<T> row(int axis, int64_t i) const { return load(rows_[axis].data() + i); }
    Vector<T> affine(const T* at, int64_t i) const {
        Vector<T> value = row(3, i);
        for (int axis = 0; axis < dim; ++axis) value += row(axis, i) * at[axis];
        return value;
    }
    Vector<T> squared_distance(const T* at, int64_t i) const {
        Vector<T> squared{};
        for (int axis = 0; axis < dim; ++axis) {
            const Vector<T> d = at[axis] - row(axis, i);
            squared += d * d;
        }
        return squared;
    }
    static Vector<T> root(Vector<T> v) {
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4)
            return (Vector<T>)_mm512_sqrt_ps((__m512)v);
        else
            return (Vector<T>)_mm512_sqrt_pd((__m512d)v);
#elif defined(__AVX2__)
        if constexpr (sizeof(T) == 4)
            return (Vector<T>)_mm256_sqrt_ps((__m256)v);
        else
            return (Vector<T>)_mm256_sqrt_pd((__m256d)v);
#else
        for (int lane = 0; lane < kLanes<T>; ++lane) v[lane] = std::sqrt(v[lane]);
        return v;
#endif
    }

    // constants: radial, azimuth and polar bins, and whether the angle is atan(y / x) as in the authors' code
    int64_t spherical_bin(const T* at) const {
        const T distance = std::sqrt(at[0] * at[0] + at[1] * at[1] + at[2] * at[2]);
        if (distance < T(1e-4)) return 0;
        int64_t bin = part(distance, 1.0, constants_[0]) * int64_t(constants_[1]);
        if (dim == 1) {
            bin += at[0] > 0;
        } else {
            T angle = constants_[3] != 0 ? std::atan(at[1] / (at[0] + T(1e-6))) : std::atan2(at[1], at[0]);
            if (constants_[3] == 0 && angle < 0) angle += T(2 * M_PI);
            bin += part(angle, 2 * M_PI, constants_[1]);
        }
        if (dim == 3) {
            const T polar = std::atan2(std::sqrt(at[0] * at[0] + at[1] * at[1]), at[2]);
            bin = bin * int64_t(constants_[2]) + part(polar, M_PI, constants_[2]);
        }
        return bin + 1;
    }
    static int64_t part(T value, double range, double count) {
        const int64_t place = int64_t(std::ceil(value * T(count / range))) - 1;
        return std::min(std::max<int64_t>(place, 0), int64_t(count) - 1);
    }

    const T* edges_;
    const T* scale_;
    std::vector<double> constants_;
    std::vector<T> rows_[4];
};

}  // namespace pointvar
