// Checks of the protocol's invariants.
#pragma once

#include <string>

#include "common/types.h"

namespace adaps {

#ifdef ADAPS_SIMULATION

// The simulator sets this function, which receives the violated invariant. If it returns, processing
// continues as without the check.
using InvariantHandler = void (*)(const char* text);
inline InvariantHandler invariant_handler = nullptr;

inline void invariant_violated(const char* text) {
  if (invariant_handler == nullptr) throw ProtocolError(text);
  invariant_handler(text);
}

#else

[[noreturn]] inline void invariant_violated(const char* text) {
  throw ProtocolError("protocol violated: " + std::string(text));
}

#endif

}  // namespace adaps

// `text` names the rule of docs/concepts/protocol.md in a few words, for example "setup only when pending".
#define ADAPS_INVARIANT(condition, text) \
  do {                                   \
    if (!(condition)) [[unlikely]] {     \
      ::adaps::invariant_violated(text); \
    }                                    \
  } while (false)
