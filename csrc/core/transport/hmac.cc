#include "transport/hmac.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace adaps {
namespace {

constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t load_big_endian(const std::byte* in) {
  return std::to_integer<std::uint32_t>(in[0]) << 24 | std::to_integer<std::uint32_t>(in[1]) << 16 |
         std::to_integer<std::uint32_t>(in[2]) << 8 | std::to_integer<std::uint32_t>(in[3]);
}

void store_big_endian(std::uint32_t value, std::byte* out) {
  for (int i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  std::array<std::uint32_t, 64> w;
  for (std::size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t t1 = h + s1 + choice + kRoundConstants[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + s0 + majority;
  }
  const std::array<std::uint32_t, 8> change{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += change[i];
}

void Sha256::update(std::span<const std::byte> data) {
  while (!data.empty()) {
    const std::size_t used = length_ % block_.size();
    const std::size_t taken = std::min(block_.size() - used, data.size());
    length_ += taken;
    if (taken == block_.size()) {
      compress(data.data());
    } else {
      std::copy_n(data.begin(), taken, block_.begin() + static_cast<std::ptrdiff_t>(used));
      if (used + taken == block_.size()) compress(block_.data());
    }
    data = data.subspan(taken);
  }
}

Digest Sha256::finish() {
  const std::uint64_t bits = 8 * length_;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const std::size_t zeros = (119 - length_ % 64) % 64;  // pads to 8 bytes before the end of a block
  store_big_endian(static_cast<std::uint32_t>(bits >> 32), padding.data() + 1 + zeros);
  store_big_endian(static_cast<std::uint32_t>(bits), padding.data() + 5 + zeros);
  update(std::span(padding).first(zeros + 9));
  Digest digest;
  for (std::size_t i = 0; i < 8; ++i) store_big_endian(state_[i], digest.data() + 4 * i);
  return digest;
}

Hmac::Hmac(std::span<const std::byte> key) {
  std::array<std::byte, 64> inner{}, outer{};
  if (key.size() > inner.size()) {
    Sha256 hash;
    hash.update(key);
    const Digest digest = hash.finish();
    std::copy(digest.begin(), digest.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  for (std::size_t i = 0; i < inner.size(); ++i) {
    outer[i] = inner[i] ^ std::byte{0x5c};
    inner[i] ^= std::byte{0x36};
  }
  inner_.update(inner);
  outer_.update(outer);
}

Digest Hmac::finish() {
  outer_.update(inner_.finish());
  return outer_.finish();
}

void fill_random(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
    if (got > 0) out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace adaps
