#include "nccl_recorder.h"

#include <cstdio>
#include <pthread.h>
#include <sys/mman.h>

#include "about.h"

namespace megatrace {

namespace {

constexpr uint32_t kUnknownPeers = 1u << 16;

constexpr uint8_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // bytes of NCCL's types

Communicator g_communicators[kCommunicators];
std::atomic<uint32_t> g_count{0};
pthread_mutex_t g_opening = PTHREAD_MUTEX_INITIALIZER;

void child() {
  // Only this thread is here. A lock that another held at the fork would stay locked for ever.
  g_opening = PTHREAD_MUTEX_INITIALIZER;
  g_recorder.forked();
}

// Unrolled by the compiler: a call of strncmp would cost as much as the rest of a record.
template <size_t N>
inline bool starts(const char* word, const char (&with)[N]) {
  for (size_t i = 0; i + 1 < N; ++i)
    if (word[i] != with[i]) return false;
  return true;
}

// Events that cost more than calls and are wanted from the start on, as bits of NCCL's mask.
uint32_t wanted() {
  constexpr struct {
    const char* variable;
    uint32_t events;
  } kAsked[] = {
      {"MEGATRACE_NCCL_KERNELS", kWantKernels},
      {"MEGATRACE_NCCL_NETWORK", kWantSteps},
      {"MEGATRACE_NCCL_GROUPS", kWantGroups},
  };
  uint32_t events = 0;
  for (const auto& asked : kAsked) {
    const char* word = number_of(asked.variable);
    if (word != nullptr && word[0] != '0') events |= asked.events;
  }
  return events;
}

}  // namespace

char g_about[256] = "";

Communicator* communicator_at(uint32_t index) { return &g_communicators[index]; }

uint8_t op_of(const char* function) {
  if (function == nullptr) return 0;
  switch (function[0]) {
    case 'A':
      if (!starts(function, "All")) return 0;
      return function[3] == 'R' ? 1 : function[3] == 'G' ? 2 : function[3] == 't' || function[3] == 'T' ? 8 : 0;
    case 'R':
      if (starts(function, "Reduce")) return function[6] == 'S' ? 3 : function[6] == '\0' ? 5 : 0;
      return starts(function, "Recv") ? 7 : 0;
    case 'B':
      return starts(function, "Broadcast") ? 4 : 0;
    case 'S':
      if (starts(function, "Send")) return function[4] == '\0' ? 6 : 0;
      return starts(function, "Scatter") ? 10 : 0;
    case 'G':
      return starts(function, "Gather") ? 9 : 0;
    default:
      return 0;
  }
}

uint8_t op_of(uint8_t function) {
  constexpr uint8_t kOps[] = {4, 5, 2, 3, 1, 0, 6, 7};  // in the order of NCCL 2.23's functions
  return function < sizeof kOps ? kOps[function] : 0;
}

uint8_t type_of(const char* datatype) {
  if (datatype == nullptr || !starts(datatype, "nccl")) return kNoType;
  const char* name = datatype + 4;
  const auto sized = [](char digit, uint8_t of8, uint8_t of16, uint8_t of32, uint8_t of64) {
    return digit == '8' ? of8 : digit == '1' ? of16 : digit == '3' ? of32 : digit == '6' ? of64 : kNoType;
  };
  if (starts(name, "Float8")) return name[6] == 'e' && name[7] == '4' ? 10 : 11;
  if (starts(name, "Float")) return sized(name[5], kNoType, 6, 7, 8);
  if (starts(name, "Bfloat16")) return 9;
  if (starts(name, "Int")) return sized(name[3], 0, kNoType, 2, 4);
  return starts(name, "Uint") ? sized(name[4], 1, kNoType, 3, 5) : kNoType;
}

Communicator* Recorder::begin(uint64_t hash, uint32_t ranks, uint32_t rank, bool anyway) {
  if (refused_.load(std::memory_order_relaxed) && !anyway) return nullptr;
  pthread_mutex_lock(&g_opening);
  if (!ring_.is_open() && !refused_.load(std::memory_order_relaxed)) {
    static bool handled = false;
    if (!handled) handled = pthread_atfork(nullptr, nullptr, child) == 0;
    const char* name = source_ == kPlugin ? "nccl" : "preload";
    const uint64_t records = records_of("MEGATRACE_RING_RECORDS", 1u << 16);
    if (!handled || !ring_.open({"calls of NCCL", name, name, records, kCommunicators, g_about}))
      refused_.store(true, std::memory_order_relaxed);
    ring_.want(wanted());
  }
  pthread_mutex_unlock(&g_opening);
  if (!ring_.is_open() && !anyway) return nullptr;
  const uint32_t index = g_count.fetch_add(1, std::memory_order_relaxed);
  if (index >= kCommunicators) {
    if (index == kCommunicators)
      fprintf(stderr, "megatrace: this process made %u communicators; further ones are not recorded\n", index);
    return nullptr;
  }
  Communicator* made = &g_communicators[index];
  made->ranks = ranks;
  made->rank = rank;
  made->index = static_cast<uint16_t>(index);
  made->peers = ranks != 0 ? ranks : kUnknownPeers;
  // From the kernel and not from malloc: pages that no peer needs are never touched. Without it messages have no number.
  const size_t size = size_t{2} * made->peers * sizeof(std::atomic<uint32_t>);
  void* counts = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  made->counts = counts == MAP_FAILED ? nullptr : static_cast<std::atomic<uint32_t>*>(counts);
  if (hash != 0) learn(made, hash, rank);
  return made;
}

void Recorder::learn(Communicator* communicator, uint64_t hash, uint32_t rank) {
  if (communicator->told.exchange(true, std::memory_order_acq_rel)) return;
  communicator->hash.store(hash, std::memory_order_release);
  communicator->rank = rank;
  Record made = record(kCommunicator, communicator, 0, communicator->ranks);
  made.peer = static_cast<int32_t>(rank);
  ring_.keep(made);
}

Record Recorder::record(Kind kind, const Communicator* communicator, uint8_t op, uint64_t number) const {
  Record made{};
  made.time_ns = clock_ns(CLOCK_MONOTONIC);
  made.comm = communicator->hash.load(std::memory_order_relaxed);
  made.number = number;
  made.peer = -1;
  made.kind = kind;
  made.op = op;
  made.thread = communicator->index;
  made.source = source_;
  return made;
}

uint32_t Recorder::message(Communicator* communicator, uint8_t op, int32_t peer) {
  if (communicator->counts == nullptr || peer < 0 || static_cast<uint32_t>(peer) >= communicator->peers)
    return kNoNumber;
  // A plain counter like that of the calls: messages with one peer are ordered by NCCL's own rules.
  std::atomic<uint32_t>& count =
      communicator->counts[(op == kSend ? 0 : communicator->peers) + static_cast<uint32_t>(peer)];
  const uint32_t number = count.load(std::memory_order_relaxed);
  count.store(number + 1, std::memory_order_relaxed);
  return number;
}

uint64_t Recorder::call(Communicator* communicator, const Call& call, bool kernels) {
  const bool message_ = call.op == kSend || call.op == kReceive;
  std::atomic<uint64_t>& counter = message_ ? communicator->messages : communicator->collectives;
  // Two threads may not use a communicator at once, so this is a plain counter that another may read: no locked
  // instruction, which would be a tenth of the cost of a call.
  const uint64_t number = counter.load(std::memory_order_relaxed);
  counter.store(number + 1, std::memory_order_relaxed);
  Record made = record(kCall, communicator, call.op, number);
  made.nbytes = call.type < sizeof kSizes ? call.count * kSizes[call.type] : call.count;
  made.stream = call.stream;
  made.flags = message_ ? message(communicator, call.op, call.peer) : call.root;
  made.peer = call.peer;
  made.dtype = call.type;
  made.channel = static_cast<uint8_t>((kernels ? 1 : 0) | call.group << 1);
  ring_.put(made);
  return number;
}

void Recorder::peer(Communicator* communicator, uint8_t op, uint64_t number, int32_t peer) {
  Record made = record(kPeer, communicator, op, number);
  made.flags = message(communicator, op, peer);
  made.peer = peer;
  ring_.put(made);
}

void Recorder::mark(Kind kind, const Communicator* communicator, uint8_t op, uint64_t number, uint32_t flags,
                    uint64_t timer) {
  Record made = record(kind, communicator, op, number);
  made.flags = flags;
  made.stream = timer;
  ring_.put(made);
}

void Recorder::group(uint8_t mark, uint64_t calls, bool done) {
  Record made{};
  made.time_ns = clock_ns(CLOCK_MONOTONIC);
  made.number = calls;
  made.flags = done ? 1 : 0;
  made.peer = -1;
  made.kind = kInGroup;
  made.channel = static_cast<uint8_t>(mark << 1);
  made.source = source_;
  ring_.put(made);
}

void Recorder::forked() {
  ring_.forget();
  refused_.store(false, std::memory_order_relaxed);
  for (Communicator& communicator : g_communicators) communicator.told.store(false, std::memory_order_relaxed);
}

}  // namespace megatrace
