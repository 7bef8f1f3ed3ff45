// Random numbers by SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
// 2014).
#pragma once

#include <cmath>
#include <cstdint>

namespace adaps {

inline constexpr std::uint64_t kGoldenRatio = 0x9e3779b97f4a7c15ULL;  // 2^64 divided by the golden ratio

// The finalizer of SplitMix64: a bijection with good avalanche.
inline std::uint64_t mix(std::uint64_t x) {
  x += kGoldenRatio;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    const std::uint64_t out = mix(state_);
    state_ += kGoldenRatio;
    return out;
  }

 private:
  std::uint64_t state_;
};

class Random : public SplitMix64 {
 public:
  // Different streams of one seed are independent.
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : SplitMix64(mix(mix(seed) ^ stream)) {}

  // A number in [0, n). Its bias of at most n / 2^32 does not matter for the callers.
  std::uint64_t below(std::uint64_t n) { return ((next() >> 32) * n) >> 32; }
  // A number in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  bool chance(double probability) { return unit() < probability; }
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  double exponential(double mean) { return -mean * std::log(1.0 - unit()); }
};

}  // namespace adaps
