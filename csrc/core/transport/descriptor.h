// File descriptors of this library: closed when their owner is destroyed, and in every forked child.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <utility>

namespace adaps {

// A forked child (a data-loader worker, say) that kept our sockets open would hide this node's death from its
// peers. So every child closes them right after the fork; the owners that it inherited do nothing.
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

  // `create` is a system call that returns a descriptor, or -1 and sets errno; no fork can come between it
  // and its registration, so it must not block. Empty, with errno, when it fails.
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
  // False in a child that was forked after the descriptor was made.
  bool valid_here() const;

 private:
  static std::mutex& mutex();
  void adopt(int fd);

  int fd_ = -1;
  std::uint64_t generation_ = 0;
};

// As Descriptor::create, but a failure is an exception that names the call.
template <class Create>
Descriptor create_or_throw(const char* name, Create&& create) {
  Descriptor made = Descriptor::create(std::forward<Create>(create));
  if (!made) throw std::system_error(errno, std::generic_category(), name);
  return made;
}

}  // namespace adaps
