// The step from connections to a transport.
#pragma once

#include <memory>
#include <vector>

#include "adaps/socket_transport.h"
#include "descriptor.h"

namespace adaps {

// One channel's transport over authenticated sockets, sockets[i] to node i; the own one is empty.
std::unique_ptr<SocketTransport> make_transport(std::vector<Descriptor> sockets,
                                                const SocketOptions& options);

}  // namespace adaps
