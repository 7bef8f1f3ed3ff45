// Assigns samples to parts so that few parts read each row, and finds the part that reads a row most often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace partition {

using Part = std::uint16_t;

// Limit for the number of parts. With more parts, comparing them would take longer than reading the sample's
// rows.
inline constexpr std::int64_t kMostParts = 4096;

// Assigns a stream of samples, each sample when it arrives. No part gets more samples than its equal share,
// rounded up. Needs six bytes per row and no memory for samples. Equal streams and seeds give equal parts.
//
// The algorithm is linear deterministic greedy, for samples instead of vertices. A sample goes to the part
// that has most of the sample's rows, where the rows of a fuller part have less weight. A row belongs to the
// part that reads it most often. The first pass estimates this part by a majority vote with one counter.
class Greedy {
 public:
  // Throws std::invalid_argument unless rows and samples are at least 1 and parts is in [1, kMostParts].
  Greedy(std::int64_t rows, std::int64_t parts, std::int64_t samples, std::uint64_t seed);

  // Assigns the next samples, which read `width` rows each, to parts. Throws std::out_of_range for a row that
  // does not exist, and std::invalid_argument if there are more samples in all than the constructor was
  // given. If it throws, no sample is assigned.
  template <typename Row>
  void deal(std::span<const Row> rows, std::size_t width, std::span<Part> parts);

  // Starts another pass over the same samples, which assigns them again (Nishimura and Ugander, KDD 2013).
  // `homes` has the part that read each row most often in the complete previous pass, or -1 for none. Throws
  // std::invalid_argument if `homes` has the wrong size or contains a number that is not a part.
  void again(std::span<const std::int32_t> homes);

 private:
  Part best_part(std::uint64_t sample) const;

  static constexpr Part kNowhere = 0xffff;

  std::vector<Part> home_;
  std::vector<std::uint32_t> votes_;  // empty in later passes, which use given homes
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> here_;  // number of the current sample's rows in each part
  std::int64_t samples_;
  std::int64_t capacity_;
  std::int64_t dealt_ = 0;
  std::uint64_t seed_;
};

// Counts how often each part reads each row, and finds the part that reads it most often. Parts must come one
// after the other. Needs twelve bytes per row, for any number of parts.
class Readers {
 public:
  // Throws std::invalid_argument if there are no rows.
  explicit Readers(std::int64_t rows);

  // Counts the rows of samples of `part`. Throws std::out_of_range for a row that does not exist, and
  // std::invalid_argument if samples of a later part were counted before.
  template <typename Row>
  void add(std::int64_t part, std::span<const Row> rows);

  // The part that reads each row most often, or -1 if no part reads it. With equal counts, the first part.
  const std::vector<std::int32_t>& most();

 private:
  void end_part();

  std::vector<std::int32_t> most_;
  std::vector<std::uint32_t> highest_;
  std::vector<std::uint32_t> count_;
  std::int64_t part_ = 0;
};

}  // namespace partition
