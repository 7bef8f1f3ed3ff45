#include "worker_handle.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"
#include "protocol/local_access.h"

namespace adaps::bindings {

namespace {

template <typename Function>
std::invoke_result_t<Function> without_gil(Function function) {
  const py::gil_scoped_release release;
  return function();
}

}  // namespace

WorkerHandle::WorkerHandle(std::shared_ptr<NodeHandle> node, Worker& worker, int index, HeldArrays& held)
    : node_(std::move(node)), worker_(worker), index_(index), held_(held) {
  worker_.set_interrupt_check([handle = node_.get()] { handle->check_interrupt(); });
}

WorkerHandle::ExclusiveCall::ExclusiveCall(WorkerHandle& handle) : handle_(handle), call_(*handle.node_) {
  const std::thread::id own = std::this_thread::get_id();
  std::thread::id caller{};
  if (handle.caller_.compare_exchange_strong(caller, own, std::memory_order_acquire)) return;
  throw Failure("worker " + std::to_string(handle.index_) +
                (caller == own
                     ? " is in a call of this thread, which a signal handler interrupts: let the handler "
                       "set a flag, and call the worker when the first call has ended"
                     : " is in a call of another thread: give each thread a worker of its own, with "
                       "adaps.Node(..., workers=...)"));
}

std::optional<Ticket> WorkerHandle::access_rows(OperationKind kind, py::handle keys, py::handle values,
                                                const char* argument, bool asynchronous) {
  const bool writes = is_write(kind);
  const Array floats = Array::of_float32(values, argument, writes ? Access::kRead : Access::kWrite);
  // The keys are copied during the call, so only the values must be kept alive.
  const Array given = Array::of_int64(keys, "keys");
  float* const out = writes ? nullptr : floats.floats();
  const float* const in = writes ? floats.floats() : nullptr;
  return access(floats, asynchronous,
                [&] { return worker_.run(kind, given.keys(), out, in, floats.size(), asynchronous); });
}

std::optional<Ticket> WorkerHandle::rows_of(const NodeTable& table, py::handle ids, py::handle rows,
                                            bool asynchronous, bool create) {
  const Table& of = table.of(*node_);
  const Array given = Array::of_int64(ids, "ids");
  const Array found = Array::of_int64(rows, "rows_out", Access::kWrite);
  return access(found, asynchronous, [&] {
    return worker_.rows_of(of, given.int64(), found.mutable_int64(), asynchronous, create);
  });
}

py::object WorkerHandle::used_ids(const NodeTable& table) {
  const Table& of = table.of(*node_);
  const std::vector<std::int64_t> ids = blocking([&] { return worker_.used_ids(of); });
  return py::array_t<std::int64_t>(static_cast<py::ssize_t>(ids.size()), ids.data());
}

bool WorkerHandle::changed(py::handle keys, py::handle seen) {
  const Array array = Array::of_int64(keys, "keys");
  const Array noted = Array::of_int64(seen, "seen", Access::kWrite);
  return blocking([&] { return worker_.changed(array.keys(), noted.mutable_int64()); });
}

void WorkerHandle::pull_rows(const NodeTable& table, py::handle ids, py::handle out, bool idle_rows) {
  const Table& of = table.of(*node_);
  const Array values = Array::of_float32(out, "out", Access::kWrite);
  const std::vector<Key> keys = table.keys_of(Array::of_int64(ids, "ids").int64());
  blocking([&] {
    if (idle_rows) catch_up(node_->node().context(), of, keys);
    worker_.pull(keys, values.floats(), values.size(), false);
  });
}

void WorkerHandle::push_sums(const py::sequence& parts) {
  struct Part {
    const Table& table;
    std::vector<Key> keys;
    Array gradients;
    py::object held;  // has the memory of the gradients
  };
  std::vector<Part> given;
  given.reserve(parts.size());
  for (const py::object part : parts) {
    auto [table, ids, gradients] = py::cast<std::tuple<const NodeTable&, py::object, py::object>>(part);
    const Array array = Array::of_float32(gradients, "gradients", Access::kRead);
    given.push_back(
        {table.of(*node_), table.keys_of(Array::of_int64(ids, "ids").int64()), array, std::move(gradients)});
  }
  blocking([&] {
    for (const auto& [table, keys, gradients, held] : given)
      worker_.push_sums(table, keys, gradients.floats(), gradients.size());
  });
}

namespace {

// Returns the steps of a table's rows, whose values are in one array. `held` receives the objects that must
// live as long as the steps.
std::vector<RowStep> steps_of(const NodeTable& table, const Array& whole, const py::sequence& parts,
                              std::vector<py::object>& held) {
  std::vector<RowStep> steps;
  for (const py::object part : parts) {
    auto [row, object] = py::cast<std::tuple<std::uint64_t, py::object>>(part);
    const Array gradient = Array::of_float32(object, "gradient", Access::kRead);
    const std::size_t begin = row >= table.rows() ? whole.size() : row * table.length();
    if (begin > whole.size() || gradient.size() > whole.size() - begin)
      throw py::value_error("a gradient of " + std::to_string(gradient.size()) + " values from row " +
                            std::to_string(row) + " on does not fit into values, which holds " +
                            std::to_string(whole.size()));
    steps.push_back({table.first_key() + row, whole.floats() + begin, gradient.floats(), gradient.size()});
    held.push_back(std::move(object));
  }
  return steps;
}

void require_whole(const Array& array, const char* argument, std::uint64_t needed) {
  if (array.size() != needed)
    throw py::value_error(std::string(argument) + " holds " + std::to_string(array.size()) +
                          " values, but all rows of the table need " + std::to_string(needed));
}

}  // namespace

void WorkerHandle::step_rows(const NodeTable& table, py::handle values, const py::sequence& parts) {
  const Array whole = Array::of_float32(values, "values", Access::kWrite);
  std::vector<py::object> held;
  const std::vector<RowStep> steps = steps_of(table, whole, parts, held);
  blocking([&] { worker_.step_rows(steps); });
}

void WorkerHandle::step_copies(const NodeTable& table, py::handle values, py::handle pulled, py::handle seen,
                               const py::sequence& parts, float scale) {
  const Table& of = table.of(*node_);
  const Array whole = Array::of_float32(values, "values", Access::kWrite);
  const Array before = Array::of_float32(pulled, "pulled", Access::kWrite);
  const Array looked = Array::of_int64(seen, "seen", Access::kWrite);
  require_whole(whole, "values", table.rows() * table.length());
  require_whole(before, "pulled", table.rows() * table.length());
  require_whole(looked, "seen", table.rows());
  std::vector<py::object> held;
  const std::vector<RowStep> steps = steps_of(table, whole, parts, held);
  const RowCopies copies{of, whole.floats(), before.floats(), looked.mutable_int64().data()};
  blocking([&] { worker_.step_copies(copies, steps, scale); });
}

void WorkerHandle::intent(py::handle keys, Clock start, std::optional<Clock> end) {
  const Clock stop = end.value_or(std::min(start, kMaxClock) + 1);
  const Array array = Array::of_int64(keys, "keys");
  blocking([&] { worker_.intent(array.keys(), start, stop); });
}

Ticket WorkerHandle::prepare_sample(const NodeTable& table, std::int64_t n, Clock start,
                                    std::optional<Clock> end) {
  if (n < 1) throw py::value_error("n is " + std::to_string(n) + "; a sample needs at least 1 row");
  const Clock stop = end.value_or(std::min(start, kMaxClock) + 1);
  const Table& of = table.of(*node_);
  return blocking([&] { return worker_.prepare_sample(of, static_cast<std::size_t>(n), start, stop); });
}

std::optional<Ticket> WorkerHandle::pull_sample(Ticket sample, py::handle rows, const py::object& values,
                                                bool asynchronous) {
  const Array drawn = Array::of_int64(rows, "rows_out", Access::kWrite);
  if (values.is_none()) {
    blocking([&] { return worker_.pull_sample(sample, drawn.mutable_int64(), nullptr, 0, false); });
    return std::nullopt;
  }
  const Array read = Array::of_float32(values, "values_out", Access::kWrite);
  return access(read, asynchronous, [&] {
    return worker_.pull_sample(sample, drawn.mutable_int64(), read.floats(), read.size(), asynchronous);
  });
}

void WorkerHandle::advance_clock() {
  const ExclusiveCall call(*this);
  worker_.advance_clock();
}

void WorkerHandle::end_uses() {
  const ExclusiveCall call(*this);
  worker_.end_uses();
}

void WorkerHandle::skip_to_clock(Clock clock) {
  const ExclusiveCall call(*this);
  worker_.skip_to_clock(clock);
}

Clock WorkerHandle::current_clock() {
  const NodeHandle::Call call(*node_);
  return worker_.current_clock();
}

bool WorkerHandle::is_done(Ticket ticket) {
  const ExclusiveCall call(*this);
  const bool done = worker_.is_done(ticket);
  if (done) held_.erase(ticket);
  return done;
}

void WorkerHandle::wait(Ticket ticket) {
  const ExclusiveCall call(*this);
  without_gil([&] { worker_.wait(ticket); });
  held_.erase(ticket);
}

void WorkerHandle::waitall() {
  const ExclusiveCall call(*this);
  without_gil([&] { worker_.waitall(); });
  held_.clear();
}

void WorkerHandle::wait_intent(py::handle keys) {
  const Array array = Array::of_int64(keys, "keys");
  blocking([&] { worker_.wait_intent(array.keys()); });
}

std::optional<Ticket> WorkerHandle::wait_sync(bool asynchronous) {
  const Ticket ticket = blocking([&] { return worker_.wait_sync(asynchronous); });
  if (!asynchronous) return std::nullopt;
  return ticket;
}

void WorkerHandle::barrier() {
  blocking([&] { worker_.barrier(); });
}

std::optional<NodeId> WorkerHandle::agree(bool well) {
  return blocking([&] { return worker_.agree(well); });
}

void WorkerHandle::begin_setup() { barrier(); }

void WorkerHandle::end_setup() {
  blocking([&] {
    worker_.wait_sync();
    worker_.barrier();
    worker_.wait_sync();
  });
}

void WorkerHandle::finalize() {
  blocking([&] { worker_.finalize(); });
}

template <typename Function>
std::invoke_result_t<Function> WorkerHandle::blocking(Function function) {
  const ExclusiveCall call(*this);
  return without_gil(function);
}

template <typename Function>
std::optional<Ticket> WorkerHandle::access(const Array& array, bool asynchronous, Function function) {
  const ExclusiveCall call(*this);
  if (!asynchronous) {
    without_gil(function);
    return std::nullopt;
  }
  py::object keeper = array.keeper();
  const Ticket ticket = without_gil(function);
  if (ticket != kDone) held_.emplace(ticket, std::move(keeper));
  release_finished();  // may throw, so it follows
  return ticket;
}

// Releases the arrays of completed calls, because a caller may never wait for them. Checks a few arrays per
// call, more than each call adds. Therefore most of the kept arrays belong to incomplete calls, even if an
// old call takes much longer than later ones.
void WorkerHandle::release_finished() {
  constexpr int kLooks = 4;
  for (int i = 0; i < kLooks && !held_.empty(); ++i) {
    auto held = held_.lower_bound(next_look_);
    if (held == held_.end()) held = held_.begin();
    next_look_ = held->first + 1;
    if (worker_.is_done(held->first)) held_.erase(held);
  }
}

}  // namespace adaps::bindings
