// Farthest point sampling, exact. Points lie in the leaves of a tree; a new choice only changes the leaves
// whose box is nearer to it than their farthest point is to the choices before.
#pragma once

#include "tree.hpp"

namespace pointvar {

template <class T>
class FarthestPoints {
   public:
    FarthestPoints(const Batch<T>& batch, int64_t cloud) : tree_(batch, cloud, kLeaf) {
        for (const auto& node : tree_.nodes)
            if (!node.right) leaves_.push_back(&node);
        const int64_t count = int64_t(leaves_.size()), padded = count + kLanes<T>;
        for (int axis = 0; axis < 3; ++axis) low_[axis] = Buffer<T>(padded), high_[axis] = Buffer<T>(padded);
        farthest_ = Buffer<T>(padded), best_ = Buffer<int32_t>(padded);
        for (int64_t leaf = 0; leaf < padded; ++leaf) {
            for (int axis = 0; axis < 3; ++axis) {
                low_[axis][leaf] = leaf < count ? leaves_[size_t(leaf)]->low[axis] : T(0);
                high_[axis][leaf] = leaf < count ? leaves_[size_t(leaf)]->high[axis] : T(0);
            }
            farthest_[leaf] = leaf < count ? std::numeric_limits<T>::infinity() : T(-2);
        }
        const int64_t n = batch.offsets[cloud + 1] - batch.offsets[cloud];
        distance_ = Buffer<T>(n + kLanes<T>);
        for (int64_t i = 0; i < n + kLanes<T>; ++i) distance_[i] = std::numeric_limits<T>::infinity();
    }

    // Chooses `count` points; `start` is the index of the first.
    void choose(int64_t count, int64_t start, int64_t* out) {
        int64_t place = 0, own = 0;
        while (tree_.index[place] != start) ++place;
        while (leaves_[size_t(own)]->end <= place) ++own;
        for (int64_t k = 0; k < count; ++k) {
            out[k] = tree_.index[place];
            distance_[place] = -1;  // never twice, also where points coincide
            const T x = tree_.x[place], y = tree_.y[place], z = tree_.z[place];
            if (k == 0)  // every leaf once, also one that is infinitely far
                for (int64_t leaf = 0; leaf < int64_t(leaves_.size()); ++leaf) visit(leaf, x, y, z);
            else
                update(x, y, z, own);
            own = farthest_leaf();
            place = best_[own];
        }
    }

   private:
    static constexpr int kLeaf = 64;

    void update(T x, T y, T z, int64_t own) {
        const int64_t count = int64_t(leaves_.size());
        for (int64_t leaf = 0; leaf < count; leaf += kLanes<T>) {
            const Vector<T> dx = gap(0, leaf, x), dy = gap(1, leaf, y), dz = gap(2, leaf, z);
            const Vector<T> known = load(farthest_.data() + leaf);
            unsigned near = lane_bits<T>(dx * dx + dy * dy + dz * dz < known);
            for (; near; near &= near - 1) {
                const int64_t each = leaf + __builtin_ctz(near);
                if (each != own) visit(each, x, y, z);
            }
        }
        visit(own, x, y, z);
    }

    Vector<T> gap(int axis, int64_t leaf, T at) const {
        const Vector<T> below = load(low_[axis].data() + leaf) - at, above = at - load(high_[axis].data() + leaf);
        const Vector<T> most = below > above ? below : above;
        return most > T(0) ? most : Vector<T>{};
    }

    void visit(int64_t leaf, T x, T y, T z) {
        const auto& node = *leaves_[size_t(leaf)];
        T most = -2;
        T* distance = distance_.data();
        const T *px = tree_.x.data(), *py = tree_.y.data(), *pz = tree_.z.data();
        for (int64_t i = node.begin; i < node.end; ++i) {
            const T dx = px[i] - x, dy = py[i] - y, dz = pz[i] - z;
            const T squared = dx * dx + dy * dy + dz * dz;
            distance[i] = squared < distance[i] ? squared : distance[i];
        }
        for (int64_t i = node.begin; i < node.end; ++i) most = distance[i] > most ? distance[i] : most;
        int32_t best = -1;
        for (int64_t i = node.begin; i < node.end; ++i)
            if (distance[i] == most && (best < 0 || tree_.index[i] < tree_.index[best])) best = int32_t(i);
        farthest_[leaf] = most;
        best_[leaf] = best;
    }

    int64_t farthest_leaf() const {
        const int64_t count = int64_t(leaves_.size());
        T most = farthest_[0];
        for (int64_t leaf = 1; leaf < count; ++leaf) most = farthest_[leaf] > most ? farthest_[leaf] : most;
        int64_t best = -1;
        for (int64_t leaf = 0; leaf < count; ++leaf)
            if (farthest_[leaf] == most && (best < 0 || tree_.index[best_[leaf]] < tree_.index[best_[best]]))
                best = leaf;
        return best;
    }

    Tree<T> tree_;
    std::vector<const typename Tree<T>::Node*> leaves_;
    Buffer<T> low_[3], high_[3];
    Buffer<T> farthest_;     // largest squared distance in each leaf
    Buffer<int32_t> best_;   // and where it is
    Buffer<T> distance_;     // of each point to the nearest choice
};

template <class T>
Buffer<int64_t> farthest_points(const Batch<T>& batch, const int64_t* counts, const int64_t* start, int64_t total) {
    Buffer<int64_t> result(total);
    std::vector<int64_t> place(size_t(batch.clouds) + 1, 0);
    for (int64_t cloud = 0; cloud < batch.clouds; ++cloud) place[size_t(cloud) + 1] = place[size_t(cloud)] + counts[cloud];
    parallel_for(batch.clouds, 1, [&](int64_t cloud, int64_t) {
        if (counts[cloud] == 0) return;
        FarthestPoints<T> sampler(batch, cloud);
        sampler.choose(counts[cloud], batch.offsets[cloud] + start[cloud], result.data() + place[size_t(cloud)]);
    });
    return result;
}

}  // namespace pointvar
