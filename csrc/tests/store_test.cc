#include "store/store.h"

#include <span>
#include <thread>
#include <vector>

#include "check.h"
#include "store/byte_counts.h"
#include "store/stable_pool.h"

using namespace adaps;

namespace {

constexpr std::uint64_t kRows = 100;
constexpr std::size_t kLength = 4;

struct Fixture {
  explicit Fixture(NodeId rank) : store(tables, directory, rank) {}

  static TableSpec spec() {
    return {.name = "t",
            .rows = kRows,
            .length = kLength,
            .rule = {.kind = RuleKind::kAdagrad},
            .init = {.a = 1.5F}};
  }
  Key key_at_home_of(NodeId node) const {
    Key key = 0;
    while (directory.home(key) != node) ++key;
    return key;
  }

  Tables tables{{spec()}};
  Directory directory{3, 1};
  Store store;
};

}  // namespace

TEST(an_untouched_key_is_owned_at_home_and_unknown_elsewhere) {
  Fixture f(1);
  {
    LockedKey mine(f.store, f.key_at_home_of(1));
    CHECK(mine.untouched_here());
    // Other threads also see this, although the key is locked.
    CHECK(f.store.untouched_here(mine.key(), f.store.peek(mine.key())));
    CHECK(!mine.has_slot());
    mine.materialize();
    CHECK(mine.state() == State::kOwner);
    for (std::size_t i = 0; i < kLength; ++i) CHECK_EQ(mine.value()[i], 1.5F);
    for (std::size_t i = kLength; i < 2 * kLength; ++i) CHECK_EQ(mine.value()[i], 0.0F);
  }
  LockedKey other(f.store, f.key_at_home_of(2));
  CHECK(!other.untouched_here());
  other.materialize();
  CHECK(!other.has_slot());
  CHECK_EQ(other.location(), NodeId{2});
  CHECK_EQ(other.location_count(), 0U);
  CHECK_EQ(f.store.slots_in_use(), 1U);
}

TEST(a_packed_row_is_the_kept_row) {
  TableSpec spec = Fixture::spec();
  spec.dtype = Dtype::kBfloat16;
  Tables tables({spec});
  const Directory directory(1, 1);
  Store store(tables, directory, 0);
  {
    LockedKey key(store, 0);
    key.materialize();
    CHECK_EQ(key.value()[kLength - 1], 1.5F);
    key.value()[0] = 3.0F;  // is discarded
  }
  {
    LockedKey key(store, 0);
    CHECK(!key.is_unpacked());
    CHECK_EQ(key.value()[0], 1.5F);
    key.value()[0] = 3.0F;
    key.value()[1] = 1.001F;
    key.value()[kLength] = 1.001F;  // state
    key.keep(1);
  }
  std::vector<float> words;
  {
    LockedKey key(store, 0);
    const std::span<const float> stored = key.stored(key.width());
    words.assign(stored.begin(), stored.end());
    CHECK_EQ(words.size(), kLength / 2 + kLength);
    CHECK_EQ(key.value()[0], 3.0F);
    CHECK(key.value()[1] == 1.0F || key.value()[1] == 1.0078125F);
    CHECK_EQ(key.value()[kLength], 1.001F);
  }
  LockedKey other(store, 1);
  other.materialize();
  other.value()[0] = 7.0F;
  other.take(words);
  CHECK_EQ(other.value()[0], 3.0F);
  CHECK_EQ(other.value()[kLength], 1.001F);
}

TEST(a_location_entry_survives_allocation_and_release_of_a_slot) {
  Fixture f(0);
  const Key name = f.key_at_home_of(1);
  {
    LockedKey key(f.store, name);
    key.set_location(2, 77);
  }
  {
    LockedKey key(f.store, name);
    CHECK_EQ(key.location(), NodeId{2});
    CHECK_EQ(key.location_count(), 77U);
    key.allocate(State::kPending);
    CHECK_EQ(key.location(), NodeId{2});
    CHECK_EQ(key.header().rc, 77U);
  }
  {
    LockedKey key(f.store, name);
    CHECK(key.state() == State::kPending);
    key.release(1, (1U << 18) + 3);  // an entry contains the low 18 bits
  }
  LockedKey key(f.store, name);
  CHECK(!key.has_slot());
  CHECK_EQ(key.location(), NodeId{1});
  CHECK_EQ(key.location_count(), 3U);
  CHECK_EQ(f.store.slots_in_use(), 0U);
}

TEST(a_stored_key_is_owned_without_a_slot) {
  TableSpec spec = Fixture::spec();
  spec.memory = 2 * (2 * kLength * sizeof(float) + kLimitedSlotBytes);
  spec.path = "anywhere";
  Tables tables({spec});
  CHECK_EQ(tables[0].resident_rows(), 2U);
  for (NodeId rank = 0; rank < 3; ++rank) {
    const Directory directory(3, 1);
    Store store(tables, directory, rank);
    Arena& arena = store.arena(tables[0]);
    Key name = 0;
    while (directory.home(name) != rank) ++name;
    arena.reserve(0);
    {
      LockedKey key(store, name);
      key.materialize();
      CHECK_EQ(arena.key_of(0), name);
      key.mark_stored();
    }
    CHECK_EQ(arena.free_of(0), 2U);
    CHECK_EQ(arena.key_of(0), Arena::kNoKey);
    CHECK_EQ(store.rows_stored(), 1U);
    {
      LockedKey key(store, name);
      CHECK(key.state() == State::kStored);
      CHECK(!key.has_slot());
      CHECK(!key.untouched_here());
      arena.reserve(0);
      key.allocate(State::kOwner);
      CHECK(key.state() == State::kOwner);
      CHECK_EQ(store.rows_stored(), 0U);
      key.forget();
    }
    CHECK(LockedKey(store, name).untouched_here());
    CHECK_EQ(arena.free_of(0), 2U);
    LockedKey other(store, name == 0 ? 1 : name - 1);
    CHECK(other.state() == State::kNone);
  }
}

TEST(the_key_word_shows_the_allowed_operations) {
  using namespace word;
  const struct {
    State state;
    std::uint32_t holder;
    std::uint8_t flags;
    std::uint32_t bits;
  } expected[] = {
      {State::kOwner, 0, 0, kReadable | kSet | kAlone},
      {State::kOwner, 1, 0, kReadable | kSet | kPush},
      {State::kReplica, 0, 0, kReadable | kPush},
      {State::kDropping, 0, 0, kReadable},
      {State::kDropping, 0, kUnreadable, 0},
      {State::kPending, 0, 0, 0},
  };
  Fixture f(0);
  const Key name = f.key_at_home_of(1);
  {
    LockedKey(f.store, name).allocate(State::kPending);
  }
  for (const auto& [state, holder, flags, bits] : expected) {
    {
      LockedKey key(f.store, name);
      key.header().state = state;
      if (state == State::kOwner) key.header().set_first_holder(holder);
      key.header().flags = flags;
    }
    CHECK_EQ(f.store.peek(name) & (kReadable | kPush | kSet | kAlone), bits);
    CHECK((f.store.peek(name) & kSlot) != 0);
    CHECK((f.store.peek(name) & kLock) == 0);
    for (const std::uint32_t needed : {kReadable, kPush, kSet, kAlone}) {
      const std::uint32_t seen = f.store.lock_if(name, kSlot | needed);
      CHECK_EQ(seen != 0, (bits & needed) != 0);
      if (seen != 0) f.store.unlock(name, seen);
    }
  }
}

TEST(writes_without_the_header_raise_the_version_once) {
  Fixture f(0);
  const Key name = f.key_at_home_of(0);
  {
    LockedKey(f.store, name).materialize();
  }
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t word = f.store.lock_if(name, word::kSlot | word::kAlone);
    CHECK(word != 0);
    f.store.unlock(name, word | word::kUncounted);
  }
  CHECK(is_uncounted(f.store.peek(name)));
  CHECK(is_owned_alone(f.store.peek(name)));
  for (int i = 0; i < 2; ++i) {
    LockedKey key(f.store, name);
    CHECK_EQ(key.header().version(), 1U);
  }
  CHECK(!is_uncounted(f.store.peek(name)));
}

TEST(freed_slots_are_reused) {
  Fixture f(0);
  Arena& arena = f.store.arena(f.tables[0]);
  std::vector<std::uint32_t> slots;
  for (std::uint64_t i = 0; i < kRows; ++i) slots.push_back(arena.allocate());
  CHECK_THROWS(arena.allocate(), std::length_error, "at most 100 rows");
  arena.header(slots[7]).rc = 3;
  arena.release(slots[7]);
  CHECK_EQ(arena.in_use(), kRows - 1);
  CHECK_EQ(arena.allocate(), slots[7]);
  CHECK_EQ(arena.header(slots[7]).rc, 0U);
  CHECK_EQ(arena.high_water(), kRows);
}

TEST(the_lock_of_a_key_excludes) {
  Fixture f(0);
  const Key name = f.key_at_home_of(0);
  {
    LockedKey(f.store, name).materialize();
  }
  constexpr int kTimes = 20'000;
  const auto count = [&] {
    for (int i = 0; i < kTimes; ++i) {
      LockedKey key(f.store, name);
      key.value()[0] += 1.0F;
    }
  };
  std::thread other(count);
  count();
  other.join();
  LockedKey key(f.store, name);
  CHECK_EQ(key.value()[0], 1.5F + 2.0F * kTimes);
}

TEST(pool_names_stay_valid_while_it_grows) {
  StablePool<int> pool;
  std::vector<std::uint32_t> names;
  for (int i = 0; i < 5000; ++i) {
    names.push_back(pool.allocate());
    CHECK(names.back() != 0);
    pool.at(names.back()) = i;
  }
  for (int i = 0; i < 5000; ++i) CHECK_EQ(pool.at(names[static_cast<std::size_t>(i)]), i);
  CHECK_EQ(pool.in_use(), std::size_t{5000});
  pool.release(names[42]);
  CHECK_EQ(pool.in_use(), std::size_t{4999});
  const std::uint32_t again = pool.allocate();
  CHECK_EQ(again, names[42]);
  CHECK_EQ(pool.at(again), 0);
}

TEST(counts_of_any_size_are_exact) {
  ByteCounts counts(3);
  for (std::uint32_t i = 0; i < 1000; ++i) {
    CHECK_EQ(counts.get(1), i);
    counts.increment(1);
    counts.set(2, 2 * i);
    CHECK_EQ(counts.get(2), 2 * i);
  }
  for (std::uint32_t i = 1000; i > 0; --i) {
    CHECK_EQ(counts.get(1), i);
    counts.decrement(1);
    counts.set(2, i);
    CHECK_EQ(counts.get(2), i);
  }
  CHECK_EQ(counts.get(0), 0U);
  CHECK_EQ(counts.get(1), 0U);
}

TEST(threads_change_a_count_about_the_end_of_its_byte) {
  ByteCounts counts(1);
  for (int i = 0; i < 250; ++i) counts.increment(0);
  const auto change = [&] {
    for (int i = 0; i < 20'000; ++i) {
      for (int up = 0; up < 4; ++up) counts.increment(0);
      for (int down = 0; down < 4; ++down) counts.decrement(0);
    }
  };
  std::thread other(change);
  change();
  other.join();
  CHECK_EQ(counts.get(0), 250U);
}
