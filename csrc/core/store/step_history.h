// Records the hyperparameters of an optimizer's steps. With this record, a row can apply steps later that it
// has missed.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace adaps {

// Hyperparameters that a schedule may change during training, in the notation of torch.optim. `momentum` is
// also the decay of the first moment (beta1), and `beta2` that of the second moment (called alpha by
// RMSprop). `beta2` is near 1, where a float is too coarse: 1 - 0.999F differs from 0.001 by 13 millionths.
struct Hyperparameters {
  float learning_rate = 0.01F;
  float momentum = 0.0F;
  double beta2 = 0.999;
  float weight_decay = 0.0F;

  friend bool operator==(const Hyperparameters&, const Hyperparameters&) = default;
  // A hash of all hyperparameters except the learning rate. Different hyperparameters collide with a
  // probability of 1 in 65,536.
  std::uint16_t fingerprint() const;
};

class StepHistory {
 public:
  struct Stretch {
    std::uint64_t first;
    std::uint64_t steps;
    Hyperparameters with;
  };

  // Sets the hyperparameters of `step` and all later steps. Erases the records of `step` and later steps, if
  // there are any.
  void note(std::uint64_t step, const Hyperparameters& with);
  // Visits the steps in (last, through] in order. Consecutive steps with equal hyperparameters are visited as
  // one group. `visit(stretch)` returns whether to continue.
  template <typename Visit>
  void for_each(std::uint64_t last, std::uint64_t through, Visit visit) const {
    const std::lock_guard guard(mutex_);
    std::uint64_t step = last + 1;
    for (std::size_t i = index_of(step); step <= through && i < changes_.size(); ++i) {
      const std::uint64_t end =
          i + 1 == changes_.size() || changes_[i + 1].step > through ? through + 1 : changes_[i + 1].step;
      if (end <= step) continue;
      if (!visit(Stretch{step, end - step, changes_[i].with})) return;
      step = end;
    }
  }

 private:
  struct Change {
    std::uint64_t step;
    Hyperparameters with;
  };
  // Index of the change that applies to this step, or of the first change if the step precedes it.
  std::size_t index_of(std::uint64_t step) const;

  mutable std::mutex mutex_;
  std::vector<Change> changes_;  // by step
};

}  // namespace adaps
