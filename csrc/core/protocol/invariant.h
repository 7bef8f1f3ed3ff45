// Checks of what the protocol says can never happen.
#pragma once

#include <string>

#include "common/types.h"

namespace adaps {

#ifdef ADAPS_SIMULATION

// Set by the simulator: told what was violated. Processing goes on as it would without the check if this
// returns.
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

// `text` names the rule of docs/concepts/protocol.md in a few words, as in "setup only when pending".
#define ADAPS_INVARIANT(condition, text) \
  do {                                   \
    if (!(condition)) [[unlikely]] {     \
      ::adaps::invariant_violated(text); \
    }                                    \
  } while (false)
