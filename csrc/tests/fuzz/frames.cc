// Fuzzes the frame parser with a stream in pieces. The first byte determines the size of the pieces.
#include <algorithm>
#include <cstring>

#include "target.h"
#include "transport/framing.h"
#include "transport/socket_transport.h"

namespace adaps::fuzz {

namespace {

void append_frame(Bytes& stream, std::uint32_t length, std::uint32_t sequence) {
  const framing::Header header{length, sequence};
  const auto head = std::as_bytes(std::span(&header, 1));
  stream.insert(stream.end(), head.begin(), head.end());
  if (length == framing::kKeepAlive) return;
  stream.insert(stream.end(), length, static_cast<std::byte>(sequence));
  stream.resize(stream.size() + framing::padding_of(length));
}

}  // namespace

std::vector<Bytes> examples() {
  std::vector<Bytes> all;
  for (const std::uint8_t piece : {0, 1, 9, 200}) {
    Bytes stream{std::byte{piece}};
    std::uint32_t sequence = 0;
    for (const std::uint32_t length : {16U, framing::kKeepAlive, 0U, 3U, 100U, framing::kKeepAlive, 1U})
      append_frame(stream, length, sequence++);
    all.push_back(std::move(stream));
  }
  return all;
}

void run(std::span<const std::byte> input) {
  Source source(input);
  const std::size_t piece = std::size_t{1} + source.byte();
  framing::ReceiveBuffer buffer;
  std::size_t given = 0;
  std::size_t taken = 0;
  try {
    while (!source.empty()) {
      const std::span<std::byte> space = buffer.space();
      if (space.empty()) broken("there is always space to read to");
      const auto bytes = source.take(std::min(piece, space.size()));
      std::memcpy(space.data(), bytes.data(), bytes.size());
      buffer.filled(bytes.size());
      given += bytes.size();
      while (const auto frame = buffer.next()) {
        if (frame->payload.size() > kMaxFrameBytes) broken("no frame is longer than the longest");
        if (frame->keep_alive && !frame->payload.empty()) broken("a keep-alive has no payload");
        taken += framing::bytes_of(frame->payload.size(), false);
        if (taken > given) broken("frames lie in what was read");
        std::size_t sum = 0;  // reads every byte
        for (const std::byte b : frame->payload) sum += std::to_integer<std::size_t>(b);
        if (sum > 255 * frame->payload.size()) broken("bytes are bytes");
      }
    }
  } catch (const ProtocolError&) {
    return;  // the connection would be closed
  }
}

}  // namespace adaps::fuzz
