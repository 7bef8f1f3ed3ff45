// SHA-256 (FIPS 180-4) and HMAC (FIPS 198-1), for the handshake and the optional MACs of frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace adaps {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> data);
  Digest finish();  // the object must not be used afterwards

 private:
  void compress(const std::byte* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t length_ = 0;  // bytes
};

class Hmac {
 public:
  explicit Hmac(std::span<const std::byte> key);
  void update(std::span<const std::byte> data) { inner_.update(data); }
  Digest finish();

 private:
  Sha256 inner_, outer_;
};

// Compares in a time that does not depend on the position of the first difference.
template <std::size_t kBytes>
bool equal_in_constant_time(const std::array<std::byte, kBytes>& a, const std::array<std::byte, kBytes>& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < kBytes; ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

// Fills `out` from the kernel's random generator.
void fill_random(std::span<std::byte> out);

}  // namespace adaps
