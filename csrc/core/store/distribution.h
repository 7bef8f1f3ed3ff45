// How often each row of a table is drawn where the server draws samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/random.h"

namespace adaps {

enum class DistributionKind : std::uint8_t { kUniform, kLogUniform, kWeighted };

// An index in [0, n), each equally likely; `rest` gets the fraction that was left over, in units of 2^-64.
// Lemire (2019) without its rejection: for n up to 2^40 no index is more likely by more than 2^-24 of itself.
inline std::uint64_t pick(std::uint64_t bits, std::uint64_t n, std::uint64_t& rest) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(bits) * n;
  rest = static_cast<std::uint64_t>(product);
  return static_cast<std::uint64_t>(product >> 64);
}

// Rows in [0, rows). It does not change, so any number of threads may draw from it.
class Distribution {
 public:
  // Every row equally likely.
  static Distribution uniform(std::uint64_t rows);
  // Row k with probability log((k + 2) / (k + 1)) / log(rows + 1): for rows by falling frequency.
  static Distribution log_uniform(std::uint64_t rows);
  // In proportion to its weight. Throws std::invalid_argument naming the first weight that is not finite or
  // negative, or if none is above 0.
  static Distribution weighted(std::span<const double> weights);

  DistributionKind kind() const { return kind_; }
  std::uint64_t rows() const { return rows_; }
  // Rows that can be drawn.
  std::uint64_t possible() const { return possible_; }
  double probability(std::uint64_t row) const;
  // Equal for equal distributions.
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

  // The row at a place in [0, 1), of which each row has as much as its probability: `rest`, in units of
  // 2^-64, within one of as many equal parts as there are rows.
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
  // An alias table (Walker 1977, Vose 1991): each row has a share of itself, in units of 2^-64, and what is
  // missing to a whole is another row's.
  std::vector<std::uint64_t> own_share_;
  std::vector<std::uint32_t> other_;
  std::vector<double> weights_;
  double sum_ = 0.0;
};

}  // namespace adaps
