// Draws rows from a distribution, so that the numbers of draws of the rows vary less than with independent
// draws.
#pragma once

#include <bit>
#include <cstdint>

#include "common/random.h"
#include "store/distribution.h"

namespace adaps {

// A pseudorandom permutation of the numbers below `size`. It depends on the key and takes no memory. It is a
// Feistel network on an even number of bits; results that are too large are encrypted again (Black and
// Rogaway 2002).
class RandomOrder {
 public:
  RandomOrder(std::uint64_t size, std::uint64_t key)
      : size_(size), key_(key), half_((std::bit_width(size - 1) + 1) / 2) {}

  std::uint64_t at(std::uint64_t place) const {
    do {
      place = once(place);
    } while (place >= size_);
    return place;
  }

 private:
  static constexpr std::uint64_t kRounds = 4;

  std::uint64_t once(std::uint64_t place) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = place >> half_;
    std::uint64_t right = place & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = (left ^ mix(mix(key_ + round) ^ right)) & mask;
      left = right;
      right = mixed;
    }
    return (left << half_) | right;
  }

  std::uint64_t size_;
  std::uint64_t key_;
  int half_;
};

// Divides a distribution of n rows into n strata of equal probability. Each of n consecutive draws comes from
// another stratum, in random order, and then the next n draws begin. After any number of draws, each row has
// been drawn almost as often as expected. In contrast, n independent draws from n equally likely rows miss a
// third of the rows. If several rows share a stratum, the position in the stratum moves by the golden ratio
// from one draw to the next, so that all of these rows are drawn in turn.
class StratifiedDraws {
 public:
  StratifiedDraws(const Distribution& distribution, std::uint64_t seed)
      : distribution_(distribution), seed_(seed), order_(distribution.rows(), mix(seed)) {}

  std::uint64_t draw() {
    if (next_ == distribution_.rows()) {
      next_ = 0;
      order_ = RandomOrder(distribution_.rows(), mix(seed_ + ++round_));
    }
    const std::uint64_t part = order_.at(next_++);
    return distribution_.row_at(part, mix(seed_ ^ mix(part)) + round_ * kGoldenRatio);
  }

 private:
  const Distribution& distribution_;
  std::uint64_t seed_;
  std::uint64_t round_ = 0;
  std::uint64_t next_ = 0;
  RandomOrder order_;
};

}  // namespace adaps
