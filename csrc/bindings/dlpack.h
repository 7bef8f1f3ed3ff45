// The part of DLPack 1.x's C interface that describes a tensor without taking ownership. The layouts are
// those of its specification (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <cstdint>

namespace adaps::bindings::dlpack {

inline constexpr std::uint32_t kMajor = 1;
inline constexpr char kCapsuleName[] = "dlpack_exchange_api";

enum : std::int32_t { kCpu = 1, kCudaHost = 3 };
enum : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null if contiguous
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* previous;
  void* allocator;
  void* managed_tensor_from_object;
  void* object_from_managed_tensor;
  // Describes a tensor without a reference. The pointers are valid as long as the Python object exists.
  // Returns 0 for success; otherwise a Python error is set.
  int (*tensor_from_object)(void* object, Tensor* out);
  void* current_work_stream;
};

}  // namespace adaps::bindings::dlpack
