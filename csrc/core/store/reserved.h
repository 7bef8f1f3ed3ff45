// Memory that is reserved at once and becomes resident page by page.
#pragma once

#include <cstddef>

namespace adaps {

// Zeroed memory. Only pages that were accessed are resident. Throws std::runtime_error if the process's
// address space has no range of this size.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes);
  ~Reserved();
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  void* get() const { return memory_; }

 private:
  const std::size_t bytes_;
  void* memory_;
};

}  // namespace adaps
