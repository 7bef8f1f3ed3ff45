// Update rules against their formulas in double precision.
#include "adaps/update_rule.h"

#include <cmath>
#include <vector>

#include "check.h"

using namespace adaps;

namespace {

constexpr std::size_t kLength = 5;
constexpr int kSteps = 20;

float gradient(int step, std::size_t i) {
  return static_cast<float>(std::sin(1.0 + step * 0.7 + 0.9 * static_cast<double>(i)));
}

struct Row {
  std::vector<float> floats;
  explicit Row(const UpdateRule& rule) : floats(kLength + rule.state_length(kLength)) {
    for (std::size_t i = 0; i < kLength; ++i) floats[i] = 0.5F - 0.1F * static_cast<float>(i);
    rule.init_state(floats.data() + kLength, kLength);
  }
  void apply(const UpdateRule& rule, int step, float* delta) {
    std::vector<float> g(kLength);
    for (std::size_t i = 0; i < kLength; ++i) g[i] = gradient(step, i);
    rule.apply(floats.data(), g.data(), kLength, delta, {rule.lr, number});
  }
  std::uint64_t number = 0;  // of the step, where rows do not count
};

// `formula(step, i, value)`: the value of element i after the step.
template <typename Formula>
void compare(const UpdateRule& rule, Formula formula) {
  Row row(rule);
  std::vector<double> expected(row.floats.begin(), row.floats.begin() + kLength);
  for (int step = 1; step <= kSteps; ++step) {
    row.apply(rule, step, nullptr);
    for (std::size_t i = 0; i < kLength; ++i) {
      expected[i] = formula(step, i, expected[i]);
      CHECK(std::abs(row.floats[i] - expected[i]) < 2e-6);
    }
  }
}

const UpdateRule kRules[] = {
    {.kind = RuleKind::kSgd, .lr = 0.1F},
    {.kind = RuleKind::kMomentum, .lr = 0.1F, .momentum = 0.9F},
    {.kind = RuleKind::kAdagrad, .lr = 0.1F, .initial_accumulator = 0.1F},
    {.kind = RuleKind::kRowAdagrad, .lr = 0.1F, .initial_accumulator = 0.1F},
    {.kind = RuleKind::kAdam, .lr = 0.01F, .eps = 1e-3F},
    {.kind = RuleKind::kSparseAdam, .lr = 0.01F, .eps = 1e-3F},
};

}  // namespace

TEST(sgd) {
  compare(kRules[0], [](int step, std::size_t i, double value) { return value - 0.1 * gradient(step, i); });
}

TEST(momentum) {
  std::vector<double> buffer(kLength);
  compare(kRules[1], [&](int step, std::size_t i, double value) {
    buffer[i] = 0.9 * buffer[i] + gradient(step, i);
    return value - 0.1 * buffer[i];
  });
}

// With numbered steps a row that has no gradient for a while, or is only caught up, is where a row is that
// got a gradient of 0 in each step, whatever the learning rates were.
TEST(momentum_makes_up_for_missed_steps) {
  const UpdateRule& rule = kRules[1];
  for (const std::uint64_t first : {1, 16'777'200}) {  // the number of steps that a float can tell
    Row row(rule);
    std::vector<double> value(row.floats.begin(), row.floats.begin() + kLength);
    std::vector<double> buffer(kLength);
    StepSizes sizes;
    for (std::uint64_t step = first; step < first + 400; ++step) {
      const float lr = step % 7 == 0 ? 0.05F : 0.1F;
      sizes.note(step, lr);
      const std::uint64_t phase = step - first;
      const bool used = phase < 3 || phase % 50 == 0 || phase % 50 == 13;
      const auto t = static_cast<int>(phase);
      for (std::size_t i = 0; i < kLength; ++i) {
        const double both = 2.0 * static_cast<double>(gradient(t, i));  // two gradients, one after the other
        buffer[i] = static_cast<double>(rule.momentum) * buffer[i] + (used ? both : 0.0);
        value[i] -= static_cast<double>(lr) * buffer[i];
      }
      if (!used && phase % 50 != 20) continue;
      std::vector<float> g(kLength, 0.0F);
      if (used) {
        for (std::size_t i = 0; i < kLength; ++i) g[i] = gradient(t, i);
      }
      for (int i = 0; i < 2; ++i)
        rule.apply(row.floats.data(), g.data(), kLength, nullptr, {lr, step, &sizes});
      for (std::size_t i = 0; i < kLength; ++i) CHECK(std::abs(row.floats[i] - value[i]) < 2e-5);
    }
  }
}

TEST(adagrad) {
  std::vector<double> sum(kLength, 0.1);
  compare(kRules[2], [&](int step, std::size_t i, double value) {
    const double g = gradient(step, i);
    sum[i] += g * g;
    return value - 0.1 * g / (std::sqrt(sum[i]) + 1e-10);
  });
}

TEST(row_wise_adagrad) {
  double sum = 0.1;
  compare(kRules[3], [&](int step, std::size_t i, double value) {
    if (i == 0) {
      for (std::size_t j = 0; j < kLength; ++j)
        sum += static_cast<double>(gradient(step, j)) * gradient(step, j) / kLength;
    }
    return value - 0.1 * gradient(step, i) / (std::sqrt(sum) + 1e-10);
  });
}

// torch.optim's Adam and SparseAdam in double precision; `from` steps were made before this row's first
// gradient.
struct Adam {
  bool sparse;
  int from = 0;
  std::vector<double> first = std::vector<double>(kLength), second = std::vector<double>(kLength);

  double operator()(int step, std::size_t i, double value) {
    const double g = gradient(step, i);
    first[i] = 0.9 * first[i] + 0.1 * g;
    second[i] = 0.999 * second[i] + 0.001 * g * g;
    const double corrected = first[i] / (1.0 - std::pow(0.9, from + step));
    const double root = std::sqrt(1.0 - std::pow(0.999, from + step));
    if (sparse) return value - 0.01 * root * corrected / (std::sqrt(second[i]) + 1e-3);
    return value - 0.01 * corrected / (std::sqrt(second[i]) / root + 1e-3);
  }
};

TEST(rows_count_adams_steps_where_nobody_says_which_one_it_is) {
  compare(kRules[4], Adam{.sparse = false});
  compare(kRules[5], Adam{.sparse = true});
}

TEST(adam_corrects_its_bias_for_the_step_that_it_is_told) {
  for (const bool sparse : {false, true}) {
    const UpdateRule& rule = kRules[sparse ? 5 : 4];
    Adam formula{.sparse = sparse, .from = 300};
    Row row(rule);
    std::vector<double> expected(row.floats.begin(), row.floats.begin() + kLength);
    for (int step = 1; step <= kSteps; ++step) {
      row.number = 300 + static_cast<std::uint64_t>(step);
      row.apply(rule, step, nullptr);
      for (std::size_t i = 0; i < kLength; ++i) {
        expected[i] = formula(step, i, expected[i]);
        CHECK(std::abs(row.floats[i] - expected[i]) < 2e-6);
      }
    }
  }
}

TEST(the_delta_is_what_changed_and_asking_for_it_changes_nothing) {
  for (const UpdateRule& rule : kRules) {
    Row with(rule), without(rule);
    const std::vector<float> before = with.floats;
    std::vector<float> delta(with.floats.size());
    for (int step = 1; step <= kSteps; ++step) {
      with.apply(rule, step, delta.data());
      without.apply(rule, step, nullptr);
    }
    for (std::size_t i = 0; i < with.floats.size(); ++i) {
      CHECK_EQ(with.floats[i], without.floats[i]);
      CHECK(std::abs(before[i] + delta[i] - with.floats[i]) < 5e-6F * (1.0F + std::abs(with.floats[i])));
    }
  }
}

TEST(small_updates_of_large_values_survive_in_the_delta) {
  const UpdateRule rule{.kind = RuleKind::kSgd, .lr = 1.0F};
  float value = 1e8F, delta = 0.0F;
  const float g = -1.0F;  // below half a unit in the last place of the value
  for (int i = 0; i < 100; ++i) rule.apply(&value, &g, 1, &delta, {rule.lr});
  CHECK_EQ(value, 1e8F);
  CHECK_EQ(delta, 100.0F);
}
