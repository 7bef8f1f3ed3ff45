// Time that messages without a waiting caller are kept to share a frame with later messages
// (docs/concepts/protocol.md, section 8).
#pragma once

#include "common/types.h"

namespace adaps {

// A frame costs as much as about fifty messages. With more nodes, a node has fewer messages for each of them.
// With several dozen nodes, frames are the largest cost of a channel. Waiting reduces the number of frames,
// but costs freshness. With n nodes, a node sends n frames per wait, so the sum of both costs is minimal if
// the wait is proportional to the square root of n.
//
// `pace` is the number of clocks of the fastest worker per microsecond, 0 if unknown. An explicit value in
// the settings overrides the computation.
Micros frame_wait(const Settings& settings, double pace);

}  // namespace adaps
