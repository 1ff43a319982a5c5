// Ball query: all support points closer than the radius, in compressed rows.
#pragma once

#include <memory>
#include <vector>

#include "grid.hpp"
#include "random.hpp"

namespace pointvar {

struct Rows {
    Buffer<int64_t> row_offsets, indices, extra;  // extra: true counts (ball) or farthest neighbour (knn)
};

// Rows of int32 indices in the order in which they were found, brought into the order of the queries.
class RowCollector {
   public:
    explicit RowCollector(int64_t queries) : arenas_(size_t(threads())), rows_(queries) {}

    Arena<int32_t>& arena() { return arenas_[size_t(thread_number())]; }

    // `found` is the length of the row before some were left out.
    void set(int64_t query, const int32_t* row, int64_t count, int64_t found) {
        rows_[query] = {row, int32_t(count), int32_t(found)};
    }

    // Once all rows are set: how many indices there are.
    int64_t count() {
        const int64_t queries = rows_.size();
        offsets_ = Buffer<int64_t>(queries + 1), totals_ = Buffer<int64_t>(queries);
        int64_t total = 0;
        for (int64_t i = 0; i < queries; ++i) {
            offsets_[i] = total;
            totals_[i] = rows_[i].found;
            total += rows_[i].count;
        }
        return offsets_[queries] = total;
    }
    const Buffer<int64_t>& row_offsets() const { return offsets_; }
    const Buffer<int64_t>& totals() const { return totals_; }

    // After `count`: the rows one after the other. Calls each(query, first, ids, size) for the rows on the way.
    template <class Each>
    void write(int64_t* indices, const Each& each) const {
        parallel_for(rows_.size(), 1 << 12, [&](int64_t begin, int64_t end) {
            constexpr int64_t ahead = 16;  // rows are scattered in memory
            for (int64_t i = begin; i < end; ++i) {
                if (i + ahead < end) fetch(rows_[i + ahead].data, rows_[i + ahead].data + rows_[i + ahead].count);
                const Row row = rows_[i];
                int64_t* to = indices + offsets_[i];
                for (int64_t k = 0; k < row.count; ++k) to[k] = row.data[k];
                each(i, offsets_[i], row.data, int64_t(row.count));
            }
        });
    }

    Rows finish() {
        Rows result;
        result.indices = Buffer<int64_t>(count());
        write(result.indices.data(), [](int64_t, int64_t, const int32_t*, int64_t) {});
        result.row_offsets = std::move(offsets_), result.extra = std::move(totals_);
        return result;
    }

   private:
    struct Row {  // all that is written of a query, in one place: queries come in the order of their cells
        const int32_t* data;
        int32_t count, found;
    };
    std::vector<Arena<int32_t>> arenas_;
    Buffer<Row> rows_;
    Buffer<int64_t> offsets_, totals_;
};

// Moves a uniformly random subset of `keep` of the `count` ids to the front: those of least priority.
class RandomSubset {
   public:
    explicit RandomSubset(Names names) : names_(names) {}

    void operator()(int32_t* ids, int64_t count, int64_t keep, uint64_t seed, uint64_t query) {
        constexpr int lanes = kLanes<int64_t>, most = 64;
        if (count <= most) {  // each one's rank is the number of lower priorities
            int64_t priorities[most + kSlack], rank[most + kSlack];
            for (int64_t i = 0; i < count; ++i)
                priorities[i] = int64_t(priority(seed, query, names_(ids[i])));
            for (int64_t i = count; i < count + lanes; ++i) priorities[i] = std::numeric_limits<int64_t>::max();
            for (int64_t i = 0; i < count; i += lanes) {
                const Vector<int64_t> own = load(priorities + i);
                Vector<int64_t> lower{};
                for (int64_t j = 0; j < count; ++j) lower -= (Vector<int64_t>)(own > priorities[j]);
                store(rank + i, lower);
            }
            int64_t chosen = 0;
            for (int64_t i = 0; i < count; ++i) chosen += rank[i] < keep;
            if (chosen == keep) {  // always, but for two equal priorities of 63 bits
                for (int64_t i = 0, at = 0; at < keep; ++i) {
                    ids[at] = ids[i];
                    at += rank[i] < keep;
                }
                return;
            }
        }
        ranked_.clear();
        for (int64_t i = 0; i < count; ++i)
            ranked_.push_back({priority(seed, query, names_(ids[i])), ids[i]});
        std::nth_element(ranked_.begin(), ranked_.begin() + keep, ranked_.end());
        for (int64_t i = 0; i < keep; ++i) ids[i] = ranked_[size_t(i)].second;
    }

   private:
    const Names names_;
    std::vector<std::pair<uint64_t, int32_t>> ranked_;
};

// A random cap: at most so many (all, where negative), chosen by a seed and the names of the points.
struct Cap {
    int64_t most = -1;
    uint64_t seed = 0;
    Names support, queries;
};

// Sets the rows of the collector.
template <class T>
void find_in_balls(const Batch<T>& support, const Batch<T>& queries, const T* radius, const Cap& cap,
                   RowCollector& collector) {
    const Cells<T> cells(support, radius);
    const Sorted<T> points(cells, support);
    const bool self = support == queries;
    const std::unique_ptr<Sorted<T>> others(self ? nullptr : new Sorted<T>(cells, queries));
    const Sorted<T>& asking = self ? points : *others;

    parallel_for(queries.n, 1 << 10, [&](int64_t begin, int64_t end) {
        Arena<int32_t>& arena = collector.arena();
        RandomSubset subset(cap.support);
        // From so many queries on, it is quicker to sort their candidates once than to sort each row.
        constexpr int64_t crowd = 16;
        for_queries(cells, points, asking, begin, end, 0, crowd, [&](int64_t i, int64_t cloud, const Candidates<T>& near) {
            const int64_t query = asking.index[i];
            int32_t* row = arena.room(near.size + kSlack);
            const T limit = radius[cloud] * radius[cloud];
            const int64_t found = append_near(near, asking.x[i], asking.y[i], asking.z[i], limit, row);
            const int64_t kept = cap.most >= 0 ? std::min(found, cap.most) : found;
            if (kept < found) subset(row, found, kept, cap.seed, cap.queries(query));
            if (!near.ordered || kept < found) sort_few(row, kept);
            arena.keep(kept);
            collector.set(query, row, kept, found);
        });
    });
}

template <class T>
Rows ball_query(const Batch<T>& support, const Batch<T>& queries, const T* radius, const Cap& cap) {
    RowCollector collector(queries.n);
    find_in_balls(support, queries, radius, cap, collector);
    return collector.finish();
}

// The edges grouped by what they point to: (offsets, row of each edge, number of each edge).
struct Columns {
    int64_t *offsets, *rows, *edges;  // [columns + 1], [edges], [edges]
};

inline void transpose(const int64_t* row_offsets, int64_t rows, const int64_t* indices, int64_t edges,
                      int64_t columns, const Columns& result) {
    const int64_t parts = std::max<int64_t>(1, std::min<int64_t>(threads(), edges >> 14));
    const auto first = [&](int64_t part) { return rows * part / parts; };
    Buffer<int64_t> place(parts * columns);
    parallel_for(parts, 1, [&](int64_t part, int64_t) {
        int64_t* count = place.data() + part * columns;
        std::fill(count, count + columns, 0);
        for (int64_t e = row_offsets[first(part)]; e < row_offsets[first(part + 1)]; ++e) {
            if (indices[e] < 0 || indices[e] >= columns) throw std::invalid_argument("index out of range");
            ++count[indices[e]];
        }
    });
    int64_t total = 0;
    for (int64_t column = 0; column < columns; ++column) {
        result.offsets[column] = total;
        for (int64_t part = 0; part < parts; ++part)
            total += std::exchange(place[part * columns + column], total);
    }
    result.offsets[columns] = total;
    parallel_for(parts, 1, [&](int64_t part, int64_t) {
        int64_t* to = place.data() + part * columns;
        for (int64_t row = first(part); row < first(part + 1); ++row)
            for (int64_t e = row_offsets[row]; e < row_offsets[row + 1]; ++e) {
                const int64_t at = to[indices[e]]++;
                result.rows[at] = row;
                result.edges[at] = e;
            }
    });
}

}  // namespace pointvar
