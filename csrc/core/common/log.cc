#include "common/log.h"

#include <cstdio>
#include <mutex>
#include <utility>

namespace adaps {
namespace {

struct Log {
  std::mutex mutex;
  LogSink sink;
};

Log& the_log() {
  static Log& log = *new Log;  // never destroyed: threads may log while the process ends
  return log;
}

}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(the_log().mutex);
  the_log().sink = std::move(sink);
}

void log_message(LogLevel level, const std::string& message) {
  const std::lock_guard lock(the_log().mutex);
  if (the_log().sink) {
    the_log().sink(level, message);
  } else if (level >= LogLevel::kWarning) {
    std::fputs(("adaps: " + message + "\n").c_str(), stderr);
  }
}

}  // namespace adaps
