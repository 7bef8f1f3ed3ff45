// Python bindings of the partitioner. They take and return NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>

#include "greedy.h"

namespace py = pybind11;

namespace partition {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> span_of(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename Row>
Array<Part> deal(Greedy& greedy, const Array<Row>& rows) {
  if (rows.ndim() != 2) {
    throw std::invalid_argument("rows must have two dimensions, samples and rows that each reads, not " +
                                std::to_string(rows.ndim()));
  }
  Array<Part> parts(rows.shape(0));
  const std::span<Part> out(parts.mutable_data(), static_cast<std::size_t>(parts.size()));
  const auto view = span_of(rows);
  greedy.deal(view, static_cast<std::size_t>(rows.shape(1)), out);
  return parts;
}

template <typename Row>
void add(Readers& readers, std::int64_t part, const Array<Row>& rows) {
  const auto view = span_of(rows);
  readers.add(part, view);
}

Array<std::int32_t> most(Readers& readers) {
  const auto& most = readers.most();
  Array<std::int32_t> out(static_cast<py::ssize_t>(most.size()));
  std::copy(most.begin(), most.end(), out.mutable_data());
  return out;
}

}  // namespace
}  // namespace partition

PYBIND11_MODULE(_partition, module) {
  using partition::Array;
  using partition::Greedy;
  using partition::Readers;
  module.doc() = "Deals samples to parts by the rows that they read.";
  py::class_<Greedy>(module, "Greedy")
      .def(py::init<std::int64_t, std::int64_t, std::int64_t, std::uint64_t>(), py::arg("rows"),
           py::arg("parts"), py::arg("samples"), py::arg("seed"))
      .def("deal", &partition::deal<std::int32_t>, py::arg("rows").noconvert())
      .def("deal", &partition::deal<std::int64_t>, py::arg("rows").noconvert())
      .def(
          "again",
          [](Greedy& greedy, const Array<std::int32_t>& homes) { greedy.again(partition::span_of(homes)); },
          py::arg("homes").noconvert());
  py::class_<Readers>(module, "Readers")
      .def(py::init<std::int64_t>(), py::arg("rows"))
      .def("add", &partition::add<std::int32_t>, py::arg("part"), py::arg("rows").noconvert())
      .def("add", &partition::add<std::int64_t>, py::arg("part"), py::arg("rows").noconvert())
      .def("most", &partition::most);
}
