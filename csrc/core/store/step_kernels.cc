#include "store/step_kernels.h"

#include <cmath>

namespace adaps {

namespace {

// Computes a * b + c, rounded once (fused) or twice. This file is compiled without contraction of
// floating-point operations, so the rounding is as written here.
template <bool kOnce>
[[gnu::always_inline]] inline float multiply_add(float a, float b, float c) {
  if constexpr (kOnce) return __builtin_fmaf(a, b, c);
  return a * b + c;
}

template <bool kOnce>
[[gnu::always_inline]] inline void sgd(float* value, const float* gradient, std::size_t length, float* change,
                                       float rate, float weight_decay) {
  if (weight_decay == 0.0F) {
    for (std::size_t i = 0; i < length; ++i) value[i] = multiply_add<kOnce>(-rate, gradient[i], value[i]);
    if (change == nullptr) return;
    for (std::size_t i = 0; i < length; ++i) change[i] = multiply_add<kOnce>(-rate, gradient[i], change[i]);
    return;
  }
  for (std::size_t i = 0; i < length; ++i) {
    const float g = multiply_add<kOnce>(weight_decay, value[i], gradient[i]);
    value[i] = multiply_add<kOnce>(-rate, g, value[i]);
    if (change != nullptr) change[i] = multiply_add<kOnce>(-rate, g, change[i]);
  }
}

template <bool kOnce>
[[gnu::always_inline]] inline void momentum(float* value, const float* gradient, std::size_t length,
                                            const Hyperparameters& with, bool nesterov, bool again) {
  const float rate = with.learning_rate;
  const float kept = again ? 1.0F : with.momentum;
  const bool shrinks = with.weight_decay != 0.0F && !again;
  float* buffer = value + length;
  for (std::size_t i = 0; i < length; ++i) {
    const float g = shrinks ? multiply_add<kOnce>(with.weight_decay, value[i], gradient[i]) : gradient[i];
    buffer[i] = kept * buffer[i] + g;
    const float moved = again ? g : buffer[i];
    const float by = nesterov ? multiply_add<kOnce>(with.momentum, moved, g) : moved;
    value[i] = multiply_add<kOnce>(-rate, by, value[i]);
  }
}

// Adagrad: Duchi, Hazan, Singer (2011)
template <bool kShrinks, bool kChange>
[[gnu::always_inline]] inline void adagrad(float* __restrict value, float* __restrict state,
                                           const float* __restrict gradient, std::size_t length,
                                           float* __restrict change, float* __restrict state_change,
                                           const Hyperparameters& with, float eps) {
  const float rate = with.learning_rate, weight_decay = with.weight_decay;
  for (std::size_t i = 0; i < length; ++i) {
    float g = gradient[i];
    if constexpr (kShrinks) g += weight_decay * value[i];
    const float square = g * g;
    state[i] += square;
    const float step = -rate * g / (std::sqrt(state[i]) + eps);
    value[i] += step;
    if constexpr (kChange) {
      state_change[i] += square;
      change[i] += step;
    }
  }
}

template <bool kShrinks>
[[gnu::always_inline]] inline void adagrad(float* value, const float* gradient, std::size_t length,
                                           float* change, const Hyperparameters& with, float eps) {
  if (change == nullptr) {
    adagrad<kShrinks, false>(value, value + length, gradient, length, nullptr, nullptr, with, eps);
  } else {
    adagrad<kShrinks, true>(value, value + length, gradient, length, change, change + length, with, eps);
  }
}

[[gnu::always_inline]] inline void adagrad(float* value, const float* gradient, std::size_t length,
                                           float* change, const Hyperparameters& with, float eps) {
  if (with.weight_decay == 0.0F) return adagrad<false>(value, gradient, length, change, with, eps);
  adagrad<true>(value, gradient, length, change, with, eps);
}

#if defined(__x86_64__)
// Fused variants for x86 processors with AVX2 and FMA (since 2013). PyTorch also fuses on these processors.
[[gnu::target("avx2,fma")]] void sgd_once(float* value, const float* gradient, std::size_t length,
                                          float* change, float rate, float weight_decay) {
  sgd<true>(value, gradient, length, change, rate, weight_decay);
}
[[gnu::target("avx2,fma")]] void momentum_once(float* value, const float* gradient, std::size_t length,
                                               const Hyperparameters& with, bool nesterov, bool again) {
  momentum<true>(value, gradient, length, with, nesterov, again);
}

bool rounds_once() {
  static const bool able = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return able;
}

// This variant fuses nothing. AVX2 only doubles the number of floats per instruction.
[[gnu::target("avx2")]] void adagrad_wide(float* value, const float* gradient, std::size_t length,
                                          float* change, const Hyperparameters& with, float eps) {
  adagrad(value, gradient, length, change, with, eps);
}

bool has_wide() {
  static const bool able = __builtin_cpu_supports("avx2") != 0;
  return able;
}
#else
#if defined(__FP_FAST_FMAF)
constexpr bool kAble = true;
#else
constexpr bool kAble = false;
#endif
constexpr auto* sgd_once = sgd<kAble>;
constexpr auto* momentum_once = momentum<kAble>;

bool rounds_once() { return kAble; }

void adagrad_wide(float* value, const float* gradient, std::size_t length, float* change,
                  const Hyperparameters& with, float eps) {
  adagrad(value, gradient, length, change, with, eps);
}

bool has_wide() { return true; }
#endif

}  // namespace

void step_sgd(float* value, const float* gradient, std::size_t length, float* change, float rate,
              float weight_decay) {
  (rounds_once() ? sgd_once : sgd<false>)(value, gradient, length, change, rate, weight_decay);
}

void step_momentum(float* value, const float* gradient, std::size_t length, const Hyperparameters& with,
                   bool nesterov, bool again) {
  (rounds_once() ? momentum_once : momentum<false>)(value, gradient, length, with, nesterov, again);
}

void step_adagrad(float* value, const float* gradient, std::size_t length, float* change,
                  const Hyperparameters& with, float eps) {
  if (has_wide()) return adagrad_wide(value, gradient, length, change, with, eps);
  adagrad(value, gradient, length, change, with, eps);
}

}  // namespace adaps
