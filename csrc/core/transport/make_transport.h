// Creates a transport from connections.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/descriptor.h"
#include "transport/handshake.h"
#include "transport/shared_stream.h"
#include "transport/socket_transport.h"

namespace adaps {

// An authenticated connection.
struct Connection {
  Descriptor socket;
  std::optional<FrameKeys> keys;  // if frames have a MAC
  // set if frames use shared memory; then the socket only wakes the peer, and its end shows the end of the
  // peer
  std::unique_ptr<SharedStreams> shared;
};

// Creates one channel's transport. connections[i] leads to node i, and the connection of this node is empty.
std::unique_ptr<SocketTransport> make_transport(std::vector<Connection> connections,
                                                const SocketOptions& options);

}  // namespace adaps
