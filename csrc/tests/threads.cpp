// The kernels under the thread sanitizer: several callers at once, each with a team of its own, on shared inputs.
// Results must be those of one caller alone. `make sanitize` builds and runs this.
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "clipping.hpp"
#include "convolution.hpp"
#include "density.hpp"
#include "farthest.hpp"
#include "nearest.hpp"
#include "neighbours.hpp"
#include "levels.hpp"

using namespace pointvar;

namespace {

template <class T>
std::vector<char> bytes(const Buffer<T>& buffer) {
    const char* data = reinterpret_cast<const char*>(buffer.data());
    return std::vector<char>(data, data + size_t(buffer.size()) * sizeof(T));
}
std::vector<char> bytes(const Rows& rows) {
    std::vector<char> all = bytes(rows.row_offsets);
    for (const auto& part : {bytes(rows.indices), bytes(rows.extra)}) all.insert(all.end(), part.begin(), part.end());
    return all;
}
template <class T>
std::vector<char> bytes(const std::vector<T>& numbers) {
    const char* data = reinterpret_cast<const char*>(numbers.data());
    return std::vector<char>(data, data + numbers.size() * sizeof(T));
}

// Two clouds in the unit cube, one large enough for several blocks, and their neighbourhoods.
template <class T>
struct Case {
    std::vector<T> points, radius{T(0.08), T(0.1)}, grad, features, phi;
    std::vector<int64_t> offsets{0, 20000, 24000}, counts{200, 100}, start{3, 4};
    Rows rows;
    std::vector<T> values, scale, relative, centres, weight, grad_out;
    static constexpr int64_t K = 13, C = 5, O = 9;

    Case() {
        std::mt19937 random(1);
        std::uniform_real_distribution<T> uniform(0, 1);
        const auto draw = [&](std::vector<T>& to, int64_t count) {
            to.resize(size_t(count));
            for (T& number : to) number = uniform(random);
        };
        draw(points, 3 * offsets.back());
        draw(grad, offsets.back());
        rows = ball_query(batch(), batch(), radius.data(), {8, 7, {}, {}});
        draw(features, offsets.back() * C);
        draw(phi, offsets.back() * K * C);
        draw(values, rows.indices.size() * K);
        draw(scale, rows.indices.size());
        draw(relative, rows.indices.size() * 3);
        draw(centres, K * 4);
        draw(weight, K * C * O);
        draw(grad_out, offsets.back() * O);
    }
    Batch<T> batch() const { return {points.data(), offsets.back(), 3, offsets.data(), 2}; }
    Edges edges() const { return {rows.row_offsets.data(), rows.indices.data(), nullptr, nullptr}; }
    Basis<T> given() const { return {Kind::values, K, 1, values.data(), nullptr, nullptr, {}}; }
    Basis<T> known() const { return {Kind::mlp, K, 3, relative.data(), scale.data(), centres.data(), {0.1}}; }
};

template <class T>
std::vector<char> forth(const Case<T>& c, const Basis<T>& basis) {
    std::vector<T> phi(c.phi.size()), norm(size_t(c.offsets.back()));
    project(basis, c.edges(), 0, c.offsets.back(), c.features.data(), c.C, phi.data(), c.K * c.C, norm.data());
    std::vector<char> all = bytes(phi);
    const auto rest = bytes(norm);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
}

template <class T>
std::vector<char> back(const Case<T>& c, const Basis<T>& basis) {
    const size_t edges = size_t(c.rows.indices.size());
    std::vector<T> features(c.features.size(), T(0)), along(edges * size_t(basis.given() ? c.K : 3)), scale(edges),
        sums(size_t(basis.parameters()), T(0));
    unproject(basis, c.edges(), 0, c.offsets.back(), c.features.data(), c.C, c.phi.data(), c.K * c.C,
              Gradients<T>{features.data(), along.data(), basis.given() ? nullptr : scale.data(),
                           basis.given() ? nullptr : sums.data(), nullptr});
    std::vector<char> all = bytes(features);
    for (const auto& part : {bytes(along), bytes(scale), bytes(sums)}) all.insert(all.end(), part.begin(), part.end());
    return all;
}

template <class T>
std::vector<char> whole(const Case<T>& c, const Basis<T>& basis) {
    const int64_t rows = c.offsets.back(), outputs = rows * c.O;
    std::vector<T> out(outputs), norm(rows), features(c.features.size(), T(0)), weight(c.weight.size());
    convolve(basis, c.edges(), rows, c.features.data(), c.C, c.weight.data(), c.grad.data(), c.O, out.data(), norm.data());
    convolve_backward(basis, c.edges(), rows, c.features.data(), c.C, c.weight.data(), c.grad_out.data(), c.O, norm.data(),
                      weight.data(), Gradients<T>{features.data(), nullptr, nullptr, nullptr, norm.data()});
    std::vector<char> all = bytes(out);
    for (const auto& part : {bytes(features), bytes(weight)}) all.insert(all.end(), part.begin(), part.end());
    return all;
}

template <class T>
int run(const char* type) {
    const Case<T> c;
    const std::vector<std::pair<const char*, std::function<std::vector<char>()>>> kernels = {
        {"ball_query", [&] { return bytes(ball_query(c.batch(), c.batch(), c.radius.data(), {-1, 1, {}, {}})); }},
        {"capped ball_query", [&] { return bytes(ball_query(c.batch(), c.batch(), c.radius.data(), {4, 1, {}, {}})); }},
        {"knn", [&] { return bytes(knn(c.batch(), c.batch(), 9)); }},
        {"poisson_disk", [&] { return bytes(poisson_disk(c.batch(), c.radius.data(), 5)); }},
        {"farthest_points", [&] { return bytes(farthest_points(c.batch(), c.counts.data(), c.start.data(), 300)); }},
        {"kernel_density", [&] { return bytes(kernel_density(c.batch(), c.radius.data())); }},
        {"kernel_density_backward", [&] { return bytes(kernel_density_backward(c.grad.data(), c.batch(), c.radius.data())); }},
        {"transpose",
         [&] {
             Buffer<int64_t> offsets(c.offsets.back() + 1), rows(c.rows.indices.size()), edges(c.rows.indices.size());
             transpose(c.rows.row_offsets.data(), c.offsets.back(), c.rows.indices.data(), c.rows.indices.size(),
                       c.offsets.back(), {offsets.data(), rows.data(), edges.data()});
             std::vector<char> all = bytes(rows);
             const auto rest = bytes(edges);
             all.insert(all.end(), rest.begin(), rest.end());
             return all;
         }},
        {"spatial_order", [&] { return bytes(spatial_order(c.batch())); }},
        {"geometry",
         [&] {
             const Plan plan{{{0.1, 1}, {0.2, 2}}, {{1, 0.1}}, {{1, 2, 0.3, 4, 3, 0, true}}};
             const Geometry<T> all = geometry(c.batch(), c.batch(), plan);
             std::vector<char> both = bytes(all.integers);
             const auto rest = bytes(all.numbers);
             both.insert(both.end(), rest.begin(), rest.end());
             return both;
         }},
        {"project values", [&] { return forth(c, c.given()); }},
        {"project mlp", [&] { return forth(c, c.known()); }},
        {"unproject values", [&] { return back(c, c.given()); }},
        {"unproject mlp", [&] { return back(c, c.known()); }},
        {"whole convolution", [&] { return whole(c, c.known()); }},
        {"clip_units",
         [&] {
             std::vector<T> weight(size_t(1) << 20, T(1)), gradient(weight.size(), T(2));
             clip_units(Units<T>{weight.data(), gradient.data(), 2048, 512, 1}, T(0.1), T(0.001));
             return bytes(gradient);
         }},
    };
    std::vector<std::vector<char>> alone;
    for (const auto& kernel : kernels) alone.push_back(kernel.second());
    std::atomic<int> wrong{0}, calls{0};
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < 4; ++caller)
        callers.emplace_back([&, caller] {
            for (size_t i = 0; i < kernels.size(); ++i) {  // each starts with another one
                const size_t at = (i + 3 * caller) % kernels.size();
                if (kernels[at].second() != alone[at]) {
                    std::fprintf(stderr, "%s of %s: another result beside other threads\n", kernels[at].first, type);
                    ++wrong;
                }
                ++calls;
            }
        });
    for (std::thread& caller : callers) caller.join();
    std::printf("%s: %d kernels, %d calls from 4 threads with teams of %d, %d wrong\n", type, int(kernels.size()),
                calls.load(), threads(), wrong.load());
    return wrong;
}

}  // namespace

int main() { return run<float>("float") + run<double>("double") ? 1 : 0; }
