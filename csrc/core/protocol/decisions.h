// Decisions on which the protocol's correctness depends, one function for each (docs/concepts/protocol.md,
// section 15). The callers execute the decisions.
//
// In the simulation build the functions are virtual: tests/simulation/mutants.cc replaces one at a time,
// which proves that the simulator detects a wrong decision. In other builds they are plain inline functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/node_set.h"
#include "common/random.h"
#include "common/types.h"
#include "protocol/dirty_list.h"
#include "protocol/holders.h"
#include "protocol/message.h"
#include "protocol/operation.h"
#include "protocol/wire_encoding.h"
#include "storage/row_file.h"
#include "store/add.h"
#include "store/directory.h"
#include "store/store.h"
#include "store/table.h"

#ifdef ADAPS_SIMULATION
#define ADAPS_DECISION virtual
#else
#define ADAPS_DECISION
#endif

namespace adaps {

class Flusher;
class Outbox;
struct NodeContext;

enum class IntentResponse : std::uint8_t { kRelocate, kReplicate };

// A wait_sync with a sent MARK that some nodes have not echoed yet.
struct PendingSync {
  Operation* operation;
  std::uint32_t number;
  NodeSet awaited;  // nodes whose ECHO has not arrived
};

// A MARK of a wait_sync for which no worker waits yet.
struct PatientMark {
  NodeId from;
  std::uint32_t number;
};

struct Decisions {
#ifdef ADAPS_SIMULATION
  virtual ~Decisions() = default;
#endif

  // --- how a key is managed, and its home node ---

  // Returns how a key is managed. Its table defines this for each row.
  ADAPS_DECISION const Management& managing(const Tables& tables, Key key) const {
    return tables.find(key).management(key);
  }
  // Whether intent for a key has an effect. It has none if the key's technique never moves or copies rows.
  ADAPS_DECISION bool uses_intent(const NodeContext& node, Key key) const;
  // Whether a node has a permanent copy of the key, without any intent.
  ADAPS_DECISION bool keeps_for_good(const NodeContext& node, Key key) const;
  // Whether an owner may relocate a key to its last holder. Under replication a key stays at its home node.
  ADAPS_DECISION bool may_give_to_last_holder(Technique technique) const {
    return technique == Technique::kAdaptive;
  }
  // Whether a key leaves its home node only for a node that was often the only interested one. If it left for
  // the first node that asks, the earliest node would own most rows that all nodes use.
  ADAPS_DECISION bool is_kept_at_home(Technique technique, bool at_home) const {
    return technique == Technique::kAdaptive && at_home;
  }
  // Whether a node was the only interested one often enough.
  ADAPS_DECISION bool leaves_home(int times_alone, int needed) const { return times_alone >= needed; }
  // Records that several nodes are interested in a key, so that counting starts anew.
  ADAPS_DECISION void note_several(SlotHeader& owner) const { owner.note_several(); }
  // Returns how often a node that asks must be the only interested one.
  ADAPS_DECISION int times_needed(const IntentMessage& intent, int usually, int for_good) const {
    return intent.for_good != 0 ? for_good : usually;
  }
  // Whether an owner reconsiders the key's location after a change, because its holder may have been the only
  // interested node often enough.
  ADAPS_DECISION bool reconsiders_after_change() const { return true; }
  // Whether an owner keeps a key because of its own intent.
  ADAPS_DECISION bool keeps_for_itself(std::uint32_t intents) const { return intents > 0; }
  // Returns the holder to which a key may be relocated: there must be no other.
  ADAPS_DECISION const Holder* last_holder(const Holders& holders) const { return holders.only(); }
  // Returns the home nodes of all keys. They depend on the tables only, so all nodes agree on them.
  ADAPS_DECISION Directory directory(const Settings& settings, const Tables& tables) const {
    return {settings.nodes, settings.channels, tables};
  }
  // Returns the node that receives news of a relocation. Misdirected requests are routed through the home
  // node.
  ADAPS_DECISION NodeId node_to_notify(const Directory& directory, Key key) const {
    return directory.home(key);
  }

  // --- ids ---

  // Returns the node that assigns a row to an id. A hash of the id determines it, so all nodes agree on it.
  ADAPS_DECISION NodeId assigning_node(const Directory& directory, std::int64_t id, NodeId) const {
    return directory.node_of_id(id);
  }
  // Returns the rows that a node assigns. The shares of two nodes have no row in common.
  ADAPS_DECISION RowRange share(std::uint64_t rows, NodeId nodes, NodeId rank) const {
    return share_of(rows, nodes, rank);
  }
  // Whether a share has enough free rows for new ids.
  ADAPS_DECISION bool has_room(std::uint64_t needed, std::uint64_t free) const { return needed <= free; }
  // Returns the row of an id, or kUnknown, when a row is about to be assigned to it.
  ADAPS_DECISION std::int64_t row_before_assignment(const RowIds& known, std::int64_t id) const {
    return known.find(id);
  }
  // Returns a row of an answer. Rows have the order of the ids in the request.
  ADAPS_DECISION std::int64_t row_of_answer(const std::vector<std::int64_t>& rows, std::size_t i) const {
    return rows[i];
  }
  // Stores the row that another node assigned to an id. Initial values are computed from ids, so a node knows
  // the id of every row that it uses.
  ADAPS_DECISION void learn(RowIds::Adding& adding, std::int64_t id, std::uint64_t row) const {
    adding.add(id, row);
  }

  // Counts a request of an id, and returns whether the id has a row or may get one.
  ADAPS_DECISION bool admits(RowIds::Adding& adding, std::int64_t id) const { return adding.admits(id); }

  // --- retired rows ---

  // Whether a worker that found a row may still use it: its clock, which began at tick `since`, has not
  // advanced.
  ADAPS_DECISION bool is_used(RowUse use, std::uint64_t since) const { return use.last >= since; }
  // Whether an intent or an unfinished call needs a row.
  ADAPS_DECISION bool is_pinned(std::uint32_t pins) const { return pins > 0; }
  // Whether a node keeps a row because it has requested its id. The answer may already be on the way.
  ADAPS_DECISION bool keeps_awaited(bool is_awaited) const { return is_awaited; }
  // Whether the assigning node keeps a row whose id was requested while nodes were giving it up.
  ADAPS_DECISION bool keeps_requested(bool was_requested) const { return was_requested; }
  // Removes the id of a row that a node gives up, so that the node does not use the row any more.
  ADAPS_DECISION void remove_id(RowIds::Adding& adding, std::uint64_t row) const { adding.remove(row); }
  // Returns the answer of several nodes. A row becomes free only if all nodes give it up.
  ADAPS_DECISION GivenUp answer_of_all(GivenUp before, GivenUp answer) const {
    return std::max(before, answer);
  }
  // Gives a retired row the initial content of its next id, as a new version.
  ADAPS_DECISION void restart(LockedKey& key, std::int64_t id) const {
    key.restart(static_cast<std::uint64_t>(id));
  }
  // Gives a stored row the initial content of its next id, as a new version. The row then has no record.
  ADAPS_DECISION void restart_stored(RowFile& file, std::uint64_t row) const {
    const RowFile::Entry last = file.entry(row);
    file.set_entry(row, {next_version(last.version), 0, last.rc});
  }
  // Whether a node can give up a row: it owns the key alone, or the key is NONE. Otherwise an exchange about
  // the key is unfinished.
  ADAPS_DECISION bool is_settled(bool owns_alone, bool is_none) const { return owns_alone || is_none; }
  // Whether a node keeps a row that is being read or written. A transfer that ends later would take the
  // content of the next id for that of this one.
  ADAPS_DECISION bool keeps_moving(bool is_moving) const { return is_moving; }
  // Whether INTENT may be sent for a key. It may not while the row is retired, because the key may be on its
  // way back.
  ADAPS_DECISION bool may_ask_for(bool is_retiring) const { return !is_retiring; }
  // Whether an intent that began while the row was retired has its effect when the row is kept.
  ADAPS_DECISION bool asks_for_kept_row(std::uint32_t intents) const { return intents > 0; }
  // Whether rows are asked for again because an exchange about their keys was unfinished.
  ADAPS_DECISION bool are_asked_again(bool any_busy) const { return any_busy; }
  // Whether a request for rows fails, because no channel finds a row that is not in use.
  ADAPS_DECISION bool gives_up_search(bool is_exhausted) const { return is_exhausted; }
  // Ends the need of an intent for its row, when the intent is over.
  ADAPS_DECISION void end_pin(const NodeContext& node, Key key) const;
  // Whether rows are retired while the node is frozen for a checkpoint. They are not, so a checkpoint has
  // each row together with its id.
  ADAPS_DECISION bool may_retire(bool is_frozen) const { return !is_frozen; }
  // Whether a call of a worker uses its rows, so that they are part of the table's state. A call that only
  // waits for announced rows does not.
  ADAPS_DECISION bool uses_rows(OperationKind kind) const { return kind != OperationKind::kLocalize; }
  // Returns the next row in [row, end) whose id is listed, or `end`. Only used rows are.
  ADAPS_DECISION std::uint64_t next_listed(const RowIds& ids, std::uint64_t row, std::uint64_t end) const {
    return ids.used().next(row, end);
  }

  // --- owner and holders of a key ---

  // Returns an owner's response to another node's intent. A key with holders is never relocated.
  ADAPS_DECISION IntentResponse respond_to_intent(Technique technique, bool own_intent,
                                                  bool has_holders) const {
    switch (technique) {
      case Technique::kRelocation:
        return IntentResponse::kRelocate;
      case Technique::kAdaptive:
        return own_intent || has_holders ? IntentResponse::kReplicate : IntentResponse::kRelocate;
      case Technique::kReplication:
      case Technique::kFullReplication:
      case Technique::kStatic:
        break;
    }
    return IntentResponse::kReplicate;
  }
  // Returns the number of active intents after one more has begun. A node wants a key until the last of its
  // intents for the key ends.
  ADAPS_DECISION std::uint32_t begun(std::uint32_t count) const { return count + 1; }
  // Whether an intent begins without a message, because this node already owns or replicates the key.
  ADAPS_DECISION bool begins_without_message(const Store& store, Key key) const {
    const std::uint32_t seen = store.peek(key);
    return is_owned_or_copied(seen) || store.untouched_here(key, seen);
  }
  // Whether an intent ends without a message, because no other node has a copy of the key.
  ADAPS_DECISION bool ends_without_message(const Store& store, Key key) const {
    const std::uint32_t seen = store.peek(key);
    return is_owned_alone(seen) || store.untouched_here(key, seen);
  }
  // Whether a node may request a key. It may not while an earlier exchange about the key is unfinished.
  ADAPS_DECISION bool may_ask(State state) const { return state == State::kNone; }
  // Registers a holder. The owner must have a record of every holder.
  ADAPS_DECISION void add_holder(Holders holders, NodeId node, Version sent) const {
    holders.add(node, sent);
  }
  // Whether a holder can become owner without receiving the value: its copy must be up to date.
  ADAPS_DECISION bool has_value(const Holder& holder, Version version) const {
    return holder.sent == version;
  }
  // Gives up a key. Reading its value and giving it up are one critical section.
  ADAPS_DECISION void give_up(LockedKey& key, NodeId to, RelocationCount rc) const { key.release(to, rc); }
  // Whether a location entry is newer than the known one. Only an entry with a larger relocation count is
  // newer.
  ADAPS_DECISION bool is_newer_location(RelocationCount rc, RelocationCount known) const {
    return newer_entry(rc, known);
  }
  // Whether a new replica is unwanted, because the last intent ended while the replica was set up. Such a
  // replica is dropped at once.
  ADAPS_DECISION bool is_unwanted(std::uint32_t intents) const { return intents == 0; }
  // Whether a replica that is given up stays until DROP_ACK shows that the owner has removed it.
  ADAPS_DECISION bool stays_until_drop_ack() const { return true; }
  // Whether an owner reconsiders the key's location after a drop, because the only node with intent may now
  // be the last remaining holder.
  ADAPS_DECISION bool reconsiders_after_drop(const SlotHeader& header) const { return header.has_holders(); }

  // --- values and changes ---

  // Whether a value is the initial one, which receivers compute themselves.
  ADAPS_DECISION bool is_initial(Version version) const { return version == 0; }
  // Computes the initial value, which is never sent.
  ADAPS_DECISION void make_initial(LockedKey& key) const { key.table().init(key.key(), key.value()); }
  // Reads a row that was sent in its table's storage format.
  ADAPS_DECISION void take_stored(LockedKey& key, Reader& reader) const {
    key.take(reader.floats(key.table().stored_words(key.width())));
  }
  // Rounds a packed row at random, so that the expected value of the stored number is the exact number.
  ADAPS_DECISION void round(LockedKey& key, std::uint64_t seed) const { key.keep(seed); }
  // Returns the seed for rounding a row. It differs between versions and is equal on all nodes.
  ADAPS_DECISION std::uint64_t seed_of_rounding(LockedKey& key) const {
    const Table& table = key.table();
    return mix(mix(table.first_key() + table.identity(key.key())) ^ key.header().version());
  }
  // Adds an acknowledged change to a packed copy, which is stored in the same format as at its owner. Changes
  // that the owner has not applied yet are stored separately.
  ADAPS_DECISION void settle(LockedKey& key, const Delta& applied) const {
    const Table& table = key.table();
    if (applied.change != Change::kGradient || applied.hyperparameters != table.now().with.fingerprint()) {
      merge(key, applied);
    } else {  // Adding the delta could give another last bit than at the owner.
      apply_sent(key, applied.floats.get() + table.change_length());
    }
  }
  // Whether this node's changes must still be added to a value that becomes the owner's value. A copy that is
  // not packed already contains them.
  ADAPS_DECISION bool lacks_changes(const Table& table, bool has_come) const {
    return has_come || table.is_packed();
  }
  // Adds both kinds of unapplied changes to the value of a TRANSFER. The message contains neither, because
  // the old owner discards a delta that was on its way.
  ADAPS_DECISION void absorb(LockedKey& key, const Unapplied& changes) const { merge_both(key, changes); }
  // Counts a write at the owner. Every new value needs a new version, also if there are no holders.
  ADAPS_DECISION void count_change(SlotHeader& owner) const { owner.advance_version(); }
  // Returns the key word after a write to a key without holders. A bit in the word means that the version
  // must be raised before it is next read.
  ADAPS_DECISION std::uint32_t written_alone(std::uint32_t word, const SlotHeader&) const {
    return word | word::kUncounted;
  }
  // Returns the version after changes were absorbed, which give a new value.
  ADAPS_DECISION Version absorbed(Version version) const { return next_version(version); }
  // Adds unapplied changes to a value that contains neither of them: the value of a REFRESH, or a packed
  // copy.
  ADAPS_DECISION void add_again(LockedKey& key, const Unapplied& changes) const { merge_both(key, changes); }
  // Returns the number format of a key's value and changes on the network, which its table defines for each
  // row.
  ADAPS_DECISION Wire wire_of(const Table& table, Key key) const { return table.management(key).wire; }
  // Returns the index of the row's management in its table. The management defines how often changes are
  // exchanged.
  ADAPS_DECISION std::size_t cadence_of(const Table& table, Key key) const {
    return table.management_number(key);
  }
  // Whether changes are due, `since` clocks after the last exchange. They are sent at most once every
  // `exchange` clocks.
  ADAPS_DECISION bool is_due(Clock since, Clock exchange) const { return since >= exchange; }
  // Returns the clock of the next requested round: the first clock when changes are due.
  ADAPS_DECISION Clock round_at(Clock due) const { return due; }
  // Whether a flush that no worker waits for may begin. It may not join one that is under way, which may
  // already have sent keys that are dirty again.
  ADAPS_DECISION bool may_begin_flush(bool under_way) const { return !under_way; }
  // Removes repetitions from the keys that a flush sends because of clocks. A key is listed again if its slot
  // was released after it became dirty, and the key then became dirty in a new slot.
  ADAPS_DECISION void list_once(std::vector<Key>& keys) const {
    std::unordered_set<Key> seen(keys.size());
    std::erase_if(keys, [&](Key key) { return !seen.insert(key).second; });
  }
  // Decodes a row that came through a lossy wire, with that row's scale.
  ADAPS_DECISION void decode(const Table& table, Wire wire, std::span<const float> words,
                             std::span<float> floats) const {
    adaps::decode(table, wire, words, floats);
  }
  // Returns the rounding error of a sent change. The sender keeps the error and adds it to one later change.
  ADAPS_DECISION float rest(float change, float sent) const { return change - sent; }
  // Whether an unsent change is sent with DROP. A change that is only a rounding error must also be sent.
  ADAPS_DECISION bool goes_with_drop(const Delta& unsent) const { return static_cast<bool>(unsent); }
  // Whether rounding errors are merged into changes before a checkpoint.
  ADAPS_DECISION bool merges_rests() const { return true; }
  // Whether rounding errors can exist in a table: if the wire of any row is lossy.
  ADAPS_DECISION bool may_have_rests(const Table& table) const { return table.is_lossy(); }
  // Whether copies of a key equal the owner's value. A copy that came through a lossy wire does not.
  ADAPS_DECISION bool has_exact_copies(const Table& table, Key key) const { return !rounds(table, key); }
  // Whether a replica may send a change. At most one is in flight at a time.
  ADAPS_DECISION bool may_send_delta(LockedKey&, Unapplied& changes) const { return !changes.in_flight; }
  // Whether a replica may send DROP: as for a change, nothing may be in flight.
  ADAPS_DECISION bool may_send_drop(LockedKey&, Unapplied& changes) const { return !changes.in_flight; }
  // Whether a change was made in the owner's current ownership period. If it was made in an earlier one, its
  // sender has become owner since then and has absorbed the change.
  ADAPS_DECISION bool is_of_period(RelocationCount rc, RelocationCount period) const { return rc == period; }
  // Discards a change of an earlier ownership period.
  ADAPS_DECISION void discard(Outbox&, LockedKey&, const DeltaMessage&, std::span<const float>) const {}
  // Whether owner and holder have equal rows after a change, so that the holder needs no refresh.
  ADAPS_DECISION bool is_exact(bool gave_same_row, bool was_up_to_date) const {
    return gave_same_row && was_up_to_date;
  }
  // Whether a gradient gives equal rows at owner and holder.
  ADAPS_DECISION bool gives_same_row(Version applied_to, Version version, bool same_hyperparameters) const {
    return applied_to == version && same_hyperparameters;
  }
  // Returns the form in which the change of several pushes is sent: as a delta, because the gradient of one
  // push would not contain the others.
  ADAPS_DECISION Change change_of_several(Change) const { return Change::kDelta; }
  // Whether a replica serves an operation. A set goes to the owner, which orders the sets of all nodes.
  ADAPS_DECISION bool is_served_by_replica(OperationKind kind) const {
    return kind != OperationKind::kSet && !is_about_state(kind);
  }
  // Whether a readable copy that is being given up serves an operation. It serves only pulls.
  ADAPS_DECISION bool is_served_while_dropping(OperationKind kind) const {
    return !is_write(kind) && !is_about_state(kind);
  }
  // Returns the optimizer state of an owned row, which is stored behind the value and never packed.
  ADAPS_DECISION std::span<const float> state_of(const LockedKey& key) const {
    return key.stored(key.width()).subspan(key.table().value_words());
  }
  // Counts a set_state at the owner. The version of the row changes, although its value does not.
  ADAPS_DECISION void count_state(SlotHeader& owner) const { owner.advance_version(); }
  // Applies a push or a gradient to a copy and to its unsent change.
  ADAPS_DECISION void apply_at_replica(OperationKind kind, LockedKey& key, const float* in, float* change,
                                       const UpdateStep& step) const {
    if (kind == OperationKind::kPush) {
      add_to(key.value(), in, key.length());
      add_to(change, in, key.length());
    } else {
      key.table().apply_gradient(key.value(), in, change, step);
    }
  }
  // Whether a write at the owner has to be sent to holders.
  ADAPS_DECISION bool is_to_be_refreshed(const SlotHeader& owner) const { return owner.has_holders(); }

  // --- exports ---

  // Whether a row is unchanged since it was last exported. The comparison of versions is valid even if the
  // row was relocated.
  ADAPS_DECISION bool is_reported(Version told, Version version) const { return told == version; }

  // --- requests ---

  // Whether two occurrences belong to one request. All occurrences of one key do, so that none overtakes
  // another.
  ADAPS_DECISION bool go_together(Key a, Key b) const { return a == b; }
  // Whether a request waits for the answer to the previous part of its push. The parts of a long push are
  // sent one at a time.
  ADAPS_DECISION bool waits_for_part_before(const KeyRequest& request) const { return request.follows; }
  // Returns the occurrence that determines the value of a set: the last one.
  ADAPS_DECISION std::uint32_t occurrence_that_counts(const KeyRequest& set) const { return set.last; }
  // Whether the replica's earlier pushes to the key are sent before a set, pull_state or set_state.
  ADAPS_DECISION bool is_to_be_flushed_before(OperationKind, const Unapplied& changes) const {
    return static_cast<bool>(changes.unsent);
  }
  // Whether an answer makes a replica unreadable. The answer of a later owner may overtake an earlier owner's
  // DROP_ACK.
  ADAPS_DECISION bool makes_unreadable(bool answer_is_newer, State state) const {
    return answer_is_newer && state == State::kDropping;
  }
  // Whether a holder is refreshed before its request is answered. When the answer arrives, the holder's
  // replica must not show an older value.
  ADAPS_DECISION bool is_refreshed_before_answer(const Holder* holder) const { return holder != nullptr; }
  // Whether a worker may submit another call. It may while the bytes of its unfinished calls are below the
  // limit.
  ADAPS_DECISION bool may_queue_more(std::size_t queued_bytes, std::size_t limit) const {
    return queued_bytes < limit;
  }
  // Returns how many bytes are no longer counted when a call is finished.
  ADAPS_DECISION std::size_t freed(std::size_t bytes) const { return bytes; }

  // --- rows in files ---

  // Whether an owned row may be in a file. The header of a row with holders refers to them.
  ADAPS_DECISION bool may_be_stored(const SlotHeader& owner) const { return !owner.has_holders(); }
  // Whether a row stays in memory because calls will use it.
  ADAPS_DECISION bool is_kept_in_memory(std::uint32_t intents) const { return intents > 0; }
  // Whether a row can be computed again, so that it need not be written. While the node is frozen, each row
  // that was counted for a checkpoint remains one of the node's rows.
  ADAPS_DECISION bool may_be_forgotten(const SlotHeader& owner, bool at_home, bool is_frozen) const {
    return at_home && owner.version() == 0 && owner.rc == 0 && owner.location == 0 && !is_frozen;
  }
  // Whether rows are brought into memory ahead of their use. While the node is frozen they are not, because a
  // row that was never used would become one of the node's rows.
  ADAPS_DECISION bool may_bring_ahead(bool is_frozen) const { return !is_frozen; }
  // Returns the state that is written with a row.
  ADAPS_DECISION StoredState state_to_store(const SlotHeader& owner) const {
    return {owner.version(), owner.rc, owner.location};
  }
  // Whether the last record in the file is the record that would be written now.
  ADAPS_DECISION bool is_in_file(RowFile::Entry last, RowFile::Entry now) const {
    return last == now && last != RowFile::Entry{};
  }
  // Whether a row is the one that was written, so that its slot can be freed. The row may have left and
  // returned in between.
  ADAPS_DECISION bool is_unchanged(const StoredState& written, const SlotHeader& owner) const {
    return written.version == owner.version() && written.rc == owner.rc;
  }
  // Whether a row must be read before the key can be used.
  ADAPS_DECISION bool must_be_read(State state) const { return state == State::kStored; }
  // Whether a record that was read is no longer the last one.
  ADAPS_DECISION bool is_outdated(RowFile::Entry read, RowFile::Entry last) const { return read != last; }
  // Whether a transfer was successful.
  ADAPS_DECISION bool is_intact(const std::string& problem) const { return problem.empty(); }
  // STORED -> OWNER.
  ADAPS_DECISION void load(LockedKey& key, const StoredState& state, std::span<const float> words) const {
    key.allocate(State::kOwner);
    SlotHeader& header = key.header();
    header.rc = state.rc;
    header.location = state.alone;
    header.set_version(state.version);
    key.take(words);
  }
  // Whether a message of another node is kept until the row was read.
  ADAPS_DECISION bool is_kept_for_row(MessageType) const { return true; }
  // Whether a row belongs to the rows that a node owns.
  ADAPS_DECISION bool is_owned_by_node(State state) const {
    return state == State::kOwner || state == State::kStored;
  }

  // --- samples ---

  // Returns the bits of the key word that a sampled row needs to be read without a message.
  ADAPS_DECISION std::uint32_t needed_for_sample() const { return word::kSlot | word::kReadable; }
  // Returns for how many rows of a prepared sample intent is signalled. It is signalled for all of them.
  ADAPS_DECISION std::size_t announced(std::size_t rows) const { return rows; }
  // Returns how many rows of a pool are used in a pass. All of them are used, so that each row occurs equally
  // often.
  ADAPS_DECISION std::size_t handed_out(std::size_t pool) const { return pool; }
  // Whether a sample without replacement skips a row. It skips a row that it already contains.
  ADAPS_DECISION bool is_left_out(bool in_sample) const { return in_sample; }

  // --- wait_sync ---

  // Whether a wait_sync needs a MARK that was not sent before the call. An earlier one does not cover later
  // writes.
  ADAPS_DECISION bool needs_own_mark(std::vector<PendingSync>&, Operation&) const { return true; }
  // Flushes all changes that existed when MARK arrived, and returns the position in the flushes at which
  // these changes end. The ECHO is sent after them.
  ADAPS_DECISION std::uint64_t flush_before_echo(Flusher& flusher) const;
  // Keeps a patient MARK until the next flush.
  ADAPS_DECISION void keep_mark(std::vector<PatientMark>& kept, const PatientMark& mark) const {
    kept.push_back(mark);
  }
  // Whether the next flush includes all refreshes, because patient MARKs are answered behind it.
  ADAPS_DECISION bool all_refreshes_are_due(bool any_mark) const { return any_mark; }
  // Returns the position in the flushes after which they are answered.
  ADAPS_DECISION std::uint64_t end_for_patient(const Flusher& flusher) const;
  // Returns the patient MARKs that are answered behind one flush: all of them, each once.
  ADAPS_DECISION std::vector<PatientMark> take_marks(std::vector<PatientMark>& kept) const {
    return std::exchange(kept, {});
  }
  // Whether all changes are due because a wait_sync of this node waits for them to be applied. They are sent
  // in the next round or, if a worker waits, at once.
  ADAPS_DECISION bool all_are_due(bool anyone_waits) const { return anyone_waits; }
  // Returns how many held-back refreshes are sent before the ECHO: all of them.
  ADAPS_DECISION std::uint64_t held_back_before_echo(std::uint64_t held_back) const { return held_back; }
  // Queues a refresh that is held back.
  ADAPS_DECISION void hold_back(std::deque<HeldBack>& waiting, const HeldBack& refresh) const {
    waiting.push_back(refresh);
  }

  // --- frames that wait ---

  // Whether a message may wait for other messages to the same node. Messages that a node sends without being
  // asked may wait; answers to other nodes may not.
  ADAPS_DECISION bool may_wait(MessageType type) const {
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
  // Returns the frame for the next message. Messages to a node keep their order.
  ADAPS_DECISION Frame& frame_for(std::vector<Frame>& frames, bool) const { return frames.back(); }
  // Whether a waiting frame is due.
  ADAPS_DECISION bool is_time(Micros due, Micros now) const { return due <= now; }
  // Whether a frame leaves at once because a worker of this node waits for its changes to be applied.
  ADAPS_DECISION bool leaves_for_sync(bool anyone_hurries) const { return anyone_hurries; }
  // Whether a frame leaves at once because a wait_sync of its receiver waits for the refreshes in the frame.
  ADAPS_DECISION bool leaves_for_echo() const { return true; }
  // Whether changes that were kept until the departure of a frame are sent in this frame.
  ADAPS_DECISION bool goes_with_frame() const { return true; }

  // --- limits on unsent bytes ---

  // Whether further rows and changes for a node are kept back. A row that a call has requested is never kept
  // back.
  ADAPS_DECISION bool is_full(std::uint64_t waiting, std::size_t limit) const { return waiting >= limit; }
  // Returns how many of the bytes that the network has taken are no longer counted as waiting.
  ADAPS_DECISION std::uint64_t taken(std::uint64_t bytes) const { return bytes; }
  // Queues a change that is kept back.
  ADAPS_DECISION void keep_change(std::deque<Key>& waiting, Key key) const { waiting.push_back(key); }
  // Queues an intent when its decision is kept back.
  ADAPS_DECISION void keep_intent(std::deque<IntentMessage>& waiting, const IntentMessage& intent) const {
    waiting.push_back(intent);
  }

  // Applies a gradient in message format: a header, then the floats.
  static void apply_sent(LockedKey& key, const float* floats) {
    GradientHeader header;
    std::memcpy(&header, floats, sizeof(header));
    UpdateStep step = key.table().now();
    step.with.learning_rate = header.learning_rate;
    step.number = header.number;
    key.table().apply_gradient(key.value(), floats + kGradientHeader, nullptr, step);
  }

  // Packs a row again that was unpacked and written. Its version determines the random bits of the rounding.
  void keep(LockedKey& key) const {
    if (key.is_unpacked()) round(key, seed_of_rounding(key));
  }

  // Whether the wire of a key is lossy. The row's own wire is looked up only if some row of the table has a
  // lossy wire.
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
inline const Decisions kDecisions;
inline const Decisions* selected_decisions = &kDecisions;
inline const Decisions& decisions() { return *selected_decisions; }
#else
constexpr Decisions decisions() { return {}; }
#endif

}  // namespace adaps

#undef ADAPS_DECISION
