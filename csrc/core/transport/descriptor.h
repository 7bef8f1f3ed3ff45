// File descriptors of this library. They are closed when their owner is destroyed, and in every forked child.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <utility>

namespace adaps {

// Owns a file descriptor. If a forked child, for example a data-loader worker, kept the sockets open, peers
// would not notice the death of this node. Therefore every child closes all descriptors directly after the
// fork. The inherited Descriptor objects of a child do nothing.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    fd_ = std::exchange(other.fd_, -1);
    generation_ = other.generation_;
    return *this;
  }

  // Calls `create`, a system call that returns a descriptor, or -1 and sets errno. No fork can happen between
  // the call and the registration of its descriptor, so the call must not block. If it fails, the result is
  // empty and errno is set.
  template <class Create>
  static Descriptor create(Create&& create) {
    const std::lock_guard lock(mutex());
    Descriptor made;
    made.adopt(create());
    return made;
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();
  // Returns false in a child that was forked after the descriptor was created.
  bool valid_here() const;

 private:
  static std::mutex& mutex();
  void adopt(int fd);

  int fd_ = -1;
  std::uint64_t generation_ = 0;
};

// Like Descriptor::create, but throws an exception that names the call if it fails.
template <class Create>
Descriptor create_or_throw(const char* name, Create&& create) {
  Descriptor made = Descriptor::create(std::forward<Create>(create));
  if (!made) throw std::system_error(errno, std::generic_category(), name);
  return made;
}

}  // namespace adaps
