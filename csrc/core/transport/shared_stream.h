// The two streams of a connection between nodes of one host and user, in memory that both have mapped: bytes
// are copied once, into it, and read where they lie; the kernel is asked only to wake a node that sleeps.
// Each stream is a ring with one writer and one reader, mapped twice in a row so that whatever is in it is in
// one piece.
//
// What a broken node writes does no harm: its counters are checked, its bytes are parsed as those of a socket
// are, and the memory's file cannot be made shorter. A hostile one could change a frame while it is read; as
// a process of the same user it could write to this one's memory as well.
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
  static constexpr std::size_t kBytes = std::size_t{1} << 20;  // that a stream holds; a power of two
  static constexpr std::size_t kLeft = kBytes / 2;  // that may be left unreleased until more arrives

  // New streams, of the side that offers them; nothing where the system has no such memory.
  static std::unique_ptr<SharedStreams> create();
  // Says on a Unix-domain socket that these streams carry the rest, or that none do. False when the socket
  // would block; HandshakeRefused when it fails.
  static bool offer(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams);
  // The other end of offer().
  static bool take(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams);

  // Copies what there is room for, of all pieces in turn; returns how many bytes.
  std::size_t write(std::span<const iovec> pieces);
  // Nothing will be written after this.
  void end();

  // Looks for what has arrived since this was called last; returns how many bytes. ProtocolError for a
  // counter that cannot be.
  std::size_t look();
  // What was found and not yet released, which is until then not written over.
  std::span<const std::byte> unread() const;
  void release(std::size_t bytes);
  // Whether look() would find something.
  bool readable() const;
  // The other side has ended its stream.
  bool ended() const;

  // From now on the other side has to ring when it writes or ends, and when it has made room if that is
  // wanted; false if there is a reason not to sleep already, where one that `reads` has more of them.
  bool sleep(bool reads, bool wants_room);
  void stay_awake();
  // Whether the other side sleeps and has to hear of what was written, ended or released; says so once.
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

  Descriptor offered_;  // until the other side has it
  std::unique_ptr<Memory, Unmap> shared_;
  Side* mine_;
  Side* theirs_;
  // Bytes from the start: written, released and found. What the other side sees are copies.
  std::uint64_t written_ = 0, read_ = 0, found_ = 0;
  bool told_ = true;  // what was written and ended
};

}  // namespace adaps
