#include "store/distribution.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace adaps {

namespace {

constexpr std::uint64_t kWhole = ~std::uint64_t{0};

// A share of 0 must stay exactly 0, so that rows without weight are never drawn.
std::uint64_t share_of(double fraction) {
  return fraction >= 1.0 ? kWhole : static_cast<std::uint64_t>(fraction * 0x1p64);
}

}  // namespace

Distribution::Distribution(DistributionKind kind, std::uint64_t rows)
    : kind_(kind), rows_(rows), possible_(rows) {}

Distribution Distribution::uniform(std::uint64_t rows) { return {DistributionKind::kUniform, rows}; }

Distribution Distribution::log_uniform(std::uint64_t rows) {
  Distribution distribution(DistributionKind::kLogUniform, rows);
  distribution.log_rows_ = std::log1p(static_cast<double>(rows));
  return distribution;
}

Distribution Distribution::weighted(std::span<const double> weights) {
  if (weights.size() > std::numeric_limits<std::uint32_t>::max())
    throw std::invalid_argument(std::to_string(weights.size()) + " weights; at most " +
                                std::to_string(std::numeric_limits<std::uint32_t>::max()) + " are possible");
  double largest = 0.0;
  for (std::size_t row = 0; row < weights.size(); ++row) {
    if (!std::isfinite(weights[row]) || weights[row] < 0.0)
      throw std::invalid_argument("the weight of row " + std::to_string(row) + " is " +
                                  std::to_string(weights[row]) + "; it must be finite and not negative");
    largest = std::max(largest, weights[row]);
  }
  if (largest == 0.0)
    throw std::invalid_argument("no row has a weight above 0; at least one row must have one");
  Distribution distribution(DistributionKind::kWeighted, weights.size());
  // The weights are scaled so that their sum is finite.
  distribution.weights_.assign(weights.begin(), weights.end());
  for (double& weight : distribution.weights_) distribution.sum_ += weight /= largest;
  // A weight that is much smaller than the largest can become 0.
  weights = distribution.weights_;
  distribution.possible_ = static_cast<std::uint64_t>(
      std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0.0; }));
  const double per_weight = static_cast<double>(weights.size()) / distribution.sum_;
  std::vector<double> left(weights.size());
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> large;
  for (std::size_t row = 0; row < weights.size(); ++row) {
    left[row] = weights[row] * per_weight;
    (left[row] < 1.0 ? small : large).push_back(static_cast<std::uint32_t>(row));
  }
  distribution.own_share_.resize(weights.size());
  distribution.other_.resize(weights.size());
  while (!small.empty() && !large.empty()) {
    const std::uint32_t taker = small.back();
    const std::uint32_t giver = large.back();
    small.pop_back();
    distribution.own_share_[taker] = share_of(left[taker]);
    distribution.other_[taker] = giver;
    left[giver] -= 1.0 - left[taker];
    if (left[giver] >= 1.0) continue;
    large.pop_back();
    small.push_back(giver);
  }
  // Some rows remain because of rounding; they keep their whole interval. A row without weight remains only
  // if rounding used up all large rows. It then gives its whole interval to the row with the largest weight.
  const auto heaviest = static_cast<std::uint32_t>(
      std::distance(weights.begin(), std::max_element(weights.begin(), weights.end())));
  for (const std::vector<std::uint32_t>* rest : {&small, &large}) {
    for (const std::uint32_t row : *rest) {
      distribution.own_share_[row] = weights[row] > 0.0 ? kWhole : 0;
      distribution.other_[row] = weights[row] > 0.0 ? row : heaviest;
    }
  }
  return distribution;
}

double Distribution::probability(std::uint64_t row) const {
  switch (kind_) {
    case DistributionKind::kUniform:
      return 1.0 / static_cast<double>(rows_);
    case DistributionKind::kLogUniform:
      return std::log1p(1.0 / (static_cast<double>(row) + 1.0)) / log_rows_;
    case DistributionKind::kWeighted:
      return weights_[row] / sum_;
  }
  return 0.0;
}

std::uint64_t Distribution::fingerprint() const {
  std::uint64_t hash = mix(rows_ ^ mix(static_cast<std::uint64_t>(kind_)));
  for (const double weight : weights_) hash = mix(hash ^ std::bit_cast<std::uint64_t>(weight));
  return hash;
}

std::uint64_t Distribution::draw_log_uniform(Random& random) const { return log_uniform_at(random.unit()); }

// Inversion: exp(u log(rows + 1)) is in [k + 1, k + 2) with the probability of row k. Rounding can reach the
// upper end, which is not a row.
std::uint64_t Distribution::log_uniform_at(double place) const {
  return std::min(static_cast<std::uint64_t>(std::expm1(place * log_rows_)), rows_ - 1);
}

}  // namespace adaps
