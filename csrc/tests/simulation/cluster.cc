#include "simulation/cluster.h"

#include <utility>

#include "protocol/invariant.h"
#include "simulation/mutants.h"
#include "simulation/violation.h"

namespace adaps::simulation {

namespace {
[[noreturn]] void violated(const char* text) { throw Violation("invariant: ", text); }
}  // namespace

Cluster::Cluster(const WorldSpec& spec, std::uint32_t more_timers)
    : channels_(spec.settings.channels),
      shuffles_(spec.shuffles),
      order_(mix(spec.seed) ^ 0x64697274U),
      network_(spec.settings.nodes, spec.settings.channels,
               2 * static_cast<std::uint32_t>(spec.settings.nodes * spec.settings.channels) + more_timers,
               spec.seed) {
  invariant_handler = violated;
  for (NodeId rank = 0; rank < spec.settings.nodes; ++rank) {
    Settings settings = spec.settings;
    settings.rank = rank;
    const auto first_timer = static_cast<std::uint32_t>((settings.nodes + rank) * channels_);
    nodes_.push_back(std::make_unique<NodeState>(
        spec.tables, settings, [&](const Tables& tables, const Settings& of_node) {
          return std::make_unique<SimulatedStorage>(tables, of_node, spec.disk, network_, first_timer,
                                                    mix(spec.seed ^ 0x6469736bU) + rank);
        }));
    know_node(*nodes_.back());
  }
  sent_.resize(static_cast<std::size_t>(channels_) * nodes_.size() * nodes_.size());
  for (NodeId rank = 0; rank < nodes(); ++rank) {
    for (int i = 0; i < channels_; ++i) channel(rank, i).set_sender([this, rank, i] { send_all(rank, i); });
  }
  for (NodeId rank = 0; spec.backlog && rank < nodes(); ++rank) {
    for (int i = 0; i < channels_; ++i)
      channel(rank, i).set_backlog([this, rank, i](NodeId to) { return backlog({i, rank, to}); });
  }
  for (int i = 0; i < channels_; ++i) cutters_.emplace_back(nodes_[0]->tables, spec.settings.nodes);
}

Cluster::~Cluster() {
  for (const auto& node : nodes_) forget_node(*node);
}

bool Cluster::transfer(std::uint32_t timer) {
  const auto channels = static_cast<std::uint32_t>(channels_);
  if (timer < nodes() * channels || timer >= first_further_timer()) return false;
  const std::uint32_t number = timer - nodes() * channels;
  static_cast<SimulatedStorage&>(*nodes_[number / channels]->storage)
      .on_timer(static_cast<int>(number % channels));
  return true;
}

Micros Cluster::tick(NodeId rank, int index) {
  finish_torn_transfers(node(rank), index);
  const Micros next = ready_channel(rank, index).on_tick();
  send_all(rank, index);
  return next;
}

void Cluster::deliver(const NetworkLink& link, std::span<const std::byte> frame) {
  if (log_ != nullptr) note_entries(link, " got ", frame);
  ready_channel(link.to, link.channel).on_frame(link.from, frame);
  send_all(link.to, link.channel);
}

// Returns a channel that is about to act.
Channel& Cluster::ready_channel(NodeId rank, int index) {
  Channel& driven = channel(rank, index);
  driven.set_now(network_.now());
  if (!shuffles_) return driven;
  DirtyList& dirty = driven.partition().dirty;
  std::vector<Key> keys;
  dirty.take(keys);
  for (std::size_t i = keys.size(); i > 0; --i) {
    std::swap(keys[i - 1], keys[order_.below(i)]);
    dirty.add(keys[i - 1]);
  }
  return driven;
}

void Cluster::note(const std::string& line) {
  if (log_ != nullptr) log_->push_back(joined(network_.now(), " us  ", line));
}

void Cluster::send_all(NodeId rank, int index) {
  channel(rank, index).outbox().drain([&](NodeId to, Frame frame) {
    const NetworkLink link{index, rank, to};
    std::span<const std::byte> rest(frame);
    if (log_ != nullptr) note_entries(link, "sends", rest);
    while (!rest.empty()) {
      const Entry entry = cutters_[static_cast<std::size_t>(index)].cut(rank, to, rest);
      network_.send(link, entry.bytes);
      ++messages_;
      ++sent(link).entries;
      if (on_sent) on_sent(link, entry);
    }
    sent(link).frames.push_back(sent(link).entries);
  });
}

Cluster::Sent& Cluster::sent(const NetworkLink& link) {
  const std::size_t pair = static_cast<std::size_t>(link.from) * nodes() + link.to;
  return sent_[static_cast<std::size_t>(link.channel) * nodes() * nodes() + pair];
}

std::size_t Cluster::backlog(const NetworkLink& link) {
  Sent& all = sent(link);
  const std::uint64_t delivered = all.entries - network_.waiting(link);
  while (!all.frames.empty() && all.frames.front() <= delivered) all.frames.pop_front();
  return all.frames.size();
}

std::uint64_t Cluster::waiting(const NetworkLink& link) {
  Sent& all = sent(link);
  const std::uint64_t delivered = all.entries - network_.waiting(link);
  while (!all.waiting.empty() && all.waiting.front().entry <= delivered) all.waiting.pop_front();
  std::uint64_t sum = 0;
  for (const Sent::Waiting& entry : all.waiting) sum += entry.bytes;
  return sum;
}

void Cluster::add_waiting(const NetworkLink& link, std::size_t bytes) {
  sent(link).waiting.push_back({sent(link).entries, bytes});
}

void Cluster::note_entries(const NetworkLink& link, const char* verb, std::span<const std::byte> frame) {
  const bool sends = verb[0] == 's';
  while (!frame.empty()) {
    const Entry entry = cutters_[static_cast<std::size_t>(link.channel)].cut(link.from, link.to, frame);
    note(joined("n", sends ? link.from : link.to, " ", verb, sends ? " to   n" : " from n",
                sends ? link.to : link.from, "  ", describe(entry, nodes_[0]->tables)));
  }
}

}  // namespace adaps::simulation
