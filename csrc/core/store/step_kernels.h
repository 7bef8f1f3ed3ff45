// Steps on one row, several numbers at a time. Those of SGD are rounded as PyTorch rounds them on the same
// processor: models that divide by small numbers amplify the smallest difference. Those of Adagrad are
// rounded after each operation, on every processor.
#pragma once

#include <cstddef>

#include "store/update_rule.h"

namespace adaps {

// `change`, if given, is changed like the value.

void step_sgd(float* value, const float* gradient, std::size_t length, float* change, float rate,
              float weight_decay);

// value[length] and then its buffer; a second gradient of the same step (`again`) is added to the first.
void step_momentum(float* value, const float* gradient, std::size_t length, const Hyperparameters& with,
                   bool nesterov, bool again);

// value[length] and then its state; of a change, both.
void step_adagrad(float* value, const float* gradient, std::size_t length, float* change,
                  const Hyperparameters& with, float eps);

}  // namespace adaps
