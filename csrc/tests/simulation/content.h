// Values whose floats encode their history: the last set, and the number of times that each push was added.
// All numbers are integers below 2^24, so float32 arithmetic on them is exact.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace adaps::simulation {

inline constexpr std::size_t kMaxPushes = 252;  // per key
inline constexpr std::size_t kPushesPerFloat = 12;

// Number of floats that encode the last set, and number of pushes that each further float encodes. A coarse
// coding uses so few bits that every wire represents its numbers exactly.
struct Coding {
  std::size_t set_floats;  // number of floats at the start for the last set
  std::size_t pushes_per_float;
};
inline constexpr Coding kFine{1, kPushesPerFloat};
inline constexpr Coding kCoarse{2, 3};

using Pushes = std::bitset<kMaxPushes>;

struct Content {
  std::uint32_t set = 0;  // 0: the initial value
  Pushes pushes;          // pushes since the last set, by their number on this key

  bool operator==(const Content&) const = default;
};

// Minimum number of floats of a key with `pushes` pushes.
constexpr std::size_t content_length(std::size_t pushes, const Coding& coding = kFine) {
  return coding.set_floats + (pushes + coding.pushes_per_float - 1) / coding.pushes_per_float;
}

// The last write of an optimizer state. A gradient replaces the whole state in worlds whose states are
// decoded.
struct StateContent {
  bool is_gradient = false;
  std::uint32_t number = 0;  // number of the gradient on this key, or of the set_state; 0: the initial state

  bool operator==(const StateContent&) const = default;
};

void write_set(std::uint32_t set, std::span<float> value, const Coding& coding = kFine);
void write_push(std::uint32_t push, std::span<float> delta, const Coding& coding = kFine);

// Writes small numbers that differ between writes, for worlds in which values are not decoded.
void write_rough(std::uint32_t number, std::span<float> row);

// Throws Violation if a push was counted more than once, or if the floats contain a value that was never
// written.
Content read_content(std::span<const float> value, const Coding& coding = kFine);

// Decodes a state that write_set or a gradient has written. Throws as read_content does. `initial` is the
// state before all writes.
StateContent read_state(std::span<const float> state, std::span<const float> initial,
                        const Coding& coding = kFine);

std::string to_string(const Content& content);
std::string to_string(const StateContent& content);

}  // namespace adaps::simulation
