// The geometric operators as Python functions; `reference.py` defines what they return.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "curve.hpp"
#include "density.hpp"
#include "farthest.hpp"
#include "levels.hpp"
#include "nearest.hpp"
#include "neighbours.hpp"
#include "poisson.hpp"

namespace pointvar {
namespace {

template <class T>
Batch<T> with(const Matrix<T>& points, const Integers& offsets, const Values<T>& per_cloud) {
    const Batch<T> result = batch(points, offsets);
    require(int64_t(per_cloud.shape(0)) == result.clouds, "one value per cloud is needed");
    for (int64_t cloud = 0; cloud < result.clouds; ++cloud)
        require(per_cloud.data()[cloud] > 0 && per_cloud.data()[cloud] < std::numeric_limits<T>::infinity(),
                "a radius or bandwidth must be positive and finite");
    return result;
}

template <class T>
void check_pair(const Batch<T>& support, const Batch<T>& queries) {
    require(support.dim == queries.dim && support.clouds == queries.clouds,
            "support and queries must agree in dimension and number of clouds");
}

Names names_of(const std::optional<Integers>& names, int64_t points) {
    require(!names || int64_t(names->shape(0)) == points, "names must hold one number per point");
    return {names ? names->data() : nullptr};
}

using LevelTuple = std::tuple<double, int64_t>;
using DensityTuple = std::tuple<int64_t, double>;
using HoodTuple = std::tuple<int64_t, int64_t, double, int64_t, int64_t, int64_t, bool>;

template <class T>
void check_length(double length) {
    require(T(length) > 0 && T(length) < std::numeric_limits<T>::infinity(),
            "a radius or bandwidth must be positive and finite");
}

// Levels are counted from -1, the input; -3 are the queries, as in `hierarchy.py`.
template <class T>
Plan plan_of(const std::vector<LevelTuple>& levels, const std::vector<DensityTuple>& densities,
             const std::vector<HoodTuple>& hoods) {
    const int64_t last = int64_t(levels.size());
    const auto place = [&](int64_t level) {
        require(level == -3 || (level >= -1 && level < last), "there is no such level");
        return level == -3 ? last + 1 : level + 1;
    };
    Plan plan;
    for (const auto& [radius, seed] : levels) {
        check_length<T>(radius);
        plan.levels.push_back({radius, uint64_t(seed)});
    }
    for (const auto& [source, bandwidth] : densities) {
        check_length<T>(bandwidth);
        plan.densities.push_back({place(source), bandwidth});
    }
    for (const auto& [source, target, radius, most, seed, density, transposed] : hoods) {
        check_length<T>(radius);
        require(density < 0 || (density < int64_t(densities.size()) && std::get<0>(densities[size_t(density)]) == source),
                "the density must be one of the support points");
        plan.hoods.push_back({place(source), place(target), radius, most, uint64_t(seed), density, transposed});
    }
    return plan;
}

nb::tuple give_rows(Rows&& rows) {
    return nb::make_tuple(give(std::move(rows.row_offsets)), give(std::move(rows.indices)), give(std::move(rows.extra)));
}

template <class T>
void bind(nb::module_& m) {
    const auto checked = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("ball_query",
          [](Matrix<T> support, Integers support_offsets, Matrix<T> queries, Integers query_offsets, Values<T> radius,
             int64_t max_neighbors, int64_t seed, std::optional<Integers> support_names,
             std::optional<Integers> query_names) {
              const Batch<T> s = with(support, support_offsets, radius), q = batch(queries, query_offsets);
              check_pair(s, q);
              const Cap cap{max_neighbors, uint64_t(seed), names_of(support_names, s.n), names_of(query_names, q.n)};
              Rows rows;
              {
                  nb::gil_scoped_release release;
                  rows = ball_query(s, q, radius.data(), cap);
              }
              return give_rows(std::move(rows));
          },
          checked("support"), checked("support_offsets"), checked("queries"), checked("query_offsets"),
          checked("radius"), nb::arg("max_neighbors"), nb::arg("seed"), nb::arg("support_names") = nb::none(),
          nb::arg("query_names") = nb::none());
    m.def("knn",
          [](Matrix<T> support, Integers support_offsets, Matrix<T> queries, Integers query_offsets, int64_t k) {
              const Batch<T> s = batch(support, support_offsets), q = batch(queries, query_offsets);
              check_pair(s, q);
              require(k >= 1, "k must be at least 1");
              Rows rows;
              {
                  nb::gil_scoped_release release;
                  rows = knn(s, q, k);
              }
              return give_rows(std::move(rows));
          },
          checked("support"), checked("support_offsets"), checked("queries"), checked("query_offsets"), nb::arg("k"));
    m.def("poisson_disk",
          [](Matrix<T> points, Integers offsets, Values<T> radius, int64_t seed, std::optional<Integers> names) {
              const Batch<T> b = with(points, offsets, radius);
              const Names known = names_of(names, b.n);
              Buffer<int64_t> kept;
              {
                  nb::gil_scoped_release release;
                  kept = poisson_disk(b, radius.data(), uint64_t(seed), known);
              }
              return give(std::move(kept));
          },
          checked("points"), checked("offsets"), checked("radius"), nb::arg("seed"), nb::arg("names") = nb::none());
    m.def("spatial_order",
          [](Matrix<T> points, Integers offsets) {
              const Batch<T> b = batch(points, offsets);
              Buffer<int64_t> order;
              {
                  nb::gil_scoped_release release;
                  order = spatial_order(b);
              }
              return give(std::move(order));
          },
          checked("points"), checked("offsets"));
    m.def("geometry",
          [](Matrix<T> points, Integers offsets, std::optional<Matrix<T>> queries, std::optional<Integers> query_offsets,
             std::vector<LevelTuple> levels, std::vector<DensityTuple> densities, std::vector<HoodTuple> hoods) {
              const Batch<T> input = batch(points, offsets);
              require(queries.has_value() == query_offsets.has_value(), "queries need offsets");
              const Batch<T> others = queries ? batch(*queries, *query_offsets) : input;
              check_pair(input, others);
              const Plan plan = plan_of<T>(levels, densities, hoods);
              Geometry<T> result;
              {
                  nb::gil_scoped_release release;
                  result = geometry(input, others, plan);
              }
              return nb::make_tuple(give(std::move(result.integers)), give(std::move(result.numbers)), result.sizes);
          },
          checked("points"), checked("offsets"), checked("queries").none(), checked("query_offsets").none(),
          nb::arg("levels"), nb::arg("densities"), nb::arg("hoods"));
    m.def("farthest_points",
          [](Matrix<T> points, Integers offsets, Integers counts, Integers start, int64_t total) {
              const Batch<T> b = batch(points, offsets);
              int64_t sum = 0;
              require(int64_t(counts.shape(0)) == b.clouds && int64_t(start.shape(0)) == b.clouds,
                      "counts and start need one value per cloud");
              for (int64_t cloud = 0; cloud < b.clouds; ++cloud) {
                  const int64_t size = b.offsets[cloud + 1] - b.offsets[cloud], count = counts.data()[cloud];
                  require(count >= 0 && count <= size, "counts must not exceed the points of a cloud");
                  require(count == 0 || (start.data()[cloud] >= 0 && start.data()[cloud] < size),
                          "start must name a point of its cloud");
                  sum += count;
              }
              require(sum == total, "total must be the sum of counts");
              Buffer<int64_t> chosen;
              {
                  nb::gil_scoped_release release;
                  chosen = farthest_points(b, counts.data(), start.data(), total);
              }
              return give(std::move(chosen));
          },
          checked("points"), checked("offsets"), checked("counts"), checked("start"), nb::arg("total"));
    m.def("kernel_density",
          [](Matrix<T> points, Integers offsets, Values<T> bandwidth) {
              const Batch<T> b = with(points, offsets, bandwidth);
              Buffer<T> density;
              {
                  nb::gil_scoped_release release;
                  density = kernel_density(b, bandwidth.data());
              }
              return give(std::move(density));
          },
          checked("points"), checked("offsets"), checked("bandwidth"));
    m.def("kernel_density_backward",
          [](Values<T> grad, Matrix<T> points, Integers offsets, Values<T> bandwidth) {
              const Batch<T> b = with(points, offsets, bandwidth);
              require(int64_t(grad.shape(0)) == b.n, "grad needs one value per point");
              Buffer<T> result;
              {
                  nb::gil_scoped_release release;
                  result = kernel_density_backward(grad.data(), b, bandwidth.data());
              }
              return give<T, 2>(std::move(result), {size_t(b.n), size_t(b.dim)});
          },
          checked("grad"), checked("points"), checked("offsets"), checked("bandwidth"));
}

}  // namespace

void bind_geometry(nb::module_& m) {
    bind<float>(m);
    bind<double>(m);
    m.def("transpose",
          [](Integers row_offsets, Integers indices, int64_t columns) {
              require(columns >= 0 && columns < (int64_t(1) << 31), "at most 2^31 - 1 support points, and not fewer than 0");
              check_offsets(row_offsets, int64_t(indices.shape(0)));
              const int64_t count = int64_t(indices.shape(0));
              Buffer<int64_t> offsets(columns + 1), rows(count), edges(count);
              {
                  nb::gil_scoped_release release;
                  transpose(row_offsets.data(), int64_t(row_offsets.shape(0)) - 1, indices.data(), count, columns,
                            {offsets.data(), rows.data(), edges.data()});
              }
              return nb::make_tuple(give(std::move(offsets)), give(std::move(rows)), give(std::move(edges)));
          },
          nb::arg("row_offsets").noconvert(), nb::arg("indices").noconvert(), nb::arg("columns"));
}

}  // namespace pointvar
