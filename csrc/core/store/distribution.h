// Probability distribution over the rows of a table, from which the server draws samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/random.h"

namespace adaps {

enum class DistributionKind : std::uint8_t { kUniform, kLogUniform, kWeighted };

// Returns an index in [0, n) with equal probabilities. `rest` receives the remaining fraction, in units of
// 2^-64. The method is Lemire's (2019) without rejection: for n up to 2^40, the relative error of a
// probability is at most 2^-24.
inline std::uint64_t pick(std::uint64_t bits, std::uint64_t n, std::uint64_t& rest) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(bits) * n;
  rest = static_cast<std::uint64_t>(product);
  return static_cast<std::uint64_t>(product >> 64);
}

// A distribution over [0, rows). It is immutable, so any number of threads may draw from it.
class Distribution {
 public:
  // All rows are equally likely.
  static Distribution uniform(std::uint64_t rows);
  // Row k has probability log((k + 2) / (k + 1)) / log(rows + 1). This suits rows that are sorted by falling
  // frequency.
  static Distribution log_uniform(std::uint64_t rows);
  // Each row has a probability proportional to its weight. Throws std::invalid_argument that names the first
  // weight that is negative or not finite, or if no weight is above 0.
  static Distribution weighted(std::span<const double> weights);

  DistributionKind kind() const { return kind_; }
  std::uint64_t rows() const { return rows_; }
  // Number of rows with a probability above 0.
  std::uint64_t possible() const { return possible_; }
  double probability(std::uint64_t row) const;
  // A hash that is equal for equal distributions.
  std::uint64_t fingerprint() const;

  std::uint64_t draw(Random& random) const {
    std::uint64_t rest = 0;
    switch (kind_) {
      case DistributionKind::kUniform:
        return pick(random.next(), rows_, rest);
      case DistributionKind::kLogUniform:
        return draw_log_uniform(random);
      case DistributionKind::kWeighted: {
        const std::uint64_t part = pick(random.next(), rows_, rest);
        return row_at(part, rest);
      }
    }
    return 0;
  }

  // Maps a position in [0, 1) to a row, such that each row covers an interval of the length of its
  // probability. The position is in the interval number `part` of rows() equal intervals, at the fraction
  // `rest` in units of 2^-64.
  std::uint64_t row_at(std::uint64_t part, std::uint64_t rest) const {
    switch (kind_) {
      case DistributionKind::kUniform:
        return part;
      case DistributionKind::kLogUniform:
        return log_uniform_at((static_cast<double>(part) + static_cast<double>(rest) * 0x1p-64) /
                              static_cast<double>(rows_));
      case DistributionKind::kWeighted:
        return rest < own_share_[part] ? part : other_[part];
    }
    return 0;
  }

 private:
  Distribution(DistributionKind kind, std::uint64_t rows);

  std::uint64_t draw_log_uniform(Random& random) const;
  std::uint64_t log_uniform_at(double place) const;

  DistributionKind kind_;
  std::uint64_t rows_;
  std::uint64_t possible_;
  double log_rows_ = 0.0;  // log(rows + 1)
  // Alias table (Walker 1977, Vose 1991). Row i keeps own_share_[i] of its interval, in units of 2^-64, and
  // row other_[i] has the remainder.
  std::vector<std::uint64_t> own_share_;
  std::vector<std::uint32_t> other_;
  std::vector<double> weights_;
  double sum_ = 0.0;
};

}  // namespace adaps
