#include "ring.h"

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

// The host's name goes into JSON and into a file's name: letters that would need escaping become '_'.
void host_name(char* into, size_t size) {
  if (gethostname(into, size) != 0) into[0] = '\0';
  into[size - 1] = '\0';
  for (char* at = into; *at != '\0'; ++at)
    if (*at == '"' || *at == '\\' || static_cast<unsigned char>(*at) < 32 || *at == '/') *at = '_';
}

// `"name": "value"` with a comma in front, or nothing where the variable is no whole number.
size_t told(char* into, size_t size, const char* name, const char* value) {
  if (value == nullptr) return 0;
  const int wrote = snprintf(into, size, ", \"%s\": \"%s\"", name, value);
  return wrote < 0 || static_cast<size_t>(wrote) >= size ? 0 : static_cast<size_t>(wrote);
}

void describe(RingHeader* header, const char* host, const RingWish& wish) {
  const char* rank = number_of("RANK");
  if (rank == nullptr) rank = number_of("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = number_of("SLURM_PROCID");
  if (rank == nullptr) rank = number_of("PMI_RANK");
  char* at = header->json;
  char* const end = header->json + sizeof header->json;
  at += snprintf(at, sizeof header->json, "{\"source\": \"%s\", \"host\": \"%s\", \"pid\": %d%s", wish.source, host,
                 static_cast<int>(getpid()), wish.more);
  at += told(at, static_cast<size_t>(end - at), "rank", rank);
  at += told(at, static_cast<size_t>(end - at), "local_rank", number_of("LOCAL_RANK"));
  at += told(at, static_cast<size_t>(end - at), "world_size", number_of("WORLD_SIZE"));
  at += told(at, static_cast<size_t>(end - at), "attempt", number_of("TORCHELASTIC_RESTART_COUNT"));
  *at++ = '}';
  header->json_bytes = static_cast<uint32_t>(at - header->json);
}

// A new file, never one that a process may have mapped: truncating that would be a SIGBUS there. A process that called
// exec, or had the same number before, leaves a file of the same name; it is unlinked and keeps its own pages.
int new_file(const char* path) {
  constexpr int kHow = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  int file = open(path, kHow, 0600);
  if (file < 0 && errno == EEXIST && unlink(path) == 0) file = open(path, kHow, 0600);
  return file;
}

}  // namespace

const char* number_of(const char* variable) {
  const char* word = getenv(variable);
  if (word == nullptr || word[0] == '\0') return nullptr;
  for (const char* at = word; *at != '\0'; ++at)
    if (*at < '0' || *at > '9') return nullptr;
  return strlen(word) < 20 ? word : nullptr;
}

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
  describe(header_, host, wish);
  header_->header_bytes = static_cast<uint32_t>(begin);
  header_->record_bytes = sizeof(Record);
  header_->records = records;
  header_->realtime_ns = clock_ns(CLOCK_REALTIME);
  header_->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  memcpy(header_->magic, "MTRING\0\1", 8);
  mask_ = records - 1;
  places_ = wish.kept;
  next_.store(0, std::memory_order_relaxed);
  next_kept_.store(0, std::memory_order_relaxed);
  kept_ = reinterpret_cast<Record*>(static_cast<char*>(memory) + kHeaderBytes);
  records_.store(reinterpret_cast<Record*>(static_cast<char*>(memory) + begin), std::memory_order_release);
  return true;
}

uint64_t Ring::anchor(Record* records, uint64_t index, uint16_t source) {
  Record values{};
  values.time_ns = clock_ns(CLOCK_MONOTONIC);
  values.number = clock_ns(CLOCK_REALTIME);
  values.kind = kAnchor;
  values.source = source;
  Record* place = &records[index & mask_];
  if (take(place, index, mask_)) fill(place, index, values);
  return next_.fetch_add(1, std::memory_order_relaxed);
}

bool Ring::keep(const Record& values) {
  if (!is_open()) return false;
  const uint64_t index = next_kept_.fetch_add(1, std::memory_order_relaxed);
  if (index >= places_) return false;
  fill(&kept_[index], index, values);
  return true;
}

}  // namespace megatrace
