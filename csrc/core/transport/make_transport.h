// The step from connections to a transport.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/descriptor.h"
#include "transport/handshake.h"
#include "transport/shared_stream.h"
#include "transport/socket_transport.h"

namespace adaps {

// An authenticated socket.
struct Connection {
  Descriptor socket;
  std::optional<FrameKeys> keys;          // if frames carry a MAC
  std::unique_ptr<SharedStreams> shared;  // if frames go through memory; the socket then only wakes, and ends
};

// One channel's transport, connections[i] to node i; the own one is empty.
std::unique_ptr<SocketTransport> make_transport(std::vector<Connection> connections,
                                                const SocketOptions& options);

}  // namespace adaps
