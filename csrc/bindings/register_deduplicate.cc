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

constexpr char kDeduplicate[] =
    R"(Distinct ids in the order of their first occurrence, and where each id is among them.

Parameters
----------
ids : int64 array, CPU tensor or sequence of int
    C-contiguous, of any shape.
first_key : int
    Added to the distinct ids: with a table's `first_key` they are keys.

Returns
-------
keys : int64 array or CPU tensor
    The distinct ids plus `first_key`, of the kind of `ids` and shape ``(n,)``.
inverse : int64 array or CPU tensor
    Of the kind and shape of `ids`: ``keys[inverse] == ids + first_key``.

Raises
------
TypeError, ValueError
    If `ids` has another dtype or layout, or is not on the CPU.)";

}  // namespace

void register_deduplicate(py::module_& module) {
  module.def("deduplicate", &deduplicate_ids, py::arg("ids"), py::arg("first_key") = 0, kDeduplicate);
}

}  // namespace adaps::bindings
