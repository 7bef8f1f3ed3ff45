// An assertion of an invariant of this code. The simulation and the sanitizer builds check it; other builds
// skip it at no cost.
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
