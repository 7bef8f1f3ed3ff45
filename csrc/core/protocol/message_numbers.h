// Numbers that follow a message about ids. Payloads of messages consist of words with the size of a float.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "protocol/message.h"

namespace adaps {

template <typename Number>
std::span<const float> as_words(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const float*>(numbers.data()), numbers.size() * sizeof(Number) / sizeof(float)};
}

template <typename Number>
void read_numbers(Reader& reader, std::size_t count, std::vector<Number>& numbers) {
  const std::span<const float> words = reader.floats(count * sizeof(Number) / sizeof(float));
  numbers.resize(count);
  if (count > 0) std::memcpy(numbers.data(), words.data(), words.size_bytes());
}

}  // namespace adaps
