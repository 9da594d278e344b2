#include "ring.h"

#include "about.h"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace megatrace {

namespace {

bool complain(const RingWish& wish, const char* what, const char* path, int error) {
  fprintf(stderr, "megatrace: %s are not recorded: %s %s: %s\n", wish.what, what, path, strerror(error));
  return false;
}

// A new file, never one that a process may have mapped: truncating that would be a SIGBUS there. A process that called
// exec, or had the same number before, leaves a file of the same name; it is unlinked and keeps its own pages.
int new_file(const char* path) {
  constexpr int kHow = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  int file = open(path, kHow, 0600);
  if (file < 0 && errno == EEXIST && unlink(path) == 0) file = open(path, kHow, 0600);
  return file;
}

// Both clocks at one moment; false where this thread was stopped in between each time.
bool read_clocks(uint64_t* monotonic, int64_t* offset) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const uint64_t before = clock_ns(CLOCK_MONOTONIC), real = clock_ns(CLOCK_REALTIME);
    const uint64_t after = clock_ns(CLOCK_MONOTONIC);
    *monotonic = after;
    *offset = static_cast<int64_t>(real - (before + (after - before) / 2));
    // Some 100 ns are usual; a thread that was stopped read clocks of two moments.
    if (after - before < 10000) return true;
  }
  return false;
}

}  // namespace

uint64_t records_of(const char* variable, uint64_t usual) {
  const char* word = number_of(variable);
  if (word == nullptr) return usual;
  const uint64_t asked = strtoull(word, nullptr, 10);
  return asked < 256 ? 256 : asked > (1u << 26) ? 1u << 26 : asked;
}

bool Ring::open(const RingWish& wish) {
  const char* wished = getenv("MEGATRACE_RING_DIR");
  char folder[3072], host[256], path[3600];
  if (wished != nullptr && wished[0] != '\0')
    snprintf(folder, sizeof folder, "%s", wished);
  else
    snprintf(folder, sizeof folder, "/dev/shm/megatrace-%u", static_cast<unsigned>(getuid()));
  mkdir(folder, 0700);  // where it cannot be made, open says why
  host_name(host, sizeof host);
  snprintf(path, sizeof path, "%s/%s-%s-%d.ring", folder, wish.prefix, host, static_cast<int>(getpid()));
  uint64_t records = 256;
  while (records < wish.records) records *= 2;
  const uint64_t begin = kHeaderBytes + wish.kept * sizeof(Record), size = begin + records * sizeof(Record);
  const int file = new_file(path);
  if (file < 0) return complain(wish, "cannot open", path, errno);
  // Reserved before it is mapped: a full disk refuses here and can never become a SIGBUS in the job.
  int refused = posix_fallocate(file, 0, static_cast<off_t>(size));
  void* memory = MAP_FAILED;
  if (refused == 0 && (memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED)
    refused = errno;
  if (memory == MAP_FAILED) unlink(path);
  close(file);
  if (memory == MAP_FAILED) return complain(wish, "no room for", path, refused);
  header_ = static_cast<RingHeader*>(memory);
  header_->json_bytes =
      static_cast<uint32_t>(about(header_->json, sizeof header_->json, wish.source, host, wish.more));
  header_->header_bytes = static_cast<uint32_t>(begin);
  header_->record_bytes = sizeof(Record);
  header_->records = records;
  uint64_t monotonic = 0;
  int64_t offset = 0;
  read_clocks(&monotonic, &offset);
  header_->realtime_ns = monotonic + static_cast<uint64_t>(offset);
  header_->monotonic_ns = monotonic;
  header_->offset_ns.store(offset, std::memory_order_relaxed);
  header_->anchored_ns.store(monotonic, std::memory_order_relaxed);
  anchored_.store(monotonic, std::memory_order_relaxed);
  memcpy(header_->magic, "MTRING\0\1", 8);
  mask_ = records - 1;
  places_ = wish.kept;
  next_.store(0, std::memory_order_relaxed);
  next_kept_.store(0, std::memory_order_relaxed);
  kept_ = reinterpret_cast<Record*>(static_cast<char*>(memory) + kHeaderBytes);
  records_.store(reinterpret_cast<Record*>(static_cast<char*>(memory) + begin), std::memory_order_release);
  return true;
}

void Ring::anchor(uint64_t since, uint64_t now, uint16_t source) {
  // One of the threads that come here does it.
  if (!anchored_.compare_exchange_strong(since, now, std::memory_order_relaxed)) return;
  uint64_t monotonic;
  int64_t offset;
  if (!read_clocks(&monotonic, &offset)) return;
  // Relaxed: each is right by itself, and neither tells anything about other memory.
  header_->offset_ns.store(offset, std::memory_order_relaxed);
  header_->anchored_ns.store(monotonic, std::memory_order_relaxed);
  Record made{};
  made.time_ns = monotonic;
  made.number = monotonic + static_cast<uint64_t>(offset);
  made.peer = -1;
  made.kind = kAnchor;
  made.source = source;
  put(made);  // which finds that it was just done
}

Record* Ring::keep(const Record& values) {
  if (!is_open()) return nullptr;
  const uint64_t index = next_kept_.fetch_add(1, std::memory_order_relaxed);
  if (index >= places_) return nullptr;
  fill(&kept_[index], index, values);
  return &kept_[index];
}

}  // namespace megatrace
