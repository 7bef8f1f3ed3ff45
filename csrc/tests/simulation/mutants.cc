#include "simulation/mutants.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "common/random.h"
#include "protocol/flusher.h"
#include "protocol/rules.h"
#include "store/codec.h"

namespace adaps {

namespace {

std::map<const Store*, NodeContext*> nodes;

struct Torn {
  Store* store;
  Key key;
  NodeId to;
  RelocationCount rc;
};
std::vector<Torn> torn;

Epochs& epochs_of(LockedKey& key) { return nodes.at(&key.store())->epochs; }

void forget(LockedKey& key, Delta& delta) {
  if (!delta) return;
  epochs_of(key).remove(delta.epoch);
  delta.floats.reset();
}

Key row_before(const Table& table, Key key) { return key == table.first_key() ? key : key - 1; }

// One for each mutant, and called like it.
namespace broken {

struct none : Rules {};

struct drop_at_once : Rules {
  bool stays_until_drop_ack() const override { return false; }
};
struct zombie_stays_readable : Rules {
  bool makes_unreadable(bool, State) const override { return false; }
};
struct no_refresh_before_answer : Rules {
  bool is_refreshed_before_answer(const Holder*) const override { return false; }
};
struct no_rc_check : Rules {
  bool is_of_tenure(RelocationCount, RelocationCount) const override { return true; }
};
struct forward_crossed : Rules {
  void discard(Outbox& outbox, LockedKey& key, const DeltaMessage& message,
               std::span<const float> change) const override {
    outbox.append(key.location(), message, {change});
  }
};
struct upgrade_forgets_inflight : Rules {
  void absorb(LockedKey& key, const Unapplied& changes) const override { merge(key, changes.unsent); }
};
struct upgrade_forgets_unsent : Rules {
  void absorb(LockedKey& key, const Unapplied& changes) const override { merge(key, changes.in_flight); }
};
struct refresh_forgets_inflight : Rules {
  void add_again(LockedKey& key, const Unapplied& changes) const override { merge(key, changes.unsent); }
};
struct refresh_forgets_unsent : Rules {
  void add_again(LockedKey& key, const Unapplied& changes) const override { merge(key, changes.in_flight); }
};
struct echo_without_refresh : Rules {
  std::uint64_t flush_before_echo(Flusher& flusher) const override { return flusher.end(); }
};
struct echo_first : Rules {
  std::uint64_t flush_before_echo(Flusher& flusher) const override {
    flusher.request();
    return flusher.flushed();
  }
};
struct echo_in_between : Rules {
  std::uint64_t flush_before_echo(Flusher& flusher) const override {
    Rules::flush_before_echo(flusher);
    return flusher.flushed();
  }
};
struct echo_ahead_of_held_back : Rules {
  std::uint64_t held_back_before_echo(std::uint64_t) const override { return 0; }
};
struct sync_ignores_inflight : Rules {
  bool may_send_delta(LockedKey& key, Unapplied& changes) const override {
    if (changes.in_flight) return false;
    Epochs& epochs = epochs_of(key);
    epochs.remove(std::exchange(changes.unsent.epoch, epochs.add()));
    return true;
  }
};
struct mark_shared : Rules {
  bool needs_own_mark(std::vector<PendingSync>& syncs, Operation& operation) const override {
    if (syncs.empty()) return true;
    syncs.push_back({&operation, syncs.back().number, syncs.back().echoes_left});
    return false;
  }
};
struct not_pinned : Rules {
  Decision decide(Technique technique, bool own_intent, bool) const override {
    return Rules::decide(technique, own_intent, false);
  }
};
struct set_without_flush : Rules {
  bool is_to_be_flushed_before_set(const Unapplied&) const override { return false; }
};
struct ack_always_exact : Rules {
  bool is_exact(bool, bool) const override { return true; }
};
struct two_in_flight : Rules {
  bool may_send_delta(LockedKey& key, Unapplied& changes) const override {
    forget(key, changes.in_flight);
    return true;
  }
};
struct drop_with_two : Rules {
  bool may_send_drop(LockedKey& key, Unapplied& changes) const override {
    forget(key, changes.in_flight);
    return true;
  }
};
struct intent_while_dropping : Rules {
  bool may_ask(State state) const override { return state == State::kNone || state == State::kDropping; }
};
struct setup_not_registered : Rules {
  void add_holder(Holders, NodeId, Version) const override {}
};
struct owner_push_not_dirty : Rules {
  bool is_to_be_refreshed(const SlotHeader&) const override { return false; }
};
struct light_always : Rules {
  bool has_value(const Holder&, Version) const override { return true; }
};
struct setup_ignores_end : Rules {
  bool is_unwanted(std::uint32_t) const override { return false; }
};
struct no_move_after_drop : Rules {
  bool reconsiders_after_drop(const SlotHeader&) const override { return false; }
};
struct first_duplicate_wins : Rules {
  std::uint32_t occurrence_that_counts(const KeyRequest& set) const override { return set.first; }
};
struct news_unordered : Rules {
  bool is_newer_location(RelocationCount, RelocationCount) const override { return true; }
};
struct absorb_no_bump : Rules {
  Version absorbed(Version version) const override { return version; }
};
struct duplicates_torn : Rules {
  bool go_together(Key, Key) const override { return false; }
};
struct signals_count_once : Rules {
  std::uint32_t begun(std::uint32_t) const override { return 1; }
};
struct intent_unheard : Rules {
  bool begins_in_silence(const Store& store, Key key) const override {
    return store.peek(key) != 0 || Rules::begins_in_silence(store, key);
  }
};
struct end_unheard : Rules {
  bool ends_in_silence(const Store& store, Key key) const override { return is_owned(store.peek(key)); }
};
struct initial_always : Rules {
  bool is_initial(Version) const override { return true; }
};
struct initial_not_made : Rules {
  void make_initial(LockedKey&) const override {}
};
struct gradient_of_many : Rules {
  Change change_of_several(Change first) const override { return first; }
};
struct gradient_always_exact : Rules {
  bool gives_same_row(Version, Version, bool) const override { return true; }
};
struct set_as_delta : Rules {
  bool is_served_by_replica(OperationKind) const override { return true; }
  void apply_at_replica(OperationKind kind, LockedKey& key, const float* in, float* change,
                        const UpdateStep& step) const override {
    if (kind != OperationKind::kSet) {
      Rules::apply_at_replica(kind, key, in, change, step);
      return;
    }
    for (std::size_t i = 0; i < key.length(); ++i) {
      change[i] += in[i] - key.value()[i];
      key.value()[i] = in[i];
    }
  }
};
struct torn_transfer : Rules {
  void give_up(LockedKey& key, NodeId to, RelocationCount rc) const override {
    torn.push_back({&key.store(), key.key(), to, rc});
  }
};
struct parts_at_once : Rules {
  bool waits_for_part_before(const KeyRequest&) const override { return false; }
};
struct queue_without_limit : Rules {
  bool has_room(std::size_t, std::size_t) const override { return true; }
};
struct queue_never_emptied : Rules {
  std::size_t freed(std::size_t) const override { return 0; }
};
struct held_back_forgotten : Rules {
  void hold_back(std::deque<HeldBack>&, const HeldBack&) const override {}
};
struct room_ignored : Rules {
  bool is_full(std::uint64_t, std::size_t) const override { return false; }
};
struct room_never_back : Rules {
  std::uint64_t taken(std::uint64_t) const override { return 0; }
};
struct kept_change_forgotten : Rules {
  void keep_change(std::deque<Key>&, Key) const override {}
};
struct kept_intent_forgotten : Rules {
  void keep_intent(std::deque<IntentMessage>&, const IntentMessage&) const override {}
};
struct frame_never_leaves : Rules {
  bool is_time(Micros, Micros) const override { return false; }
};
struct frame_leaves_without : Rules {
  bool goes_with_frame() const override { return false; }
};
struct overtakes_what_waits : Rules {
  Frame& frame_for(std::vector<Frame>& frames, bool at_once) const override {
    return at_once ? *frames.emplace(frames.begin()) : frames.back();
  }
};
struct setup_waits : Rules {
  bool may_wait(MessageType type) const override {
    return type == MessageType::kSetup || Rules::may_wait(type);
  }
};
struct echo_waits : Rules {
  bool may_wait(MessageType type) const override {
    return type == MessageType::kEcho || Rules::may_wait(type);
  }
};
struct sync_unheard : Rules {
  bool leaves_for_sync(bool) const override { return false; }
};
struct echo_unheard : Rules {
  bool leaves_for_echo() const override { return false; }
};
struct technique_of_neighbour : Rules {
  const Management& managing(const Tables& tables, Key key) const override {
    const Table& next = tables[(tables.number_of(tables.find(key)) + 1) % tables.size()];
    return next.management(next.first_key());
  }
};
struct technique_of_row_before : Rules {
  const Management& managing(const Tables& tables, Key key) const override {
    const Table& table = tables.find(key);
    return table.management(row_before(table, key));
  }
};
struct intent_as_first_table : Rules {
  bool uses_intent(const NodeContext& node, Key) const override { return Rules::uses_intent(node, 0); }
};
struct kept_as_first_table : Rules {
  bool keeps_for_good(const NodeContext& node, Key) const override { return Rules::keeps_for_good(node, 0); }
};
struct intent_as_first_row : Rules {
  bool uses_intent(const NodeContext& node, Key key) const override {
    return Rules::uses_intent(node, node.tables.find(key).first_key());
  }
};
struct kept_as_first_row : Rules {
  bool keeps_for_good(const NodeContext& node, Key key) const override {
    return Rules::keeps_for_good(node, node.tables.find(key).first_key());
  }
};
struct gives_away_replicated : Rules {
  bool may_give_to_last_holder(Technique technique) const override {
    return technique == Technique::kAdaptive || technique == Technique::kReplication;
  }
};
struct home_by_hash : Rules {
  Directory directory(const Settings& settings, const Tables& tables) const override {
    if (settings.rank != 1) return Rules::directory(settings, tables);
    return {settings.nodes, settings.channels};
  }
};
struct home_by_own_hash : Rules {
  Directory directory(const Settings& settings, const Tables& tables) const override {
    std::vector<TableSpec> specs;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      specs.push_back(tables[i].spec());
      for (HomeRange& home : specs.back().homes) home.hashed_with = kOwnKey;
    }
    return Rules::directory(settings, Tables(std::move(specs)));
  }
};
struct news_by_hash : Rules {
  NodeId told_of_relocation(const Directory& directory, Key key) const override {
    return directory.home_by_hash(key);
  }
};
struct news_as_row_before : Rules {
  NodeId told_of_relocation(const Directory& directory, Key key) const override {
    return directory.home(key == 0 ? key : key - 1);
  }
};
struct sample_of_absent : Rules {
  std::uint32_t needed_for_sample() const override { return word::kSlot; }
};
struct sample_not_announced : Rules {
  std::size_t announced(std::size_t rows) const override { return rows - 1; }
};
struct sample_repeats : Rules {
  bool is_left_out(bool) const override { return false; }
};
struct pool_forgets_one : Rules {
  std::size_t handed_out(std::size_t pool) const override { return pool > 1 ? pool - 1 : pool; }
};

struct rest_forgotten : Rules {
  float rest(float, float) const override { return 0.0F; }
};
struct rest_sent_twice : Rules {
  float rest(float change, float sent) const override { return 2.0F * (change - sent); }
};
struct rest_lost_at_relocation : Rules {
  void absorb(LockedKey& key, const Unapplied& changes) const override {
    merge(key, changes.in_flight);
    if (!changes.unsent.is_rest()) merge(key, changes.unsent);
  }
};
struct rest_lost_at_drop : Rules {
  bool goes_with_drop(const Delta& unsent) const override { return unsent && !unsent.is_rest(); }
};
struct rest_lost_at_checkpoint : Rules {
  bool takes_up_rests() const override { return false; }
};
struct alone_no_bump : Rules {
  void count_change(SlotHeader& owner) const override {
    // The initial content, which is version 0, is not sent: without the first one the write would be lost.
    if (owner.has_holders() || owner.version() == 0) owner.advance_version();
  }
  std::uint32_t written_alone(std::uint32_t word, const SlotHeader& owner) const override {
    return owner.version() == 0 ? Rules::written_alone(word, owner) : word;
  }
};
struct told_for_good : Rules {
  bool is_told(Version told, Version) const override { return told != 0; }
};
struct scale_of_neighbour : Rules {
  void decode(const Table& table, Wire wire, std::span<const float> words,
              std::span<float> floats) const override {
    static float scale_before = 1.0F;
    std::vector<float> own(words.begin(), words.end());
    if (wire == Wire::kInt8) std::swap(own.front(), scale_before);
    Rules::decode(table, wire, own, floats);
  }
};
struct owns_a_rounded_copy : Rules {
  bool has_exact_copies(const Table&, Key) const override { return true; }
};
struct owns_a_copy_as_first_row : Rules {
  bool has_exact_copies(const Table& table, Key) const override {
    return Rules::has_exact_copies(table, table.first_key());
  }
};
struct wire_of_row_before : Rules {
  Wire wire_of(const Table& table, Key key) const override {
    return Rules::wire_of(table, row_before(table, key));
  }
};
struct exchange_of_row_before : Rules {
  std::size_t cadence_of(const Table& table, Key key) const override {
    return Rules::cadence_of(table, row_before(table, key));
  }
};
struct exchange_ignored : Rules {
  bool is_due(Clock, Clock) const override { return true; }
};
struct exchange_overdue : Rules {
  Clock round_at(Clock) const override { return kForever; }
};
struct exchange_joins_flush : Rules {
  bool may_join_flush(bool) const override { return true; }
};
struct rounds_to_nearest : Rules {
  void round(LockedKey& key, std::uint64_t seed) const override {
    const std::span<float> value(key.value(), key.length());
    std::vector<float> words(encoded_words(Wire::kBfloat16, value.size()));
    if (adaps::encode(Wire::kBfloat16, value, words.data())) adaps::decode(Wire::kBfloat16, words, value);
    Rules::round(key, seed);
  }
};
struct rounds_alike_each_time : Rules {
  std::uint64_t seed_of_rounding(LockedKey& key) const override { return mix(key.key()); }
};
struct rounds_for_itself : Rules {
  std::uint64_t seed_of_rounding(LockedKey& key) const override {
    return Rules::seed_of_rounding(key) + static_cast<std::uint64_t>(key.state());
  }
};
struct settles_nothing : Rules {
  void settle(LockedKey&, const Delta&) const override {}
};
struct packed_copy_is_bare : Rules {
  bool lacks_changes(const Table&, bool has_come) const override { return has_come; }
};
struct stored_as_next_table : Rules {
  void take_stored(LockedKey& key, Reader& reader) const override {
    const Tables& tables = key.store().tables();
    const Table& table = key.table();
    const Table& next = tables[(tables.number_of(table) + 1) % tables.size()];
    if (next.is_packed() == table.is_packed()) {
      Rules::take_stored(key, reader);
      return;
    }
    const std::size_t length = table.length();
    const std::size_t words = next.is_packed() ? encoded_words(Wire::kBfloat16, length) : length;
    const std::span<const float> stored = reader.floats(words + table.width() - length);
    float* row = key.value();
    adaps::decode(next.is_packed() ? Wire::kBfloat16 : Wire::kFloat32, stored.first(words), {row, length});
    std::copy(stored.begin() + static_cast<std::ptrdiff_t>(words), stored.end(), row + length);
  }
};
struct rests_as_first_row : Rules {
  bool may_have_rests(const Table& table) const override { return rounds(table, table.first_key()); }
};

}  // namespace broken

template <typename Broken>
const Rules& one() {
  static const Broken rules;
  return rules;
}

}  // namespace

void select_mutant(Mutant mutant) {
  switch (mutant) {
    case Mutant::none:
      selected_rules = &one<broken::none>();
      return;
#define ADAPS_SELECT(name, text)           \
  case Mutant::name:                       \
    selected_rules = &one<broken::name>(); \
    return;
      ADAPS_MUTANTS(ADAPS_SELECT)
#undef ADAPS_SELECT
  }
}

void know_node(NodeContext& node) { nodes[&node.store] = &node; }

void forget_node(NodeContext& node) {
  nodes.erase(&node.store);
  std::erase_if(torn, [&](const Torn& transfer) { return transfer.store == &node.store; });
}

void finish_torn_transfers(NodeContext& node, int channel) {
  std::erase_if(torn, [&](const Torn& transfer) {
    if (transfer.store != &node.store || node.directory.channel(transfer.key) != channel) return false;
    LockedKey key(node.store, transfer.key);
    if (key.state() == State::kOwner) key.release(transfer.to, transfer.rc);
    return true;
  });
}

}  // namespace adaps
