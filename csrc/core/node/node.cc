#include "node/node.h"

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

#include "node/interruptible_wait.h"
#include "node/node_state.h"
#include "node/node_stats.h"
#include "protocol/wire_encoding.h"

namespace adaps {

namespace {

using Clocks = std::chrono::steady_clock;

// Maximum time that a closing node waits for its sockets to write all queued frames.
constexpr Micros kShutdownTimeout = 1'000'000;

Micros now_micros() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clocks::now().time_since_epoch()).count();
}

// The object on which a channel's thread waits: its sockets or, in a cluster of one node, a condition
// variable.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual void wait(Micros timeout) = 0;
  virtual void wake() = 0;
  virtual void send(NodeId to, Frame frame) = 0;
  virtual void close() = 0;

  void send_all(Channel& channel) {
    channel.outbox().drain([this](NodeId to, Frame frame) { send(to, std::move(frame)); });
  }
};

class WakeUpDriver : public Driver {
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
    channel_.set_sender([this] {
      send_all(channel_);
      transport_->flush();
    });
  }

  void wait(Micros timeout) override {
    transport_->poll(timeout, *this);
    if (!channel_.membership().has_lost_peer()) return;
    send_all(channel_);
    transport_->poll(0, *this);
    channel_.membership().fail_for_lost_peer();
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
  void on_sent(Frame frame) override { channel_.on_sent(std::move(frame)); }

 private:
  std::unique_ptr<SocketTransport> transport_;
  Channel& channel_;
};

}  // namespace

class Node::Impl {
 public:
  Impl(std::vector<TableSpec> tables, const Settings& settings)
      : state(std::move(tables), settings, open_row_storage) {
    state.clock = now_micros;
    for (int i = 0; i < settings.workers; ++i) workers.push_back(std::make_unique<Worker>(state, i));
    if (settings.nodes == 1) {
      for (int i = 0; i < settings.channels; ++i) drivers.push_back(std::make_unique<WakeUpDriver>());
      begin();
    }
  }

  ~Impl() { stop(); }

  void begin() {
    for (std::size_t i = 0; i < drivers.size(); ++i) {
      Driver& driver = *drivers[i];
      state.partitions[i]->set_waker([&driver] { driver.wake(); });
    }
    for (std::size_t i = 0; i < drivers.size(); ++i) threads.emplace_back([this, i] { drive(i); });
  }

  void drive(std::size_t i) {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "adaps channel");  // shown by profilers and top
#endif
    Channel& channel = *state.channels[i];
    Driver& driver = *drivers[i];
    channel.counters().thread.begin();
    try {
      while (!stopping.load(std::memory_order_acquire)) {
        const Micros now = now_micros();
        channel.set_now(now);
        const Micros next = channel.on_tick();
        driver.send_all(channel);
        driver.wait(next == kNever ? kNever : std::max<Micros>(next - now, 0));
      }
      if (const auto lost = state.lost_peer()) {
        channel.membership().announce_loss(*lost);
        driver.send_all(channel);
      }
      driver.close();
    } catch (const std::exception& error) {
      // The channel cannot continue, so every call on this node must fail with the reason.
      state.fail(state.settings.rank, std::string("its channel thread ended: ") + error.what());
    }
    channel.counters().thread.end();
  }

  void stop() {
    stopping.store(true, std::memory_order_release);
    for (std::size_t i = 0; i < threads.size(); ++i) drivers[i]->wake();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    if (state.storage != nullptr) state.storage->stop();  // its threads wake the channels
  }

  void close(const std::function<void()>& interrupted) {
    if (closed) return;
    if (!state.failed.load()) {
      for (const auto& worker : workers) worker->finalize();
      leave_no_rests(state);
      for (const auto& partition : state.partitions) partition->request_round();
      state.partitions[0]->submit_arrival(true);
      wait_until(interrupted, [this] { return state.channels[0]->membership().closed(); });
      for (const auto& partition : state.partitions) partition->submit_goodbye();
      wait_until(interrupted, [this] {
        return std::all_of(state.channels.begin(), state.channels.end(),
                           [](const auto& channel) { return channel->membership().goodbye_sent(); });
      });
    }
    stop();
    closed = true;
    state.check();
  }

  template <typename Condition>
  void wait_until(const std::function<void()>& interrupted, Condition condition) {
    std::unique_lock lock(state.ending_mutex);
    wait_interruptibly(state, lock, state.ending_changed, interrupted, condition);
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
  SocketOptions sockets{.rank = settings.rank,
                        .nodes = settings.nodes,
                        .channels = settings.channels,
                        .workers = settings.workers,
                        .technique = settings.technique,
                        .nonfinite = settings.nonfinite,
                        .fingerprint = impl_->state.tables.fingerprint(),
                        .frame_mac = options.frame_mac,
                        .secret = options.secret,
                        .shape = options.shape,
                        .connect_timeout_seconds = options.connect_timeout_seconds,
                        .peer_timeout_seconds = options.peer_timeout_seconds};
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

NodeContext& Node::context() { return impl_->state; }

void Node::check() const { impl_->state.check(); }

std::map<std::string, double> Node::stats() const { return stats_of(impl_->state); }

std::map<std::string, double> Node::table_stats(std::size_t table) const {
  return stats_of(impl_->state, table);
}

void Node::trace(std::span<const Key> keys) {
  NodeState& state = impl_->state;
  state.trace.choose(keys);
  for (const Key number : keys) {
    LockedKey key(state.store, number);
    const Micros now = state.clock();
    if (key.state() == State::kOwner) state.trace.add(now, number, TraceKind::kAlloc);
    if (key.state() == State::kReplica) state.trace.add(now, number, TraceKind::kReplicaSetUp);
    if (state.store.intents(number) > 0) state.trace.add(now, number, TraceKind::kIntentStart);
  }
}

std::vector<TraceEvent> Node::trace_events() const { return impl_->state.trace.events(); }

void Node::close(const std::function<void()>& interrupted) { impl_->close(interrupted); }

}  // namespace adaps
