// What an optimizer's steps were made with, kept so that rows can make up for steps that they missed.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace adaps {

// What a schedule may change while training goes on, in the notation of torch.optim. `momentum` is also the
// decay of the first moment (beta1) where a rule has one, `beta2` that of the second (alpha).
struct Hyperparameters {
  float learning_rate = 0.01F;
  float momentum = 0.0F;
  float beta2 = 0.999F;
  float weight_decay = 0.0F;

  friend bool operator==(const Hyperparameters&, const Hyperparameters&) = default;
  // A hash of all but the learning rate: different hyperparameters have the same one in 1 of 65,536 cases.
  std::uint16_t fingerprint() const;
};

class StepHistory {
 public:
  struct Stretch {
    std::uint64_t first;
    std::uint64_t steps;
    Hyperparameters with;
  };

  // Steps from `step` on use these hyperparameters, until a later call. A step before the last one erases
  // what was recorded from it on.
  void note(std::uint64_t step, const Hyperparameters& with);
  // Visits the steps in (last, through] in order, in stretches with equal hyperparameters. `visit(stretch)`
  // returns whether to go on.
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
  // The index of the change that is in force at this step; of the first one if the step is before it.
  std::size_t index_of(std::uint64_t step) const;

  mutable std::mutex mutex_;
  std::vector<Change> changes_;  // by step
};

}  // namespace adaps
