// The geometric operators as Python functions; `reference.py` defines what they return.
#include "bindings.hpp"
#include "density.hpp"
#include "farthest.hpp"
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

nb::tuple give_rows(Rows&& rows) {
    return nb::make_tuple(give(std::move(rows.row_offsets)), give(std::move(rows.indices)), give(std::move(rows.extra)));
}

template <class T>
void bind(nb::module_& m) {
    const auto checked = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("ball_query",
          [](Matrix<T> support, Integers support_offsets, Matrix<T> queries, Integers query_offsets, Values<T> radius,
             int64_t max_neighbors, int64_t seed) {
              const Batch<T> s = with(support, support_offsets, radius), q = batch(queries, query_offsets);
              check_pair(s, q);
              Rows rows;
              {
                  nb::gil_scoped_release release;
                  rows = ball_query(s, q, radius.data(), max_neighbors, uint64_t(seed));
              }
              return give_rows(std::move(rows));
          },
          checked("support"), checked("support_offsets"), checked("queries"), checked("query_offsets"),
          checked("radius"), nb::arg("max_neighbors"), nb::arg("seed"));
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
          [](Matrix<T> points, Integers offsets, Values<T> radius, int64_t seed) {
              const Batch<T> b = with(points, offsets, radius);
              Buffer<int64_t> kept;
              {
                  nb::gil_scoped_release release;
                  kept = poisson_disk(b, radius.data(), uint64_t(seed));
              }
              return give(std::move(kept));
          },
          checked("points"), checked("offsets"), checked("radius"), nb::arg("seed"));
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
              Columns result;
              {
                  nb::gil_scoped_release release;
                  result = transpose(row_offsets.data(), int64_t(row_offsets.shape(0)) - 1, indices.data(),
                                     int64_t(indices.shape(0)), columns);
              }
              return nb::make_tuple(give(std::move(result.offsets)), give(std::move(result.rows)),
                                    give(std::move(result.edges)));
          },
          nb::arg("row_offsets").noconvert(), nb::arg("indices").noconvert(), nb::arg("columns"));
}

}  // namespace pointvar
