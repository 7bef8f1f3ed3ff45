#include "adaps/update_rule.h"

#include <algorithm>
#include <cmath>

namespace adaps {

namespace {

// The change of one element: written to value (or state), and added to the delta if there is one.
inline void change(float* x, float* delta, float by) {
  *x += by;
  if (delta != nullptr) *delta += by;
}

// Step numbers as floats: exact up to here, after which they begin anew.
constexpr std::uint64_t kStepNumbers = std::uint64_t{1} << 24;
float step_stamp(std::uint64_t number) { return static_cast<float>(1 + (number - 1) % kStepNumbers); }
// 0 if `number` is before the stamp.
std::uint64_t steps_since(float stamp, std::uint64_t number) {
  const auto then = static_cast<std::uint64_t>(stamp);
  const auto steps = (static_cast<std::uint64_t>(step_stamp(number)) + kStepNumbers - then) % kStepNumbers;
  return steps < kStepNumbers / 2 ? steps : 0;
}

inline float* at(float* base, std::size_t i) { return base == nullptr ? nullptr : base + i; }

}  // namespace

std::size_t UpdateRule::state_length(std::size_t length) const {
  switch (kind) {
    case RuleKind::kSgd:
      return 0;
    case RuleKind::kMomentum:
      return length + 1;  // buffer, step of the last change
    case RuleKind::kAdagrad:
      return length;
    case RuleKind::kRowAdagrad:
      return 1;
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
      return 2 * length + 1;  // first moment, second moment, gradients so far
  }
  return 0;
}

void UpdateRule::init_state(float* state, std::size_t length) const {
  const bool adagrad = kind == RuleKind::kAdagrad || kind == RuleKind::kRowAdagrad;
  std::fill_n(state, state_length(length), adagrad ? initial_accumulator : 0.0F);
}

void UpdateRule::apply(float* value, const float* gradient, std::size_t length, float* delta,
                       const UpdateStep& now) const {
  const float learning_rate = now.learning_rate;
  float* state = value + length;
  float* state_delta = at(delta, length);
  switch (kind) {
    case RuleKind::kSgd:
      for (std::size_t i = 0; i < length; ++i) change(value + i, at(delta, i), -learning_rate * gradient[i]);
      return;
    case RuleKind::kMomentum:
      sgd_momentum(value, gradient, length, delta, now);
      return;
    case RuleKind::kAdagrad:  // Duchi, Hazan, Singer (2011)
      if (delta == nullptr) {
        for (std::size_t i = 0; i < length; ++i) {
          state[i] += gradient[i] * gradient[i];
          value[i] -= learning_rate * gradient[i] / (std::sqrt(state[i]) + eps);
        }
        return;
      }
      for (std::size_t i = 0; i < length; ++i) {
        change(state + i, state_delta + i, gradient[i] * gradient[i]);
        change(value + i, delta + i, -learning_rate * gradient[i] / (std::sqrt(state[i]) + eps));
      }
      return;
    case RuleKind::kRowAdagrad: {  // one accumulator a row: the mean of the squared gradient
      float sum = 0.0F;
      for (std::size_t i = 0; i < length; ++i) sum += gradient[i] * gradient[i];
      change(state, state_delta, sum / static_cast<float>(length));
      const float step = learning_rate / (std::sqrt(*state) + eps);
      for (std::size_t i = 0; i < length; ++i) change(value + i, at(delta, i), -step * gradient[i]);
      return;
    }
    case RuleKind::kAdam:
    case RuleKind::kSparseAdam:
      adam(value, gradient, length, delta, now);
      return;
  }
}

// buffer <- momentum * buffer + gradient, value <- value - learning rate * buffer; and the same with gradient
// 0 for each step that was missed. A second gradient of the same step is added to the first.
void UpdateRule::sgd_momentum(float* value, const float* gradient, std::size_t length, float* delta,
                              const UpdateStep& now) const {
  float* buffer = value + length;
  float* stamp = buffer + length;
  float* buffer_delta = at(delta, length);
  float kept = momentum;
  float drift = now.learning_rate * momentum;
  if (now.number != 0) {
    if (*stamp != 0.0F) {
      const std::uint64_t steps = steps_since(*stamp, now.number);
      kept = static_cast<float>(std::pow(static_cast<double>(momentum), static_cast<double>(steps)));
      if (steps != 1)
        drift = static_cast<float>(
            now.sizes->drift(now.number - steps, now.number, static_cast<double>(momentum)));
    }
    change(stamp, at(delta, 2 * length), step_stamp(now.number) - *stamp);
  }
  for (std::size_t i = 0; i < length; ++i) {
    change(value + i, at(delta, i), -drift * buffer[i] - now.learning_rate * gradient[i]);
    change(buffer + i, at(buffer_delta, i), (kept - 1.0F) * buffer[i] + gradient[i]);
  }
}

// Kingma, Ba (2015), algorithm 1 (kAdam), or with the order of computation that section 2 gives
// (kSparseAdam).
void UpdateRule::adam(float* value, const float* gradient, std::size_t length, float* delta,
                      const UpdateStep& now) const {
  float* first = value + length;
  float* second = first + length;
  float* gradients = second + length;
  float* first_delta = at(delta, length);
  float* second_delta = at(delta, 2 * length);
  change(gradients, at(delta, 3 * length), 1.0F);
  const auto number = now.number == 0 ? static_cast<double>(*gradients) : static_cast<double>(now.number);
  const double root = std::sqrt(1.0 - std::pow(static_cast<double>(beta2), number));
  const double correction = 1.0 - std::pow(static_cast<double>(beta1), number);
  const auto step = static_cast<float>(static_cast<double>(now.learning_rate) * root / correction);
  const float guard = kind == RuleKind::kAdam ? eps * static_cast<float>(root) : eps;
  for (std::size_t i = 0; i < length; ++i) {
    const float g = gradient[i];
    change(first + i, at(first_delta, i), (1.0F - beta1) * (g - first[i]));
    change(second + i, at(second_delta, i), (1.0F - beta2) * (g * g - second[i]));
    change(value + i, at(delta, i), -step * first[i] / (std::sqrt(second[i]) + guard));
  }
}

}  // namespace adaps
