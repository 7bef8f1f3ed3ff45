// Registers the exceptions. pybind11 already translates std::invalid_argument to ValueError and
// std::out_of_range to IndexError.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <typeinfo>

#include "common/types.h"
#include "errors.h"
#include "register.h"
#include "storage/row_file.h"

namespace adaps::bindings {

namespace py = pybind11;

namespace {

// Raises an exception of adaps.errors.
template <typename... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const auto type = py::module_::import("adaps.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

// Passed by value, as pybind11 declares translators.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
void translate(std::exception_ptr raised) {
  if (!raised) return;
  try {
    std::rethrow_exception(raised);
  } catch (const PeerLost& lost) {
    raise("PeerLost", lost.rank(), lost.what());
  } catch (const ProtocolError& error) {
    raise("AdapsError", error.what());
  } catch (const TableFull& full) {
    raise("AdapsError", full.what());
  } catch (const StorageError& error) {
    raise("AdapsError", error.what());
  } catch (const Failure& failure) {
    raise("AdapsError", failure.what());
  } catch (const std::logic_error& error) {
    if (typeid(error) != typeid(std::logic_error)) throw;  // pybind11 translates the derived classes
    raise("AdapsError", error.what());
  }
}

}  // namespace

void register_errors(py::module_&) { py::register_exception_translator(&translate); }

}  // namespace adaps::bindings
