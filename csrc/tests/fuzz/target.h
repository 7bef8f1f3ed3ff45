// A fuzz target: what it feeds hostile bytes to, and examples of well-formed ones.
//
// Each target is one source with these two functions. With mutate.cc it is a test of its own, deterministic
// and for any compiler; with libfuzzer.cc (clang, -DADAPS_LIBFUZZER=ON) the same target is searched by
// coverage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace adaps::fuzz {

using Bytes = std::vector<std::byte>;

// Well-formed inputs, from which mutation starts.
std::vector<Bytes> examples();

// Takes any bytes. Ends the process if something is not as it has to be.
void run(std::span<const std::byte> input);

// For targets whose inputs hold the version of a format, and are refused at once if it is not the current
// one; others leave these two out. A corpus of which no input is current tests nothing any more.
bool is_current(std::span<const std::byte> input);
// Gives an input of an older version the current one.
void renew(Bytes& input);

// What a target calls where a promise is broken.
[[noreturn]] void broken(const char* promise);

// Reads an input from its start; gives zeros behind its end.
class Source {
 public:
  explicit Source(std::span<const std::byte> input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto first = std::to_integer<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return first;
  }
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = rest_.first(count < rest_.size() ? count : rest_.size());
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace adaps::fuzz
