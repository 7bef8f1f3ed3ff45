#include "greedy.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/random.h"

namespace partition {
namespace {

template <typename Row>
void require_rows(std::span<const Row> rows, std::size_t count) {
  for (const Row row : rows) {
    if (row < 0 || static_cast<std::uint64_t>(row) >= count) {
      throw std::out_of_range("row " + std::to_string(row) + " does not exist: rows are from 0 to " +
                              std::to_string(count - 1));
    }
  }
}

std::size_t positive(std::int64_t number, const char* name) {
  if (number < 1) {
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(number) +
                                ": it must be 1 or more");
  }
  return static_cast<std::size_t>(number);
}

}  // namespace

Greedy::Greedy(std::int64_t rows, std::int64_t parts, std::int64_t samples, std::uint64_t seed)
    : home_(positive(rows, "rows"), kNowhere),
      votes_(home_.size(), 0),
      samples_(static_cast<std::int64_t>(positive(samples, "samples"))),
      seed_(seed) {
  if (parts < 1 || parts > kMostParts) {
    throw std::invalid_argument("parts is " + std::to_string(parts) + ": it must be from 1 to " +
                                std::to_string(kMostParts));
  }
  sizes_.assign(static_cast<std::size_t>(parts), 0);
  here_.assign(sizes_.size(), 0);
  capacity_ = (samples + parts - 1) / parts;
}

template <typename Row>
void Greedy::deal(std::span<const Row> rows, std::size_t width, std::span<Part> parts) {
  if (parts.size() > static_cast<std::uint64_t>(samples_ - dealt_)) {
    throw std::invalid_argument(std::to_string(parts.size()) + " more samples after " +
                                std::to_string(dealt_) + " of " + std::to_string(samples_) +
                                ": there are fewer");
  }
  require_rows(rows, home_.size());
  // Rows are prefetched, because they are scattered over more memory than the caches hold.
  constexpr std::size_t kAhead = 4;
  for (std::size_t sample = 0; sample < parts.size(); ++sample) {
    if (sample + kAhead < parts.size()) {
      for (const Row row : rows.subspan((sample + kAhead) * width, width)) {
        __builtin_prefetch(&home_[static_cast<std::size_t>(row)], 0, 1);
        if (!votes_.empty()) __builtin_prefetch(&votes_[static_cast<std::size_t>(row)], 1, 1);
      }
    }
    const auto own = rows.subspan(sample * width, width);
    for (const Row row : own) {
      const Part home = home_[static_cast<std::size_t>(row)];
      if (home != kNowhere) ++here_[home];
    }
    const Part best = best_part(static_cast<std::uint64_t>(dealt_));
    for (const Row row : own) {
      const Part home = home_[static_cast<std::size_t>(row)];
      if (home != kNowhere) here_[home] = 0;
    }
    if (!votes_.empty()) {
      for (const Row row : own) {
        Part& home = home_[static_cast<std::size_t>(row)];
        std::uint32_t& votes = votes_[static_cast<std::size_t>(row)];
        if (home == best) {
          ++votes;
        } else if (votes == 0) {
          home = best;
          votes = 1;
        } else {
          --votes;
        }
      }
    }
    ++sizes_[best];
    ++dealt_;
    parts[sample] = best;
  }
}

template void Greedy::deal(std::span<const std::int32_t>, std::size_t, std::span<Part>);
template void Greedy::deal(std::span<const std::int64_t>, std::size_t, std::span<Part>);

// Compares integers, so that the result does not depend on the compiler. If several parts are equally good,
// it returns the one with the fewest samples. If these numbers are also equal, it returns the first part in
// an order that starts at a part which the seed and the sample's number determine.
Part Greedy::best_part(std::uint64_t sample) const {
  const std::size_t parts = sizes_.size();
  std::size_t part = static_cast<std::size_t>(adaps::mix(seed_ ^ adaps::mix(sample)) % parts);
  std::size_t best = parts;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < parts; ++i, part = part + 1 == parts ? 0 : part + 1) {
    const std::int64_t room = capacity_ - sizes_[part];
    if (room == 0) continue;
    const std::int64_t score = here_[part] * room;
    if (best == parts || score > most || (score == most && sizes_[part] < sizes_[best])) {
      best = part;
      most = score;
    }
  }
  return static_cast<Part>(best);
}

void Greedy::again(std::span<const std::int32_t> homes) {
  if (homes.size() != home_.size()) {
    throw std::invalid_argument("homes of " + std::to_string(homes.size()) + " rows: there are " +
                                std::to_string(home_.size()));
  }
  const auto parts = static_cast<std::int32_t>(sizes_.size());
  for (const std::int32_t home : homes) {
    if (home < -1 || home >= parts) {
      throw std::invalid_argument("home " + std::to_string(home) + ": it must be from 0 to " +
                                  std::to_string(parts - 1) + ", or -1");
    }
  }
  std::transform(homes.begin(), homes.end(), home_.begin(),
                 [](std::int32_t home) { return home < 0 ? kNowhere : static_cast<Part>(home); });
  votes_ = {};
  std::fill(sizes_.begin(), sizes_.end(), 0);
  dealt_ = 0;
}

Readers::Readers(std::int64_t rows)
    : most_(positive(rows, "rows"), -1), highest_(most_.size(), 0), count_(most_.size(), 0) {}

template <typename Row>
void Readers::add(std::int64_t part, std::span<const Row> rows) {
  if (part < part_ || part >= kMostParts) {
    throw std::invalid_argument("part " + std::to_string(part) + " after part " + std::to_string(part_) +
                                ": parts must ascend, and be below " + std::to_string(kMostParts));
  }
  require_rows(rows, count_.size());
  if (part != part_) end_part();
  part_ = part;
  constexpr std::size_t kAhead = 64;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size())
      __builtin_prefetch(&count_[static_cast<std::size_t>(rows[i + kAhead])], 1, 1);
    ++count_[static_cast<std::size_t>(rows[i])];
  }
}

template void Readers::add(std::int64_t, std::span<const std::int32_t>);
template void Readers::add(std::int64_t, std::span<const std::int64_t>);

const std::vector<std::int32_t>& Readers::most() {
  end_part();
  return most_;
}

void Readers::end_part() {
  for (std::size_t row = 0; row < count_.size(); ++row) {
    if (count_[row] > highest_[row]) {
      highest_[row] = count_[row];
      most_[row] = static_cast<std::int32_t>(part_);
    }
    count_[row] = 0;
  }
}

}  // namespace partition
