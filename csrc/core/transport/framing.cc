#include "transport/framing.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "transport/socket_transport.h"

namespace adaps::framing {
namespace {

constexpr std::size_t kUsualBytes = std::size_t{128} << 10;
constexpr std::size_t kKeptBytes = std::size_t{8} << 20;  // a larger buffer is freed when it is empty

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
    // The buffer contains at most one incomplete frame. A long frame is moved only once, because it then
    // begins at 0.
    std::memmove(bytes_.get(), bytes_.get() + begin_, unread);
    begin_ = 0;
  }
  end_ = unread;
  return {bytes_.get() + end_, capacity_ - end_};
}

std::optional<ReceiveBuffer::Received> ReceiveBuffer::next() {
  std::span<const std::byte> unread(bytes_.get() + begin_, end_ - begin_);
  const std::optional<Received> frame = next(unread);
  begin_ = end_ - unread.size();
  return frame;
}

std::optional<ReceiveBuffer::Received> ReceiveBuffer::next(std::span<const std::byte>& unread) {
  const std::byte* const at = unread.data();
  const std::size_t head = sizeof(Header) + (seal_ ? sizeof(Tag) : 0);
  if (unread.size() < head) return std::nullopt;
  Header header;
  std::memcpy(&header, at, sizeof header);
  if (seal_ && frame_bytes_ == 0) require_tag(at + sizeof header, seal_->of_header(number_, header));
  const bool keep_alive = header.length == kKeepAlive;
  const std::size_t payload = keep_alive ? 0 : header.length;
  if (payload > kMaxFrameBytes)
    throw ProtocolError("it announced a frame of " + std::to_string(payload) + " bytes; at most " +
                        std::to_string(kMaxFrameBytes) + " are allowed");
  if (header.sequence != static_cast<std::uint32_t>(number_))
    throw ProtocolError("it sent frame " + std::to_string(header.sequence) + " where frame " +
                        std::to_string(static_cast<std::uint32_t>(number_)) + " was due");
  frame_bytes_ = bytes_of(payload, seal_.has_value());
  if (unread.size() < frame_bytes_) return std::nullopt;
  const std::span<const std::byte> content(at + head, payload);
  if (seal_ && payload > 0)
    require_tag(content.data() + payload + padding_of(payload), seal_->of_payload(number_, content));
  unread = unread.subspan(frame_bytes_);
  frame_bytes_ = 0;
  ++number_;
  return Received{keep_alive, content};
}

void ReceiveBuffer::require_tag(const std::byte* sent, const Tag& right) const {
  Tag tag;
  std::memcpy(tag.data(), sent, tag.size());
  if (!equal_in_constant_time(tag, right))
    throw ProtocolError("frame " + std::to_string(number_) +
                        " has a wrong MAC: frames were changed, repeated or removed on the network");
}

Tag Seal::of_header(std::uint64_t number, const Header& header) const {
  return tag(std::byte{0}, number, std::as_bytes(std::span(&header, 1)));
}

Tag Seal::of_payload(std::uint64_t number, std::span<const std::byte> payload) const {
  return tag(std::byte{1}, number, payload);
}

Tag Seal::tag(std::byte part, std::uint64_t number, std::span<const std::byte> content) const {
  Hmac hmac = keyed_;  // copied, so that the key is hashed only once
  hmac.update(std::span(&part, 1));
  hmac.update(std::as_bytes(std::span(&number, 1)));
  hmac.update(content);
  const Digest digest = hmac.finish();
  Tag tag;
  std::copy_n(digest.begin(), tag.size(), tag.begin());
  return tag;
}

}  // namespace adaps::framing
