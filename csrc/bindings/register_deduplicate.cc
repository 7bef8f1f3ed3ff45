#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arrays.h"
#include "common/deduplicate.h"
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
      for (std::int64_t& id : unique) {  // unsigned, so that an invalid id wraps to a key that is refused
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
    R"(Return the distinct ids in the order of their first occurrence, and the index of each id among them.

Parameters
----------
ids : int64 array, CPU tensor or sequence of int
    Ids, C-contiguous, of any shape.
first_key : int
    Number to add to the distinct ids. With a table's `first_key`, the results are keys.

Returns
-------
keys : int64 array or CPU tensor
    Distinct ids plus `first_key`, of the kind of `ids` and shape ``(n,)``.
inverse : int64 array or CPU tensor
    Index of each id among the distinct ids, of the kind and shape of `ids`: ``keys[inverse] == ids +
    first_key``.

Raises
------
TypeError, ValueError
    If `ids` has another dtype or layout, or is not on the CPU.)";

py::tuple sum_rows_by_key(const py::object& keys, const py::object& rows) {
  const Array given = Array::of_int64(keys, "keys");
  const Array floats = Array::of_float32(rows, "rows", Access::kRead);
  const std::size_t length = given.size() == 0 ? 0 : floats.size() / given.size();
  const std::vector<py::ssize_t> shape = shape_of(rows, floats.size());
  const bool is_flat = shape.size() < 2 || given.size() == 0;
  if (length * given.size() != floats.size() ||
      (!is_flat && shape.back() != static_cast<py::ssize_t>(length)))
    throw py::value_error("rows holds " + std::to_string(floats.size()) + " values" +
                          (is_flat ? "" : " in rows of " + std::to_string(shape.back())) + " for " +
                          std::to_string(given.size()) + " keys: it needs one row for each");
  RowSums sums;
  {
    const py::gil_scoped_release release;
    sums = sum_by_key(given.int64(), floats.floats(), length);
  }
  const auto count = static_cast<py::ssize_t>(sums.keys.size());
  const py::object distinct = new_int64(keys, {count});
  const py::object added = new_float32(rows, {count, static_cast<py::ssize_t>(length)});
  std::ranges::copy(sums.keys, Array::of_int64(distinct, "keys", Access::kWrite).mutable_int64().begin());
  std::ranges::copy(sums.rows, Array::of_float32(added, "rows", Access::kWrite).floats());
  return py::make_tuple(distinct, added);
}

constexpr char kSumByKey[] =
    R"(Sum rows by key, in the given order.

Parameters
----------
keys : int64 array, CPU tensor or sequence of int
    Keys, C-contiguous, of any shape.
rows : float32 array or CPU tensor
    Rows to sum, one per key.

Returns
-------
keys : int64 array or CPU tensor
    Distinct keys in the order of their first occurrence, of the kind of `keys` and shape ``(n,)``.
sums : float32 array or CPU tensor
    Sum of the rows of each key, of the kind of `rows` and shape ``(n, length)``.

Raises
------
TypeError, ValueError
    If an array has another dtype, size or layout, or is not on the CPU.)";

}  // namespace

void register_deduplicate(py::module_& module) {
  module.def("deduplicate", &deduplicate_ids, py::arg("ids"), py::arg("first_key") = 0, kDeduplicate);
  module.def("sum_by_key", &sum_rows_by_key, py::arg("keys"), py::arg("rows"), kSumByKey);
}

}  // namespace adaps::bindings
