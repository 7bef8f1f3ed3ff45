// Connected transports: delivery, shaping, failures, closing, idle time.
#include "transport/socket_transport.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <ctime>
#include <thread>

#include "check.h"
#include "transport_cluster.h"

using namespace adaps;
using namespace adaps::testing;

TEST(frames_arrive_whole_and_in_order_between_all_pairs) {
  for (const Medium medium : kMedia) {
    for (NodeId nodes = 2; nodes <= 4; ++nodes) {
      Transports transports = cluster(nodes, medium);
      constexpr std::uint32_t kFrames = 400;
      std::atomic<int> ready{0};
      std::vector<std::thread> threads;
      for (NodeId rank = 0; rank < nodes; ++rank) {
        threads.emplace_back([&, rank] {
          SocketTransport& transport = *transports[rank];
          std::vector<std::uint32_t> next(nodes);
          const auto size_of = [](std::uint32_t i) { return std::size_t{i % 50 == 0 ? 100'000 : i % 37}; };
          Events events;
          events.handle = [&](NodeId from, std::span<const std::byte> payload) {
            const std::uint32_t i = next[from]++;
            CHECK(same(payload, frame_of(size_of(i), i + from)));
            CHECK_EQ(reinterpret_cast<std::uintptr_t>(payload.data()) % 4, 0u);
          };
          for (std::uint32_t i = 0; i < kFrames; ++i) {
            for (NodeId peer = 0; peer < nodes; ++peer)
              if (peer != rank) transport.send(peer, frame_of(size_of(i), i + rank));
            if (i % 10 == 0) transport.poll(0, events);
          }
          const Micros deadline = monotonic_now() + 20 * kSecond;
          while (events.frames < kFrames * (nodes - 1u) && monotonic_now() < deadline)
            transport.poll(100 * kMillisecond, events);
          CHECK_EQ(events.frames, kFrames * (nodes - 1u));
          CHECK_EQ(transport.counters().frames_received.get(), kFrames * (nodes - 1u));
          // Other nodes may still wait for frames that this node has queued.
          ++ready;
          while (ready < nodes) transport.poll(10 * kMillisecond, events);
          CHECK_EQ(transport.counters().frames_sent.get(), kFrames * (nodes - 1u));
          CHECK(events.down.empty());
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST(flush_sends_frames_while_another_frame_is_handled) {
  for (const Medium medium : kMedia) {
    const Transports nodes = cluster(2, medium);
    Events events[2];
    std::vector<std::size_t> arrived;
    events[0].handle = [&](NodeId, std::span<const std::byte> payload) { arrived.push_back(payload.size()); };
    bool in_time = false;
    events[1].handle = [&](NodeId, std::span<const std::byte> payload) {
      const Frame copy(payload.begin(), payload.end());
      nodes[1]->send(0, frame_of(1, 1));
      nodes[1]->send(0, frame_of(50'000, 2));
      nodes[1]->flush();
      in_time = pump({{nodes[0].get(), &events[0]}}, [&] { return arrived.size() == 2; });
      CHECK(same(payload, copy));  // the payload is not moved during the callback
      nodes[1]->send(0, frame_of(3, 3));
    };
    nodes[0]->send(1, frame_of(100, 0));
    CHECK(pump(nodes, events, [&] { return arrived.size() == 3; }));
    CHECK(in_time);
    CHECK((arrived == std::vector<std::size_t>{1, 50'000, 3}));
  }
}

TEST(large_frames_in_both_directions_do_not_block) {
  for (const Medium medium : kMedia) {
    const Transports nodes = cluster(2, medium);
    const Frame sent[2] = {frame_of((32u << 20) + 3, 1), frame_of(32u << 20, 2)};
    Events events[2];
    for (NodeId rank = 0; rank < 2; ++rank) {
      events[rank].handle = [&, rank](NodeId from, std::span<const std::byte> payload) {
        if (payload.size() > 100) CHECK(same(payload, sent[from]));
        if (payload.size() <= 100) CHECK(same(payload, frame_of(13, 9)));
        CHECK_EQ(from, 1 - rank);
      };
      nodes[rank]->send(1 - rank, sent[rank]);
      nodes[rank]->send(1 - rank, frame_of(13, 9));
    }
    CHECK(pump(nodes, events, [&] { return events[0].frames == 2 && events[1].frames == 2; }));
  }
}

TEST(many_small_frames) {
  for (const Medium medium : kMedia) {
    const Transports nodes = cluster(2, medium);
    constexpr std::size_t kFrames = 100'000;
    Events events[2];
    std::uint32_t next = 0;
    events[1].handle = [&](NodeId, std::span<const std::byte> payload) {
      std::uint32_t value;
      REQUIRE(payload.size() == sizeof value);
      std::memcpy(&value, payload.data(), sizeof value);
      CHECK_EQ(value, next++);
    };
    for (std::uint32_t i = 0; i < kFrames; ++i) {
      const auto bytes = std::as_bytes(std::span(&i, 1));
      nodes[0]->send(1, Frame(bytes.begin(), bytes.end()));
    }
    CHECK(pump(nodes, events, [&] { return next == kFrames; }));
    CHECK_EQ(nodes[0]->counters().bytes_sent.get(), nodes[1]->counters().bytes_received.get());
    CHECK_EQ(nodes[0]->counters().bytes_sent.get(), 16 * kFrames);
  }
}

TEST(errors_name_frames_that_cannot_be_sent) {
  const Transports nodes = cluster(2, Medium::kUnix);
  CHECK_THROWS(nodes[0]->send(1, Frame(kMaxFrameBytes + 1)), std::length_error, "67108865");
  CHECK_THROWS(nodes[0]->send(0, Frame(1)), std::invalid_argument, "node 0");
  CHECK_THROWS(nodes[0]->send(2, Frame(1)), std::invalid_argument, "node 2");
}

TEST(the_backlog_counts_frames_that_the_network_has_not_accepted) {
  for (const Medium medium : kMedia) {
    const Transports nodes = cluster(2, medium);
    Events events[2];
    constexpr std::size_t kFrames = 64;
    CHECK_EQ(nodes[0]->backlog(1), 0u);
    for (std::size_t i = 0; i < kFrames; ++i) nodes[0]->send(1, Frame(std::size_t{1} << 20));
    CHECK_EQ(nodes[0]->backlog(1), kFrames);
    nodes[0]->poll(0, events[0]);
    CHECK(nodes[0]->backlog(1) > 0);  // the peer does not read
    CHECK_EQ(events[0].sent, (kFrames - nodes[0]->backlog(1)) << 20);
    REQUIRE(pump(nodes, events, [&] { return events[1].frames == kFrames; }));
    CHECK_EQ(nodes[0]->backlog(1), 0u);
    CHECK_EQ(events[0].sent, kFrames << 20);  // the sender may reuse their memory
  }
}

// Frames on an imitated wire are not in the backlog, regardless of the time that they take.
TEST(the_backlog_of_an_imitated_network_excludes_frames_on_its_wire) {
  const auto backlog = [](LinkShape shape) {
    const Transports nodes =
        cluster(2, Medium::kUnix, [&](SocketOptions& options) { options.shape = shape; });
    for (int i = 0; i < 3; ++i) nodes[0]->send(1, Frame(100));
    return nodes[0]->backlog(1);
  };
  CHECK_EQ(backlog({.latency_seconds = 3600.0}), 0u);
  CHECK_EQ(backlog({.bits_per_second = 1.0}), 3u);
}

TEST(latency_delays_every_frame) {
  for (const Medium medium : kMedia) {
    const Transports nodes =
        cluster(2, medium, [](SocketOptions& options) { options.shape.latency_seconds = 20e-3; });
    Events events[2];
    const Micros start = monotonic_now();
    for (int i = 0; i < 10; ++i) nodes[0]->send(1, Frame(1000));
    REQUIRE(pump(nodes, events, [&] { return events[1].frames > 0; }));
    CHECK(monotonic_now() - start >= 20 * kMillisecond);
    REQUIRE(pump(nodes, events, [&] { return events[1].frames == 10; }));
    CHECK(monotonic_now() - start < 5 * kSecond);  // they travel concurrently
  }
}

TEST(bandwidth_serialises_the_frames_of_a_link) {
  const Transports nodes = cluster(3, Medium::kUnix, [](SocketOptions& options) {
    options.shape = {1e-3, 80e6};  // a frame of 100 kB takes 10 ms
  });
  Events events[3];
  const Micros start = monotonic_now();
  Micros arrived[3][5] = {};
  for (const NodeId to : {1, 2}) {
    events[to].handle = [&, to](NodeId, std::span<const std::byte>) {
      arrived[to][events[to].frames - 1] = monotonic_now() - start;
    };
    for (int i = 0; i < 5; ++i) nodes[0]->send(to, Frame(100'000));
  }
  REQUIRE(pump(nodes, events, [&] { return events[1].frames == 5 && events[2].frames == 5; }));
  for (const NodeId to : {1, 2}) {
    for (int i = 0; i < 5; ++i) CHECK(arrived[to][i] >= (i + 1) * 10 * kMillisecond + kMillisecond);
    CHECK(arrived[to][4] < 5 * kSecond);
  }
}

TEST(keep_alives_do_not_wait_for_the_shape) {
  const Transports nodes = cluster(2, Medium::kUnix, [](SocketOptions& options) {
    options.shape.latency_seconds = 60.0;
    options.peer_timeout_seconds = 1.0;
  });
  Events events[2];
  nodes[0]->send(1, Frame(8));
  pump(nodes, events, [] { return false; }, 2500 * kMillisecond);
  CHECK(events[0].down.empty() && events[1].down.empty());
  CHECK_EQ(events[1].frames, 0u);
}

TEST(a_dead_peer_is_reported_after_its_last_frames) {
  for (const Medium medium : kMedia) {
    Transports nodes = cluster(3, medium);
    Events events[3];
    for (int i = 0; i < 100; ++i) nodes[1]->send(0, Frame(1000));
    nodes[1]->poll(0, events[1]);
    nodes[1].reset();
    REQUIRE(pump({{nodes[0].get(), &events[0]}, {nodes[2].get(), &events[2]}},
                 [&] { return !events[0].down.empty() && !events[2].down.empty(); }));
    CHECK_EQ(events[0].frames, 100u);
    CHECK_EQ(events[0].down.size(), 1u);
    CHECK_EQ(events[0].down[0].first, 1);
    CHECK(events[0].down[0].second.find("node 1") != std::string::npos);
    nodes[0]->send(1, Frame(8));  // is dropped
    nodes[0]->send(2, Frame(8));
    REQUIRE(pump({{nodes[0].get(), &events[0]}, {nodes[2].get(), &events[2]}},
                 [&] { return events[2].frames == 1; }));
    CHECK_EQ(events[0].down.size(), 1u);
  }
}

TEST(a_silent_peer_is_down_after_the_timeout) {
  for (const Medium medium : kMedia) {
    const Transports nodes =
        cluster(2, medium, [](SocketOptions& options) { options.peer_timeout_seconds = 0.4; });
    Events events[2];
    // Both nodes send for longer than the timeout. Then node 1 stops, like under SIGSTOP.
    pump(nodes, events, [] { return false; }, kSecond);
    CHECK(events[0].down.empty() && events[1].down.empty());
    const Micros start = monotonic_now();
    REQUIRE(pump({{nodes[0].get(), &events[0]}}, [&] { return !events[0].down.empty(); }));
    CHECK(monotonic_now() - start >= 250 * kMillisecond);
    CHECK(monotonic_now() - start < 5 * kSecond);
    CHECK(events[0].down[0].second.find("sent nothing for") != std::string::npos);
  }
}

TEST(a_node_that_was_suspended_does_not_report_its_peers_as_lost) {
  const Transports nodes =
      cluster(2, Medium::kMemory, [](SocketOptions& options) { options.peer_timeout_seconds = 0.5; });
  Events events[2];
  pump(nodes, events, [] { return false; }, 300 * kMillisecond);
  ::usleep(1500'000);  // for example, the machine was suspended
  pump(nodes, events, [] { return false; }, kSecond);
  CHECK(events[0].down.empty() && events[1].down.empty());
}

TEST(a_protocol_error_of_the_handler_closes_one_connection) {
  for (const Medium medium : kMedia) {
    CapturedLog log;
    const Transports nodes = cluster(3, medium);
    Events events[3];
    events[0].handle = [&](NodeId from, std::span<const std::byte>) {
      if (from == 1) throw ProtocolError("an entry of unknown kind 77");
    };
    nodes[1]->send(0, Frame(8));
    nodes[2]->send(0, Frame(8));
    REQUIRE(pump(nodes, events, [&] { return events[0].frames == 2 && !events[1].down.empty(); }));
    CHECK_EQ(events[0].down.size(), 1u);
    CHECK(events[0].down[0].second.find("kind 77") != std::string::npos);
    CHECK(events[2].down.empty());
    CHECK(log.contains("node 1: an entry of unknown kind 77"));
  }
}

TEST(shutdown_delivers_what_was_sent) {
  for (const Medium medium : kMedia) {
    const Transports nodes = cluster(2, medium);
    Events events[2];
    // Node 0 does not read these frames any more. Closing its socket with unread frames would reset the
    // connection.
    for (int i = 0; i < 16; ++i) nodes[1]->send(0, Frame(4u << 20));
    nodes[1]->poll(0, events[1]);
    nodes[1]->expect_close();
    for (int i = 0; i < 8; ++i) nodes[0]->send(1, Frame(128u << 10));
    std::thread closing([&] { nodes[0]->shutdown(20 * kSecond); });
    ::usleep(100'000);  // by then, a node 0 that does not wait would have closed its socket
    CHECK(pump({{nodes[1].get(), &events[1]}}, [&] { return events[1].frames == 8; }));
    nodes[1]->shutdown(20 * kSecond);
    closing.join();
    CHECK(events[1].down.empty());
  }
}

TEST(shutdown_gives_up_on_a_peer_that_does_not_read) {
  const Transports nodes = cluster(2, Medium::kMemory);
  nodes[0]->send(1, Frame(8u << 20));
  const Micros start = monotonic_now();
  nodes[0]->shutdown(200 * kMillisecond);
  CHECK(monotonic_now() - start >= 200 * kMillisecond);
  CHECK(monotonic_now() - start < 5 * kSecond);
}

TEST(wake_ends_a_poll_from_any_thread) {
  const Transports nodes = cluster(2, Medium::kMemory);
  Events events;
  constexpr int kThreads = 3, kPosts = 3000;
  std::atomic<int> posted[kThreads] = {}, seen[kThreads] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 1; i <= kPosts; ++i) {
        posted[t] = i;
        nodes[0]->wake();
        while (seen[t] < i) std::this_thread::yield();
      }
    });
  }
  const auto all_seen = [&] {
    return std::all_of(seen, seen + kThreads, [](const auto& n) { return n == kPosts; });
  };
  while (!all_seen()) {
    nodes[0]->poll(kNever, events);  // blocks forever if a wake-up is lost
    for (int t = 0; t < kThreads; ++t) seen[t] = posted[t].load();
  }
  for (std::thread& thread : threads) thread.join();
  nodes[0]->wake();
  nodes[0]->poll(kNever, events);
}

TEST(an_idle_cluster_wakes_up_for_keep_alives_only) {
  Transports nodes =
      cluster(3, Medium::kMemory, [](SocketOptions& options) { options.peer_timeout_seconds = 1.0; });
  std::atomic<bool> stop{false};
  std::atomic<int> polls{0};
  std::vector<std::thread> threads;
  for (const auto& node : nodes) {
    threads.emplace_back([&] {
      Events events;
      while (!stop) {
        node->poll(kNever, events);
        ++polls;
      }
      CHECK(events.down.empty());
    });
  }
  timespec before{}, after{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  ::usleep(2'000'000);
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  stop = true;
  for (const auto& node : nodes) node->wake();
  for (std::thread& thread : threads) thread.join();
  // In 2 s, each node sends 8 keep-alives to each of the two other nodes and receives 8 from each.
  CHECK(polls >= 3 * 6);
  CHECK(polls <= 3 * (3 * 11 + 2));
  std::cout << "  idle: " << polls / 6.0 << " wake-ups per node and second, "
            << static_cast<double>(after.tv_sec - before.tv_sec) * 500 +
                   static_cast<double>(after.tv_nsec - before.tv_nsec) / 2e6
            << " ms of CPU per second for three nodes with 1 s of patience\n";
}

TEST(a_forked_child_does_not_hide_a_death) {
  for (const Medium medium : kMedia) {
    Transports nodes = cluster(2, medium);
    Events events[2];
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {  // like a data-loader worker, it keeps its inherited descriptors
      int reused[16];  // reuses the numbers that were freed
      for (int& fd : reused) fd = ::dup(ready[1]);
      nodes[1].reset();
      bool still_open = true;
      for (const int fd : reused) still_open &= ::write(fd, "x", 1) == 1;
      bool refused = false;
      try {
        nodes[0]->poll(0, events[0]);
      } catch (const std::runtime_error&) {
        refused = true;
      }
      if (still_open && refused && ::write(ready[1], "y", 1) == 1) ::pause();
      ::_exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    while (byte != 'y' && ::read(ready[0], &byte, 1) == 1) continue;
    CHECK_EQ(byte, 'y');
    nodes[1].reset();
    CHECK(pump({{nodes[0].get(), &events[0]}}, [&] { return !events[0].down.empty(); }, 3 * kSecond));
    int status = 0;
    CHECK_EQ(::waitpid(child, &status, WNOHANG), 0);  // the child is still running
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    ::close(ready[0]);
  }
}
