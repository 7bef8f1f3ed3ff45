#include "transport/endpoint.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "transport/hmac.h"

namespace adaps {
namespace {

// Size of a Unix-domain socket's send buffer. The default size is so small that the threads at both ends wake
// each other several times per frame. The kernel reduces larger values to its own limit.
constexpr int kUnixSendBytes = 1 << 20;
constexpr int kBacklog = 4096;  // the kernel reduces it to its own limit

std::string message_of(int error) { return std::generic_category().message(error); }

using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Found look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    throw std::runtime_error("host " + host + " cannot be found: " + ::gai_strerror(error));
  return Found(found, &::freeaddrinfo);
}

// Uses the abstract namespace, so that no file remains.
Endpoint unix_endpoint(const std::string& name) {
  Endpoint endpoint;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path)
    throw std::invalid_argument("\"" + name + "\" is too long for a Unix-domain socket");
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  std::memcpy(&endpoint.address, &address, sizeof address);
  endpoint.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  endpoint.text = "unix:" + name;
  return endpoint;
}

std::string random_name() {
  std::array<std::byte, 16> random;
  fill_random(random);
  std::string name = "adaps-";
  for (const std::byte b : random) {
    name += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    name += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return name;
}

Descriptor new_socket(int family) {
  return Descriptor::create([&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

void set_option(const Descriptor& socket, int level, int option, int value, const char* name) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof value) != 0)
    throw std::system_error(errno, std::generic_category(), name);
}

// Returns an empty descriptor and sets errno if the address cannot be bound.
Descriptor listen_on(const addrinfo& candidate) {
  Descriptor socket = new_socket(candidate.ai_family);
  if (!socket) return socket;
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (::bind(socket.get(), candidate.ai_addr, candidate.ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

Descriptor listen_on_unix(const std::string& name) {
  Descriptor socket = new_socket(AF_UNIX);
  if (!socket) throw std::system_error(errno, std::generic_category(), "Unix-domain socket");
  const Endpoint own = unix_endpoint(name);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&own.address), own.length) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot listen on a Unix-domain socket");
  return socket;
}

// Returns the process at the other end of a Unix-domain socket, as reported by the kernel.
std::optional<ucred> process_behind(const Descriptor& connected) {
  ucred process{};
  socklen_t length = sizeof process;
  if (::getsockopt(connected.get(), SOL_SOCKET, SO_PEERCRED, &process, &length) != 0) return std::nullopt;
  return process;
}

bool is_wildcard(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::string own_host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    throw std::system_error(errno, std::generic_category(), "gethostname");
  return name.data();
}

std::string text_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(address, length, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return std::string(host.data()) + ":" + port.data();
}

struct Address {
  std::string host;
  std::uint16_t port;
  std::string name;  // name of the Unix-domain socket, if there is one
};

// Parses an address without streams. If a Python extension has loaded a second copy of the C++ library, a
// stream can find the other copy's locale and crash.
Address parse(const std::string& address) {
  std::vector<std::string_view> fields;
  for (std::string_view rest = address; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (end > 0) fields.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::uint16_t port = 0;
  const std::string_view digits = fields.size() > 1 ? fields[1] : "";
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() || fields.size() > 3)
    throw std::invalid_argument("\"" + address +
                                "\" is not an address of a node; use what Listener::address() returned");
  return {std::string(fields[0]), port, std::string(fields.size() == 3 ? fields[2] : "")};
}

}  // namespace

Listener::Listener(std::unique_ptr<Sockets> sockets) : sockets_(std::move(sockets)) {}
Listener::~Listener() = default;
const std::string& Listener::address() const { return sockets_->address; }

std::unique_ptr<Listener> listen(const std::string& host, std::uint16_t port) {
  auto sockets = std::make_unique<Listener::Sockets>();
  const Found found = look_up(host, std::to_string(port), AI_PASSIVE);
  int error = 0;
  for (const addrinfo* candidate = found.get(); candidate && !sockets->tcp; candidate = candidate->ai_next) {
    sockets->tcp = listen_on(*candidate);
    error = errno;
  }
  if (!sockets->tcp)
    throw std::runtime_error("cannot listen on " + host + ":" + std::to_string(port) + ": " +
                             message_of(error));
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(sockets->tcp.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    throw std::system_error(errno, std::generic_category(), "getsockname");
  const in_port_t bound_port = bound.ss_family == AF_INET
                                   ? reinterpret_cast<const sockaddr_in&>(bound).sin_port
                                   : reinterpret_cast<const sockaddr_in6&>(bound).sin6_port;
  const std::string name = random_name();
  sockets->unix_domain = listen_on_unix(name);
  sockets->address =
      (is_wildcard(bound) ? own_host_name() : host) + " " + std::to_string(ntohs(bound_port)) + " " + name;
  return std::make_unique<Listener>(std::move(sockets));
}

std::vector<Endpoint> endpoints(const std::string& address) {
  const auto [host, port, name] = parse(address);
  std::vector<Endpoint> all;
  if (!name.empty()) all.push_back(unix_endpoint(name));
  const Found found = look_up(host, std::to_string(port), 0);
  for (const addrinfo* candidate = found.get(); candidate; candidate = candidate->ai_next) {
    Endpoint endpoint;
    std::memcpy(&endpoint.address, candidate->ai_addr, candidate->ai_addrlen);
    endpoint.length = candidate->ai_addrlen;
    endpoint.text = text_of(candidate->ai_addr, candidate->ai_addrlen);
    all.push_back(endpoint);
  }
  return all;
}

Descriptor start_connecting(const Endpoint& endpoint) {
  Descriptor socket = new_socket(endpoint.address.ss_family);
  if (!socket) return socket;
  errno = 0;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.length) == 0) {
    errno = 0;
  } else if (errno != EINPROGRESS) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

Descriptor accept_from(const Descriptor& listening) {
  return Descriptor::create(
      [&] { return ::accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
}

bool within_host(const Descriptor& connected) {
  int family = 0;
  socklen_t length = sizeof family;
  if (::getsockopt(connected.get(), SOL_SOCKET, SO_DOMAIN, &family, &length) != 0)
    throw std::system_error(errno, std::generic_category(), "SO_DOMAIN");
  return family == AF_UNIX;
}

bool of_same_user(const Descriptor& connected) {
  const std::optional<ucred> process = process_behind(connected);
  return process && process->uid == ::geteuid();
}

void configure(const Descriptor& connected, double peer_timeout_seconds) {
  if (within_host(connected)) {
    set_option(connected, SOL_SOCKET, SO_SNDBUF, kUnixSendBytes, "SO_SNDBUF");
    return;
  }
  // Keep-alive frames are more frequent than these probes. The probes and the user timeout also cover times
  // in which no thread polls.
  const int seconds = std::max(1, static_cast<int>(std::ceil(peer_timeout_seconds)));
  set_option(connected, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(connected, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(connected, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "TCP_KEEPIDLE");
  set_option(connected, IPPROTO_TCP, TCP_KEEPINTVL, seconds, "TCP_KEEPINTVL");
  set_option(connected, IPPROTO_TCP, TCP_KEEPCNT, 3, "TCP_KEEPCNT");
  set_option(connected, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(peer_timeout_seconds * 1e3),
             "TCP_USER_TIMEOUT");
}

std::string describe_peer(const Descriptor& connected) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(connected.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return "a peer that is gone";
  if (address.ss_family != AF_UNIX) return text_of(reinterpret_cast<const sockaddr*>(&address), length);
  const std::optional<ucred> process = process_behind(connected);
  if (!process) return "a process of this host";
  return "process " + std::to_string(process->pid) + " of this host";
}

}  // namespace adaps
