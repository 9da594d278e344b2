// The ring file of our recorders: MTRING, version 1. The one native writer of it; `model/ringformat.py` reads it and
// `collect/torch_ring.py` writes the same from Python. `tests/components/test_ring_format.py` compares them.
//
//   0      Header, 4096 bytes: magic, sizes, two clocks read at one moment, a JSON object that tells whose ring it is,
//          and a control word that others may write while the job runs
//   4096   records that are kept: communicators, devices, paths
//   then   the ring: 64-byte records, the newest over the oldest
//
// The file is mapped shared, so what was written is there after a SIGKILL. Nothing here allocates, locks or waits once
// the ring is open. Whatever fails while opening is one line on stderr, and put() does nothing from then on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace megatrace {

constexpr uint32_t kHeaderBytes = 4096;

struct RingHeader {
  char magic[8];
  uint32_t header_bytes, record_bytes;  // header_bytes includes the kept records
  uint64_t records, realtime_ns, monotonic_ns;
  uint32_t json_bytes;
  char json[kHeaderBytes - 44 - 36];  // about.h
  uint32_t unused;
  // CLOCK_REALTIME - CLOCK_MONOTONIC, and CLOCK_MONOTONIC when that was last looked at. The clock of a machine may be
  // set while the job runs: a reader adds the newest difference to all times, so that none of them jumps.
  std::atomic<int64_t> offset_ns;
  std::atomic<uint64_t> anchored_ns;
  std::atomic<uint32_t> control;  // events wanted beside the usual ones, as bits of NCCL's profiler mask
  uint32_t reserved[3];
};

struct Record {
  uint64_t seq;  // index + 1; written last. 0: never written, or being written
  uint64_t time_ns, comm, number, nbytes, stream;
  uint32_t flags;
  int32_t peer;
  uint8_t kind, op, dtype, channel;
  uint16_t thread, source;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);
static_assert(sizeof(Record) == 64 && offsetof(Record, time_ns) == 8 && offsetof(Record, comm) == 16);
static_assert(offsetof(Record, number) == 24 && offsetof(Record, nbytes) == 32 && offsetof(Record, stream) == 40);
static_assert(offsetof(Record, flags) == 48 && offsetof(Record, peer) == 52 && offsetof(Record, kind) == 56);
static_assert(offsetof(Record, thread) == 60 && offsetof(Record, source) == 62);
static_assert(sizeof(RingHeader) == kHeaderBytes && offsetof(RingHeader, records) == 16);
static_assert(offsetof(RingHeader, json_bytes) == 40 && offsetof(RingHeader, json) == 44);
static_assert(offsetof(RingHeader, offset_ns) == 4064 && offsetof(RingHeader, anchored_ns) == 4072);
static_assert(offsetof(RingHeader, control) == 4080);

enum Kind : uint8_t {
  kCall = 1,          // the host made a call
  kStart = 2,         // its kernel began
  kEnd = 3,           // its kernel ended
  kPeer = 4,          // who is at the other end of a call that was written without
  kFailed = 5,        // the call returned an error (flags: which)
  kAnchor = 6,        // number: CLOCK_REALTIME at time_ns, once in a while
  kFinished = 7,      // a communicator was finalized, destroyed or aborted
  kCommunicator = 8,  // kept: number of members, own index (peer), number of the communicator in the process (thread)
  kInGroup = 9,       // a group of calls: flags 0 when its end was asked for, 1 when that returned; number: its calls
  kSample = 10, kError = 11, kDevice = 12, kPath = 13,  // work requests
  kStepPath = 14,     // kept: a path of NCCL's proxy, with what the next sample would say of its queue
};

enum Source : uint16_t { kTorch = 1, kVerbs = 2, kPlugin = 3, kPreload = 4, kProxy = 5 };

inline uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Takes the place, or says that it is not ours to take. A place holds the number of its record, or 0 while somebody
// writes there. Whoever swaps out a number has the place alone; who finds 0 is either the first ever (the first lap) or
// came while another, a whole lap late, still writes: then the record is dropped rather than mixed. Who finds a newer
// number than his own was himself late by a lap, and puts it back.
inline bool take(Record* place, uint64_t index, uint64_t mask) {
  // Acquire: what we write may not move before the place is ours.
  const uint64_t before = __atomic_exchange_n(&place->seq, uint64_t{0}, __ATOMIC_ACQUIRE);
  if (before == 0) return index <= mask;
  if (before <= index) return true;
  __atomic_store_n(&place->seq, before, __ATOMIC_RELEASE);
  return false;
}

inline void fill(Record* place, uint64_t index, const Record& values) {
  memcpy(reinterpret_cast<char*>(place) + 8, reinterpret_cast<const char*>(&values) + 8, sizeof(Record) - 8);
  // Release: whoever sees the number sees the rest, in this process and in any that maps the file.
  __atomic_store_n(&place->seq, index + 1, __ATOMIC_RELEASE);
}

// What a ring is to be. All strings outlive open().
struct RingWish {
  const char* what;    // for the line on stderr: "calls of NCCL"
  const char* source;  // in the JSON
  const char* prefix;  // of the file name
  uint64_t records;    // rounded up to a power of two
  uint64_t kept;
  const char* more;    // more members of the JSON, each with a comma in front; may be ""
};

class Ring {
 public:
  // Makes the file of this process in MEGATRACE_RING_DIR. False, and one line on stderr, where that fails. Not for the
  // hot path and not for two threads at once.
  bool open(const RingWish& wish);

  // In the child of a fork: the mapping is the parent's. Only the pointers go, for other threads do not exist here.
  void forget() {
    records_.store(nullptr, std::memory_order_relaxed);
    kept_ = nullptr;
    header_ = nullptr;
  }

  bool is_open() const { return records_.load(std::memory_order_acquire) != nullptr; }

  // Any thread. What `values` has in seq is of no meaning.
  void put(const Record& values) {
    Record* records = records_.load(std::memory_order_acquire);
    if (records == nullptr) return;
    const uint64_t since = anchored_.load(std::memory_order_relaxed);
    // Signed: another thread may have looked at the clock later and come first.
    if (static_cast<int64_t>(values.time_ns - since) >= kAnchorEvery) anchor(since, values.time_ns, values.source);
    const uint64_t index = next_.fetch_add(1, std::memory_order_relaxed);  // only has to be nobody else's
    Record* place = &records[index & mask_];
    if (take(place, index, mask_)) fill(place, index, values);
  }

  // Somebody is alive and has nothing to record: now and then that is told by an anchor.
  void alive(uint64_t now, uint16_t source) {
    const uint64_t since = anchored_.load(std::memory_order_relaxed);
    if (!is_open() || static_cast<int64_t>(now - since) < kAnchorEvery) return;
    anchor(since, now, source);
  }

  // Any thread. Where the record is; nullptr where there is no place left.
  Record* keep(const Record& values);

  // Sets the control word, as another process may while the job runs.
  void want(uint32_t events) {
    if (is_open()) header_->control.store(events, std::memory_order_relaxed);
  }

  // Events wanted on demand; 0 where the ring is not open.
  uint32_t control() const {
    // Relaxed: it tells nothing about other memory, and being late by some calls is fine.
    return is_open() ? header_->control.load(std::memory_order_relaxed) : 0;
  }

 private:
  static constexpr int64_t kAnchorEvery = 1000000000;  // ns: as seldom as that, looking at two clocks costs nothing

  // Looks at both clocks, for the header and as a record. `since`: when that was last done, as the caller saw it.
  void anchor(uint64_t since, uint64_t now, uint16_t source);

  RingHeader* header_ = nullptr;
  Record* kept_ = nullptr;
  std::atomic<Record*> records_{nullptr};  // published last: whoever sees it sees the rest
  uint64_t mask_ = 0, places_ = 0;
  std::atomic<uint64_t> next_{0}, next_kept_{0}, anchored_{0};
};

// How many records a variable asks for, between 256 and 2^26; `usual` where it asks nothing.
uint64_t records_of(const char* variable, uint64_t usual);

}  // namespace megatrace
