// One connection of a channel to one peer. It is a socket, or two streams in shared memory; in the second
// case a socket only wakes a sleeping peer, like a doorbell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "common/types.h"
#include "transport/descriptor.h"
#include "transport/framing.h"
#include "transport/make_transport.h"
#include "transport/shared_stream.h"
#include "transport/transport.h"

namespace adaps {

// Queues frames until the stream accepts them. A shaped link imitates a slower network: it first keeps every
// frame for some time. Frames get their numbers after this time, so keep-alives can overtake frames that are
// kept.
class PeerConnection {
 public:
  PeerConnection(Connection connection, Micros now);

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  void close();

  void queue(Frame frame);
  void queue_keep_alive();
  // Holds a frame of a shaped link until the corresponding release() queues it. From `taken` on, backlog()
  // counts the frame as sent.
  void hold(Frame frame, Micros taken) { held_.push_back({std::move(frame), taken}); }
  void release();
  bool writing() const { return !queued_.empty(); }
  // Number of bytes of a frame on the wire.
  std::size_t bytes_of(std::size_t payload) const { return framing::bytes_of(payload, seal_.has_value()); }
  bool drained() const { return queued_.empty() && held_.empty(); }
  // Number of frames that the network has not accepted yet, without keep-alives.
  std::size_t backlog(Micros now) const;

  struct Transferred {
    std::size_t bytes = 0;
    std::size_t frames = 0;  // without keep-alives; sending only
    bool more = false;       // receiving only: more bytes may be available now
    bool ended = false;      // receiving only: no more bytes follow; orderly if error is 0
    int error = 0;
  };
  // Writes as much as the socket accepts, and moves completely written frames to `sent`. An error ends the
  // stream in both directions. receive() reports the error after all bytes that the peer had already sent.
  Transferred write(std::vector<Frame>& sent);
  // Reads once. If the result has neither bytes nor an end, no byte is available now.
  Transferred receive();
  // Returns the next complete frame that was received, like framing::ReceiveBuffer::next. Its payload is
  // valid until the next call.
  std::optional<framing::ReceiveBuffer::Received> next();
  bool readable() const;
  // Ends the stream to the peer.
  void end_writing();

  // Whether the connection uses shared memory. The functions that follow are only for such connections; see
  // SharedStreams.
  bool shared() const { return shared_ != nullptr; }
  // Handles a readable socket of shared streams: the peer has rung the doorbell, or has died and reads no
  // more.
  void on_doorbell();
  bool peer_gone() const { return gone_; }
  // Announces to the peer that this side will sleep. Returns false if there is already work to do.
  bool sleep() { return shared_->sleep(!peer_ended, writing()); }
  void stay_awake() { shared_->stay_awake(); }
  // Wakes the peer if it waits for an action of this side.
  void ring_doorbell();

  Micros last_heard, last_sent;
  double free_at = 0.0;         // shaped links: time in microseconds when the link will have sent all frames
  int write_error = 0;          // reason why the peer accepts no more bytes, unless it closed its stream
  bool waits_to_write = false;  // the event loop watches whether the socket is writable
  bool to_flush = false;        // the link is in the transport's list of links to flush
  bool ended_writing = false;
  bool peer_ended = false;  // an expected EOF was read; the link is closed when all frames are written

 private:
  struct Queued {
    framing::Header header;
    Frame payload;
    framing::Tag header_tag, payload_tag;  // sealed streams only
  };

  struct Held {
    Frame frame;
    Micros taken;
  };

  void queue(std::uint32_t length, Frame payload);
  Transferred receive_shared();
  void copy_long_frame();
  void drop();
  void forget(std::size_t written, Transferred& done, std::vector<Frame>& sent);

  Descriptor socket_;
  std::deque<Queued> queued_;
  std::size_t keep_alives_ = 0;  // number of keep-alives in queued_
  std::deque<Held> held_;
  std::size_t front_written_ = 0;  // number of bytes of queued_.front() that were written
  std::uint64_t number_ = 0;       // number of the next frame
  std::optional<framing::Seal> seal_;
  framing::ReceiveBuffer incoming_;        // for a shared link, only frames that may not fit into its ring
  std::unique_ptr<SharedStreams> shared_;  // if the link uses shared memory
  std::size_t handled_ = 0;                // size of the frame in shared memory that next() returned last
  bool gone_ = false;                      // the socket of a shared link has ended
  int gone_error_ = 0;                     // errno of that end; 0 if it was orderly
};

}  // namespace adaps
