// Encodes floats in fewer bytes for the network. The size of an encoding is a multiple of four bytes, so it
// is counted in words of the size of a float and can be stored among floats in a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/types.h"

namespace adaps {

// Number of words that encode `floats` floats.
std::size_t encoded_words(Wire wire, std::size_t floats);

// Writes encoded_words(wire, in.size()) words. Returns false if the wire cannot represent all floats, because
// some are not finite or out of range, or because the largest magnitude is too small for int8. `out` is then
// undefined, and the floats must be sent unchanged.
//
// bfloat16 and float16 round to nearest, with ties to even, and keep the sign of zero. With int8, all floats
// share a scale, which is a power of two. Therefore small multiples of the scale are exact, and the decoded
// value and its difference to the original are computed without rounding.
bool encode(Wire wire, std::span<const float> in, float* out);

// Decodes out.size() floats.
void decode(Wire wire, std::span<const float> words, std::span<float> out);

// Rounds each float to one of the two nearest numbers of bfloat16. The nearer number has the larger
// probability, so that the expected value is the original float. The random bits are a function of the seed
// and of the float's index. Numbers of bfloat16, infinity and NaN are unchanged. Floats out of range become
// the largest number of bfloat16.
void round_at_random(std::span<float> floats, std::uint64_t seed);

// Equals encode(Wire::kBfloat16, …) for floats that bfloat16 represents exactly. Infinity and NaN are
// allowed.
void cut_to_bfloat16(std::span<const float> in, float* out);

// Maximum difference between a float and its decoded value, for floats up to `largest` in magnitude.
float rounding_bound(Wire wire, float largest);

}  // namespace adaps
