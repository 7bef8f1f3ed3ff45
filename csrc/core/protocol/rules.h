// The rules that keep the protocol right, one function for each (docs/concepts/protocol.md, section 15). The
// code that asks them says what happens; what decides it stands here.
//
// In the simulation build they are virtual: tests/simulation/mutants.cc breaks one of them at a time, which
// proves that the simulator notices. Elsewhere they are plain inline functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <vector>

#include "common/random.h"
#include "common/types.h"
#include "protocol/dirty_list.h"
#include "protocol/message.h"
#include "protocol/operation.h"
#include "protocol/wire_encoding.h"
#include "store/add.h"
#include "store/directory.h"
#include "store/store.h"
#include "store/table.h"

#ifdef ADAPS_SIMULATION
#define ADAPS_RULE virtual
#else
#define ADAPS_RULE
#endif

namespace adaps {

class Flusher;
class Outbox;
struct NodeContext;

enum class Decision : std::uint8_t { kRelocate, kReplicate };

// A wait_sync whose MARK is on its way.
struct PendingSync {
  Operation* operation;
  std::uint32_t number;
  int echoes_left;
};

struct Rules {
#ifdef ADAPS_SIMULATION
  virtual ~Rules() = default;
#endif

  // --- how a key is managed, and where it is at home ---

  // How a key is managed: as its own table says of its own row.
  ADAPS_RULE const Management& managing(const Tables& tables, Key key) const {
    return tables.find(key).management(key);
  }
  // Whether intent for a key has an effect: not if its rows stay where they are.
  ADAPS_RULE bool uses_intent(const NodeContext& node, Key key) const;
  // Whether a node keeps a copy of the key for good, without any signal of intent.
  ADAPS_RULE bool keeps_for_good(const NodeContext& node, Key key) const;
  // Under replication a key stays at home, even if just one other node is left that has it.
  ADAPS_RULE bool may_give_to_last_holder(Technique technique) const {
    return technique == Technique::kAdaptive;
  }
  // Where keys are at home: as their tables say, so at the same place for every node.
  ADAPS_RULE Directory directory(const Settings& settings, const Tables& tables) const {
    return {settings.nodes, settings.channels, tables};
  }
  // Who is told of a relocation: requests that have lost their way go by way of the home node.
  ADAPS_RULE NodeId told_of_relocation(const Directory& directory, Key key) const {
    return directory.home(key);
  }

  // --- who owns a key, and who has a copy ---

  // What an owner does for a node that has intent. An owner that others hold replicas of stays where it is.
  ADAPS_RULE Decision decide(Technique technique, bool own_intent, bool has_holders) const {
    switch (technique) {
      case Technique::kRelocation:
        return Decision::kRelocate;
      case Technique::kAdaptive:
        return own_intent || has_holders ? Decision::kReplicate : Decision::kRelocate;
      case Technique::kReplication:
      case Technique::kFullReplication:
      case Technique::kStatic:
        break;
    }
    return Decision::kReplicate;
  }
  // Signals for a key are counted, wherever it is: it stays wanted until the last of them has ended.
  ADAPS_RULE std::uint32_t begun(std::uint32_t count) const { return count + 1; }
  // Where the key is here, nobody has to be asked for it,
  ADAPS_RULE bool begins_in_silence(const Store& store, Key key) const {
    const std::uint32_t seen = store.peek(key);
    return is_owned_or_copied(seen) || store.untouched_here(key, seen);
  }
  // and where it is nobody else's, nobody waits for the end.
  ADAPS_RULE bool ends_in_silence(const Store& store, Key key) const {
    const std::uint32_t seen = store.peek(key);
    return is_owned_alone(seen) || store.untouched_here(key, seen);
  }
  // A node asks for a key that it does not have: not while its last conversation about it goes on.
  ADAPS_RULE bool may_ask(State state) const { return state == State::kNone; }
  // The owner knows every holder.
  ADAPS_RULE void add_holder(Holders holders, NodeId node, Version sent) const { holders.add(node, sent); }
  // Only a holder that is up to date becomes owner without getting the value.
  ADAPS_RULE bool has_value(const Holder& holder, Version version) const { return holder.sent == version; }
  // Reading the value and giving up the key is one critical section.
  ADAPS_RULE void give_up(LockedKey& key, NodeId to, RelocationCount rc) const { key.release(to, rc); }
  // Only a larger count replaces a location entry.
  ADAPS_RULE bool is_newer_location(RelocationCount rc, RelocationCount known) const {
    return newer_entry(rc, known);
  }
  // A replica whose intent ended while it was on its way is given up at once.
  ADAPS_RULE bool is_unwanted(std::uint32_t intents) const { return intents == 0; }
  // A replica stays until the owner has confirmed that it is no holder any more.
  ADAPS_RULE bool stays_until_drop_ack() const { return true; }
  // The last holder that is left may be the only node that is interested.
  ADAPS_RULE bool reconsiders_after_drop(const SlotHeader& header) const { return header.has_holders(); }

  // --- values and changes ---

  ADAPS_RULE bool is_initial(Version version) const { return version == 0; }
  // The initial value is not sent: who is told of it makes it.
  ADAPS_RULE void make_initial(LockedKey& key) const { key.table().init(key.key(), key.value()); }
  // A row that comes as it is stored is taken so, as its own table stores it.
  ADAPS_RULE void take_stored(LockedKey& key, Reader& reader) const {
    key.take(reader.floats(key.table().stored_words(key.width())));
  }
  // What is written to a packed row is rounded at random, so that in the mean nothing of it is lost,
  ADAPS_RULE void round(LockedKey& key, std::uint64_t seed) const { key.keep(seed); }
  // by other numbers for each version, and by the same ones on every node that makes it.
  ADAPS_RULE std::uint64_t seed_of_rounding(LockedKey& key) const {
    return mix(mix(key.key()) ^ key.header().version());
  }
  // A packed copy is stored as its owner stores it, apart from the changes that the owner has not got: what
  // it gets is added to the copy when it says so,
  ADAPS_RULE void settle(LockedKey& key, const Delta& applied) const {
    const Table& table = key.table();
    if (applied.change != Change::kGradient || applied.hyperparameters != table.now().with.fingerprint()) {
      merge(key, applied);
    } else {  // as the owner did: what the change says may differ in the last bit
      apply_sent(key, applied.floats.get() + table.change_length());
    }
  }
  // and the rest of them when the copy becomes the owner's value. One that is not packed contains them.
  ADAPS_RULE bool lacks_changes(const Table& table, bool has_come) const {
    return has_come || table.is_packed();
  }
  // Neither part is in the value that comes with TRANSFER: a delta that crosses it is discarded.
  ADAPS_RULE void absorb(LockedKey& key, const Unapplied& changes) const { merge_both(key, changes); }
  // A write at the owner makes another value, which needs another version, also if nobody else holds it;
  ADAPS_RULE void count_change(SlotHeader& owner) const { owner.advance_version(); }
  // where it gets it when somebody looks at it: what its key word becomes says that it was written.
  ADAPS_RULE std::uint32_t written_alone(std::uint32_t word, const SlotHeader&) const {
    return word | word::kUncounted;
  }
  // and so does what was absorbed.
  ADAPS_RULE Version absorbed(Version version) const { return next_version(version); }
  // Nor is either in the value that comes with REFRESH, or in a packed copy.
  ADAPS_RULE void add_again(LockedKey& key, const Unapplied& changes) const { merge_both(key, changes); }
  // What a key's value and changes are on the network: as its table says of its row.
  ADAPS_RULE Wire wire_of(const Table& table, Key key) const { return table.management(key).wire; }
  // How often changes of a key are exchanged: as its table says of its row. Gives which of its managements.
  ADAPS_RULE std::size_t cadence_of(const Table& table, Key key) const {
    return table.management_number(key);
  }
  // Changes go out at most every so many clocks,
  ADAPS_RULE bool is_due(Clock since, Clock exchange) const { return since >= exchange; }
  // and then they do: the first clock at which any are due brings a round.
  ADAPS_RULE Clock round_at(Clock due) const { return due; }
  // What becomes dirty while a flush is under way waits for the next one, or it would go twice.
  ADAPS_RULE bool may_join_flush(bool everything) const { return everything; }
  // What a lossy wire brings is decoded with the scale of the same row.
  ADAPS_RULE void decode(const Table& table, Wire wire, std::span<const float> words,
                         std::span<float> floats) const {
    adaps::decode(table, wire, words, floats);
  }
  // What a change was rounded by stays with its sender, once.
  ADAPS_RULE float rest(float change, float sent) const { return change - sent; }
  // It goes when a replica is given up, and before a checkpoint.
  ADAPS_RULE bool goes_with_drop(const Delta& unsent) const { return static_cast<bool>(unsent); }
  ADAPS_RULE bool takes_up_rests() const { return true; }
  // Rests are where any row's wire rounds.
  ADAPS_RULE bool may_have_rests(const Table& table) const { return table.is_lossy(); }
  // A copy that came through a lossy wire is no owner's value.
  ADAPS_RULE bool has_exact_copies(const Table& table, Key key) const { return !rounds(table, key); }
  // One change of a replica is on its way at a time.
  ADAPS_RULE bool may_send_delta(LockedKey&, Unapplied& changes) const { return !changes.in_flight; }
  ADAPS_RULE bool may_send_drop(LockedKey&, Unapplied& changes) const { return !changes.in_flight; }
  // A change of an earlier tenure of the owner was absorbed by its sender.
  ADAPS_RULE bool is_of_tenure(RelocationCount rc, RelocationCount tenure) const { return rc == tenure; }
  ADAPS_RULE void discard(Outbox&, LockedKey&, const DeltaMessage&, std::span<const float>) const {}
  // Owner and holder have the same row then, and the holder needs no refresh.
  ADAPS_RULE bool is_exact(bool gave_same_row, bool was_up_to_date) const {
    return gave_same_row && was_up_to_date;
  }
  ADAPS_RULE bool gives_same_row(Version applied_to, Version version, bool same_hyperparameters) const {
    return applied_to == version && same_hyperparameters;
  }
  // What several pushes made goes as a change, not as the gradient of one of them.
  ADAPS_RULE Change change_of_several(Change) const { return Change::kDelta; }
  // A set goes to the owner, which orders it among those of other nodes.
  ADAPS_RULE bool is_served_by_replica(OperationKind kind) const { return kind != OperationKind::kSet; }
  // Applies a push or a gradient to a copy and to what its owner has not got.
  ADAPS_RULE void apply_at_replica(OperationKind kind, LockedKey& key, const float* in, float* change,
                                   const UpdateStep& step) const {
    if (kind == OperationKind::kPush) {
      add_to(key.value(), in, key.length());
      add_to(change, in, key.length());
    } else {
      key.table().apply_gradient(key.value(), in, change, step);
    }
  }
  // Holders are told what changes at their owner.
  ADAPS_RULE bool is_to_be_refreshed(const SlotHeader& owner) const { return owner.has_holders(); }

  // --- exports ---

  // A row is as it was told if it has that version, wherever it has been meanwhile.
  ADAPS_RULE bool is_told(Version told, Version version) const { return told == version; }

  // --- requests ---

  // All occurrences of a key in a call go together, or a later one overtakes an earlier one.
  ADAPS_RULE bool go_together(Key a, Key b) const { return a == b; }
  // Parts of a push that is too long for one message go one after the other.
  ADAPS_RULE bool waits_for_part_before(const KeyRequest& request) const { return request.follows; }
  // Of duplicates in one set the last counts.
  ADAPS_RULE std::uint32_t occurrence_that_counts(const KeyRequest& set) const { return set.last; }
  // A set comes behind what its node pushed before.
  ADAPS_RULE bool is_to_be_flushed_before_set(const Unapplied& changes) const {
    return static_cast<bool>(changes.unsent);
  }
  // A later owner's answer may overtake the earlier owner's word that this replica is dropped.
  ADAPS_RULE bool makes_unreadable(bool answer_is_newer, State state) const {
    return answer_is_newer && state == State::kDropping;
  }
  // A holder must not be told that its operation is done while its replica still shows the older value.
  ADAPS_RULE bool is_refreshed_before_answer(const Holder* holder) const { return holder != nullptr; }
  ADAPS_RULE bool has_room(std::size_t queued_bytes, std::size_t limit) const { return queued_bytes < limit; }
  // Bytes of a finished call that are not queued any more.
  ADAPS_RULE std::size_t freed(std::size_t bytes) const { return bytes; }

  // --- samples ---

  // What takes no message for a sample can be read here now, as for a pull.
  ADAPS_RULE std::uint32_t needed_for_sample() const { return word::kSlot | word::kReadable; }
  // All rows of a sample are announced when it is prepared.
  ADAPS_RULE std::size_t announced(std::size_t rows) const { return rows; }
  // A pool hands out each of its rows as often as the others.
  ADAPS_RULE std::size_t handed_out(std::size_t pool) const { return pool; }
  // Without replacement a row that is in the sample does not come again.
  ADAPS_RULE bool is_left_out(bool in_sample) const { return in_sample; }

  // --- wait_sync ---

  // A MARK that was sent before the call says nothing of what came in between.
  ADAPS_RULE bool needs_own_mark(std::vector<PendingSync>&, Operation&) const { return true; }
  // An ECHO goes behind all that was there when MARK came. Gives the end of it among what is flushed.
  ADAPS_RULE std::uint64_t flush_before_echo(Flusher& flusher) const;
  // What is held back of that goes ahead of it, too.
  ADAPS_RULE std::uint64_t held_back_before_echo(std::uint64_t held_back) const { return held_back; }
  // A refresh that is held back goes later.
  ADAPS_RULE void hold_back(std::deque<HeldBack>& waiting, const HeldBack& refresh) const {
    waiting.push_back(refresh);
  }

  // --- frames that wait ---

  // What a node begins by itself may wait for its frame, as it knows whether anybody waits for that. What
  // answers another node may not.
  ADAPS_RULE bool may_wait(MessageType type) const {
    switch (type) {
      case MessageType::kIntent:
      case MessageType::kRefresh:
      case MessageType::kDelta:
      case MessageType::kDrop:
      case MessageType::kNews:
        return true;
      default:
        return false;
    }
  }
  // All that goes to a node goes in its order: what does not wait takes along what does.
  ADAPS_RULE Frame& frame_for(std::vector<Frame>& frames, bool) const { return frames.back(); }
  // A frame waits no longer than it should,
  ADAPS_RULE bool is_time(Micros due, Micros now) const { return due <= now; }
  // and not at all once somebody waits for what is in it: a wait_sync of this node for its changes,
  ADAPS_RULE bool leaves_for_sync(bool anyone_waits) const { return anyone_waits; }
  // or one of the other node for its refreshes.
  ADAPS_RULE bool leaves_for_echo() const { return true; }
  // What was kept where it is until a frame leaves goes with it.
  ADAPS_RULE bool goes_with_frame() const { return true; }

  // --- room ---

  // While so many bytes wait for a node that nobody's call asks for, no more are sent to it.
  ADAPS_RULE bool is_full(std::uint64_t waiting, std::size_t limit) const { return waiting >= limit; }
  // Of these, what the network has taken waits no more.
  ADAPS_RULE std::uint64_t taken(std::uint64_t bytes) const { return bytes; }
  // A change that is kept back goes later,
  ADAPS_RULE void keep_change(std::deque<Key>& waiting, Key key) const { waiting.push_back(key); }
  // and so does the decision on an intent.
  ADAPS_RULE void keep_intent(std::deque<IntentMessage>& waiting, const IntentMessage& intent) const {
    waiting.push_back(intent);
  }

  // Applies a gradient as a message carries it: with its header before it.
  static void apply_sent(LockedKey& key, const float* floats) {
    GradientHeader header;
    std::memcpy(&header, floats, sizeof(header));
    UpdateStep step = key.table().now();
    step.with.learning_rate = header.learning_rate;
    step.number = header.number;
    key.table().apply_gradient(key.value(), floats + kGradientHeader, nullptr, step);
  }

  // Stores what was written to the row since it was unpacked, if it is packed, as that of its version.
  void keep(LockedKey& key) const {
    if (key.is_unpacked()) round(key, seed_of_rounding(key));
  }

  // Whether the wire of a key is a lossy one. A table without one is not asked for its rows.
  bool rounds(const Table& table, Key key) const {
    return table.is_lossy() && wire_of(table, key) != Wire::kFloat32;
  }

 protected:
  static void merge(LockedKey& key, const Delta& delta) {
    if (delta) key.table().merge(key.value(), delta.floats.get());
  }
  static void merge_both(LockedKey& key, const Unapplied& changes) {
    merge(key, changes.in_flight);
    merge(key, changes.unsent);
  }
};

#ifdef ADAPS_SIMULATION
inline const Rules kRules;
inline const Rules* selected_rules = &kRules;
inline const Rules& rules() { return *selected_rules; }
#else
constexpr Rules rules() { return {}; }
#endif

}  // namespace adaps

#undef ADAPS_RULE
