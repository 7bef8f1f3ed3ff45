// The exception that ends a simulated world, because the parameter server broke a promise.
#pragma once

#include <stdexcept>
#include <string>

#include "simulation/text.h"

namespace adaps::simulation {

// The message is "kind: details", where the kind names the promise.
class Violation : public std::runtime_error {
 public:
  template <typename... Parts>
  explicit Violation(const Parts&... parts) : std::runtime_error(joined(parts...)) {}
  std::string kind() const {
    const std::string text = what();
    return text.substr(0, text.find(':'));
  }
};

}  // namespace adaps::simulation
