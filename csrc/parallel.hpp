// Threads: one OpenMP runtime, shared with torch, and no parallel region in a forked child.
#pragma once

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "pool.hpp"

namespace pointvar {

inline bool& forked() {
    static bool flag = false;
    return flag;
}

// The thread pool does not survive a fork: a child computes on one thread.
inline void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] {
        forked() = true;
        Pool::renew();
    });
}

inline int threads() { return forked() ? 1 : omp_get_max_threads(); }

// Calls body(begin, end) for consecutive blocks of at most `grain` items of [0, n).
// Blocks do not depend on the number of threads; an exception of a block reaches the caller.
template <class Body>
void parallel_for(int64_t n, int64_t grain, const Body& body) {
    const int64_t blocks = (n + grain - 1) / grain;
    const int team = int(std::min<int64_t>(threads(), blocks));
    const auto run = [&](int64_t block) { body(block * grain, std::min(n, (block + 1) * grain)); };
    if (team <= 1) {
        for (int64_t block = 0; block < blocks; ++block) run(block);
        return;
    }
    std::exception_ptr error;
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t block = 0; block < blocks; ++block) {
        try {
            run(block);
        } catch (...) {
#pragma omp critical(pointvar_error)
            error = std::current_exception();
        }
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace pointvar
