// Frames on a byte stream: u32 payload length, u32 number of the frame on its link, payload, zeros up to a
// multiple of 8 bytes. All little-endian. The length kKeepAlive stands for a frame without payload that only
// says "I am alive".
//
// On a sealed stream a MAC of the header follows the header, and one of the payload, if there is any, its
// padding. The header has its own, so that a forged length is not waited for. Both are HMAC-SHA256, cut to 16
// bytes, under the direction's key, with the full number of the frame: one that is changed, left out,
// repeated or moved has a wrong one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transport/hmac.h"
#include "transport/transport.h"

namespace adaps::framing {

inline constexpr std::size_t kAlignment = 8;
inline constexpr std::uint32_t kKeepAlive = 0xffffffff;

struct Header {
  std::uint32_t length;
  std::uint32_t sequence;
};
static_assert(sizeof(Header) == kAlignment);

inline std::size_t padding_of(std::size_t payload) {
  return (kAlignment - payload % kAlignment) % kAlignment;
}

using Tag = std::array<std::byte, 16>;
static_assert(sizeof(Tag) % kAlignment == 0);

inline std::size_t bytes_of(std::size_t payload, bool sealed) {
  const std::size_t tags = !sealed ? 0 : payload == 0 ? 1 : 2;
  return sizeof(Header) + payload + padding_of(payload) + tags * sizeof(Tag);
}

// Computes the MACs of one direction of a connection.
class Seal {
 public:
  explicit Seal(const Digest& key) : keyed_(key) {}
  Tag of_header(std::uint64_t number, const Header& header) const;
  Tag of_payload(std::uint64_t number, std::span<const std::byte> payload) const;

 private:
  Tag tag(std::byte part, std::uint64_t number, std::span<const std::byte> content) const;

  const Hmac keyed_;
};

// Bytes that were read from a stream and not yet returned as frames. Payloads are returned in place, without
// a copy.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(const std::optional<Digest>& key = std::nullopt) {
    if (key) seal_.emplace(*key);
  }

  struct Received {
    bool keep_alive;
    std::span<const std::byte> payload;  // until the next call of space(); aligned to kAlignment
  };

  // Where to read to; never empty.
  std::span<std::byte> space();
  void filled(std::size_t bytes) { end_ += bytes; }
  // The next complete frame. ProtocolError when it is too long, out of order, or its MAC is wrong.
  std::optional<Received> next();
  // The same of bytes that stay where they are, at the front of `unread`, of which the frame is taken.
  std::optional<Received> next(std::span<const std::byte>& unread);
  bool empty() const { return begin_ == end_; }
  // Bytes of the frame that next() found incomplete, once its header is there, and those not in this buffer.
  std::size_t frame_bytes() const { return frame_bytes_; }
  std::size_t missing() const { return frame_bytes_ - (end_ - begin_); }

 private:
  void require_tag(const std::byte* sent, const Tag& right) const;

  std::unique_ptr<std::byte[]> bytes_;  // aligned as operator new does, so to at least kAlignment
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // begin_ is a multiple of kAlignment
  std::size_t frame_bytes_ = 0;      // of the incomplete frame at begin_, 0 when not yet known
  std::uint64_t number_ = 0;         // of the next frame
  std::optional<Seal> seal_;
};

}  // namespace adaps::framing
