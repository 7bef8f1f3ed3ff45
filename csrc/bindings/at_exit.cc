#include "at_exit.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/log.h"

namespace adaps::bindings {

namespace {

constexpr std::chrono::seconds kSilentWait{30};

struct Served {
  std::mutex mutex;
  std::vector<std::unique_ptr<Node>> nodes;
  pid_t process = 0;
};

Served& the_served() {
  static Served& served = *new Served;  // never destroyed, because it is used at the end of the process
  return served;
}

// Removes and returns the nodes of this process. After a fork, the parent's nodes have no threads in the
// child, so they are released without being destroyed.
std::vector<std::unique_ptr<Node>> take_served() {
  Served& served = the_served();
  const std::lock_guard guard(served.mutex);
  std::vector<std::unique_ptr<Node>> nodes = std::exchange(served.nodes, {});
  if (served.process != getpid()) {
    for (std::unique_ptr<Node>& node : nodes) static_cast<void>(node.release());
    nodes.clear();
  }
  return nodes;
}

// Closes all nodes concurrently, because other processes may close them in any order.
bool close_all(std::vector<std::unique_ptr<Node>>& nodes) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t open = nodes.size();
  bool well = true;
  std::vector<std::thread> threads;
  for (std::unique_ptr<Node>& node : nodes) {
    threads.emplace_back([&] {
      std::string problem;
      try {
        node->close({});
      } catch (const std::exception& error) {
        problem = error.what();
      }
      const std::lock_guard guard(mutex);
      if (!problem.empty()) {
        log_message(LogLevel::kWarning, "at the end of this process: " + problem);
        well = false;
      }
      --open;
      changed.notify_one();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, kSilentWait, [&] { return open == 0; })) {
      log_message(
          LogLevel::kWarning,
          "rank " + std::to_string(nodes.front()->settings().rank) +
              " is done; it serves its rows until the other nodes are done, at most for stall_timeout");
    }
  }
  for (std::thread& thread : threads) thread.join();
  return well;
}

#ifdef __GLIBC__
void at_exit(int status, void*) { end_served_nodes(status == 0); }
#endif

}  // namespace

void serve_until_exit(std::unique_ptr<Node> node) {
  Served& served = the_served();
  const std::lock_guard guard(served.mutex);
  if (served.process != getpid()) {  // this is the first node in this process
    for (std::unique_ptr<Node>& inherited : served.nodes) static_cast<void>(inherited.release());
    served.nodes.clear();
#ifdef __GLIBC__
    // Python's own exit handlers do not receive the exit status. This handler does, and runs after the
    // interpreter has ended.
    if (served.process == 0) on_exit(at_exit, nullptr);
#endif
    served.process = getpid();
  }
  served.nodes.push_back(std::move(node));
}

void end_served_nodes(bool well) {
  std::vector<std::unique_ptr<Node>> nodes = take_served();
  if (nodes.empty() || !well || close_all(nodes)) return;
  std::fflush(nullptr);
  _exit(EXIT_FAILURE);
}

}  // namespace adaps::bindings
