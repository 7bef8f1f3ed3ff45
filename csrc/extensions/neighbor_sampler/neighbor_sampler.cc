#include "neighbor_sampler.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "common/random.h"

namespace sampler {
namespace {

// Maps 32 random bits to [0, bound). The bias is at most bound / 2^32, which is not measurable in any sample.
std::uint32_t bounded(std::uint32_t bits, std::uint32_t bound) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(bits) * bound) >> 32);
}

constexpr Node kAbsent = -1;
// Number of nodes whose neighbors are drawn before any of these neighbors is looked up. The number is large
// enough for prefetches to arrive in time, and small enough for the prefetched lines to stay in the
// first-level cache.
constexpr std::size_t kBlock = 32;
// Prefetch distances of the loops over nodes and over sources.
constexpr std::size_t kNodesAhead = 16;
constexpr std::ptrdiff_t kSourcesAhead = 24;

void prefetch(const void* address) { __builtin_prefetch(address); }

std::int64_t draw_count(std::int64_t degree, std::int64_t fanout) {
  return fanout < 0 || degree < fanout ? degree : fanout;
}

}  // namespace

// Temporary data of one call. Between calls, all elements of `local_` are kAbsent, and `drawn_` is zero.
class NeighborSampler::Scratch {
 public:
  Scratch(std::int64_t num_nodes, std::int64_t max_degree)
      : local_(num_nodes, kAbsent), drawn_(max_degree / 64 + 1) {}

  // Returns whether the node is new. A new node gets the next local number.
  bool add(Subgraph& out, std::int64_t node) {
    if (local_[node] != kAbsent) return false;
    local_[node] = static_cast<Node>(out.nodes.size());
    out.nodes.append(node);
    return true;
  }

  void expand(const NeighborSampler& graph, std::size_t first, std::size_t last, std::int64_t fanout,
              adaps::SplitMix64& random, Subgraph& out);

  void forget(const Subgraph& out) {
    for (std::size_t i = 0; i < out.nodes.size(); ++i) local_[out.nodes.data()[i]] = kAbsent;
  }

 private:
  struct Arcs {
    std::int64_t begin;
    std::int64_t degree;
  };

  std::size_t locate(const NeighborSampler& graph, const std::int64_t* nodes, std::size_t count,
                     std::int64_t fanout);
  const Node** draw(const NeighborSampler& graph, Arcs arcs, std::int64_t fanout, adaps::SplitMix64& random,
                    const Node** out);

  std::vector<Node> local_;           // by node of the graph: its number in the subgraph
  std::vector<std::uint64_t> drawn_;  // a bit for each arc of the node that is expanded
  std::vector<Arcs> arcs_;            // by node of the frontier
  std::vector<const Node*> sources_;  // addresses of the arcs drawn for the current block
};

// Passes a Scratch from a completed call to the next call. Concurrent calls use one each.
class NeighborSampler::Lease {
 public:
  explicit Lease(const NeighborSampler& owner) : owner_(owner) {
    {
      const std::lock_guard lock(owner_.mutex_);
      if (!owner_.idle_.empty()) {
        scratch_ = std::move(owner_.idle_.back());
        owner_.idle_.pop_back();
      }
    }
    if (!scratch_) scratch_ = std::make_unique<Scratch>(owner_.num_nodes_, owner_.max_degree_);
  }

  // Only a completed call returns its Scratch, since a failed call leaves it in an inconsistent state.
  void give_back() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }

  Scratch& operator*() { return *scratch_; }

 private:
  const NeighborSampler& owner_;
  std::unique_ptr<Scratch> scratch_;
};

void Subgraph::clear() {
  nodes.clear();
  row.clear();
  col.clear();
  nodes_per_hop.clear();
  edges_per_hop.clear();
}

NeighborSampler::NeighborSampler(std::span<const std::int64_t> indptr, std::span<const Node> indices)
    : indptr_(indptr), indices_(indices), num_nodes_(static_cast<std::int64_t>(indptr.size()) - 1) {
  if (indptr.empty() || indptr.front() != 0 || indptr.back() != num_arcs()) {
    throw std::invalid_argument("indptr must start with 0 and end with the number of arcs, " +
                                std::to_string(num_arcs()));
  }
  for (std::int64_t v = 0; v < num_nodes_; ++v) {
    const std::int64_t degree = indptr[v + 1] - indptr[v];
    if (degree < 0) {
      throw std::invalid_argument("indptr must not fall, but it goes from " + std::to_string(indptr[v]) +
                                  " to " + std::to_string(indptr[v + 1]) + " at node " + std::to_string(v));
    }
    max_degree_ = std::max(max_degree_, degree);
  }
  for (const Node u : indices) {
    if (u < 0 || u >= num_nodes_) {
      throw std::invalid_argument("node " + std::to_string(u) + " in indices is outside [0, " +
                                  std::to_string(num_nodes_) + ")");
    }
  }
}

NeighborSampler::~NeighborSampler() = default;

void NeighborSampler::sample(std::span<const std::int64_t> seeds, std::span<const std::int64_t> fanouts,
                             std::uint64_t stream, Subgraph& out) const {
  for (const std::int64_t fanout : fanouts) {
    if (fanout < -1) {
      throw std::invalid_argument("fan-out " + std::to_string(fanout) +
                                  " must be a number of neighbours, or -1 for all of them");
    }
  }
  for (const std::int64_t seed : seeds) {
    if (seed < 0 || seed >= num_nodes_) {
      throw std::invalid_argument("seed node " + std::to_string(seed) + " is outside [0, " +
                                  std::to_string(num_nodes_) + ")");
    }
  }

  Lease lease(*this);
  Scratch& scratch = *lease;
  adaps::SplitMix64 random(stream);
  out.clear();
  out.nodes.reserve(seeds.size());
  for (const std::int64_t seed : seeds) {
    if (!scratch.add(out, seed)) {
      throw std::invalid_argument("seed node " + std::to_string(seed) + " is given twice");
    }
  }
  out.nodes_per_hop.push_back(static_cast<std::int64_t>(seeds.size()));
  std::size_t first = 0;
  for (const std::int64_t fanout : fanouts) {
    const std::size_t last = out.nodes.size();
    const std::size_t edges = out.row.size();
    scratch.expand(*this, first, last, fanout, random, out);
    out.nodes_per_hop.push_back(static_cast<std::int64_t>(out.nodes.size() - last));
    out.edges_per_hop.push_back(static_cast<std::int64_t>(out.row.size() - edges));
    first = last;
  }
  scratch.forget(out);
  lease.give_back();
}

// Draws in-neighbors of the subgraph's nodes with numbers in [first, last).
void NeighborSampler::Scratch::expand(const NeighborSampler& graph, std::size_t first, std::size_t last,
                                      std::int64_t fanout, adaps::SplitMix64& random, Subgraph& out) {
  const std::size_t edges = locate(graph, out.nodes.data() + first, last - first, fanout);
  std::int64_t* row = out.row.extend(edges);
  std::int64_t* col = out.col.extend(edges);
  // One additional element, because the loop below writes a node before it checks whether the node is new.
  std::int64_t* const nodes = out.nodes.extend(edges + 1) - last;
  Node* const local = local_.data();
  auto count = static_cast<Node>(last);
  for (std::size_t begin = first; begin < last; begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, last);
    const Node** drawn = sources_.data();
    for (std::size_t target = begin; target < end; ++target) {
      const Node** const before = drawn;
      drawn = draw(graph, arcs_[target - first], fanout, random, drawn);
      col = std::fill_n(col, drawn - before, static_cast<std::int64_t>(target));
    }
    // The loop has no branch. About every second source is new, which no branch predictor could predict.
    for (const Node** source = sources_.data(); source < drawn; ++source) {
      if (drawn - source > kSourcesAhead) prefetch(&local[*source[kSourcesAhead]]);
      const Node node = **source;
      const Node known = local[node];
      const Node is_new = known >> 31;  // all bits are set, or none, as kAbsent is the only negative number
      const Node number = (known & ~is_new) | (count & is_new);
      nodes[count] = node;
      local[node] = number;
      *row++ = number;
      count -= is_new;
    }
  }
  out.nodes.truncate(count);
}

// Finds the arcs of the frontier's nodes. Returns the number of arcs that will be drawn.
std::size_t NeighborSampler::Scratch::locate(const NeighborSampler& graph, const std::int64_t* nodes,
                                             std::size_t count, std::int64_t fanout) {
  arcs_.resize(count);
  std::int64_t edges = 0;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kNodesAhead < count) prefetch(&graph.indptr_[nodes[i + kNodesAhead]]);
    const std::int64_t begin = graph.indptr_[nodes[i]];
    const std::int64_t degree = graph.indptr_[nodes[i] + 1] - begin;
    const std::int64_t draws = draw_count(degree, fanout);
    arcs_[i] = {begin, degree};
    edges += draws;
    most = std::max(most, draws);
  }
  if (sources_.size() < kBlock * most) sources_.resize(kBlock * most);
  return static_cast<std::size_t>(edges);
}

// Writes the addresses of the drawn arcs, starting at `out`, and returns the end. Uses Floyd's algorithm
// (Bentley, Floyd: A Sample of Brilliance, CACM 1987): k draws give a uniform subset of size k.
const Node** NeighborSampler::Scratch::draw(const NeighborSampler& graph, Arcs arcs, std::int64_t fanout,
                                            adaps::SplitMix64& random, const Node** out) {
  const Node* const source = graph.indices_.data() + arcs.begin;
  const std::int64_t count = draw_count(arcs.degree, fanout);
  if (count == arcs.degree) {
    if (count == 0) return out;
    prefetch(source);
    prefetch(source + count - 1);
    for (std::int64_t i = 0; i < count; ++i) *out++ = source + i;
    return out;
  }
  std::uint64_t bits = 0;
  const auto pick = [&](std::int64_t i, auto taken) {
    const auto bound = static_cast<std::uint32_t>(arcs.degree - count + i);
    bits = i % 2 == 0 ? random.next() : bits >> 32;
    const std::uint32_t draw = bounded(static_cast<std::uint32_t>(bits), bound + 1);
    // This has no branch. With few neighbors, a draw is often already taken, which is hard to predict.
    const std::uint32_t arc = draw ^ ((draw ^ bound) & (0 - taken(draw)));
    *out++ = source + arc;
    prefetch(source + arc);
    return arc;
  };
  if (arcs.degree <= 64) {
    std::uint64_t drawn = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      drawn |= std::uint64_t{1} << pick(
                   i, [=](std::uint32_t arc) { return static_cast<std::uint32_t>(drawn >> arc & 1); });
    }
    return out;
  }
  const Node** const before = out;
  std::uint64_t* const drawn = drawn_.data();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t arc = pick(
        i, [=](std::uint32_t arc) { return static_cast<std::uint32_t>(drawn[arc / 64] >> (arc % 64) & 1); });
    drawn[arc / 64] |= std::uint64_t{1} << (arc % 64);
  }
  for (const Node** arc = before; arc < out; ++arc) drawn[(*arc - source) / 64] = 0;
  return out;
}

}  // namespace sampler
