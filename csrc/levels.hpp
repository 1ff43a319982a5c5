// The geometry of a network in one call: levels, the neighbourhoods within and between them, and what layers need of
// these. Each part is what the operator of its own gives (poisson_disk, spatial_order, ball_query, kernel_density,
// transpose); all that remains is written into two arrays, so that it travels as two.
#pragma once

#include <cstring>
#include <deque>

#include "curve.hpp"
#include "density.hpp"
#include "neighbours.hpp"
#include "poisson.hpp"

namespace pointvar {

struct LevelPlan {
    double radius;
    uint64_t seed;
};
struct DensityPlan {
    int64_t source;  // where 0 is the input, 1 the first level, and one more than there are levels the queries
    double bandwidth;
};
struct HoodPlan {
    int64_t source, target;
    double radius;
    int64_t most;
    uint64_t seed;
    int64_t density;  // whose inverses are the Monte Carlo weights, or -1
    bool transposed;
};
struct Plan {
    std::vector<LevelPlan> levels;
    std::vector<DensityPlan> densities;
    std::vector<HoodPlan> hoods;
};

template <class T>
struct Geometry {
    Buffer<int64_t> integers;
    Buffer<T> numbers;
    std::vector<int64_t> sizes;  // points of each level, then edges of each neighbourhood
};

// Writes one array after the other.
template <class T>
class Writer {
   public:
    explicit Writer(Buffer<T>& to) : to_(to.data()) {}
    T* room(int64_t count) { return std::exchange(to_, to_ + count); }
    void copy(const Buffer<T>& from) {
        std::memcpy(room(from.size()), from.data(), size_t(from.size()) * sizeof(T));
    }

   private:
    T* to_;
};

// The points of a level. The first level is sorted along the curve; the others keep that order, as part of it.
// Random choices know a point by the place that it has where nothing is sorted.
template <class T>
struct Level {
    Buffer<int64_t> kept, names, offsets;
    Buffer<T> points;

    Level(const Batch<T>& finer, Names finer_names, const LevelPlan& plan, bool sorted) : offsets(finer.clouds + 1) {
        const std::vector<T> radius(size_t(finer.clouds), T(plan.radius));
        kept = poisson_disk(finer, radius.data(), plan.seed, finer_names);
        const int64_t n = kept.size();
        for (int64_t cloud = 0; cloud <= finer.clouds; ++cloud)
            offsets[cloud] = std::lower_bound(kept.data(), kept.data() + n, finer.offsets[cloud]) - kept.data();
        take(finer);
        names = Buffer<int64_t>(n);
        if (!sorted) {
            names = spatial_order(batch(finer));
            Buffer<int64_t> along(n);
            for (int64_t i = 0; i < n; ++i) along[i] = kept[names[i]];
            kept = std::move(along);
            take(finer);
            return;
        }
        Buffer<int64_t> rank(finer.n);  // of a name among those kept
        std::fill(rank.data(), rank.data() + finer.n, 0);
        for (int64_t i = 0; i < n; ++i) rank[int64_t(finer_names(kept[i]))] = 1;
        int64_t total = 0;
        for (int64_t name = 0; name < finer.n; ++name) total += std::exchange(rank[name], total);
        for (int64_t i = 0; i < n; ++i) names[i] = rank[int64_t(finer_names(kept[i]))];
    }

    Batch<T> batch(const Batch<T>& finer) const {
        return {points.data(), kept.size(), finer.dim, offsets.data(), finer.clouds};
    }

   private:
    void take(const Batch<T>& finer) {
        points = Buffer<T>(kept.size() * finer.dim);
        for (int64_t i = 0; i < kept.size(); ++i)
            for (int axis = 0; axis < finer.dim; ++axis)
                points[i * finer.dim + axis] = finer.points[kept[i] * finer.dim + axis];
    }
};

// What a row of a neighbourhood holds beside the indices: (y - x) / r, and total / kept / r^D / p(y).
template <class T>
void write_row(const Batch<T>& support, const T* x, const int32_t* row, int64_t size, T radius, T total,
               const T* density, T* offsets, T* weights) {
    const int dim = support.dim;
    for (int64_t k = 0; k < size; ++k)
        for (int axis = 0; axis < dim; ++axis) offsets[k * dim + axis] = support.points[row[k] * dim + axis] - x[axis];
    for (int64_t k = 0; k < size * dim; ++k) offsets[k] /= radius;
    if (!density) return;
    T volume = radius;
    for (int axis = 1; axis < dim; ++axis) volume *= radius;
    const T share = total / T(size) / volume;
    for (int64_t k = 0; k < size; ++k) weights[k] = density[row[k]];
    for (int64_t k = 0; k < size; ++k) weights[k] = share / weights[k];
}

// Layout. integers: per level kept [n], names [n], offsets [B + 1]; per neighbourhood row_offsets [M + 1],
// total_counts [M], indices [E] and, where asked for, transposed [N + 1], [E], [E].
// numbers: points [n, D] of each level, the densities [n]; per neighbourhood offsets [E, D] and weights [E].
template <class T>
Geometry<T> geometry(const Batch<T>& input, const Batch<T>& queries, const Plan& plan) {
    std::vector<Level<T>> levels;
    levels.reserve(plan.levels.size());
    std::vector<Batch<T>> clouds{input};
    std::vector<Names> names(1);
    for (const LevelPlan& level : plan.levels) {
        levels.emplace_back(clouds.back(), names.back(), level, clouds.size() > 1);
        clouds.push_back(levels.back().batch(input));
        names.push_back({levels.back().names.data()});
    }
    clouds.push_back(queries);
    names.push_back({});

    std::vector<Buffer<T>> densities;
    for (const DensityPlan& density : plan.densities) {
        const std::vector<T> bandwidth(size_t(input.clouds), T(density.bandwidth));
        densities.push_back(kernel_density(clouds[size_t(density.source)], bandwidth.data()));
    }
    std::deque<RowCollector> rows;
    for (const HoodPlan& hood : plan.hoods) {
        const size_t source = size_t(hood.source), target = size_t(hood.target);
        const std::vector<T> radius(size_t(input.clouds), T(hood.radius));
        rows.emplace_back(clouds[target].n);
        find_in_balls(clouds[source], clouds[target], radius.data(),
                      {hood.most, hood.seed, names[source], names[target]}, rows.back());
    }

    Geometry<T> result;
    int64_t integers = 0, numbers = 0;
    for (const Level<T>& level : levels) {
        const int64_t n = level.kept.size();
        integers += 2 * n + input.clouds + 1;
        numbers += n * input.dim;
        result.sizes.push_back(n);
    }
    for (const Buffer<T>& density : densities) numbers += density.size();
    for (size_t i = 0; i < plan.hoods.size(); ++i) {
        const HoodPlan& hood = plan.hoods[i];
        const int64_t edges = rows[i].count();
        integers += 2 * clouds[size_t(hood.target)].n + 1 + edges;
        if (hood.transposed) integers += clouds[size_t(hood.source)].n + 1 + 2 * edges;
        numbers += edges * (input.dim + (hood.density >= 0));
        result.sizes.push_back(edges);
    }
    result.integers = Buffer<int64_t>(integers);
    result.numbers = Buffer<T>(numbers);
    Writer<int64_t> write(result.integers);
    Writer<T> write_numbers(result.numbers);
    for (const Level<T>& level : levels) {
        write.copy(level.kept);
        write.copy(level.names);
        write.copy(level.offsets);
        write_numbers.copy(level.points);
    }
    for (const Buffer<T>& density : densities) write_numbers.copy(density);
    for (size_t i = 0; i < plan.hoods.size(); ++i) {
        const HoodPlan& hood = plan.hoods[i];
        const Batch<T>&support = clouds[size_t(hood.source)], &asking = clouds[size_t(hood.target)];
        const int64_t edges = rows[i].row_offsets()[asking.n];
        const T* density = hood.density < 0 ? nullptr : densities[size_t(hood.density)].data();
        write.copy(rows[i].row_offsets());
        write.copy(rows[i].totals());
        int64_t* indices = write.room(edges);
        T* offsets = write_numbers.room(edges * input.dim);
        T* weights = write_numbers.room(density ? edges : 0);
        rows[i].write(indices, [&](int64_t query, int64_t first, const int32_t* row, int64_t size) {
            write_row(support, asking.points + query * input.dim, row, size, T(hood.radius), T(rows[i].totals()[query]), density,
                      offsets + first * input.dim, weights + first);
        });
        if (!hood.transposed) continue;
        const Columns columns{write.room(support.n + 1), write.room(edges), write.room(edges)};
        transpose(rows[i].row_offsets().data(), asking.n, indices, edges, support.n, columns);
    }
    return result;
}

}  // namespace pointvar
