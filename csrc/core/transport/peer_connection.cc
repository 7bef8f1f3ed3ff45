#include "transport/peer_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace adaps {
namespace {

constexpr std::size_t kPieces =
    384;  // per sendmsg: header, payload and padding of 128 frames, or of 76 with MACs
constexpr std::byte kZeros[framing::kAlignment] = {};

// The pieces of a stream after its first `skipped` bytes.
class Gather {
 public:
  explicit Gather(std::size_t skipped) : skipped_(skipped) {}

  bool full() const { return count_ + 5 > kPieces; }
  void add(const void* data, std::size_t bytes) {
    const std::size_t skip = std::min(skipped_, bytes);
    skipped_ -= skip;
    if (skip == bytes) return;
    pieces_[count_++] = {const_cast<std::byte*>(static_cast<const std::byte*>(data)) + skip, bytes - skip};
    bytes_ += bytes - skip;
  }
  std::size_t bytes() const { return bytes_; }
  std::size_t copy_to(SharedStreams& streams) { return streams.write(std::span(pieces_).first(count_)); }
  ssize_t send(int fd) {
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = count_;
    return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

 private:
  std::array<iovec, kPieces> pieces_;
  std::size_t count_ = 0, bytes_ = 0, skipped_;
};

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

PeerConnection::PeerConnection(Connection connection, Micros now)
    : last_heard(now),
      last_sent(now),
      socket_(std::move(connection.socket)),
      incoming_(connection.keys ? std::optional(connection.keys->receiving) : std::nullopt),
      shared_(std::move(connection.shared)) {
  if (connection.keys) seal_.emplace(connection.keys->sending);
}

void PeerConnection::close() {
  drop();
  shared_.reset();
  socket_.reset();
}

void PeerConnection::drop() {
  queued_.clear();
  keep_alives_ = 0;
  held_.clear();
}

void PeerConnection::queue(Frame frame) {
  const auto length = static_cast<std::uint32_t>(frame.size());
  queue(length, std::move(frame));
}

void PeerConnection::queue_keep_alive() {
  queue(framing::kKeepAlive, {});
  ++keep_alives_;
}

std::size_t PeerConnection::backlog(Micros now) const {
  const auto waiting = std::upper_bound(held_.begin(), held_.end(), now,
                                        [](Micros time, const Held& held) { return time < held.taken; });
  return queued_.size() - keep_alives_ + static_cast<std::size_t>(held_.end() - waiting);
}

void PeerConnection::queue(std::uint32_t length, Frame payload) {
  const std::uint64_t number = number_++;
  queued_.push_back({{length, static_cast<std::uint32_t>(number)}, std::move(payload), {}, {}});
  Queued& frame = queued_.back();
  if (!seal_) return;
  frame.header_tag = seal_->of_header(number, frame.header);
  if (!frame.payload.empty()) frame.payload_tag = seal_->of_payload(number, frame.payload);
}

void PeerConnection::release() {
  if (held_.empty()) return;  // the link was closed or failed after the frame was held
  queue(std::move(held_.front().frame));
  held_.pop_front();
}

PeerConnection::Transferred PeerConnection::write(std::vector<Frame>& sent) {
  Transferred done;
  while (!queued_.empty()) {
    Gather gather(front_written_);
    for (const Queued& frame : queued_) {
      if (gather.full()) break;
      gather.add(&frame.header, sizeof frame.header);
      if (seal_) gather.add(&frame.header_tag, sizeof frame.header_tag);
      gather.add(frame.payload.data(), frame.payload.size());
      gather.add(kZeros, framing::padding_of(frame.payload.size()));
      if (seal_ && !frame.payload.empty()) gather.add(&frame.payload_tag, sizeof frame.payload_tag);
    }
    const ssize_t written = shared_ ? static_cast<ssize_t>(gather.copy_to(*shared_)) : gather.send(fd());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (would_block(errno)) break;
      write_error = errno == EPIPE ? 0 : errno;
      ::shutdown(fd(), SHUT_RDWR);
      drop();
      break;
    }
    forget(static_cast<std::size_t>(written), done, sent);
    if (static_cast<std::size_t>(written) < gather.bytes()) break;
  }
  if (shared_) ring_doorbell();
  return done;
}

void PeerConnection::forget(std::size_t written, Transferred& done, std::vector<Frame>& sent) {
  done.bytes += written;
  front_written_ += written;
  while (!queued_.empty() && front_written_ >= bytes_of(queued_.front().payload.size())) {
    front_written_ -= bytes_of(queued_.front().payload.size());
    const bool keep_alive = queued_.front().header.length == framing::kKeepAlive;
    if (keep_alive) {
      --keep_alives_;
    } else {
      ++done.frames;
      sent.push_back(std::move(queued_.front().payload));
    }
    queued_.pop_front();
  }
}

PeerConnection::Transferred PeerConnection::receive() {
  if (shared_) return receive_shared();
  const std::span<std::byte> space = incoming_.space();
  ssize_t got;
  do {
    got = ::recv(fd(), space.data(), space.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    incoming_.filled(static_cast<std::size_t>(got));
    return {.bytes = static_cast<std::size_t>(got), .more = static_cast<std::size_t>(got) == space.size()};
  }
  if (got < 0 && would_block(errno)) return {};
  return {.ended = true, .error = got < 0 ? errno : 0};
}

PeerConnection::Transferred PeerConnection::receive_shared() {
  // The peer wrote all its bytes before it marked its end, or before it died. Therefore the end is read
  // first.
  const bool ended = gone_ || shared_->ended();
  if (const std::size_t got = shared_->look(); got > 0) return {.bytes = got, .more = true};
  return {.ended = ended, .error = gone_error_};
}

std::optional<framing::ReceiveBuffer::Received> PeerConnection::next() {
  if (!shared_) return incoming_.next();
  shared_->release(std::exchange(handled_, 0));
  std::optional<framing::ReceiveBuffer::Received> frame;
  if (incoming_.empty()) {
    std::span<const std::byte> unread = shared_->unread();
    const std::size_t before = unread.size();
    frame = incoming_.next(unread);
    handled_ = before - unread.size();
  }
  if (!frame && incoming_.frame_bytes() > SharedStreams::kLeft) {
    copy_long_frame();
    frame = incoming_.next();
  }
  if (!frame) ring_doorbell();
  return frame;
}

// Copies the available part of a frame that may not fit into the ring, and no byte after the frame.
void PeerConnection::copy_long_frame() {
  const std::span<std::byte> space = incoming_.space();
  const std::span<const std::byte> unread = shared_->unread();
  const std::size_t bytes = std::min(unread.size(), incoming_.missing());
  std::memcpy(space.data(), unread.data(), bytes);
  incoming_.filled(bytes);
  shared_->release(bytes);
}

void PeerConnection::on_doorbell() {
  std::array<std::byte, 64> bells;
  ssize_t got;
  do {
    got = ::recv(fd(), bells.data(), bells.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0 || (got < 0 && would_block(errno))) return;
  gone_ = true;
  gone_error_ = got < 0 ? errno : 0;
}

// Wakes the peer. If the socket is full, no byte has to be sent, because the peer has not read earlier ones
// yet. The same is true if the peer is gone, because this node detects the end of the connection.
void PeerConnection::ring_doorbell() {
  constexpr std::byte kBell{};
  if (shared_->must_ring()) static_cast<void>(::send(fd(), &kBell, 1, MSG_NOSIGNAL | MSG_DONTWAIT));
}

bool PeerConnection::readable() const {
  if (shared_ && shared_->readable()) return true;
  std::byte one;
  return ::recv(fd(), &one, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void PeerConnection::end_writing() {
  ended_writing = true;
  if (!shared_) {
    ::shutdown(fd(), SHUT_WR);
    return;
  }
  shared_->end();  // the socket stays open, to wake the peer after reads
  ring_doorbell();
}

}  // namespace adaps
