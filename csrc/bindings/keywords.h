// Keyword arguments of a call that has many of them.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

namespace adaps::bindings {

namespace py = pybind11;

class Keywords {
 public:
  explicit Keywords(py::kwargs given) : given_(std::move(given)) {}

  // Throws a TypeError if the argument is missing or has another type.
  template <typename Value>
  Value take(const char* name) {
    if (!given_.contains(name)) throw py::type_error("missing keyword argument '" + std::string(name) + "'");
    const py::object value = given_.attr("pop")(name);
    try {
      return py::cast<Value>(value);
    } catch (const py::cast_error&) {
      throw py::type_error("argument '" + std::string(name) + "' is " + py::repr(value).cast<std::string>() +
                           ", which has the wrong type");
    }
  }
  // Keeps `value` unchanged if the argument is missing.
  template <typename Value>
  void take_if_given(const char* name, Value& value) {
    if (given_.contains(name)) value = take<Value>(name);
  }
  // Throws a TypeError if there are unused arguments.
  void require_none_left() const {
    for (const auto& argument : given_)
      throw py::type_error("unknown keyword argument '" + py::cast<std::string>(argument.first) + "'");
  }

 private:
  py::kwargs given_;
};

}  // namespace adaps::bindings
