// The projection phi[x, i, c] = sum over e of v[e, i] F[y(e), c] for a chunk of rows, and its way back.
//
// Blocks of R basis functions x V vectors of channels are summed in registers over the edges of a row; channels
// that do not fill a vector are vectorised over the basis functions instead.
#pragma once

#include <cstring>
#include <vector>

#include "basis.hpp"
#include "buffer.hpp"
#include "parallel.hpp"

namespace pointvar {

// Rows of edges. Without `edges`, the edges of a row are numbered one after the other. Rows are visited in the given
// order: those that are neighbours in space one after the other read the same features, which are then still at hand.
struct Edges {
    const int64_t* row_offsets;
    const int64_t* indices;
    const int64_t* edges;
    const int64_t* order;
    int64_t row(int64_t place) const { return order ? order[place] : place; }
    int64_t at(int64_t place) const { return edges ? edges[place] : place; }
};

// Work is counted in products of two numbers. A part that a thread takes has at least so many: fewer are not worth a team.
constexpr int64_t kPartProducts = 1 << 20;
constexpr int64_t kEdgeProducts = 512;  // in the time that an edge takes beside its [K, C]

inline int64_t parts(int64_t products, int64_t most) {
    return std::clamp<int64_t>(products / kPartProducts, 1, std::max<int64_t>(most, 1));
}
// How many of n items make a part, at least about `least`; this does not depend on the number of threads.
inline int64_t grain(int64_t n, int64_t products, int64_t least) {
    const int64_t count = parts(products, n / least);
    return std::max<int64_t>((n + count - 1) / count, 1);
}
// About what the rows from `first` on cost, with `size` numbers in the projection of each.
inline int64_t projection_products(const Edges& list, int64_t first, int64_t count, int64_t size) {
    return (list.row_offsets[first + count] - list.row_offsets[first]) * (size + kEdgeProducts);
}

// Rows of a block that is V vectors wide, so that the sums, a row of factors and their source fill the registers.
#if defined(__AVX512F__)
template <int V>
constexpr int kRows = V == 1 ? 12 : 24 / V;
#else
template <int V>
constexpr int kRows = V == 1 ? 8 : 12 / V;
#endif

// Calls body with a height between 1 and H as a constant.
template <int H, class Body>
inline void with_height(int64_t height, const Body& body) {
    if constexpr (H > 1)
        if (height < H) return with_height<H - 1>(height, body);
    body(std::integral_constant<int, H>());
}

// to(r)[:V vectors] = sum over k < n of factor(k, r) * from(k)[:V vectors], or added to what is there
template <int R, int V, bool Add, class T, class Factor, class From, class To>
inline void sum_block(int64_t n, const Factor& factor, const From& from, const To& to) {
    Vector<T> total[R][V];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) total[r][v] = Vector<T>{};
    for (int64_t k = 0; k < n; ++k) {
        const T* source = from(k);
        Vector<T> part[V];
        for (int v = 0; v < V; ++v) part[v] = load(source + v * kLanes<T>);
        for (int r = 0; r < R; ++r) {
            const T f = factor(k, r);
            for (int v = 0; v < V; ++v) total[r][v] += f * part[v];
        }
    }
    for (int r = 0; r < R; ++r) {
        T* target = to(r);
        for (int v = 0; v < V; ++v)
            store(target + v * kLanes<T>, Add ? load(target + v * kLanes<T>) + total[r][v] : total[r][v]);
    }
}

// The same for any number of rows and for all whole vectors of columns; returns how many columns these are.
template <class T, bool Add = false, class Factor, class From, class To>
inline int64_t sum_blocks(int64_t rows, int64_t columns, int64_t n, const Factor& factor, const From& from, const To& to) {
    constexpr int L = kLanes<T>;
    int64_t c = 0;
    const auto band = [&](auto vectors) {
        constexpr int V = decltype(vectors)::value;
        const auto source = [&](int64_t k) { return from(k) + c; };
        int64_t r = 0;
        const auto some = [&](auto height) {
            sum_block<decltype(height)::value, V, Add, T>(
                n, [&](int64_t k, int i) { return factor(k, r + i); }, source, [&](int i) { return to(r + i) + c; });
            r += decltype(height)::value;
        };
        while (r < rows) {  // the last two share what is left, for a low block waits for its own sums
            const int64_t left = rows - r;
            with_height<kRows<V>>(left >= 2 * kRows<V> ? kRows<V> : left > kRows<V> ? (left + 1) / 2 : left, some);
        }
        c += V * L;
    };
    while (columns - c >= 3 * L) band(std::integral_constant<int, 3>());
    while (columns - c >= 2 * L) band(std::integral_constant<int, 2>());
    while (columns - c >= L) band(std::integral_constant<int, 1>());
    return c;
}

// Room of one thread.
template <class T>
struct Scratch {
    std::vector<T> values, turned, grad, unmixed;
    std::vector<const T*> features;
    std::vector<T*> targets;
    std::vector<int64_t> edges;
};

// The Euclidean norm, or infinity in place of 0. Squares neither overflow nor vanish: those of single precision are
// summed in double precision, others in units of the largest number.
template <class T>
T norm_of(const T* numbers, int64_t count) {
    double unit = 1, total = 0;
    if constexpr (sizeof(T) == 8) {
        unit = 0;
        for (int64_t i = 0; i < count; ++i) unit = std::max(unit, std::abs(numbers[i]));
        if (!(unit > 0)) return std::numeric_limits<T>::infinity();
    }
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; ++i) total += (double(numbers[i]) / unit) * (double(numbers[i]) / unit);
    return total == 0 ? std::numeric_limits<T>::infinity() : T(std::sqrt(total) * unit);
}

// Divides count numbers, a multiple of the lanes of a vector, by a norm: where it has an inverse, by a product.
template <class T>
void divide(T* numbers, int64_t count, T norm) {
    const T inverse = T(1) / norm;
    if (inverse == 0 || std::isnormal(inverse))
        for (int64_t i = 0; i < count; i += kLanes<T>) store(numbers + i, load(numbers + i) * inverse);
    else
        for (int64_t i = 0; i < count; i += kLanes<T>) store(numbers + i, load(numbers + i) / norm);
}

// Divides the values v [n, P] of a row by their response s = || sum over e of v[e] ||, so that a constant feature keeps
// its norm; returns s. Where s is 0 it counts as infinite, and all values become 0.
template <class T>
T divide_by_response(T* v, int64_t n, int64_t P, T* response) {
    for (int64_t k = 0; k < P; k += kLanes<T>) {
        Vector<T> total{};
        for (int64_t e = 0; e < n; ++e) total += load(v + e * P + k);
        store(response + k, total);
    }
    const T norm = norm_of(response, P);
    divide(v, n * P, norm);
    return norm;
}

// v [n, P] M in place of v, where the basis is mixed; M is symmetric, so that this is the way of gradients, too.
template <class T>
void mix(const Basis<T>& basis, T* v, int64_t n, Scratch<T>& scratch) {
    if (!basis.mixed()) return;
    const int64_t P = basis.padded();
    scratch.unmixed.assign(v, v + n * P);
    const T* from = scratch.unmixed.data();
    sum_blocks<T>(
        n, P, basis.size, [from, P](int64_t k, int64_t e) { return from[e * P + k]; },
        [&basis](int64_t k) { return basis.mixing(k); }, [v, P](int64_t e) { return v + e * P; });
}

// phi: [K, C] of one row where each edge has one function that is not 0.
template <class T>
void project_bins(const Basis<T>& basis, const Edges& list, int64_t row, const T* features, int64_t channels, T* phi,
                  T* norm, Scratch<T>& scratch) {
    const int64_t first = list.row_offsets[row], n = list.row_offsets[row + 1] - first, K = basis.size;
    scratch.edges.resize(size_t(n));
    scratch.values.assign(size_t(K), T(0));
    for (int64_t e = 0; e < n; ++e) {
        const int64_t edge = list.at(first + e);
        scratch.edges[size_t(e)] = basis.bin(edge);
        scratch.values[size_t(scratch.edges[size_t(e)])] += basis.scale(edge);
    }
    const T s = norm ? *norm = norm_of(scratch.values.data(), K) : T(1);
    std::fill(phi, phi + K * channels, T(0));
    for (int64_t e = 0; e < n; ++e) {
        const T q = basis.scale(list.at(first + e)) / s;
        const T* source = features + list.indices[first + e] * channels;
        T* to = phi + scratch.edges[size_t(e)] * channels;
        for (int64_t c = 0; c < channels; ++c) to[c] += q * source[c];
    }
}

// phi: [K, C] of one row, divided by its response where there is a place for that.
template <class T>
void project_row(const Basis<T>& basis, const Edges& list, int64_t row, const T* features, int64_t channels, T* phi,
                 T* norm, Scratch<T>& scratch) {
    if (basis.one_hot() && !basis.mixed()) return project_bins(basis, list, row, features, channels, phi, norm, scratch);
    const int64_t first = list.row_offsets[row], n = list.row_offsets[row + 1] - first, K = basis.size, P = basis.padded();
    scratch.features.resize(size_t(n));
    for (int64_t e = 0; e < n; ++e) scratch.features[size_t(e)] = features + list.indices[first + e] * channels;
    const T* v;
    if (basis.given() && !list.edges && !norm && !basis.mixed() && K == P) {
        v = basis.given(first);
    } else {
        scratch.values.resize(size_t(n * P));
        basis.evaluate(n, [first, list](int64_t e) { return list.at(first + e); }, scratch.values.data());
        v = scratch.values.data();
    }
    if (norm) {
        scratch.turned.resize(size_t(P));
        *norm = divide_by_response(scratch.values.data(), n, P, scratch.turned.data());
    }
    mix(basis, scratch.values.data(), n, scratch);
    const T* const* rows = scratch.features.data();
    const auto from = [rows](int64_t e) { return rows[e]; };
    const auto value = [v, P](int64_t e, int64_t i) { return v[e * P + i]; };
    const int64_t c = sum_blocks<T>(K, channels, n, value, from, [=](int64_t i) { return phi + i * channels; });
    const int64_t rest = channels - c;
    if (!rest) return;
    scratch.turned.resize(size_t(rest * P));  // along K: the channels that are left
    T* turned = scratch.turned.data();
    sum_blocks<T>(
        rest, P, n, [rows, c](int64_t e, int64_t r) { return rows[e][c + r]; }, [v, P](int64_t e) { return v + e * P; },
        [turned, P](int64_t r) { return turned + r * P; });
    for (int64_t i = 0; i < K; ++i)
        for (int64_t r = 0; r < rest; ++r) phi[i * channels + c + r] = turned[r * P + i];
}

// Asks for the edges of a row ahead of time: rows that are not visited one after the other are not foreseen otherwise.
template <class T>
void fetch_row(const Basis<T>& basis, const Edges& list, int64_t row) {
    const int64_t begin = list.row_offsets[row], end = list.row_offsets[row + 1];
    fetch(list.indices + begin, list.indices + end);
    if (list.edges)
        fetch(list.edges + begin, list.edges + end);
    else
        basis.fetch(begin, end);
}

// phi: [K, C] of each row at the places first, ..., last - 1, `stride` numbers apart. With norm [M], each row is divided
// by its response, which is written there.
template <class T>
void project_rows(const Basis<T>& basis, const Edges& list, int64_t first, int64_t last, const T* features,
                  int64_t channels, T* phi, int64_t stride, T* norm, Scratch<T>& scratch) {
    for (int64_t place = first; place < last; ++place, phi += stride) {
        const int64_t row = list.row(place);
        if (list.order && place + 2 < last) fetch_row(basis, list, list.row(place + 2));
        project_row(basis, list, row, features, channels, phi, norm ? norm + row : nullptr, scratch);
    }
}

// The same by a team.
template <class T>
void project(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features, int64_t channels,
             T* phi, int64_t stride, T* norm) {
    const int64_t products = projection_products(list, first, count, basis.size * channels);
    parallel_for(count, grain(count, products, 16), [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        project_rows(basis, list, first + begin, first + end, features, channels, phi + begin * stride, stride, norm, scratch);
    });
}

// to[c, k] = from[k, c] for c < channels, with zeros for K <= k < P; `from` has rows of length `stride`.
template <class T>
void turn(const T* from, int64_t K, int64_t channels, int64_t stride, T* to, int64_t P) {
    constexpr int L = kLanes<T>;
    for (int64_t k = 0; k < P; k += L) {
        int64_t c = 0;
        for (; k + L <= K && c + L <= channels; c += L) {
            Vector<T> square[L];
            for (int i = 0; i < L; ++i) square[i] = load(from + (k + i) * stride + c);
            turn_over<T>(square);
            for (int i = 0; i < L; ++i) store(to + (c + i) * P + k, square[i]);
        }
        for (; c < channels; ++c)
            for (int i = 0; i < L; ++i) to[c * P + k + i] = k + i < K ? from[(k + i) * stride + c] : T(0);
    }
}

// What the gradient of a chunk's projection sends back along its edges.
template <class T>
struct Gradients {
    T* features;       // [N, C], added to, or null
    T* edges;          // [E, K] of the values or [E, D] of the offsets, or null
    T* scale;          // [E] of q, or null
    T* parameters;     // as the basis has them, added to, or null
    const T* norm;     // [M], the response that rows were divided by, or null
    bool along_edges() const { return edges || scale || parameters; }
    bool any() const { return features || along_edges(); }
};

// grad_F[y, c] += sum over i of v[e, i] / s g[i, c]
template <class T>
void unproject_features(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, int64_t channels,
                        const T* grad_phi, int64_t stride, T* grad_features, const T* norm) {
    const int64_t K = basis.size, P = basis.padded();
    const uint32_t team = uint32_t(parts(projection_products(list, first, count, K * channels), threads()));
    parallel_for(team, 1, [&](int64_t own, int64_t) {
        static thread_local Scratch<T> scratch;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t row = list.row(first + i), e0 = list.row_offsets[row], e1 = list.row_offsets[row + 1];
            const T* g = grad_phi + i * stride;
            if (list.order && i + 2 < count) fetch_row(basis, list, list.row(first + i + 2));
            scratch.targets.clear();
            scratch.edges.clear();
            for (int64_t e = e0; e < e1; ++e) {
                const int64_t y = list.indices[e];
                if (team > 1 && uint32_t(y >> 6) % team != own) continue;  // in blocks, so that all have work
                scratch.targets.push_back(grad_features + y * channels);
                scratch.edges.push_back(e);
            }
            T* const* targets = scratch.targets.data();
            const int64_t* edges = scratch.edges.data();
            const int64_t n = int64_t(scratch.targets.size());
            scratch.values.resize(size_t(n * P));
            T* v = scratch.values.data();
            basis.evaluate(n, [edges](int64_t e) { return edges[e]; }, v);
            if (norm) divide(v, n * P, norm[row]);
            mix(basis, v, n, scratch);
            const int64_t c = sum_blocks<T, true>(
                n, channels, K, [v, P](int64_t k, int64_t e) { return v[e * P + k]; },
                [g, channels](int64_t k) { return g + k * channels; }, [targets](int64_t e) { return targets[e]; });
            if (c == channels) continue;
            scratch.turned.resize(size_t((channels - c) * P));
            T* turned = scratch.turned.data();
            turn(g + c, K, channels - c, channels, turned, P);
            for (int64_t e = 0; e < n; ++e)
                for (int64_t r = 0; r < channels - c; ++r) {
                    Vector<T> total{};
                    for (int64_t k = 0; k < P; k += kLanes<T>) total += load(v + e * P + k) * load(turned + r * P + k);
                    targets[e][c + r] += sum<T>(total);
                }
        }
    });
}

// From the gradient g of the divided values u = v / s, s = || sum over e of v[e] ||, to that of v:
// (g[e] - t r) / s with r = sum over e of u[e], a unit vector, and t = sum over e of u[e] . g[e].
template <class T>
void through_response(const Basis<T>& basis, int64_t first, int64_t n, T norm, T* grad, Scratch<T>& scratch) {
    const int64_t P = basis.padded();
    scratch.values.resize(size_t(n * P));
    scratch.turned.resize(size_t(P));
    T *u = scratch.values.data(), *r = scratch.turned.data();
    basis.evaluate(n, [first](int64_t e) { return first + e; }, u);
    divide(u, n * P, norm);
    Vector<T> together{};
    for (int64_t k = 0; k < P; k += kLanes<T>) {
        Vector<T> total{};
        for (int64_t e = 0; e < n; ++e) {
            total += load(u + e * P + k);
            together += load(u + e * P + k) * load(grad + e * P + k);
        }
        store(r + k, total);
    }
    const T t = sum<T>(together);
    for (int64_t e = 0; e < n; ++e)
        for (int64_t k = 0; k < P; k += kLanes<T>) store(grad + e * P + k, load(grad + e * P + k) - t * load(r + k));
    divide(grad, n * P, norm);
}

template <class T>
void unproject_edges(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features,
                     int64_t channels, const T* grad_phi, int64_t stride, const Gradients<T>& grads) {
    const int64_t K = basis.size, P = basis.padded();
    const int64_t grain = pointvar::grain(count, projection_products(list, first, count, K * channels), 16);
    const int64_t sums = basis.parameter_sums();
    std::vector<T> partial(size_t(sums * ((count + grain - 1) / grain)), T(0));
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T* own_sums = partial.data() + sums * (begin / grain);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = list.row(first + i), e0 = list.row_offsets[row], n = list.row_offsets[row + 1] - e0;
            scratch.turned.resize(size_t(channels * P));  // turned over, so that it is read along K
            T* turned = scratch.turned.data();
            turn(grad_phi + i * stride, K, channels, channels, turned, P);
            scratch.features.resize(size_t(n));
            for (int64_t e = 0; e < n; ++e) scratch.features[size_t(e)] = features + list.indices[e0 + e] * channels;
            scratch.grad.resize(size_t(n * P));
            T* gv = scratch.grad.data();  // gv[e, i] = sum over c of F[y, c] g[i, c]
            const T* const* rows = scratch.features.data();
            sum_blocks<T>(
                n, P, channels, [rows](int64_t c, int64_t e) { return rows[e][c]; },
                [turned, P](int64_t c) { return turned + c * P; }, [gv, P](int64_t e) { return gv + e * P; });
            mix(basis, gv, n, scratch);
            if (grads.norm) through_response(basis, e0, n, grads.norm[row], gv, scratch);
            if (basis.given()) {
                for (int64_t e = 0; e < n; ++e) std::copy(gv + e * P, gv + e * P + K, grads.edges + (e0 + e) * K);
                continue;
            }
            if (grads.scale) {
                scratch.values.resize(size_t(n * P));
                T* v = scratch.values.data();
                basis.evaluate(n, [e0](int64_t e) { return e0 + e; }, v, true);
                for (int64_t e = 0; e < n; ++e) {
                    Vector<T> total{};
                    for (int64_t k = 0; k < P; k += kLanes<T>) total += load(gv + e * P + k) * load(v + e * P + k);
                    grads.scale[e0 + e] = sum<T>(total);
                }
            }
            if (grads.edges || grads.parameters) {
                for (int64_t e = 0; e < n; ++e) {
                    const T q = basis.scale(e0 + e);
                    for (int64_t k = 0; k < P; k += kLanes<T>) store(gv + e * P + k, load(gv + e * P + k) * q);
                }
                basis.backward(e0, n, gv, grads.parameters ? own_sums : nullptr, grads.edges);
            }
        }
    });
    if (grads.parameters)
        for (size_t i = 0; sums && i < partial.size(); i += size_t(sums)) basis.add_to_parameters(partial.data() + i, grads.parameters);
}

// grad_phi: [K, C] of each row, `stride` numbers apart. First along the rows, for all that belongs to an edge; then for
// the features, where each thread adds up the support points that are its own, so that every one sums its edges in their
// order.
template <class T>
void unproject(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features, int64_t channels,
               const T* grad_phi, int64_t stride, const Gradients<T>& grads) {
    if (grads.along_edges()) unproject_edges(basis, list, first, count, features, channels, grad_phi, stride, grads);
    if (grads.features)
        unproject_features(basis, list, first, count, channels, grad_phi, stride, grads.features, grads.norm);
}

}  // namespace pointvar
