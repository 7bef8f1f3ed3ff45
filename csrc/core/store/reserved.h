// Memory that is reserved at once and taken page by page.
#pragma once

#include <cstddef>

namespace adaps {

// Zeroed memory of which only touched pages are resident. Throws std::runtime_error if there is no room for
// it among the process's addresses.
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
