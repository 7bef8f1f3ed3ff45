#include "storage/disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/descriptor.h"

namespace adaps {

namespace {

// The page cache is not used if the file system allows this. With the page cache, each write of a row would
// first read the page around it, and a process in a control group would wait until the kernel has written
// pages of the file to free memory.
//
// Before the first write to a part of the file, the part is filled with zeros. Without the page cache, a file
// system executes writes to a part that has no blocks yet one after the other, and each takes milliseconds.
class FileDisk : public Disk {
 public:
  FileDisk(Descriptor file, std::string folder) : file_(std::move(file)), folder_(std::move(folder)) {}

  void read(std::uint64_t position, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t done = ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(position));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw std::runtime_error("cannot read " + name() + ": " + std::strerror(errno));
      if (done == 0) {  // behind the end of the file
        std::memset(bytes.data(), 0, bytes.size());
        return;
      }
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      position += static_cast<std::uint64_t>(done);
    }
  }

  void write(std::uint64_t position, std::span<const std::byte> bytes) override {
    if (bytes.empty()) return;
    fill_parts(position / kPart, (position + bytes.size() - 1) / kPart);
    write_all(position, bytes);
  }

  std::string name() const override { return "the file of rows in '" + folder_ + "'"; }

 private:
  static constexpr std::uint64_t kPart = std::uint64_t{1} << 20;

  void fill_parts(std::uint64_t first, std::uint64_t last) {
    const std::lock_guard guard(mutex_);
    if (is_filled_.size() <= last) is_filled_.resize(last + 1);
    for (std::uint64_t part = first; part <= last; ++part) {
      if (!is_filled_[part]) write_all(part * kPart, {zeros_.get(), kPart});
      is_filled_[part] = true;
    }
  }

  void write_all(std::uint64_t position, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(position));
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) throw std::runtime_error(write_error(done == 0 ? ENOSPC : errno));
      bytes = bytes.subspan(static_cast<std::size_t>(done));
      position += static_cast<std::uint64_t>(done);
      written_.fetch_add(static_cast<std::uint64_t>(done), std::memory_order_relaxed);
    }
  }

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static std::unique_ptr<std::byte, Free> zeros() {
    std::unique_ptr<std::byte, Free> memory(static_cast<std::byte*>(std::aligned_alloc(4096, kPart)));
    if (memory == nullptr) throw std::bad_alloc();
    std::memset(memory.get(), 0, kPart);
    return memory;
  }

  std::string write_error(int error) const {
    std::string text = "cannot write " + name() + ": " + std::strerror(error) + "; " +
                       std::to_string(written_.load(std::memory_order_relaxed)) + " bytes were written to it";
    struct statvfs space{};
    if (::fstatvfs(file_.get(), &space) == 0)
      text += ", and " + std::to_string(space.f_bavail * space.f_frsize) + " bytes are free";
    return text + ". Set `path` to a folder with more space, or increase `memory`.";
  }

  const Descriptor file_;
  const std::string folder_;
  std::atomic<std::uint64_t> written_{0};
  const std::unique_ptr<std::byte, Free> zeros_ = zeros();
  std::mutex mutex_;
  std::vector<bool> is_filled_;
};

// Not all file systems can create a file without a name. On those, the name is removed at once.
Descriptor create_and_remove(const std::string& folder) {
  std::string name = folder + "/adaps-rows-XXXXXX";
  Descriptor file = Descriptor::create([&] { return ::mkostemp(name.data(), O_CLOEXEC); });
  if (file) ::unlink(name.c_str());
  return file;
}

// Lets reads and writes go past the page cache, if a write of one sector succeeds then.
void avoid_page_cache([[maybe_unused]] const Descriptor& file) {
#ifdef O_DIRECT
  constexpr std::size_t kSector = 512;
  alignas(4096) constexpr char kZeros[kSector] = {};
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (::fcntl(file.get(), F_SETFL, flags | O_DIRECT) != 0) return;
  if (::pwrite(file.get(), kZeros, kSector, 0) != kSector) ::fcntl(file.get(), F_SETFL, flags);
#endif
}

}  // namespace

std::unique_ptr<Disk> create_file(const std::string& folder) {
  Descriptor file;
#ifdef O_TMPFILE
  file = Descriptor::create([&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); });
#endif
  if (!file) file = create_and_remove(folder);
  if (!file)
    throw std::invalid_argument("cannot create a file for rows in the folder '" + folder +
                                "': " + std::strerror(errno) +
                                ". Set `path` to an existing folder in which files can be created.");
  avoid_page_cache(file);
  return std::make_unique<FileDisk>(std::move(file), folder);
}

}  // namespace adaps
