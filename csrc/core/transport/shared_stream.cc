#include "transport/shared_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "common/types.h"
#include "transport/handshake.h"

namespace adaps {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = std::size_t{64} << 10;  // the largest page size of any kernel
// Minimum free space for which a waiting writer is woken. This much space is free as soon as the reader
// leaves at most kLeft bytes in the ring.
constexpr std::size_t kWorthwhile = SharedStreams::kBytes - SharedStreams::kLeft;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");
static_assert((SharedStreams::kBytes & (SharedStreams::kBytes - 1)) == 0);

constexpr std::size_t kFileBytesOfSide = kPage + SharedStreams::kBytes;
constexpr std::size_t kFileBytes = 2 * kFileBytesOfSide;

}  // namespace

// Memory that one side writes. Fields that are not written together are on separate cache lines. The file
// contains the ring once, and the mapping contains it twice.
struct SharedStreams::Side {
  alignas(kLine) std::atomic<std::uint64_t> written;
  std::atomic<std::uint32_t> ended;
  alignas(kLine) std::atomic<std::uint64_t> read;
  // The other side clears these flags when it sends a wake-up byte.
  alignas(kLine) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> wants_room;
  std::array<std::byte, kPage - 2 * kLine - sizeof(std::uint64_t)> unused;
  std::array<std::byte, kBytes> ring, again;
};

struct SharedStreams::Memory {
  std::array<Side, 2> sides;
};

std::unique_ptr<SharedStreams> SharedStreams::create() {
  Descriptor memory =
      Descriptor::create([] { return ::memfd_create("adaps", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!memory || ::ftruncate(memory.get(), kFileBytes) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    return nullptr;
  std::unique_ptr<SharedStreams> made = map(memory, 0);
  if (made) made->offered_ = std::move(memory);
  return made;
}

// Sends one byte, together with the descriptor of the memory if there is any.
bool SharedStreams::offer(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams) {
  std::byte what{streams ? std::uint8_t{1} : std::uint8_t{0}};
  iovec piece{&what, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (streams) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = streams->offered_.get();
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) {
    if (streams) streams->offered_.reset();
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) return false;
  throw HandshakeRefused(std::generic_category().message(errno));
}

bool SharedStreams::take(const Descriptor& socket, std::unique_ptr<SharedStreams>& streams) {
  std::byte what{};
  iovec piece{&what, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  int error = 0;
  const Descriptor memory = Descriptor::create([&] {
    got = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    error = errno;
    const cmsghdr* const header = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
    int fd = -1;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof fd))
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
  });
  if (got < 0 && (error == EAGAIN || error == EINTR)) return false;
  if (got != 1)
    throw HandshakeRefused(got == 0 ? "it closed the connection" : std::generic_category().message(error));
  if (what == std::byte{0}) return true;
  struct stat status{};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(memory.get(), &status) != 0 ||
      status.st_size != static_cast<off_t>(kFileBytes))
    throw HandshakeRefused("no memory came with its offer of some; this process may be out of descriptors");
  streams = map(memory, 1);
  if (!streams)
    throw HandshakeRefused("its memory cannot be mapped: " + std::generic_category().message(errno));
  return true;
}

std::unique_ptr<SharedStreams> SharedStreams::map(const Descriptor& memory, std::size_t side) {
  static_assert(offsetof(Side, ring) == kPage && offsetof(Side, again) == kFileBytesOfSide);
  void* const reserved = ::mmap(nullptr, sizeof(Memory), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  std::unique_ptr<Memory, Unmap> shared(static_cast<Memory*>(reserved));
  const auto place = [&](void* at, std::size_t bytes, std::size_t offset) {
    return ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.get(),
                  static_cast<off_t>(offset)) == at;
  };
  for (std::size_t i = 0; i < 2; ++i) {
    Side& one = shared->sides[i];
    if (!place(&one, kFileBytesOfSide, i * kFileBytesOfSide) ||
        !place(&one.again, kBytes, i * kFileBytesOfSide + kPage))
      return nullptr;
  }
  return std::unique_ptr<SharedStreams>(new SharedStreams(std::move(shared), side));
}

// New memory is zero, which is the initial state of both sides.
SharedStreams::SharedStreams(std::unique_ptr<Memory, Unmap> shared, std::size_t side)
    : shared_(std::move(shared)), mine_(&shared_->sides[side]), theirs_(&shared_->sides[1 - side]) {}

void SharedStreams::Unmap::operator()(Memory* shared) const { ::munmap(shared, sizeof(Memory)); }

std::size_t SharedStreams::room() const {
  const std::uint64_t unread = written_ - theirs_->read.load(std::memory_order_seq_cst);
  return unread > kBytes ? 0 : kBytes - static_cast<std::size_t>(unread);
}

std::size_t SharedStreams::write(std::span<const iovec> pieces) {
  std::size_t left = room();
  const std::uint64_t before = written_;
  for (const iovec& piece : pieces) {
    const std::size_t bytes = std::min(piece.iov_len, left);
    if (bytes == 0) continue;
    // This may continue into the second mapping of the ring.
    std::memcpy(mine_->ring.data() + written_ % kBytes, piece.iov_base, bytes);
    written_ += bytes;
    left -= bytes;
  }
  if (written_ == before) return 0;
  mine_->written.store(written_, std::memory_order_seq_cst);
  told_ = false;
  return static_cast<std::size_t>(written_ - before);
}

void SharedStreams::end() {
  mine_->ended.store(1, std::memory_order_seq_cst);
  told_ = false;
}

std::size_t SharedStreams::look() {
  const std::uint64_t written = theirs_->written.load(std::memory_order_seq_cst);
  if (written < found_ || written - read_ > kBytes)
    throw ProtocolError("its counter shows " + std::to_string(written) + " bytes written to shared memory; " +
                        std::to_string(read_) + " were read, and at most " + std::to_string(kBytes) +
                        " more can be unread");
  return static_cast<std::size_t>(written - std::exchange(found_, written));
}

std::span<const std::byte> SharedStreams::unread() const {
  return {theirs_->ring.data() + read_ % kBytes, unreleased()};
}

void SharedStreams::release(std::size_t bytes) {
  if (bytes == 0) return;
  read_ += bytes;
  mine_->read.store(read_, std::memory_order_seq_cst);
}

bool SharedStreams::readable() const { return theirs_->written.load(std::memory_order_seq_cst) != found_; }

bool SharedStreams::ended() const { return theirs_->ended.load(std::memory_order_seq_cst) != 0; }

// Each side first stores its own state and then loads the other side's, all sequentially consistent.
// Therefore either the writer sees that the reader is asleep, or the reader sees the written bytes before it
// sleeps.
bool SharedStreams::sleep(bool reads, bool wants_room) {
  mine_->wants_room.store(wants_room ? 1 : 0, std::memory_order_seq_cst);
  mine_->asleep.store(1, std::memory_order_seq_cst);
  return !(reads && (readable() || ended())) && !(wants_room && room() >= kWorthwhile);
}

void SharedStreams::stay_awake() {
  mine_->asleep.store(0, std::memory_order_relaxed);
  mine_->wants_room.store(0, std::memory_order_relaxed);
}

bool SharedStreams::must_ring() {
  bool ring = false;
  if (!std::exchange(told_, true) && theirs_->asleep.load(std::memory_order_seq_cst) != 0)
    ring = theirs_->asleep.exchange(0, std::memory_order_seq_cst) != 0;
  if (unreleased() <= kLeft && theirs_->wants_room.load(std::memory_order_seq_cst) != 0)
    ring |= theirs_->wants_room.exchange(0, std::memory_order_seq_cst) != 0;
  return ring;
}

}  // namespace adaps
