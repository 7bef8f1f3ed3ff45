#include "protocol/operation.h"

#include "protocol/decisions.h"

namespace adaps {

void Operation::finish(std::uint32_t count) {
  if (left.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  // Notifies under the lock, because the waiting worker may destroy the operation as soon as `done` is true.
  const std::lock_guard guard(completion.mutex);
  completion.queued_bytes.fetch_sub(decisions().freed(bytes));
  done.store(true, std::memory_order_release);
  completion.changed.notify_all();
}

}  // namespace adaps
