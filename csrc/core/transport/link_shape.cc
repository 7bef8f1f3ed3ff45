#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "transport/socket_transport.h"

namespace adaps {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kTimes[] = {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}};
constexpr Unit kRates[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};

// Parses a number with a unit. Returns a negative number if the text is malformed, as no valid quantity is
// negative.
template <std::size_t N>
double quantity(std::string_view text, const Unit (&units)[N]) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return -1.0;
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const Unit& known : units) {
    if (unit == known.name) return number * known.factor;
  }
  return -1.0;
}

}  // namespace

LinkShape parse_link_shape(const std::string& text) {
  if (text == "loopback") return {};
  if (text == "sockets") return {.sockets = true};
  if (text == "lan") return {0.25e-3, 10e9};
  if (text == "slow") return {1e-3, 1e9};
  if (const std::size_t comma = text.find(','); comma != std::string::npos) {
    const std::string_view whole = text;
    const LinkShape shape{quantity(whole.substr(0, comma), kTimes),
                          quantity(whole.substr(comma + 1), kRates)};
    if (shape.latency_seconds >= 0.0 && shape.bits_per_second > 0.0) return shape;
  }
  throw std::invalid_argument(
      "\"" + text +
      "\" is not a link: use loopback, sockets, lan, slow, or latency and bandwidth as in 0.5ms,2gbit");
}

}  // namespace adaps
