// Reads without a lock, with writers between their loads: step by step, and with real threads.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "memory_cluster.h"
#include "store/racing_copy.h"
#include "store/store.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::uint32_t kNeeded = word::kSlot | word::kReadable;

struct OneNode {
  explicit OneNode(std::size_t length, std::uint64_t rows = 100) : tables({spec(length, rows)}) {}

  static TableSpec spec(std::size_t length, std::uint64_t rows) {
    return {.name = "t", .rows = rows, .length = length};
  }
  float* value(std::uint32_t slot) { return store.arena(tables[0]).value(slot); }

  Tables tables;
  Directory directory{1, 1};
  Store store{tables, directory, 0};
};

// Methods to read a row: the right one, and others with one mistake each.
enum class Way { kRight, kNoLookBehind, kWordBeforeStamp, kWordInPlaceOfStamp };

template <typename Copy, typename Between>
std::uint32_t read(Way way, const KeyWords& words, Key key, Copy copy, Between between) {
  if (way == Way::kRight) return words.read_if(key, kNeeded, copy, between);
  std::uint64_t stamp = words.stamp(key);
  if (way != Way::kWordBeforeStamp) between();
  const std::uint32_t seen = words.peek(key);
  if (way == Way::kWordBeforeStamp) {
    between();
    stamp = words.stamp(key);
  }
  if ((seen & (kNeeded | word::kLock)) != kNeeded) return 0;
  copy(seen & word::kIndexMask);
  switch (way) {
    case Way::kWordBeforeStamp:
      return words.stamp(key) == stamp ? seen : 0;
    case Way::kWordInPlaceOfStamp:
      return words.peek(key) == seen ? seen : 0;
    default:
      return seen;
  }
}

// A reader of a row of two floats, and steps of writers in the gaps of the read. The gaps are before the
// read, between its loads, and before, between and after its two floats.
class Interleaving {
 public:
  static constexpr std::size_t kGaps = 5;
  static constexpr float kOld = 1.0F, kNew = 2.0F, kOthers = 3.0F;
  static constexpr Key kRead = 0, kNeighbour = 1, kFar = 50;
  using Step = std::function<void(Interleaving&)>;

  Interleaving() {
    fill(kRead, kOld);
    fill(kNeighbour, kOthers);
  }

  // Whether the row that was read is neither the old nor the new row.
  bool is_torn(Way way, const std::vector<Step>& steps, const std::vector<std::size_t>& gaps) {
    std::size_t done = 0;
    std::size_t gap = 0;
    const auto others = [&] {
      for (; done < steps.size() && gaps[done] <= gap; ++done) steps[done](*this);
      ++gap;
    };
    std::array<float, 2> row{};
    others();
    const auto copy = [&](std::uint32_t slot) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        others();
        row[i] = node_.value(slot)[i];
      }
      others();
    };
    const std::uint32_t seen = read(way, node_.store.words(), kRead, copy, others);
    for (; done < steps.size(); ++done) steps[done](*this);
    return seen != 0 && (row[0] != row[1] || (row[0] != kOld && row[0] != kNew));
  }

  // Whether a row counts as unchanged since it was read, although it has changed.
  bool is_stale(Way way, const std::vector<Step>& steps, const std::vector<std::size_t>& gaps) {
    std::size_t done = 0;
    std::size_t gap = 0;
    const auto others = [&] {
      for (; done < steps.size() && gaps[done] <= gap; ++done) steps[done](*this);
      ++gap;
    };
    const auto look = [&] {
      const std::uint64_t known = node_.store.words().known_by(kRead, kNeeded, others);
      return known != 0 && way == Way::kWordInPlaceOfStamp ? node_.store.peek(kRead) : known;
    };
    others();
    const std::uint64_t first = look();
    others();
    const std::optional<float> row = read_whole();
    others();
    const bool is_same = first != 0 && look() == first;
    return is_same && row.has_value() && row != read_whole();
  }

  void lock(Key key) { held(key).emplace(node_.store, key); }
  void allocate(Key key) { held(key)->allocate(State::kOwner); }
  void release(Key key) { held(key)->release(0, 1); }
  void unlock(Key key) { held(key).reset(); }
  void write(Key key, std::size_t i, float x) { held(key)->value()[i] = x; }

 private:
  std::optional<float> read_whole() {
    float x = 0.0F;
    const auto copy = [&](std::uint32_t slot) { x = node_.value(slot)[1]; };
    return node_.store.words().read_if(kRead, kNeeded, copy) != 0 ? std::optional(x) : std::nullopt;
  }
  void fill(Key key, float x) {
    lock(key);
    held(key)->materialize();
    for (const std::size_t i : {0, 1}) write(key, i, x);
    unlock(key);
  }
  std::optional<LockedKey>& held(Key key) { return key == kRead ? read_ : key == kFar ? far_ : neighbour_; }

  OneNode node_{2};
  std::optional<LockedKey> read_, neighbour_, far_;
};

using Step = Interleaving::Step;

Step lock(Key key) {
  return [key](Interleaving& on) { on.lock(key); };
}
Step unlock(Key key) {
  return [key](Interleaving& on) { on.unlock(key); };
}
Step write(Key key, std::size_t i, float x) {
  return [=](Interleaving& on) { on.write(key, i, x); };
}
Step give_up(Key key) {
  return [key](Interleaving& on) {
    on.lock(key);
    on.release(key);
    on.unlock(key);
  };
}
Step get_slot(Key key) {
  return [key](Interleaving& on) {
    on.lock(key);
    on.allocate(key);
  };
}
std::vector<Step> operator+(std::vector<Step> first, const std::vector<Step>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

constexpr Key kRead = Interleaving::kRead, kNeighbour = Interleaving::kNeighbour, kFar = Interleaving::kFar;

std::vector<Step> written() {
  return {lock(kRead), write(kRead, 0, Interleaving::kNew), write(kRead, 1, Interleaving::kNew),
          unlock(kRead)};
}
// Two threads hold locks of one cache line, and each overwrites the other's stamp.
std::vector<Step> written_beside_a_neighbour() {
  return std::vector<Step>{lock(kRead),
                           lock(kNeighbour),
                           write(kRead, 0, Interleaving::kNew),
                           unlock(kNeighbour),
                           write(kRead, 1, Interleaving::kNew),
                           unlock(kRead)};
}
std::vector<Step> given_to_another_key() {
  return {give_up(kRead), get_slot(kFar), write(kFar, 0, Interleaving::kOthers),
          write(kFar, 1, Interleaving::kOthers), unlock(kFar)};
}
// Gives the slot to another key and back, so that the key word is the same as before.
std::vector<Step> given_to_another_key_and_back() {
  return given_to_another_key() + std::vector<Step>{give_up(kFar), get_slot(kRead),
                                                    write(kRead, 0, Interleaving::kNew),
                                                    write(kRead, 1, Interleaving::kNew), unlock(kRead)};
}

// Counts the interleavings with a wrong result of the reader.
using IsWrong = bool (Interleaving::*)(Way, const std::vector<Step>&, const std::vector<std::size_t>&);
std::size_t wrong(IsWrong is_wrong, Way way, const std::vector<Step>& steps) {
  std::size_t count = 0;
  std::vector<std::size_t> gaps(steps.size(), 0);
  for (;;) {
    Interleaving interleaving;
    count += (interleaving.*is_wrong)(way, steps, gaps) ? 1 : 0;
    std::size_t last = gaps.size();
    while (last > 0 && gaps[last - 1] == Interleaving::kGaps - 1) --last;
    if (last == 0) return count;
    std::fill(gaps.begin() + static_cast<std::ptrdiff_t>(last) - 1, gaps.end(), gaps[last - 1] + 1);
  }
}

std::size_t torn(Way way, const std::vector<Step>& steps) {
  return wrong(&Interleaving::is_torn, way, steps);
}
std::size_t stale(Way way, const std::vector<Step>& steps) {
  return wrong(&Interleaving::is_stale, way, steps);
}

}  // namespace

TEST(a_row_is_read_atomically_in_every_interleaving) {
  for (const auto& steps :
       {written(), written_beside_a_neighbour(), given_to_another_key(), given_to_another_key_and_back()})
    CHECK_EQ(torn(Way::kRight, steps), std::size_t{0});
}

TEST(every_mistake_of_a_reader_tears_a_row) {
  CHECK(torn(Way::kNoLookBehind, written()) > 0);
  CHECK(torn(Way::kWordBeforeStamp, written()) > 0);
  CHECK(torn(Way::kWordInPlaceOfStamp, written()) > 0);
  CHECK(torn(Way::kNoLookBehind, given_to_another_key()) > 0);
  CHECK(torn(Way::kWordInPlaceOfStamp, given_to_another_key_and_back()) > 0);
}

TEST(a_row_with_an_unchanged_stamp_is_unchanged_in_every_interleaving) {
  for (const auto& steps :
       {written(), written_beside_a_neighbour(), given_to_another_key(), given_to_another_key_and_back()}) {
    CHECK_EQ(stale(Way::kRight, steps), std::size_t{0});
  }
  CHECK(stale(Way::kWordInPlaceOfStamp, written()) > 0);
  CHECK(stale(Way::kWordInPlaceOfStamp, given_to_another_key_and_back()) > 0);
}

TEST(locked_and_remote_rows_are_not_read_without_a_lock) {
  OneNode node(2);
  const auto reads = [&](Key key) {
    const bool read = node.store.words().read_if(key, kNeeded, [](std::uint32_t) {}) != 0;
    CHECK_EQ(node.store.words().known_by(key, kNeeded) != 0, read);
    return read;
  };
  CHECK(!reads(0));
  LockedKey(node.store, 0).materialize();
  CHECK(reads(0));
  {
    const LockedKey held(node.store, 0);
    CHECK(!reads(0));
  }
  CHECK(reads(0));
  LockedKey(node.store, 0).release(0, 1);
  CHECK(!reads(0));
}

TEST(every_lock_writes_a_new_stamp) {
  OneNode node(2);
  std::set<std::uint64_t> stamps{node.store.words().stamp(0)};
  const auto is_new = [&] { return stamps.insert(node.store.words().stamp(0)).second; };
  for (int i = 0; i < 3; ++i) {
    LockedKey(node.store, 0).materialize();
    CHECK(is_new());
    const std::uint32_t word = node.store.lock_if(0, kNeeded);
    CHECK(is_new());
    node.store.unlock(0, word);
    std::thread([&] { const LockedKey other(node.store, 13); }).join();  // the last key of the cache line
    CHECK(is_new());
    const LockedKey next(node.store, 14);
    CHECK(!is_new());
  }
}

// All floats of a row are equal and identify its key. Writers change rows and give their slots to each
// other's keys. Each read must return a row of its key.
TEST(rows_are_never_torn) {
  constexpr std::size_t kLength = 2000;  // long enough that writers interrupt reads
  constexpr Key kKeys = 6;
  constexpr float kCycle = 65536.0F;
  constexpr int kWrites = 20'000;
  constexpr int kReaders = 2;
  OneNode node(kLength, kKeys);
  std::atomic<int> writing{2};
  const auto write_rows = [&](Key first) {
    for (int i = 0; i < kWrites; ++i) {
      const Key name = first + static_cast<Key>(i % 3);
      LockedKey key(node.store, name);
      if (i % 5 == 4 && key.has_slot()) {
        key.release(0, 1);
        continue;
      }
      if (!key.has_slot()) key.allocate(State::kOwner);
      const float x = static_cast<float>(i % static_cast<int>(kCycle)) * kKeys + static_cast<float>(name);
      for (std::size_t j = 0; j < kLength; ++j) key.value()[j] = x;
    }
    --writing;
  };
  std::atomic<std::uint64_t> whole{0};
  const auto read_rows = [&] {
    std::array<float, kLength> row{};
    std::uint64_t count = 0;
    for (Key name = 0; writing.load() > 0 || count == 0; name = (name + 1) % kKeys) {
      if (writing.load() == 0 && count == 0 && (node.store.peek(name) & word::kSlot) == 0) continue;
      const std::uint32_t word = node.store.words().read_if(
          name, kNeeded, [&](std::uint32_t slot) { copy_racing(row.data(), node.value(slot), kLength); });
      if (word == 0) continue;
      ++count;
      for (const float x : row) CHECK_EQ(x, row[0]);
      CHECK_EQ(std::fmod(row[0], static_cast<float>(kKeys)), static_cast<float>(name));
    }
    whole += count;
  };
  std::vector<std::thread> threads;
  for (const Key first : {0, 3}) threads.emplace_back(write_rows, first);
  for (int i = 0; i < kReaders; ++i) threads.emplace_back(read_rows);
  for (std::thread& thread : threads) thread.join();
  CHECK(whole.load() > 0);
}

// The same test through workers' calls, with replicas and rows that move between nodes. Every call writes
// equal floats to a row. For a packed row, they are not changed by rounding.
TEST(workers_pull_whole_rows) {
  constexpr std::size_t kLength = 32;
  constexpr Key kKeys = 40;
  constexpr int kCalls = 2'000;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    TableSpec table = OneNode::spec(kLength, kKeys);
    table.dtype = dtype;
    Settings settings{.nodes = 2, .workers = 2, .max_rounds_per_second = 10'000.0};
    MemoryCluster cluster({table}, settings);
    const auto play = [&](std::size_t node, std::size_t index) {
      Worker& worker = cluster.worker(node, index);
      std::vector<Key> keys(8);
      std::vector<float> written(keys.size() * kLength, 1.0F);
      std::vector<float> rows(written.size());
      for (int i = 0; i < kCalls; ++i) {
        for (std::size_t j = 0; j < keys.size(); ++j)
          keys[j] = (static_cast<Key>(i) * (node + 2) + 7 * index + 3 * j) % kKeys;
        worker.pull(keys, rows.data(), rows.size(), false);
        for (std::size_t j = 0; j < rows.size(); ++j) CHECK_EQ(rows[j], rows[j - j % kLength]);
        if (i % 128 < 64 && dtype == Dtype::kFloat32) {
          worker.push(keys, written.data(), written.size(), false);
        } else if (i % 128 < 64) {
          std::fill(written.begin(), written.end(), static_cast<float>(i % 200));
          worker.set(keys, written.data(), written.size(), false);
        }
        if (i % 16 == 0) worker.intent(keys, worker.current_clock(), worker.current_clock() + 2);
        if (i % 8 == 0) worker.advance_clock();
      }
      worker.finalize();
    };
    std::vector<std::thread> threads;
    for (const std::size_t node : {0, 1}) {
      for (const std::size_t index : {0, 1}) threads.emplace_back(play, node, index);
    }
    for (std::thread& thread : threads) thread.join();
  }
}
