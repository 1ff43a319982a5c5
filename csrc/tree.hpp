// A balanced k-d tree over one cloud, for searches without a radius: k nearest and farthest points.
// Boxes are tight and all operations round monotonically, so a box's distance never exceeds that of a
// point inside, as computed: pruning with it is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "grid.hpp"

namespace pointvar {

template <class T>
class Tree {
   public:
    struct Node {
        T low[3], high[3];
        int32_t begin, end;  // points
        int32_t right;       // second child (the first follows its parent), 0 for a leaf
        int32_t least;       // smallest index of its points, to break ties

        T squared_distance(T x, T y, T z) const {
            const T dx = gap(0, x, x), dy = gap(1, y, y), dz = gap(2, z, z);
            return dx * dx + dy * dy + dz * dz;
        }
        T squared_distance(const Node& o) const {
            const T dx = gap(0, o.low[0], o.high[0]), dy = gap(1, o.low[1], o.high[1]), dz = gap(2, o.low[2], o.high[2]);
            return dx * dx + dy * dy + dz * dz;
        }
        Vector<T> squared_distance(Vector<T> x, Vector<T> y, Vector<T> z) const {
            const Vector<T> dx = gap(0, x), dy = gap(1, y), dz = gap(2, z);
            return dx * dx + dy * dy + dz * dz;
        }

       private:
        T gap(int axis, T from, T to) const { return std::max(T(0), std::max(low[axis] - to, from - high[axis])); }
        Vector<T> gap(int axis, Vector<T> at) const {
            const Vector<T> below = low[axis] - at, above = at - high[axis], most = below > above ? below : above;
            return most > T(0) ? most : Vector<T>{};
        }
    };

    std::vector<Node> nodes;
    Buffer<T> x, y, z;  // in the order of the tree, padded with infinities
    Buffer<int32_t> index;

    Tree(const Batch<T>& batch, int64_t cloud, int leaf) : leaf_(leaf) {
        const int64_t first = batch.offsets[cloud], n = batch.offsets[cloud + 1] - first;
        if (n == 0) return;
        items_ = Buffer<Item>(n);
        for (int64_t i = 0; i < n; ++i)
            items_[i] = {{batch.at(first + i, 0), batch.at(first + i, 1), batch.at(first + i, 2)}, int32_t(first + i)};
        nodes.resize(size_t(node_count(n)));
        // The upper levels on one thread, then whole subtrees in parallel.
        std::vector<Job> open{{0, 0, n}};
        const size_t enough = n > (1 << 14) ? 4 * size_t(threads()) : 1;
        while (open.size() < enough && open[0].end - open[0].begin > leaf_) {
            std::vector<Job> next;
            for (const Job& job : open) {
                if (split(job)) {
                    next.push_back(left(job));
                    next.push_back(right(job));
                }
            }
            open = std::move(next);
        }
        parallel_for(int64_t(open.size()), 1, [&](int64_t i, int64_t) { build(open[size_t(i)]); });
        const int64_t padded = n + kLanes<T>;
        x = Buffer<T>(padded), y = Buffer<T>(padded), z = Buffer<T>(padded), index = Buffer<int32_t>(padded);
        for (int64_t i = 0; i < padded; ++i) {
            const Item item = i < n ? items_[i] : Item{{kInfinity, kInfinity, kInfinity}, 0};
            x[i] = item.at[0], y[i] = item.at[1], z[i] = item.at[2], index[i] = item.index;
        }
        items_ = Buffer<Item>();
    }

   private:
    static constexpr T kInfinity = std::numeric_limits<T>::infinity();
    struct Item {
        T at[3];
        int32_t index;
    };
    struct Job {
        int64_t node, begin, end;
    };

    int64_t node_count(int64_t n) const {
        return n <= leaf_ ? 1 : 1 + node_count(n / 2) + node_count(n - n / 2);
    }
    Job left(const Job& job) const { return {job.node + 1, job.begin, (job.begin + job.end) / 2}; }
    Job right(const Job& job) const { return {nodes[size_t(job.node)].right, (job.begin + job.end) / 2, job.end}; }

    // Fills the node; returns whether it has children.
    bool split(const Job& job) {
        Node& node = nodes[size_t(job.node)];
        node.begin = int32_t(job.begin), node.end = int32_t(job.end), node.right = 0;
        const Item& first = items_[job.begin];
        for (int axis = 0; axis < 3; ++axis) node.low[axis] = node.high[axis] = first.at[axis];
        node.least = first.index;
        for (int64_t i = job.begin; i < job.end; ++i) {
            for (int axis = 0; axis < 3; ++axis) {
                node.low[axis] = std::min(node.low[axis], items_[i].at[axis]);
                node.high[axis] = std::max(node.high[axis], items_[i].at[axis]);
            }
            node.least = std::min(node.least, items_[i].index);
        }
        const int64_t size = job.end - job.begin;
        if (size <= leaf_) return false;
        int axis = 0;
        for (int other = 1; other < 3; ++other)
            if (node.high[other] - node.low[other] > node.high[axis] - node.low[axis]) axis = other;
        // Equal coordinates go by index, so that coinciding points end up in order.
        const auto before = [axis](const Item& a, const Item& b) {
            return a.at[axis] != b.at[axis] ? a.at[axis] < b.at[axis] : a.index < b.index;
        };
        Item* items = items_.data();
        std::nth_element(items + job.begin, items + job.begin + size / 2, items + job.end, before);
        node.right = int32_t(job.node + 1 + node_count(size / 2));
        return true;
    }

    void build(const Job& job) {
        if (!split(job)) return;
        build(left(job));
        build(right(job));
    }

    int leaf_;
    Buffer<Item> items_;
};

}  // namespace pointvar
