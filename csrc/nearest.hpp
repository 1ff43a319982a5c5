// The k nearest neighbours, exact, ties by index.
#pragma once

#include "neighbours.hpp"
#include "tree.hpp"

namespace pointvar {

// A squared distance and an index, compared in this order. Distances are not negative, so a float's bits
// compare like its value and both fit into one word.
template <class T>
struct Ranked;
template <>
struct Ranked<float> {
    uint64_t bits;
    Ranked() = default;
    Ranked(float squared, int32_t index) {
        uint32_t high;
        std::memcpy(&high, &squared, 4);
        bits = uint64_t(high) << 32 | uint32_t(index);
    }
    bool operator<(const Ranked& o) const { return bits < o.bits; }
    int32_t index() const { return int32_t(bits & 0xFFFFFFFFu); }
    float squared() const {
        const uint32_t high = uint32_t(bits >> 32);
        float value;
        std::memcpy(&value, &high, 4);
        return value;
    }
};
template <>
struct Ranked<double> {
    double value;
    int32_t id;
    Ranked() = default;
    Ranked(double squared, int32_t index) : value(squared), id(index) {}
    bool operator<(const Ranked& o) const { return value != o.value ? value < o.value : id < o.id; }
    int32_t index() const { return id; }
    double squared() const { return value; }
};

// The best k seen so far; the worst of them bounds the search.
template <class T>
class Best {
   public:
    explicit Best(int64_t k) : ranked_(size_t(k)), k_(k) {}
    void clear() { size_ = 0; }
    bool admits(const Ranked<T>& r) const { return size_ < k_ || r < ranked_[worst()]; }
    T bound() const { return size_ < k_ ? std::numeric_limits<T>::infinity() : ranked_[worst()].squared(); }

    void add(const Ranked<T>& r) {
        if (!admits(r)) return;
        Ranked<T>* a = ranked_.data();
        if (k_ > kSortedMost) {  // a heap with the worst on top
            if (size_ == k_) std::pop_heap(a, a + size_--);
            a[size_++] = r;
            std::push_heap(a, a + size_);
            return;
        }
        int64_t at = size_ < k_ ? size_++ : k_ - 1;
        for (; at > 0 && r < a[at - 1]; --at) a[at] = a[at - 1];
        a[at] = r;
    }
    int32_t farthest() const { return size_ ? ranked_[worst()].index() : -1; }
    int64_t write(int32_t* to) const {
        for (int64_t i = 0; i < size_; ++i) to[i] = ranked_[size_t(i)].index();
        return size_;
    }

   private:
    static constexpr int64_t kSortedMost = 64;
    size_t worst() const { return k_ > kSortedMost ? 0 : size_t(size_ - 1); }
    std::vector<Ranked<T>> ranked_;
    int64_t k_, size_ = 0;
};

template <class T>
void search(const Tree<T>& tree, T x, T y, T z, Best<T>& best) {
    struct Entry {
        T squared;
        int32_t node;
    };
    Entry stack[64];  // a balanced tree of 2^31 points is less deep
    int depth = 0;
    stack[depth++] = {T(0), 0};
    while (depth) {
        const Entry entry = stack[--depth];
        const auto* node = &tree.nodes[size_t(entry.node)];
        if (!best.admits(Ranked<T>(entry.squared, node->least))) continue;
        int32_t at = entry.node;
        while (node->right) {  // down to the nearer child; the other one waits
            const int32_t children[2] = {at + 1, node->right};
            const auto *a = &tree.nodes[size_t(children[0])], *b = &tree.nodes[size_t(children[1])];
            const T da = a->squared_distance(x, y, z), db = b->squared_distance(x, y, z);
            const bool second = db != da ? db < da : b->least < a->least;
            const T other = second ? da : db;
            if (best.admits(Ranked<T>(other, second ? a->least : b->least)))
                stack[depth++] = {other, children[!second]};
            at = children[second];
            node = second ? b : a;
        }
        const Candidates<T> leaf{tree.x.data(), tree.y.data(), tree.z.data(), tree.index.data(), 0};
        for (int64_t i = node->begin; i < node->end; i += kLanes<T>) {
            const Vector<T> squared = squared_distance(leaf, i, x, y, z);
            const int64_t count = node->end - i;
            unsigned near = lane_bits<T>(squared <= best.bound());
            if (count < kLanes<T>) near &= (1u << count) - 1;
            for (; near; near &= near - 1) {
                const int lane = __builtin_ctz(near);
                best.add(Ranked<T>(squared[lane], tree.index[i + lane]));
            }
        }
    }
}

template <class T>
Rows knn(const Batch<T>& support, const Batch<T>& queries, int64_t k) {
    constexpr int leaf = 16;
    Rows result;
    result.extra = Buffer<int64_t>(queries.n);
    RowCollector collector(queries.n);
    const bool self = support == queries;
    const auto answer = [&](const Tree<T>& tree, int64_t begin, int64_t end, int64_t most) {
        Best<T> best(std::max<int64_t>(most, 1));
        Arena<int32_t>& arena = collector.arena();
        for (int64_t i = begin; i < end; ++i) {
            // Points that search among themselves go in the order of the tree: neighbours follow each other.
            const int64_t query = self ? tree.index[i] : i;
            best.clear();
            if (most) search(tree, queries.at(query, 0), queries.at(query, 1), queries.at(query, 2), best);
            int32_t* row = arena.room(k + kSlack);
            const int64_t count = best.write(row);
            sort_few(row, count);
            arena.keep(count);
            collector.set(query, row, count);
            result.extra[query] = best.farthest();
        }
    };
    const auto each = [&](int64_t cloud, bool inside) {
        const Tree<T> tree(support, cloud, leaf);
        const int64_t size = support.offsets[cloud + 1] - support.offsets[cloud], most = std::min(k, size);
        const int64_t first = self ? 0 : queries.offsets[cloud];
        const int64_t count = queries.offsets[cloud + 1] - queries.offsets[cloud];
        if (inside)
            answer(tree, first, first + count, most);
        else
            parallel_for(count, 1 << 9, [&](int64_t b, int64_t e) { answer(tree, first + b, first + e, most); });
    };
    // Many clouds: one per thread; few: all threads on each.
    if (support.clouds >= 4 * threads())
        parallel_for(support.clouds, 1, [&](int64_t cloud, int64_t) { each(cloud, true); });
    else
        for (int64_t cloud = 0; cloud < support.clouds; ++cloud) each(cloud, false);
    collector.finish(result);
    return result;
}

}  // namespace pointvar
