// What the parts of one channel share: the node, the channel's share of the keys, what is to be sent, and the
// time. It refers to none of the parts.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/stats.h"
#include "common/types.h"
#include "protocol/context.h"
#include "protocol/dirty_list.h"
#include "protocol/message.h"
#include "protocol/outbox.h"
#include "protocol/partition.h"
#include "protocol/prefetcher.h"
#include "protocol/send_backlog.h"
#include "protocol/work_slice.h"
#include "store/store.h"

namespace adaps {

struct ChannelContext {
  ChannelContext(NodeContext& node_in, int index_in);
  ChannelContext(const ChannelContext&) = delete;
  ChannelContext& operator=(const ChannelContext&) = delete;

  // --- keys ---

  // Throws ProtocolError if a message names a key that no table has.
  void check_key(Key key) const;
  // Throws ProtocolError if a request or an intent cannot come from its origin: a node outside of the
  // cluster, or another node than the sender although no node has passed it on.
  void check_origin(NodeId from, Route route, NodeId origin) const;
  LockedKey lock(Key key) { return {node.store, key, table_hint}; }
  // Gives the home node's key that nobody touched yet its initial value.
  void materialize(LockedKey& key) {
    if (!key.untouched_here()) return;
    key.materialize();
    trace(key.key(), TraceKind::kAlloc);
  }
  void trace(Key key, TraceKind kind) {
    if (node.trace.wants(key)) node.trace.add(now, key, kind);
  }
  Holders holders_of(LockedKey& key) { return {partition.tables.holders, key.header().first_holder()}; }
  std::uint32_t intents(const LockedKey& key) const { return node.store.intents(key.key()); }
  // What a replica's owner has not got; nullptr if there is nothing.
  Unapplied* changes_of(LockedKey& key) {
    return key.header().has_changes() ? &partition.tables.unapplied.at(key.header().changes()) : nullptr;
  }
  void release_changes(LockedKey& key) {
    partition.tables.unapplied.release(std::exchange(key.header().changes(), 0));
  }
  // A key that was asked for has come.
  void note_lead(const SlotHeader& header);

  // --- work in slices ---

  void spend(Key key) { slice.spend(node.tables.find(key, table_hint).width()); }
  // Calls function(key) for the keys after the first `done` ones, as many as the slice allows. Returns
  // whether all keys are done.
  template <typename Function>
  bool process_slice(std::span<const Key> keys, std::size_t& done, Function function) {
    const std::span<const Key> some = keys.subspan(done, affordable(keys.subspan(done)));
    for_each_prefetched(node.store, partition.tables, some, function);
    done += some.size();
    return done == keys.size();
  }
  // The same for a function that mostly reads key words and counts of intents only.
  template <typename Function>
  bool process_counting_slice(std::span<const Key> keys, std::size_t& done, Function function) {
    const std::span<const Key> some = keys.subspan(done, affordable(keys.subspan(done)));
    for_each_counted(node.store, some, function);
    done += some.size();
    return done == keys.size();
  }

  // --- messages ---

  // Appends a message that says itself whether the key's value goes with it.
  template <typename Message>
  std::size_t append_with_value(LockedKey& key, NodeId to, const Message& message) {
    if (message.payload != Payload::kValue) return outbox.append(to, message);
    return outbox.append(to, message, {key.stored(key.width())});
  }
  // Passes on a request or an intent that came to a node which does not own the key.
  template <typename Message>
  void forward(LockedKey& key, Message message, std::span<const float> payload = {}) {
    counters.requests_forwarded.add();
    const NodeId to = next_hop(key, message.route);
    outbox.append(to, message, {payload});
    outbox.leave_now(to);  // it has waited where it began
  }
  // Sends the last message about the key now, because a call waits for its answer.
  void send_request_now(const LockedKey& key) { outbox.leave_now(key.location()); }

  NodeContext& node;
  const int index;
  const NodeId rank;
  Partition& partition;
  Micros now = 0;
  Outbox outbox;
  ChannelCounters counters;
  SendBacklog backlog;
  WorkSlice slice;
  const Table* table_hint = nullptr;
  std::vector<float> encoded;  // what a lossy wire has of one row or change, until it is in the outbox

 private:
  // How many of the keys the slice has room for.
  std::size_t affordable(std::span<const Key> keys);
  NodeId next_hop(LockedKey& key, Route& route) const;
};

}  // namespace adaps
