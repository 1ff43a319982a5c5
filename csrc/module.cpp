// One Python module per instruction set; see CMakeLists.txt.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "parallel.hpp"

namespace nb = nanobind;

namespace pointvar {

void bind_geometry(nb::module_& m);
void bind_convolution(nb::module_& m);
void bind_clipping(nb::module_& m);

// Whether this processor (and its operating system) runs code built for an instruction set.
bool supports(const std::string& level) {
    if (level == "baseline") return true;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    if (level == "avx2") return avx2;
    if (level == "avx512")
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
    return false;
}

// The file that holds the OpenMP runtime in use.
std::string openmp_runtime() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void*>(&omp_get_max_threads), &info) || !info.dli_fname) return "unknown";
    return info.dli_fname;
}

}  // namespace pointvar

NB_MODULE(POINTVAR_MODULE, m) {
    pointvar::watch_forks();
    m.attr("level") = POINTVAR_LEVEL;
    m.def("supports", &pointvar::supports);
    m.def("max_threads", &pointvar::threads);
    m.def("openmp_runtime", &pointvar::openmp_runtime);
    m.def("empty_cache", &pointvar::Pool::empty);
    pointvar::bind_geometry(m);
    pointvar::bind_convolution(m);
    pointvar::bind_clipping(m);
}
