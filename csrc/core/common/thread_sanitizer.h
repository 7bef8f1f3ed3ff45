// Whether this build uses ThreadSanitizer. In such a build, deliberate races are hidden from it.
#pragma once

#define ADAPS_THREAD_SANITIZER 0
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef ADAPS_THREAD_SANITIZER
#define ADAPS_THREAD_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#undef ADAPS_THREAD_SANITIZER
#define ADAPS_THREAD_SANITIZER 1
#endif
