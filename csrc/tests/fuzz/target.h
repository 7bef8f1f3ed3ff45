// The interface of a fuzz target: a function that processes hostile bytes, and examples of well-formed bytes.
//
// Each target is one source file with these two functions. Linked with mutate.cc, it is a deterministic test
// for any compiler. Linked with libfuzzer.cc (clang, -DADAPS_LIBFUZZER=ON), a fuzzer searches it by code
// coverage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace adaps::fuzz {

using Bytes = std::vector<std::byte>;

// Well-formed inputs, which are the start of mutation.
std::vector<Bytes> examples();

// Processes any bytes. Ends the process if a promise is broken.
void run(std::span<const std::byte> input);

// Whether an input has the current version of its format. Only needed by targets whose inputs contain a
// version, and that refuse old versions. A corpus without current inputs tests nothing.
bool is_current(std::span<const std::byte> input);
// Sets an input's version to the current one.
void renew(Bytes& input);

// Reports a broken promise and ends the process.
[[noreturn]] void broken(const char* promise);

// Reads an input from its start. Returns zeros after its end.
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
