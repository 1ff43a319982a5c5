// Points sorted into cells as large as the search radius. Cells are numbered so that those which differ
// only in x follow each other: the cells around a point are 9 ranges of the sorted points (3 in 2D, 1 in 1D).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "buffer.hpp"
#include "parallel.hpp"
#include "simd.hpp"
#include "sort.hpp"

namespace pointvar {

// A packed batch of clouds as it comes from Python.
template <class T>
struct Batch {
    const T* points;  // [n, dim]
    int64_t n;
    int dim;
    const int64_t* offsets;  // [clouds + 1]
    int64_t clouds;

    T at(int64_t i, int axis) const { return axis < dim ? points[i * dim + axis] : T(0); }
    bool operator==(const Batch& o) const { return points == o.points && n == o.n && offsets == o.offsets; }

    // Calls body(cloud, begin, end) in parallel for pieces of the clouds.
    template <class Body>
    void for_pieces(const Body& body) const {
        constexpr int64_t grain = 1 << 14;
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
            int64_t cloud = std::upper_bound(offsets, offsets + clouds + 1, begin) - offsets - 1;
            while (begin < end) {
                const int64_t stop = std::min(end, offsets[cloud + 1]);
                if (begin < stop) body(cloud, begin, stop);
                begin = std::max(begin, stop);
                ++cloud;
            }
        });
    }
};

// Numbers the cells of a batch; keys are below 2^62, and cells at the rim of a cloud's box stay empty.
template <class T>
class Cells {
   public:
    Cells(const Batch<T>& batch, const T* radius) : dim_(batch.dim), low_(batch.clouds), cell_(batch.clouds) {
        std::vector<Box> box(batch.clouds);
        std::mutex lock;
        batch.for_pieces([&](int64_t cloud, int64_t begin, int64_t end) {
            Box piece;
            for (int axis = 0; axis < dim_; ++axis) {
                T least = batch.at(begin, axis), most = least;
                for (int64_t i = begin; i < end; ++i) {
                    const T value = batch.points[i * dim_ + axis];
                    least = std::min(least, value);
                    most = std::max(most, value);
                }
                piece.low[axis] = double(least), piece.high[axis] = double(most);
            }
            const std::lock_guard<std::mutex> hold(lock);
            box[cloud].join(piece, dim_);
        });
        double extent[3] = {0, 0, 0};
        for (int64_t cloud = 0; cloud < batch.clouds; ++cloud) {
            double widest = 0;
            for (int axis = 0; axis < dim_; ++axis)
                widest = std::max(widest, box[cloud].high[axis] - box[cloud].low[axis]);
            // Rounding must not move two neighbours more than one cell apart.
            // Neither a cell nor its inverse may overflow: the product with 0 would be no number.
            const double wanted = double(radius[cloud]) * (1 + 1e-6) + std::min(widest, kHuge) * 1e-15;
            cell_[cloud] = std::min(std::max(wanted, 1 / kHuge), kHuge);
            for (int axis = 0; axis < 3; ++axis) {
                low_[cloud].at[axis] = axis < dim_ ? box[cloud].low[axis] : 0;
                if (batch.offsets[cloud] == batch.offsets[cloud + 1]) low_[cloud].at[axis] = 0;
                if (axis < dim_)
                    extent[axis] = std::max(extent[axis], (box[cloud].high[axis] - box[cloud].low[axis]) / cell_[cloud]);
            }
        }
        if (!number(extent)) rank(batch);
    }

    int dim() const { return dim_; }
    int bits() const { return 64 - __builtin_clzll(uint64_t(stride_[3]) * uint64_t(cell_.size()) | 1); }
    int64_t cloud(int64_t key) const { return key / stride_[3]; }
    int64_t first_key(int64_t cloud) const { return cloud * stride_[3]; }

    int64_t key(int64_t cloud, double x, double y, double z) const {
        const double inverse = 1 / cell_[cloud];
        const double* low = low_[cloud].at;
        return cloud * stride_[3] + coordinate(0, (x - low[0]) * inverse) +
               coordinate(1, (y - low[1]) * inverse) * stride_[1] +
               coordinate(2, (z - low[2]) * inverse) * stride_[2];
    }

    // How far the rows of cells around a cell are from it; returns their number.
    int rows(int64_t* steps) const {
        int count = 0;
        for (int z = dim_ > 2 ? -1 : 0; z <= (dim_ > 2 ? 1 : 0); ++z)
            for (int y = dim_ > 1 ? -1 : 0; y <= (dim_ > 1 ? 1 : 0); ++y)
                steps[count++] = z * stride_[2] + y * stride_[1];
        return count;
    }

   private:
    struct Box {
        double low[3], high[3];
        Box() {
            for (int axis = 0; axis < 3; ++axis) {
                low[axis] = std::numeric_limits<double>::infinity();
                high[axis] = -low[axis];
            }
        }
        void join(const Box& o, int dim) {
            for (int axis = 0; axis < dim; ++axis) {
                low[axis] = std::min(low[axis], o.low[axis]);
                high[axis] = std::max(high[axis], o.high[axis]);
            }
        }
    };
    struct Corner {
        double at[3];
    };
    static constexpr double kHuge = 1e300, kMost = 4.6e18;  // 2^62

    // Two empty cells on either side: neighbours of any cell stay inside, and queries outside find nothing.
    bool number(const double* extent) {
        double product = double(cell_.size());
        for (int axis = 0; axis < 3; ++axis) {
            const double size = std::floor(std::max(0.0, std::min(extent[axis], 1e18))) + 5;
            product *= axis < dim_ ? size : 1;
            size_[axis] = axis < dim_ ? int64_t(size) : 1;
        }
        if (!(product < kMost)) return false;
        for (int axis = 0; axis < 3; ++axis) stride_[axis + 1] = stride_[axis] * size_[axis];
        return true;
    }

    int64_t coordinate(int axis, double cell) const {
        if (axis >= dim_) return 0;
        if (!places_[axis].empty()) return place(axis, std::floor(cell));
        const double last = double(size_[axis] - 3);
        return (cell >= -2 ? int64_t(std::min(std::floor(cell), last)) : -2) + 2;  // NaN goes to the rim
    }

    // Where the box has too many cells to number (a far outlier), only the occupied ones count: coordinates
    // along each axis are replaced by ranks that keep neighbours adjacent and others apart.
    void rank(const Batch<T>& batch) {
        for (;;) {
            double extent[3] = {0, 0, 0};
            for (int axis = 0; axis < dim_; ++axis) {
                std::vector<double>& at = places_[axis];
                at.resize(batch.n);
                batch.for_pieces([&](int64_t cloud, int64_t begin, int64_t end) {
                    const double inverse = 1 / cell_[cloud];
                    for (int64_t i = begin; i < end; ++i)
                        at[i] = std::floor((double(batch.at(i, axis)) - low_[cloud].at[axis]) * inverse);
                });
                std::sort(at.begin(), at.end());
                at.erase(std::unique(at.begin(), at.end()), at.end());
                std::vector<int64_t>& ranks = ranks_[axis];
                ranks.assign(at.size(), 2);
                for (size_t i = 1; i < at.size(); ++i)
                    ranks[i] = ranks[i - 1] + int64_t(std::min(3.0, at[i] - at[i - 1]));
                extent[axis] = double(ranks.back());
            }
            if (number(extent)) return;
            for (double& size : cell_) size *= 2;
        }
    }

    int64_t place(int axis, double cell) const {
        const std::vector<double>& at = places_[axis];
        const auto next = std::upper_bound(at.begin(), at.end(), cell) - at.begin();
        if (next > 0 && cell - at[next - 1] <= 1) return ranks_[axis][next - 1] + int64_t(cell - at[next - 1]);
        if (next < int64_t(at.size()) && at[next] - cell <= 1) return ranks_[axis][next] - 1;
        return size_[axis] - 1;  // next to no occupied cell
    }

    int dim_;
    std::vector<Corner> low_;
    std::vector<double> cell_;
    int64_t size_[3] = {1, 1, 1};
    int64_t stride_[4] = {1, 1, 1, 1};
    std::vector<double> places_[3];
    std::vector<int64_t> ranks_[3];
};

// The points of a batch in the order of their cells.
template <class T>
struct Sorted {
    int64_t n;
    Buffer<int64_t> key;
    Buffer<int32_t> index;  // in the batch
    Buffer<T> x, y, z;      // all four may be read by whole vectors, beyond the last point
    int64_t cells = 0;
    Buffer<int64_t> occupied;  // keys of the cells that hold points, and larger ones behind the last
    Buffer<int32_t> first;     // point of each of them; then n

    Sorted(const Cells<T>& cells, const Batch<T>& batch)
        : n(batch.n), key(n), index(n + kSlack), x(n + kSlack), y(n + kSlack), z(n + kSlack) {
        sort(cells, batch);
        find_cells();
    }

   private:
    void sort(const Cells<T>& cells, const Batch<T>& batch) {
        const int index_bits = 64 - __builtin_clzll(uint64_t(n) | 1), key_bits = cells.bits();
        const auto make = [&](int64_t cloud, int64_t i) {
            return cells.key(cloud, double(batch.at(i, 0)), double(batch.at(i, 1)), double(batch.at(i, 2)));
        };
        if (index_bits + key_bits <= 64) {  // key and index in one word
            Buffer<uint64_t> items(n), spare(n);
            batch.for_pieces([&](int64_t cloud, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i)
                    items[i] = uint64_t(make(cloud, i)) << index_bits | uint64_t(i);
            });
            radix_sort(items, spare, index_bits, index_bits + key_bits, [](uint64_t item) { return item; });
            const uint64_t mask = (uint64_t(1) << index_bits) - 1;
            fill(batch, [&](int64_t i) { return std::pair(int64_t(items[i] >> index_bits), int32_t(items[i] & mask)); });
        } else {
            struct Item {
                int64_t key;
                int32_t index;
            };
            Buffer<Item> items(n), spare(n);
            batch.for_pieces([&](int64_t cloud, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) items[i] = {make(cloud, i), int32_t(i)};
            });
            radix_sort(items, spare, 0, key_bits, [](const Item& item) { return uint64_t(item.key); });
            fill(batch, [&](int64_t i) { return std::pair(items[i].key, items[i].index); });
        }
    }

    template <class Item>
    void fill(const Batch<T>& batch, const Item& item) {
        parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const auto [k, j] = item(i);
                key[i] = k;
                index[i] = j;
                x[i] = batch.at(j, 0), y[i] = batch.at(j, 1), z[i] = batch.at(j, 2);
            }
        });
    }

    void find_cells() {
        constexpr int64_t grain = 1 << 14;
        std::vector<int64_t> before(size_t((n + grain - 1) / grain + 1));
        const auto new_cell = [&](int64_t i) { return i == 0 || key[i] != key[i - 1]; };
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
            int64_t count = 0;
            for (int64_t i = begin; i < end; ++i) count += new_cell(i);
            before[size_t(begin / grain + 1)] = count;
        });
        for (size_t block = 1; block < before.size(); ++block) before[block] += before[block - 1];
        cells = before.back();
        occupied = Buffer<int64_t>(cells + kSlack), first = Buffer<int32_t>(cells + 1);
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
            int64_t cell = before[size_t(begin / grain)];
            for (int64_t i = begin; i < end; ++i)
                if (new_cell(i)) occupied[cell] = key[i], first[cell++] = int32_t(i);
        });
        first[cells] = int32_t(n);
        std::fill(occupied.data() + cells, occupied.data() + cells + kSlack, std::numeric_limits<int64_t>::max());
    }
};

// The ranges of sorted points in the cells around a cell, for cells visited in ascending order.
template <class T>
struct Around {
    int rows;
    int64_t begin[9] = {}, end[9] = {};

    Around(const Cells<T>& cells, const Sorted<T>& support) : support_(support) { rows = cells.rows(step_); }

    void move_to(int64_t key) { move_to(key, key); }
    // Around the cells `from` to `to`, neighbours in x.
    void move_to(int64_t from, int64_t to) {
        for (int row = 0; row < rows; ++row) {
            const int64_t low = from + step_[row] - 1, high = to + step_[row] + 2;
            int64_t stop;
            // Both ends are likely to be among the next few cells.
            const Vector<int64_t> next = load(support_.occupied.data() + cell_[row]);
            const int below_high = __builtin_popcount(lane_bits<int64_t>(next < high));
            if (below_high < kLanes<int64_t>) {
                stop = cell_[row] + below_high;
                cell_[row] += __builtin_popcount(lane_bits<int64_t>(next < low));
            } else {
                cell_[row] = first_from(cell_[row], low);
                stop = first_from(cell_[row], high);
            }
            begin[row] = support_.first[cell_[row]];
            end[row] = support_.first[stop];
        }
    }
    int64_t size() const {
        int64_t total = 0;
        for (int row = 0; row < rows; ++row) total += end[row] - begin[row];
        return total;
    }

   private:
    // The first cell from `at` on whose key is at least `key`: short steps first, they are likely.
    int64_t first_from(int64_t at, int64_t key) const {
        const int64_t* keys = support_.occupied.data();
        for (int tries = 0; tries < 4; ++tries) {
            const int lower = __builtin_popcount(lane_bits<int64_t>(load(keys + at) < key));
            at += lower;
            if (lower < kLanes<int64_t>) return at;
        }
        int64_t step = 1;
        while (at + step <= support_.cells && keys[at + step - 1] < key) {
            at += step;
            step *= 2;
        }
        return std::lower_bound(keys + at, keys + std::min(at + step, support_.cells), key) - keys;
    }

    const Sorted<T>& support_;
    int64_t step_[9], cell_[9] = {};
};

// A copy of the points around a cell, one after the other and padded, shared by all queries of the cell.
template <class T>
class Gathered {
   public:
    Candidates<T> from(const Around<T>& around, const Sorted<T>& support) {
        const int64_t padded = gathered_.make_room(around.size());
        int64_t at = 0;
        for (int row = 0; row < around.rows; ++row) {
            const int64_t begin = around.begin[row], count = around.end[row] - begin;
            // By whole vectors; what is copied too much is written over, or is in the slack.
            for (int64_t i = 0; i < count; i += kLanes<T>) {
                store(gathered_.x.data() + at + i, load(support.x.data() + begin + i));
                store(gathered_.y.data() + at + i, load(support.y.data() + begin + i));
                store(gathered_.z.data() + at + i, load(support.z.data() + begin + i));
                store(gathered_.id.data() + at + i, load(support.index.data() + begin + i));
            }
            at += count;
        }
        for (; at < padded; ++at) {
            gathered_.x[at] = gathered_.y[at] = gathered_.z[at] = std::numeric_limits<T>::infinity();
            gathered_.id[at] = 0;
        }
        return gathered_.all(padded, false);
    }

    // The same, by ascending id.
    Candidates<T> in_order(const Around<T>& around, const Sorted<T>& support) {
        const Candidates<T> near = from(around, support);
        const int64_t size = around.size();
        ordered_.make_room(size);
        if (rank_.size() < near.size + kSlack) rank_ = Buffer<int32_t>(2 * near.size + kSlack);
        find_ranks(near.id, size, rank_.data());
        for (int64_t i = size; i < near.size; ++i) rank_[i] = int32_t(i);  // the padding stays behind
        for (int64_t i = 0; i < near.size; ++i) {
            const int64_t at = rank_[i];
            ordered_.x[at] = near.x[i], ordered_.y[at] = near.y[i], ordered_.z[at] = near.z[i];
            ordered_.id[at] = near.id[i];
        }
        return ordered_.all(near.size, true);
    }

   private:
    struct Points {
        Buffer<T> x, y, z;
        Buffer<int32_t> id;

        // Returns the size in whole vectors.
        int64_t make_room(int64_t size) {
            const int64_t padded = (size + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
            if (x.size() < padded + kSlack) {
                const int64_t room = 2 * padded + kSlack;
                x = Buffer<T>(room), y = Buffer<T>(room), z = Buffer<T>(room), id = Buffer<int32_t>(room);
            }
            return padded;
        }
        Candidates<T> all(int64_t size, bool ordered) const {
            return {x.data(), y.data(), z.data(), id.data(), size, ordered};
        }
    };

    Points gathered_, ordered_;
    Buffer<int32_t> rank_;
};

// Calls body(i, cloud, candidates) for all sorted queries i of [begin, end), one cell after the other.
// To find candidates and bring them together takes longer than to look at a few too many: cells that follow each
// other in x share theirs while they hold fewer than `few` queries. From `crowd` queries on, candidates come by
// ascending id.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
template <class T, class Body>
void for_queries(const Cells<T>& cells, const Sorted<T>& support, const Sorted<T>& queries, int64_t begin,
                 int64_t end, int64_t few, int64_t crowd, const Body& body) {
    constexpr int64_t span = 3;  // with the cells beside them 5, as many as the shortest row: rows do not overlap
    Around<T> around(cells, support);
    Gathered<T> gathered;
    while (begin < end) {
        const int64_t key = queries.key[begin], cloud = cells.cloud(key);
        const int64_t beyond = std::min(key + span, cells.first_key(cloud + 1));
        int64_t stop = begin + 1;
        while (stop < end && queries.key[stop] == key) ++stop;
        while (stop < end && stop - begin < few && queries.key[stop] < beyond) ++stop;
        around.move_to(key, queries.key[stop - 1]);
        const Candidates<T> candidates =
            stop - begin < crowd ? gathered.from(around, support) : gathered.in_order(around, support);
        for (; begin < stop; ++begin) body(begin, cloud, candidates);
    }
}

}  // namespace pointvar
