#include "store/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "common/random.h"

namespace adaps {

namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr int kMostSteps = 127;  // largest magnitude of an encoded int8

// The smallest magnitude that rounds to infinity. Finite numbers below it stay finite.
constexpr std::uint32_t kBeyondBfloat16 = 0x7f7f8000U;
constexpr std::uint32_t kLargestBfloat16 = 0x7f7f0000U;
constexpr std::uint32_t kInfinity = 0x7f800000U;
constexpr std::uint32_t kQuiet = 0x00400000U;  // this bit of a NaN survives when the lower bits are cut off
constexpr std::uint32_t kBeyondFloat16 = 0x477ff000U;  // 65520
constexpr float kBeyondInt8 = 0x1p127F;
// Smaller numbers have less precision in float16.
constexpr std::uint32_t kSmallestNormalFloat16 = 0x38800000U;  // 2^-14
constexpr std::uint32_t kFloat16Bias = (127U - 15U) << 23;

std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

float from_bfloat16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

std::uint16_t to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & kMagnitude;
  if (magnitude < kSmallestNormalFloat16) {
    // Floats near 0.5 have the same spacing as these numbers have in float16, so the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(
        sign | (std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - kFloat16Bias) >> 13));
}

float from_float16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7fffU;
  if (magnitude < 0x400U) {
    const float small = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(small) | sign);
  }
  // A corrupted half with the bits of infinity or NaN decodes to a large finite number.
  return std::bit_cast<float>(((magnitude << 13) + kFloat16Bias) | sign);
}

template <typename To>
void write_halves(std::span<const float> in, float* out, To to) {
  auto* bytes = reinterpret_cast<std::byte*>(out);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint16_t half = to(in[i]);
    std::memcpy(bytes + i * sizeof(half), &half, sizeof(half));
  }
  if (in.size() % 2 != 0) std::memset(bytes + in.size() * 2, 0, 2);
}

template <std::uint32_t kBeyond, typename To>
bool encode_halves(std::span<const float> in, float* out, To to) {
  std::uint32_t largest = 0;
  for (const float x : in) largest = std::max(largest, std::bit_cast<std::uint32_t>(x) & kMagnitude);
  if (largest >= kBeyond) return false;
  write_halves(in, out, to);
  return true;
}

// Rounds to bfloat16 by adding 16 random bits to the bits that are cut off. A carry increases the magnitude
// to the next number of bfloat16.
float rounded_at_random(float x, std::uint32_t random) {
  constexpr std::uint32_t kUpperHalf = 0xffff0000U;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & kMagnitude) >= kLargestBfloat16) {
    const bool is_nan = (bits & kMagnitude) > kInfinity;
    return std::bit_cast<float>((bits | (is_nan ? kQuiet : 0U)) & kUpperHalf);
  }
  return std::bit_cast<float>((bits + random) & kUpperHalf);
}

template <typename From>
void decode_halves(std::span<const float> words, std::span<float> out, From from) {
  const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t half;
    std::memcpy(&half, bytes + i * sizeof(half), sizeof(half));
    out[i] = from(half);
  }
}

// Returns the smallest power of two, such that `largest` is at most 127 times this power. Returns 0 if
// `largest` is 0.
float scale_of(float largest) {
  int exponent = 0;
  const float mantissa = std::frexp(largest / static_cast<float>(kMostSteps), &exponent);
  if (mantissa == 0.0F) return 0.0F;
  return std::ldexp(1.0F, mantissa == 0.5F ? exponent - 1 : exponent);
}

bool encode_steps(std::span<const float> in, float* out) {
  std::uint32_t largest_bits = 0;
  for (const float x : in)
    largest_bits = std::max(largest_bits, std::bit_cast<std::uint32_t>(x) & kMagnitude);
  const auto largest = std::bit_cast<float>(largest_bits);
  if (!(largest < kBeyondInt8)) return false;
  const float scale = scale_of(largest);
  if (largest != 0.0F && scale < std::numeric_limits<float>::min()) return false;
  const float steps_per_one = scale == 0.0F ? 0.0F : 1.0F / scale;
  *out = scale;
  // After this constant is added, the last bits of the sum contain the rounded integer.
  constexpr float kWhole = 12582912.0F;  // 1.5 * 2^23
  auto* bytes = reinterpret_cast<std::byte*>(out + 1);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto steps =
        std::bit_cast<std::int32_t>(in[i] * steps_per_one + kWhole) - std::bit_cast<std::int32_t>(kWhole);
    bytes[i] = static_cast<std::byte>(static_cast<std::int8_t>(steps));
  }
  const std::size_t padding = (encoded_words(Wire::kInt8, in.size()) - 1) * sizeof(float) - in.size();
  std::memset(bytes + in.size(), 0, padding);
  return true;
}

void decode_steps(std::span<const float> words, std::span<float> out) {
  const float scale = words.front();
  const auto* bytes = reinterpret_cast<const std::byte*>(words.data() + 1);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(static_cast<std::int8_t>(bytes[i])) * scale;
}

}  // namespace

std::size_t encoded_words(Wire wire, std::size_t floats) {
  switch (wire) {
    case Wire::kFloat32:
      return floats;
    case Wire::kBfloat16:
    case Wire::kFloat16:
      return (floats + 1) / 2;
    case Wire::kInt8:
      return floats == 0 ? 0 : 1 + (floats + 3) / 4;
  }
  return floats;
}

bool encode(Wire wire, std::span<const float> in, float* out) {
  if (in.empty()) return true;
  switch (wire) {
    case Wire::kFloat32:
      std::memcpy(out, in.data(), in.size_bytes());
      return true;
    case Wire::kBfloat16:
      return encode_halves<kBeyondBfloat16>(in, out, to_bfloat16);
    case Wire::kFloat16:
      return encode_halves<kBeyondFloat16>(in, out, to_float16);
    case Wire::kInt8:
      return encode_steps(in, out);
  }
  return false;
}

void decode(Wire wire, std::span<const float> words, std::span<float> out) {
  if (out.empty()) return;
  switch (wire) {
    case Wire::kFloat32:
      std::memcpy(out.data(), words.data(), out.size_bytes());
      return;
    case Wire::kBfloat16:
      decode_halves(words, out, from_bfloat16);
      return;
    case Wire::kFloat16:
      decode_halves(words, out, from_float16);
      return;
    case Wire::kInt8:
      decode_steps(words, out);
      return;
  }
}

void round_at_random(std::span<float> floats, std::uint64_t seed) {
  constexpr std::size_t kOfOneMix = sizeof(std::uint64_t) / sizeof(std::uint16_t);
  std::uint64_t random = 0;
  for (std::size_t i = 0; i < floats.size(); ++i) {
    random = i % kOfOneMix == 0 ? mix(seed + i / kOfOneMix) : random >> 16;
    floats[i] = rounded_at_random(floats[i], static_cast<std::uint32_t>(random & 0xffffU));
  }
}

void cut_to_bfloat16(std::span<const float> in, float* out) {
  write_halves(in, out,
               [](float x) { return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16); });
}

float rounding_bound(Wire wire, float largest) {
  switch (wire) {
    case Wire::kFloat32:
      return 0.0F;
    case Wire::kBfloat16:
      return std::max(largest * 0x1p-8F, 0x1p-134F);
    case Wire::kFloat16:
      return std::max(largest * 0x1p-11F, 0x1p-25F);
    case Wire::kInt8:
      return largest / static_cast<float>(kMostSteps);
  }
  return 0.0F;
}

}  // namespace adaps
