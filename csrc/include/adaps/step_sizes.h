// The learning rates of an optimizer's steps, kept so that rows can make up for steps that they missed.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace adaps {

// With momentum, torch.optim.SGD moves a row in every step, also in those in which it has no gradient. Such a
// row need not be touched until it is used: with the buffer v that it had after step `last`, it has moved by
//   -v * sum over steps s in (last, now] of lr(s) * momentum^(s - last)
// until step `now`, and its buffer has become v * momentum^(now - last).
class StepSizes {
 public:
  // Steps from this one on, until the next that is told, have this learning rate. A step told before starts
  // anew from there.
  void note(std::uint64_t step, float learning_rate);
  // The sum above. Terms are left out once no float shows them.
  double drift(std::uint64_t last, std::uint64_t now, double momentum) const;

 private:
  struct Since {
    std::uint64_t step;
    float learning_rate;
  };
  mutable std::mutex mutex_;
  std::vector<Since> rates_;  // by step
};

}  // namespace adaps
