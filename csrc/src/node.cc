#include "adaps/node.h"

#ifdef __linux__
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "adaps/channel.h"
#include "adaps/node_state.h"

namespace adaps {

namespace {

using Clocks = std::chrono::steady_clock;

// How long a closing node gives its sockets to write what is left.
constexpr Micros kShutdownTimeout = 1'000'000;
constexpr std::chrono::milliseconds kInterruptPeriod{100};

Micros now_micros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clocks::now().time_since_epoch()).count();
}

// What a channel's thread waits on: its sockets, or without peers only the wake-up.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual void wait(Micros timeout) = 0;
  virtual void wake() = 0;
  virtual void send(NodeId to, Frame frame) = 0;
  virtual void close() = 0;
};

class LonelyDriver : public Driver {
 public:
  void wait(Micros timeout) override {
    std::unique_lock lock(mutex_);
    if (timeout == kNever) {
      changed_.wait(lock, [this] { return woken_; });
    } else {
      changed_.wait_for(lock, std::chrono::microseconds(timeout), [this] { return woken_; });
    }
    woken_ = false;
  }
  void wake() override {
    const std::lock_guard guard(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  void send(NodeId to, Frame) override {
    throw std::logic_error("a cluster of one sends a frame to rank " + std::to_string(to));
  }
  void close() override {}

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

class SocketDriver : public Driver, public TransportEvents {
 public:
  SocketDriver(std::unique_ptr<SocketTransport> transport, Channel& channel)
      : transport_(std::move(transport)), channel_(channel) {
    channel_.set_backlog([this](NodeId to) { return transport_->backlog(to); });
  }

  void wait(Micros timeout) override {
    transport_->poll(timeout, *this);
    if (!channel_.has_lost_peer()) return;
    channel_.outbox().drain([this](NodeId to, Frame frame) { send(to, std::move(frame)); });
    transport_->poll(0, *this);
    channel_.fail_for_lost_peer();
  }
  void wake() override { transport_->wake(); }
  void send(NodeId to, Frame frame) override {
    channel_.counters().frames_sent.add();
    channel_.counters().bytes_sent.add(frame.size());
    transport_->send(to, std::move(frame));
  }
  void close() override {
    transport_->expect_close();
    transport_->shutdown(kShutdownTimeout);
  }
  void on_frame(NodeId from, std::span<const std::byte> payload) override {
    channel_.set_now(now_micros());
    channel_.counters().frames_received.add();
    channel_.counters().bytes_received.add(payload.size());
    channel_.on_frame(from, payload);
  }
  void on_peer_down(NodeId peer, const std::string& reason) override { channel_.on_peer_down(peer, reason); }

 private:
  std::unique_ptr<SocketTransport> transport_;
  Channel& channel_;
};

}  // namespace

class Node::Impl {
 public:
  Impl(std::vector<TableSpec> tables, const Settings& settings) : state(std::move(tables), settings) {
    state.clock = now_micros;
    for (int i = 0; i < settings.workers; ++i) workers.push_back(std::make_unique<Worker>(state, i));
    if (settings.nodes == 1) {
      for (int i = 0; i < settings.channels; ++i) drivers.push_back(std::make_unique<LonelyDriver>());
      begin();
    }
  }

  ~Impl() { stop(); }

  void begin() {
    for (std::size_t i = 0; i < drivers.size(); ++i) {
      Driver& driver = *drivers[i];
      state.channels[i]->set_waker([&driver] { driver.wake(); });
    }
    for (std::size_t i = 0; i < drivers.size(); ++i) threads.emplace_back([this, i] { drive(i); });
  }

  void drive(std::size_t i) {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "adaps channel");  // as profilers and top show it
#endif
    Channel& channel = *state.channels[i];
    Driver& driver = *drivers[i];
    try {
      while (!stopping.load(std::memory_order_acquire)) {
        const Micros now = now_micros();
        channel.set_now(now);
        const Micros next = channel.on_tick();
        channel.outbox().drain([&](NodeId to, Frame frame) { driver.send(to, std::move(frame)); });
        driver.wait(next == kNever ? kNever : std::max<Micros>(next - now, 0));
      }
      if (const auto lost = state.lost_peer()) {
        channel.announce_loss(*lost);
        channel.outbox().drain([&](NodeId to, Frame frame) { driver.send(to, std::move(frame)); });
      }
      driver.close();
    } catch (const std::exception& error) {
      // Nothing can be done for this channel any more: every call of this node must say so.
      state.fail(state.settings.rank, std::string("its channel thread ended: ") + error.what());
    }
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    for (std::size_t i = 0; i < threads.size(); ++i) drivers[i]->wake();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  void close(const std::function<void()>& interrupted) {
    if (closed) return;
    if (!state.failed.load()) {
      for (const auto& worker : workers) worker->finalize();
      state.channels[0]->submit_gathered(true);
      wait_until(interrupted, [this] { return state.channels[0]->closed(); });
      for (const auto& channel : state.channels) channel->submit_goodbye();
      wait_until(interrupted, [this] {
        return std::all_of(state.channels.begin(), state.channels.end(),
                           [](const auto& channel) { return channel->goodbye_sent(); });
      });
    }
    stop();
    closed = true;
    state.check();
  }

  template <typename Condition>
  void wait_until(const std::function<void()>& interrupted, Condition condition) {
    std::unique_lock lock(state.ending_mutex);
    while (!condition()) {
      state.check();
      const bool woken = state.ending_changed.wait_for(lock, kInterruptPeriod) == std::cv_status::no_timeout;
      if (woken || !interrupted) continue;
      lock.unlock();
      interrupted();
      lock.lock();
    }
  }

  NodeState state;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<Driver>> drivers;
  std::unique_ptr<Listener> listener;
  std::vector<std::thread> threads;
  std::atomic<bool> stopping{false};
  bool closed = false;
};

Node::Node(std::vector<TableSpec> tables, const Settings& settings)
    : impl_(std::make_unique<Impl>(std::move(tables), settings)) {}

Node::~Node() = default;

std::string Node::listen(const std::string& host, std::uint16_t port) {
  impl_->listener = adaps::listen(host, port);
  return impl_->listener->address();
}

void Node::connect(const std::vector<std::string>& addresses, const ConnectOptions& options,
                   const std::function<void()>& interrupted) {
  const Settings& settings = impl_->state.settings;
  if (impl_->listener == nullptr) throw std::logic_error("connect before listen");
  SocketOptions sockets;
  sockets.rank = settings.rank;
  sockets.nodes = settings.nodes;
  sockets.channels = settings.channels;
  sockets.workers = settings.workers;
  sockets.technique = settings.technique;
  sockets.nonfinite = settings.nonfinite;
  sockets.fingerprint = impl_->state.tables.fingerprint();
  sockets.frame_mac = options.frame_mac;
  sockets.secret = options.secret;
  sockets.shape = options.shape;
  sockets.connect_timeout_seconds = options.connect_timeout_seconds;
  sockets.peer_timeout_seconds = options.peer_timeout_seconds;
  auto transports = connect_all(*impl_->listener, addresses, sockets, interrupted);
  for (std::size_t i = 0; i < transports.size(); ++i) {
    impl_->drivers.push_back(
        std::make_unique<SocketDriver>(std::move(transports[i]), *impl_->state.channels[i]));
  }
  impl_->listener.reset();
  impl_->begin();
}

Worker& Node::worker(int index) {
  if (index < 0 || index >= static_cast<int>(impl_->workers.size())) {
    throw std::out_of_range("worker " + std::to_string(index) + " is not in [0, " +
                            std::to_string(impl_->workers.size()) + ")");
  }
  return *impl_->workers[static_cast<std::size_t>(index)];
}

Tables& Node::tables() { return impl_->state.tables; }

const Settings& Node::settings() const { return impl_->state.settings; }

NodeState& Node::state() { return impl_->state; }

void Node::check() const { impl_->state.check(); }

std::map<std::string, double> Node::stats() const {
  const NodeState& state = impl_->state;
  std::map<std::string, double> sums;
  const auto add = [&](const char* name, const Counter& counter) {
    sums[name] += static_cast<double>(counter.get());
  };
  for (const auto& worker : state.workers) {
    const WorkerCounters& c = worker->counters;
    add("pulled_local", c.pulled.local);
    add("pulled_replica", c.pulled.replica);
    add("pulled_remote", c.pulled.remote);
    add("pushed_local", c.pushed.local);
    add("pushed_replica", c.pushed.replica);
    add("pushed_remote", c.pushed.remote);
    add("set_local", c.set.local);
    add("set_remote", c.set.remote);
    add("staleness_micros", c.staleness_micros);
    add("staleness_reads", c.staleness_reads);
    add("intents", c.intents);
    add("intents_late", c.intents_late);
    add("gradients_skipped", c.gradients_skipped);
    add("blocked_micros", c.blocked_micros);
    add("queue_full_micros", c.queue_full_micros);
    sums["queued_bytes"] += static_cast<double>(worker->completion.queued_bytes.load());
    add("sync_micros", c.sync_micros);
    add("barrier_micros", c.barrier_micros);
  }
  for (const auto& channel : state.channels) {
    const ChannelCounters& c = channel->counters();
    add("rounds", c.rounds);
    add("frames_sent", c.frames_sent);
    add("frames_received", c.frames_received);
    add("bytes_sent", c.bytes_sent);
    add("bytes_received", c.bytes_received);
    add("intents_acted", c.intents_acted);
    add("intents_late", c.intents_late);
    add("relocations", c.relocations);
    add("replicas", c.replicas_set_up);
    add("replicas_dropped", c.replicas_dropped);
    add("deltas_sent", c.deltas_sent);
    add("refreshes_sent", c.refreshes_sent);
    add("refreshes_held_back", c.refreshes_held_back);
    add("requests_forwarded", c.requests_forwarded);
    add("lead_micros", c.lead_micros);
    add("lead_keys", c.lead_keys);
    for (std::size_t i = 1; i < kMessageTypes; ++i) {
      const auto type = static_cast<MessageType>(i);
      sums[std::string("bytes_sent_") + name_of(type)] +=
          static_cast<double>(channel->outbox().bytes_of(type));
    }
  }
  sums["resident_bytes"] = static_cast<double>(state.store.resident_bytes());
  sums["slots"] = static_cast<double>(state.store.slots_in_use());
  return sums;
}

void Node::trace(std::span<const Key> keys) {
  NodeState& state = impl_->state;
  state.trace.choose(keys);
  for (const Key name : keys) {
    LockedKey key(state.store, name);
    if (!key.has_slot()) continue;
    const Micros now = state.clock();
    if (key.state() == State::kOwner) state.trace.add(now, name, TraceKind::kAlloc);
    if (key.state() == State::kReplica) state.trace.add(now, name, TraceKind::kReplicaSetUp);
    if (key.header().intents > 0) state.trace.add(now, name, TraceKind::kIntentStart);
  }
}

std::vector<TraceEvent> Node::trace_events() const { return impl_->state.trace.events(); }

void Node::close(const std::function<void()>& interrupted) { impl_->close(interrupted); }

}  // namespace adaps
