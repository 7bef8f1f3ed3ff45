#include "store/update_rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "store/step_kernels.h"

namespace adaps {

namespace {

// A momentum below this value does not change any float.
constexpr double kNothing = 1e-12;

// Adds to one element of the value or state, and to the same element of the row's change if it is not null.
inline void add(float* x, float* change, float by) {
  *x += by;
  if (change != nullptr) *change += by;
}

// Sets an average or a momentum to kept * x + by, and updates the row's change accordingly.
inline void decay(float* x, float* change, float kept, float by) {
  *x = kept * *x + by;
  if (change != nullptr) *change = kept * *change + by;
}

// Moves an average towards `of`: beta * x + (1 - beta) * of. The result is exact if both are equal.
inline void average(float* x, float* change, double beta, float of) {
  const auto share = static_cast<float>(1.0 - beta);
  *x += share * (of - *x);
  if (change != nullptr) *change += share * (of - *change);
}

// The state stores step numbers as floats, which are exact up to this number. Larger step numbers wrap
// around.
constexpr std::uint64_t kStepNumbers = std::uint64_t{1} << 24;
float step_stamp(std::uint64_t number) { return static_cast<float>(1 + (number - 1) % kStepNumbers); }
// Returns 0 if `number` precedes the stamp. A row without a stamp has missed all steps.
std::uint64_t steps_since(float stamp, std::uint64_t number) {
  const auto then = static_cast<std::uint64_t>(stamp);
  const auto steps = (static_cast<std::uint64_t>(step_stamp(number)) + kStepNumbers - then) % kStepNumbers;
  return steps < kStepNumbers / 2 ? steps : 0;
}

inline float* at(float* base, std::size_t i) { return base == nullptr ? nullptr : base + i; }

// The effect of steps without a gradient on a value and its momentum: a linear map, equal for all elements of
// a row.
struct Idle {
  double value = 1.0, value_by_momentum = 0.0;
  double momentum_by_value = 0.0, momentum = 1.0;

  Idle after(const Idle& first) const {
    return {value * first.value + value_by_momentum * first.momentum_by_value,
            value * first.value_by_momentum + value_by_momentum * first.momentum,
            momentum_by_value * first.value + momentum * first.momentum_by_value,
            momentum_by_value * first.value_by_momentum + momentum * first.momentum};
  }
  Idle times(std::uint64_t count) const {
    Idle result;
    for (Idle power = *this; count != 0; count >>= 1, power = power.after(power)) {
      if ((count & 1) != 0) result = power.after(result);
    }
    return result;
  }
};

Idle idle_step(const Hyperparameters& with, bool nesterov) {
  const double lr = with.learning_rate, kept = with.momentum, decay = with.weight_decay;
  if (!nesterov) return {1.0 - lr * decay, -lr * kept, decay, kept};
  return {1.0 - lr * decay * (1.0 + kept), -lr * kept * kept, decay, kept};
}

}  // namespace

std::size_t UpdateRule::state_length(std::size_t length) const {
  const std::size_t stamp = weight_decay != 0.0F ? 1 : 0;
  switch (kind) {
    case RuleKind::kSgd:
      return stamp;
    case RuleKind::kMomentum:
      return length + 1;  // buffer, step of the last change
    case RuleKind::kAdagrad:
      return length + stamp;
    case RuleKind::kRowAdagrad:
      return 1;
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
      return 2 * length + 1;  // first moment, second moment, number of gradients or step of the last change
    case RuleKind::kRmsprop:  // squares, momentum, mean, step of the last change
      return length * (1 + (momentum != 0.0F ? 1 : 0) + (centered ? 1 : 0)) + 1;
  }
  return 0;
}

std::size_t UpdateRule::state_scalars() const {
  switch (kind) {
    case RuleKind::kSgd:
    case RuleKind::kAdagrad:
      return weight_decay != 0.0F ? 1 : 0;
    case RuleKind::kMomentum:
    case RuleKind::kRowAdagrad:
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
    case RuleKind::kRmsprop:
      return 1;
  }
  return 0;
}

void UpdateRule::init_state(float* state, std::size_t length) const {
  std::fill_n(state, state_length(length), 0.0F);
  if (kind == RuleKind::kAdagrad) std::fill_n(state, length, initial_accumulator);
  if (kind == RuleKind::kRowAdagrad) *state = initial_accumulator;
}

Hyperparameters UpdateRule::hyperparameters() const {
  const bool moments = kind == RuleKind::kAdam || kind == RuleKind::kSparseAdam;
  return {lr, moments ? beta1 : momentum, beta2, weight_decay};
}

bool UpdateRule::moves_idle_rows() const {
  switch (kind) {
    case RuleKind::kMomentum:
    case RuleKind::kRmsprop:
      return true;
    case RuleKind::kSgd:
    case RuleKind::kAdagrad:
    case RuleKind::kAdam:
      return weight_decay != 0.0F;
    case RuleKind::kRowAdagrad:
    case RuleKind::kSparseAdam:
      return false;
  }
  return false;
}

float* UpdateRule::stamp_of(float* value, std::size_t length) const {
  return value + length + state_length(length) - 1;
}

void UpdateRule::apply(float* value, const float* gradient, std::size_t length, float* change,
                       const UpdateStep& now) const {
  bool again = false;  // whether the row has had a gradient in this step
  if (now.history != nullptr) {
    float* stamp = stamp_of(value, length);
    const std::uint64_t steps = steps_since(*stamp, now.number);
    again = steps == 0;
    if (steps > 1) make_up(value, length, now.number - steps, now.number - 1, *now.history);
    *stamp = step_stamp(now.number);
  }
  const Hyperparameters& with = now.with;
  switch (kind) {
    case RuleKind::kSgd:
      step_sgd(value, gradient, length, change, with.learning_rate, again ? 0.0F : with.weight_decay);
      return;
    case RuleKind::kMomentum:
      sgd_momentum(value, gradient, length, change, now, again);
      return;
    case RuleKind::kAdagrad:
      step_adagrad(value, gradient, length, change, with, eps);
      return;
    case RuleKind::kRowAdagrad: {  // one accumulator per row: the mean of the squared gradient
      float* state = value + length;
      float sum = 0.0F;
      for (std::size_t i = 0; i < length; ++i) sum += gradient[i] * gradient[i];
      add(state, at(change, length), sum / static_cast<float>(length));
      const float step = with.learning_rate / (std::sqrt(*state) + eps);
      for (std::size_t i = 0; i < length; ++i) add(value + i, at(change, i), -step * gradient[i]);
      return;
    }
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam: {
      float* gradients = stamp_of(value, length);
      if (now.history == nullptr) add(gradients, at(change, 3 * length), 1.0F);
      adam(value, gradient, length, change, now,
           now.number == 0 ? static_cast<std::uint64_t>(*gradients) : now.number);
      return;
    }
    case RuleKind::kRmsprop:
      rmsprop(value, gradient, length, change, with);
      return;
  }
}

bool UpdateRule::catch_up(float* value, std::size_t length, const UpdateStep& now) const {
  if (now.history == nullptr) return false;
  float* stamp = stamp_of(value, length);
  const std::uint64_t steps = steps_since(*stamp, now.number);
  if (steps == 0) return false;
  make_up(value, length, now.number - steps, now.number, *now.history);
  *stamp = step_stamp(now.number);
  return true;
}

void UpdateRule::restart(float* value, std::size_t length, const UpdateStep& now) const {
  if (now.history != nullptr) *stamp_of(value, length) = step_stamp(now.number);
}

void UpdateRule::make_up(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
                         const StepHistory& history) const {
  const bool l2 = weight_decay != 0.0F && !decoupled;
  if (kind == RuleKind::kSgd || kind == RuleKind::kMomentum) {
    Idle all;
    history.for_each(last, through, [&](const StepHistory::Stretch& stretch) {
      const bool still = std::abs(all.momentum) < kNothing && std::abs(all.momentum_by_value) < kNothing;
      if (still && stretch.with.weight_decay == 0.0F) return true;
      all = idle_step(stretch.with, nesterov).times(stretch.steps).after(all);
      return true;
    });
    if (kind == RuleKind::kSgd) {
      for (std::size_t i = 0; i < length; ++i) value[i] *= static_cast<float>(all.value);
      return;
    }
    float* buffer = value + length;
    // The difference is applied separately, because a factor this close to 1 would be rounded to 1.
    const auto lost = static_cast<float>(all.value - 1.0);
    const auto drift = static_cast<float>(all.value_by_momentum);
    const auto gained = static_cast<float>(all.momentum_by_value);
    const auto kept = static_cast<float>(all.momentum);
    for (std::size_t i = 0; i < length; ++i) {
      const float before = value[i];
      value[i] += lost * before + drift * buffer[i];
      buffer[i] = gained * before + kept * buffer[i];
    }
    return;
  }
  if (l2) {
    replay(value, length, last, through, history);
    return;
  }
  double shrunk = 1.0, squares = 1.0, kept = 1.0, drift = 0.0;
  history.for_each(last, through, [&](const StepHistory::Stretch& stretch) {
    const auto steps = static_cast<double>(stretch.steps);
    const Hyperparameters& with = stretch.with;
    shrunk *= std::pow(1.0 - static_cast<double>(with.learning_rate) * with.weight_decay, steps);
    squares *= std::pow(with.beta2, steps);
    const Idle idle = idle_step({with.learning_rate, with.momentum, with.beta2, 0.0F}, false);
    const Idle stretched = idle.times(stretch.steps);
    drift += stretched.value_by_momentum * kept;
    kept *= stretched.momentum;
    return true;
  });
  if (kind == RuleKind::kAdam) {  // decoupled
    for (std::size_t i = 0; i < length; ++i) value[i] += static_cast<float>(shrunk - 1.0) * value[i];
    return;
  }
  if (kind != RuleKind::kRmsprop) return;
  float* state = value + length;
  for (std::size_t i = 0; i < length; ++i) *state++ *= static_cast<float>(squares);
  if (momentum != 0.0F) {
    for (std::size_t i = 0; i < length; ++i, ++state) {
      value[i] += static_cast<float>(drift) * *state;
      *state *= static_cast<float>(kept);
    }
  }
  if (centered) {
    for (std::size_t i = 0; i < length; ++i) *state++ *= static_cast<float>(squares);
  }
}

// Repeats the missed steps of the dense optimizer one by one, for rules without a closed form.
void UpdateRule::replay(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
                        const StepHistory& history) const {
  const std::vector<float> nothing(length, 0.0F);
  history.for_each(last, through, [&](const StepHistory::Stretch& stretch) {
    for (std::uint64_t i = 0; i < stretch.steps; ++i) {
      if (kind == RuleKind::kAdagrad) step_adagrad(value, nothing.data(), length, nullptr, stretch.with, eps);
      if (kind == RuleKind::kRmsprop) rmsprop(value, nothing.data(), length, nullptr, stretch.with);
      if (kind == RuleKind::kAdam)
        adam(value, nothing.data(), length, nullptr, {.with = stretch.with}, stretch.first + i);
    }
    return true;
  });
}

std::size_t UpdateRule::factors() const {
  switch (kind) {
    case RuleKind::kMomentum:
      return 2;  // decay of the momentum, and its effect on the value
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
      return 2;  // decay of each moment
    case RuleKind::kRmsprop:
      return momentum != 0.0F ? 3 : 1;  // decay of the averages; with momentum, two more factors
    case RuleKind::kSgd:
    case RuleKind::kAdagrad:
    case RuleKind::kRowAdagrad:
      return 0;
  }
  return 0;
}

std::size_t UpdateRule::change_length(std::size_t length) const {
  return length + state_length(length) + factors();
}

void UpdateRule::init_change(float* change, std::size_t length) const {
  const std::size_t width = length + state_length(length);
  std::fill_n(change, width, 0.0F);
  std::fill_n(change + width, factors(), 1.0F);
  if (kind == RuleKind::kMomentum) change[width + 1] = 0.0F;
  if (kind == RuleKind::kRmsprop && momentum != 0.0F) change[width + 2] = 0.0F;
}

void UpdateRule::merge(float* value, const float* change, std::size_t length) const {
  const std::size_t width = length + state_length(length);
  const float* factor = change + width;
  float* state = value + length;
  switch (kind) {
    case RuleKind::kMomentum:
      for (std::size_t i = 0; i < length; ++i) {
        value[i] -= factor[1] * state[i];
        state[i] *= factor[0];
      }
      break;
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
      for (std::size_t i = 0; i < length; ++i) state[i] *= factor[0];
      for (std::size_t i = length; i < 2 * length; ++i) state[i] *= factor[1];
      break;
    case RuleKind::kRmsprop: {
      for (std::size_t i = 0; i < length; ++i) *state++ *= factor[0];
      if (momentum != 0.0F) {
        for (std::size_t i = 0; i < length; ++i, ++state) {
          value[i] -= factor[2] * *state;
          *state *= factor[1];
        }
      }
      if (centered) {
        for (std::size_t i = 0; i < length; ++i) *state++ *= factor[0];
      }
      break;
    }
    case RuleKind::kSgd:
    case RuleKind::kAdagrad:
    case RuleKind::kRowAdagrad:
      break;
  }
  for (std::size_t i = 0; i < width; ++i) value[i] += change[i];
}

// buffer <- momentum * buffer + gradient, value <- value - learning rate * buffer. A second gradient of the
// same step (`again`) is added to the first.
void UpdateRule::sgd_momentum(float* value, const float* gradient, std::size_t length, float* change,
                              const UpdateStep& now, bool again) const {
  if (change != nullptr) {
    const float rate = now.with.learning_rate;
    const float kept = again ? 1.0F : now.with.momentum;
    const float moved = again ? 0.0F : now.with.momentum;
    const float shrunk = again ? 0.0F : now.with.weight_decay;
    // Factor of the gradient in the value's update. Nesterov's momentum adds one more step.
    const float direct = nesterov ? 1.0F + now.with.momentum : 1.0F;
    const float ahead = nesterov ? now.with.momentum * moved : moved;
    float* buffer_change = change + length;
    float* factor = change + length + state_length(length);
    for (std::size_t i = 0; i < length; ++i) {
      const float g = gradient[i] + shrunk * value[i];
      change[i] -= rate * (ahead * buffer_change[i] + direct * g);
      buffer_change[i] = kept * buffer_change[i] + g;
    }
    factor[1] += rate * ahead * factor[0];
    factor[0] *= kept;
  }
  step_momentum(value, gradient, length, now.with, nesterov, again);
}

// Kingma, Ba (2015), algorithm 1 (kAdam), or with the order of computation that section 2 gives
// (kSparseAdam). Decoupled weight decay: Loshchilov, Hutter (2019).
void UpdateRule::adam(float* value, const float* gradient, std::size_t length, float* change,
                      const UpdateStep& now, std::uint64_t number) const {
  const Hyperparameters& with = now.with;
  const double kept1 = with.momentum, kept2 = with.beta2;
  float* first = value + length;
  float* second = first + length;
  float* first_change = at(change, length);
  float* second_change = at(change, 2 * length);
  const auto steps = static_cast<double>(number);
  const double root = std::sqrt(1.0 - std::pow(kept2, steps));
  const double correction = 1.0 - std::pow(kept1, steps);
  const auto step = static_cast<float>(static_cast<double>(with.learning_rate) * root / correction);
  const float guard = kind == RuleKind::kAdam ? eps * static_cast<float>(root) : eps;
  const float l2 = decoupled ? 0.0F : with.weight_decay;
  const float shrunk = decoupled ? with.learning_rate * with.weight_decay : 0.0F;
  for (std::size_t i = 0; i < length; ++i) {
    const float g = gradient[i] + l2 * value[i];
    average(first + i, at(first_change, i), kept1, g);
    average(second + i, at(second_change, i), kept2, g * g);
    add(value + i, at(change, i), -shrunk * value[i] - step * first[i] / (std::sqrt(second[i]) + guard));
  }
  if (change == nullptr) return;
  float* factor = change + length + state_length(length);
  factor[0] *= static_cast<float>(kept1);
  factor[1] *= static_cast<float>(kept2);
}

// Tieleman, Hinton (2012); centered: Graves (2013).
void UpdateRule::rmsprop(float* value, const float* gradient, std::size_t length, float* change,
                         const Hyperparameters& with) const {
  const std::size_t squares = length;
  const std::size_t buffers = 2 * length;
  const std::size_t means = momentum != 0.0F ? 3 * length : 2 * length;
  float* factor = at(change, length + state_length(length));
  const float rate = with.learning_rate;
  for (std::size_t i = 0; i < length; ++i) {
    const float g = gradient[i] + with.weight_decay * value[i];
    average(value + squares + i, at(change, squares + i), with.beta2, g * g);
    float spread = value[squares + i];
    if (centered) {
      average(value + means + i, at(change, means + i), with.beta2, g);
      // Negative only if changes of two replicas were merged.
      spread = std::max(0.0F, spread - value[means + i] * value[means + i]);
    }
    const float by = g / (std::sqrt(spread) + eps);
    if (momentum == 0.0F) {
      add(value + i, at(change, i), -rate * by);
      continue;
    }
    decay(value + buffers + i, at(change, buffers + i), with.momentum, by);
    value[i] -= rate * value[buffers + i];
    if (change != nullptr) change[i] -= rate * change[buffers + i];
  }
  if (change == nullptr) return;
  factor[0] *= static_cast<float>(with.beta2);
  if (momentum == 0.0F) return;
  factor[1] *= with.momentum;
  factor[2] += rate * factor[1];
}

}  // namespace adaps
