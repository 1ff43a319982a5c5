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

// Rows of edges. Without `edges`, the edges of a row are numbered one after the other.
struct Edges {
    const int64_t* row_offsets;
    const int64_t* indices;
    const int64_t* edges;
    int64_t at(int64_t place) const { return edges ? edges[place] : place; }
};

#if defined(__AVX512F__)
constexpr int kRows = 8;
#else
constexpr int kRows = 4;
#endif

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
        while (r + kRows <= rows) some(std::integral_constant<int, kRows>());
        while (r < rows) some(std::integral_constant<int, 1>());
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
    std::vector<T> values, turned, grad;
    std::vector<const T*> features;
    std::vector<T*> targets;
};

// phi: [K, C] of one row, zeroed and filled; response: [K] or null.
template <class T>
void project_row(const Basis<T>& basis, const Edges& list, int64_t row, const T* features, int64_t channels, T* phi,
                 T* response, Scratch<T>& scratch) {
    const int64_t first = list.row_offsets[row], n = list.row_offsets[row + 1] - first, K = basis.size;
    if (basis.one_hot()) {
        std::fill(phi, phi + K * channels, T(0));
        if (response) std::fill(response, response + K, T(0));
        for (int64_t e = first; e < first + n; ++e) {
            const int64_t edge = list.at(e), bin = basis.bin(edge);
            const T q = basis.scale(edge);
            const T* source = features + list.indices[e] * channels;
            T* to = phi + bin * channels;
            for (int64_t c = 0; c < channels; ++c) to[c] += q * source[c];
            if (response) response[bin] += q;
        }
        return;
    }
    const int64_t stride = basis.stride;
    scratch.features.resize(size_t(n));
    for (int64_t e = 0; e < n; ++e) scratch.features[size_t(e)] = features + list.indices[first + e] * channels;
    const T* v;
    if (basis.given() && !list.edges) {
        v = basis.given(first);
    } else {
        scratch.values.resize(size_t(n * stride + kSlack));
        for (int64_t e = 0; e < n; ++e) basis.evaluate(list.at(first + e), scratch.values.data() + e * stride);
        v = scratch.values.data();
    }
    const T* const* rows = scratch.features.data();
    const auto from = [rows](int64_t e) { return rows[e]; };
    const auto value = [v, stride](int64_t e, int64_t i) { return v[e * stride + i]; };
    int64_t c = sum_blocks<T>(K, channels, n, value, from, [=](int64_t i) { return phi + i * channels; });
    if (c < channels || response) {
        scratch.turned.resize(size_t(K));
        T* total = scratch.turned.data();
        for (; c < channels; ++c) {
            std::fill(total, total + K, T(0));
            for (int64_t e = 0; e < n; ++e) {
                const T feature = rows[e][c];
                for (int64_t i = 0; i < K; ++i) total[i] += v[e * stride + i] * feature;
            }
            for (int64_t i = 0; i < K; ++i) phi[i * channels + c] = total[i];
        }
        if (response) {
            std::fill(response, response + K, T(0));
            for (int64_t e = 0; e < n; ++e)
                for (int64_t i = 0; i < K; ++i) response[i] += v[e * stride + i];
        }
    }
}

// phi: [count, K, C] of the rows first, ..., first + count - 1.
template <class T>
void project(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features, int64_t channels,
             T* phi, T* response) {
    parallel_for(count, 16, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        for (int64_t i = begin; i < end; ++i)
            project_row(basis, list, first + i, features, channels, phi + i * basis.size * channels,
                        response ? response + (first + i) * basis.size : nullptr, scratch);
    });
}

// to[c, k] = from[k, c], with zeros for K <= k < P.
template <class T>
void turn(const T* from, int64_t K, int64_t channels, T* to, int64_t P) {
    constexpr int L = kLanes<T>;
    for (int64_t k = 0; k < P; k += L) {
        int64_t c = 0;
        for (; k + L <= K && c + L <= channels; c += L) {
            Vector<T> square[L];
            for (int i = 0; i < L; ++i) square[i] = load(from + (k + i) * channels + c);
            turn_over<T>(square);
            for (int i = 0; i < L; ++i) store(to + (c + i) * P + k, square[i]);
        }
        for (; c < channels; ++c)
            for (int i = 0; i < L; ++i) to[c * P + k + i] = k + i < K ? from[(k + i) * channels + c] : T(0);
    }
}

// What the gradient of a chunk's projection sends back along its edges.
template <class T>
struct Gradients {
    T* features;       // [N, C], added to, or null
    T* edges;          // [E, K] of the values or [E, D] of the offsets, or null
    T* scale;          // [E] of q, or null
    T* parameters;     // [parameter_sums], added to, or null
    const T* response; // [M, K], gradient of the response, or null
};

// grad_F[y, c] += sum over i of v[e, i] g[i, c]
template <class T>
void unproject_features(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, int64_t channels,
                        const T* grad_phi, T* grad_features) {
    const int64_t K = basis.size, P = basis.padded(), team = threads();
    parallel_for(team, 1, [&](int64_t own, int64_t) {
        static thread_local Scratch<T> scratch;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t e0 = list.row_offsets[first + i], e1 = list.row_offsets[first + i + 1];
            const T* g = grad_phi + i * K * channels;
            scratch.values.resize(size_t((e1 - e0) * P + kSlack));
            scratch.targets.clear();
            T* v = scratch.values.data();
            for (int64_t e = e0; e < e1; ++e) {
                const int64_t y = list.indices[e];
                if (team > 1 && (y >> 6) % team != own) continue;  // neighbours in blocks, so that all have work
                basis.evaluate(e, v + int64_t(scratch.targets.size()) * P);
                scratch.targets.push_back(grad_features + y * channels);
            }
            T* const* targets = scratch.targets.data();
            const int64_t n = int64_t(scratch.targets.size());
            int64_t c = sum_blocks<T, true>(
                n, channels, K, [v, P](int64_t k, int64_t e) { return v[e * P + k]; },
                [g, channels](int64_t k) { return g + k * channels; }, [targets](int64_t e) { return targets[e]; });
            for (; c < channels; ++c)
                for (int64_t e = 0; e < n; ++e) {
                    T total = 0;
#pragma omp simd reduction(+ : total)
                    for (int64_t k = 0; k < K; ++k) total += v[e * P + k] * g[k * channels + c];
                    targets[e][c] += total;
                }
        }
    });
}

template <class T>
void unproject_edges(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features,
                     int64_t channels, const T* grad_phi, const Gradients<T>& grads) {
    const int64_t K = basis.size, P = basis.padded();
    constexpr int64_t grain = 16;
    const int64_t sums = basis.parameter_sums();
    std::vector<T> partial(size_t(sums * ((count + grain - 1) / grain)), T(0));
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
        static thread_local Scratch<T> scratch;
        T* own_sums = partial.data() + sums * (begin / grain);
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = first + i, e0 = list.row_offsets[row], n = list.row_offsets[row + 1] - e0;
            scratch.turned.resize(size_t(channels * P));  // turned over, so that it is read along K
            T* turned = scratch.turned.data();
            turn(grad_phi + i * K * channels, K, channels, turned, P);
            scratch.features.resize(size_t(n));
            for (int64_t e = 0; e < n; ++e) scratch.features[size_t(e)] = features + list.indices[e0 + e] * channels;
            scratch.grad.resize(size_t(n * P));
            T* gv = scratch.grad.data();  // gv[e, i] = sum over c of F[y, c] g[i, c]
            const T* const* rows = scratch.features.data();
            sum_blocks<T>(
                n, P, channels, [rows](int64_t c, int64_t e) { return rows[e][c]; },
                [turned, P](int64_t c) { return turned + c * P; }, [gv, P](int64_t e) { return gv + e * P; });
            scratch.values.resize(size_t(P));
            T* v = scratch.values.data();
            for (int64_t e = 0; e < n; ++e) {
                T* grad = gv + e * P;
                const int64_t edge = e0 + e;
                if (grads.response)
                    for (int64_t k = 0; k < K; ++k) grad[k] += grads.response[row * K + k];
                if (basis.given()) {
                    std::copy(grad, grad + K, grads.edges + edge * K);
                    continue;
                }
                if (grads.scale) {
                    basis.evaluate(edge, v, true);
                    T total = 0;
                    for (int64_t k = 0; k < K; ++k) total += grad[k] * v[k];
                    grads.scale[edge] = total;
                }
                if (grads.edges || grads.parameters) {
                    const T q = basis.scale(edge);
                    for (int64_t k = 0; k < P; ++k) grad[k] *= q;
                    T unused[3];
                    basis.backward(edge, grad, own_sums, grads.edges ? grads.edges + edge * basis.dim : unused);
                }
            }
        }
    });
    if (grads.parameters)
        for (size_t i = 0; i < partial.size(); ++i) grads.parameters[i % size_t(sums)] += partial[i];
}

// grad_phi: [count, K, C]. First along the rows, for all that belongs to an edge; then for the features, where each
// thread adds up the support points that are its own, so that every one sums its edges in their order.
template <class T>
void unproject(const Basis<T>& basis, const Edges& list, int64_t first, int64_t count, const T* features, int64_t channels,
               const T* grad_phi, const Gradients<T>& grads) {
    if (grads.edges || grads.scale || grads.parameters)
        unproject_edges(basis, list, first, count, features, channels, grad_phi, grads);
    if (grads.features) unproject_features(basis, list, first, count, channels, grad_phi, grads.features);
}

}  // namespace pointvar
