#include "work_requests_ring.h"

#include <atomic>
#include <cstdio>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

namespace megatrace {

namespace {

constexpr uint64_t kHeader = 4096;
constexpr uint64_t kKept = 4096;  // places of devices and paths, which the ring must not write over

struct Header {
  char magic[8];
  uint32_t header_bytes, record_bytes;
  uint64_t records, realtime_ns, monotonic_ns;
  uint32_t json_bytes;
  char json[kHeader - 44];
};

struct Record {
  std::atomic<uint64_t> seq;
  uint64_t time_ns, a, b, nbytes, key;
  uint32_t flags;
  int32_t peer;
  uint8_t kind, op, dtype, channel;
  uint16_t thread, source;
};

static_assert(sizeof(Record) == 64 && offsetof(Record, flags) == 48 && offsetof(Record, kind) == 56);
static_assert(offsetof(Header, records) == 16 && offsetof(Header, json_bytes) == 40 && offsetof(Header, json) == 44);

enum Kind : uint8_t { kSample = 10, kError = 11, kDevice = 12, kPath = 13 };
constexpr uint16_t kSource = 2;  // the verbs library

struct Ring {
  Record* kept = nullptr;
  Record* records = nullptr;
  uint64_t mask = 0;
  std::atomic<uint64_t> next{0}, next_kept{0};
};

Ring g_ring;
pthread_once_t g_once = PTHREAD_ONCE_INIT;

uint64_t clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void complain(const char* what, const char* path, const char* why) {
  fprintf(stderr, "megatrace: work requests are not recorded: %s %s: %s\n", what, path, why);
}

const char* number_of(const char* variable) {
  const char* word = getenv(variable);
  if (word == nullptr || word[0] == '\0') return nullptr;
  for (const char* at = word; *at != '\0'; ++at)
    if (*at < '0' || *at > '9') return nullptr;
  return word;
}

// The host's name goes into JSON: letters that would need escaping become '_'.
void host_name(char* into, size_t size) {
  if (gethostname(into, size) != 0) into[0] = '\0';
  into[size - 1] = '\0';
  for (char* at = into; *at != '\0'; ++at)
    if (*at == '"' || *at == '\\' || static_cast<unsigned char>(*at) < 32 || *at == '/') *at = '_';
}

void describe(Header* header, const char* host) {
  const char* rank = number_of("RANK");
  if (rank == nullptr) rank = number_of("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = number_of("SLURM_PROCID");
  if (rank == nullptr) rank = number_of("PMI_RANK");
  const char* quote = rank == nullptr ? "" : "\"";
  header->json_bytes = static_cast<uint32_t>(snprintf(
      header->json, sizeof header->json, "{\"source\": \"verbs\", \"host\": \"%s\", \"pid\": %d, \"rank\": %s%s%s}", host,
      static_cast<int>(getpid()), quote, rank == nullptr ? "null" : rank, quote));
}

// In the child of a fork: the ring is its parent's. Only the pointers go, for other threads do not exist here.
void forked() {
  g_ring.records = nullptr;
  g_ring.kept = nullptr;
}

// A ring per process, made when the first device is opened.
void open_ring() {
  const char* wished = getenv("MEGATRACE_RING_DIR");
  char folder[3072], host[256], path[3600];
  if (wished != nullptr && wished[0] != '\0')
    snprintf(folder, sizeof folder, "%s", wished);
  else
    snprintf(folder, sizeof folder, "/dev/shm/megatrace-%u", static_cast<unsigned>(getuid()));
  mkdir(folder, 0700);  // where it cannot be made, open says why
  host_name(host, sizeof host);
  snprintf(path, sizeof path, "%s/verbs-%s-%d.ring", folder, host, static_cast<int>(getpid()));
  uint64_t records = 1u << 16;
  if (const char* word = number_of("MEGATRACE_WR_RECORDS")) {
    const uint64_t asked = strtoull(word, nullptr, 10);
    for (records = 256; records < asked && records < (1u << 26); records *= 2) {
    }
  }
  const uint64_t begin = kHeader + kKept * sizeof(Record), size = begin + records * sizeof(Record);
  const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return complain("cannot open", path, strerror(errno));
  // Reserved before it is mapped: a full disk refuses here and can never become a SIGBUS in the job.
  const int refused = posix_fallocate(file, 0, static_cast<off_t>(size));
  void* memory =
      refused == 0 ? mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) complain("no room for", path, strerror(refused != 0 ? refused : errno));
  if (memory == MAP_FAILED) unlink(path);
  close(file);
  if (memory == MAP_FAILED) return;
  Header* header = static_cast<Header*>(memory);
  describe(header, host);
  header->header_bytes = static_cast<uint32_t>(begin);
  header->record_bytes = sizeof(Record);
  header->records = records;
  header->realtime_ns = clock_ns(CLOCK_REALTIME);
  header->monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  g_ring.mask = records - 1;
  g_ring.kept = reinterpret_cast<Record*>(static_cast<char*>(memory) + kHeader);
  g_ring.records = reinterpret_cast<Record*>(static_cast<char*>(memory) + begin);
  pthread_atfork(nullptr, nullptr, forked);
  memcpy(header->magic, "MTRING\0\1", 8);
}

void write(Record* record, uint64_t index, const Record& values) {
  // A reader takes a record only with the number that belongs to its place and lap. It is stored last, with release:
  // whoever sees the number sees the rest. The old number is wrong for the new lap already, so it need not be cleared.
  memcpy(reinterpret_cast<char*>(record) + 8, reinterpret_cast<const char*>(&values) + 8, sizeof(Record) - 8);
  record->seq.store(index + 1, std::memory_order_release);
}

void put(const Record& values) {
  if (g_ring.records == nullptr) return;
  const uint64_t index = g_ring.next.fetch_add(1, std::memory_order_relaxed);  // only has to be nobody else's
  write(&g_ring.records[index & g_ring.mask], index, values);
}

void keep(const Record& values) {
  pthread_once(&g_once, open_ring);
  if (g_ring.kept == nullptr) return;
  const uint64_t index = g_ring.next_kept.fetch_add(1, std::memory_order_relaxed);
  if (index < kKept) write(&g_ring.kept[index], index, values);
}

void sample(const QueueSample& at) {
  put({{0}, at.time_ns, at.busy_ns, at.completed_bytes, at.outstanding_bytes, at.key, at.depth, 0, kSample, 0, 0, 0, 0,
       kSource});
}

void error(const QueueError& at) {
  put({{0}, at.time_ns, at.wr_id, at.depth, 0, at.key, at.vendor_error, at.status, kError, 0, 0, 0, 0, kSource});
}

const Sink kSink{sample, error};

// The low half of a port's GID tells it apart (its GUID, or the IPv4 address of RoCE); 0 where sysfs does not say.
uint64_t own_gid(const char* device, unsigned port, unsigned index) {
  const char* root = getenv("MEGATRACE_SYSFS");
  char path[512], text[64];
  snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%u/gids/%u", root != nullptr ? root : "/sys", device, port,
           index);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return 0;
  text[size] = '\0';
  unsigned word[8];
  if (sscanf(text, "%x:%x:%x:%x:%x:%x:%x:%x", word, word + 1, word + 2, word + 3, word + 4, word + 5, word + 6,
             word + 7) != 8)
    return 0;
  uint64_t low = 0;
  for (int i = 4; i < 8; ++i) low = low << 16 | (word[i] & 0xFFFFu);
  return low;
}

}  // namespace

const Sink* wr_sink() {
  pthread_once(&g_once, open_ring);
  return &kSink;
}

void wr_device(uint32_t number, const char* name) {
  uint64_t words[2] = {0, 0};
  memcpy(words, name, strnlen(name, sizeof words));
  keep({{0}, clock_ns(CLOCK_MONOTONIC), words[0], words[1], 0, static_cast<uint64_t>(number) << 32, 0, 0, kDevice, 0, 0,
        0, 0, kSource});
}

void wr_path(uint64_t key, const char* device, const verbs::AddressHandle& to, uint32_t peer_qp) {
  const uint64_t theirs = to.is_global != 0 ? __builtin_bswap64(to.grh.gid[1]) : 0;
  const uint64_t ours = own_gid(device, to.port_num, to.grh.sgid_index);
  keep({{0}, clock_ns(CLOCK_MONOTONIC), theirs, ours, 0, key, peer_qp, to.dlid, kPath, 0, 0, to.port_num, 0, kSource});
}

}  // namespace megatrace
