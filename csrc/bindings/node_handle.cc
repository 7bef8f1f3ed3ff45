#include "node_handle.h"

#include <pthread.h>

#include <utility>

#include "at_exit.h"
#include "errors.h"
#include "protocol/context.h"
#include "worker_handle.h"

namespace adaps::bindings {

namespace {

// Number of forks between the process that loaded the module and this process.
std::atomic<std::uint64_t> forks{0};
const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

thread_local const NodeHandle::Call* innermost_call = nullptr;  // of this thread

}  // namespace

NodeHandle::NodeHandle(std::vector<TableSpec> tables, const Settings& settings)
    : settings_(settings),
      forks_(forks.load(std::memory_order_relaxed)),
      workers_(static_cast<std::size_t>(settings.workers)),
      held_(static_cast<std::size_t>(settings.workers)) {
  const py::gil_scoped_release release;
  node_ = std::make_unique<Node>(std::move(tables), settings);
  num_keys_ = node_->tables().num_keys();
}

NodeHandle::~NodeHandle() {
  if (forks.load(std::memory_order_relaxed) != forks_) {
    // The threads of the node exist only in the parent process, so there is nothing to end here.
    static_cast<void>(node_.release());
    return;
  }
  leave_unclosed();
}

std::string NodeHandle::listen(const std::string& host, std::uint16_t port) {
  const Call call(*this);
  Node& node = *node_;
  const py::gil_scoped_release release;
  try {
    return node.listen(host, port);
  } catch (const std::runtime_error& error) {
    throw Failure(error.what());
  }
}

void NodeHandle::connect(const std::vector<std::string>& addresses, const ConnectOptions& options) {
  const Call call(*this);
  Node& node = *node_;
  const py::gil_scoped_release release;
  try {
    node.connect(addresses, options, [this] { check_interrupt(); });
    connected_ = true;
  } catch (const py::error_already_set&) {
    throw;
  } catch (const PeerLost&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Failure(error.what());
  }
}

std::shared_ptr<WorkerHandle> NodeHandle::worker(int index) {
  Node& live = node();
  if (index < 0 || index >= settings_.workers) {
    throw py::index_error("worker " + std::to_string(index) + " does not exist: this node has " +
                          std::to_string(settings_.workers) + " (0 to " +
                          std::to_string(settings_.workers - 1) + ")");
  }
  const auto i = static_cast<std::size_t>(index);
  auto& known = workers_[i];
  auto handle = known.lock();
  if (!handle) {
    handle = std::make_shared<WorkerHandle>(shared_from_this(), live.worker(index), index, held_[i]);
    known = handle;
  }
  return handle;
}

Node& NodeHandle::node() {
  check_process();
  if (node_ == nullptr || closing_) throw Failure("the node is closed");
  return *node_;
}

std::map<std::string, double> NodeHandle::stats() {
  check_process();
  return node_ == nullptr ? final_stats_ : node_->stats();
}

std::map<std::string, double> NodeHandle::table_stats(std::size_t table) {
  check_process();
  return node_ == nullptr ? final_table_stats_.at(table) : node_->table_stats(table);
}

std::vector<TraceEvent> NodeHandle::trace_events() {
  check_process();
  return node_ == nullptr ? final_trace_ : node_->trace_events();
}

void NodeHandle::close() {
  check_process();
  if (node_ == nullptr || closing_) return;
  check_not_in_call();
  if (calls_.load() != 0) {
    throw Failure(
        "the node cannot be closed while another thread is in one of its calls: join the worker threads "
        "first");
  }
  closing_ = true;
  try {
    const py::gil_scoped_release release;
    node_->close([this] { check_interrupt(); });
  } catch (...) {
    destroy();
    throw;
  }
  destroy();
}

void NodeHandle::abandon() {
  if (forks.load(std::memory_order_relaxed) != forks_ || node_ == nullptr || closing_) return;
  check_not_in_call();
  end_calls();
  destroy();
}

void NodeHandle::leave_unclosed() {
  if (forks.load(std::memory_order_relaxed) != forks_ || node_ == nullptr || closing_) return;
  if (!connected_ || node_->context().failed.load()) return abandon();
  end_calls();
  keep_figures();
  for (int i = 0; i < settings_.workers; ++i) node_->worker(i).set_interrupt_check({});
  // Asynchronous calls may use these arrays until the process ends.
  static_cast<void>(new std::vector<HeldArrays>(std::move(held_)));
  serve_until_exit(std::move(node_));
}

NodeHandle::Call::Call(NodeHandle& handle) : handle_(handle), outer_(innermost_call) {
  handle.node();
  handle.calls_.fetch_add(1);
  innermost_call = this;
}

NodeHandle::Call::~Call() {
  innermost_call = outer_;
  handle_.calls_.fetch_sub(1);
  if (handle_.abandoned_.load()) handle_.calls_.notify_all();
}

bool NodeHandle::Call::is_under_way(const NodeHandle& handle) {
  const Call* call = innermost_call;
  while (call != nullptr && &call->handle_ != &handle) call = call->outer_;
  return call != nullptr;
}

void NodeHandle::check_interrupt() const {
  if (abandoned_.load(std::memory_order_relaxed)) throw Failure("the node was closed while this call waited");
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void NodeHandle::check_process() const {
  if (forks.load(std::memory_order_relaxed) != forks_) {
    throw Failure(
        "this node belongs to the parent process: a forked child cannot use it (make the node after the "
        "fork, or start "
        "processes with the 'spawn' method)");
  }
}

// The end of a node waits for its calls, so a thread that ended the node within a call would wait for itself.
void NodeHandle::check_not_in_call() const {
  if (Call::is_under_way(*this))
    throw Failure(
        "the node cannot be closed within one of its calls, which a signal handler interrupts: let the "
        "handler "
        "set a flag or raise, and close the node when the call has ended");
}

// Makes calls that block fail, and waits for their end.
void NodeHandle::end_calls() {
  closing_ = true;
  abandoned_.store(true);
  const py::gil_scoped_release release;
  for (int calls = calls_.load(); calls != 0; calls = calls_.load()) calls_.wait(calls);
}

// Keeps the counters and the trace, which may be read after the node is gone.
void NodeHandle::keep_figures() {
  final_stats_ = node_->stats();
  final_table_stats_.clear();
  for (std::size_t i = 0; i < node_->tables().size(); ++i)
    final_table_stats_.push_back(node_->table_stats(i));
  final_trace_ = node_->trace_events();
}

// Ends the node's threads and frees its tables.
void NodeHandle::destroy() {
  keep_figures();
  std::unique_ptr<Node> ending = std::move(node_);
  {
    const py::gil_scoped_release release;
    ending.reset();
  }
  held_.clear();
}

}  // namespace adaps::bindings
