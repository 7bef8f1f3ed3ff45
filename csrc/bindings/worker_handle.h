// The Python object of a worker. It accepts arrays, keeps those of asynchronous calls alive, and releases the
// GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>

#include "arrays.h"
#include "node/worker.h"
#include "node_handle.h"
#include "node_table.h"

namespace adaps::bindings {

class WorkerHandle {
 public:
  WorkerHandle(std::shared_ptr<NodeHandle> node, Worker& worker, int index, HeldArrays& held);

  // Makes a call that reads or writes one row of `values` for each key. Errors call the array `argument`.
  std::optional<Ticket> access_rows(OperationKind kind, py::handle keys, py::handle values,
                                    const char* argument, bool asynchronous);
  std::optional<Ticket> rows_of(const NodeTable& table, py::handle ids, py::handle rows, bool asynchronous,
                                bool create);
  py::object used_ids(const NodeTable& table);
  bool changed(py::handle keys, py::handle seen);
  void pull_rows(const NodeTable& table, py::handle ids, py::handle out, bool idle_rows);
  void push_sums(const py::sequence& parts);
  void step_rows(const NodeTable& table, py::handle values, const py::sequence& parts);
  void step_copies(const NodeTable& table, py::handle values, py::handle pulled, py::handle seen,
                   const py::sequence& parts, float scale);

  void intent(py::handle keys, Clock start, std::optional<Clock> end);
  void wait_intent(py::handle keys);
  Ticket prepare_sample(const NodeTable& table, std::int64_t n, Clock start, std::optional<Clock> end);
  std::optional<Ticket> pull_sample(Ticket sample, py::handle rows, const py::object& values,
                                    bool asynchronous);
  void advance_clock();
  void end_uses();
  void skip_to_clock(Clock clock);
  Clock current_clock();

  bool is_done(Ticket ticket);
  void wait(Ticket ticket);
  void waitall();
  std::optional<Ticket> wait_sync(bool asynchronous);
  void barrier();
  std::optional<NodeId> agree(bool well);
  void begin_setup();
  void end_setup();
  void finalize();

 private:
  // A call of this worker: a second one at the same time is refused.
  class ExclusiveCall {
   public:
    explicit ExclusiveCall(WorkerHandle& handle);
    ~ExclusiveCall() { handle_.caller_.store({}, std::memory_order_release); }
    ExclusiveCall(const ExclusiveCall&) = delete;
    ExclusiveCall& operator=(const ExclusiveCall&) = delete;

   private:
    WorkerHandle& handle_;
    const NodeHandle::Call call_;
  };

  template <typename Function>
  std::invoke_result_t<Function> blocking(Function function);
  // Makes a call that may be asynchronous, and keeps `array` alive until it is complete.
  template <typename Function>
  std::optional<Ticket> access(const Array& array, bool asynchronous, Function function);
  void release_finished();

  const std::shared_ptr<NodeHandle> node_;
  // Both exist during each call, see NodeHandle::Call.
  Worker& worker_;
  const int index_;
  HeldArrays& held_;
  Ticket next_look_ = 0;                   // the ticket from which release_finished continues
  std::atomic<std::thread::id> caller_{};  // the thread that is in a call of this worker
};

}  // namespace adaps::bindings
