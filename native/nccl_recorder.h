// The calls of NCCL as records: what the profiler plug-in and the preloaded library share.
//
// A collective has a number within its communicator, counted here: all members make their collectives in the same
// order, so the same number is the same operation everywhere. A message has a number within its communicator (which
// joins its records) and one within (peer, direction), which is the same at the other end.
#pragma once

#include <atomic>
#include <cstdint>

#include "ring.h"

namespace megatrace {

constexpr uint8_t kSend = 6, kReceive = 7;  // `Op` in model/events.py
constexpr uint32_t kCommunicators = 1024;  // of a process, destroyed ones included; Megatron-LM has some 20 at a time
constexpr uint8_t kNoType = 255;
constexpr uint32_t kNoNumber = UINT32_MAX;

// Bits of the control word, those of NCCL's mask: kernels; steps of the proxy; groups (up to version 4, and from 5 on).
constexpr uint32_t kWantKernels = 1u << 6, kWantSteps = 1u << 4, kWantGroups = 1u << 0 | 1u << 8;

// NCCL's names and numbers → `Op`, 0 for one that we do not know.
uint8_t op_of(const char* function);
uint8_t op_of(uint8_t function);
// "ncclFloat32" → NCCL's number of the type.
uint8_t type_of(const char* datatype);
inline uint8_t type_of(uint8_t datatype) { return datatype; }

// One communicator of this process.
struct Communicator {
  std::atomic<uint64_t> hash{0};  // 0: not known yet
  std::atomic<bool> told{false};
  uint32_t ranks = 0, rank = 0;
  uint16_t index = 0;
  std::atomic<uint64_t> collectives{0}, messages{0};
  std::atomic<uint64_t> children{0};          // preload: communicators that were split from it
  uint32_t peers = 0;                         // places in each half of `counts`
  std::atomic<uint32_t>* counts = nullptr;    // messages to each peer, then from each
  int* mask = nullptr;                        // plug-in: NCCL's own, and what we last put there
  std::atomic<int> applied{0};
  std::atomic<uint32_t> control{UINT32_MAX};  // plug-in: the control word from which that followed
  void* theirs = nullptr;                     // plug-in: the context of the one that is chained
};

struct Call {
  uint8_t op, type;
  uint64_t count;
  uint64_t stream;
  int32_t peer;   // index within the communicator, -1 for none or not known yet
  uint32_t root;
  uint8_t group = 0;  // calls of one NCCL group that follow each other have the same; 0: no group, or not known
};

// The number by which calls say that they are in one group: 1 to 127, so that it stands beside another bit.
inline uint8_t group_mark(uint64_t group) { return static_cast<uint8_t>(group % 127 + 1); }

class Recorder {
 public:
  explicit constexpr Recorder(Source source) : source_(source) {}

  // A new communicator; opens the ring at the first. `hash` 0 and `ranks` 0 where they are told later or never. nullptr
  // where nothing can be recorded, unless it is wanted `anyway`. Not for the hot path.
  Communicator* begin(uint64_t hash, uint32_t ranks, uint32_t rank, bool anyway = false);

  // The first event of a communicator that came without a hash.
  void learn(Communicator* communicator, uint64_t hash, uint32_t rank);

  // A call was made now. Returns its number, which joins what is known of it later.
  uint64_t call(Communicator* communicator, const Call& call, bool kernels);

  // Whom a message goes to or comes from, where the call did not tell.
  void peer(Communicator* communicator, uint8_t op, uint64_t number, int32_t peer);

  void mark(Kind kind, const Communicator* communicator, uint8_t op, uint64_t number, uint32_t flags, uint64_t timer);

  // A group of several calls: its end was asked for, or (`done`) has returned.
  void group(uint8_t mark, uint64_t calls, bool done);

  uint32_t control() const { return ring_.control(); }
  void forked();

 private:
  uint32_t message(Communicator* communicator, uint8_t op, int32_t peer);
  Record record(Kind kind, const Communicator* communicator, uint8_t op, uint64_t number) const;

  Ring ring_;
  Source source_;
  std::atomic<bool> refused_{false};
};

// The communicator of an index below kCommunicators.
Communicator* communicator_at(uint32_t index);

// One a library.
extern Recorder g_recorder;
// Members of the JSON in the header, each with a comma in front; set before the first begin().
extern char g_about[256];

}  // namespace megatrace
