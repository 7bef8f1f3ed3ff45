// What ends a simulated world: a promise of the parameter server that was not kept.
#pragma once

#include <stdexcept>
#include <string>

namespace adaps::simulation {

// what() is "kind: details"; the kind names the promise.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  std::string kind() const {
    const std::string text = what();
    return text.substr(0, text.find(':'));
  }
};

}  // namespace adaps::simulation
