// Addresses of nodes, and their sockets.
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

// A socket address of a node.
struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::string text;  // for messages

  bool tcp() const { return address.ss_family != AF_UNIX; }
};

// Returns the endpoints of the node with this Listener::address(), the best one first. The first endpoint is
// always the Unix-domain socket, even if it cannot be reached. Its name is random and only visible inside one
// network namespace, so a successful connection proves that both nodes are on one host, and a refused
// connection takes only microseconds. Looks up host names, which may block. Throws std::runtime_error for a
// host name that is not found, and std::invalid_argument for a malformed address.
std::vector<Endpoint> endpoints(const std::string& address);

// Creates a non-blocking socket and starts its connect(). errno is 0 if the socket is connected already, and
// EINPROGRESS if it becomes writable when connected. If the descriptor is empty, errno is the reason.
Descriptor start_connecting(const Endpoint& endpoint);

// Accepts the next connection, as a non-blocking socket. If there is none, the result is empty and errno is
// set.
Descriptor accept_from(const Descriptor& listening);

// Sets the options of a connected socket.
void configure(const Descriptor& connected, double peer_timeout_seconds);

// Whether the socket is a Unix-domain socket. If it is, both ends are certainly on this host.
bool within_host(const Descriptor& connected);

// Whether the process at the other end of a Unix-domain socket belongs to this process's user.
bool of_same_user(const Descriptor& connected);

// Describes the other end: "127.0.0.1:4711" or "process 4711 of this host".
std::string describe_peer(const Descriptor& connected);

}  // namespace adaps
