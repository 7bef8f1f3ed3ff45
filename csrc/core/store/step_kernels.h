// Vectorized optimizer steps on one row. The steps of SGD round as PyTorch does on the same processor,
// because models that divide by small numbers amplify the smallest difference. The steps of Adagrad round
// after each operation, on every processor.
#pragma once

#include <cstddef>

#include "store/update_rule.h"

namespace adaps {

// The update that a step makes to the value is also added to `change`, if it is not null.

void step_sgd(float* value, const float* gradient, std::size_t length, float* change, float rate,
              float weight_decay);

// Updates the `length` floats of `value` and the momentum buffer, which is stored after them. A second
// gradient of the same step (`again`) is added to the first.
void step_momentum(float* value, const float* gradient, std::size_t length, const Hyperparameters& with,
                   bool nesterov, bool again);

// Updates the `length` floats of `value` and the optimizer state, which is stored after them. If `change` is
// not null, also adds the update to both parts of the change.
void step_adagrad(float* value, const float* gradient, std::size_t length, float* change,
                  const Hyperparameters& with, float eps);

}  // namespace adaps
