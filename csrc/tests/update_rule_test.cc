// Compares update rules with their formulas in double precision.
#include "store/update_rule.h"

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
  void apply(const UpdateRule& rule, int step, float* change) {
    std::vector<float> g(kLength);
    for (std::size_t i = 0; i < kLength; ++i) g[i] = gradient(step, i);
    rule.apply(floats.data(), g.data(), kLength, change, {rule.hyperparameters(), 0});
  }
};

const UpdateRule kUpdateRules[] = {
    {.kind = RuleKind::kSgd, .lr = 0.1F},
    {.kind = RuleKind::kMomentum, .lr = 0.1F, .momentum = 0.9F},
    {.kind = RuleKind::kAdagrad, .lr = 0.1F, .initial_accumulator = 0.1F},
    {.kind = RuleKind::kRowAdagrad, .lr = 0.1F, .initial_accumulator = 0.1F},
    {.kind = RuleKind::kAdam, .lr = 0.01F, .eps = 1e-3F},
    {.kind = RuleKind::kSparseAdam, .lr = 0.01F, .eps = 1e-3F},
    {.kind = RuleKind::kSgd, .lr = 0.1F, .weight_decay = 0.2F},
    {.kind = RuleKind::kMomentum, .lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.2F, .nesterov = true},
    {.kind = RuleKind::kAdagrad, .lr = 0.1F, .initial_accumulator = 0.1F, .weight_decay = 0.2F},
    {.kind = RuleKind::kAdam, .lr = 0.01F, .eps = 1e-3F, .weight_decay = 0.2F},
    {.kind = RuleKind::kAdam, .lr = 0.01F, .eps = 1e-3F, .weight_decay = 0.2F, .decoupled = true},
    {.kind = RuleKind::kRmsprop, .lr = 0.01F, .eps = 1e-3F, .beta2 = 0.9F},
    {.kind = RuleKind::kRmsprop,
     .lr = 0.01F,
     .momentum = 0.8F,
     .eps = 1e-3F,
     .beta2 = 0.9F,
     .weight_decay = 0.2F,
     .centered = true},
    {.kind = RuleKind::kRmsprop,
     .lr = 0.01F,
     .momentum = 0.8F,
     .eps = 1e-3F,
     .beta2 = 0.9F,
     .centered = true},
};

// torch.optim's dense optimizers and SparseAdam in double precision, for one element: value, momentum or
// first moment, squares or second moment, mean.
struct Dense {
  double value = 0.0, first = 0.0, second = 0.0, mean = 0.0;

  void step(const UpdateRule& rule, const Hyperparameters& with, double g, int number) {
    const double lr = with.learning_rate, kept = with.momentum, kept2 = with.beta2;
    if (rule.decoupled) {
      value *= 1.0 - lr * with.weight_decay;
    } else {
      g += with.weight_decay * value;
    }
    switch (rule.kind) {
      case RuleKind::kSgd:
        value -= lr * g;
        return;
      case RuleKind::kMomentum:
        first = kept * first + g;
        value -= lr * (rule.nesterov ? g + kept * first : first);
        return;
      case RuleKind::kAdagrad:
        second += g * g;
        value -= lr * g / (std::sqrt(second) + static_cast<double>(rule.eps));
        return;
      case RuleKind::kAdam:
        first = kept * first + (1.0 - kept) * g;
        second = kept2 * second + (1.0 - kept2) * g * g;
        value -= lr / (1.0 - std::pow(kept, number)) * first /
                 (std::sqrt(second / (1.0 - std::pow(kept2, number))) + static_cast<double>(rule.eps));
        return;
      case RuleKind::kSparseAdam:
        first = kept * first + (1.0 - kept) * g;
        second = kept2 * second + (1.0 - kept2) * g * g;
        value -= lr * std::sqrt(1.0 - std::pow(kept2, number)) / (1.0 - std::pow(kept, number)) * first /
                 (std::sqrt(second) + static_cast<double>(rule.eps));
        return;
      case RuleKind::kRmsprop: {
        second = kept2 * second + (1.0 - kept2) * g * g;
        mean = kept2 * mean + (1.0 - kept2) * g;
        const double spread = rule.centered ? second - mean * mean : second;
        first = kept * first + g / (std::sqrt(spread) + static_cast<double>(rule.eps));
        value -= lr * first;
        return;
      }
      default:
        CHECK(false);
    }
  }
};

std::vector<Dense> dense_of(const Row& row, const UpdateRule& rule) {
  std::vector<Dense> states(kLength);
  for (std::size_t i = 0; i < kLength; ++i) {
    states[i].value = row.floats[i];
    if (rule.kind == RuleKind::kAdagrad) states[i].second = static_cast<double>(rule.initial_accumulator);
  }
  return states;
}

}  // namespace

// If steps are numbered, a row that has no gradients for a while must equal a row that gets a gradient of 0
// in each step. This must be true for all schedules, and also for a row that only applies missed steps.
TEST(momentum_makes_up_for_missed_steps) {
  const UpdateRule& rule = kUpdateRules[1];
  for (const std::uint64_t first : {1, 16'777'200}) {  // near the largest step number that a float represents
    Row row(rule);
    std::vector<double> value(row.floats.begin(), row.floats.begin() + kLength);
    std::vector<double> buffer(kLength);
    StepHistory history;
    for (std::uint64_t step = first; step < first + 400; ++step) {
      Hyperparameters with = rule.hyperparameters();
      if (step % 7 == 0) with.learning_rate = 0.05F;
      history.note(step, with);
      const std::uint64_t phase = step - first;
      const bool used = phase < 3 || phase % 50 == 0 || phase % 50 == 13;
      const auto t = static_cast<int>(phase);
      for (std::size_t i = 0; i < kLength; ++i) {
        const double both = 2.0 * static_cast<double>(gradient(t, i));  // two gradients in succession
        buffer[i] = static_cast<double>(rule.momentum) * buffer[i] + (used ? both : 0.0);
        value[i] -= static_cast<double>(with.learning_rate) * buffer[i];
      }
      if (!used && phase % 50 != 20) continue;
      std::vector<float> g(kLength, 0.0F);
      for (std::size_t i = 0; i < kLength; ++i) g[i] = gradient(t, i);
      for (int i = 0; i < 2; ++i) {
        if (used) {
          rule.apply(row.floats.data(), g.data(), kLength, nullptr, {with, step, &history});
        } else {
          rule.catch_up(row.floats.data(), kLength, {with, step, &history});
        }
      }
      for (std::size_t i = 0; i < kLength; ++i) CHECK(std::abs(row.floats[i] - value[i]) < 2e-5);
    }
  }
}

TEST(idle_rows_catch_up_with_torchs_dense_optimizers) {
  for (const UpdateRule& rule : kUpdateRules) {
    if (!rule.moves_idle_rows()) continue;
    Row row(rule);
    std::vector<Dense> expected = dense_of(row, rule);
    StepHistory history;
    for (int step = 1; step <= 300; ++step) {
      Hyperparameters with = rule.hyperparameters();
      if (step % 40 > 20) {
        with.learning_rate *= 0.5F;
        with.momentum *= 0.9F;
        with.weight_decay *= 3.0F;
      }
      history.note(static_cast<std::uint64_t>(step), with);
      const UpdateStep now{with, static_cast<std::uint64_t>(step), &history};
      // With decoupled weight decay, moments change only with a gradient, so a row gets one in each step or
      // never.
      const bool used = rule.decoupled ? false : step % 60 == 7 || step % 60 == 30;
      for (std::size_t i = 0; i < kLength; ++i)
        expected[i].step(rule, with, used ? static_cast<double>(gradient(step, i)) : 0.0, step);
      if (used) {
        std::vector<float> g(kLength);
        for (std::size_t i = 0; i < kLength; ++i) g[i] = gradient(step, i);
        rule.apply(row.floats.data(), g.data(), kLength, nullptr, now);
      } else if (step % 60 == 50) {
        for (int twice = 0; twice < 2; ++twice) rule.catch_up(row.floats.data(), kLength, now);
      } else {
        continue;
      }
      for (std::size_t i = 0; i < kLength; ++i) CHECK(std::abs(row.floats[i] - expected[i].value) < 2e-5);
    }
  }
}

TEST(rows_with_a_gradient_in_each_step_match_torch) {
  for (const UpdateRule& rule : kUpdateRules) {
    if (rule.kind == RuleKind::kRowAdagrad) continue;
    Row row(rule);
    std::vector<Dense> expected = dense_of(row, rule);
    for (int step = 1; step <= kSteps; ++step) {
      row.apply(rule, step, nullptr);
      for (std::size_t i = 0; i < kLength; ++i) {
        expected[i].step(rule, rule.hyperparameters(), gradient(step, i), step);
        CHECK(std::abs(row.floats[i] - expected[i].value) < 2e-6);
      }
    }
  }
}

// Two copies of a row get gradients at the same time. If the changes of one copy are applied to the other,
// they have the effect of the first copy's gradients. This is exact for momentum and averages, for any number
// of gradients.
TEST(changes_of_one_copy_apply_to_another_as_if_made_there) {
  const UpdateRule& rule = kUpdateRules[1];
  for (const bool nesterov : {false, true}) {
    UpdateRule with = rule;
    with.nesterov = nesterov;
    Row here(with), there(with), both(with);
    std::vector<float> change(with.change_length(kLength));
    with.init_change(change.data(), kLength);
    for (int step = 1; step <= kSteps; ++step) {
      here.apply(with, step, nullptr);
      both.apply(with, step, nullptr);
    }
    for (int step = 1; step <= 3 * kSteps; ++step) {
      there.apply(with, 100 + step, change.data());
      both.apply(with, 100 + step, nullptr);
    }
    with.merge(here.floats.data(), change.data(), kLength);
    for (std::size_t i = 0; i < 2 * kLength; ++i) CHECK(std::abs(here.floats[i] - both.floats[i]) < 1e-5F);
  }
}

TEST(averages_stay_averages_when_many_copies_have_changed_them) {
  for (const UpdateRule& rule : kUpdateRules) {
    const bool averages =
        rule.kind == RuleKind::kAdam || rule.kind == RuleKind::kSparseAdam || rule.kind == RuleKind::kRmsprop;
    if (!averages) continue;
    UpdateRule fast = rule;
    fast.beta2 = 0.9F;
    Row owner(fast);
    for (int step = 1; step <= kSteps; ++step) owner.apply(fast, step, nullptr);
    std::vector<std::vector<float>> changes(8, std::vector<float>(fast.change_length(kLength)));
    for (auto& change : changes) {
      Row copy = owner;
      fast.init_change(change.data(), kLength);
      for (int step = 1; step <= kSteps; ++step) copy.apply(fast, step, change.data());
    }
    for (const auto& change : changes) fast.merge(owner.floats.data(), change.data(), kLength);
    const std::size_t squares = kLength + (rule.kind == RuleKind::kRmsprop ? 0 : kLength);
    for (std::size_t i = 0; i < kLength; ++i) {
      CHECK(owner.floats[squares + i] > 0.0F);
      CHECK(owner.floats[squares + i] < 4.0F);
    }
  }
}

// Vectorized elements and remaining ones are rounded like single elements. A row's result depends neither on
// its length nor on the processor.
TEST(adagrad_is_the_same_for_rows_of_any_length) {
  // volatile, so that the compiler rounds each operation
  volatile float decay = 0.2F, rate = 0.1F, eps = 1e-10F;
  for (const UpdateRule& rule : {kUpdateRules[2], kUpdateRules[8]}) {
    for (std::size_t length = 1; length <= 40; ++length) {
      std::vector<float> row(2 * length, 0.1F), change(2 * length), g(length);
      std::vector<float> plain = row;
      for (std::size_t i = 0; i < length; ++i) row[i] = plain[i] = gradient(3, i);
      const std::vector<float> before = row;
      for (std::size_t i = 0; i < length; ++i) g[i] = gradient(7, 2 * i);
      rule.apply(row.data(), g.data(), length, change.data(), {rule.hyperparameters(), 1});
      rule.apply(plain.data(), g.data(), length, nullptr, {rule.hyperparameters(), 1});
      CHECK(row == plain);
      for (std::size_t i = 0; i < length; ++i) {
        volatile float decayed = decay * before[i];
        volatile float with_decay = g[i] + decayed;
        const float used = rule.weight_decay == 0.0F ? g[i] : with_decay;
        volatile float square = used * used;
        volatile float state = before[length + i] + square;
        volatile float root = std::sqrt(state);
        volatile float below = root + eps;
        volatile float above = -rate * used;
        volatile float step = above / below;
        volatile float value = before[i] + step;
        CHECK_EQ(row[i], value);
        CHECK_EQ(row[length + i], state);
        CHECK_EQ(change[i], step);
        CHECK_EQ(change[length + i], square);
      }
    }
  }
}

TEST(the_change_equals_the_update_and_does_not_affect_it) {
  for (const UpdateRule& rule : kUpdateRules) {
    Row with(rule), without(rule);
    const std::vector<float> before = with.floats;
    std::vector<float> change(rule.change_length(kLength));
    rule.init_change(change.data(), kLength);
    for (int step = 1; step <= kSteps; ++step) {
      with.apply(rule, step, change.data());
      without.apply(rule, step, nullptr);
    }
    for (std::size_t i = 0; i < with.floats.size(); ++i) {
      CHECK_EQ(with.floats[i], without.floats[i]);
    }
    std::vector<float> merged = before;
    rule.merge(merged.data(), change.data(), kLength);
    for (std::size_t i = 0; i < with.floats.size(); ++i)
      CHECK(std::abs(merged[i] - with.floats[i]) < 5e-6F * (1.0F + std::abs(with.floats[i])));
  }
}

TEST(small_updates_of_large_values_survive_in_the_change) {
  const UpdateRule rule{.kind = RuleKind::kSgd, .lr = 1.0F};
  float value = 1e8F, delta = 0.0F;
  const float g = -1.0F;  // less than half a unit in the last place of the value
  for (int i = 0; i < 100; ++i) rule.apply(&value, &g, 1, &delta, {rule.hyperparameters()});
  CHECK_EQ(value, 1e8F);
  CHECK_EQ(delta, 100.0F);
}
