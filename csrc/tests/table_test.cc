// Tables, initial values of their rows, and homes of their keys.
#include "store/table.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "check.h"
#include "store/directory.h"

using namespace adaps;

namespace {

TableSpec spec(const std::string& name, std::uint64_t rows, std::size_t length,
               RuleKind kind = RuleKind::kSgd) {
  return {.name = name, .rows = rows, .length = length, .rule = {.kind = kind}};
}

}  // namespace

TEST(packed_values_take_half_the_words) {
  TableSpec packed = spec("a", 10, 5, RuleKind::kAdagrad);
  packed.dtype = Dtype::kBfloat16;
  packed.init = {.kind = InitKind::kUniform, .a = -1.0F, .b = 1.0F, .seed = 3};
  const Tables tables({packed, spec("b", 10, 8)});
  const Table& table = tables[0];
  CHECK(tables.any_packed());
  CHECK(table.is_packed());
  CHECK(!tables[1].is_packed());
  CHECK_EQ(table.width(), std::size_t{10});
  CHECK_EQ(table.stored_words(table.length()), std::size_t{3});
  CHECK_EQ(table.stored_words(table.width()), std::size_t{8});
  CHECK_EQ(tables[1].stored_words(8), std::size_t{8});
  CHECK_EQ(table.arena(), tables[1].arena());  // both have slots of 8 words
  packed.dtype = Dtype::kFloat32;
  CHECK(Tables({packed, spec("b", 10, 8)}).fingerprint() != tables.fingerprint());
  // Initial values are numbers of bfloat16 on every node, so storing them does not round.
  std::vector<float> row(table.width()), stored(8), again(table.width());
  for (Key key = 0; key < 10; ++key) {
    table.init(key, row.data());
    table.pack(row.data(), key, stored.data());
    table.unpack(stored.data(), again.data());
    CHECK(row == again);
    table.init(key, again.data());
    CHECK(row == again);
  }
}

TEST(keys_of_tables_follow_each_other) {
  const Tables tables({spec("a", 10, 4), spec("b", 1, 8, RuleKind::kAdagrad), spec("c", 5, 16)});
  CHECK_EQ(tables.num_keys(), Key{16});
  for (Key key = 0; key < 16; ++key) {
    const std::size_t expected = key < 10 ? 0 : key < 11 ? 1 : 2;
    CHECK(&tables.find(key) == &tables[expected]);
    const Table* hint = &tables[(expected + 1) % 3];
    CHECK(&tables.find(key, hint) == &tables[expected]);
    CHECK(hint == &tables[expected]);
  }
  // Width 16 is shared by b, with value and state, and c, with its value only.
  CHECK_EQ(tables.arenas().size(), std::size_t{2});
  CHECK_EQ(tables[1].arena(), tables[2].arena());
  CHECK_EQ(tables.arenas()[tables[1].arena()].rows, std::uint64_t{6});
}

TEST(errors_name_invalid_tables) {
  CHECK_THROWS(Tables({}), std::invalid_argument, "at least one table");
  CHECK_THROWS(Tables({spec("a", 0, 4)}), std::invalid_argument, "'a' has 0 rows");
  CHECK_THROWS(Tables({spec("a", 1, 0)}), std::invalid_argument, "'a' has length 0");
  constexpr std::size_t kHuge = std::size_t{1} << 62;
  CHECK_THROWS(Tables({spec("a", kHuge, 1)}), std::invalid_argument,
               "'a' has 4611686018427387904 rows; at most");
  CHECK_THROWS(Tables({spec("a", kMaxKeys, 1), spec("b", 1, 1)}), std::invalid_argument,
               "1099511627776 keys");
  CHECK_THROWS(Tables({spec("a", 1, kHuge)}), std::invalid_argument,
               "'a' has length 4611686018427387904; a row");
  CHECK_THROWS(Tables({spec("a", 1, 1 << 24)}), std::invalid_argument, "with at most 16777200 floats");
  CHECK_THROWS(Tables({spec("a", 1, 1 << 23, RuleKind::kAdagrad)}), std::invalid_argument,
               "'a' has rows of 16777216 floats with their optimizer's state");
  CHECK_THROWS(Tables({spec("a", 1, 1), spec("a", 2, 2)}), std::invalid_argument, "called 'a'");
}

TEST(rows_are_managed_like_their_range) {
  TableSpec mixed = spec("mixed", 10, 4);
  mixed.management = {Technique::kStatic, Wire::kInt8};  // overridden by `managed` for all rows
  const Management hot{Technique::kReplication, Wire::kBfloat16};
  const Management rest{Technique::kRelocation};
  mixed.managed = {{2, hot}, {7, rest}, {8, hot}, {10, rest}};
  TableSpec alike = spec("alike", 5, 4);
  alike.managed = {{3, rest}, {5, rest}};
  const Tables tables({spec("first", 3, 4), mixed, alike});
  const Management usual;
  for (Key key = 0; key < 3; ++key) CHECK(tables[0].management(key) == usual);
  for (Key key = 3; key < 13; ++key) {
    const Key row = key - 3;
    CHECK(tables[1].management(key) == (row < 2 || row == 7 ? hot : rest));
  }
  for (Key key = 13; key < 18; ++key) CHECK(tables[2].management(key) == rest);
  CHECK_EQ(tables[1].managements().size(), std::size_t{2});
  CHECK_EQ(tables[2].managements().size(), std::size_t{1});
  CHECK(!tables[0].is_lossy());
  CHECK(tables[1].is_lossy());
  CHECK(!tables[2].is_lossy());
}

TEST(a_table_has_at_most_256_managements) {
  const auto with = [](Clock ways, Clock first) {
    TableSpec table = spec("t", 1000, 1);
    for (Clock i = 0; i < ways; ++i)
      table.managed.push_back({i + 1 == ways ? 1000 : static_cast<std::uint64_t>(i + 1),
                               {Technique::kReplication, Wire::kFloat32, first + i}});
    return table;
  };
  const Tables most({with(256, 1)});
  for (Key key = 0; key < 1000; ++key)
    CHECK_EQ(most[0].management(key).exchange, std::min<Clock>(static_cast<Clock>(key) + 1, 256));
  CHECK_THROWS(Tables({with(257, 1)}), std::invalid_argument,
               "'t' has rows that are managed in more than 256");
  CHECK_THROWS(Tables({with(1, -1)}), std::invalid_argument,
               "'t' has exchange -1; it must be 0 to 4294967296");
  CHECK(Tables({with(1, 2)}).fingerprint() != Tables({with(1, 3)}).fingerprint());
}

TEST(managements_of_a_table_cover_all_its_rows) {
  const auto with = [](std::vector<ManagedRange> managed) {
    TableSpec table = spec("t", 10, 1);
    table.managed = std::move(managed);
    return Tables({table});
  };
  CHECK_EQ(with({{10, {}}}).size(), std::size_t{1});
  CHECK_THROWS(with({{9, {}}}), std::invalid_argument, "managements up to row 9 of 10; every row needs one");
  CHECK_THROWS(with({{4, {}}, {4, {}}, {10, {}}}), std::invalid_argument, "a management range up to row 4");
  CHECK_THROWS(with({{11, {}}}), std::invalid_argument, "they must ascend to its 10 rows");
}

TEST(different_tables_have_different_fingerprints) {
  const std::vector<TableSpec> base = {spec("a", 10, 4), spec("b", 3, 8)};
  std::set<std::uint64_t> known{Tables(base).fingerprint()};
  const auto is_new = [&](auto change) {
    std::vector<TableSpec> specs = base;
    change(specs);
    return known.insert(Tables(specs).fingerprint()).second;
  };
  CHECK(!is_new([](auto&) {}));
  CHECK(is_new([](auto& s) { s[0].name = "c"; }));
  CHECK(is_new([](auto& s) { s[1].rows = 4; }));
  CHECK(is_new([](auto& s) { s[0].length = 5; }));
  CHECK(is_new([](auto& s) { s[0].rule.kind = RuleKind::kMomentum; }));
  for (float UpdateRule::* const number :
       {&UpdateRule::lr, &UpdateRule::momentum, &UpdateRule::eps, &UpdateRule::beta1,
        &UpdateRule::initial_accumulator, &UpdateRule::weight_decay}) {
    CHECK(is_new([&](auto& s) { s[0].rule.*number += 0.25F; }));
  }
  CHECK(is_new([](auto& s) { s[0].rule.beta2 += 0.25; }));
  for (bool UpdateRule::* const flag :
       {&UpdateRule::decoupled, &UpdateRule::nesterov, &UpdateRule::centered}) {
    CHECK(is_new([&](auto& s) { s[0].rule.*flag = true; }));
  }
  CHECK(is_new([](auto& s) { s[0].init.kind = InitKind::kUniform; }));
  CHECK(is_new([](auto& s) { s[0].init.a = 1.0F; }));
  CHECK(is_new([](auto& s) { s[0].init.b = 1.0F; }));
  CHECK(is_new([](auto& s) { s[0].init.seed = 1; }));
  CHECK(is_new([](auto& s) { std::swap(s[0], s[1]); }));
  CHECK(is_new([](auto& s) { s[0].management.wire = Wire::kInt8; }));
  CHECK(is_new([](auto& s) { s[0].management.wire = Wire::kBfloat16; }));
  CHECK(is_new([](auto& s) { s[0].management.technique = Technique::kAdaptive; }));
  CHECK(!is_new([](auto& s) { s[0].managed = {{10, {Technique::kAdaptive}}}; }));  // equal for all rows
  for (const std::uint64_t end : {4, 5}) {
    CHECK(
        is_new([&](auto& s) { s[0].managed = {{end, {Technique::kAdaptive}}, {10, {Technique::kStatic}}}; }));
  }
  for (const HomeRange& home :
       {HomeRange{10, 0}, HomeRange{10, 1}, HomeRange{10}, HomeRange{10, kHomeByHash, 0}})
    CHECK(is_new([&](auto& s) { s[0].homes = {home}; }));
}

TEST(keys_are_spread_over_nodes_and_channels) {
  constexpr Key kKeys = 60'000;
  const Directory directory(3, 4);
  std::vector<std::vector<int>> count(3, std::vector<int>(4));
  for (Key key = 0; key < kKeys; ++key)
    ++count[directory.home(key)][static_cast<std::size_t>(directory.channel(key))];
  for (const auto& of_node : count) {
    for (const int keys : of_node) CHECK(std::abs(keys - 5000) < 350);  // 5 standard deviations
  }
}

TEST(each_node_is_the_home_of_one_of_consecutive_keys) {
  constexpr NodeId kNodes = 7;
  const Directory directory(kNodes, 1);
  std::vector<int> first(kNodes);
  for (Key block = 0; block < 700; ++block) {
    std::vector<bool> found(kNodes);
    for (Key key = block * kNodes; key < (block + 1) * kNodes; ++key) found[directory.home(key)] = true;
    for (const bool is_home : found) CHECK(is_home);
    ++first[directory.home(block * kNodes)];
  }
  for (const int blocks : first) CHECK(std::abs(blocks - 100) < 50);  // 5 standard deviations
}

TEST(relocation_counts_are_compared_around_the_end_of_their_range) {
  CHECK(newer_entry(1, 0));
  CHECK(!newer_entry(0, 0));
  CHECK(!newer_entry(0, 1));
  CHECK(newer_entry(5, kEntryMask));  // 5 follows after the wrap
  CHECK(!newer_entry(kEntryMask, 5));
  CHECK(newer_entry((1U << 18) + 1, (1U << 18) - 1));  // only the low bits are compared
  CHECK_EQ(next_relocation(0), 1U);
  CHECK_EQ(next_relocation(kEntryMask), 1U);  // 0 means an unknown location
}

TEST(rows_have_the_homes_of_their_table) {
  TableSpec placed{.name = "placed", .rows = 10, .length = 1};
  placed.homes = {{4, 2}, {7, kHomeByHash}, {10, 0}};
  TableSpec hashed{.name = "hashed", .rows = 5, .length = 1};
  const Tables tables({hashed, placed, TableSpec{.name = "last", .rows = 5, .length = 1}});
  const Directory directory(3, 1, tables);
  const Directory by_hash(3, 1);
  for (Key key = 0; key < tables.num_keys(); ++key) {
    const NodeId home = directory.home(key);
    if (key >= 5 && key < 9) {
      CHECK(home == 2);
    } else if (key >= 12 && key < 15) {
      CHECK(home == 0);
    } else {
      CHECK(home == by_hash.home(key));
    }
  }
}

TEST(rows_can_share_the_homes_of_another_tables_rows) {
  const TableSpec first{.name = "first", .rows = 7, .length = 1};
  TableSpec follower{.name = "follower", .rows = 60, .length = 1};
  follower.homes = {{20, kHomeByHash, 2}, {30, 1}, {50, kHomeByHash, 2}, {60}};
  const TableSpec followed{.name = "followed", .rows = 50, .length = 1};
  const Tables tables({first, follower, followed});
  const Directory directory(5, 1, tables);
  const Directory by_hash(5, 1);
  for (std::uint64_t row = 0; row < 60; ++row) {
    const NodeId home = directory.home(7 + row);
    if (row < 20 || (row >= 30 && row < 50)) {
      CHECK(home == directory.home(67 + row));
      CHECK(home == by_hash.home(67 + row));
    } else {
      CHECK(home == (row < 30 ? 1 : by_hash.home(7 + row)));
    }
  }
}

TEST(homes_cannot_follow_rows_that_do_not_exist) {
  TableSpec follower{.name = "follower", .rows = 10, .length = 1};
  const TableSpec followed{.name = "followed", .rows = 9, .length = 1};
  const auto said = [&](HomeRange home) {
    follower.homes = {home};
    if (home.end < follower.rows) follower.homes.push_back({follower.rows});
    try {
      const Tables tables({follower, followed});
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_EQ(said({9, kHomeByHash, 1}), "");
  CHECK_EQ(said({10, kHomeByHash, 1}),
           "rows of table 'follower' are hashed as those of table 'followed' up to row 10; it has 9");
  CHECK_EQ(said({10, kHomeByHash, 2}),
           "rows of table 'follower' are hashed as those of table 2; there are 2 tables, numbered from 0 on");
}

TEST(homes_of_a_table_cover_all_its_rows) {
  const auto refused = [](std::vector<HomeRange> homes) {
    TableSpec spec{.name = "t", .rows = 10, .length = 1};
    spec.homes = std::move(homes);
    try {
      validate(spec);
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  CHECK(!refused({}));
  CHECK(!refused({{10, 1}}));
  CHECK(refused({{9, 1}}));
  CHECK(refused({{11, 1}}));
  CHECK(refused({{5, 1}, {5, 0}, {10, 0}}));
}
