// The two streams of a connection between nodes of one host and user, in memory that both processes map.
// Bytes are copied once into this memory, and the receiver reads them there. The kernel is only used to wake
// a sleeping node. Each stream is a ring with one writer and one reader. The ring is mapped twice in
// succession, so that its contents are always contiguous.
//
// A node with a bug cannot harm the other node: its counters are checked, its bytes are parsed like bytes
// from a socket, and the memory's file cannot be truncated. A hostile process could change a frame while it
// is read. However, as a process of the same user, it could also write to the other process's memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/descriptor.h"

namespace adaps {

class SharedStreams {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;  // capacity of a stream; a power of two
  // maximum number of bytes that may stay unreleased until more arrive
  static constexpr std::size_t kLeft = kBytes / 2;

  // Creates new streams, for the side that offers them. Returns null if the system does not support such
  // memory.
  static std::unique_ptr<SharedStreams> create();
  // Sends one byte over a Unix-domain socket, which shows whether these streams are used for all later
  // frames. Returns false if the socket would block. Throws HandshakeRefused if it fails.
  static bool offer(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams);
  // Receives an offer().
  static bool take(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams);

  // Copies as many bytes of the pieces as the ring has space for. Returns their number.
  std::size_t write(std::span<const iovec> pieces);
  // Marks the end of the stream that this side writes.
  void end();

  // Returns the number of bytes that arrived since the last call. Throws ProtocolError if the writer's
  // counter is impossible.
  std::size_t look();
  // The bytes that look() found and that are not released. They are not overwritten before their release.
  std::span<const std::byte> unread() const;
  void release(std::size_t bytes);
  // Whether look() would return more than 0 bytes.
  bool readable() const;
  // Whether the other side has ended its stream.
  bool ended() const;

  // Requests that the other side sends a wake-up byte when it writes or ends, and with `wants_room` also when
  // it has freed space. Returns false if there is already a reason not to sleep. Available data is such a
  // reason only with `reads`.
  bool sleep(bool reads, bool wants_room);
  void stay_awake();
  // Whether this side must now send a wake-up byte, because the other side sleeps and waits for bytes, an end
  // or free space that this side has provided. Returns true once per sleep.
  bool must_ring();

 private:
  struct Side;
  struct Memory;
  struct Unmap {
    void operator()(Memory* shared) const;
  };

  static std::unique_ptr<SharedStreams> map(const Descriptor& memory, std::size_t side);
  SharedStreams(std::unique_ptr<Memory, Unmap> shared, std::size_t side);
  std::size_t room() const;
  std::size_t unreleased() const { return static_cast<std::size_t>(found_ - read_); }

  Descriptor offered_;  // until the other side has received it
  std::unique_ptr<Memory, Unmap> shared_;
  Side* mine_;
  Side* theirs_;
  // Positions in the streams, counted in bytes from the start: the end of written bytes, of released bytes
  // and of found bytes. Side contains copies of these positions for the other side.
  std::uint64_t written_ = 0, read_ = 0, found_ = 0;
  bool told_ = true;  // the other side was woken for all written bytes and the end
};

}  // namespace adaps
