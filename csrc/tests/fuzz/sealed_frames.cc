// Fuzzes the parser of frames with a MAC. The bytes come from an attacker on the network, who may have seen
// frames but does not have the key. The first byte determines the size of the pieces.
#include <algorithm>
#include <cstring>

#include "target.h"
#include "transport/framing.h"

namespace adaps::fuzz {

namespace {

constexpr Digest kKey = {std::byte{1}, std::byte{2}, std::byte{3}};
constexpr std::uint32_t kLengths[] = {16, framing::kKeepAlive, 0, 3, 100, framing::kKeepAlive, 1};

Bytes payload_of(std::size_t number) {
  const std::uint32_t length = kLengths[number];
  return Bytes(length == framing::kKeepAlive ? 0 : length, static_cast<std::byte>(number));
}

void append(Bytes& stream, std::span<const std::byte> bytes) {
  stream.insert(stream.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::vector<Bytes> examples() {
  const framing::Seal seal(kKey);
  std::vector<Bytes> all;
  for (const std::uint8_t piece : {0, 9, 200}) {
    Bytes stream{std::byte{piece}};
    for (std::uint32_t number = 0; number < std::size(kLengths); ++number) {
      const Bytes payload = payload_of(number);
      const framing::Header header{kLengths[number], number};
      append(stream, std::as_bytes(std::span(&header, 1)));
      append(stream, seal.of_header(number, header));
      append(stream, payload);
      append(stream, Bytes(framing::padding_of(payload.size())));
      if (!payload.empty()) append(stream, seal.of_payload(number, payload));
    }
    all.push_back(std::move(stream));
  }
  return all;
}

void run(std::span<const std::byte> input) {
  Source source(input);
  const std::size_t piece = std::size_t{1} + source.byte();
  framing::ReceiveBuffer buffer(kKey);
  std::size_t number = 0;
  try {
    while (!source.empty()) {
      const std::span<std::byte> space = buffer.space();
      if (space.empty()) broken("there is always space to read to");
      const auto bytes = source.take(std::min(piece, space.size()));
      std::memcpy(space.data(), bytes.data(), bytes.size());
      buffer.filled(bytes.size());
      while (const auto frame = buffer.next()) {
        if (number == std::size(kLengths)) broken("nobody else can make a frame");
        if (frame->keep_alive != (kLengths[number] == framing::kKeepAlive))
          broken("keep-alives stay what they are");
        if (!std::ranges::equal(frame->payload, payload_of(number)))
          broken("frames arrive as they were sent");
        ++number;
      }
    }
  } catch (const ProtocolError&) {
    return;  // the connection would be closed
  }
}

}  // namespace adaps::fuzz
