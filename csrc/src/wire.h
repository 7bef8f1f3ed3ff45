// Frames on a byte stream: u32 payload length, u32 number of the frame on its link, payload, zeros up to a
// multiple of 8 bytes. All little-endian. The length kKeepAlive stands for a frame without payload that only
// says "I am alive".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "adaps/transport.h"

namespace adaps::wire {

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
inline std::size_t bytes_of(std::size_t payload) { return sizeof(Header) + payload + padding_of(payload); }

// What has been read from a stream and not yet been taken as frames. Frames stay where they were read: a
// payload is handed out in place, and a long one is read straight to where it will be handed out.
class ReceiveBuffer {
 public:
  struct Received {
    bool keep_alive;
    std::span<const std::byte> payload;  // until the next call of space(); aligned to kAlignment
  };

  // Where to read to; never empty.
  std::span<std::byte> space();
  void filled(std::size_t bytes) { end_ += bytes; }
  // The next complete frame. ProtocolError when it is too long or out of order.
  std::optional<Received> next();

 private:
  std::unique_ptr<std::byte[]> bytes_;  // aligned as operator new does, so to at least kAlignment
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // begin_ is a multiple of kAlignment
  std::size_t frame_bytes_ = 0;      // of the incomplete frame at begin_, 0 when not yet known
  std::uint32_t sequence_ = 0;       // of the next frame
};

}  // namespace adaps::wire
