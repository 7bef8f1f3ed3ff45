// Tests that the protocol keeps its promises in random worlds, and that the checker detects violations.
#include <limits>

#include "check.h"
#include "simulation/checker.h"
#include "simulation/explore.h"
#include "simulation/generator.h"
#include "simulation/quiescence.h"
#include "simulation/shrink.h"
#include "simulation/violation.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

// A history of one key in a few lines. Every call takes one step.
class Told {
 public:
  Told& push(NodeId node, std::uint32_t worker, std::uint32_t number) {
    return add(CallKind::kPush, node, worker, {{0, number}}, {});
  }
  Told& set(NodeId node, std::uint32_t worker, std::initializer_list<std::uint32_t> numbers) {
    std::vector<Write> writes;
    for (const std::uint32_t number : numbers) writes.push_back({0, number});
    return add(CallKind::kSet, node, worker, std::move(writes), {});
  }
  Told& pull(NodeId node, std::uint32_t worker, const Content& content) {
    return add(CallKind::kPull, node, worker, {}, {{0, content}});
  }
  Told& gradient(NodeId node, std::uint32_t worker, std::uint32_t number) {
    return add(CallKind::kPushGradients, node, worker, {{0, number}}, {});
  }
  Told& set_state(NodeId node, std::uint32_t worker, std::initializer_list<std::uint32_t> numbers) {
    std::vector<Write> writes;
    for (const std::uint32_t number : numbers) writes.push_back({0, number});
    return add(CallKind::kSetState, node, worker, std::move(writes), {});
  }
  Told& pull_state(NodeId node, std::uint32_t worker, const StateContent& state) {
    add(CallKind::kPullState, node, worker, {}, {});
    history_.back().states.push_back({0, state});
    return *this;
  }
  Told& sync(NodeId node, std::uint32_t worker) { return add(CallKind::kSync, node, worker, {}, {}); }
  // Ends the previous call only now.
  Told& last_ends() {
    history_.back().end = step_++;
    return *this;
  }

  std::string violation(const Content& last, const std::vector<StateRead>& states = {}) const {
    try {
      check_history(history_, {{last}, states});
    } catch (const Violation& violation) {
      return violation.kind();
    }
    return "none";
  }

 private:
  Told& add(CallKind kind, NodeId node, std::uint32_t worker, std::vector<Write> writes,
            std::vector<Read> reads) {
    history_.push_back({kind, node, worker, false, step_, step_, 0, 0, std::move(writes), std::move(reads)});
    ++step_;
    return *this;
  }

  History history_;
  Step step_ = 1;
};

Content content(std::uint32_t set, std::initializer_list<std::uint32_t> pushes) {
  Content content{set, {}};
  for (const std::uint32_t push : pushes) content.pushes.set(push);
  return content;
}

}  // namespace

TEST(random_worlds_keep_every_promise) {
  const Exploration result = explore({.seed = 1, .worlds = 5000});
  for (const Failure& failure : result.failures) {
    std::cout << "  simulate --seed 1 --world " << failure.world << ": " << failure.what << "\n";
  }
  CHECK(result.failures.empty());
}

TEST(random_worlds_use_everything) {
  // Counts only the kinds of calls before those of checkpoints.
  std::vector<int> techniques(5), kinds(static_cast<std::size_t>(CallKind::kFreeze)), nodes(17);
  int mixed = 0, mixed_rows = 0, mixed_wires = 0, placed = 0, following = 0, coarse = 0, rounded = 0;
  int packed = 0, mixed_dtypes = 0, with_ids = 0;
  std::uint64_t full_shares = 0;
  std::uint64_t relocations = 0, set_up = 0, dropped = 0, deltas = 0, refreshes = 0, forwarded = 0, late = 0;
  std::uint64_t full = 0;
  for (std::uint64_t number = 0; number < 1000; ++number) {
    const WorldSpec spec = random_world(2, number);
    ++techniques[static_cast<std::size_t>(spec.settings.technique)];
    ++nodes[spec.settings.nodes];
    mixed +=
        spec.tables.size() > 1 && spec.tables[0].management.technique != spec.tables[1].management.technique
            ? 1
            : 0;
    const auto differs = [&](auto of) {
      return std::any_of(spec.keys.begin(), spec.keys.end(), [&](Key key) {
        const Key neighbour = key == 0 ? 1 : key - 1;
        return of(spec, key) != of(spec, neighbour);
      });
    };
    mixed_rows += differs(technique_of) ? 1 : 0;
    mixed_wires += differs(wire_of) ? 1 : 0;
    coarse += spec.coarse ? 1 : 0;
    rounded += spec.rounded ? 1 : 0;
    const auto is_packed = [](const TableSpec& table) { return table.dtype == Dtype::kBfloat16; };
    const auto packed_tables = std::count_if(spec.tables.begin(), spec.tables.end(), is_packed);
    packed += packed_tables > 0 ? 1 : 0;
    mixed_dtypes += packed_tables == 1 && spec.tables.size() == 2 ? 1 : 0;
    with_ids += spec.ids.empty() ? 0 : 1;
    placed += spec.tables[0].homes.empty() ? 0 : 1;
    for (const TableSpec& table : spec.tables) {
      const auto follows = [](const HomeRange& home) { return home.hashed_with != kOwnKey; };
      following += std::any_of(table.homes.begin(), table.homes.end(), follows) ? 1 : 0;
    }
    for (const Program& program : spec.programs) {
      for (const Call& call : program) ++kinds.at(static_cast<std::size_t>(call.kind));
    }
    World world(spec);
    world.run_until_quiet();
    for (NodeId node = 0; node < spec.settings.nodes; ++node) {
      for (const auto& channel : world.cluster().node(node).channels) {
        const ChannelCounters& counters = channel->counters();
        relocations += counters.relocations.get();
        set_up += counters.replicas_set_up.get();
        dropped += counters.replicas_dropped.get();
        deltas += counters.deltas_sent.get();
        refreshes += counters.refreshes_sent.get();
        forwarded += counters.requests_forwarded.get();
        late += counters.intents_late.get();
        full += counters.unsent_full_micros.get() > 0 ? 1 : 0;
      }
      for (std::size_t i = 0; i < spec.tables.size(); ++i) {
        const RowIds* ids = world.cluster().node(node).tables[i].ids();
        const RowRange share = share_of(spec.tables[i].rows, spec.settings.nodes, node);
        full_shares += ids != nullptr && ids->assigned() == share.size() ? 1 : 0;
      }
    }
  }
  for (const int count : techniques) CHECK(count > 10);
  CHECK(mixed > 30);
  CHECK(mixed_rows > 100);
  CHECK(mixed_wires > 50);
  CHECK(placed > 200);
  CHECK(following > 30);
  CHECK(coarse > 100);
  CHECK(rounded > 100);
  CHECK(packed > 100);
  CHECK(mixed_dtypes > 10);
  CHECK(with_ids > 100);
  CHECK(full_shares > 30);
  for (const int count : kinds) CHECK(count > 100);
  for (std::size_t n = 2; n < nodes.size(); ++n) CHECK(nodes[n] > 0);
  for (const std::uint64_t count : {relocations, set_up, dropped, deltas, refreshes, forwarded, late})
    CHECK(count > 300);
  CHECK(full > 100);
}

TEST(a_world_is_the_same_every_time) {
  std::vector<std::string> first, second;
  failure_of(random_world(5, 17), Mutant::none, &first);
  failure_of(random_world(5, 17), Mutant::none, &second);
  CHECK(first.size() > 20);
  CHECK(first == second);
}

TEST(a_failing_world_is_minimized) {
  const Exploration result = explore({.seed = 4, .worlds = 500, .mutant = Mutant::refresh_forgets_unsent});
  REQUIRE(result.failures.size() == 1);
  const WorldSpec spec = random_world(4, result.failures[0].world);
  const WorldSpec small = shrink(spec, Mutant::refresh_forgets_unsent);
  const auto calls = [](const WorldSpec& world) {
    std::size_t sum = 0;
    for (const Program& program : world.programs) sum += program.size();
    return sum;
  };
  CHECK(2 * calls(small) < calls(spec));
  CHECK(failure_of(small, Mutant::refresh_forgets_unsent).has_value());
  CHECK(!failure_of(small, Mutant::none).has_value());
}

TEST(checker_accepts_what_is_allowed) {
  // Another node's push may be invisible for a while, and two overlapping sets may take effect in either
  // order.
  Told told;
  told.push(0, 0, 0).pull(1, 1, content(0, {})).pull(0, 0, content(0, {0}));
  CHECK_EQ(told.violation(content(0, {0})), "none");
  Told sets;
  sets.set(0, 0, {1}).set(1, 1, {2});
  CHECK_EQ(sets.violation(content(2, {})), "none");
}

TEST(checker_finds_lost_and_doubled_updates) {
  CHECK_EQ(Told().push(0, 0, 0).violation(content(0, {})), "lost update");
  CHECK_EQ(Told().set(0, 0, {1}).violation(content(0, {})), "lost update");
  CHECK_EQ(Told().violation(content(0, {3})), "value");
  float twice[2] = {0.0F, 2.0F};
  CHECK_THROWS(read_content(twice), Violation, "push 0 counted 2 times");
  float odd[2] = {0.0F, 0.5F};
  CHECK_THROWS(read_content(odd), Violation, "no sum of pushes");
  float unwritten[2] = {0.0F, std::numeric_limits<float>::quiet_NaN()};
  CHECK_THROWS(read_content(unwritten), Violation, "not written");
}

TEST(checker_finds_workers_that_miss_their_own_writes) {
  CHECK_EQ(Told().push(0, 0, 0).pull(0, 0, content(0, {})).violation(content(0, {0})), "read-your-writes");
  CHECK_EQ(Told().set(0, 0, {1}).pull(0, 0, content(0, {})).violation(content(1, {})), "read-your-writes");
}

TEST(checker_finds_reads_that_go_back) {
  Told told;
  told.push(0, 0, 0).pull(1, 1, content(0, {0})).pull(1, 1, content(0, {}));
  CHECK_EQ(told.violation(content(0, {0})), "monotonic reads");
  Told sets;
  sets.set(0, 0, {1}).pull(1, 1, content(1, {})).pull(1, 1, content(0, {}));
  CHECK_EQ(sets.violation(content(1, {})), "monotonic reads");
}

TEST(checker_finds_writes_that_wait_sync_does_not_make_visible) {
  Told told;
  told.push(0, 0, 0).sync(0, 0).sync(1, 1).pull(1, 1, content(0, {}));
  CHECK_EQ(told.violation(content(0, {0})), "wait_sync");
  Told seen;  // the writer has not called wait_sync, but another node saw the push
  seen.push(0, 0, 0).pull(2, 2, content(0, {0})).sync(1, 1).pull(1, 1, content(0, {}));
  CHECK_EQ(seen.violation(content(0, {0})), "wait_sync");
  Told early;  // a wait_sync that began before the writer's had ended guarantees nothing
  early.push(0, 0, 0).sync(1, 1).sync(0, 0).pull(1, 1, content(0, {}));
  CHECK_EQ(early.violation(content(0, {0})), "none");
  Told set;
  set.set(0, 0, {1}).sync(1, 1).pull(1, 1, content(0, {}));
  CHECK_EQ(set.violation(content(1, {})), "wait_sync");
}

TEST(checker_finds_sets_out_of_order) {
  Told older;
  older.push(0, 0, 0).set(0, 1, {1});
  CHECK_EQ(older.violation(content(1, {0})), "order of sets");
  Told duplicate;
  duplicate.set(0, 0, {1, 2});
  CHECK_EQ(duplicate.violation(content(1, {})), "duplicates");
  Told told;  // two workers see two overlapping sets in different orders
  told.set(0, 0, {1}).last_ends().set(1, 1, {2});
  CHECK_EQ(told.violation(content(1, {})), "lost update");
}

TEST(checker_finds_states_that_no_order_of_the_calls_explains) {
  const StateContent initial, first{false, 1}, second{false, 2}, gradient{true, 0};
  const Content none = content(0, {}), pushed = content(0, {0});
  const auto finds = [](const Told& told, const Content& last, const char* violation) {
    CHECK_EQ(told.violation(last), violation);
  };
  finds(Told().set_state(0, 0, {1}).pull_state(1, 1, first), none, "none");
  finds(Told().set_state(0, 0, {1}).pull_state(1, 1, initial), none, "state");  // lost
  finds(Told().set_state(0, 0, {1}).set_state(1, 1, {2}).pull_state(2, 2, first), none, "state");
  finds(Told().pull_state(0, 0, first), none, "state");                       // never written
  finds(Told().pull_state(0, 0, first).set_state(1, 1, {1}), none, "state");  // from the future
  finds(Told().set_state(0, 0, {1, 2}).pull_state(1, 1, first), none, "duplicates");
  finds(Told().push(0, 0, 0).pull_state(0, 0, gradient), pushed, "state");  // a push changes no state
  // A gradient of another node may come later. One of the same node comes before.
  finds(Told().gradient(0, 0, 0).set_state(1, 1, {1}).pull_state(0, 0, gradient), pushed, "none");
  finds(Told().gradient(0, 0, 0).set_state(0, 1, {1}).pull_state(0, 0, gradient), pushed, "state");
  finds(Told().gradient(0, 0, 0).pull_state(0, 0, initial), pushed, "state");
  finds(Told().gradient(0, 0, 0).pull_state(1, 1, initial), pushed, "none");
  finds(Told().gradient(0, 0, 0).sync(0, 0).pull_state(1, 1, initial), pushed, "state");
  // A state that was replaced does not come back.
  finds(Told()
            .gradient(0, 0, 0)
            .pull_state(1, 1, gradient)
            .set_state(1, 1, {1})
            .pull_state(2, 2, first)
            .pull_state(1, 1, gradient),
        pushed, "state");
  CHECK_EQ(Told().set_state(0, 0, {1}).violation(none, {{0, initial}}), "state");
  CHECK_EQ(Told().set_state(0, 0, {1}).set_state(1, 1, {2}).violation(none, {{0, second}}), "none");
}

TEST(a_state_that_no_write_explains_is_a_violation) {
  const float initial[2] = {0.5F, 0.5F};
  const auto read = [&](float first, float second) {
    const float state[2] = {first, second};
    return read_state(state, initial);
  };
  CHECK(read(0.5F, 0.5F) == StateContent{});
  CHECK(read(3.0F, 0.0F) == (StateContent{false, 3}));
  CHECK(read(0.0F, -4.0F) == (StateContent{true, 1}));
  CHECK_THROWS(read(0.0F, 4.0F), Violation, "neither a set_state nor a gradient");
  CHECK_THROWS(read(3.0F, 4.0F), Violation, "neither a set_state nor a gradient");
  CHECK_THROWS(read(0.0F, -5.0F), Violation, "neither a set_state nor a gradient");
  CHECK_THROWS(read(0.0F, 0.0F), Violation, "neither a set_state nor a gradient");
}
