// A convolution as Python functions: whole, or its steps, a chunk of rows at a time, which `ops/native_convolve.py`
// puts together.
#include "bindings.hpp"
#include "convolution.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

namespace pointvar {
namespace {

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<Array<T>>;
using Order = std::optional<Integers>;

template <class Given>
auto pointer(const std::optional<Given>& array) {
    return array ? array->data() : nullptr;
}

bool within(const Integers& numbers, int64_t end) {
    const int64_t *number = numbers.data(), count = int64_t(numbers.shape(0));
    uint64_t outside = 0;
    for (int64_t i = 0; i < count; ++i) outside |= uint64_t(uint64_t(number[i]) >= uint64_t(end));
    return !outside;
}

void check_order(const Order& order, int64_t rows) {
    if (!order) return;
    require(int64_t(order->shape(0)) == rows && within(*order, rows), "an order must name every row");
    std::vector<bool> seen(size_t(rows), false);  // a row that is left out would never be written
    for (int64_t i = 0; i < rows; ++i) seen[size_t(order->data()[i])] = true;
    require(std::find(seen.begin(), seen.end(), false) == seen.end(), "an order must name every row once");
}

Kind kind_of(const std::string& name) {
    static const std::map<std::string, Kind> kinds = {
        {"values", Kind::values},   {"linear", Kind::linear}, {"gaussian", Kind::gaussian},  {"mlp", Kind::mlp},
        {"dot", Kind::dot},         {"nearest", Kind::nearest}, {"spherical", Kind::spherical}};
    const auto found = kinds.find(name);
    require(found != kinds.end(), "unknown basis");
    return found->second;
}

// A convolution's edges and basis, checked once; the steps then run without looking again.
template <class T>
class Plan {
   public:
    Plan(Integers row_offsets, Integers indices, Order order, Matrix<T> features, std::string kind, int64_t size,
         Matrix<T> edges, std::optional<Values<T>> scale, std::optional<Values<T>> parameters, std::vector<double> constants,
         std::optional<Matrix<T>> mixing)
        : row_offsets_(row_offsets), indices_(indices), order_(order), features_(features), edges_(edges), scale_(scale),
          parameters_(parameters), support_(int64_t(features.shape(0))), channels_(int64_t(features.shape(1))),
          count_(int64_t(indices.shape(0))), rows_(int64_t(row_offsets.shape(0)) - 1),
          basis_(make(kind_of(kind), size, constants)) {
        check_offsets(row_offsets_, count_);
        require(within(indices_, support_), "indices must name support points");
        check_order(order_, rows_);
        if (!mixing) return;
        require(int64_t(mixing->shape(0)) == size && int64_t(mixing->shape(1)) == size, "mixing must be [K, K]");
        basis_.mix_with(mixing->data());
    }

    void project(int64_t first, int64_t count, Array<T> phi, Maybe<T> norm) const {
        check_rows(first, count);
        require(int64_t(phi.size()) >= count * basis_.size * channels_, "phi is too small");
        require(!norm || int64_t(norm->size()) == rows_, "norm must be [M]");
        nb::gil_scoped_release release;
        pointvar::project(basis_, rows(), first, count, features_.data(), channels_, phi.data(),
                          basis_.size * channels_, pointer(norm));
    }

    // The same over the columns, of what lives at the queries; rows are the support points.
    void project_back(Matrix<T> grad, int64_t first, int64_t count, Array<T> phi, Integers offsets, Integers rows,
                      Integers edges, Order order) const {
        check_columns(offsets, rows, edges, order);
        require(first >= 0 && count >= 0 && count <= support_ - first, "rows out of range");
        const int64_t channels = int64_t(grad.shape(1));
        require(int64_t(grad.shape(0)) == rows_, "a gradient needs one row per query");
        require(int64_t(phi.size()) >= count * basis_.size * channels, "phi is too small");
        nb::gil_scoped_release release;
        pointvar::project(basis_, Edges{offsets.data(), rows.data(), edges.data(), pointer(order)}, first, count, grad.data(),
                          channels, phi.data(), basis_.size * channels, static_cast<T*>(nullptr));
    }

    void unproject(int64_t first, int64_t count, Array<T> grad_phi, Maybe<T> norm, Maybe<T> grad_features,
                   Maybe<T> grad_edges, Maybe<T> grad_scale, Maybe<T> grad_parameters) const {
        check_rows(first, count);
        require(int64_t(grad_phi.size()) >= count * basis_.size * channels_, "grad_phi is too small");
        const Gradients<T> grads = check_gradients(norm, grad_features, grad_edges, grad_scale, grad_parameters);
        nb::gil_scoped_release release;
        pointvar::unproject(basis_, rows(), first, count, features_.data(), channels_, grad_phi.data(),
                            basis_.size * channels_, grads);
    }

    void convolve(Matrix<T> weight, std::optional<Values<T>> bias, Array<T> out, Maybe<T> norm) const {
        const int64_t outputs = check_weight(weight, out.size());
        require(!bias || int64_t(bias->shape(0)) == outputs, "bias must be [O]");
        require(!norm || int64_t(norm->size()) == rows_, "norm must be [M]");
        nb::gil_scoped_release release;
        pointvar::convolve(basis_, rows(), rows_, features_.data(), channels_, weight.data(), pointer(bias), outputs,
                           out.data(), pointer(norm));
    }

    void convolve_backward(Matrix<T> weight, Matrix<T> grad_out, Maybe<T> norm, Maybe<T> grad_features,
                           Maybe<T> grad_weight, Maybe<T> grad_edges, Maybe<T> grad_scale, Maybe<T> grad_parameters) const {
        const int64_t outputs = check_weight(weight, grad_out.size());
        require(!grad_weight || grad_weight->size() == weight.size(), "grad_weight must be like weight");
        const Gradients<T> grads = check_gradients(norm, grad_features, grad_edges, grad_scale, grad_parameters);
        nb::gil_scoped_release release;
        pointvar::convolve_backward(basis_, rows(), rows_, features_.data(), channels_, weight.data(), grad_out.data(),
                                    outputs, pointer(norm), pointer(grad_weight), grads);
    }

    // ||phi[x]||^2 of each row, in double precision.
    void squared_norms(Array<T> phi, Array<double> out) const {
        const int64_t count = int64_t(out.size()), width = count ? int64_t(phi.size()) / count : 0;
        require(count * width == int64_t(phi.size()), "phi needs one row per norm");
        nb::gil_scoped_release release;
        parallel_for(count, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const T* row = phi.data() + i * width;
                double total = 0;
#pragma omp simd reduction(+ : total)
                for (int64_t j = 0; j < width; ++j) total += double(row[j]) * double(row[j]);
                out.data()[i] = total;
            }
        });
    }

    int64_t parameters() const { return basis_.parameters(); }

   private:
    Basis<T> make(Kind kind, int64_t size, const std::vector<double>& constants) const {
        const int64_t width = int64_t(edges_.shape(1)), given = parameters_ ? int64_t(parameters_->shape(0)) : 0;
        require(int64_t(edges_.shape(0)) == count_ && size >= 1, "edges need one row per index");
        require(!scale_ || int64_t(scale_->shape(0)) == count_, "scale needs one value per edge");
        if (kind == Kind::values) {
            require(width == size, "values must be [E, K]");
            require(!scale_, "values include their scale");
        } else {
            require(width >= 1 && width <= 3, "offsets must be [E, 1], [E, 2] or [E, 3]");
        }
        const bool points = kind == Kind::linear || kind == Kind::gaussian || kind == Kind::nearest;
        const bool affine = kind == Kind::mlp;
        require(!points || given == size * width, "kernel points must be [K, D]");
        require(!affine || given == size * (width + 1), "the map must be [K, D] and its bias [K]");
        require(kind != Kind::dot || size == width + 1, "dot has D + 1 functions");
        const size_t wanted = kind == Kind::spherical ? 4 : kind == Kind::linear || kind == Kind::gaussian || affine ? 1 : 0;
        require(constants.size() == wanted, "wrong number of constants");
        if (kind == Kind::spherical)
            check_bins(size, width, constants);
        return Basis<T>(kind, size, int(kind == Kind::values ? 1 : width), edges_.data(), pointer(scale_),
                        pointer(parameters_), constants);
    }
    // Each count is at least 1 and at most K, so that their product cannot overflow; in 1D left and right are two.
    static void check_bins(int64_t size, int64_t width, const std::vector<double>& constants) {
        int64_t product = 1;
        for (int i = 0; i < 3; ++i) {
            require(constants[size_t(i)] >= (i == 1 && width == 1 ? 2 : 1) && constants[size_t(i)] <= double(size),
                    "each coordinate needs a bin, in 1D the second one two");
            require(product <= size, "more bins than functions");
            product *= int64_t(constants[size_t(i)]);
        }
        require(size == product + 1, "wrong number of bins");
    }
    void check_rows(int64_t first, int64_t count) const {
        require(first >= 0 && count >= 0 && count <= rows_ - first, "rows out of range");
    }
    // The number of outputs.
    int64_t check_weight(const Matrix<T>& weight, size_t out) const {
        const int64_t outputs = int64_t(weight.shape(1));
        require(int64_t(weight.shape(0)) == basis_.size * channels_, "weight must be [K C, O]");
        require(int64_t(out) == rows_ * outputs, "outputs must be [M, O]");
        return outputs;
    }
    Gradients<T> check_gradients(const Maybe<T>& norm, const Maybe<T>& features, const Maybe<T>& edges,
                                 const Maybe<T>& scale, const Maybe<T>& parameters) const {
        require(!norm || int64_t(norm->size()) == rows_, "norm must be [M]");
        require(!features || int64_t(features->size()) == support_ * channels_, "grad_features must be [N, C]");
        require(!edges || edges->size() == edges_.size(), "grad_edges must be like edges");
        require(!scale || int64_t(scale->size()) == count_, "grad_scale must be [E]");
        require(!parameters || int64_t(parameters->size()) == basis_.parameters(), "wrong number of parameters");
        require(!basis_.given() || !(scale || parameters), "values have neither scale nor parameters");
        return {pointer(features), pointer(edges), pointer(scale), pointer(parameters), pointer(norm)};
    }
    Edges rows() const { return {row_offsets_.data(), indices_.data(), nullptr, pointer(order_)}; }
    // The columns must be those of these edges. Their numbers are looked at once, and the arrays are held from then on.
    void check_columns(const Integers& offsets, const Integers& rows, const Integers& edges, const Order& order) const {
        const std::array<const int64_t*, 4> now = {offsets.data(), rows.data(), edges.data(), pointer(order)};
        if (!columns_.empty() && now == checked_) return;
        require(int64_t(offsets.shape(0)) == support_ + 1, "columns need one row per support point");
        require(int64_t(rows.shape(0)) == count_ && int64_t(edges.shape(0)) == count_, "columns need all edges");
        check_offsets(offsets, count_);
        check_order(order, support_);
        std::atomic<bool> fine{true};
        parallel_for(support_, 1 << 10, [&](int64_t begin, int64_t end) {
            const int64_t *to = indices_.data(), *first = row_offsets_.data(), *row = rows.data(), *edge = edges.data();
            bool all = true;
            for (int64_t column = begin; column < end; ++column)
                for (int64_t i = offsets.data()[column], last = -1; i < offsets.data()[column + 1]; last = edge[i++])
                    all = all && edge[i] > last && edge[i] < count_ && row[i] >= 0 && row[i] < rows_ &&
                          to[edge[i]] == column && first[row[i]] <= edge[i] && edge[i] < first[row[i] + 1];
            if (!all) fine = false;
        });
        require(fine, "columns must be the transposed edges");
        columns_ = {offsets, rows, edges};
        if (order) columns_.push_back(*order);
        checked_ = now;
    }

    Integers row_offsets_, indices_;
    Order order_;
    Matrix<T> features_, edges_;
    std::optional<Values<T>> scale_, parameters_;
    int64_t support_, channels_, count_, rows_;
    Basis<T> basis_;
    mutable std::vector<Integers> columns_;
    mutable std::array<const int64_t*, 4> checked_{};
};

template <class T>
void bind(nb::module_& m, const char* name) {
    nb::class_<Plan<T>>(m, name)
        .def(nb::init<Integers, Integers, Order, Matrix<T>, std::string, int64_t, Matrix<T>, std::optional<Values<T>>,
                      std::optional<Values<T>>, std::vector<double>, std::optional<Matrix<T>>>(),
             nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(), nb::arg(),
             nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg(), nb::arg().noconvert())
        .def("project", &Plan<T>::project, nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert())
        .def("project_back", &Plan<T>::project_back, nb::arg().noconvert(), nb::arg(), nb::arg(), nb::arg().noconvert(),
             nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert())
        .def("unproject", &Plan<T>::unproject, nb::arg(), nb::arg(), nb::arg().noconvert(), nb::arg().noconvert(),
             nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert())
        .def("convolve", &Plan<T>::convolve, nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
             nb::arg().noconvert())
        .def("convolve_backward", &Plan<T>::convolve_backward, nb::arg().noconvert(), nb::arg().noconvert(),
             nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert(),
             nb::arg().noconvert(), nb::arg().noconvert())
        .def("squared_norms", &Plan<T>::squared_norms, nb::arg().noconvert(), nb::arg().noconvert())
        .def_prop_ro("parameters", &Plan<T>::parameters);
}

}  // namespace

void bind_convolution(nb::module_& m) {
    bind<float>(m, "PlanFloat");
    bind<double>(m, "PlanDouble");
    m.def("empty_float", [](int64_t size) { return give(Buffer<float>(size)); });
    m.def("empty_double", [](int64_t size) { return give(Buffer<double>(size)); });
}

}  // namespace pointvar
