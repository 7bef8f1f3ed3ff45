// One channel's connections on one epoll loop. Each pass of the loop writes queued frames, waits, reads what
// arrived, checks for silent peers, and releases held frames.
#include "transport/socket_transport.h"

#include <sys/epoll.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/log.h"
#include "transport/event_loop.h"
#include "transport/make_transport.h"
#include "transport/peer_connection.h"

namespace adaps {
namespace {

constexpr std::uint32_t kReadable = EPOLLIN, kWritable = EPOLLOUT;

// Number of reads from one peer before the other peers are served.
constexpr int kReadsPerPass = 16;

class EpollTransport final : public SocketTransport {
 public:
  EpollTransport(std::vector<Connection> connections, const SocketOptions& options);

  void send(NodeId to, Frame frame) override;
  std::size_t backlog(NodeId to) const override { return links_[to].backlog(monotonic_now()); }
  void flush() override;
  void poll(Micros timeout, TransportEvents& events) override;
  void wake() override { loop_.wake(); }
  void expect_close() override { closing_ = true; }
  void shutdown(Micros timeout) override;
  const TransportCounters& counters() const override { return counters_; }

 private:
  struct Release {
    Micros due;
    NodeId peer;
    bool operator>(const Release& other) const { return due > other.due; }
  };

  void pass(Micros deadline, TransportEvents& events);
  bool sleep();
  void read_shared(TransportEvents& events);
  void look_if_due(TransportEvents& events);

  void flush(NodeId peer);
  void release_due(Micros now);
  void watch_writability(NodeId peer, bool wanted);

  void read(NodeId peer, TransportEvents& events);
  void ended(NodeId peer, int error, TransportEvents& events);
  void down(NodeId peer, const std::string& reason, TransportEvents& events);

  void note_absence(Micros now, Micros expected);
  void look_after_peers(Micros now, TransportEvents& events);

  const NodeId rank_;
  const Micros peer_timeout_;
  const Micros latency_;
  const double micros_per_byte_;
  EventLoop loop_;
  std::vector<PeerConnection> links_;  // by rank; the link to this node is never open
  std::vector<NodeId> to_flush_;
  std::vector<Frame> sent_;
  std::priority_queue<Release, std::vector<Release>, std::greater<>>
      held_;                 // one entry for each frame that a link holds
  Micros next_look_;         // time of the next check for silent peers
  Micros last_absence_ = 0;  // time when this thread noticed that it had not run for a long time
  Micros last_pass_;
  std::vector<NodeId> shared_;  // peers with links in shared memory
  bool asleep_ = false;
  bool closing_ = false;
  bool precise_timers_ = false;
  TransportCounters counters_;
};

// Discards the frames of links that are being shut down.
class Discard final : public TransportEvents {
 public:
  void on_frame(NodeId, std::span<const std::byte>) override {}
  void on_peer_down(NodeId, const std::string&) override {}
  void on_sent(Frame) override {}
};

Micros micros(double seconds) { return static_cast<Micros>(std::llround(seconds * 1e6)); }

Micros later(Micros now, Micros timeout) { return timeout > kNever - now ? kNever : now + timeout; }

EpollTransport::EpollTransport(std::vector<Connection> connections, const SocketOptions& options)
    : rank_(options.rank),
      peer_timeout_(micros(options.peer_timeout_seconds)),
      latency_(micros(options.shape.latency_seconds)),
      micros_per_byte_(options.shape.bits_per_second > 0 ? 8e6 / options.shape.bits_per_second : 0.0),
      last_pass_(monotonic_now()) {
  next_look_ = last_pass_ + peer_timeout_ / 4;
  links_.reserve(connections.size());
  for (Connection& connection : connections) {
    links_.emplace_back(std::move(connection), last_pass_);
    if (!links_.back().open()) continue;
    loop_.watch(links_.back().fd(), kReadable, links_.size() - 1);
    if (links_.back().shared()) shared_.push_back(static_cast<NodeId>(links_.size() - 1));
  }
}

void EpollTransport::send(NodeId to, Frame frame) {
  if (to >= links_.size() || to == rank_)
    throw std::invalid_argument("a frame of " + name_of(rank_) + " cannot go to node " + std::to_string(to) +
                                " of " + std::to_string(links_.size()));
  if (frame.size() > kMaxFrameBytes)
    throw std::length_error("a frame of " + std::to_string(frame.size()) + " bytes is too long; at most " +
                            std::to_string(kMaxFrameBytes) + " are allowed");
  PeerConnection& link = links_[to];
  if (!link.open() || link.peer_ended) return;
  if (latency_ == 0 && micros_per_byte_ == 0.0) {
    link.queue(std::move(frame));
    if (!std::exchange(link.to_flush, true)) to_flush_.push_back(to);
    return;
  }
  const double start = std::max(static_cast<double>(monotonic_now()), link.free_at);
  link.free_at = start + micros_per_byte_ * static_cast<double>(link.bytes_of(frame.size()));
  const auto taken = static_cast<Micros>(std::ceil(link.free_at));
  held_.push({taken + latency_, to});
  link.hold(std::move(frame), taken);
}

void EpollTransport::poll(Micros timeout, TransportEvents& events) {
  if (!held_.empty() && !std::exchange(precise_timers_, true)) {
    ::prctl(PR_SET_TIMERSLACK,
            1000UL);  // for this thread; the default of 50 µs would blur the shape of a fast link
  }
  const Micros now = monotonic_now();
  note_absence(now, last_pass_);
  pass(later(now, timeout), events);
}

void EpollTransport::shutdown(Micros timeout) {
  closing_ = true;
  Discard nobody;
  const Micros deadline = later(monotonic_now(), timeout);
  const auto run_until = [&](auto&& condition) {
    while (!std::all_of(links_.begin(), links_.end(), condition) && monotonic_now() < deadline)
      pass(deadline, nobody);
  };
  run_until([](const PeerConnection& link) { return !link.open() || link.drained(); });
  for (PeerConnection& link : links_) {
    if (link.open()) link.end_writing();
  }
  // A socket that is closed while it contains unread data resets the connection, and the peer loses the bytes
  // that it has not read yet. Therefore all links wait for their peer's end first.
  run_until([](const PeerConnection& link) { return !link.open(); });
  for (PeerConnection& link : links_) link.close();
}

void EpollTransport::pass(Micros deadline, TransportEvents& events) {
  release_due(monotonic_now());
  flush();
  deadline = std::min(deadline, next_look_);
  if (!held_.empty()) deadline = std::min(deadline, held_.top().due);
  if (const Micros now = monotonic_now(); deadline > now && !sleep()) deadline = now;
  std::array<epoll_event, 64> ready;
  const std::span<epoll_event> happened = loop_.wait(deadline, ready);
  const Micros now = monotonic_now();
  note_absence(now, deadline);
  last_pass_ = now;
  for (const epoll_event& event : happened) {
    const auto peer = static_cast<NodeId>(event.data.u64);
    if (links_[peer].shared()) {
      links_[peer].on_doorbell();
      continue;
    }
    if (event.events & kWritable || links_[peer].peer_ended) flush(peer);
    if (event.events & ~kWritable) read(peer, events);
    look_if_due(events);
  }
  read_shared(events);
  look_if_due(events);
  release_due(last_pass_);
  flush();
  for (Frame& frame : sent_) events.on_sent(std::move(frame));
  sent_.clear();
}

// Requests that peers on this host send a wake-up byte. Returns false if this thread should not sleep,
// because there is work already.
bool EpollTransport::sleep() {
  asleep_ = true;
  bool nothing = true;
  for (const NodeId peer : shared_) {
    if (links_[peer].open()) nothing &= links_[peer].sleep();
  }
  return nothing;
}

void EpollTransport::read_shared(TransportEvents& events) {
  const bool slept = std::exchange(asleep_, false);
  for (const NodeId peer : shared_) {
    PeerConnection& link = links_[peer];
    if (!link.open()) continue;
    if (slept) link.stay_awake();
    if (link.writing()) flush(peer);
    if (link.peer_ended && link.peer_gone()) link.close();
    if (link.open() && !link.peer_ended) read(peer, events);
    look_if_due(events);
  }
}

// This function is also called between frames. Processing the frames of one peer may take long, and silent
// peers and held frames must be handled in time.
void EpollTransport::look_if_due(TransportEvents& events) {
  const Micros now = monotonic_now();
  note_absence(now, last_pass_);
  last_pass_ = now;
  if (now >= next_look_) look_after_peers(now, events);
}

void EpollTransport::release_due(Micros now) {
  while (!held_.empty() && held_.top().due <= now) {
    const NodeId peer = held_.top().peer;
    held_.pop();
    links_[peer].release();
    if (!std::exchange(links_[peer].to_flush, true)) to_flush_.push_back(peer);
  }
}

void EpollTransport::flush() {
  for (const NodeId peer : to_flush_) {
    links_[peer].to_flush = false;
    if (!links_[peer].waits_to_write) flush(peer);
  }
  to_flush_.clear();
}

void EpollTransport::flush(NodeId peer) {
  PeerConnection& link = links_[peer];
  if (!link.open()) return;
  const PeerConnection::Transferred written = link.write(sent_);
  counters_.bytes_sent.add(written.bytes);
  counters_.frames_sent.add(written.frames);
  if (written.bytes > 0) link.last_sent = monotonic_now();
  if (link.peer_ended && link.drained()) {
    link.close();
  } else {
    watch_writability(peer, link.writing());
  }
}

void EpollTransport::watch_writability(NodeId peer, bool wanted) {
  PeerConnection& link = links_[peer];
  if (link.shared()) return;  // each pass checks whether there is space
  if (std::exchange(link.waits_to_write, wanted) == wanted) return;
  loop_.change(link.fd(), (link.peer_ended ? 0 : kReadable) | (wanted ? kWritable : 0), peer);
}

void EpollTransport::read(NodeId peer, TransportEvents& events) {
  PeerConnection& link = links_[peer];
  try {
    for (int i = 0; i < kReadsPerPass && link.open() && !link.peer_ended; ++i) {
      const PeerConnection::Transferred got = link.receive();
      if (got.ended) return ended(peer, got.error, events);
      if (got.bytes == 0) return;
      link.last_heard = monotonic_now();
      counters_.bytes_received.add(got.bytes);
      while (const auto frame = link.next()) {
        if (frame->keep_alive) continue;
        counters_.frames_received.add();
        events.on_frame(peer, frame->payload);
      }
      if (!got.more) return;
      if (monotonic_now() >= next_look_) return;  // the rest is read in the next pass
    }
  } catch (const ProtocolError& error) {
    log_message(LogLevel::kWarning, "closed the connection to " + name_of(peer) + ": " + error.what());
    down(peer, error.what(), events);
  }
}

void EpollTransport::ended(NodeId peer, int error, TransportEvents& events) {
  PeerConnection& link = links_[peer];
  if (!closing_) {
    if (error == 0) error = link.write_error;
    return down(peer, error == 0 ? "it closed the connection" : std::generic_category().message(error),
                events);
  }
  if (error != 0 || link.drained() || link.peer_gone()) return link.close();
  link.peer_ended = true;  // the peer may still be reading frames of this node
  if (link.shared()) return;
  loop_.change(link.fd(), link.waits_to_write ? kWritable : 0, peer);
}

void EpollTransport::down(NodeId peer, const std::string& reason, TransportEvents& events) {
  links_[peer].close();
  events.on_peer_down(peer, name_of(peer) + " is gone: " + reason);
}

// A thread that did not run has received nothing, so silence does not prove that a peer is down. Peers get
// time to be heard again before they count as lost.
void EpollTransport::note_absence(Micros now, Micros expected) {
  if (expected != kNever && now - expected > peer_timeout_ / 4) last_absence_ = now;
}

void EpollTransport::look_after_peers(Micros now, TransportEvents& events) {
  const Micros interval = peer_timeout_ / 4;
  next_look_ = kNever;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const auto peer = static_cast<NodeId>(i);
    PeerConnection& link = links_[peer];
    if (!link.open() || link.peer_ended) continue;
    const Micros patient_until =
        std::max(link.last_heard + patience(peer_timeout_), last_absence_ + peer_timeout_ / 2);
    if (now >= patient_until && !link.readable()) {
      down(peer, "it sent nothing for " + std::to_string((now - link.last_heard) / 1000) + " ms", events);
      continue;
    }
    // Sends keep-alives that are due soon together with one that is due now, to wake up only once.
    if (now >= link.last_sent + interval - interval / 4 && !link.writing() && !link.ended_writing) {
      link.queue_keep_alive();
      flush(peer);
    }
    const Micros speak = std::max(link.last_sent, now - interval / 2) + interval;
    const Micros listen = std::max(patient_until, now + interval / 4);
    next_look_ = std::min({next_look_, speak, listen});
  }
}

}  // namespace

std::unique_ptr<SocketTransport> make_transport(std::vector<Connection> connections,
                                                const SocketOptions& options) {
  return std::make_unique<EpollTransport>(std::move(connections), options);
}

}  // namespace adaps
