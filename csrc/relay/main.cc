// adabench-relay NODES NETWORK: network namespaces joined by links of that latency and bandwidth, as long as
// standard input is open. The first line on standard output names the namespaces, in the order of the nodes.

#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "links.h"

namespace {

constexpr std::size_t kMostNodes = 250;

std::size_t parse_nodes(const char* text) {
  std::size_t nodes = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), nodes);
  if (error != std::errc{} || *end != '\0' || nodes < 1 || nodes > kMostNodes) {
    throw std::invalid_argument(std::string("\"") + text + "\" is no number of nodes: use 1 to " +
                                std::to_string(kMostNodes));
  }
  return nodes;
}

void run(std::size_t nodes, adaps::LinkShape shape) {
  // The kernel would otherwise let timers be late by 50 µs.
  prctl(PR_SET_TIMERSLACK, 1);
  std::vector<relay::End> ends;
  for (std::size_t node = 0; node < nodes; ++node) ends.push_back(relay::make_end(node));
  for (const auto& end : ends) {
    std::printf("/proc/%d/fd/%d%s", getpid(), end.space.get(), &end == &ends.back() ? "\n" : " ");
  }
  std::fflush(stdout);
  relay::Links(std::move(ends), shape).run(STDIN_FILENO);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: adabench-relay NODES NETWORK\n");
    return 2;
  }
  try {
    const std::size_t nodes = parse_nodes(arguments[1]);
    run(nodes, adaps::parse_link_shape(arguments[2]));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
