// Frames on a byte stream. A frame consists of the payload length (u32), the number of the frame on its link
// (u32), the payload, and zeros up to a multiple of 8 bytes. All numbers are little-endian. The length
// kKeepAlive marks a frame without a payload, which only shows that the sender is alive.
//
// On a sealed stream, a MAC of the header follows the header, and a MAC of the payload follows the payload's
// padding, unless the payload is empty. The header has a separate MAC, so that a receiver never waits for the
// payload of a forged length. Both MACs are HMAC-SHA256, truncated to 16 bytes. They use the key of the
// direction and include the full number of the frame, so a frame that is changed, omitted, repeated or moved
// has a wrong MAC.
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

// Buffers bytes of a stream until they are returned as frames. Payloads are returned in place, without a
// copy.
class ReceiveBuffer {
 public:
  explicit ReceiveBuffer(const std::optional<Digest>& key = std::nullopt) {
    if (key) seal_.emplace(*key);
  }

  struct Received {
    bool keep_alive;
    std::span<const std::byte> payload;  // valid until the next call of space(); aligned to kAlignment
  };

  // Memory for the next bytes of the stream; never empty.
  std::span<std::byte> space();
  void filled(std::size_t bytes) { end_ += bytes; }
  // Returns the next complete frame. Throws ProtocolError if the frame is too long, out of order, or has a
  // wrong MAC.
  std::optional<Received> next();
  // Returns the first frame of `unread`, without copying it into this buffer, and removes it from `unread`.
  std::optional<Received> next(std::span<const std::byte>& unread);
  bool empty() const { return begin_ == end_; }
  // Size of the incomplete frame that next() found, once its header is complete.
  std::size_t frame_bytes() const { return frame_bytes_; }
  // Number of its bytes that are not in this buffer.
  std::size_t missing() const { return frame_bytes_ - (end_ - begin_); }

 private:
  void require_tag(const std::byte* sent, const Tag& right) const;

  std::unique_ptr<std::byte[]> bytes_;  // aligned by operator new, at least to kAlignment
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // begin_ is a multiple of kAlignment
  std::size_t frame_bytes_ = 0;      // size of the incomplete frame at begin_, 0 if not known
  std::uint64_t number_ = 0;         // number of the next frame
  std::optional<Seal> seal_;
};

}  // namespace adaps::framing
