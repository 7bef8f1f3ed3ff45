#include "transport/simulated_network.h"

#include <vector>

#include "check.h"

using namespace adaps;

namespace {

using Kind = SimulatedNetwork::Event::Kind;
const NetworkLink kLink{0, 0, 1};

void send(SimulatedNetwork& network, const NetworkLink& link, int text, std::size_t size = 1) {
  const std::vector<std::byte> entry(size, static_cast<std::byte>(text));
  network.send(link, entry);
}

}  // namespace

TEST(a_link_keeps_order_whatever_the_jitter) {
  SimulatedNetwork network(2, 1, 0, 3);
  network.set_traits(0, 1, {.latency = 5.0, .jitter = 1000.0});
  for (int i = 0; i < 100; ++i) send(network, kLink, i);
  Micros before = 0;
  for (int i = 0; i < 100; ++i) {
    const auto event = network.next();
    REQUIRE(event.kind == Kind::kFrame);
    CHECK_EQ(event.frame.size(), std::size_t{1});
    CHECK_EQ(static_cast<int>(event.frame[0]), i);
    CHECK(network.now() >= before && network.now() >= 5);
    before = network.now();
  }
  CHECK(network.next().kind == Kind::kNothingLeft);
}

TEST(latency_and_bandwidth_add_up) {
  SimulatedNetwork network(2, 1, 0, 3);
  network.set_traits(0, 1, {.latency = 50.0, .bytes_per_micro = 2.0});
  send(network, kLink, 1, 100);
  send(network, kLink, 2, 100);  // waits until the first entry has left
  network.next();
  CHECK_EQ(network.now(), Micros{100});
  network.next();
  CHECK_EQ(network.now(), Micros{150});
}

TEST(links_overtake_each_other) {
  SimulatedNetwork network(3, 2, 0, 3);
  network.set_traits(0, 1, {.latency = 500.0});
  network.set_traits(2, 1, {.latency = 5.0});
  send(network, {0, 0, 1}, 1);
  send(network, {1, 2, 1}, 2);
  const auto first = network.next();
  CHECK_EQ(first.link.from, NodeId{2});
  CHECK_EQ(first.link.to, NodeId{1});
  CHECK_EQ(first.link.channel, 1);
  CHECK_EQ(network.next().link.from, NodeId{0});
}

TEST(a_frozen_link_delivers_nothing) {
  SimulatedNetwork network(2, 1, 1, 3);
  send(network, kLink, 1);
  network.freeze(kLink, 1000);
  network.set_timer(0, 500);
  CHECK(network.next().kind == Kind::kTimer);
  CHECK_EQ(network.now(), Micros{500});
  CHECK(network.next().kind == Kind::kFrame);
  CHECK_EQ(network.now(), Micros{1000});
}

TEST(entries_that_wait_may_share_a_frame) {
  SimulatedNetwork network(2, 1, 0, 3);
  network.set_merging(1.0);
  for (int i = 0; i < 3; ++i) send(network, kLink, i);
  const auto event = network.next();
  CHECK_EQ(event.frame.size(), std::size_t{3});
  CHECK(network.next().kind == Kind::kNothingLeft);
}

TEST(a_timer_goes_off_once_at_the_earliest_time_it_was_set_to) {
  SimulatedNetwork network(2, 1, 2, 3);
  network.set_timer(1, 70);
  network.set_timer(1, 30);
  network.set_timer(1, 90);
  const auto event = network.next();
  CHECK_EQ(event.timer, 1U);
  CHECK_EQ(network.now(), Micros{30});
  CHECK(network.next().kind == Kind::kNothingLeft);
}

TEST(an_entry_that_was_taken_does_not_arrive_again) {
  SimulatedNetwork network(2, 1, 0, 3);
  for (int i = 0; i < 3; ++i) send(network, kLink, i);
  CHECK_EQ(network.waiting(kLink), std::size_t{3});
  CHECK_EQ(network.take(kLink, 2).size(), std::size_t{2});
  const auto event = network.next();
  CHECK_EQ(static_cast<int>(event.frame[0]), 2);
  CHECK(network.next().kind == Kind::kNothingLeft);
}

TEST(equal_seeds_give_equal_orders) {
  const auto order = [](std::uint64_t seed) {
    SimulatedNetwork network(4, 1, 0, seed);
    std::vector<NodeId> from;
    for (NodeId a = 0; a < 4; ++a) {
      network.set_traits(a, 0, {.jitter = 100.0});
      for (int i = 0; i < 5; ++i) send(network, {0, a, 0}, i);
    }
    for (auto event = network.next(); event.kind == Kind::kFrame; event = network.next())
      from.push_back(event.link.from);
    return from;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
}
