// Kernel density: a Gaussian sum over the points of the cloud, cut at 4 bandwidths; and its gradient.
#pragma once

#include "grid.hpp"

namespace pointvar {

// What both sums share: cells as large as the cut, and the constants of each cloud's Gaussian.
template <class T>
class Gaussian {
   public:
    Gaussian(const Batch<T>& batch, const T* bandwidth)
        : cut_(cut(batch.clouds, bandwidth)), cells(batch, cut_.data()), points(cells, batch) {
        for (int64_t cloud = 0; cloud < batch.clouds; ++cloud) {
            const double h = bandwidth[cloud];
            scale.push_back(T(1 / std::pow(std::sqrt(2 * M_PI) * h, batch.dim)));
            decay.push_back(T(-0.5 / (h * h)));
            limit.push_back(cut_[cloud] * cut_[cloud]);
        }
    }

    // exp(-d^2 / 2h^2) inside the cut, 0 outside
    Vector<T> value(Vector<T> squared, int64_t cloud) const {
        const auto inside = squared < limit[cloud];
        const Vector<T> exponent = inside ? squared * decay[cloud] : Vector<T>{};
        return inside ? exponential<T>(exponent) : Vector<T>{};
    }

   private:
    static Buffer<T> cut(int64_t clouds, const T* bandwidth) {
        Buffer<T> result(clouds);
        for (int64_t cloud = 0; cloud < clouds; ++cloud) result[cloud] = 4 * bandwidth[cloud];
        return result;
    }
    Buffer<T> cut_;

   public:
    Cells<T> cells;
    Sorted<T> points;
    std::vector<T> scale, decay, limit;
};

template <class T>
Buffer<T> kernel_density(const Batch<T>& batch, const T* bandwidth) {
    const Gaussian<T> gaussian(batch, bandwidth);
    const Sorted<T>& p = gaussian.points;
    Buffer<T> density(batch.n);
    parallel_for(batch.n, 1 << 10, [&](int64_t begin, int64_t end) {
        const auto add_up = [&](int64_t i, int64_t cloud, const Candidates<T>& near) {
            // Most candidates are outside the cut: the others are brought together first, so that the sum does not
            // depend on how many are outside.
            constexpr int64_t most = 256, lanes = kLanes<T>;
            T squares[most + 2 * kSlack];
            const T limit = gaussian.limit[cloud];
            Vector<T> total{};
            int64_t found = 0;
            for (int64_t j = 0; j < near.size; j += lanes) {
                const Vector<T> squared = squared_distance(near, j, p.x[i], p.y[i], p.z[i]);
                const unsigned inside = lane_bits<T>(squared < limit);
                store_chosen(squares + found, squared, inside);
                found += __builtin_popcount(inside);
                if (found < most) continue;
                for (int64_t k = 0; k < most; k += lanes) total += gaussian.value(load(squares + k), cloud);
                store(squares, load(squares + most));
                found -= most;
            }
            store(squares + found, spread(limit));
            for (int64_t k = 0; k < found; k += lanes) total += gaussian.value(load(squares + k), cloud);
            density[p.index[i]] = gaussian.scale[cloud] * sum<T>(total);
        };
        for_queries(gaussian.cells, p, p, begin, end, 12, kNever, add_up);
    });
    return density;
}

// grad_points[i] = sum_k (g_i + g_k) G(y_i - y_k) (y_k - y_i) / h^2
template <class T>
Buffer<T> kernel_density_backward(const T* grad, const Batch<T>& batch, const T* bandwidth) {
    const Gaussian<T> gaussian(batch, bandwidth);
    const Sorted<T>& p = gaussian.points;
    Buffer<T> result(batch.n * batch.dim);
    parallel_for(batch.n, 1 << 10, [&](int64_t begin, int64_t end) {
        Buffer<T> weights;  // g_k of the candidates, gathered once per cell
        const int32_t* seen = nullptr;
        int64_t key = -1;
        const auto add_up = [&](int64_t i, int64_t cloud, const Candidates<T>& near) {
            if (p.key[i] != key || seen != near.id) {
                if (weights.size() < near.size) weights = Buffer<T>(2 * near.size);
                for (int64_t j = 0; j < near.size; ++j) weights[j] = grad[near.id[j]];
                key = p.key[i], seen = near.id;
            }
            const T own = grad[p.index[i]];
            Vector<T> slope[3] = {};
            const T* axes[3] = {near.x, near.y, near.z};
            const T at[3] = {p.x[i], p.y[i], p.z[i]};
            for (int64_t j = 0; j < near.size; j += kLanes<T>) {
                const Vector<T> squared = squared_distance(near, j, at[0], at[1], at[2]);
                const auto inside = squared < gaussian.limit[cloud];
                const Vector<T> pull = gaussian.value(squared, cloud) * (load(weights.data() + j) + own);
                for (int axis = 0; axis < batch.dim; ++axis)
                    slope[axis] += inside ? pull * (load(axes[axis] + j) - at[axis]) : Vector<T>{};
            }
            const T factor = -2 * gaussian.decay[cloud] * gaussian.scale[cloud];
            for (int axis = 0; axis < batch.dim; ++axis)
                result[p.index[i] * batch.dim + axis] = factor * sum<T>(slope[axis]);
        };
        for_queries(gaussian.cells, p, p, begin, end, 0, kNever, add_up);
    });
    return result;
}

}  // namespace pointvar
