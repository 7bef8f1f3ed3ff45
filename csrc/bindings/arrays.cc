#include "arrays.h"

#include <pybind11/stl.h>

#include <string>

#include "dlpack.h"

namespace adaps::bindings {

namespace {

enum class Kind : std::uint8_t { kNumpy, kTorch };

// Returns torch.Tensor. Returns null if torch was not imported, because then no caller can have a tensor.
PyTypeObject* torch_tensor_type() {
  static PyTypeObject* type = nullptr;
  if (type == nullptr) {
    const auto modules = py::reinterpret_borrow<py::dict>(PyImport_GetModuleDict());
    if (modules.contains("torch") && py::hasattr(modules["torch"], "Tensor")) {
      type = reinterpret_cast<PyTypeObject*>(py::object(modules["torch"].attr("Tensor")).release().ptr());
    }
  }
  return type;
}

bool is_torch(py::handle object) {
  PyTypeObject* const type = torch_tensor_type();
  return type != nullptr && PyObject_TypeCheck(object.ptr(), type);
}

// PyTorch's functions that describe a tensor within nanoseconds. Null before PyTorch 2.10.
const dlpack::ExchangeApi* torch_exchange_api() {
  static const dlpack::ExchangeApi* const api = []() -> const dlpack::ExchangeApi* {
    const py::handle type(reinterpret_cast<PyObject*>(torch_tensor_type()));
    const py::object capsule = py::getattr(type, "__dlpack_c_exchange_api__", py::none());
    if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kCapsuleName)) return nullptr;
    auto* found =
        static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kCapsuleName));
    while (found != nullptr && found->major != dlpack::kMajor) found = found->previous;
    return found;
  }();
  return api;
}

std::string name_of(dlpack::DataType type) {
  const std::string bits = std::to_string(static_cast<int>(type.bits));
  switch (type.code) {
    case dlpack::kInt:
      return "int" + bits;
    case dlpack::kUInt:
      return "uint" + bits;
    case dlpack::kFloat:
      return "float" + bits;
    case dlpack::kBfloat:
      return "bfloat" + bits;
    case dlpack::kComplex:
      return "complex" + bits;
    case dlpack::kBool:
      return "bool";
    default:
      return "of an unknown type";
  }
}

[[noreturn]] void refuse_dtype(const std::string& argument, const std::string& found, const char* wanted,
                               Kind kind, Access access) {
  const std::string dtype = (kind == Kind::kTorch ? "torch." : "numpy.") + std::string(wanted);
  throw py::type_error(argument + " has dtype " + found + " where " + wanted + " is needed: " +
                       (access == Access::kWrite ? "allocate it with dtype=" + dtype
                        : kind == Kind::kTorch   ? "pass " + argument + ".to(" + dtype + ")"
                                                 : "pass " + argument + ".astype(" + dtype + ")"));
}

[[noreturn]] void refuse_layout(const std::string& argument, Kind kind, Access access) {
  throw py::value_error(argument + " is not C-contiguous: " +
                        (access == Access::kWrite
                             ? "allocate it as one block, without strides or transposition"
                         : kind == Kind::kTorch ? "pass " + argument + ".contiguous()"
                                                : "pass numpy.ascontiguousarray(" + argument + ")"));
}

[[noreturn]] void refuse_device(const std::string& argument, Access access) {
  throw py::value_error(argument + " is not in the memory of the CPU: " +
                        (access == Access::kWrite ? "read into a CPU tensor and copy from there"
                                                  : "pass " + argument + ".cpu()"));
}

// Raises the error for a tensor that PyTorch could not describe. It replaces PyTorch's own error, which has a
// long backtrace.
[[noreturn]] void refuse_tensor(py::handle tensor, const std::string& argument, Access access) {
  const py::error_already_set error;
  if (!py::cast<bool>(tensor.attr("is_cpu"))) refuse_device(argument, access);
  const std::string layout = py::str(tensor.attr("layout"));
  throw py::value_error(argument + " has the layout " + layout + " where a dense tensor is needed");
}

// Whether a call of Python's C interface returned True. Throws if the call failed.
bool is_true(PyObject* result) {
  if (result == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(result).is(py::bool_(true));
}

void check_torch_flags(py::handle tensor, const std::string& argument) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  if (is_true(PyObject_GetAttr(tensor.ptr(), requires_grad))) {
    throw py::value_error(argument + " requires grad, which the parameter server cannot track: pass " +
                          argument + ".detach()");
  }
  if (is_true(PyObject_CallMethodNoArgs(tensor.ptr(), is_neg))) {
    throw py::value_error(argument + " is a lazily negated view: pass " + argument + ".resolve_neg()");
  }
}

bool is_contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t d = tensor.ndim; d-- > 0;) {
    if (tensor.shape[d] == 0) return true;
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

bool is_sequence(py::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr());
}

}  // namespace

Array Array::of_int64(py::handle object, const char* argument, Access access) {
  if (access == Access::kRead && is_sequence(object)) {
    py::array array = py::module_::import("numpy").attr("asarray")(object);
    if (py::len(object) == 0) array = py::array_t<std::int64_t>(0);
    if (!array.dtype().equal(py::dtype::of<std::int64_t>())) {
      throw py::type_error(std::string(argument) + " holds something other than integers of 64 bits");
    }
    return own(std::move(array), Type::kInt64, argument, access);
  }
  return of(object, Type::kInt64, argument, access);
}

Array Array::of_float32(py::handle object, const char* argument, Access access) {
  return of(object, Type::kFloat32, argument, access);
}

// A tensor can get another storage (`tensor.data = …`, `tensor.set_()`), and a storage can get other memory
// (`resize_`). Therefore the storage is kept, and its memory is pinned.
py::object Array::keeper() const {
  if (!is_torch(object_)) return owned_ ? owned_ : py::reinterpret_borrow<py::object>(object_);
  py::object storage = object_.attr("untyped_storage")();
  if (py::cast<bool>(storage.attr("resizable")())) static_cast<void>(object_.attr("numpy")());
  return storage;
}

Array Array::of(py::handle object, Type type, const char* argument, Access access) {
  if (py::isinstance<py::array>(object)) return of_numpy(object, type, argument, access);
  if (is_torch(object) && torch_exchange_api() != nullptr) return of_torch(object, type, argument, access);
  const auto numpy = py::module_::import("numpy");
  if (PyObject_CheckBuffer(object.ptr())) {
    const auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(object.ptr()));
    if (!view) throw py::error_already_set();
    return own(numpy.attr("asarray")(view), type, argument, access);
  }
  if (py::hasattr(object, "__dlpack__") && py::hasattr(object, "__dlpack_device__")) {
    const auto device = py::cast<py::tuple>(object.attr("__dlpack_device__")());
    const int device_type = py::cast<int>(device[0]);
    if (device_type != dlpack::kCpu && device_type != dlpack::kCudaHost) refuse_device(argument, access);
    if (is_torch(object)) check_torch_flags(object, argument);
    Array view = own(numpy.attr("from_dlpack")(object), type, argument, access);
    if (is_torch(object)) view.object_ = object;
    return view;
  }
  throw py::type_error(std::string(argument) + " is of type " + Py_TYPE(object.ptr())->tp_name +
                       " where a NumPy array or a CPU tensor of PyTorch is needed");
}

Array Array::of_numpy(py::handle array, Type type, const char* argument, Access access) {
  // NumPy keeps the descriptors of these two element types alive.
  static PyObject* const int64 = py::dtype::of<std::int64_t>().release().ptr();
  static PyObject* const float32 = py::dtype::of<float>().release().ptr();
  const auto& api = py::detail::npy_api::get();
  const auto* const proxy = py::detail::array_proxy(array.ptr());
  PyObject* const wanted = type == Type::kInt64 ? int64 : float32;
  if (proxy->descr != wanted && !api.PyArray_EquivTypes_(proxy->descr, wanted)) {
    refuse_dtype(argument, py::cast<std::string>(py::str(proxy->descr)),
                 type == Type::kInt64 ? "int64" : "float32", Kind::kNumpy, access);
  }
  constexpr int kLayout =
      py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_ | py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if ((proxy->flags & kLayout) != kLayout) refuse_layout(argument, Kind::kNumpy, access);
  if (access == Access::kWrite && (proxy->flags & py::detail::npy_api::NPY_ARRAY_WRITEABLE_) == 0) {
    throw py::value_error(std::string(argument) + " is read-only: pass an array that may be written to");
  }
  std::size_t size = 1;
  for (int d = 0; d < proxy->nd; ++d) size *= static_cast<std::size_t>(proxy->dimensions[d]);
  return Array(array, proxy->data, size);
}

Array Array::of_torch(py::handle tensor, Type type, const char* argument, Access access) {
  dlpack::Tensor view;
  if (torch_exchange_api()->tensor_from_object(tensor.ptr(), &view) != 0)
    refuse_tensor(tensor, argument, access);
  if (view.device.type != dlpack::kCpu && view.device.type != dlpack::kCudaHost)
    refuse_device(argument, access);
  const bool matches = view.dtype.lanes == 1 &&
                       (type == Type::kInt64 ? view.dtype.code == dlpack::kInt && view.dtype.bits == 64
                                             : view.dtype.code == dlpack::kFloat && view.dtype.bits == 32);
  if (!matches) {
    refuse_dtype(argument, name_of(view.dtype), type == Type::kInt64 ? "int64" : "float32", Kind::kTorch,
                 access);
  }
  if (!is_contiguous(view)) refuse_layout(argument, Kind::kTorch, access);
  if (type == Type::kFloat32) check_torch_flags(tensor, argument);
  std::size_t size = 1;
  for (std::int32_t d = 0; d < view.ndim; ++d) size *= static_cast<std::size_t>(view.shape[d]);
  return Array(tensor, static_cast<char*>(view.data) + view.byte_offset, size);
}

Array Array::own(py::object array, Type type, const char* argument, Access access) {
  Array view = of_numpy(array, type, argument, access);
  view.owned_ = std::move(array);
  return view;
}

py::object new_int64(py::handle like, const std::vector<py::ssize_t>& shape) {
  if (is_torch(like)) return like.attr("new_empty")(py::cast(shape));
  return py::array_t<std::int64_t>(shape);
}

py::object new_float32(py::handle like, const std::vector<py::ssize_t>& shape) {
  if (is_torch(like)) return like.attr("new_empty")(py::cast(shape));
  return py::array_t<float>(shape);
}

std::vector<py::ssize_t> shape_of(py::handle object, std::size_t size) {
  if (is_sequence(object) || !py::hasattr(object, "shape")) return {static_cast<py::ssize_t>(size)};
  return py::cast<std::vector<py::ssize_t>>(object.attr("shape"));
}

}  // namespace adaps::bindings
