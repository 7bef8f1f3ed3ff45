// One connection of a channel to one peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <system_error>

#include "adaps/transport.h"
#include "adaps/types.h"
#include "descriptor.h"
#include "make_transport.h"
#include "wire.h"

namespace adaps {

// Frames wait as they are until the socket takes them. A shaped link holds each back until its time; only
// then it gets its number, so that keep-alives may pass those that are held.
class Link {
 public:
  Link(Connection connection, Micros now);

  bool open() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  void close();

  void queue(Frame frame);
  void queue_keep_alive();
  // Keeps a frame, which an imitated wire takes at a given time, until the corresponding release() queues it.
  void hold(Frame frame, Micros taken) { held_.push_back({std::move(frame), taken}); }
  void release();
  bool writing() const { return !queued_.empty(); }
  // On the wire.
  std::size_t bytes_of(std::size_t payload) const { return wire::bytes_of(payload, seal_.has_value()); }
  bool drained() const { return queued_.empty() && held_.empty(); }
  // Frames that the wire has not taken, without keep-alives.
  std::size_t backlog(Micros now) const;

  struct Transferred {
    std::size_t bytes = 0;
    std::size_t frames = 0;  // without keep-alives; sending only
    bool more = false;       // receiving only: there may be more to read now
    bool ended = false;      // receiving only: nothing will follow; orderly when the error is 0
    int error = 0;
  };
  // Writes what the socket takes. An error ends the stream in both directions: receive() reports it, behind
  // what the peer had still sent.
  Transferred write();
  // Reads once into `incoming`; neither bytes nor an end: there is nothing now.
  Transferred receive();
  bool readable() const;
  // Tells the peer that nothing follows.
  void end_writing();

  wire::ReceiveBuffer incoming;
  Micros last_heard, last_sent;
  double free_at = 0.0;         // of a shaped link, in microseconds: when all its frames will be on the wire
  int write_error = 0;          // why the peer takes nothing more, if that is not just its EOF
  bool waits_to_write = false;  // writability is watched
  bool to_flush = false;        // is on the transport's list
  bool ended_writing = false;
  bool peer_ended = false;  // EOF, as expected; closed when drained

 private:
  struct Queued {
    wire::Header header;
    Frame payload;
    wire::Tag header_tag, payload_tag;  // of a sealed stream
  };

  struct Held {
    Frame frame;
    Micros taken;
  };

  void queue(std::uint32_t length, Frame payload);
  void drop();
  void forget(std::size_t written, Transferred& done);

  Descriptor socket_;
  std::deque<Queued> queued_;
  std::size_t keep_alives_ = 0;  // among them
  std::deque<Held> held_;
  std::size_t front_written_ = 0;  // bytes of queued_.front() that the socket took
  std::uint64_t number_ = 0;       // of the next frame
  std::optional<wire::Seal> seal_;
};

}  // namespace adaps
