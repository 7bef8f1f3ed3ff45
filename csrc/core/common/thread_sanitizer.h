// Whether this build uses ThreadSanitizer, from which deliberate races are hidden.
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
