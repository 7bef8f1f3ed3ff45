// Update rules: the effect of a gradient on a value and its optimizer state, computed in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/step_history.h"

namespace adaps {

enum class RuleKind : std::uint8_t { kSgd, kMomentum, kAdagrad, kRowAdagrad, kAdam, kSparseAdam, kRmsprop };

// Inputs of the application of a gradient that change during training, in addition to the rule.
struct UpdateStep {
  Hyperparameters with;
  // Number of optimizer steps so far, including this one. Adam uses it to correct its bias. If it is 0, each
  // row counts its own gradients.
  std::uint64_t number = 0;
  // Hyperparameters of all steps. Null if rows do not apply missed steps later.
  const StepHistory* history = nullptr;
};

// Hyperparameters in the notation of torch.optim. The two Adams differ in the place of eps, as in PyTorch:
// torch.optim.Adam adds it to the root of the second moment after the bias correction, and SparseAdam before
// it.
//
// PyTorch's dense optimizers also change rows whose gradient is 0. With a history of steps, such a row is not
// changed until its next use, when it catches up with the missed steps. The result is exact with one
// exception: without L2 weight decay, Adam's moments change only with a gradient (lazy Adam).
//
// A change describes the effect of several gradients on a row. It is an affine map of the row, so that
// changes of one copy can be applied to another copy as if the gradients had been applied there. A change
// consists of the summands for each float of the row, and the factors with which the row is multiplied before
// the summands are added.
struct UpdateRule {
  RuleKind kind = RuleKind::kSgd;
  float lr = 0.01F;
  float momentum = 0.0F;
  float eps = 1e-10F;
  float beta1 = 0.9F;
  double beta2 = 0.999;
  float initial_accumulator = 0.0F;
  float weight_decay = 0.0F;
  // kAdam: weight decay shrinks the value directly (AdamW), not through the gradient (L2)
  bool decoupled = false;
  bool nesterov = false;  // kMomentum
  bool centered = false;  // kRmsprop

  // Number of floats of optimizer state for a value of `length` floats.
  std::size_t state_length(std::size_t length) const;
  // Number of floats at the end of the state that belong to the whole row, not to one float of the value.
  std::size_t state_scalars() const;
  void init_state(float* state, std::size_t length) const;
  Hyperparameters hyperparameters() const;
  // Whether steps without a gradient change a row, if the steps have a history.
  bool moves_idle_rows() const;

  // Applies one gradient to value[length] and to the state after it, value[length, length + state). If
  // `change` is not null, the effect is also added to it. The effect is computed directly, not as a
  // difference of two large numbers. The row then does not catch up with missed steps.
  void apply(float* value, const float* gradient, std::size_t length, float* change,
             const UpdateStep& step) const;
  // Applies the steps without a gradient that the row has missed, up to and including this one. Returns
  // whether it missed any.
  bool catch_up(float* value, std::size_t length, const UpdateStep& step) const;
  // Records that the row has missed no step before this one.
  void restart(float* value, std::size_t length, const UpdateStep& step) const;

  // Number of floats of the change of a row with this length.
  std::size_t change_length(std::size_t length) const;
  // Initializes change[change_length(length)] to the identity.
  void init_change(float* change, std::size_t length) const;
  // Applies a change to a value and its state.
  void merge(float* value, const float* change, std::size_t length) const;

 private:
  void sgd_momentum(float* value, const float* gradient, std::size_t length, float* change,
                    const UpdateStep& step, bool again) const;
  void adam(float* value, const float* gradient, std::size_t length, float* change, const UpdateStep& step,
            std::uint64_t number) const;
  void rmsprop(float* value, const float* gradient, std::size_t length, float* change,
               const Hyperparameters& with) const;
  // Applies the steps in (last, through], in all of which the row has no gradient.
  void make_up(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
               const StepHistory& history) const;
  void replay(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
              const StepHistory& history) const;
  // The last float of the state. It is the step that last changed the row or, without a history of steps, the
  // number of gradients that Adam has applied to the row.
  float* stamp_of(float* value, std::size_t length) const;
  // Number of factors at the end of a change.
  std::size_t factors() const;
};

}  // namespace adaps
