// Arrays that Python callers pass: they are checked, and never copied.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/types.h"

namespace adaps::bindings {

namespace py = pybind11;

enum class Access : std::uint8_t { kRead, kWrite };

// A contiguous int64 or float32 array of the caller: NumPy array, CPU tensor of PyTorch, or any other object
// with the buffer or the DLPack protocol. The constructors throw a TypeError or ValueError that names
// `argument`, the problem and the remedy. The caller's object, or the keeper(), must outlive the view.
class Array {
 public:
  // Also accepts sequences of Python ints, which are copied.
  static Array of_int64(py::handle object, const char* argument, Access access = Access::kRead);
  static Array of_float32(py::handle object, const char* argument, Access access);

  std::span<const std::int64_t> int64() const { return {static_cast<const std::int64_t*>(data_), size_}; }
  std::span<std::int64_t> mutable_int64() const { return {static_cast<std::int64_t*>(data_), size_}; }
  // A negative key becomes a number beyond the last table, which the worker's range check refuses.
  std::span<const Key> keys() const { return {static_cast<const Key*>(data_), size_}; }
  float* floats() const { return static_cast<float*>(data_); }
  std::size_t size() const { return size_; }

  // Returns an object to hold for as long as an asynchronous call uses the memory. The storage of a tensor is
  // pinned permanently: PyTorch refuses to resize it, as after tensor.numpy(). Throws a ValueError if the
  // storage cannot be pinned.
  py::object keeper() const;

 private:
  enum class Type : std::uint8_t { kInt64, kFloat32 };

  Array(py::handle object, void* data, std::size_t size) : object_(object), data_(data), size_(size) {}

  static Array of(py::handle object, Type type, const char* argument, Access access);
  static Array of_numpy(py::handle array, Type type, const char* argument, Access access);
  static Array of_torch(py::handle tensor, Type type, const char* argument, Access access);
  // Makes the result own its object: a view that NumPy made of another object, or the copy of a list.
  static Array own(py::object array, Type type, const char* argument, Access access);

  py::handle object_;  // the caller's object
  py::object owned_;   // set if the memory belongs to an object that was created here
  void* data_;
  std::size_t size_;
};

// Creates an uninitialized int64 or float32 array, as a PyTorch tensor or NumPy array like `like`, which has
// that dtype.
py::object new_int64(py::handle like, const std::vector<py::ssize_t>& shape);
py::object new_float32(py::handle like, const std::vector<py::ssize_t>& shape);
// Returns the shape of an array or sequence that of_int64 accepted.
std::vector<py::ssize_t> shape_of(py::handle object, std::size_t size);

}  // namespace adaps::bindings
