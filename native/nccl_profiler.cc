// libnccl-profiler-megatrace.so: NCCL's profiler plug-in, versions 1 to 6 over one core.
//
// From version 5 NCCL tells of a call when the program makes it, with its stream (CollApi, P2pApi), and again when it is
// given to the device (Coll, P2p), with its peer. Up to version 4 there is only the second. Neither tells when it is
// done: that is in the events of the kernels, which cost more and are switched on by the control word of the ring.
//
// NCCL takes one plug-in. Another one, named by MEGATRACE_CHAIN_PROFILER, is loaded behind this one and gets what it
// asked for, where it speaks the same version (5 and 6 are alike).
//
// Where the control word asks for them, groups are told, too, and the steps of the proxy (nccl_steps.h).
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <unistd.h>

#include "nccl_chain.h"
#include "nccl_events.h"
#include "nccl_profiler_abi.h"
#include "nccl_recorder.h"
#include "nccl_steps.h"

namespace megatrace {

Recorder g_recorder(kPlugin);

namespace {

using namespace profiler;

constexpr int kKnown[] = {0, 0x3F, 0x3F, 0xFF, 0xFF, 0xFFF, 0x7FFF};  // types of events by version
OpenEvents g_events;
std::atomic<uint64_t> g_groups{0};

Chained g_chained;
std::atomic<int> g_chained_mask{0};
int g_version = 0;
pthread_mutex_t g_setup = PTHREAD_MUTEX_INITIALIZER;

// Once a process: what the header tells, and the plug-in behind.
void setup(int version) {
  pthread_mutex_lock(&g_setup);
  if (g_version == 0) {
    g_version = version;
    pthread_atfork(nullptr, nullptr, steps_forked);
    snprintf(g_about, sizeof g_about, ", \"profiler\": %d", version);
    g_chained = chained_profiler(version);
  }
  pthread_mutex_unlock(&g_setup);
}

int usual(int version) { return version >= 5 ? kColl | kP2p | kCollApi | kP2pApi : kColl | kP2p; }

// What the control word asks for, as types of events of this version. Whoever wants steps has to ask for the operations
// that they are of.
int on_demand(int version, uint32_t control) {
  int wanted = static_cast<int>(control & kKernelCh);
  if ((control & kProxyStep) != 0) wanted |= kProxyOp | kProxyStep;
  if ((control & kWantGroups) != 0) wanted |= version >= 5 ? kGroupApi : kGroup;
  return wanted & kKnown[version];
}

// Brings NCCL's mask to what is wanted now. It is one for all communicators, and read by NCCL without a lock.
int refresh(Communicator* communicator, int version) {
  const uint32_t control = g_recorder.control();
  if (communicator->control.load(std::memory_order_relaxed) == control)
    return communicator->applied.load(std::memory_order_relaxed);
  const int wanted = usual(version) | on_demand(version, control) | g_chained_mask.load(std::memory_order_relaxed);
  communicator->applied.store(wanted, std::memory_order_relaxed);
  communicator->control.store(control, std::memory_order_relaxed);
  __atomic_store_n(communicator->mask, wanted, __ATOMIC_RELAXED);
  return wanted;
}

// Must be called first: what the other plug-in makes of an event, nullptr where it does not want it. The parent in the
// description is a handle of ours, and becomes one of theirs for the time of the call.
template <int V, class D>
void* relay(Communicator* communicator, D* descr) {
  if (g_chained.start == nullptr || communicator->theirs == nullptr) return nullptr;
  if ((static_cast<int>(descr->type) & g_chained_mask.load(std::memory_order_relaxed)) == 0) return nullptr;
  Event parent;
  D copy = *descr;
  copy.parent = g_events.find(descr->parent, &parent) != nullptr ? parent.theirs : nullptr;
  if constexpr (V >= 5) {
    void** group = descr->type == kColl ? &copy.coll.parent_group : descr->type == kP2p ? &copy.p2p.parent_group : nullptr;
    if (group != nullptr) *group = g_events.find(*group, &parent) != nullptr ? parent.theirs : nullptr;
  }
  void* theirs = nullptr;
  g_chained.start(communicator->theirs, &theirs, &copy);
  return theirs;
}

constexpr int kBelow = kKernelCh | kProxyOp | kProxyStep;  // events that come back to the event of a call

// The group that a call is made in, as far as groups are told: its mark, 0 for none.
uint8_t grouped(void* parent, int wanted) {
  Event group;
  if ((wanted & (kGroup | kGroupApi)) == 0 || is_inline(parent)) return 0;
  Slot* slot = g_events.find(parent, &group);
  if (slot == nullptr || (group.type != kGroup && group.type != kGroupApi)) return 0;
  slot->inside.fetch_add(1, std::memory_order_relaxed);
  return group_mark(group.number);
}

template <int V, class D>
void learn(Communicator* communicator, const D& descr) {
  if constexpr (V <= 3) {
    if (communicator->told.load(std::memory_order_relaxed)) return;
    const uint64_t hash = descr.type == kColl ? descr.coll.comm_hash : descr.p2p.comm_hash;
    g_recorder.learn(communicator, hash, static_cast<uint32_t>(descr.rank));
  }
}

// Half of all events: a collective that is given to the device was told as CollApi, and nothing new is in it.
template <int V, class D>
bool recorded(const Communicator& communicator, const D& descr) {
  return V >= 5 && descr.type == kColl && is_inline(descr.parent) &&
         (communicator.applied.load(std::memory_order_relaxed) & kBelow) == 0;
}

// The call that an event belongs to: that of its parent where NCCL told of it before, else a new one. Whether a handle
// is needed: only kernels and the proxy come back to it, and NCCL says no more of an event without one.
template <int V, class D>
bool given(Communicator* communicator, D* descr, Event* event) {
  if (recorded<V>(*communicator, *descr)) return false;
  const int wanted = refresh(communicator, V);
  const bool kernels = (wanted & kKernelCh) != 0;
  Event parent;
  const bool known = V >= 5 && g_events.find(descr->parent, &parent) != nullptr &&
                     parent.communicator == communicator && (parent.type == kCollApi || parent.type == kP2pApi);
  learn<V>(communicator, *descr);
  const uint8_t group = known ? 0 : grouped(descr->parent, wanted);
  if (descr->type == kColl) {
    event->channels = descr->coll.channels;
    event->op = known ? parent.op : op_of(descr->coll.func);
    event->number = known ? parent.number
                          : g_recorder.call(communicator,
                                            {event->op, type_of(descr->coll.datatype), descr->coll.count, 0, -1,
                                             static_cast<uint32_t>(descr->coll.root), group},
                                            kernels);
    return (wanted & kBelow) != 0;
  }
  if constexpr (V >= 4) event->channels = descr->p2p.channels;
  event->op = op_of(descr->p2p.func);
  if (known) {
    event->number = parent.number;
    g_recorder.peer(communicator, event->op, parent.number, descr->p2p.peer);
  } else {
    event->number = g_recorder.call(
        communicator, {event->op, type_of(descr->p2p.datatype), descr->p2p.count, 0, descr->p2p.peer, 0, group},
        kernels);
  }
  return (wanted & kBelow) != 0;
}

template <int V, class D>
bool api(Communicator* communicator, D* descr, Event* event) {
  if constexpr (V >= 5) {
    if (descr->type != kCollApi && descr->type != kP2pApi) return false;
    const int wanted = refresh(communicator, V);
    const bool kernels = (wanted & kKernelCh) != 0;
    const uint8_t group = grouped(descr->parent, wanted);
    if (descr->type == kCollApi) {
      const CollApi& call = descr->coll_api;
      event->op = op_of(call.func);
      event->number = g_recorder.call(
          communicator,
          {event->op, type_of(call.datatype), call.count, reinterpret_cast<uintptr_t>(call.stream), -1,
           static_cast<uint32_t>(call.root), group},
          kernels);
      return true;
    }
    const P2pApi& call = descr->p2p_api;
    event->op = op_of(call.func);
    event->number = g_recorder.call(
        communicator,
        {event->op, type_of(call.datatype), call.count, reinterpret_cast<uintptr_t>(call.stream), -1, 0, group},
        kernels);
    return true;
  }
  return false;
}

// What the proxy sends for a call. What it receives leaves no queue here, and without a handle NCCL tells no more of it.
template <class D>
bool proxy_op(const D& descr, Event* event) {
  if (descr.proxy_op.is_send == 0 || (g_recorder.control() & kProxyStep) == 0) return false;
  event->queue = step_queue(event->communicator, descr.proxy_op.peer);
  event->number = descr.proxy_op.chunk > 0 ? static_cast<uint64_t>(descr.proxy_op.chunk) : 0;
  return event->queue != nullptr;
}

// A part of it. Its parent may be of another process (PXN): then the number says nothing here.
bool proxy_step(void* parent, Event* event) {
  Event operation;
  if (g_events.find(parent, &operation) == nullptr || operation.type != kProxyOp || operation.queue == nullptr)
    return false;
  event->number = reinterpret_cast<uintptr_t>(parent);
  return true;
}

// The network has it. Up to version 3 its size is not told: the size of the operation's chunks is the most it can be.
void step_sent(Slot* step, const Event& event, bool sized, uint64_t bytes) {
  Event operation;
  Slot* slot = g_events.find(reinterpret_cast<void*>(static_cast<uintptr_t>(event.number)), &operation);
  if (slot == nullptr || operation.queue == nullptr || step->started.exchange(true, std::memory_order_relaxed)) return;
  if (!sized) bytes = operation.number;
  step->bytes.store(bytes, std::memory_order_relaxed);
  slot->bytes.fetch_add(bytes, std::memory_order_relaxed);
  slot->inside.fetch_add(1, std::memory_order_relaxed);
  step_posted(operation.queue, bytes);
}

void step_ended(Slot* step, const Event& event) {
  Event operation;
  if (!step->started.load(std::memory_order_relaxed) || step->stopped.exchange(1, std::memory_order_relaxed) != 0)
    return;
  Slot* slot = g_events.find(reinterpret_cast<void*>(static_cast<uintptr_t>(event.number)), &operation);
  if (slot == nullptr || slot->inside.load(std::memory_order_relaxed) == 0) return;  // ended with its operation
  slot->inside.fetch_sub(1, std::memory_order_relaxed);
  slot->bytes.fetch_sub(event.bytes, std::memory_order_relaxed);
  steps_done(operation.queue, 1, event.bytes);
}

// A kernel began on one channel: the first of a call is its start.
bool kernel(void* parent, uint64_t timer, Event* event) {
  Event call;
  Slot* slot = g_events.find(parent, &call);
  if (slot == nullptr || (call.type != kColl && call.type != kP2p)) return false;
  if (!slot->started.exchange(true, std::memory_order_relaxed))
    g_recorder.mark(kStart, call.communicator, call.op, call.number, 0, timer);
  event->number = reinterpret_cast<uintptr_t>(parent);  // to find the call again when the kernel stops
  return true;
}

template <int V, class D>
int start(void* context, void** handle, D* descr) {
  if (handle == nullptr) return 0;
  *handle = nullptr;
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator == nullptr || descr == nullptr || (g_chained.start == nullptr && recorded<V>(*communicator, *descr)))
    return 0;
  Event event;
  event.communicator = communicator;
  event.type = static_cast<uint32_t>(descr->type);
  event.theirs = relay<V>(communicator, descr);
  bool ours = false;
  switch (event.type) {
    case kColl:
    case kP2p:
      ours = given<V>(communicator, descr, &event);
      break;
    case kKernelCh:
      ours = V >= 3 && kernel(descr->parent, V >= 4 ? descr->kernel.timer : 0, &event);
      break;
    case kProxyOp:
      ours = proxy_op(*descr, &event);
      break;
    case kProxyStep:
      ours = proxy_step(descr->parent, &event);
      break;
    case kGroup:
    case kGroupApi:
      event.number = g_groups.fetch_add(1, std::memory_order_relaxed);
      ours = (on_demand(V, g_recorder.control()) & event.type) != 0;
      break;
    default:
      ours = api<V>(communicator, descr, &event);
  }
  if (ours || event.theirs != nullptr) *handle = g_events.open(event);
  return 0;
}

// The last channel of a call is its end; where NCCL did not say how many there are, every one may be.
void kernel_ended(const Event& event) {
  Event call;
  Slot* slot = g_events.find(reinterpret_cast<void*>(static_cast<uintptr_t>(event.number)), &call);
  if (slot == nullptr) return;
  const uint32_t stopped = slot->stopped.fetch_add(1, std::memory_order_relaxed) + 1;
  if (call.channels == 0 || stopped == call.channels)
    g_recorder.mark(kEnd, call.communicator, call.op, call.number, 0, 0);
}

// One call alone is a group to NCCL as well, and nothing to tell.
void group_ended(Slot* slot, const Event& event, bool done) {
  const uint32_t calls = slot->inside.load(std::memory_order_relaxed);
  if (calls > 1) g_recorder.group(group_mark(event.number), calls, done);
}

int stop(void* handle) {
  if (handle == nullptr || is_inline(handle)) return 0;
  Event event;
  Slot* slot = g_events.find(handle, &event);
  if (slot == nullptr) return 0;
  if (event.type == kKernelCh && !slot->stopped.exchange(1, std::memory_order_relaxed)) kernel_ended(event);
  if (event.type == kProxyStep) step_ended(slot, event);
  if (event.type == kProxyOp) OpenEvents::close_steps(slot);
  if (event.type == kGroup || event.type == kGroupApi) group_ended(slot, event, true);
  if (event.theirs != nullptr && g_chained.stop != nullptr) g_chained.stop(event.theirs);
  return 0;
}

template <int V>
int record(void* handle, int state, void* arguments) {
  Event event;
  Slot* slot = nullptr;
  const bool ours = state == kSendWait || state == kGroupEnds;
  if (!ours && g_chained.record == nullptr) return 0;
  if (handle == nullptr || is_inline(handle) || (slot = g_events.find(handle, &event)) == nullptr) return 0;
  if (event.type == kProxyStep && state == kSendWait) {
    size_t bytes = 0;
    const bool sized = V >= 4 && arguments != nullptr;
    if (sized) memcpy(&bytes, arguments, sizeof bytes);
    step_sent(slot, event, sized, bytes);
  }
  if (event.type == kGroupApi && state == kGroupEnds) group_ended(slot, event, false);
  if (event.theirs != nullptr && g_chained.record != nullptr) g_chained.record(event.theirs, state, arguments);
  return 0;
}

int finalize(void* context) {
  auto* communicator = static_cast<Communicator*>(context);
  if (communicator != nullptr) steps_forget(communicator);
  if (communicator != nullptr && communicator->theirs != nullptr && g_chained.finalize != nullptr) {
    g_chained.finalize(communicator->theirs);
    communicator->theirs = nullptr;
  }
  return 0;
}

// What is common to the three forms of init. `call` starts the other plug-in, which may refuse.
template <class Theirs>
int begin(int version, void** context, int* mask, uint64_t hash, int ranks, int rank, Theirs call) {
  if (context == nullptr || mask == nullptr) return 0;
  *context = nullptr;
  setup(version);
  // Where nothing can be recorded, the other plug-in is served all the same.
  const bool chained = g_chained.init != nullptr;
  Communicator* made = g_recorder.begin(hash, static_cast<uint32_t>(ranks), static_cast<uint32_t>(rank), chained);
  *context = made;
  if (made == nullptr) {
    *mask = 0;
    return 0;
  }
  made->mask = mask;
  int theirs = 0;
  if (chained && call(&made->theirs, &theirs) != 0) made->theirs = nullptr;
  if (made->theirs != nullptr) g_chained_mask.fetch_or(theirs & kKnown[version], std::memory_order_relaxed);
  refresh(made, version);
  return 0;
}

template <int V>
int init_v1(void** context, int* mask) {
  return begin(V, context, mask, 0, 0, 0, [](void** theirs, int* events) {
    return reinterpret_cast<InitV1>(g_chained.init)(theirs, events);
  });
}

int init_v4(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank, Logger log) {
  return begin(4, context, mask, hash, ranks, rank, [&](void** theirs, int* events) {
    return reinterpret_cast<InitV4>(g_chained.init)(theirs, events, name, hash, nodes, ranks, rank, log);
  });
}

template <int V>
int init_v5(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, Logger log) {
  return begin(V, context, mask, id, ranks, rank, [&](void** theirs, int* events) {
    return reinterpret_cast<InitV5>(g_chained.init)(theirs, id, events, name, nodes, ranks, rank, log);
  });
}

template <class Init, class D, int V>
constexpr Plugin<Init, D> table(Init init) {
  return {"megatrace", init, start<V, D>, stop, record<V>, finalize};
}

}  // namespace
}  // namespace megatrace

#define MT_EXPORT extern "C" __attribute__((visibility("default")))
#define MT_PLUGIN(version, init, descr, function)                                                           \
  MT_EXPORT const megatrace::profiler::Plugin<megatrace::profiler::init, megatrace::profiler::descr>        \
      ncclProfiler_v##version;                                                                              \
  const megatrace::profiler::Plugin<megatrace::profiler::init, megatrace::profiler::descr>                  \
      ncclProfiler_v##version =                                                                             \
          megatrace::table<megatrace::profiler::init, megatrace::profiler::descr, version>(megatrace::function);

MT_PLUGIN(1, InitV1, DescrV1, init_v1<1>)
MT_PLUGIN(2, InitV1, DescrV2, init_v1<2>)
MT_PLUGIN(3, InitV1, DescrV3, init_v1<3>)
MT_PLUGIN(4, InitV4, DescrV4, init_v4)
MT_PLUGIN(5, InitV5, DescrV5, init_v5<5>)
MT_PLUGIN(6, InitV5, DescrV6, init_v5<6>)
