#include "store/reserved.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace adaps {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Minimum size for huge pages. With less memory, the unused part of the last page would be significant.
constexpr std::size_t kFewestOfHugePages = std::size_t{4} << 20;

std::size_t rounded_up(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

void* map(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return memory;
  throw std::runtime_error("cannot reserve " + std::to_string(bytes) +
                           " bytes of address space for the tables: " + std::strerror(errno));
}

// Maps memory that starts at a multiple of the huge-page size. With huge pages, accesses to random rows of a
// large table cause fewer TLB misses. The kernel uses a huge page only if the mapping covers it completely.
void* map_huge(std::size_t bytes) {
  auto* const first = static_cast<char*>(map(bytes + kHugePage));
  const std::size_t before =
      rounded_up(reinterpret_cast<std::uintptr_t>(first)) - reinterpret_cast<std::uintptr_t>(first);
  if (before > 0) munmap(first, before);
  munmap(first + before + bytes, kHugePage - before);
  madvise(first + before, bytes, MADV_HUGEPAGE);
  return first + before;
}

}  // namespace

Reserved::Reserved(std::size_t bytes)
    : bytes_(bytes < kFewestOfHugePages ? std::max<std::size_t>(bytes, 1) : rounded_up(bytes)),
      memory_(bytes < kFewestOfHugePages ? map(bytes_) : map_huge(bytes_)) {}

Reserved::~Reserved() { munmap(memory_, bytes_); }

}  // namespace adaps
