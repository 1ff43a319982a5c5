// The k nearest neighbours, exact, ties by index.
#pragma once

#include <tuple>

#include "neighbours.hpp"
#include "tree.hpp"

namespace pointvar {

// The k nearest points seen so far, by squared distance and then by index. Those that may be among them are only
// collected; what bounds the search is the k-th smallest distance, from a sorted list of the distances alone.
// A long list takes too much time to keep sorted: the bound then moves when the collection is cut down to k.
template <class T>
class Nearest {
   public:
    explicit Nearest(int64_t k)
        : k_(k), listed_(k > kListedMost ? 0 : (k + kLanes<T> - 1) / kLanes<T> * kLanes<T>), smallest_(listed_),
          squares_(2 * k + kRoom), ids_(2 * k + kRoom) {}

    void clear() {
        size_ = 0;
        bound_ = std::numeric_limits<T>::infinity();
        last_ = std::numeric_limits<int32_t>::max();
        // The k-th smallest stands last: entries too many are lower than all distances.
        for (int64_t i = 0; i < listed_; ++i) smallest_[i] = i < listed_ - k_ ? T(-1) : bound_;
    }
    T bound() const { return bound_; }
    // Whether a point at this distance and of this index or a higher one may belong to the k nearest.
    bool admits(T squared, int32_t index) const { return squared < bound_ || (squared == bound_ && index < last_); }
    bool within(const Nearest& o) const { return bound_ != o.bound_ ? bound_ < o.bound_ : last_ < o.last_; }

    // Looks at the points of [begin, end).
    void scan(const Candidates<T>& points, int64_t begin, int64_t end, T x, T y, T z) {
        if (listed_ == kLanes<T>)
            scan<1>(points, begin, end, x, y, z);
        else if (listed_ == 2 * kLanes<T>)
            scan<2>(points, begin, end, x, y, z);
        else
            scan<0>(points, begin, end, x, y, z);
    }

    // Writes the k nearest in any order (`to` has room for one more); returns the farthest of them.
    int32_t write(int32_t* to) {
        int64_t count = 0;
        int32_t farthest = -1;
        for (int64_t i = 0; i < size_ && count <= k_; ++i) {
            to[count] = ids_[i];
            count += squares_[i] <= bound_;
            if (squares_[i] == bound_) farthest = std::max(farthest, ids_[i]);
        }
        if (listed_ && count == k_) return farthest;
        cut();
        std::copy(ids_.data(), ids_.data() + k_, to);
        return last_;
    }

   private:
    static constexpr int64_t kListedMost = 64, kRoom = 96;

    // A list of `Held` vectors is held in registers; 0: of any number, in memory.
    template <int Held>
    void scan(const Candidates<T>& points, int64_t begin, int64_t end, T x, T y, T z) {
        Vector<T> held[Held ? Held : 1];
        for (int i = 0; i < Held; ++i) held[i] = load(smallest_.data() + i * kLanes<T>);
        for (int64_t i = begin; i < end; i += kLanes<T>) {
            const Vector<T> squared = squared_distance(points, i, x, y, z);
            unsigned near = lane_bits<T>(squared <= bound_);
            if (end - i < kLanes<T>) near &= (1u << (end - i)) - 1;
            if (!near) continue;
            if (size_ + kLanes<T> > squares_.size()) cut();
            const int count = __builtin_popcount(near);
            store_chosen(squares_.data() + size_, squared, near);
            if constexpr (sizeof(T) == 4) {
                store_chosen(ids_.data() + size_, load(points.id + i), near);
            } else {
                int64_t at = size_;
                for (unsigned rest = near; rest; rest &= rest - 1) ids_[at++] = points.id[i + __builtin_ctz(rest)];
            }
            for (int k = 0; k < count; ++k) {
                const T value = squares_[size_ + k];
                if constexpr (Held)
                    insert<Held>(held, value);
                else
                    insert_listed(value);
            }
            size_ += count;
            const T kth = Held ? held[Held - 1][kLanes<T> - 1] : listed_ ? smallest_[listed_ - 1] : bound_;
            if (kth < bound_) {
                bound_ = kth;
                last_ = std::numeric_limits<int32_t>::max();
            }
        }
        for (int i = 0; i < Held; ++i) store(smallest_.data() + i * kLanes<T>, held[i]);
    }

    // Each entry of the sorted list is replaced by the one before it, as far as that one is above the new value.
    static Vector<T> inserted(Vector<T> own, Vector<T> before, T value) {
        Vector<Integer<T>> one_back;
        for (int lane = 0; lane < kLanes<T>; ++lane) one_back[lane] = Integer<T>(kLanes<T> - 1 + lane);
        const Vector<T> shifted = __builtin_shuffle(before, own, one_back);
        const Vector<T> raised = shifted > value ? shifted : spread(value);
        return own < raised ? own : raised;
    }
    template <int Held>
    static void insert(Vector<T>* list, T value) {
        for (int i = Held - 1; i >= 0; --i) list[i] = inserted(list[i], i ? list[i - 1] : spread(T(-1)), value);
    }
    void insert_listed(T value) {
        Vector<T> before = spread(T(-1));
        for (int64_t i = 0; i < listed_; i += kLanes<T>) {
            const Vector<T> own = load(smallest_.data() + i);
            store(smallest_.data() + i, inserted(own, before, value));
            before = own;
        }
    }

    // Keeps the k nearest only.
    void cut() {
        ranked_.clear();
        for (int64_t i = 0; i < size_; ++i) ranked_.emplace_back(squares_[i], ids_[i]);
        std::nth_element(ranked_.begin(), ranked_.begin() + (k_ - 1), ranked_.end());
        std::tie(bound_, last_) = ranked_[size_t(k_ - 1)];
        for (size_ = 0; size_ < k_; ++size_) std::tie(squares_[size_], ids_[size_]) = ranked_[size_t(size_)];
    }

    int64_t k_, listed_, size_ = 0;
    T bound_;
    int32_t last_;  // a point at the bound must have a lower index than this
    Buffer<T> smallest_, squares_;
    Buffer<int32_t> ids_;
    std::vector<std::pair<T, int32_t>> ranked_;
};

// Searches for a few queries that lie together (a leaf of a tree of the queries): they go through the support's
// tree as one, as far as the one with the farthest neighbours must, and each looks only into leaves in its reach.
template <class T>
class GroupSearch {
   public:
    static constexpr int kGroup = 32;

    GroupSearch(const Tree<T>& tree, const Tree<T>& queries, int64_t k)
        : points_{tree.x.data(), tree.y.data(), tree.z.data(), tree.index.data(), 0, false},
          tree_(tree),
          queries_(queries) {
        for (int q = 0; q < kGroup; ++q) nearest_.emplace_back(k);
    }

    // The results of the queries of `group`, in their order.
    std::vector<Nearest<T>>& operator()(const typename Tree<T>::Node& group) {
        size_ = group.end - group.begin;
        for (int q = 0; q < kGroup; ++q) {
            nearest_[size_t(q)].clear();
            bound_[q] = q < size_ ? nearest_[size_t(q)].bound() : T(-1);
        }
        farthest_ = 0;
        struct Entry {
            T squared;
            int32_t node;
        };
        Entry stack[64];  // a balanced tree of 2^31 points is less deep
        int depth = 0;
        stack[depth++] = {T(0), 0};
        while (depth) {
            const Entry entry = stack[--depth];
            const auto* node = &tree_.nodes[size_t(entry.node)];
            if (!admits(entry.squared, *node)) continue;
            int32_t at = entry.node;
            while (node->right) {  // down to the nearer child; the other one waits
                const int32_t children[2] = {at + 1, node->right};
                const auto *a = &tree_.nodes[size_t(children[0])], *b = &tree_.nodes[size_t(children[1])];
                const T da = a->squared_distance(group), db = b->squared_distance(group);
                const bool second = db != da ? db < da : b->least < a->least;
                const T other = second ? da : db;
                if (admits(other, second ? *a : *b)) stack[depth++] = {other, children[!second]};
                at = children[second];
                node = second ? b : a;
            }
            visit(*node, group.begin);
        }
        return nearest_;
    }

   private:
    bool admits(T squared, const typename Tree<T>::Node& node) const {
        return nearest_[farthest_].admits(squared, node.least);
    }

    void visit(const typename Tree<T>::Node& leaf, int64_t first) {
        for (int begin = 0; begin < size_; begin += kLanes<T>) {
            const int64_t at = first + begin;
            const Vector<T> squared = leaf.squared_distance(
                load(queries_.x.data() + at), load(queries_.y.data() + at), load(queries_.z.data() + at));
            unsigned reached = lane_bits<T>(squared <= load(bound_ + begin));
            for (; reached; reached &= reached - 1) {
                const int lane = __builtin_ctz(reached);
                Nearest<T>& nearest = nearest_[size_t(begin + lane)];
                if (!nearest.admits(squared[lane], leaf.least)) continue;
                const int64_t i = at + lane;
                nearest.scan(points_, leaf.begin, leaf.end, queries_.x[i], queries_.y[i], queries_.z[i]);
                bound_[begin + lane] = nearest.bound();
            }
        }
        farthest_ = 0;
        for (size_t q = 1; q < size_t(size_); ++q)
            if (nearest_[farthest_].within(nearest_[q])) farthest_ = q;
    }

    const Candidates<T> points_;
    const Tree<T>&tree_, &queries_;
    std::vector<Nearest<T>> nearest_;
    T bound_[kGroup + kSlack];
    int size_ = 0;
    size_t farthest_ = 0;  // the query that bounds the search of all
};

template <class T>
Rows knn(const Batch<T>& support, const Batch<T>& queries, int64_t k) {
    constexpr int leaf = GroupSearch<T>::kGroup;
    const bool self = support == queries;
    Rows result{Buffer<int64_t>(queries.n + 1), Buffer<int64_t>(), Buffer<int64_t>(queries.n)};
    int64_t total = 0;
    for (int64_t cloud = 0; cloud < queries.clouds; ++cloud) {
        const int64_t most = std::min(k, support.offsets[cloud + 1] - support.offsets[cloud]);
        for (int64_t i = queries.offsets[cloud]; i < queries.offsets[cloud + 1]; ++i, total += most)
            result.row_offsets[i] = total;
    }
    result.row_offsets[queries.n] = total;
    result.indices = Buffer<int64_t>(total);

    const auto answer = [&](const Tree<T>& tree, const Tree<T>& asking, int64_t most, int64_t begin, int64_t end) {
        GroupSearch<T> search(tree, asking, most);
        Buffer<int32_t> row(most + kSlack);
        for (int64_t node = begin; node < end; ++node) {
            const auto& group = asking.nodes[size_t(node)];
            if (group.right) continue;
            std::vector<Nearest<T>>& found = search(group);
            for (int64_t i = group.begin; i < group.end; ++i) {
                const int64_t query = asking.index[i];
                result.extra[query] = found[size_t(i - group.begin)].write(row.data());
                sort_few(row.data(), most);
                std::copy(row.data(), row.data() + most, result.indices.data() + result.row_offsets[query]);
            }
        }
    };
    const auto each = [&](int64_t cloud, bool inside) {
        const int64_t most = std::min(k, support.offsets[cloud + 1] - support.offsets[cloud]);
        if (!most) {
            int64_t* farthest = result.extra.data();
            std::fill(farthest + queries.offsets[cloud], farthest + queries.offsets[cloud + 1], -1);
            return;
        }
        const Tree<T> tree(support, cloud, leaf);
        const std::unique_ptr<Tree<T>> others(self ? nullptr : new Tree<T>(queries, cloud, leaf));
        const Tree<T>& asking = self ? tree : *others;
        const int64_t nodes = int64_t(asking.nodes.size());
        if (inside)
            answer(tree, asking, most, 0, nodes);
        else
            parallel_for(nodes, 1 << 6, [&](int64_t b, int64_t e) { answer(tree, asking, most, b, e); });
    };
    // Many clouds: one per thread; few: all threads on each.
    if (support.clouds >= 4 * threads())
        parallel_for(support.clouds, 1, [&](int64_t cloud, int64_t) { each(cloud, true); });
    else
        for (int64_t cloud = 0; cloud < support.clouds; ++cloud) each(cloud, false);
    return result;
}

}  // namespace pointvar
