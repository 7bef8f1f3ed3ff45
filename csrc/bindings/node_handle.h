// What Python holds of a node: checks that it is alive before every call, and takes it down safely.
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

// What keeps the values of a worker's asynchronous calls. Tickets rise: the oldest come first.
using HeldArrays = std::map<Ticket, py::object>;

// A node together with the calls that run on it. Members are touched with the GIL held, unless they say
// otherwise.
class NodeHandle : public std::enable_shared_from_this<NodeHandle> {
 public:
  NodeHandle(std::vector<TableSpec> tables, const Settings& settings);
  ~NodeHandle();
  NodeHandle(const NodeHandle&) = delete;
  NodeHandle& operator=(const NodeHandle&) = delete;

  std::string listen(const std::string& host, std::uint16_t port);
  void connect(const std::vector<std::string>& addresses, const ConnectOptions& options);

  // Throws IndexError for an unknown worker. One handle for each worker, however often it is asked for.
  std::shared_ptr<WorkerHandle> worker(int index);

  // The live node; throws Failure if it is closed or belongs to the parent process of a fork.
  Node& node();
  const Settings& settings() const { return settings_; }
  std::uint64_t num_keys() const { return num_keys_; }
  bool closed() const { return node_ == nullptr; }

  // Those of the end, once the node is closed.
  std::map<std::string, double> stats();
  std::map<std::string, double> table_stats(std::size_t table);
  std::vector<TraceEvent> trace_events();

  // Collective. Whatever happens, the node is gone afterwards.
  void close();
  // At once and alone: calls that still block fail, the other nodes see that they lost a peer.
  void abandon();
  // A node that is connected with others goes on serving them until the process ends, and ends with them if
  // it ends well; any other one ends now. Calls that still block fail.
  void leave_unclosed();

  // A call of some thread on the node: while one exists, the node does. Created and destroyed with the GIL
  // held.
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

  // Makes a blocked call raise what a signal handler raised (Ctrl-C), or end because the node is being
  // abandoned. Needs no GIL.
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
      held_;  // by worker; here because a worker's handle may be dropped before its calls end
  std::map<std::string, double> final_stats_;
  std::vector<std::map<std::string, double>> final_table_stats_;
  std::vector<TraceEvent> final_trace_;
  bool closing_ = false;
  bool connected_ = false;
  std::atomic<bool> abandoned_{false};  // any thread
  std::atomic<int> calls_{0};           // any thread
};

}  // namespace adaps::bindings
