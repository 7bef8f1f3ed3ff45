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

void finds(const Told& told, const Content& last, const char* violation) {
  CHECK_EQ(told.violation(last), violation);
}

}  // namespace

TEST(random_worlds_keep_every_promise) {
  const Exploration result = explore({.seed = 1, .worlds = 5000});
  for (const Failure& failure : result.failures) {
    std::cout << "  simulate --seed 1 --world " << failure.world << ": " << failure.what << "\n";
  }
  CHECK(result.failures.empty());
}

// The mutants show that the worlds use other features, such as wires, dtypes and ids.
TEST(random_worlds_use_every_technique_and_call) {
  // Counts only the kinds of calls before those of checkpoints.
  std::vector<int> techniques(5), kinds(static_cast<std::size_t>(CallKind::kFreeze)), nodes(17);
  std::uint64_t late = 0, placed = 0;
  for (std::uint64_t number = 0; number < 1000; ++number) {
    const WorldSpec spec = random_world(2, number);
    ++techniques[static_cast<std::size_t>(spec.settings.technique)];
    ++nodes[spec.settings.nodes];
    placed += spec.tables[0].homes.empty() ? 0 : 1;
    for (const Program& program : spec.programs) {
      for (const Call& call : program) ++kinds.at(static_cast<std::size_t>(call.kind));
    }
    World world(spec);
    world.run_until_quiet();
    for (NodeId node = 0; node < spec.settings.nodes; ++node) {
      for (const auto& channel : world.cluster().node(node).channels)
        late += channel->counters().intents_late.get();
    }
  }
  for (const int count : techniques) CHECK(count > 10);
  for (const int count : kinds) CHECK(count > 100);
  for (std::size_t n = 2; n < nodes.size(); ++n) CHECK(nodes[n] > 0);
  CHECK(late > 300);
  CHECK(placed > 200);
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
  finds(Told().push(0, 0, 0).pull(1, 1, content(0, {})).pull(0, 0, content(0, {0})), content(0, {0}), "none");
  finds(Told().set(0, 0, {1}).set(1, 1, {2}), content(2, {}), "none");
  // A wait_sync that began before the writer's had ended guarantees nothing.
  finds(Told().push(0, 0, 0).sync(1, 1).sync(0, 0).pull(1, 1, content(0, {})), content(0, {0}), "none");
}

TEST(checker_finds_each_broken_promise) {
  const Content none = content(0, {}), pushed = content(0, {0}), set = content(1, {});
  finds(Told().push(0, 0, 0), none, "lost update");
  finds(Told().set(0, 0, {1}), none, "lost update");
  finds(Told(), content(0, {3}), "value");
  finds(Told().push(0, 0, 0).pull(0, 0, none), pushed, "read-your-writes");
  finds(Told().set(0, 0, {1}).pull(0, 0, none), set, "read-your-writes");
  finds(Told().push(0, 0, 0).pull(1, 1, pushed).pull(1, 1, none), pushed, "monotonic reads");
  finds(Told().set(0, 0, {1}).pull(1, 1, set).pull(1, 1, none), set, "monotonic reads");
  finds(Told().push(0, 0, 0).sync(0, 0).sync(1, 1).pull(1, 1, none), pushed, "wait_sync");
  // The writer has not called wait_sync, but another node saw the push.
  finds(Told().push(0, 0, 0).pull(2, 2, pushed).sync(1, 1).pull(1, 1, none), pushed, "wait_sync");
  finds(Told().set(0, 0, {1}).sync(1, 1).pull(1, 1, none), set, "wait_sync");
  finds(Told().push(0, 0, 0).set(0, 1, {1}), content(1, {0}), "order of sets");
  finds(Told().set(0, 0, {1, 2}), set, "duplicates");
  finds(Told().set(0, 0, {1}).last_ends().set(1, 1, {2}), set, "lost update");
}

TEST(values_that_no_writes_explain_are_violations) {
  const auto read = [](float value) {
    const float row[2] = {0.0F, value};
    return read_content(row);
  };
  CHECK_THROWS(read(2.0F), Violation, "push 0 counted 2 times");
  CHECK_THROWS(read(0.5F), Violation, "no sum of pushes");
  CHECK_THROWS(read(std::numeric_limits<float>::quiet_NaN()), Violation, "not written");
}

TEST(checker_finds_states_that_no_order_of_the_calls_explains) {
  const StateContent initial, first{false, 1}, second{false, 2}, gradient{true, 0};
  const Content none = content(0, {}), pushed = content(0, {0});
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
