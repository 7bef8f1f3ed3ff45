// Update rules: how a gradient changes a value and its optimizer state, in one fused pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "store/step_history.h"

namespace adaps {

enum class RuleKind : std::uint8_t { kSgd, kMomentum, kAdagrad, kRowAdagrad, kAdam, kSparseAdam, kRmsprop };

// What a gradient is applied with, beside the rule: it changes while training goes on.
struct UpdateStep {
  Hyperparameters with;
  // How many steps the optimizer has made with this one. Adam corrects its bias by it. 0: every row counts
  // the gradients that it got.
  std::uint64_t number = 0;
  // The hyperparameters of all steps, if rows catch up with steps that they missed.
  const StepHistory* history = nullptr;
};

// Hyperparameters in the notation of torch.optim. The two Adams differ in where eps is added, as
// torch.optim.Adam and SparseAdam do: to the root of the second moment after, or before its bias is
// corrected.
//
// torch's dense optimizers change a row also in steps in which its gradient is 0. Such a row need not be
// touched until it is used: where steps have a history, it makes up for those that it missed, exactly but for
// Adam's moments without L2 weight decay, which only change with a gradient (that is lazy Adam).
//
// What several gradients do to a row of which there are two copies is kept as a change: an affine map of the
// row, so that one copy's changes can be applied after the other's as if they had been made there. A change
// is as long as the row, for what is added to it, and then has what the row is multiplied with before.
struct UpdateRule {
  RuleKind kind = RuleKind::kSgd;
  float lr = 0.01F;
  float momentum = 0.0F;
  float eps = 1e-10F;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float initial_accumulator = 0.0F;
  float weight_decay = 0.0F;
  bool decoupled = false;  // kAdam: the value shrinks by itself (AdamW), not by way of the gradient (L2)
  bool nesterov = false;   // kMomentum
  bool centered = false;   // kRmsprop

  // Floats of optimizer state that a value of `length` floats needs.
  std::size_t state_length(std::size_t length) const;
  // How many of them, the last ones, belong to the row and not to one float of the value.
  std::size_t state_scalars() const;
  void init_state(float* state, std::size_t length) const;
  Hyperparameters hyperparameters() const;
  // Whether rows change in steps in which they have no gradient, where steps have a history.
  bool moves_idle_rows() const;

  // Applies one gradient to value[length] and the state behind it (value[length, length + state)). If
  // `change` is given, the effect on value and state is added to it as well: it is formed directly, not as a
  // difference of two large numbers. Then the row does not catch up with missed steps.
  void apply(float* value, const float* gradient, std::size_t length, float* change,
             const UpdateStep& step) const;
  // Applies the steps without gradient that the row has missed, up to and including this one, if any.
  bool catch_up(float* value, std::size_t length, const UpdateStep& step) const;
  // Marks the row as having missed no step before this one.
  void restart(float* value, std::size_t length, const UpdateStep& step) const;

  // Floats of a change.
  std::size_t change_length(std::size_t length) const;
  // Initialises change[change_length(length)] to one that changes nothing.
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
  // Steps without gradient in (last, through].
  void make_up(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
               const StepHistory& history) const;
  void replay(float* value, std::size_t length, std::uint64_t last, std::uint64_t through,
              const StepHistory& history) const;
  // The last float of the state: the step that changed the row last or, without a history of steps, how many
  // gradients Adam has applied to the row.
  float* stamp_of(float* value, std::size_t length) const;
  // How many floats of a change are factors.
  std::size_t factors() const;
};

}  // namespace adaps
