// Values whose floats tell what they contain: the last set, and how often each push was added. All numbers
// are integers below 2^24, so float32 arithmetic on them is exact.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace adaps::simulation {

inline constexpr std::size_t kMaxPushes = 252;  // of one key
inline constexpr std::size_t kPushesPerFloat = 12;

// How much a float says. A coarse one is small enough that no wire rounds it.
struct Coding {
  std::size_t set_floats;  // the first ones, for the last set
  std::size_t pushes_per_float;
};
inline constexpr Coding kFine{1, kPushesPerFloat};
inline constexpr Coding kCoarse{2, 3};

using Pushes = std::bitset<kMaxPushes>;

struct Content {
  std::uint32_t set = 0;  // 0: never set
  Pushes pushes;          // since then, by their number on this key
};

// Floats that a key with so many pushes needs at least.
constexpr std::size_t content_length(std::size_t pushes, const Coding& coding = kFine) {
  return coding.set_floats + (pushes + coding.pushes_per_float - 1) / coding.pushes_per_float;
}

void write_set(std::uint32_t set, std::span<float> value, const Coding& coding = kFine);
void write_push(std::uint32_t push, std::span<float> delta, const Coding& coding = kFine);

// For worlds whose values are not read: small numbers that differ from write to write.
void write_rough(std::uint32_t number, std::span<float> row);

// Throws Violation if a push was counted more than once, or the floats contain what nobody wrote.
Content read_content(std::span<const float> value, const Coding& coding = kFine);

std::string to_string(const Content& content);

}  // namespace adaps::simulation
