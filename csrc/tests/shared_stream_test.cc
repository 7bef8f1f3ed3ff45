// Streams in shared memory: order, space, wake-up bytes, and invalid or foreign peers.
#include "transport/shared_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/types.h"
#include "transport/handshake.h"
#include "transport_cluster.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

constexpr std::size_t kBytes = SharedStreams::kBytes, kLeft = SharedStreams::kLeft;

std::array<Descriptor, 2> socket_pair() {
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Descriptor::create([&] { return fds[0]; }), Descriptor::create([&] { return fds[1]; })};
}

// Both ends of a connection.
struct Ends {
  Ends() {
    const auto sockets = socket_pair();
    std::unique_ptr<SharedStreams> offered = SharedStreams::create(), taken;
    REQUIRE(offered != nullptr);
    CHECK(!SharedStreams::take(sockets[1], taken));  // nothing was offered yet
    REQUIRE(SharedStreams::offer(sockets[0], offered));
    REQUIRE(SharedStreams::take(sockets[1], taken));
    REQUIRE(taken != nullptr);
    one = std::move(offered);
    other = std::move(taken);
  }
  std::unique_ptr<SharedStreams> one, other;
};

std::size_t write(SharedStreams& streams, std::span<const std::byte> bytes) {
  const std::array<iovec, 3> pieces = {
      {{const_cast<std::byte*>(bytes.data()), bytes.size() / 3},
       {nullptr, 0},
       {const_cast<std::byte*>(bytes.data()) + bytes.size() / 3, bytes.size() - bytes.size() / 3}}};
  return streams.write(pieces);
}

// Offers memory as another program might.
void offer(const Descriptor& socket, int fd, char what = 1) {
  iovec piece{&what, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  REQUIRE(::sendmsg(socket.get(), &message, 0) == 1);
}

// Writes invalid data to the file of the streams.
struct Broken {
  Broken() {
    std::unique_ptr<SharedStreams> theirs = SharedStreams::create();
    const auto sockets = socket_pair();
    REQUIRE(theirs && SharedStreams::offer(sockets[0], theirs));
    char what = 0;
    iovec piece{&what, 1};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    REQUIRE(::recvmsg(sockets[1].get(), &message, 0) == 1);
    std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    const auto again = socket_pair();
    offer(again[0], fd);
    REQUIRE(SharedStreams::take(again[1], streams));
  }
  ~Broken() { ::close(fd); }
  // The counters of the offering side are at the start of the file: bytes written and bytes released.
  void say_written(std::uint64_t bytes) const {
    CHECK(::pwrite(fd, &bytes, sizeof bytes, 0) == sizeof bytes);
  }
  void say_released(std::uint64_t bytes) const {
    CHECK(::pwrite(fd, &bytes, sizeof bytes, 64) == sizeof bytes);
  }
  int fd = -1;
  std::unique_ptr<SharedStreams> streams;
};

}  // namespace

TEST(bytes_arrive_in_order_and_in_one_piece_wherever_the_ring_ends) {
  Ends ends;
  std::size_t seed = 0;
  for (const std::size_t bytes :
       {kBytes - 8, std::size_t{1}, std::size_t{16}, kBytes, kBytes / 2 + 8, std::size_t{0}}) {
    const Frame sent = frame_of(bytes, static_cast<std::uint32_t>(++seed));
    CHECK_EQ(write(*ends.one, sent), bytes);
    CHECK_EQ(ends.other->readable(), bytes > 0);
    CHECK_EQ(ends.other->look(), bytes);
    CHECK(!ends.other->readable());
    CHECK(same(ends.other->unread(), sent));
    CHECK_EQ(write(*ends.other, sent), bytes);  // the two streams are independent
    CHECK_EQ(ends.one->look(), bytes);
    CHECK(same(ends.one->unread(), sent));
    ends.one->release(bytes);
    ends.other->release(bytes);
    CHECK(ends.other->unread().empty());
  }
}

TEST(a_writer_never_overwrites_unreleased_bytes) {
  Ends ends;
  const Frame sent = frame_of(kBytes + 100, 1);
  CHECK_EQ(write(*ends.one, sent), kBytes);
  CHECK_EQ(write(*ends.one, sent), 0u);
  CHECK_EQ(ends.other->look(), kBytes);
  CHECK_EQ(write(*ends.one, sent), 0u);  // the bytes were found but not released
  ends.other->release(40);
  CHECK_EQ(write(*ends.one, std::span(sent).last(100)), 40u);
  CHECK(same(ends.other->unread(), std::span(sent).subspan(40, kBytes - 40)));
  CHECK_EQ(ends.other->look(), 40u);
  CHECK(same(ends.other->unread().last(40), std::span(sent).subspan(kBytes, 40)));
}

TEST(the_end_of_a_stream_is_seen_after_its_bytes) {
  Ends ends;
  CHECK(!ends.other->ended());
  CHECK_EQ(write(*ends.one, frame_of(100, 1)), 100u);
  ends.one->end();
  CHECK(ends.other->ended());
  CHECK_EQ(ends.other->look(), 100u);
  CHECK(!ends.one->ended());
  ends.one.reset();  // the memory still exists
  CHECK(same(ends.other->unread(), frame_of(100, 1)));
}

TEST(a_sleeping_peer_is_rung_for_once) {
  Ends ends;
  CHECK_EQ(write(*ends.one, frame_of(8, 1)), 8u);
  CHECK(!ends.one->must_ring());           // the peer is awake
  CHECK(!ends.other->sleep(true, false));  // there are bytes to read
  CHECK_EQ(ends.other->look(), 8u);
  CHECK(ends.other->sleep(true, false));
  CHECK(!ends.one->must_ring());  // nothing was written since
  CHECK_EQ(write(*ends.one, frame_of(8, 1)), 8u);
  CHECK(ends.one->must_ring());
  CHECK_EQ(write(*ends.one, frame_of(8, 1)), 8u);
  CHECK(!ends.one->must_ring());  // a bell was sent already
  ends.other->stay_awake();
  CHECK_EQ(ends.other->look(), 16u);
  CHECK(ends.other->sleep(true, false));
  ends.other->stay_awake();
  ends.one->end();
  CHECK(!ends.one->must_ring());
  CHECK(!ends.other->sleep(true, false));  // the peer has ended its stream
  CHECK(ends.other->sleep(false, false));  // this side has read the end already
}

TEST(a_writer_that_waits_for_space_is_rung_for_when_enough_is_free) {
  Ends ends;
  const Frame sent = frame_of(kBytes, 1);
  CHECK_EQ(write(*ends.one, sent), kBytes);
  CHECK(ends.one->sleep(true, true));
  CHECK_EQ(ends.other->look(), kBytes);
  CHECK(!ends.other->must_ring());
  ends.other->release(kLeft - 8);
  CHECK(!ends.other->must_ring());
  ends.other->release(8);
  CHECK(ends.other->must_ring());
  CHECK(!ends.other->must_ring());
  CHECK(!ends.one->sleep(true, true));  // there is space
  CHECK(ends.one->sleep(true, false));  // this side does not wait for space
}

// Each side sleeps whenever it can, and only a wake-up byte wakes it. If a byte were lost, the test would
// block forever.
TEST(no_bell_is_lost) {
  Ends ends;
  std::array<std::atomic<std::uint32_t>, 2> bells{};
  constexpr std::size_t kTotal = std::size_t{64} << 20;
  const auto run = [&](SharedStreams& mine, int side) {
    const Frame content = frame_of(kBytes, 7);
    std::size_t written = 0, read = 0, pause = 0;
    while (written < kTotal || read < kTotal) {
      const std::size_t left = std::min(std::size_t{1} + pause++ * 7919 % 300'000, kTotal - written);
      if (left > 0) {
        const std::size_t at = written % kBytes;
        written += write(mine, std::span(content).subspan(at, std::min(left, kBytes - at)));
      }
      mine.look();
      const std::span<const std::byte> unread = mine.unread();
      for (std::size_t at = 0; at < unread.size(); at += 4099)
        REQUIRE(unread[at] == content[(read + at) % kBytes]);
      const std::size_t some = unread.size() > 5000 && pause % 3 > 0 ? unread.size() / 2 : unread.size();
      mine.release(some);
      read += some;
      if (mine.must_ring()) {
        bells[1 - side].fetch_add(1);
        bells[1 - side].notify_one();
      }
      if (written < kTotal && pause % 4 > 0) continue;
      const std::uint32_t heard = bells[side].load();
      if (read < kTotal && mine.unread().empty() && mine.sleep(true, false)) bells[side].wait(heard);
      mine.stay_awake();
    }
  };
  std::thread other([&] { run(*ends.other, 1); });
  run(*ends.one, 0);
  other.join();
}

TEST(impossible_counters_are_refused) {
  const Broken node;
  CHECK_EQ(Broken{}.streams->look(), 0u);
  for (const std::uint64_t bytes : {std::uint64_t{kBytes + 1}, ~std::uint64_t{0}}) {
    Broken broken;
    broken.say_written(bytes);
    CHECK(broken.streams->readable());
    CHECK_THROWS(broken.streams->look(), ProtocolError, std::to_string(bytes) + " bytes");
  }
  Broken back;
  back.say_written(100);
  CHECK_EQ(back.streams->look(), 100u);
  back.say_written(99);
  CHECK_THROWS(back.streams->look(), ProtocolError, "99 bytes");
  Broken ahead;  // claims to have read bytes that were never written, so no more bytes are written
  ahead.say_released(kBytes);
  CHECK_EQ(write(*ahead.streams, frame_of(100, 1)), 0u);
}

TEST(invalid_or_shrinkable_memory_is_refused) {
  std::unique_ptr<SharedStreams> taken;
  const auto refused = [&](int fd, const char* why, char what = 1) {
    const auto sockets = socket_pair();
    offer(sockets[0], fd, what);
    CHECK_THROWS(static_cast<void>(SharedStreams::take(sockets[1], taken)), HandshakeRefused, why);
    CHECK(taken == nullptr);
    if (fd >= 0) ::close(fd);
  };
  refused(-1, "no memory came");
  refused(::open("/dev/zero", O_RDWR | O_CLOEXEC), "no memory came");
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(unsealed, 2 * (kBytes + 65536)) == 0);
  refused(unsealed, "no memory came");
  const int small = ::memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(::ftruncate(small, 4096) == 0 && ::fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  refused(small, "no memory came");
  {
    auto sockets = socket_pair();
    sockets[0].reset();
    CHECK_THROWS(static_cast<void>(SharedStreams::take(sockets[1], taken)), HandshakeRefused, "closed");
  }
  const auto sockets = socket_pair();  // an offer of no memory is valid
  std::unique_ptr<SharedStreams> none;
  REQUIRE(SharedStreams::offer(sockets[0], none));
  REQUIRE(SharedStreams::take(sockets[1], taken));
  CHECK(taken == nullptr);
}

// Frames that are shorter and longer than the ring, and than the part of it that may stay unread.
TEST(frames_of_every_length_pass_between_two_nodes) {
  const Transports nodes = cluster(2, Medium::kMemory);
  const std::vector<std::size_t> lengths = {0,          1,           kLeft - 17, kLeft - 8, kLeft - 7,  kLeft,
                                            kBytes - 8, kBytes - 16, kBytes,     3,         3 * kBytes, 8};
  Events events[2];
  for (NodeId rank = 0; rank < 2; ++rank) {
    std::size_t next = 0;
    events[rank].handle = [&, rank, next](NodeId, std::span<const std::byte> payload) mutable {
      CHECK(same(payload, frame_of(lengths[next % lengths.size()], static_cast<std::uint32_t>(next) + rank)));
      CHECK_EQ(reinterpret_cast<std::uintptr_t>(payload.data()) % 8, 0u);
      ++next;
    };
    for (std::uint32_t i = 0; i < 3 * lengths.size(); ++i)
      nodes[1 - rank]->send(rank, frame_of(lengths[i % lengths.size()], i + rank));
  }
  REQUIRE(pump(nodes, events, [&] {
    return events[0].frames == 3 * lengths.size() && events[1].frames == 3 * lengths.size();
  }));
  CHECK_EQ(nodes[0]->counters().bytes_sent.get(), nodes[1]->counters().bytes_received.get());
  CHECK_EQ(events[0].sent, events[1].sent);
}

TEST(connecting_logs_which_nodes_share_memory) {
  for (const Medium medium : kMedia) {
    std::atomic<int> through_memory{0};
    set_log_sink([&](LogLevel, const std::string& message) {
      if (message.find("through shared memory") != std::string::npos) ++through_memory;
    });
    const Transports nodes = cluster(2, medium);
    set_log_sink({});
    CHECK_EQ(through_memory.load(), medium == Medium::kMemory ? 2 : 0);
  }
}
