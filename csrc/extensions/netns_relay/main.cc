// Usage: adabench-relay NODES NETWORK. Creates network namespaces that are connected by links with the
// latency and bandwidth of NETWORK. They exist as long as standard input is open. The first line on standard
// output has the names of the namespaces, in the order of the nodes. NETWORK may end with a colon and a link
// that is slower than the others by a factor: lan:1-2/10.

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "links.h"

namespace {

constexpr std::size_t kMostNodes = 250;

std::size_t parse_nodes(const char* text) {
  std::size_t nodes = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), nodes);
  if (error != std::errc{} || *end != '\0' || nodes < 1 || nodes > kMostNodes) {
    throw std::invalid_argument(std::string("\"") + text + "\" is not a number of nodes: use 1 to " +
                                std::to_string(kMostNodes));
  }
  return nodes;
}

struct Network {
  adaps::LinkShape shape;
  std::optional<relay::SlowPair> slow;
};

// Parses a number at the beginning of a text, and the characters `then` that must follow it, and removes
// both.
template <typename Number>
bool take(std::string_view& text, Number& number, std::string_view then) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(then)) return false;
  text.remove_prefix(then.size());
  return true;
}

Network parse_network(const std::string& text, std::size_t nodes) {
  const std::size_t colon = text.find(':');
  Network network{adaps::parse_link_shape(text.substr(0, colon)), {}};
  if (colon == std::string::npos) return network;
  std::string_view behind = std::string_view(text).substr(colon + 1);
  relay::SlowPair pair{};
  const bool whole = take(behind, pair.one, "-") && take(behind, pair.other, "/") &&
                     take(behind, pair.times, "") && behind.empty();
  if (!whole || pair.one == pair.other || std::max(pair.one, pair.other) >= nodes ||
      !std::isfinite(pair.times) || pair.times <= 0.0) {
    throw std::invalid_argument("\"" + text + "\" does not name a link of " + std::to_string(nodes) +
                                " nodes. For example: lan:0-1/10");
  }
  network.slow = pair;
  return network;
}

void run(std::size_t nodes, const Network& network) {
  // By default, the kernel allows timers to be late by 50 µs.
  prctl(PR_SET_TIMERSLACK, 1);
  std::vector<relay::End> ends;
  for (std::size_t node = 0; node < nodes; ++node) ends.push_back(relay::make_end(node));
  for (const auto& end : ends) {
    std::printf("/proc/%d/fd/%d%s", getpid(), end.space.get(), &end == &ends.back() ? "\n" : " ");
  }
  std::fflush(stdout);
  relay::Links links(std::move(ends), network.shape);
  if (network.slow) links.slow_down(*network.slow);
  links.run(STDIN_FILENO);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: adabench-relay NODES NETWORK\n");
    return 2;
  }
  try {
    const std::size_t nodes = parse_nodes(arguments[1]);
    run(nodes, parse_network(arguments[2], nodes));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
