// Objects that the parts of one channel share: the node, the channel's keys, the messages to send, and the
// time. It does not refer to the parts.
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

  // Throws ProtocolError if no table has the key of a message.
  void check_key(Key key) const;
  // Throws ProtocolError if a request or an intent cannot come from its origin: if the origin is outside of
  // the cluster, or if it is not the sender although no node has forwarded the message.
  void check_origin(NodeId from, Route route, NodeId origin) const;
  LockedKey lock(Key key) { return {node.store, key, table_hint}; }
  // Gives a key its initial value if this is its home node and it was never used.
  void materialize(LockedKey& key) {
    if (!key.untouched_here()) return;
    check_usable(key);
    key.materialize();
    trace(key.key(), TraceKind::kAlloc);
  }
  void trace(Key key, TraceKind kind) {
    if (node.trace.wants(key)) node.trace.add(now, key, kind);
  }
  Holders holders_of(LockedKey& key) { return {partition.tables.holders, key.header()}; }
  std::uint32_t intents(const LockedKey& key) const { return node.store.intents(key.key()); }
  // Changes of a replica that its owner has not received, or nullptr if there are none.
  Unapplied* changes_of(LockedKey& key) {
    return key.header().has_changes() ? &partition.tables.unapplied.at(key.header().changes()) : nullptr;
  }
  void release_changes(LockedKey& key) {
    partition.tables.unapplied.release(key.header().changes());
    key.header().set_changes(0);
  }
  // Whether other nodes are asked to give up the row of a key, which this node assigns.
  bool is_retiring(Key number);
  // Whether this node may send INTENT for a key of any technique. It may not while the row is retired,
  // because the key may be on its way back.
  bool may_ask_for(Key number);
  // Records, for statistics, that a requested key has arrived.
  void note_lead(const SlotHeader& header);

  // Throws ProtocolError if another node uses a row to which no id was assigned.
  void check_usable(const LockedKey& key) const;

  // --- work in slices ---

  void spend(Key key) { slice.spend(node.tables.find(key, table_hint).width()); }
  // Calls function(key) for as many of the keys as the slice allows, beginning after the first `done` keys.
  // Returns whether all keys are done.
  template <typename Function>
  bool process_slice(std::span<const Key> keys, std::size_t& done, Function function) {
    const std::span<const Key> some = keys.subspan(done, affordable(keys.subspan(done)));
    for_each_prefetched(node.store, partition.tables, some, function);
    done += some.size();
    return done == keys.size();
  }
  // Like process_slice, for a function that mostly reads key words and intent counts.
  template <typename Function>
  bool process_counting_slice(std::span<const Key> keys, std::size_t& done, Function function) {
    const std::span<const Key> some = keys.subspan(done, affordable(keys.subspan(done)));
    for_each_counted(node.store, some, function);
    done += some.size();
    return done == keys.size();
  }

  // --- messages ---

  // Appends a message whose `payload` field determines whether the key's value follows.
  template <typename Message>
  std::size_t append_with_value(LockedKey& key, NodeId to, const Message& message) {
    if (message.payload != Payload::kValue) return outbox.append(to, message);
    return outbox.append(to, message, {key.stored(key.width())});
  }
  // Forwards a request or an intent for a key that this node does not own.
  template <typename Message>
  void forward(LockedKey& key, Message message, std::span<const float> payload = {}) {
    counters.requests_forwarded.add();
    const NodeId to = next_hop(key, message.route);
    outbox.append(to, message, {payload});
    outbox.leave_now(to);  // the message has already waited at its origin
  }
  // Lets the last message about the key leave now, because a call waits for its answer.
  void send_request_now(const LockedKey& key) { outbox.leave_now(key.location()); }
  // Records the owner of a key that has no value here. A message to the previous location leaves now, because
  // send_request_now() would not find it any more.
  void learn_location(LockedKey& key, NodeId owner, RelocationCount rc) {
    if (key.state() != State::kNone) send_request_now(key);
    key.set_location(owner, rc);
  }

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
  std::vector<float> encoded;  // encoding of one row or change, until it is in the outbox

 private:
  // Number of these keys that the slice allows.
  std::size_t affordable(std::span<const Key> keys);
  NodeId next_hop(LockedKey& key, Route& route) const;
};

}  // namespace adaps
