// Draws a worker's samples from a table (docs/concepts/protocol.md, section 19). A sample is a list of rows.
// Intent is signalled for some of them, and the values of others are read at once, depending on the scheme.
//
// A sample is prepared before it is taken. The rows of a sample depend on the seed, the node, the worker, the
// table and the number of the sample. With the scheme `local`, they also depend on the rows that are on this
// node when the sample is taken.
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

// Keys for which intent must be signalled, for the clocks [start, end).
struct Announcement {
  std::vector<Key> keys;
  Clock start;
  Clock end;
};

// A prepared sample.
struct Sample {
  std::uint64_t number = 0;  // index of the sample for this worker and table, from 0
  std::size_t size = 0;
  std::vector<Key> keys;  // empty if the keys are drawn when the sample is taken
};

// Draws the samples of one table for one worker.
class Sampler {
 public:
  // Creates the sampler for the table's scheme. Throws std::invalid_argument that names the table if it has
  // no sampling.
  static std::unique_ptr<Sampler> make(NodeContext& node, int worker, const Table& table);

  Sampler(NodeContext& node, int worker, const Table& table, const SamplingSpec& spec);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  virtual ~Sampler() = default;

  const Table& table() const { return table_; }

  // Prepares a sample that will be used in the clocks [start, end). Appends the keys for which intent must be
  // signalled to `announcements`. Throws std::invalid_argument that names the size if no such sample is
  // possible.
  Sample prepare(std::size_t size, Clock start, Clock end, std::vector<Announcement>& announcements);

  // Writes the keys of a sample, in the order in which they were drawn. Returns the number of keys at the
  // beginning that were local. The values of these keys are written to `values`; the caller must pull the
  // others. If `values` is null, no values are read.
  virtual std::size_t take(const Sample& sample, std::span<Key> keys, float* values);

 protected:
  virtual void prepare(Sample& sample, Clock start, Clock end, std::vector<Announcement>& announcements) = 0;
  // Maximum number of rows of a sample. By default, this is the number of rows with a probability above 0.
  virtual std::uint64_t largest() const;

  const SamplingSpec& spec() const { return spec_; }
  // Kinds of random streams. The items of each kind are numbered.
  enum class Stream : std::uint8_t { kSamples, kPools };
  Random random(Stream stream, std::uint64_t number) const;
  // Fills `keys` with keys drawn from all rows of the table.
  void draw(Random random, std::span<Key> keys) const;

  NodeContext& node_;
  const int worker_;

 private:
  const Table& table_;
  const SamplingSpec& spec_;
  std::uint64_t prepared_ = 0;
};

}  // namespace adaps
