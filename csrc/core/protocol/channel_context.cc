#include "protocol/channel_context.h"

#include <cstdint>
#include <string>

#include "protocol/invariant.h"

namespace adaps {

namespace {
constexpr std::uint8_t kMaxHops = 127;
}  // namespace

ChannelContext::ChannelContext(NodeContext& node_in, int index_in)
    : node(node_in),
      index(index_in),
      rank(node.settings.rank),
      partition(*node.partitions[static_cast<std::size_t>(index)]),
      outbox(node.settings.nodes, &node.tables),
      backlog(node.settings, outbox, counters),
      slice(node.settings.slice) {}

void ChannelContext::check_key(Key key) const {
  if (key >= node.tables.num_keys()) throw ProtocolError("a message names key " + std::to_string(key));
}

void ChannelContext::check_usable(const LockedKey& key) const {
  if (!key.table().is_usable(key.key()))
    throw ProtocolError("a message names key " + std::to_string(key.key()) + ", which has no id");
}

void ChannelContext::check_origin(NodeId from, Route route, NodeId origin) const {
  if (origin >= node.settings.nodes || (route.hops == 0 && origin != from))
    throw ProtocolError(
        from, "sends a message of rank " + std::to_string(origin) + ", which that rank did not send");
}

bool ChannelContext::is_retiring(Key number) {
  if (!node.tables.any_uses()) return false;
  const Table& table = node.tables.find(number, table_hint);
  if (table.uses() == nullptr) return false;
  const RowIds::Adding adding(*table.ids());
  return table.uses()->is_retiring(number - table.first_key());
}

bool ChannelContext::may_ask_for(Key number) { return decisions().may_ask_for(is_retiring(number)); }

void ChannelContext::note_lead(const SlotHeader& header) {
  const std::uint32_t lead = static_cast<std::uint32_t>(now) - header.asked_at();
  counters.lead_micros.add(lead);
  counters.lead_keys.add();
  partition.intents.note_lead(lead);
}

std::size_t ChannelContext::affordable(std::span<const Key> keys) {
  std::size_t count = 0;
  for (; count < keys.size() && !slice.is_used_up(); ++count) spend(keys[count]);
  return count;
}

// After two stale hops, the request is sent to the home node, once. This does not change the home node's
// location entry.
NodeId ChannelContext::next_hop(LockedKey& key, Route& route) const {
  if (route.hops < kMaxHops) ++route.hops;
  const NodeId home = node.directory.home(key.key());
  if (route.hops == 2 && home != rank && route.via_home == 0) {
    route.via_home = 1;
    return home;
  }
  ADAPS_INVARIANT(key.location() != rank, "a location entry names its own node");
  return key.location();
}

}  // namespace adaps
