// Addresses of nodes and the sockets behind them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "transport/descriptor.h"
#include "transport/socket_transport.h"

namespace adaps {

struct Listener::Sockets {
  Descriptor tcp;
  Descriptor unix_domain;
  std::string address;
};

// An address at which a node can be reached.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::string text;  // for messages

  bool tcp() const { return address.ss_family != AF_UNIX; }
};

// The endpoints of the node with this Listener::address(), best first. The Unix-domain one comes first,
// untested: its name is random, and names are only visible inside one network namespace, so a connection to
// it proves that both nodes are on one host, and a refusal costs microseconds. Host names are looked up
// (which may block). Throws std::runtime_error for a host name that is not found, std::invalid_argument for a
// malformed address.
std::vector<Endpoint> endpoints(const std::string& address);

// A non-blocking socket whose connect() has been started; errno is 0 when it is connected already,
// EINPROGRESS when it will be writable, and the reason when the descriptor is empty.
Descriptor start_connecting(const Endpoint& endpoint);

// The next connection of a listening socket, non-blocking; empty with errno when there is none.
Descriptor accept_from(const Descriptor& listening);

// What a connected socket needs for our traffic.
void configure(const Descriptor& connected, double peer_timeout_seconds);

// Whether both ends are on this host for sure: a Unix-domain socket.
bool within_host(const Descriptor& connected);

// Whether a process of this one's user is at the other end of a Unix-domain socket.
bool of_same_user(const Descriptor& connected);

// Who is at the other end: "127.0.0.1:4711" or "process 4711 of this host".
std::string describe_peer(const Descriptor& connected);

}  // namespace adaps
