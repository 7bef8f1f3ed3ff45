// Deals samples to parts so that each row is read by few parts, and finds the part that reads a row most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace partition {

using Part = std::uint16_t;

// More parts would be more work for each sample than the rows that it reads.
inline constexpr std::int64_t kMostParts = 4096;

// Samples come as a stream, each is dealt when it comes, and no part gets more than its share, rounded up.
// Takes six bytes for each row and nothing for samples. Equal streams and seeds give equal parts.
//
// Linear deterministic greedy, for samples in place of vertices: a sample goes to the part with most of the
// rows that it reads, each counted as less the fuller the part is. A row is in the part that has most of its
// reads, which the first pass finds out by a majority vote with one counter.
class Greedy {
 public:
  // Throws std::invalid_argument unless rows and samples are 1 or more and parts from 1 to kMostParts.
  Greedy(std::int64_t rows, std::int64_t parts, std::int64_t samples, std::uint64_t seed);

  // The parts of the next samples, of which each reads `width` rows. Throws std::out_of_range for a row that
  // does not exist and std::invalid_argument for more samples than there are; then none of them is dealt.
  template <typename Row>
  void deal(std::span<const Row> rows, std::size_t width, std::span<Part> parts);

  // The samples come once more, and are dealt anew (Nishimura and Ugander, KDD 2013): by where each row was
  // read most, or -1 for nowhere, as it is found when all have been dealt. Throws std::invalid_argument for
  // homes of another number of rows, or that are no parts.
  void again(std::span<const std::int32_t> homes);

 private:
  Part best_part(std::uint64_t sample) const;

  static constexpr Part kNowhere = 0xffff;

  std::vector<Part> home_;
  std::vector<std::uint32_t> votes_;  // empty once homes are given
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> here_;  // of one sample's rows, how many are at each part
  std::int64_t samples_;
  std::int64_t capacity_;
  std::int64_t dealt_ = 0;
  std::uint64_t seed_;
};

// Counts how often each part reads each row, one part after the other, and keeps who reads it most: twelve
// bytes for each row, however many parts there are.
class Readers {
 public:
  // Throws std::invalid_argument unless there is a row.
  explicit Readers(std::int64_t rows);

  // Samples of `part` read these rows. Throws std::out_of_range for a row that does not exist, and
  // std::invalid_argument if samples of a later part have come already.
  template <typename Row>
  void add(std::int64_t part, std::span<const Row> rows);

  // The first of the parts that read each row most, or -1 where none reads it.
  const std::vector<std::int32_t>& most();

 private:
  void end_part();

  std::vector<std::int32_t> most_;
  std::vector<std::uint32_t> highest_;
  std::vector<std::uint32_t> count_;
  std::int64_t part_ = 0;
};

}  // namespace partition
