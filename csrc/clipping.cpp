// Adaptive gradient clipping as a Python function; `ops/clipping.py` defines what it does.
#include "clipping.hpp"

#include <vector>

#include "bindings.hpp"

namespace pointvar {
namespace {

using Any = nb::ndarray<nb::c_contig, nb::device::cpu>;

template <class T>
void clip(const Any& weight, const Any& gradient, int64_t unit, double limit, double eps) {
    Units<T> u{static_cast<const T*>(weight.data()), static_cast<T*>(gradient.data()), 1, 1, 1};
    for (int64_t d = 0; d < int64_t(weight.ndim()); ++d)
        (d == unit ? u.units : d < unit ? u.outer : u.inner) *= int64_t(weight.shape(d));
    clip_units(u, T(limit), T(eps));
}

void check(const Any& weight, const Any& gradient, int64_t unit) {
    require(weight.dtype() == nb::dtype<float>() || weight.dtype() == nb::dtype<double>(),
            "weights must be float32 or float64");
    bool same = weight.dtype() == gradient.dtype() && weight.ndim() == gradient.ndim();
    for (size_t d = 0; same && d < weight.ndim(); ++d) same = weight.shape(d) == gradient.shape(d);
    require(same, "a gradient needs dtype and shape of its weight");
    require(unit >= -1 && unit < int64_t(weight.ndim()), "units must be counted by a dimension of the weight, or -1");
}

}  // namespace

void bind_clipping(nb::module_& m) {
    m.def(
        "clip_units",
        [](nb::list weights, nb::list gradients, nb::list units, double limit, double eps) {
            require(weights.size() == gradients.size() && weights.size() == units.size(),
                    "each weight needs a gradient and a unit");
            struct Entry {
                Any weight, gradient;
                int64_t unit;
            };
            std::vector<Entry> all;
            for (size_t i = 0; i < weights.size(); ++i) {
                all.push_back({nb::cast<Any>(weights[i], false), nb::cast<Any>(gradients[i], false),
                               nb::cast<int64_t>(units[i])});
                check(all[i].weight, all[i].gradient, all[i].unit);
            }
            nb::gil_scoped_release release;
            for (const Entry& e : all)
                (e.weight.dtype() == nb::dtype<float>() ? clip<float> : clip<double>)(e.weight, e.gradient, e.unit,
                                                                                      limit, eps);
        },
        nb::arg("weights"), nb::arg("gradients"), nb::arg("units"), nb::arg("limit"), nb::arg("eps"));
}

}  // namespace pointvar
