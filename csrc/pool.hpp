// Memory that is used again. A fresh page costs about as much as the work done in it, and every training step
// needs arrays of about the same sizes, so large blocks are kept when they are freed: at most 1/32 of the
// machine's memory, until `empty_cache`.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace pointvar {

class Pool {
   public:
    static void* take(size_t bytes) {
        if (bytes >= kLarge) {
            Pool& pool = instance();
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            const auto found = pool.free_.lower_bound(bytes);
            if (found != pool.free_.end() && found->first / 2 <= bytes) {
                Header* header = found->second;
                pool.kept_ -= found->first;
                pool.free_.erase(found);
                return header + 1;
            }
        }
        return fresh(bytes);
    }

    static void give_back(void* memory) {
        if (!memory) return;
        Header* header = static_cast<Header*>(memory) - 1;
        if (header->bytes >= kLarge) {
            Pool& pool = instance();
            const std::lock_guard<std::mutex> lock(pool.mutex_);
            if (pool.kept_ + header->bytes <= pool.most_) {
                pool.free_.emplace(header->bytes, header);
                pool.kept_ += header->bytes;
                return;
            }
        }
        std::free(header);
    }

    static void empty() {
        Pool& pool = instance();
        const std::lock_guard<std::mutex> lock(pool.mutex_);
        for (const auto& block : pool.free_) std::free(block.second);
        pool.free_.clear();
        pool.kept_ = 0;
    }

    // A forked child starts with a pool of its own: the parent's lock may have been held by another thread.
    static void renew() { pointer() = new Pool; }

   private:
    struct alignas(64) Header {
        size_t bytes;
    };
    static constexpr size_t kLarge = size_t(1) << 16, kHuge = size_t(1) << 21;

    static Pool*& pointer() {
        static Pool* pool = new Pool;
        return pool;
    }
    static Pool& instance() { return *pointer(); }

    static void* fresh(size_t bytes) {
        const size_t total = bytes + sizeof(Header), alignment = total >= 2 * kHuge ? kHuge : alignof(Header);
        void* memory = nullptr;
        if (posix_memalign(&memory, alignment, total)) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (alignment == kHuge) madvise(memory, total, MADV_HUGEPAGE);
#endif
        Header* header = static_cast<Header*>(memory);
        header->bytes = bytes;
        return header + 1;
    }

    std::mutex mutex_;
    std::multimap<size_t, Header*> free_;
    size_t kept_ = 0;
    const size_t most_ = size_t(sysconf(_SC_PHYS_PAGES)) / 32 * size_t(sysconf(_SC_PAGESIZE));
};

}  // namespace pointvar
