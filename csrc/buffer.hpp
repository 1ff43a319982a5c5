// Uninitialised arrays. Large ones ask for huge pages: fresh small pages cost more than the work in them.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

namespace pointvar {

template <class T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(int64_t size) : size_(size) {
        constexpr size_t huge = size_t(1) << 21;
        const size_t bytes = size_t(size > 0 ? size : 1) * sizeof(T);
        const size_t alignment = bytes >= 2 * huge ? huge : 64;
        void* memory = nullptr;
        if (posix_memalign(&memory, alignment, bytes)) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        if (alignment == huge) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        data_ = static_cast<T*>(memory);
    }
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() { std::free(data_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    int64_t size() const { return size_; }
    T& operator[](int64_t i) { return data_[i]; }
    const T& operator[](int64_t i) const { return data_[i]; }

    // Hands the memory over; it is to be freed with std::free.
    T* release() {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }

   private:
    T* data_ = nullptr;
    int64_t size_ = 0;
};

// Memory that grows without moving what it holds.
template <class T>
class Arena {
   public:
    // Room for `count` items; what is not kept by `keep` is given again.
    T* room(int64_t count) {
        if (chunks_.empty() || used_ + count > chunks_.back().size()) {
            chunks_.emplace_back(count > (1 << 20) ? count : (1 << 20));
            used_ = 0;
        }
        return chunks_.back().data() + used_;
    }
    void keep(int64_t count) { used_ += count; }

   private:
    std::vector<Buffer<T>> chunks_;
    int64_t used_ = 0;
};

}  // namespace pointvar
