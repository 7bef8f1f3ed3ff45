// Numbers other than floats that follow a message. Payloads consist of words with the size of a float.
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

// Appends the next `count` numbers of a frame.
template <typename Number>
void append_numbers(Reader& reader, std::size_t count, std::vector<Number>& numbers) {
  const std::span<const float> words = reader.floats(count * sizeof(Number) / sizeof(float));
  const std::size_t before = numbers.size();
  numbers.resize(before + count);
  if (count > 0) std::memcpy(numbers.data() + before, words.data(), words.size_bytes());
}

}  // namespace adaps
