// Builds a text from parts.
#pragma once

#include <sstream>
#include <string>

namespace adaps::simulation {

template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace adaps::simulation
