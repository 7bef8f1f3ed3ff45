// One connection of a channel to one peer: a socket, or two streams in shared memory with a socket as
// doorbell.
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

// Queues frames until the stream takes them. A shaped link, which imitates a slower network, holds every
// frame for some time first; frames are numbered only after that, so that keep-alives can overtake those
// held.
class PeerConnection {
 public:
  PeerConnection(Connection connection, Micros now);

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  void close();

  void queue(Frame frame);
  void queue_keep_alive();
  // Holds a frame of a shaped link until the corresponding release() queues it. At `taken` the imitated
  // network takes it, as backlog() counts.
  void hold(Frame frame, Micros taken) { held_.push_back({std::move(frame), taken}); }
  void release();
  bool writing() const { return !queued_.empty(); }
  // Bytes of a frame on the wire.
  std::size_t bytes_of(std::size_t payload) const { return framing::bytes_of(payload, seal_.has_value()); }
  bool drained() const { return queued_.empty() && held_.empty(); }
  // Frames that the network has not taken yet, without keep-alives.
  std::size_t backlog(Micros now) const;

  struct Transferred {
    std::size_t bytes = 0;
    std::size_t frames = 0;  // without keep-alives; sending only
    bool more = false;       // receiving only: there may be more to read now
    bool ended = false;      // receiving only: nothing will follow; orderly when the error is 0
    int error = 0;
  };
  // Writes what the socket takes, and moves the frames that it has taken whole to `sent`. An error ends the
  // stream in both directions: receive() reports it, behind what the peer had still sent.
  Transferred write(std::vector<Frame>& sent);
  // Reads once; neither bytes nor an end: there is nothing now.
  Transferred receive();
  // The next complete frame of what was received, as of framing::ReceiveBuffer; its payload is there until
  // the next call.
  std::optional<framing::ReceiveBuffer::Received> next();
  bool readable() const;
  // Tells the peer that nothing follows.
  void end_writing();

  // Of streams in shared memory only; see SharedStreams.
  bool shared() const { return shared_ != nullptr; }
  // Handles a readable socket of shared streams: the peer has rung the doorbell, or is gone and reads no
  // more.
  void on_doorbell();
  bool peer_gone() const { return gone_; }
  // False if there is something to do already.
  bool sleep() { return shared_->sleep(!peer_ended, writing()); }
  void stay_awake() { shared_->stay_awake(); }
  // Wakes the peer if it waits for what this side did.
  void ring_doorbell();

  Micros last_heard, last_sent;
  double free_at = 0.0;         // of a shaped link, in microseconds: when all its frames will be on the wire
  int write_error = 0;          // why the peer takes nothing more, if that is not just its EOF
  bool waits_to_write = false;  // writability is watched
  bool to_flush = false;        // is on the transport's list of links to flush
  bool ended_writing = false;
  bool peer_ended = false;  // an expected EOF was read; the link is closed once all is written

 private:
  struct Queued {
    framing::Header header;
    Frame payload;
    framing::Tag header_tag, payload_tag;  // of a sealed stream
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
  std::size_t keep_alives_ = 0;  // among them
  std::deque<Held> held_;
  std::size_t front_written_ = 0;  // bytes of queued_.front() that the socket took
  std::uint64_t number_ = 0;       // of the next frame
  std::optional<framing::Seal> seal_;
  framing::ReceiveBuffer incoming_;  // of a shared link, only of frames that its ring may be too short for
  std::unique_ptr<SharedStreams> shared_;  // if it goes through memory
  std::size_t handled_ = 0;                // bytes of the frame in shared memory that next() returned last
  bool gone_ = false;                      // the socket of a shared link has ended
  int gone_error_ = 0;                     // why, if that was not in order
};

}  // namespace adaps
