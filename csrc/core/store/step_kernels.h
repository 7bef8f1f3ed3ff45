// Steps of SGD on one row, rounded as PyTorch rounds them on the same processor: models that divide by small
// numbers amplify the smallest difference.
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

}  // namespace adaps
