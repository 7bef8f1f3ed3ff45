#include "wire.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "adaps/socket_transport.h"

namespace adaps::wire {
namespace {

constexpr std::size_t kUsualBytes = std::size_t{128} << 10;
constexpr std::size_t kKeptBytes = std::size_t{8} << 20;  // a larger buffer goes when its frames are handled

static_assert(kMaxFrameBytes < kKeepAlive);

}  // namespace

std::span<std::byte> ReceiveBuffer::space() {
  const std::size_t unread = end_ - begin_;
  if (unread == 0 && capacity_ > kKeptBytes) capacity_ = 0;
  const std::size_t needed = std::max(frame_bytes_, kUsualBytes);
  if (needed > capacity_) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(needed);
    if (unread > 0) std::memcpy(larger.get(), bytes_.get() + begin_, unread);
    bytes_ = std::move(larger);
    capacity_ = needed;
    begin_ = 0;
  } else if (begin_ > 0) {
    // At most one incomplete frame; a long one is moved once, because it then begins at 0.
    std::memmove(bytes_.get(), bytes_.get() + begin_, unread);
    begin_ = 0;
  }
  end_ = unread;
  return {bytes_.get() + end_, capacity_ - end_};
}

std::optional<ReceiveBuffer::Received> ReceiveBuffer::next() {
  const std::size_t unread = end_ - begin_;
  if (unread < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes_.get() + begin_, sizeof header);
  const bool keep_alive = header.length == kKeepAlive;
  const std::size_t payload = keep_alive ? 0 : header.length;
  if (payload > kMaxFrameBytes)
    throw ProtocolError("it announced a frame of " + std::to_string(payload) + " bytes; at most " +
                        std::to_string(kMaxFrameBytes) + " are allowed");
  if (header.sequence != sequence_)
    throw ProtocolError("it sent frame " + std::to_string(header.sequence) + " where frame " +
                        std::to_string(sequence_) + " was due");
  frame_bytes_ = bytes_of(payload);
  if (unread < frame_bytes_) return std::nullopt;
  const std::byte* start = bytes_.get() + begin_ + sizeof header;
  begin_ += frame_bytes_;
  frame_bytes_ = 0;
  ++sequence_;
  return Received{keep_alive, {start, payload}};
}

}  // namespace adaps::wire
