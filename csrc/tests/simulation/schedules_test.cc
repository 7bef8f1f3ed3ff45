// Races that random worlds find late or never, with manual schedules (docs/concepts/protocol.md, section 18).
// Each schedule passes, and fails with the mutant that removes its rule.
#include "check.h"
#include "simulation/mutants.h"
#include "simulation/scenario.h"
#include "simulation/violation.h"

using namespace adaps;
using namespace adaps::simulation;

namespace {

// The old owner gives the key to n while n's DELTA is on the network. n absorbs the change. The key then
// moves, and n is a holder again when its old DELTA arrives.
void crossed_delta_returns(Scenario& s) {
  const NodeId a = 0, n = 1, m = 2;
  s.intent(a);
  s.intent(n);
  s.deliver_all();  // a is owner, n has a replica
  s.push(n);
  s.flush(n);  // its DELTA is on the slow link n -> a
  s.end_intent(a);
  s.deliver(a, n);  // n is upgraded and absorbs the change
  REQUIRE(s.state(n) == State::kOwner);
  s.end_intent(n);
  s.intent(m);
  s.deliver(m, a);
  s.deliver_all({{n, a}});  // a forwards m's intent to n, which gives the key to m
  REQUIRE(s.state(m) == State::kOwner);
  s.end_intent(m);
  s.intent(a);
  s.deliver_all({{n, a}});
  REQUIRE(s.state(a) == State::kOwner);
  s.intent(n);
  s.deliver_all({{n, a}});
  REQUIRE(s.state(n) == State::kPending || s.state(n) == State::kReplica);
}

// n drops its replica and then writes. A later owner's answer arrives before the old owner's DROP_ACK.
void answer_overtakes_drop_ack(Scenario& s) {
  const NodeId a = 0, n = 1, m = 2;
  s.intent(a);
  s.intent(n);
  s.deliver_all();
  s.end_intent(n);
  s.deliver(n, a);  // DROP_ACK is on the slow link a -> n
  s.end_intent(a);
  s.intent(m);
  s.deliver(m, a);
  s.deliver(a, m);
  REQUIRE(s.state(m) == State::kOwner);
  REQUIRE(s.state(n) == State::kDropping);
  s.push(n);
  s.deliver_all({{a, n}});  // via a to m, which answers
  s.pull(n);                // must not read the remains of the replica
}

// An absorbed change modifies the value, so it must raise the version, which a dropping replica compares.
void absorbed_updates_count(Scenario& s) {
  const NodeId home = 0, a = 1, n = 2, z = 3;
  s.intent(a);
  s.deliver_all();
  s.intent(n);
  s.deliver_all();  // a is owner, n has a replica
  s.pull(z);
  s.pull(z);
  s.deliver(z, home, 1);
  s.deliver_all({{z, home}});  // the first pull is answered; the second is on the slow link z -> home
  s.intent(z);
  s.deliver_all({{z, home}});
  REQUIRE(s.state(z) == State::kReplica);
  s.push(n);  // is not sent yet
  s.end_intent(z);
  s.deliver(z, a);  // DROP_ACK is on the slow link a -> z
  s.end_intent(a);
  s.deliver(a, n);  // n is upgraded and absorbs its push
  REQUIRE(s.state(n) == State::kOwner);
  s.deliver_all({{a, z}});  // n answers the second pull
  s.pull(z);                // must not return an older value
}

// A node that waits for the key sets it twice in one call.
void duplicates_in_one_set(Scenario& s) {
  s.intent(1);
  s.set(1, 2);
  s.deliver_all();
}

// NEWS of an old ownership period reaches the home node after the home node itself has owned the key and
// given it away again. If the home node accepted this NEWS, the location entries would form a cycle.
void late_news(Scenario& s) {
  const NodeId home = 0, y = 1, w = 2, z = 3;
  s.intent(z);
  s.deliver_all();
  s.end_intent(z);
  s.intent(y);
  s.deliver(y, home);
  s.deliver_all({{y, home}});  // y owns the key; its NEWS is on the slow link y -> home
  REQUIRE(s.state(y) == State::kOwner);
  s.end_intent(y);
  s.intent(w);
  s.deliver_all({{y, home}});
  REQUIRE(s.state(w) == State::kOwner);
  s.end_intent(w);
  s.intent(home);
  s.deliver_all({{y, home}});
  REQUIRE(s.state(home) == State::kOwner);
  s.end_intent(home);
  s.intent(z);
  s.deliver_all({{y, home}});
  REQUIRE(s.state(z) == State::kOwner);
  s.deliver(y, home);
  s.pull(y);
}

// A refresh that wait_sync must make visible is sent only after the echo.
void refresh_and_echo(Scenario& s) {
  const NodeId a = 0, b = 1, c = 2;
  s.intent(a);
  s.intent(b);
  s.deliver_all();  // a is owner, b has a replica
  s.push(c);
  s.deliver_all();
  s.pull(a);  // shows that the push is applied, before any round has sent it to b
  s.sync(b);
  s.deliver(b, c);
  s.deliver(c, b);
  s.deliver(b, a);
  s.deliver(a, b, 1);
  s.pull(b);
}

// Two nodes call wait_sync and do not wait for it yet. One flush of the owner, in three slices, answers both.
void patient_syncs(Scenario& s) {
  const NodeId a = 0, b = 1, c = 2;
  for (const std::uint32_t key : {0, 1, 2}) {
    s.intent(a, key);
    s.intent(b, key);
  }
  s.deliver_all();  // a owns the keys, b has replicas
  for (const std::uint32_t key : {0, 1, 2}) s.push(c, key);
  s.deliver_all();
  s.pull(a, 2);  // shows that the last push is applied
  s.patient_sync(b);
  s.patient_sync(c);
  s.deliver(b, a);
  s.deliver(c, a);
  s.deliver(b, c);
  s.deliver(c, b);
  s.tick(a);
  s.tick(c, 2'000);
  s.deliver(c, b);
  s.deliver(a, b);
  s.pull(b, 2);
}

// A second wait_sync begins while the answer to the first one's mark is on the network.
void two_syncs(Scenario& s) {
  const NodeId a = 0, b = 1, c = 2;
  s.intent(a);
  s.intent(b);
  s.deliver_all();
  s.sync(b);
  s.deliver(b, c);
  s.deliver(c, b);
  s.deliver(b, a);  // the echo is on the slow link a -> b
  s.push(c);
  s.deliver_all({{a, b}});
  s.pull(a);
  s.sync(b);
  s.deliver(a, b);
  s.pull(b);
}

// The refreshes that wait_sync must make visible take two slices.
void echo_behind_both_slices(Scenario& s) {
  const NodeId a = 0, b = 1, c = 2;
  for (const std::uint32_t key : {0, 1}) {
    s.intent(a, key);
    s.intent(b, key);
  }
  s.deliver_all();  // a owns both keys, b has replicas
  s.push(a, 0);
  s.push(a, 1);
  s.pull(c, 1);
  s.deliver_all();  // shows that the second push is applied, before any round has sent it to b
  s.sync(b);
  s.deliver(b, c);
  s.deliver(c, b);
  s.deliver(b, a);
  s.deliver(a, b);
  s.pull(b, 1);
}

// A holder applies a gradient to its replica while a refresh with the owner's gradient is on the network. The
// owner's result differs, because the owner has applied both gradients.
void gradient_and_refresh_cross(Scenario& s) {
  const NodeId a = 0, b = 1;
  s.intent(a);
  s.intent(b);
  s.deliver_all();  // a is owner, b has a replica
  s.push_gradient(a);
  s.flush(a);  // its REFRESH is on the slow link a -> b
  s.push_gradient(b);
  s.flush(b);
  s.deliver(b, a);
  s.deliver_all();
}

// A key changes again during the owner's flush, after it was sent.
void dirty_again_while_flushed(Scenario& s) {
  for (NodeId node = 0; node < 3; ++node) {
    for (std::uint32_t key = 0; key < 3; ++key) s.intent(node, key);
    s.deliver_all();
  }
  s.end_intent(0);  // with two holders, node 0 stays the owner
  for (std::uint32_t key = 0; key < 3; ++key) s.push(0, key);
  s.flush(0);  // takes two slices
  s.push(0, 0);
  s.flush(0);
  s.deliver_all();
}

// A replica is dropped while its change is not due. The node becomes a holder again, and changes the key
// before and after the due change is sent.
void dirty_in_two_slots(Scenario& s) {
  const NodeId home = 0, n = 1;
  for (std::uint32_t key = 0; key < 3; ++key) s.intent(home, key);
  s.intent(n);
  s.deliver_all();
  s.push(n);
  s.flush(n);
  s.end_intent(n);
  s.deliver_all();
  for (std::uint32_t key = 0; key < 3; ++key) s.intent(n, key, 2);
  s.deliver_all();
  for (std::uint32_t key : {1, 2, 0}) s.push(n, key);
  s.end_intent(n);  // all changes are due at the second clock; they take several slices
  s.push(n);
  s.deliver_all();
}

// A wait_sync of a node needs one change. Until the change is acknowledged, two refreshes that are not due
// become dirty. A flush in two slices defers both.
void deferred_in_two_slices(Scenario& s) {
  const NodeId a = 0, n = 1;
  s.intent(n, 2);
  s.deliver_all();  // n owns the third key
  for (std::uint32_t key = 0; key < 3; ++key) s.intent(a, key);
  for (std::uint32_t key = 0; key < 2; ++key) s.intent(n, key);
  s.deliver_all();
  s.push(a, 2);
  s.patient_sync(a);  // its DELTA is on the slow link a -> n
  s.push(a, 0);
  s.push(a, 1);
  s.tick(a, 2'000);
  s.come_to_rest(a);
}

// The same node uses a key three times, and no other node does.
void alone_three_times(Scenario& s) {
  const NodeId home = 0, n = 1;
  for (int i = 0; i < 2; ++i) {
    s.intent(n);
    s.deliver_all();
    s.expect_owner(home);
    s.end_intent(n);
    s.deliver_all();
  }
  s.intent(n);
  s.deliver_all();
  s.expect_owner(n);
}

// A node keeps its replica of a key that no other node uses, and sends two changes.
void keep_alone(Scenario& s, Clock length) {
  const NodeId home = 0, n = 1;
  s.intent(n, 0, length);
  s.deliver_all();
  for (int i = 0; i < 2; ++i) {
    s.expect_owner(home);
    s.push(n);
    s.flush(n);
    s.deliver_all();
  }
  s.expect_owner(n);
}

void alone_for_long(Scenario& s) { keep_alone(s, 1); }

void alone_for_good(Scenario& s) { keep_alone(s, kForGood); }

// A node uses a key for the first time. Its intent ends.
void alone_once(Scenario& s) {
  s.intent(1);
  s.deliver_all();
  s.expect_owner(1);
}

// A node uses a key three times, and another node uses it in between, at the same time.
void alone_with_interruption(Scenario& s) {
  const NodeId home = 0, n = 1, m = 2;
  s.intent(n);
  s.deliver_all();
  s.push(n);
  s.flush(n);
  s.deliver_all();
  s.intent(m);
  s.deliver_all();
  s.end_intent(m);
  s.deliver_all();
  s.expect_owner(home);
}

template <typename Schedule>
void expect_caught(Schedule schedule, Mutant mutant, NodeId nodes, const char* promise,
                   RuleKind rule = RuleKind::kSgd, Clock exchange = 0, int times_alone = 1) {
  {
    Scenario right(nodes, rule, exchange, times_alone);
    schedule(right);
    right.finish();
  }
  select_mutant(mutant);
  std::string caught = "nothing";
  Scenario wrong(nodes, rule, exchange, times_alone);
  try {
    schedule(wrong);
    wrong.finish();
  } catch (const Violation& violation) {
    caught = violation.kind();
  }
  select_mutant(Mutant::none);
  CHECK_EQ(caught, std::string(promise));
  if (caught != promise) {
    for (const std::string& line : wrong.log()) std::cout << "    " << line << "\n";
  }
}

}  // namespace

TEST(a_crossed_delta_is_discarded_even_if_its_sender_is_a_holder_again) {
  expect_caught(crossed_delta_returns, Mutant::no_rc_check, 3, "invariant");
}

TEST(an_answer_that_overtakes_the_end_of_a_drop_makes_the_replica_unreadable) {
  expect_caught(answer_overtakes_drop_ack, Mutant::zombie_stays_readable, 3, "read-your-writes");
}

TEST(absorbed_updates_count_as_a_version) {
  expect_caught(absorbed_updates_count, Mutant::absorb_no_bump, 4, "monotonic reads");
}

TEST(the_last_duplicate_of_a_set_wins) {
  expect_caught(duplicates_in_one_set, Mutant::first_duplicate_wins, 2, "duplicates");
}

TEST(outdated_news_of_a_location_is_ignored) {
  expect_caught(late_news, Mutant::news_unordered, 4, "progress");
}

TEST(an_echo_follows_the_refreshes) { expect_caught(refresh_and_echo, Mutant::echo_first, 3, "wait_sync"); }

TEST(patient_marks_share_a_flush) {
  expect_caught(patient_syncs, Mutant::patient_echo_first, 3, "wait_sync");
  for (const Mutant mutant : {Mutant::patient_mark_forgotten, Mutant::patient_marks_share_echo})
    expect_caught(patient_syncs, mutant, 3, "progress");
}

TEST(an_echo_follows_all_slices_of_the_refreshes) {
  expect_caught(echo_behind_both_slices, Mutant::echo_in_between, 3, "wait_sync");
}

TEST(a_gradient_is_exact_only_if_it_was_applied_to_the_owners_version) {
  expect_caught(gradient_and_refresh_cross, Mutant::gradient_always_exact, 2, "at rest", RuleKind::kAdagrad);
}

TEST(a_wait_sync_does_not_share_a_mark_that_was_sent) {
  expect_caught(two_syncs, Mutant::mark_shared, 3, "wait_sync");
}

TEST(a_key_leaves_its_home_node_when_one_node_was_alone_three_times) {
  for (const Mutant mutant :
       {Mutant::leaves_home_at_once, Mutant::leaves_home_late, Mutant::never_leaves_home})
    expect_caught(alone_three_times, mutant, 3, "owner", RuleKind::kSgd, 0, 3);
}

TEST(changes_of_a_replica_count_as_times_alone) {
  expect_caught(alone_for_long, Mutant::changes_do_not_count, 3, "owner", RuleKind::kSgd, 0, 3);
}

TEST(a_key_that_is_wanted_for_good_leaves_its_home_node_after_several_times) {
  expect_caught(alone_for_good, Mutant::leaves_for_good_at_once, 3, "owner");
}

TEST(a_key_whose_intent_ends_leaves_its_home_node_at_once) {
  expect_caught(alone_once, Mutant::every_intent_is_for_good, 3, "owner");
}

TEST(interest_of_another_node_ends_the_times_alone) {
  expect_caught(alone_with_interruption, Mutant::alone_among_several, 3, "owner", RuleKind::kSgd, 0, 3);
}

TEST(a_flush_that_defers_changes_ends) {
  Scenario scenario(2, RuleKind::kSgd, 5);
  deferred_in_two_slices(scenario);
  scenario.finish();
}

TEST(a_flush_sends_a_key_once) {
  expect_caught(dirty_again_while_flushed, Mutant::exchange_joins_flush, 3, "exchange", RuleKind::kSgd, 1);
  expect_caught(dirty_in_two_slots, Mutant::exchange_lists_twice, 2, "exchange", RuleKind::kSgd, 2);
}
