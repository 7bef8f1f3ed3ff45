// Rows and changes on a lossy wire, and the rests of changes.
#include "protocol/wire_encoding.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"
#include "common/random.h"
#include "store/codec.h"

using namespace adaps;

namespace {

constexpr RuleKind kUpdateRules[] = {RuleKind::kSgd,        RuleKind::kMomentum, RuleKind::kAdagrad,
                                     RuleKind::kRowAdagrad, RuleKind::kAdam,     RuleKind::kSparseAdam,
                                     RuleKind::kRmsprop};
constexpr Wire kLossy[] = {Wire::kBfloat16, Wire::kFloat16, Wire::kInt8};

Tables one_table(Wire wire, std::size_t length, RuleKind kind = RuleKind::kSgd) {
  TableSpec spec{
      .name = "t", .rows = 1, .length = length, .rule = {.kind = kind}, .management = {.wire = wire}};
  if (kind == RuleKind::kSgd || kind == RuleKind::kAdagrad) spec.rule.weight_decay = 0.1F;
  if (kind == RuleKind::kRmsprop) {
    spec.rule.momentum = 0.5F;
    spec.rule.centered = true;
  }
  return Tables({spec});
}

Delta delta_of(const Table& table, const std::vector<float>& value) {
  Delta delta;
  static BlockPool blocks(64);
  REQUIRE(table.change_length() <= 64);
  delta.floats = blocks.allocate();
  delta.change = Change::kDelta;
  table.spec().rule.init_change(delta.floats.get(), table.length());
  std::copy(value.begin(), value.end(), delta.floats.get());
  return delta;
}

}  // namespace

TEST(step_counters_of_rows_are_sent_exactly) {
  for (const Wire wire : kLossy) {
    for (const RuleKind kind : kUpdateRules) {
      for (const std::size_t length : {1, 2, 7, 16}) {
        const Tables tables = one_table(wire, length, kind);
        const Table& table = tables[0];
        std::vector<float> row(table.width());
        for (std::size_t i = 0; i < row.size(); ++i) row[i] = 0.001F * static_cast<float>(i + 1);
        row.back() = 1234567.0F;
        std::vector<float> words;
        REQUIRE(encode(table, wire, row, words));
        CHECK_EQ(words.size(), encoded_floats(table, wire, table.width()));
        std::vector<float> decoded(row.size());
        decode(table, wire, words, decoded);
        CHECK_EQ(decoded.back(), 1234567.0F);
        for (std::size_t i = 0; i + 1 < row.size(); ++i) {
          const Wire of = i < length ? wire : Wire::kBfloat16;
          const float largest = i < length ? row[length - 1] : row[i];
          CHECK(std::abs(decoded[i] - row[i]) <= rounding_bound(of, largest));
        }
        // The value alone, as in an answer.
        std::vector<float> value(length);
        REQUIRE(encode(table, wire, std::span(row).first(length), words));
        CHECK_EQ(words.size(), encoded_words(wire, length));
        decode(table, wire, words, value);
        CHECK(std::equal(value.begin(), value.end(), decoded.begin()));
      }
    }
  }
}

TEST(rows_that_the_wire_cannot_represent_are_sent_unchanged) {
  for (const Wire wire : kLossy) {
    const Tables tables = one_table(wire, 4, RuleKind::kAdagrad);
    std::vector<float> words;
    std::vector<float> row(tables[0].width(), 1.0F);
    CHECK(encode(tables[0], wire, row, words));
    for (const std::size_t at : {0, 6}) {  // value and state
      std::vector<float> broken = row;
      broken[at] = std::numeric_limits<float>::quiet_NaN();
      CHECK(!encode(tables[0], wire, broken, words));
    }
    Unapplied changes;
    changes.in_flight = delta_of(tables[0], {1.0F, std::numeric_limits<float>::infinity(), 3.0F, 4.3F});
    CHECK(!keep_rest(tables[0], wire, changes, words));
    CHECK(!changes.unsent);
    CHECK_EQ(changes.in_flight.floats[3], 4.3F);
  }
}

TEST(the_sent_change_and_its_rest_add_up_to_the_change) {
  Random random(7, 1);
  for (const Wire wire : kLossy) {
    const Tables tables = one_table(wire, 16);
    std::vector<float> value(16);
    for (float& x : value) x = static_cast<float>(random.uniform(-1.0, 1.0));
    Unapplied changes;
    changes.in_flight = delta_of(tables[0], value);
    std::vector<float> words, decoded(tables[0].change_length());
    REQUIRE(keep_rest(tables[0], wire, changes, words));
    decode(tables[0], wire, words, decoded);
    CHECK(changes.unsent.is_rest());
    for (std::size_t i = 0; i < value.size(); ++i) {
      CHECK_EQ(changes.in_flight.floats[i], decoded[i]);
      CHECK_EQ(changes.in_flight.floats[i] + changes.unsent.floats[i], value[i]);
    }
    // Changes that the wire represents exactly leave no rest.
    Unapplied whole;
    whole.in_flight = delta_of(tables[0], {1.0F, -3.0F, 5.0F, 0.0F, 127.0F});
    REQUIRE(keep_rest(tables[0], wire, whole, words));
    CHECK(!whole.unsent);
  }
}
