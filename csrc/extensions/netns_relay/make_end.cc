#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "links.h"

namespace relay {
namespace {

// Number of packets that can wait for the relay, enough for a burst from all sockets.
constexpr int kQueueLength = 4096;

void check(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
}

ifreq request(const char* device) {
  ifreq made{};
  std::strncpy(made.ifr_name, device, IFNAMSIZ - 1);
  return made;
}

ifreq request(const char* device, const std::string& address) {
  ifreq made = request(device);
  auto& place = reinterpret_cast<sockaddr_in&>(made.ifr_addr);
  place.sin_family = AF_INET;
  inet_pton(AF_INET, address.c_str(), &place.sin_addr);
  return made;
}

void start(int socket, const char* device) {
  ifreq flags = request(device);
  check(ioctl(socket, SIOCGIFFLAGS, &flags), "SIOCGIFFLAGS");
  flags.ifr_flags |= IFF_UP | IFF_RUNNING;
  check(ioctl(socket, SIOCSIFFLAGS, &flags), "SIOCSIFFLAGS");
}

}  // namespace

End make_end(std::size_t node) {
  check(unshare(CLONE_NEWNET), "a network namespace");
  End end;
  end.space = adaps::create_or_throw("/proc/thread-self/ns/net",
                                     [] { return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC); });
  end.device = adaps::create_or_throw("/dev/net/tun",
                                      [] { return open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC); });
  const int device = end.device.get();

  // With this header, packets are transferred as the sockets made them: up to 64 KiB, without checksums.
  ifreq made = request(kDevice);
  made.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  check(ioctl(device, TUNSETIFF, &made), "a TUN device");
  check(ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4), "TUNSETOFFLOAD");

  const auto control =
      adaps::create_or_throw("socket", [] { return socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
  start(control.get(), "lo");
  ifreq queue = request(kDevice);
  queue.ifr_qlen = kQueueLength;
  check(ioctl(control.get(), SIOCSIFTXQLEN, &queue), "SIOCSIFTXQLEN");
  ifreq address = request(kDevice, kSubnet + std::to_string(node + 1));
  check(ioctl(control.get(), SIOCSIFADDR, &address), "SIOCSIFADDR");
  ifreq mask = request(kDevice, "255.255.255.0");
  check(ioctl(control.get(), SIOCSIFNETMASK, &mask), "SIOCSIFNETMASK");
  start(control.get(), kDevice);
  return end;
}

}  // namespace relay
