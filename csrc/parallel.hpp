// Threads: one OpenMP runtime, shared with torch, and no parallel region in a forked child.
#pragma once

#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

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

// Threads of a team that wait for each other run in a loop, in libgomp for some 300,000 rounds: milliseconds in which
// another process has no use of the processor, and if that process holds up the thread that is waited for, a step
// takes a hundred times as long. libgomp goes to sleep after a few rounds where it knows of more threads than
// processors. One more team, which sleeps for good, makes it so. It costs two threads that never run.
inline void share_processors() {
    static std::once_flag once;
    std::call_once(once, [] {
        if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;  // somebody has decided
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the others
        try {
            std::thread([] {
                std::atomic<int> members{0};
#pragma omp parallel num_threads(2)
                ++members;
                for (;;) pause();
            }).detach();
        } catch (const std::system_error&) {  // no threads to be had: then none has to wait
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    });
}

#if defined(__SANITIZE_THREAD__)
// The thread sanitizer does not see how OpenMP's threads wait for each other: there, threads are the standard library's.
inline thread_local int own_number = 0;
inline int thread_number() { return own_number; }
inline int threads() { return own_number ? 1 : 4; }

template <class Run>
void run_team(int team, int64_t blocks, const Run& run) {
    std::atomic<int64_t> next{0};
    std::vector<std::thread> others;
    const auto take = [&](int number) {
        const int before = std::exchange(own_number, number);
        for (int64_t block; (block = next++) < blocks;) run(block);
        own_number = before;
    };
    for (int number = 1; number < team; ++number) others.emplace_back(take, number);
    take(0);
    for (std::thread& other : others) other.join();
}
#else
inline int thread_number() { return omp_get_thread_num(); }
inline int threads() { return forked() ? 1 : omp_get_max_threads(); }

template <class Run>
void run_team(int team, int64_t blocks, const Run& run) {
    share_processors();
#pragma omp parallel for schedule(dynamic) num_threads(team)
    for (int64_t block = 0; block < blocks; ++block) run(block);
}
#endif

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
    std::mutex lock;
    run_team(team, blocks, [&](int64_t block) {
        try {
            run(block);
        } catch (...) {
            const std::lock_guard<std::mutex> hold(lock);
            error = std::current_exception();
        }
    });
    if (error) std::rethrow_exception(error);
}

}  // namespace pointvar
