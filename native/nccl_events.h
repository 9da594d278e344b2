// Events of NCCL's profiler interface that are open. A handle is a number and never an address: events come late, twice
// or not at all, and a number that is no longer known is simply passed over.
#pragma once

#include <atomic>
#include <cstdint>

#include "nccl_profiler_abi.h"
#include "nccl_recorder.h"
#include "nccl_steps.h"

namespace megatrace {

constexpr uint64_t kSlots = 1u << 16;  // events that can be open at one time; older ones are forgotten

// What is known of an event while it is open. All relaxed, guarded by `ticket` (acquire and release) as in a seqlock.
struct Slot {
  std::atomic<uint64_t> ticket{0};
  std::atomic<Communicator*> communicator{nullptr};
  std::atomic<uint64_t> number{0};
  std::atomic<void*> theirs{nullptr};
  std::atomic<StepQueue*> queue{nullptr};
  std::atomic<uint64_t> bytes{0};  // of the request; of a proxy's operation, and of a group, of all that is inside
  std::atomic<uint32_t> type{0}, stopped{0}, inside{0};
  std::atomic<uint8_t> op{0}, channels{0};
  std::atomic<bool> started{false};
};

struct Event {
  Communicator* communicator = nullptr;
  uint64_t number = 0;
  void* theirs = nullptr;
  StepQueue* queue = nullptr;
  uint64_t bytes = 0;
  uint32_t type = 0;
  uint8_t op = 0, channels = 0;
};

// A handle that says all that is needed of a call, so that it needs no slot: bit 63, communicator, what, number.
constexpr uint64_t kInline = uint64_t{1} << 63;
constexpr int kIndexAt = 53, kOpAt = 48, kMessageAt = 52;
constexpr uint64_t kNumbers = (uint64_t{1} << kOpAt) - 1;
static_assert(sizeof(void*) == 8 && (kCommunicators - 1) >> (63 - kIndexAt) == 0);

inline bool is_inline(const void* handle) { return (reinterpret_cast<uintptr_t>(handle) & kInline) != 0; }

class OpenEvents {
 public:
  // The handle of a new event.
  void* open(const Event& event) {
    if (event.theirs == nullptr && (event.type == profiler::kCollApi || event.type == profiler::kP2pApi))
      return inlined(event);
    uint64_t ticket = last_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (ticket % kSlots == 0) ticket = last_.fetch_add(1, std::memory_order_relaxed) + 1;
    Slot& slot = slots_[ticket % kSlots];
    slot.ticket.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // nobody may see what follows and still the old ticket
    close_steps(&slot);  // of an operation that nobody ended
    slot.communicator.store(event.communicator, std::memory_order_relaxed);
    slot.number.store(event.number, std::memory_order_relaxed);
    slot.theirs.store(event.theirs, std::memory_order_relaxed);
    slot.queue.store(event.queue, std::memory_order_relaxed);
    slot.bytes.store(event.bytes, std::memory_order_relaxed);
    slot.type.store(event.type, std::memory_order_relaxed);
    slot.stopped.store(0, std::memory_order_relaxed);
    slot.inside.store(0, std::memory_order_relaxed);
    slot.op.store(event.op, std::memory_order_relaxed);
    slot.channels.store(event.channels, std::memory_order_relaxed);
    slot.started.store(false, std::memory_order_relaxed);
    slot.ticket.store(ticket, std::memory_order_release);
    return reinterpret_cast<void*>(static_cast<uintptr_t>(ticket));
  }

  // The slot of a handle, and a copy of it; nullptr where it is not known, or no longer. All calls without a slot have
  // one in common, which nobody writes to.
  Slot* find(const void* handle, Event* event) {
    const uint64_t ticket = reinterpret_cast<uintptr_t>(handle);
    if ((ticket & kInline) != 0) {
      event->communicator = communicator_at(static_cast<uint32_t>(ticket >> kIndexAt) & (kCommunicators - 1));
      event->number = ticket & kNumbers;
      event->op = static_cast<uint8_t>(ticket >> kOpAt & 0xF);
      event->type = (ticket >> kMessageAt & 1) != 0 ? profiler::kP2pApi : profiler::kCollApi;
      return &slots_[0];
    }
    Slot& slot = slots_[ticket % kSlots];
    if (ticket == 0 || slot.ticket.load(std::memory_order_acquire) != ticket) return nullptr;
    event->communicator = slot.communicator.load(std::memory_order_relaxed);
    event->number = slot.number.load(std::memory_order_relaxed);
    event->theirs = slot.theirs.load(std::memory_order_relaxed);
    event->queue = slot.queue.load(std::memory_order_relaxed);
    event->bytes = slot.bytes.load(std::memory_order_relaxed);
    event->type = slot.type.load(std::memory_order_relaxed);
    event->op = slot.op.load(std::memory_order_relaxed);
    event->channels = slot.channels.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);  // nothing above may be read after the check below
    return slot.ticket.load(std::memory_order_relaxed) == ticket ? &slot : nullptr;
  }

  // What is left of the requests of an operation: NCCL does not end every step that it began.
  static void close_steps(Slot* slot) {
    if (slot->inside.load(std::memory_order_relaxed) == 0) return;
    const uint32_t left = slot->inside.exchange(0, std::memory_order_relaxed);
    const uint64_t bytes = slot->bytes.exchange(0, std::memory_order_relaxed);
    StepQueue* queue = slot->queue.load(std::memory_order_relaxed);
    if (left != 0 && queue != nullptr) steps_done(queue, left, bytes);
  }

 private:
  static void* inlined(const Event& event) {
    const uint64_t message = event.type == profiler::kP2pApi ? 1 : 0;
    return reinterpret_cast<void*>(kInline | uint64_t{event.communicator->index} << kIndexAt |
                                   message << kMessageAt | uint64_t{event.op} << kOpAt | (event.number & kNumbers));
  }

  Slot slots_[kSlots];
  std::atomic<uint64_t> last_{0};  // slot 0 is never taken: its turn is passed over
};

}  // namespace megatrace
