#include "work_requests_ring.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "ring.h"

namespace megatrace {

namespace {

constexpr uint64_t kKept = 4096;  // places of devices and paths, which the ring must not write over
constexpr uint16_t kSource = kVerbs;

Ring g_ring;
pthread_once_t g_once = PTHREAD_ONCE_INIT;

void forked() { g_ring.forget(); }

// A ring per process, made when the first device is opened.
void open_ring() {
  const uint64_t records = records_of("MEGATRACE_WR_RECORDS", 1u << 16);
  if (g_ring.open({"work requests", "verbs", "verbs", records, kKept, ""})) pthread_atfork(nullptr, nullptr, forked);
}

void put(const Record& values) { g_ring.put(values); }

void keep(const Record& values) {
  pthread_once(&g_once, open_ring);
  g_ring.keep(values);
}

void sample(const QueueSample& at) {
  put({0, at.time_ns, at.busy_ns, at.completed_bytes, at.outstanding_bytes, at.key, at.depth, 0, kSample, 0, 0, 0, 0,
       kSource});
}

void error(const QueueError& at) {
  put({0, at.time_ns, at.wr_id, at.depth, 0, at.key, at.vendor_error, at.status, kError, 0, 0, 0, 0, kSource});
}

// The proof that a queue in which nothing moves any more is watched.
void alive(uint64_t now) { g_ring.alive(now, kSource); }

const Sink kSink{sample, error, alive};

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
  keep({0, clock_ns(CLOCK_MONOTONIC), words[0], words[1], 0, static_cast<uint64_t>(number) << 32, 0, 0, kDevice, 0, 0,
        0, 0, kSource});
}

void wr_path(uint64_t key, const char* device, const verbs::AddressHandle& to, uint32_t peer_qp) {
  const uint64_t theirs = to.is_global != 0 ? __builtin_bswap64(to.grh.gid[1]) : 0;
  const uint64_t ours = own_gid(device, to.port_num, to.grh.sgid_index);
  keep({0, clock_ns(CLOCK_MONOTONIC), theirs, ours, 0, key, peer_qp, to.dlid, kPath, 0, 0, to.port_num, 0, kSource});
}

}  // namespace megatrace
