// The parts of the transport that need no connection: digests, frames on a stream, timers, link shapes.
#include "transport/framing.h"

#include <sys/epoll.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "check.h"
#include "transport/event_loop.h"
#include "transport/hmac.h"
#include "transport_cluster.h"

using namespace adaps;
using namespace adaps::testing;

namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string sha256(std::string_view text, std::size_t step = 1'000'000) {
  Sha256 hash;
  for (std::size_t i = 0; i < text.size(); i += step) hash.update(bytes_of(text.substr(i, step)));
  return hex(hash.finish());
}

std::string hmac(const std::string& key, std::string_view text) {
  Hmac mac(bytes_of(key));
  mac.update(bytes_of(text));
  return hex(mac.finish());
}

using MacKey = std::optional<Digest>;

Digest key_of(std::uint8_t number) { return {std::byte{number}}; }

// Returns the frames 0, 1, … as on a stream. The size kKeepAlive means a keep-alive.
std::vector<Frame> frames_of(const std::vector<std::uint32_t>& sizes, const MacKey& key = {}) {
  std::vector<Frame> frames;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    Frame& frame = frames.emplace_back();
    const auto append = [&](std::span<const std::byte> bytes) {
      frame.insert(frame.end(), bytes.begin(), bytes.end());
    };
    const framing::Header header{sizes[i], i};
    append(std::as_bytes(std::span(&header, 1)));
    if (key) append(framing::Seal(*key).of_header(i, header));
    if (sizes[i] == framing::kKeepAlive) continue;
    const Frame payload = frame_of(sizes[i], i);
    append(payload);
    frame.resize(frame.size() + framing::padding_of(sizes[i]));
    if (key && sizes[i] > 0) append(framing::Seal(*key).of_payload(i, payload));
  }
  return frames;
}

Frame joined(const std::vector<Frame>& frames) {
  Frame stream;
  for (const Frame& frame : frames) stream.insert(stream.end(), frame.begin(), frame.end());
  return stream;
}

Frame stream_of(const std::vector<std::uint32_t>& sizes, const MacKey& key = {}) {
  return joined(frames_of(sizes, key));
}

// Reads a stream in pieces of random size and calls `taken` with each frame.
template <class Taken>
void feed(const Frame& stream, std::mt19937& random, std::size_t most, Taken&& taken,
          const MacKey& key = {}) {
  framing::ReceiveBuffer buffer(key);
  for (std::size_t at = 0; at < stream.size();) {
    const std::span<std::byte> space = buffer.space();
    REQUIRE(!space.empty());
    const std::size_t n = std::min({space.size(), stream.size() - at, 1 + random() % most});
    std::copy_n(stream.begin() + static_cast<std::ptrdiff_t>(at), n, space.begin());
    buffer.filled(n);
    at += n;
    while (const auto frame = buffer.next()) taken(*frame);
  }
}

}  // namespace

TEST(sha256_of_the_standards_examples) {  // example texts of FIPS 180-4, and the empty text
  CHECK_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  CHECK_EQ(sha256(million), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK_EQ(sha256(million, 61), sha256(million));
  // Tests all lengths of the last block, to cover the edge cases of the padding, with pieces of different
  // sizes.
  for (std::size_t n = 0; n < 130; ++n)
    CHECK_EQ(sha256(million.substr(0, n)), sha256(million.substr(0, n), 7));
}

TEST(hmac_of_the_standards_examples) {  // RFC 4231, cases 1, 2 and 6
  CHECK_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(hmac("Jefe", "what do ya want for nothing?"),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(digests_that_differ_in_one_bit_are_not_equal) {
  const Digest digest{std::byte{1}};
  CHECK(equal_in_constant_time(digest, digest));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    Digest other = digest;
    other[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    CHECK(!equal_in_constant_time(digest, other));
  }
}

TEST(frames_survive_any_cut_of_the_stream) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::uint32_t> sizes;
    for (int i = 0; i < 50; ++i) {
      const std::uint32_t kind = random() % 20;
      sizes.push_back(kind == 0 ? framing::kKeepAlive : kind == 1 ? random() % 1'000'000 : random() % 300);
    }
    std::uint32_t next = 0;
    const auto check = [&](const auto& frame) {
      CHECK_EQ(frame.keep_alive, sizes[next] == framing::kKeepAlive);
      if (!frame.keep_alive) CHECK(same(frame.payload, frame_of(sizes[next], next)));
      CHECK_EQ(reinterpret_cast<std::uintptr_t>(frame.payload.data()) % framing::kAlignment, 0u);
      ++next;
    };
    const MacKey key = round % 3 == 0 ? MacKey(key_of(1)) : std::nullopt;
    feed(stream_of(sizes, key), random, round % 2 == 0 ? 50'000 : 2'000'000, check, key);
    CHECK_EQ(next, sizes.size());
  }
}

TEST(frames_too_long_or_out_of_order_are_refused) {
  std::mt19937 random(1);
  const auto ignore = [](const auto&) {};
  Frame stream = stream_of({8, 8});
  stream[16 + 4] = std::byte{2};  // the number of the second frame
  CHECK_THROWS(feed(stream, random, 100, ignore), ProtocolError, "frame 2 where frame 1 was due");
  const std::pair<framing::Header, const char*> cases[] = {
      {{kMaxFrameBytes + 1, 0}, "frame of 67108865 bytes"},
      {{0xfffffffe, 0}, "frame of 4294967294 bytes"},
      {{framing::kKeepAlive, 7}, "frame 7 where frame 0 was due"},
  };
  for (const auto& [header, reason] : cases) {
    const auto head = std::as_bytes(std::span(&header, 1));
    CHECK_THROWS(feed(Frame(head.begin(), head.end()), random, 100, ignore), ProtocolError, reason);
  }
}

TEST(modified_sealed_frames_are_refused) {
  std::mt19937 random(4);
  const std::vector<std::uint32_t> sizes = {40, framing::kKeepAlive, 3, 0, 70, 40};
  const std::vector<Frame> frames = frames_of(sizes, key_of(1));
  // Counts the frames that are accepted from a stream whose last frame was modified.
  const auto taken_of = [&](const std::vector<Frame>& stream) {
    std::size_t taken = 0;
    CHECK_THROWS(feed(
                     joined(stream), random, 100, [&](const auto&) { ++taken; }, key_of(1)),
                 ProtocolError, "wrong MAC");
    return taken;
  };
  for (std::size_t i = 0; i < frames.size(); ++i) {
    // The zeros of the padding are not checked, because they are not used.
    const std::size_t payload = sizes[i] == framing::kKeepAlive ? 0 : sizes[i];
    const std::size_t padding = sizeof(framing::Header) + sizeof(framing::Tag) + payload;
    for (std::size_t bit = 0; bit < 8 * frames[i].size(); ++bit) {
      if (bit / 8 >= padding && bit / 8 < padding + framing::padding_of(payload)) continue;
      std::vector<Frame> changed = frames;
      changed[i][bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      CHECK_EQ(taken_of(changed), i);
    }
  }
  std::vector<Frame> repeated = frames, missing = frames, moved = frames;
  repeated.insert(repeated.begin() + 1, frames[0]);
  CHECK_EQ(taken_of(repeated), 1u);
  missing.erase(missing.begin() + 2);
  CHECK_EQ(taken_of(missing), 2u);
  std::swap(moved[0], moved[5]);
  CHECK_EQ(taken_of(moved), 0u);
  CHECK_EQ(taken_of(frames_of(sizes, key_of(2))), 0u);  // frames of the other direction, or of a stranger
  CHECK_EQ(taken_of({Frame(100)}), 0u);
}

TEST(timers_are_precise_with_both_system_calls) {
  for (const bool precise_syscall : {true, false}) {
    EventLoop loop(precise_syscall);
    std::array<epoll_event, 4> events;
    for (const Micros wait : {0, 150, 3000, 40'000}) {
      const Micros start = monotonic_now();
      CHECK(loop.wait(start + wait, events).empty());
      CHECK(monotonic_now() - start >= wait);
      CHECK(monotonic_now() - start < wait + kSecond);
    }
    std::thread waker([&] { loop.wake(); });
    CHECK(loop.wait(kNever, events).empty());
    waker.join();
    const Micros start = monotonic_now();
    loop.wake();
    loop.wake();
    loop.wait(start + 20 * kSecond, events);
    CHECK(monotonic_now() - start < 10 * kSecond);
    loop.wait(monotonic_now() + 5000, events);  // two wake-ups before a wait count as one
    CHECK(monotonic_now() - start >= 5000);
  }
}

TEST(link_shapes_are_parsed) {
  const auto is = [](const std::string& text, double latency, double rate) {
    const LinkShape shape = parse_link_shape(text);
    CHECK_EQ(shape.latency_seconds, latency);
    CHECK_EQ(shape.bits_per_second, rate);
  };
  is("loopback", 0.0, 0.0);
  is("sockets", 0.0, 0.0);
  CHECK(parse_link_shape("loopback").allows_shared_memory());
  for (const char* text : {"sockets", "lan", "1ms,1000000gbit", "0s,1gbit"})
    CHECK(!parse_link_shape(text).allows_shared_memory());
  is("lan", 0.25e-3, 10e9);
  is("slow", 1e-3, 1e9);
  is("0.5ms,2gbit", 0.5e-3, 2e9);
  is("250us,100mbit", 250 * 1e-6, 100e6);
  is("0s,9.6kbit", 0.0, 9600.0);
  for (const char* text :
       {"", "fast", "1ms", "1ms,", ",1gbit", "1,1gbit", "1ms,1", "-1ms,1gbit", "1ms,0gbit", "1ms,-1gbit",
        "nanms,1gbit", "1ms,infgbit", "1ms,1gbit,", "1 ms,1gbit", "1ms, 1gbit", "1e400s,1gbit"})
    CHECK_THROWS(parse_link_shape(text), std::invalid_argument, "is not a link");
}
