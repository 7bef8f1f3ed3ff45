// Floats in fewer bytes, as a row's wire has them. What is encoded is a multiple of four bytes long, so it
// is counted in words of the size of a float and lies among floats in a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"

namespace adaps {

// Words that so many floats take.
std::size_t encoded_words(Wire wire, std::size_t floats);

// Writes encoded_words(wire, in.size()) words. False if the wire cannot carry them all: what is not finite,
// what is beyond its range, and for int8 a largest number that is next to nothing. Then what `out` holds
// means nothing, and the floats have to go as they are.
//
// bfloat16 and float16 round to the nearest, of two to the even one, and keep the sign of a zero. Of int8,
// all floats share a scale, which is a power of two: what is a small multiple of one stays what it is,
// decoding rounds nothing, and neither does subtracting what was decoded.
bool encode(Wire wire, std::span<const float> in, float* out);

// The inverse, of out.size() floats.
void decode(Wire wire, std::span<const float> words, std::span<float> out);

// Rounds each number to one of the two of bfloat16 beside it, to the nearer one more often, so that in the
// mean it stays what it is; bits that are mixed from the seed and its place decide. What bfloat16 has stays,
// as do infinity and NaN; what is too large for it becomes its largest number.
void round_at_random(std::span<float> floats, std::uint64_t seed);

// encode(Wire::kBfloat16, …) of numbers that bfloat16 has, of which it carries all, infinity and NaN, too.
void cut_to_bfloat16(std::span<const float> in, float* out);

// The most that a number differs from what is decoded of it, among numbers up to `largest`.
float rounding_bound(Wire wire, float largest);

}  // namespace adaps
