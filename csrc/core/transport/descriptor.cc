#include "transport/descriptor.h"

#include <pthread.h>

#include <atomic>
#include <set>

namespace adaps {
namespace {

struct Registry {
  std::mutex mutex;  // held during a fork, so that the child gets consistent sets
  std::set<int> open;
  std::atomic<std::uint64_t> generation{0};  // number of forks between the first process and this one
};

Registry& registry() {
  static Registry& instance = []() -> Registry& {
    ::pthread_atfork([] { registry().mutex.lock(); }, [] { registry().mutex.unlock(); },
                     [] {
                       for (const int fd : registry().open) ::close(fd);
                       registry().open.clear();
                       registry().generation.fetch_add(1, std::memory_order_relaxed);
                       registry().mutex.unlock();
                     });
    return *new Registry;  // never destroyed: owners may live longer than static objects
  }();
  return instance;
}

}  // namespace

std::mutex& Descriptor::mutex() { return registry().mutex; }

void Descriptor::adopt(int fd) {
  if (fd < 0) return;
  Registry& all = registry();
  all.open.insert(fd);
  fd_ = fd;
  generation_ = all.generation.load(std::memory_order_relaxed);
}

void Descriptor::reset() {
  if (fd_ < 0) return;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (valid_here()) {
    all.open.erase(fd_);
    ::close(fd_);
  }
  fd_ = -1;
}

bool Descriptor::valid_here() const {
  return generation_ == registry().generation.load(std::memory_order_relaxed);
}

}  // namespace adaps
