// A check of what can only be wrong by a mistake in this code. The simulation and the builds with sanitizers
// make it; elsewhere it costs nothing.
#pragma once

#ifdef ADAPS_CHECKED

#include <cstdio>
#include <cstdlib>

#define ADAPS_ASSERT(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#else

#define ADAPS_ASSERT(condition) static_cast<void>(0)

#endif
