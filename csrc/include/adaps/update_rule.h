// Update rules: how a gradient changes a value and its optimizer state, in one fused pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "adaps/step_sizes.h"

namespace adaps {

enum class RuleKind : std::uint8_t { kSgd, kMomentum, kAdagrad, kRowAdagrad, kAdam, kSparseAdam };

// What a gradient is applied with, beside the rule: it changes while training goes on.
struct UpdateStep {
  float learning_rate = 0.0F;
  // How many steps the optimizer has made with this one. Adam corrects its bias by it; with momentum, a row
  // makes up for the steps that it missed. 0: every row counts the gradients that it got.
  std::uint64_t number = 0;
  // Of all steps, if `number` is not 0.
  const StepSizes* sizes = nullptr;
};

// Hyperparameters in the notation of torch.optim. Adam is lazy: only rows with a gradient change, state
// included. So is momentum, unless steps are numbered: then a gradient of 0 makes up for what was missed, and
// does nothing if nothing was. The two Adams differ in where eps is added, as torch.optim.Adam and SparseAdam
// do: to the root of the second moment after, or before its bias is corrected.
struct UpdateRule {
  RuleKind kind = RuleKind::kSgd;
  float lr = 0.01F;
  float momentum = 0.0F;
  float eps = 1e-10F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float initial_accumulator = 0.0F;

  // Floats of optimizer state that a value of `length` floats needs.
  std::size_t state_length(std::size_t length) const;
  void init_state(float* state, std::size_t length) const;

  // Applies one gradient to value[length] and the state behind it (value[length, length + state)). If `delta`
  // is given, the change of value and state is added to it as well: it is formed directly, not as a
  // difference of two large numbers.
  void apply(float* value, const float* gradient, std::size_t length, float* delta,
             const UpdateStep& step) const;

 private:
  void sgd_momentum(float* value, const float* gradient, std::size_t length, float* delta,
                    const UpdateStep& step) const;
  void adam(float* value, const float* gradient, std::size_t length, float* delta,
            const UpdateStep& step) const;
};

}  // namespace adaps
