// Samples that a worker draws from a table: which rows, what is announced for them, and what is read at once
// (docs/concepts/protocol.md, section 19).
//
// A sample is prepared before it is taken. Which rows a scheme draws follows from the seed, the node, the
// worker, the table and the number of the sample; with `local` also from what is here when it is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/types.h"
#include "store/table.h"

namespace adaps {

struct NodeContext;

// Keys for which intent has to be signalled, for the clocks [start, end).
struct Announcement {
  std::vector<Key> keys;
  Clock start;
  Clock end;
};

// One that is prepared.
struct Sample {
  std::uint64_t number = 0;  // of this worker and table, from 0
  std::size_t size = 0;
  std::vector<Key> keys;  // empty if they are drawn only when it is taken
};

// The samples of one table by one worker.
class Sampler {
 public:
  // Of the table's scheme. Throws std::invalid_argument naming the table if it has none.
  static std::unique_ptr<Sampler> make(NodeContext& node, int worker, const Table& table);

  Sampler(NodeContext& node, int worker, const Table& table, const SamplingSpec& spec);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  const Table& table() const { return table_; }

  // A sample that will be used in the clocks [start, end). `announcements` gets what has to be signalled.
  // Throws std::invalid_argument naming the size if no sample can be like that.
  Sample prepare(std::size_t size, Clock start, Clock end, std::vector<Announcement>& announcements);

  // The keys of a sample, in the order drawn. So many of the first ones as it returns were here, and their
  // values are in `values`, one after the other; the others are still to be pulled. Without `values`
  // nothing is read.
  virtual std::size_t take(const Sample& sample, std::span<Key> keys, float* values);

 protected:
  virtual void prepare(Sample& sample, Clock start, Clock end, std::vector<Announcement>& announcements) = 0;
  // The most rows of a sample; by default those that there are to draw.
  virtual std::uint64_t largest() const;

  const SamplingSpec& spec() const { return spec_; }
  // Numbers of a sample, or of something else that is drawn one after the other.
  enum class Stream : std::uint8_t { kSamples, kPools };
  Random random(Stream stream, std::uint64_t number) const;
  // As many keys as there is room for, from all rows of the table.
  void draw(Random random, std::span<Key> keys) const;

  NodeContext& node_;
  const int worker_;

 private:
  const Table& table_;
  const SamplingSpec& spec_;
  std::uint64_t prepared_ = 0;
};

}  // namespace adaps
