// Draws from a distribution that are spread more evenly than independent ones.
#pragma once

#include <bit>
#include <cstdint>

#include "common/random.h"
#include "store/distribution.h"

namespace adaps {

// Numbers below `size`, in an order that the key decides, without keeping it: a Feistel network on the next
// even number of bits, of which what is too large is sent through again (Black and Rogaway 2002).
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

// A distribution of n rows is cut into n equal parts. Of n draws each is from another part, in a random
// order; then it begins anew. So after any number of draws a row has come about as often as it should, where
// independent draws leave out a third of even rows in the first n. A part that several rows share gives them
// in turn: from one time to the next the place in it moves by the golden ratio.
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
