#include "work_requests.h"

#include <cstdlib>
#include <time.h>

namespace megatrace {

namespace {

uint64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// The time of the kernel's last tick, 1 to 10 ms old: a fifth of the cost, and enough to see that a sample is due.
uint64_t ticked_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

constexpr uint64_t kTickNs = 1000000;  // whoever wants samples more often than that pays for the exact clock

// The provider takes a lock of its own for each post and each poll; ours is held by the same threads at the same
// moments, so it is contended only where theirs is. A mutex and not a spin lock: its holder may be descheduled.
class Held {
 public:
  explicit Held(pthread_mutex_t* lock) : lock_(lock) { pthread_mutex_lock(lock_); }
  ~Held() { pthread_mutex_unlock(lock_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  pthread_mutex_t* lock_;
};

}  // namespace

void WorkRequests::start(const Sink* sink, uint64_t interval_ns) {
  sink_ = sink;
  interval_ns_ = interval_ns;
}

// Open addressing by the key. A queue is allocated when first seen (made by ibv_create_qp, not on the hot path) and
// kept for good: a number that is used again finds its old place, so nobody can hold a pointer to freed memory.
WorkRequests::Queue* WorkRequests::find(uint64_t key, bool make) {
  const uint64_t start = (key * 0x9E3779B97F4A7C15u) >> 50;  // 14 bits
  for (uint32_t step = 0; step < kQueues; ++step) {
    std::atomic<Queue*>& slot = queues_[(start + step) % kQueues];
    Queue* queue = slot.load(std::memory_order_acquire);  // pairs with the release below: the queue is complete
    if (queue == nullptr) {
      if (!make) return nullptr;
      Queue* made = static_cast<Queue*>(calloc(1, sizeof(Queue)));
      if (made == nullptr) return nullptr;
      pthread_mutex_init(&made->lock, nullptr);
      made->key.store(key, std::memory_order_relaxed);  // published by the exchange
      if (slot.compare_exchange_strong(queue, made, std::memory_order_acq_rel)) {
        const uint32_t at = known_.fetch_add(1, std::memory_order_relaxed);  // below kQueues: it has a slot
        listed_[at].store(made, std::memory_order_release);
        return made;
      }
      free(made);  // another thread was faster; `queue` is what it put there
    }
    if (queue->key.load(std::memory_order_relaxed) == key) return queue;  // never changes once published
  }
  return nullptr;
}

void WorkRequests::push(Queue* queue, const verbs::SendRequest* chain, const verbs::SendRequest* end) {
  for (; chain != end; chain = chain->next) {
    ++queue->posted;
    for (int i = 0; i < chain->num_sge; ++i) queue->posted_bytes += chain->sg_list[i].length;
    if ((chain->send_flags & verbs::kSignaled) == 0 && !queue->all_signaled) continue;
    if (queue->count == kSignals) {
      // Deeper than any queue we know: let the newest mark stand for two, its completion then retires both late.
      queue->marks[(queue->first + queue->count - 1) % kSignals] = {queue->posted, queue->posted_bytes};
      continue;
    }
    queue->marks[(queue->first + queue->count++) % kSignals] = {queue->posted, queue->posted_bytes};
  }
}

int WorkRequests::post(
    uint64_t key, verbs::PostSend real, verbs::Qp* qp, verbs::SendRequest* chain, verbs::SendRequest** bad) {
  Queue* queue = find(key, true);
  if (queue == nullptr) return real(qp, chain, bad);
  Held held(&queue->lock);
  verbs::SendRequest* refused = nullptr;
  const int result = real(qp, chain, &refused);
  if (result != 0 && bad != nullptr) *bad = refused;
  const bool idle = queue->posted == queue->retired;
  push(queue, chain, result == 0 ? nullptr : (refused == nullptr ? chain : refused));
  const uint32_t depth = static_cast<uint32_t>(queue->posted - queue->retired);
  if (depth > queue->max_depth) queue->max_depth = depth;
  if (!idle || depth == 0) {
    say_if_due(queue);
    return result;
  }
  const uint64_t now = monotonic_ns();
  queue->busy_since_ns = now;
  say(queue, now, queue->said_depth == 0);
  return result;
}

void WorkRequests::completed(uint64_t key, const verbs::Completion& completion) {
  const bool failed = completion.status != 0;
  // Of a failed request only wr_id, status, qp_num and vendor_err are valid: it may have been a receive.
  if (!failed && (completion.opcode & verbs::kReceive) != 0) return;
  Queue* queue = find(key, failed);
  if (queue == nullptr) return;
  Held held(&queue->lock);
  if (failed) {
    const uint32_t depth = static_cast<uint32_t>(queue->posted - queue->retired);
    // The queue pair is in error from here on and everything behind is flushed: what was outstanding stays so, as
    // the evidence that it is. The first error is the cause, the others are its echo.
    ++queue->errors;
    if (!queue->failed && sink_ != nullptr)
      sink_->error({monotonic_ns(), key, completion.wr_id, depth, completion.status, completion.vendor_err});
    queue->failed = true;
    return;
  }
  if (queue->count == 0) return;  // asked for before we were there
  const Mark mark = queue->marks[queue->first];
  queue->first = (queue->first + 1) % kSignals;
  --queue->count;
  queue->retired = mark.posted;
  queue->retired_bytes = mark.bytes;
  if (queue->posted != queue->retired) return say_if_due(queue);
  const uint64_t now = monotonic_ns();
  queue->busy_ns += now - queue->busy_since_ns;
  queue->busy_since_ns = 0;
  say(queue, now, queue->said_depth != 0);
}

// Most requests come and go in a queue that stays busy, between two samples.
void WorkRequests::say_if_due(Queue* queue) {
  queue->unsaid = true;
  // Signed: a sample has the exact time, which the last tick may lie before.
  if (interval_ns_ >= kTickNs &&
      static_cast<int64_t>(ticked_ns() - queue->sampled_ns) < static_cast<int64_t>(interval_ns_))
    return;
  say(queue, monotonic_ns(), false);
}

void WorkRequests::say(Queue* queue, uint64_t now, bool always) {
  queue->unsaid = true;
  if (sink_ == nullptr || (!always && now - queue->sampled_ns < interval_ns_)) return;
  queue->unsaid = false;
  queue->sampled_ns = now;
  queue->said_depth = static_cast<uint32_t>(queue->posted - queue->retired);
  const uint64_t busy = queue->busy_ns + (queue->busy_since_ns != 0 ? now - queue->busy_since_ns : 0);
  sink_->sample(
      {now, queue->key.load(std::memory_order_relaxed), queue->posted_bytes - queue->retired_bytes,
       queue->retired_bytes, queue->retired, busy, queue->said_depth});
}

void WorkRequests::idle() {
  // The clock is looked at in every 1,024th empty poll (some 100 us apart). A count lost to another thread is no harm.
  const uint32_t polls = idle_.load(std::memory_order_relaxed) + 1;
  idle_.store(polls, std::memory_order_relaxed);
  if (polls % 1024 != 0) return;
  const uint64_t now = monotonic_ns();
  if (now - swept_ns_.load(std::memory_order_relaxed) < interval_ns_) return;
  swept_ns_.store(now, std::memory_order_relaxed);
  if (sink_ != nullptr) sink_->alive(now);
  const uint32_t known = known_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < known; ++i) {
    Queue* queue = listed_[i].load(std::memory_order_acquire);
    if (queue == nullptr || pthread_mutex_trylock(&queue->lock) != 0) continue;
    if (queue->unsaid) say(queue, now, false);
    pthread_mutex_unlock(&queue->lock);
  }
}

void WorkRequests::created(uint64_t key, bool all_signaled) {
  Queue* queue = find(key, true);
  if (queue == nullptr) return;
  Held held(&queue->lock);
  queue->all_signaled = all_signaled;
}

// A destroyed queue pair takes its outstanding requests along; a new one may get the same number.
void WorkRequests::forget(uint64_t key) {
  Queue* queue = find(key, false);
  if (queue == nullptr) return;
  Held held(&queue->lock);
  queue->retired = queue->posted;
  queue->retired_bytes = queue->posted_bytes;
  queue->count = 0;
  queue->all_signaled = queue->failed = false;
  const uint64_t now = monotonic_ns();
  if (queue->busy_since_ns != 0) queue->busy_ns += now - queue->busy_since_ns;
  queue->busy_since_ns = 0;
  say(queue, now, true);
}

QueueTotals WorkRequests::totals() {
  QueueTotals totals;
  for (std::atomic<Queue*>& slot : queues_) {
    Queue* queue = slot.load(std::memory_order_acquire);
    if (queue == nullptr) continue;
    Held held(&queue->lock);
    ++totals.queues;
    totals.posted += queue->posted;
    totals.completed += queue->retired;
    totals.posted_bytes += queue->posted_bytes;
    totals.completed_bytes += queue->retired_bytes;
    totals.errors += queue->errors;
    if (queue->max_depth > totals.max_depth) totals.max_depth = queue->max_depth;
  }
  return totals;
}

}  // namespace megatrace
