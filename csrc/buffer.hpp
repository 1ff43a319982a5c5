// Uninitialised arrays.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "pool.hpp"

namespace pointvar {

template <class T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(int64_t size) : data_(static_cast<T*>(Pool::take(bytes(size)))), size_(size) {}
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() { Pool::give_back(data_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    int64_t size() const { return size_; }
    T& operator[](int64_t i) { return data_[i]; }
    const T& operator[](int64_t i) const { return data_[i]; }

    // Hands the memory over; it goes back by Pool::give_back.
    T* release() {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }

   private:
    static size_t bytes(int64_t size) {
        if (size < 0 || size > (int64_t(1) << 48)) throw std::bad_alloc();  // nor may the product overflow
        return size_t(size > 0 ? size : 1) * sizeof(T);
    }

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
