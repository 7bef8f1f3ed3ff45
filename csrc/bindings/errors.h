// C++ exceptions that become exceptions of adaps.errors.
#pragma once

#include <stdexcept>

namespace adaps::bindings {

// Becomes adaps.AdapsError in Python.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace adaps::bindings
