#include <algorithm>

#include "adaps/deduplicate.h"
#include "arrays.h"
#include "register.h"

namespace adaps::bindings {

namespace {

py::tuple deduplicate_ids(const py::object& ids, std::int64_t first_key) {
  const Array input = Array::of_int64(ids, "ids");
  const py::object inverse = new_int64(ids, shape_of(ids, input.size()));
  const std::span<std::int64_t> positions =
      Array::of_int64(inverse, "inverse", Access::kWrite).mutable_int64();
  std::vector<std::int64_t> unique;
  {
    const py::gil_scoped_release release;
    unique = deduplicate(input.int64(), positions.data());
    if (first_key != 0) {
      for (std::int64_t& id : unique) {  // in a type that wraps: what is no id here is refused as a key
        id =
            static_cast<std::int64_t>(static_cast<std::uint64_t>(id) + static_cast<std::uint64_t>(first_key));
      }
    }
  }
  const py::object keys = new_int64(ids, {static_cast<py::ssize_t>(unique.size())});
  std::ranges::copy(unique, Array::of_int64(keys, "keys", Access::kWrite).mutable_int64().begin());
  return py::make_tuple(keys, inverse);
}

}  // namespace

void register_deduplicate(py::module_& module) {
  module.def("deduplicate", &deduplicate_ids, py::arg("ids"), py::arg("first_key") = 0,
             "Distinct ids in the order of their first occurrence, plus first_key, and each id's position "
             "among them.");
}

}  // namespace adaps::bindings
