#include "transport/link.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace adaps {
namespace {

constexpr std::size_t kPieces =
    384;  // per sendmsg: header, payload and padding of 128 frames, or of 76 with MACs
constexpr std::byte kZeros[wire::kAlignment] = {};

// The pieces of a stream that follow its first `skipped` bytes.
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

Link::Link(Connection connection, Micros now)
    : incoming(connection.keys ? std::optional(connection.keys->receiving) : std::nullopt),
      last_heard(now),
      last_sent(now),
      socket_(std::move(connection.socket)) {
  if (connection.keys) seal_.emplace(connection.keys->sending);
}

void Link::close() {
  drop();
  socket_.reset();
}

void Link::drop() {
  queued_.clear();
  keep_alives_ = 0;
  held_.clear();
}

void Link::queue(Frame frame) {
  const auto length = static_cast<std::uint32_t>(frame.size());
  queue(length, std::move(frame));
}

void Link::queue_keep_alive() {
  queue(wire::kKeepAlive, {});
  ++keep_alives_;
}

std::size_t Link::backlog(Micros now) const {
  const auto waiting = std::upper_bound(held_.begin(), held_.end(), now,
                                        [](Micros time, const Held& held) { return time < held.taken; });
  return queued_.size() - keep_alives_ + static_cast<std::size_t>(held_.end() - waiting);
}

void Link::queue(std::uint32_t length, Frame payload) {
  const std::uint64_t number = number_++;
  queued_.push_back({{length, static_cast<std::uint32_t>(number)}, std::move(payload), {}, {}});
  Queued& frame = queued_.back();
  if (!seal_) return;
  frame.header_tag = seal_->of_header(number, frame.header);
  if (!frame.payload.empty()) frame.payload_tag = seal_->of_payload(number, frame.payload);
}

void Link::release() {
  if (held_.empty()) return;  // the link was closed or failed since the frame was held
  queue(std::move(held_.front().frame));
  held_.pop_front();
}

Link::Transferred Link::write(std::vector<Frame>& sent) {
  Transferred done;
  while (!queued_.empty()) {
    Gather gather(front_written_);
    for (const Queued& frame : queued_) {
      if (gather.full()) break;
      gather.add(&frame.header, sizeof frame.header);
      if (seal_) gather.add(&frame.header_tag, sizeof frame.header_tag);
      gather.add(frame.payload.data(), frame.payload.size());
      gather.add(kZeros, wire::padding_of(frame.payload.size()));
      if (seal_ && !frame.payload.empty()) gather.add(&frame.payload_tag, sizeof frame.payload_tag);
    }
    const ssize_t written = gather.send(fd());
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
  return done;
}

void Link::forget(std::size_t written, Transferred& done, std::vector<Frame>& sent) {
  done.bytes += written;
  front_written_ += written;
  while (!queued_.empty() && front_written_ >= bytes_of(queued_.front().payload.size())) {
    front_written_ -= bytes_of(queued_.front().payload.size());
    const bool keep_alive = queued_.front().header.length == wire::kKeepAlive;
    if (keep_alive) {
      --keep_alives_;
    } else {
      ++done.frames;
      sent.push_back(std::move(queued_.front().payload));
    }
    queued_.pop_front();
  }
}

Link::Transferred Link::receive() {
  const std::span<std::byte> space = incoming.space();
  ssize_t got;
  do {
    got = ::recv(fd(), space.data(), space.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    incoming.filled(static_cast<std::size_t>(got));
    return {.bytes = static_cast<std::size_t>(got), .more = static_cast<std::size_t>(got) == space.size()};
  }
  if (got < 0 && would_block(errno)) return {};
  return {.ended = true, .error = got < 0 ? errno : 0};
}

bool Link::readable() const {
  std::byte one;
  return ::recv(fd(), &one, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void Link::end_writing() {
  ended_writing = true;
  ::shutdown(fd(), SHUT_WR);
}

}  // namespace adaps
