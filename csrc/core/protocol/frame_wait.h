// How long what nobody waits for waits for others to the same node (docs/concepts/protocol.md, section 8).
#pragma once

#include "common/types.h"

namespace adaps {

// A frame costs as much as some fifty messages. The more nodes there are, the fewer messages a node has for
// each of them: from a few dozen nodes on, frames cost most of all that a channel does. Waiting costs
// freshness. Per node and time, n nodes cost n frames divided by the wait, and the sum of both is smallest
// when the wait grows with the square root of n: then so do the frames.
//
// `pace`: clocks of the fastest worker per microsecond, 0 if that is not known. What is said of the settings
// goes before all that.
Micros frame_wait(const Settings& settings, double pace);

}  // namespace adaps
