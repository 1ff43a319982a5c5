// The bases that are evaluated natively: K values per edge, vectorised over K, and their gradients.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "simd.hpp"

namespace pointvar {

enum class Kind { values, linear, gaussian, mlp, dot, nearest, spherical };

// v[e, i] = q(e) b_i(offset(e)); `nearest` and `spherical` have one value that is not 0, at `bin`.
template <class T>
class Basis {
   public:
    Kind kind;
    int64_t size;  // K
    int dim;

    // edges: [E, K] values (q included) or [E, dim] offsets; scale: q [E] or null; parameters as basis.py gives them:
    // kernel points [K, dim] (linear, gaussian, nearest), or a map [K, dim] and its bias [K] (mlp).
    Basis(Kind kind, int64_t size, int dim, const T* edges, const T* scale, const T* parameters,
          const std::vector<double>& constants)
        : kind(kind), size(size), dim(dim), edges_(edges), scale_(scale), constants_(constants) {
        if (kind == Kind::values || kind == Kind::spherical) return;
        std::vector<T> identity;
        if (kind == Kind::dot) {  // the map whose rows are the axes, and 1
            identity.assign(size_t(size * (dim + 1)), T(0));
            for (int axis = 0; axis < dim; ++axis) identity[size_t(axis * (dim + 1))] = 1;
            identity.back() = 1;
            parameters = identity.data();
            constants_ = {1.0};
        }
        const bool affine = kind == Kind::mlp || kind == Kind::dot;
        for (int axis = 0; axis < 4; ++axis) {  // one row per axis, the bias last, padded
            rows_[axis].assign(size_t(padded()), axis < 3 && !affine ? kFar : T(0));
            for (int64_t i = 0; i < size; ++i) {
                if (axis < dim) rows_[axis][size_t(i)] = parameters[i * dim + axis];
                if (axis == 3 && affine) rows_[axis][size_t(i)] = parameters[size * dim + i];
                if (axis >= dim && axis < 3) rows_[axis][size_t(i)] = 0;
            }
        }
    }

    // What edges have is then v M in place of v; M is [K, K].
    void mix_with(const T* mixing) {
        mixing_.assign(size_t(size * padded()), T(0));
        for (int64_t i = 0; i < size; ++i) std::copy(mixing + i * size, mixing + (i + 1) * size, mixing_.data() + i * padded());
    }
    bool mixed() const { return !mixing_.empty(); }
    const T* mixing(int64_t i) const { return mixing_.data() + i * padded(); }

    bool one_hot() const { return kind == Kind::nearest || kind == Kind::spherical; }
    bool given() const { return kind == Kind::values; }
    int64_t padded() const { return (size + kLanes<T> - 1) / kLanes<T> * kLanes<T>; }
    T scale(int64_t edge) const { return scale_ ? scale_[edge] : T(1); }
    const T* given(int64_t edge) const { return edges_ + edge * size; }

    void fetch(int64_t begin, int64_t end) const {
        const int64_t width = given() ? size : dim;
        pointvar::fetch(edges_ + begin * width, edges_ + end * width);
        if (scale_) pointvar::fetch(scale_ + begin, scale_ + end);
    }

    // Values [n, padded] of the edges at(0), ..., at(n - 1), padded with zeros; without q if `plain`.
    template <class At>
    void evaluate(int64_t n, const At& at, T* out, bool plain = false) const {
        const int64_t P = padded();
        if (!given() && !one_hot()) {
            dispatch([&](auto known, auto width) {
                evaluate_as<decltype(known)::value, decltype(width)::value>(n, at, out, plain ? nullptr : scale_);
            });
            return;
        }
        for (int64_t e = 0; e < n; ++e, out += P) {
            const int64_t edge = at(e);
            if (given()) {
                std::copy(given(edge), given(edge) + size, out);
                std::fill(out + size, out + P, T(0));
            } else {
                std::fill(out, out + P, T(0));
                out[bin(edge)] = plain ? T(1) : scale(edge);
            }
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
    // The same in the order in which parameters are given: the map [K, dim], then its bias [K].
    int64_t parameters() const { return kind == Kind::mlp ? (dim + 1) * size : 0; }
    void add_to_parameters(const T* sums, T* to) const {
        for (int axis = 0; axis <= dim; ++axis)
            for (int64_t i = 0; i < size; ++i) to[axis < dim ? i * dim + axis : size * dim + i] += sums[axis * padded() + i];
    }

    // grad: [n, padded], of b at the edges first, ..., first + n - 1, padded with zeros. Adds to `sums` and writes the
    // gradients of the offsets, where these are not null.
    void backward(int64_t first, int64_t n, const T* grad, T* sums, T* grad_offsets) const {
        if (one_hot()) {
            if (grad_offsets) std::fill(grad_offsets + first * dim, grad_offsets + (first + n) * dim, T(0));
            return;
        }
        dispatch([&](auto known, auto width) {
            backward_as<decltype(known)::value, decltype(width)::value>(first, n, grad, sums, grad_offsets);
        });
    }

   private:
    static constexpr T kFar = T(1e18);  // padding: no kernel point is there, and its square is finite

    void offset(int64_t edge, T* at) const {
        for (int axis = 0; axis < 3; ++axis) at[axis] = axis < dim ? edges_[edge * dim + axis] : T(0);
    }
    // Calls body with the kind and the number of dimensions as constants; `dot` is a map like that of `mlp`.
    template <class Body>
    void dispatch(const Body& body) const {
        const auto with = [&](auto known) {
            if (dim == 1) body(known, std::integral_constant<int, 1>());
            if (dim == 2) body(known, std::integral_constant<int, 2>());
            if (dim == 3) body(known, std::integral_constant<int, 3>());
        };
        if (kind == Kind::linear)
            with(std::integral_constant<Kind, Kind::linear>());
        else if (kind == Kind::gaussian)
            with(std::integral_constant<Kind, Kind::gaussian>());
        else
            with(std::integral_constant<Kind, Kind::mlp>());
    }

    // L of the functions: their kernel points or their map, kept in registers for all edges of a row.
    template <Kind known, int D>
    struct Functions {
        Vector<T> row[D], bias;
        T constant;

        Functions(const Basis& basis, int64_t i) : bias(load(basis.rows_[3].data() + i)), constant(T(basis.constants_[0])) {
            for (int axis = 0; axis < D; ++axis) row[axis] = load(basis.rows_[axis].data() + i);
        }
        Vector<T> affine(const T* at) const {
            Vector<T> value = bias;
            for (int axis = 0; axis < D; ++axis) value += row[axis] * at[axis];
            return value;
        }
        Vector<T> squared_distance(const T* at) const {
            Vector<T> squared{};
            for (int axis = 0; axis < D; ++axis) {
                const Vector<T> d = at[axis] - row[axis];
                squared += d * d;
            }
            return squared;
        }
        Vector<T> bell(const T* at) const {
            const Vector<T> exponent = squared_distance(at) * (T(-0.5) / (constant * constant));
            const auto inside = exponent > T(-80);
            return inside ? exponential<T>(inside ? exponent : Vector<T>{}) : Vector<T>{};
        }
        Vector<T> value(const T* at) const {
            if constexpr (known == Kind::gaussian) return bell(at);
            if constexpr (known == Kind::mlp) {
                const Vector<T> value = affine(at);
                return value > T(0) ? value : value * constant;
            } else {
                const Vector<T> value = T(1) - root(squared_distance(at)) * (T(1) / constant);
                return value > T(0) ? value : Vector<T>{};
            }
        }
        // db/dtau = pull (tau - p)
        Vector<T> pull(const T* at) const {
            if constexpr (known == Kind::gaussian) return bell(at) * (T(-1) / (constant * constant));
            const Vector<T> distance = root(squared_distance(at));
            const Vector<T> safe = distance > T(0) ? distance : spread(T(1));
            return distance < constant ? T(-1) / (safe * constant) : Vector<T>{};
        }
    };

    template <Kind known, int D, class At>
    void evaluate_as(int64_t n, const At& at, T* out, const T* scale) const {
        const int64_t P = padded();
        const T* edges = edges_;
        for (int64_t i = 0; i < P; i += kLanes<T>) {
            const Functions<known, D> functions(*this, i);
            for (int64_t e = 0; e < n; ++e) {
                const int64_t edge = at(e);
                store(out + e * P + i, functions.value(edges + edge * D) * (scale ? scale[edge] : T(1)));
            }
        }
    }

    template <Kind known, int D>
    void backward_as(int64_t first, int64_t n, const T* grad, T* sums, T* grad_offsets) const {
        const int64_t P = padded();
        const T* edges = edges_ + first * D;
        for (int64_t i = 0; i < P; i += kLanes<T>) {
            const Functions<known, D> functions(*this, i);
            Vector<T> total[D + 1] = {};
            for (int64_t e = 0; e < n; ++e) {
                const T* at = edges + e * D;
                Vector<T> g = load(grad + e * P + i), slope[D];
                if constexpr (known == Kind::mlp) {
                    g = functions.affine(at) > T(0) ? g : g * functions.constant;
                    for (int axis = 0; axis < D; ++axis) total[axis] += g * at[axis];
                    total[D] += g;
                    for (int axis = 0; axis < D; ++axis) slope[axis] = g * functions.row[axis];
                } else {
                    const Vector<T> pull = functions.pull(at);
                    for (int axis = 0; axis < D; ++axis)  // padding is infinitely far
                        slope[axis] = pull == T(0) ? Vector<T>{} : g * pull * (at[axis] - functions.row[axis]);
                }
                if (!grad_offsets) continue;
                T* to = grad_offsets + (first + e) * D;
                for (int axis = 0; axis < D; ++axis) to[axis] = (i ? to[axis] : T(0)) + sum<T>(slope[axis]);
            }
            if (known == Kind::mlp && sums)
                for (int axis = 0; axis <= D; ++axis)
                    store(sums + axis * P + i, load(sums + axis * P + i) + total[axis]);
        }
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
        const T place = std::ceil(value * T(count / range)) - 1;
        return place > 0 ? int64_t(std::min(place, T(count) - 1)) : 0;  // not a number counts as 0
    }

    const T* edges_;
    const T* scale_;
    std::vector<double> constants_;
    std::vector<T> rows_[4], mixing_;
};

}  // namespace pointvar
