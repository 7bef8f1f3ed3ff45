#include "protocol/action_timer.h"

#include <cmath>
#include <memory>
#include <span>

#include "check.h"
#include "protocol/intent_queues.h"

using namespace adaps;

namespace {

// Computes the quantile by summing the definition, in logarithms.
Clock quantile_by_definition(double mean) {
  double sum = 0.0;
  for (Clock k = 0;; ++k) {
    sum +=
        std::exp(static_cast<double>(k) * std::log(mean) - mean - std::lgamma(static_cast<double>(k) + 1.0));
    if (sum >= 0.9999) return k;
  }
}

}  // namespace

TEST(windows_match_the_specification) {
  const struct {
    Clock ticks;  // per round
    Clock window;
  } expected[] = {{1, 9}, {5, 24}, {10, 39}, {50, 139}, {100, 255}, {1000, 2168}};
  for (const auto& [ticks, window] : expected) {
    ActionTimer timer;
    timer.observe(1, 0, 2000);  // the first tick does not determine the pace
    timer.observe(ticks, 1000, 2000);
    CHECK_EQ(timer.window(), window);
  }
}

TEST(quantiles_are_right_on_both_sides_of_the_expansion) {
  CHECK_EQ(poisson_quantile(0.0), Clock{0});
  for (const double mean : {0.01, 0.5, 3.0, 42.0, 499.0, 500.5, 501.0, 750.0, 1234.5, 5000.0}) {
    CHECK_EQ(poisson_quantile(mean), quantile_by_definition(mean));
  }
}

TEST(the_pace_rises_at_once_and_falls_slowly) {
  ActionTimer timer;
  CHECK_EQ(timer.window(), Clock{9});  // until the pace is known
  timer.observe(1, 1'000'000, 2000);
  CHECK_EQ(timer.window(), Clock{9});
  timer.observe(100, 1000, 2000);
  CHECK_EQ(timer.pace(), 0.1);
  timer.observe(1, 1000, 2000);
  CHECK(std::abs(timer.pace() - 0.0901) < 1e-12);
}

TEST(the_pace_is_measured_between_two_ticks) {
  ActionTimer timer;
  timer.observe(1, 0, 2000);
  for (int i = 0; i < 49; ++i) timer.observe(0, 2000, 2000);
  timer.observe(1, 2000, 2000);
  CHECK_EQ(timer.pace(), 1e-5);
  CHECK_EQ(timer.window(), Clock{2});
}

TEST(slower_rounds_make_intents_act_earlier) {
  ActionTimer timer;
  timer.observe(1, 0, 2000);
  timer.observe(1, 1000, 2000);
  ActionTimer slow;
  slow.observe(1, 0, 100'000);
  slow.observe(1, 1000, 100'000);
  CHECK_EQ(timer.window(), Clock{9});
  CHECK_EQ(slow.window(), poisson_quantile(100.0));
}

TEST(keys_with_a_long_lead_time_are_requested_between_ticks) {
  ActionTimer timer;
  CHECK(timer.ahead(50'000, 0) == timer.window());  // before the first tick
  CHECK(timer.until_ahead(2, 50'000) == kNever);
  timer.observe(1, 0, 0);
  timer.observe(1, 100'000, 0);
  CHECK(timer.window() == 1);
  CHECK(timer.ahead(150'000, 0) == 1);
  CHECK(timer.ahead(150'000, 49'000) == 1);
  CHECK(timer.ahead(150'000, 51'000) == 2);
  const Micros later = timer.until_ahead(2, 150'000);
  CHECK(49'900 <= later && later <= 50'100);
  CHECK(timer.ahead(150'000, later) == 2);
  CHECK(timer.until_ahead(3, 150'000) == kNever);                   // the tick is earlier
  CHECK(timer.ahead(150'000, 10'000'000) == timer.reach(150'000));  // or does not come
  CHECK(timer.reach(150'000) == 2);
  timer.observe(0, 30'000, 0);
  CHECK(timer.until_ahead(2, 150'000) == later - 30'000);
}

TEST(the_lead_time_is_the_smoothed_maximum_between_ticks) {
  LeadTime lead;
  lead.settle();
  CHECK(lead.micros() == 0);
  for (const Micros micros : {100, 1000, 10}) lead.observe(micros);
  lead.settle();
  lead.settle();  // no observation since the last call
  CHECK(lead.micros() == 1000);
  lead.observe(2000);
  lead.settle();
  CHECK(lead.micros() == 1100);
}

// The worker that submits such an intent still knows the shorter distance of the round before.
TEST(an_intent_that_is_submitted_while_a_round_lengthens_the_distance_gets_another_round) {
  WorkerStates workers;
  workers.push_back(std::make_unique<WorkerState>(0));
  IntentQueues queues({.timing = true}, workers);
  ChannelCounters counters;
  const auto all = [](std::span<const Key> keys, std::size_t& done, auto...) {
    done = keys.size();
    return true;
  };
  const auto act = [&] { return queues.act(0, 0, counters, all, all, [](std::span<const Key>) {}); };
  constexpr Micros kClock = 10'000'000;
  for (Clock clock = 1; clock <= 3; ++clock) {
    if (clock == 3) queues.note_lead(2 * kClock);
    workers[0]->clock = clock;
    queues.on_clock(0, clock);
    queues.take_submitted();
    queues.begin_round(kClock);
    if (clock == 3) CHECK(!queues.submit(0, {Key{0}}, 5, 6));
    CHECK_EQ(act(), clock == 3);
  }
  queues.take_submitted();
  act();
  CHECK_EQ(counters.intents_acted.get(), std::uint64_t{1});
}
