#include "adaps/action_timer.h"

#include <cmath>

#include "check.h"

using namespace adaps;

namespace {

// By summing from the definition, in logarithms.
Clock quantile_by_definition(double mean) {
  double sum = 0.0;
  for (Clock k = 0;; ++k) {
    sum +=
        std::exp(static_cast<double>(k) * std::log(mean) - mean - std::lgamma(static_cast<double>(k) + 1.0));
    if (sum >= 0.9999) return k;
  }
}

}  // namespace

TEST(windows_are_those_of_the_specification) {
  const struct {
    double rate;
    Clock window;
  } expected[] = {{1, 9}, {5, 24}, {10, 39}, {50, 139}, {100, 255}, {1000, 2168}};
  for (const auto& [rate, window] : expected) {
    ActionTimer timer;
    timer.observe(static_cast<Clock>(rate), 1.0);
    CHECK_EQ(timer.window(), window);
  }
}

TEST(quantiles_are_right_on_both_sides_of_the_expansion) {
  CHECK_EQ(poisson_quantile(0.0), Clock{0});
  for (const double mean : {0.01, 0.5, 3.0, 42.0, 499.0, 500.5, 501.0, 750.0, 1234.5, 5000.0}) {
    CHECK_EQ(poisson_quantile(mean), quantile_by_definition(mean));
  }
}

TEST(the_rate_rises_at_once_and_falls_slowly) {
  ActionTimer timer;
  CHECK_EQ(timer.window(), Clock{9});  // of a rate of 1
  timer.observe(100, 1.0);
  CHECK_EQ(timer.rate(), 100.0);
  timer.observe(0, 1.0);
  CHECK_EQ(timer.rate(), 90.0);
  timer.observe(0, 1.0);
  CHECK_EQ(timer.rate(), 81.0);
}

TEST(ticks_count_per_shortest_round_distance) {
  ActionTimer timer;
  timer.observe(100, 50.0);
  CHECK_EQ(timer.rate(), 2.0);
  ActionTimer early;
  early.observe(3, 0.1);  // a round cannot be shorter than the shortest distance
  CHECK_EQ(early.rate(), 3.0);
}
