#include "nccl_steps.h"

#include <pthread.h>

namespace megatrace {

// All but `key` and `path` are guarded by the lock, which is held for some 50 ns; the proxy has one thread a device.
struct StepQueue {
  std::atomic<uint64_t> key{0};  // 0: free; else 1 + (communicator << 32 | peer)
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  Record* path = nullptr;
  uint64_t depth = 0, bytes = 0;
  uint64_t done_bytes = 0, busy_ns = 0, busy_since_ns = 0, sampled_ns = 0;
  uint64_t said_depth = 0;
};

namespace {

constexpr uint32_t kQueues = 4096;  // communicators times peers over the network of one process
constexpr uint64_t kSampleNs = 1000000;

Ring g_ring;
StepQueue g_queues[kQueues];
std::atomic<bool> g_refused{false};
pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;

bool opened() {
  if (g_ring.is_open()) return true;
  if (g_refused.load(std::memory_order_relaxed)) return false;
  pthread_mutex_lock(&g_opening);
  if (!g_ring.is_open() && !g_refused.load(std::memory_order_relaxed)) {
    const uint64_t records = records_of("MEGATRACE_WR_RECORDS", 1u << 16);
    const RingWish wish{"requests to the network", "proxy", "proxy", records, kQueues + kCommunicators, g_about};
    if (!g_ring.open(wish)) g_refused.store(true, std::memory_order_relaxed);
  }
  pthread_mutex_unlock(&g_opening);
  return g_ring.is_open();
}

Record blank(uint64_t now, Kind kind, uint64_t key) {
  Record made{};
  made.time_ns = now;
  made.stream = key;
  made.peer = -1;
  made.kind = kind;
  made.source = kProxy;
  return made;
}

// A path tells its communicator, its own index there and the peer's.
void begin(StepQueue* queue, const Communicator* communicator, int peer) {
  Record path = blank(clock_ns(CLOCK_MONOTONIC), kStepPath, queue->key.load(std::memory_order_relaxed));
  path.comm = communicator->hash.load(std::memory_order_acquire);
  path.thread = static_cast<uint16_t>(communicator->rank < 0xFFFF ? communicator->rank : 0xFFFF);
  path.peer = peer;
  queue->path = g_ring.keep(path);
}

// For readers in other processes: each value is right by itself.
void show(StepQueue* queue, uint64_t now) {
  __atomic_store_n(&queue->path->flags, static_cast<uint32_t>(queue->depth), __ATOMIC_RELAXED);
  __atomic_store_n(&queue->path->nbytes, queue->bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&queue->path->number, queue->done_bytes, __ATOMIC_RELAXED);
  __atomic_store_n(&queue->path->time_ns, now, __ATOMIC_RELAXED);
}

void say(StepQueue* queue, uint64_t now, bool always) {
  show(queue, now);
  if (!always && now - queue->sampled_ns < kSampleNs) return;
  queue->sampled_ns = now;
  queue->said_depth = queue->depth;
  Record made = blank(now, kSample, queue->key.load(std::memory_order_relaxed));
  made.comm = queue->busy_ns + (queue->busy_since_ns != 0 ? now - queue->busy_since_ns : 0);
  made.number = queue->done_bytes;
  made.nbytes = queue->bytes;
  made.flags = static_cast<uint32_t>(queue->depth);
  g_ring.put(made);
}

void retire(StepQueue* queue, uint64_t steps, uint64_t bytes, bool moved) {
  const uint64_t now = clock_ns(CLOCK_MONOTONIC);
  if (steps > queue->depth) steps = queue->depth;
  if (bytes > queue->bytes) bytes = queue->bytes;
  queue->depth -= steps;
  queue->bytes -= bytes;
  if (moved) queue->done_bytes += bytes;
  if (queue->depth == 0 && queue->busy_since_ns != 0) {
    queue->busy_ns += now - queue->busy_since_ns;
    queue->busy_since_ns = 0;
  }
  say(queue, now, queue->depth == 0 && queue->said_depth != 0);
}

}  // namespace

StepQueue* step_queue(const Communicator* communicator, int peer) {
  if (peer < 0 || !opened()) return nullptr;
  const uint64_t key = 1 + (uint64_t{communicator->index} << 32 | static_cast<uint32_t>(peer));
  const uint64_t start = (key * 0x9E3779B97F4A7C15u) >> 52;  // 12 bits: kQueues
  for (uint32_t i = 0; i < kQueues; ++i) {
    StepQueue& queue = g_queues[(start + i) % kQueues];
    uint64_t there = queue.key.load(std::memory_order_acquire);
    if (there == 0) {
      pthread_mutex_lock(&queue.lock);
      // Acquire and release: whoever finds the key finds the path that was made under the lock, or waits for it.
      if (queue.key.compare_exchange_strong(there, key, std::memory_order_acq_rel)) begin(&queue, communicator, peer);
      pthread_mutex_unlock(&queue.lock);
      there = queue.key.load(std::memory_order_acquire);
    }
    if (there == key) return &queue;
  }
  return nullptr;
}

void step_posted(StepQueue* queue, uint64_t bytes) {
  pthread_mutex_lock(&queue->lock);
  if (queue->path != nullptr) {
    const uint64_t now = clock_ns(CLOCK_MONOTONIC);
    const bool idle = queue->depth == 0;
    if (idle) queue->busy_since_ns = now;
    ++queue->depth;
    queue->bytes += bytes;
    say(queue, now, idle && queue->said_depth == 0);
  }
  pthread_mutex_unlock(&queue->lock);
}

void steps_done(StepQueue* queue, uint64_t steps, uint64_t bytes) {
  pthread_mutex_lock(&queue->lock);
  if (queue->path != nullptr) retire(queue, steps, bytes, true);
  pthread_mutex_unlock(&queue->lock);
}

void steps_forget(const Communicator* communicator) {
  if (!g_ring.is_open()) return;
  for (StepQueue& queue : g_queues) {
    const uint64_t key = queue.key.load(std::memory_order_acquire);
    if (key == 0 || (key - 1) >> 32 != communicator->index) continue;
    pthread_mutex_lock(&queue.lock);
    if (queue.path != nullptr && queue.depth != 0) retire(&queue, queue.depth, queue.bytes, false);
    pthread_mutex_unlock(&queue.lock);
  }
}

void steps_forked() {
  g_ring.forget();
  g_opening = PTHREAD_MUTEX_INITIALIZER;
  g_refused.store(false, std::memory_order_relaxed);
  for (StepQueue& queue : g_queues) {
    queue.key.store(0, std::memory_order_relaxed);
    queue.lock = PTHREAD_MUTEX_INITIALIZER;
    queue.path = nullptr;
    queue.depth = queue.bytes = queue.done_bytes = queue.busy_ns = queue.busy_since_ns = 0;
    queue.sampled_ns = queue.said_depth = 0;
  }
}

}  // namespace megatrace
