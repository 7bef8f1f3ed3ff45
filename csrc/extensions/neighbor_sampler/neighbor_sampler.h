// Uniform neighbor sampling without replacement on a graph in compressed sparse columns.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "buffer.h"

namespace sampler {

using Node = std::int32_t;

// A sampled subgraph. Edge e leads from nodes[row[e]] to nodes[col[e]]. `nodes` contains the seeds and then
// all other nodes in the order of their discovery.
struct Subgraph {
  Buffer<std::int64_t> nodes;
  Buffer<std::int64_t> row;
  Buffer<std::int64_t> col;
  std::vector<std::int64_t> nodes_per_hop;  // the seeds are hop 0
  std::vector<std::int64_t> edges_per_hop;

  // Removes all contents but keeps the memory.
  void clear();
};

// Samples from arrays that the caller owns. Several threads may use a sampler at once.
class NeighborSampler {
 public:
  // The sources of the arcs into node v are indices[indptr[v]] … indices[indptr[v + 1] - 1].
  // Throws std::invalid_argument when the arrays do not describe a graph.
  NeighborSampler(std::span<const std::int64_t> indptr, std::span<const Node> indices);
  ~NeighborSampler();

  // Draws min(fanouts[h], in-degree) in-neighbors of every node that hop h has added, or all of them if the
  // fan-out is -1. Replaces the contents of `out`. Equal seeds, fan-outs and streams give equal subgraphs.
  // Throws std::invalid_argument for a seed that is not a node, a repeated seed, or a fan-out below -1.
  void sample(std::span<const std::int64_t> seeds, std::span<const std::int64_t> fanouts,
              std::uint64_t stream, Subgraph& out) const;

  std::int64_t num_nodes() const { return num_nodes_; }
  std::int64_t num_arcs() const { return static_cast<std::int64_t>(indices_.size()); }

 private:
  class Scratch;
  class Lease;

  std::span<const std::int64_t> indptr_;
  std::span<const Node> indices_;
  std::int64_t num_nodes_;
  std::int64_t max_degree_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // guarded by mutex_
};

}  // namespace sampler
