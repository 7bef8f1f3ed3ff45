// A pool of objects with stable addresses and 26-bit names.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "common/prefetch.h"
#include "common/spin_lock.h"

namespace adaps {

// Number of bits of a name.
inline constexpr int kNameBits = 26;

// allocate() and release() may be called from any thread. at() takes no lock. Therefore a thread that passes
// a name to another thread must synchronize with it; in this code, the key's lock does this. The name 0 is
// never used.
template <typename T>
class StablePool {
 public:
  std::uint32_t allocate() {
    const std::lock_guard guard(lock_);
    ++in_use_;
    if (!free_.empty()) {
      const std::uint32_t name = free_.back();
      free_.pop_back();
      return name;
    }
    const Place place = place_of(unused_);
    if (place.chunk == kChunks)
      throw std::length_error("more than 67 million keys are shared or dirty at once");
    if (chunks_[place.chunk] == nullptr) chunks_[place.chunk] = std::make_unique<T[]>(kFirst << place.chunk);
    return unused_++;
  }

  void release(std::uint32_t name) {
    at(name) = T{};
    const std::lock_guard guard(lock_);
    --in_use_;
    free_.push_back(name);
  }

  T& at(std::uint32_t name) {
    const Place place = place_of(name);
    return chunks_[place.chunk][place.offset];
  }

  // Fetches an object into the processor's cache. The name is a hint: it may be outdated or arbitrary.
  [[gnu::always_inline]] void prefetch(std::uint32_t name) const {
    if (const T* object = find(name)) prefetch_line(object);
  }

  // Returns the object with the name, or nullptr if no memory was allocated for it. A reader without a lock
  // may have an outdated name, so the object may have been released or reused: it is only a hint.
  const T* find(std::uint32_t name) const {
    const Place place = place_of(name);
    if (name == 0 || place.chunk >= kChunks || chunks_[place.chunk] == nullptr) return nullptr;
    return chunks_[place.chunk].get() + place.offset;
  }

  std::size_t in_use() const {
    const std::lock_guard guard(lock_);
    return in_use_;
  }

 private:
  // Chunk i contains 64 * 2^i objects, so that a small pool takes little memory.
  static constexpr std::size_t kFirst = 64;
  static constexpr std::size_t kChunks = 20;
  static_assert(kFirst << kChunks == std::size_t{1} << kNameBits);
  struct Place {
    std::size_t chunk;
    std::size_t offset;
  };
  static Place place_of(std::uint32_t name) {
    const std::size_t position = name + kFirst;
    const auto chunk = static_cast<std::size_t>(std::bit_width(position) - std::bit_width(kFirst));
    return {chunk, position - (kFirst << chunk)};
  }

  mutable SpinLock lock_;
  std::vector<std::uint32_t> free_;
  std::uint32_t unused_ = 1;
  std::size_t in_use_ = 0;
  std::array<std::unique_ptr<T[]>, kChunks> chunks_;
};

}  // namespace adaps
