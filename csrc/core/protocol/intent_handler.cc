#include "protocol/intent_handler.h"

#include <algorithm>
#include <span>

#include "protocol/invariant.h"

namespace adaps {

namespace {
// Number of keys that a node with full replication requests in one tick. It limits the size of frames.
constexpr Key kPermanentBatch = 8192;

// Whether any row of a table is replicated permanently. One row of each range suffices, because a range has
// one management.
bool keeps_any(const NodeContext& node, const Table& table) {
  bool any = decisions().keeps_for_good(node, table.first_key());
  for (const ManagedRange& range : table.spec().managed)
    any = any || decisions().keeps_for_good(node, table.first_key() + range.end - 1);
  return any;
}

}  // namespace

IntentHandler::IntentHandler(ChannelContext& channel, StoredRows& stored, Ownership& ownership,
                             Replicas& replicas)
    : channel_(channel), stored_(stored), ownership_(ownership), replicas_(replicas) {
  const Tables& tables = channel.node.tables;
  bool any = false;
  for (std::size_t i = 0; i < tables.size(); ++i) any = any || keeps_any(channel.node, tables[i]);
  if (!any) permanent_cursor_ = tables.num_keys();
}

void IntentHandler::act_on_intents(Micros last_round) {
  const bool round_due = channel_.partition.intents.act(
      channel_.now, last_round, channel_.counters,
      [this](std::span<const Key> keys, std::size_t& done, Micros until_start, bool for_good) {
        return channel_.process_counting_slice(keys, done,
                                               [&](Key key) { start(key, until_start, for_good); });
      },
      [this](std::span<const Key> keys, std::size_t& done) {
        return channel_.process_counting_slice(keys, done, [this](Key key) { end(key); });
      },
      [this](std::span<const Key> keys) {
        for (const Key key : keys) channel_.node.unpin(key);
      });
  if (round_due) channel_.partition.request_round();
}

void IntentHandler::start(Key number, Micros until_start, bool for_good) {
  Store& store = channel_.node.store;
  const std::uint32_t before = store.intents(number);
  store.set_intents(number, decisions().begun(before));
  if (before == 0) channel_.trace(number, TraceKind::kIntentStart);
  if (!channel_.may_ask_for(number)) return;
  if (decisions().begins_without_message(store, number) && !stored_.must_be_created(number)) return;
  LockedKey key = channel_.lock(number);
  if (!stored_.bring(key, StoredRows::Need::kAhead) || !decisions().uses_intent(channel_.node, number))
    return;
  if (decisions().may_ask(key.state())) ownership_.ask_for(key, until_start, for_good);
}

// Ends an intent. If it was the node's last intent for the key, gives up a replica that exists only because
// of intents.
void IntentHandler::end(Key number) {
  Store& store = channel_.node.store;
  const std::uint32_t before = store.intents(number);
  ADAPS_INVARIANT(before > 0, "an intent ends that is not counted");
  store.set_intents(number, before - 1);
  decisions().end_pin(channel_.node, number);
  if (before > 1) return;
  channel_.trace(number, TraceKind::kIntentStop);
  if (decisions().ends_without_message(store, number)) return;
  LockedKey key = channel_.lock(number);
  switch (key.state()) {
    case State::kOwner:
      ownership_.reconsider(key);
      return;
    case State::kReplica:
      replicas_.try_drop(key);
      return;
    case State::kStored:
    case State::kNone:  // under relocation, another node got the key, and this node did not request it again
    case State::kPending:   // on_setup will give up the replica
    case State::kDropping:  // on_drop_ack will check the count
      return;
  }
}

void IntentHandler::start_permanent() {
  const NodeContext& node = channel_.node;
  const Key end = std::min(permanent_cursor_ + kPermanentBatch, node.tables.num_keys());
  for (; permanent_cursor_ < end; ++permanent_cursor_) {
    if (node.directory.channel(permanent_cursor_) == channel_.index &&
        decisions().keeps_for_good(node, permanent_cursor_))
      start(permanent_cursor_, 0, true);
  }
}

}  // namespace adaps
