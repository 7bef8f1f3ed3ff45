// The Python object of a node. It checks before every call that the node is alive, and closes it safely.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "node/node.h"

namespace adaps::bindings {

namespace py = pybind11;

class WorkerHandle;

// Arrays of a worker's asynchronous calls, by ticket. Tickets ascend, so the oldest calls come first.
using HeldArrays = std::map<Ticket, py::object>;

// A node and the calls that run on it. Unless stated otherwise, members are accessed only with the GIL held.
class NodeHandle : public std::enable_shared_from_this<NodeHandle> {
 public:
  NodeHandle(std::vector<TableSpec> tables, const Settings& settings);
  ~NodeHandle();
  NodeHandle(const NodeHandle&) = delete;
  NodeHandle& operator=(const NodeHandle&) = delete;

  std::string listen(const std::string& host, std::uint16_t port);
  void connect(const std::vector<std::string>& addresses, const ConnectOptions& options);

  // Returns the worker's handle, which is always the same object. Throws IndexError for an unknown worker.
  std::shared_ptr<WorkerHandle> worker(int index);

  // Returns the live node. Throws Failure if it is closed or belongs to the parent process of a fork.
  Node& node();
  const Settings& settings() const { return settings_; }
  std::uint64_t num_keys() const { return num_keys_; }
  bool closed() const { return node_ == nullptr; }

  // Counters and trace. If the node is closed, these are its last ones.
  std::map<std::string, double> stats();
  std::map<std::string, double> table_stats(std::size_t table);
  std::vector<TraceEvent> trace_events();

  // Closes the node together with all other nodes. The node is gone afterwards, even if an error occurs.
  void close();
  // Ends the node at once, without the other nodes. Blocked calls fail, and the other nodes detect the loss
  // of a peer.
  void abandon();
  // Called for a node that was not closed. A connected node continues to serve the others until the process
  // ends, and ends together with them if the exit status is 0. Any other node ends now. Blocked calls fail.
  void leave_unclosed();

  // A call of a thread on the node. The node exists at least as long as this object. The GIL must be held
  // when it is created and destroyed.
  class Call {
   public:
    explicit Call(NodeHandle& handle);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Whether this thread is in a call on the node, which a signal handler has interrupted.
    static bool is_under_way(const NodeHandle& handle);

   private:
    NodeHandle& handle_;
    const Call* const outer_;  // the call of this thread that this one interrupts
  };

  // Makes a blocked call raise the exception of a signal handler (Ctrl-C), or fail because the node is being
  // abandoned. Does not require the GIL.
  void check_interrupt() const;

 private:
  void check_process() const;
  void check_not_in_call() const;
  void end_calls();
  void keep_figures();
  void destroy();

  const Settings settings_;
  const std::uint64_t forks_;
  std::unique_ptr<Node> node_;
  std::uint64_t num_keys_ = 0;
  std::vector<std::weak_ptr<WorkerHandle>> workers_;
  std::vector<HeldArrays>
      held_;  // by worker; not in the worker's handle, which may be destroyed before its calls end
  std::map<std::string, double> final_stats_;
  std::vector<std::map<std::string, double>> final_table_stats_;
  std::vector<TraceEvent> final_trace_;
  bool closing_ = false;
  bool connected_ = false;
  std::atomic<bool> abandoned_{false};  // accessed by any thread
  std::atomic<int> calls_{0};           // accessed by any thread
};

}  // namespace adaps::bindings
