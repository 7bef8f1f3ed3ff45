// Computes how long messages without a waiting caller are kept, so that later messages are sent in the same
// frame (docs/concepts/protocol.md, section 8).
#pragma once

#include "common/types.h"

namespace adaps {

// A frame costs as much as about fifty messages. The more nodes there are, the fewer messages a node has for
// each of them. With several dozen nodes, frames are the largest cost of a channel. Waiting reduces the
// number of frames, but copies become older. With n nodes, a node sends n frames per wait, so the sum of both
// costs is minimal if the wait is proportional to the square root of n.
//
// `pace` is the number of clocks of the fastest worker per microsecond, or 0 if it is unknown. If the
// settings contain a time, this time is used instead.
Micros frame_wait(const Settings& settings, double pace);

}  // namespace adaps
