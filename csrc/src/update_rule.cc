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

inline float* at(float* base, std::size_t i) { return base == nullptr ? nullptr : base + i; }

}  // namespace

std::size_t UpdateRule::state_length(std::size_t length) const {
  switch (kind) {
    case RuleKind::kSgd:
      return 0;
    case RuleKind::kMomentum:
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
    case RuleKind::kMomentum:  // buffer <- momentum * buffer + gradient
      for (std::size_t i = 0; i < length; ++i) {
        change(state + i, at(state_delta, i), (momentum - 1.0F) * state[i] + gradient[i]);
        change(value + i, at(delta, i), -learning_rate * state[i]);
      }
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
