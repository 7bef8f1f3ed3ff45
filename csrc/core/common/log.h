// Log messages for events that no exception can report, because no call of the user is running.
#pragma once

#include <functional>
#include <string>

namespace adaps {

enum class LogLevel { kDebug, kWarning };
using LogSink = std::function<void(LogLevel, const std::string&)>;

// Sends all later messages to `sink`, one at a time but from any thread. An empty sink restores the default,
// which writes warnings to standard error. The sink must not call set_log_sink() or log_message().
void set_log_sink(LogSink sink);
void log_message(LogLevel level, const std::string& message);

}  // namespace adaps
