// Reads and writes of bytes at positions of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace adaps {

// Several threads may use an object at once. Both functions throw std::runtime_error that names the file and
// the reason if the system reports an error. The simulator replaces this class by one with faults.
class Disk {
 public:
  Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  virtual ~Disk() = default;

  // Bytes that were never written are 0.
  virtual void read(std::uint64_t position, std::span<std::byte> bytes) = 0;
  virtual void write(std::uint64_t position, std::span<const std::byte> bytes) = 0;
  // Describes the file, for error messages.
  virtual std::string name() const = 0;
};

// Creates an empty file in a folder. The file has no name in the folder, so it disappears when it is closed
// or when the process ends in any way. Throws std::invalid_argument if the folder does not exist or is not
// writable.
std::unique_ptr<Disk> create_file(const std::string& folder);

}  // namespace adaps
