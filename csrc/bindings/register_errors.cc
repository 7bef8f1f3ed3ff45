// Registers the exceptions. pybind11 already translates std::invalid_argument to ValueError and
// std::out_of_range to IndexError.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <typeinfo>

#include "common/types.h"
#include "errors.h"
#include "register.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

py::object error_class(const char* name) { return py::module_::import("adaps.errors").attr(name); }

void raise(const py::object& type, const py::object& instance) {
  PyErr_SetObject(type.ptr(), instance.ptr());
}

// Passed by value, as pybind11 declares translators.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void translate(std::exception_ptr raised) {
  if (!raised) return;
  try {
    std::rethrow_exception(raised);
  } catch (const PeerLost& lost) {
    const auto type = error_class("PeerLost");
    raise(type, type(lost.rank(), lost.what()));
  } catch (const ProtocolError& error) {
    const auto type = error_class("AdapsError");
    raise(type, type(error.what()));
  } catch (const TableFull& full) {
    const auto type = error_class("AdapsError");
    raise(type, type(full.what()));
  } catch (const Failure& failure) {
    const auto type = error_class("AdapsError");
    raise(type, type(failure.what()));
  } catch (const std::logic_error& error) {
    if (typeid(error) != typeid(std::logic_error)) throw;  // pybind11 translates the derived classes
    const auto type = error_class("AdapsError");
    raise(type, type(error.what()));
  }
}

}  // namespace

void register_errors(py::module_&) { py::register_exception_translator(&translate); }

}  // namespace adaps::bindings
