#include "about.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

namespace megatrace {

namespace {

constexpr size_t kArguments = 2048;  // of a command line; Megatron-LM's are some 3 KB, the first options say most

// Members of a JSON object. One that does not fit is left out as a whole.
class Members {
 public:
  Members(char* into, size_t size) : begin_(into), at_(into), end_(into + size - 2) { *at_++ = '{'; }

  void text(const char* name, const char* value) {
    if (value == nullptr || value[0] == '\0') return;
    char* const before = at_;
    this->name(name);
    quoted(value, strlen(value));
    if (full_) back_to(before);
  }

  void number(const char* name, long value) {
    char word[24];
    snprintf(word, sizeof word, "%ld", value);
    char* const before = at_;
    this->name(name);
    raw(word);
    if (full_) back_to(before);
  }

  // Words with a zero behind each; as many of them as fit.
  void list(const char* name, const char* words, size_t size) {
    char* const before = at_;
    this->name(name);
    put('[');
    const char* const end = words + size;
    char* whole = at_;
    for (const char* word = words; word < end && !full_;) {
      const size_t length = strnlen(word, static_cast<size_t>(end - word));
      if (word != words) raw(", ");
      quoted(word, length);
      if (!full_) whole = at_;
      word += length + 1;
    }
    if (whole == at_ && !full_) return put(']');
    if (end_ - whole < 2 || whole == before) return back_to(before);
    back_to(whole);
    put(']');
  }

  void raw(const char* letters) {
    while (*letters != '\0') put(*letters++);
  }

  size_t close() {
    *at_++ = '}';
    return static_cast<size_t>(at_ - begin_);
  }

 private:
  void put(char letter) {
    if (at_ < end_) *at_++ = letter;
    else full_ = true;
  }

  void back_to(char* place) {
    at_ = place;
    full_ = false;
  }

  void name(const char* name) {
    if (at_ != begin_ + 1) raw(", ");
    put('"');
    raw(name);
    raw("\": ");
  }

  void quoted(const char* value, size_t length) {
    put('"');
    for (const char* at = value; at != value + length; ++at) {
      const auto letter = static_cast<unsigned char>(*at);
      char escaped[8];
      if (letter == '"' || letter == '\\') put('\\');
      if (letter >= 32) {
        put(*at);
        continue;
      }
      snprintf(escaped, sizeof escaped, "\\u%04x", letter);
      raw(escaped);
    }
    put('"');
  }

  char* begin_;
  char* at_;
  char* end_;
  bool full_ = false;
};

size_t read_file(const char* path, char* into, size_t size) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  size_t got = 0;
  ssize_t part;
  while (got < size && (part = read(file, into + got, size - got)) > 0) got += static_cast<size_t>(part);
  close(file);
  return got;
}

struct Launcher {
  const char *rank, *local_rank, *ranks, *local_ranks, *node, *attempt, *name;
};
// In the order of trust: who set RANK (torchrun, a script) knows best.
constexpr Launcher kLaunchers[] = {
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "env"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_NODE_RANK", "", "openmpi"},
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NODEID", "SLURM_RESTART_COUNT",
     "slurm"},
    {"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS", "", "", "pmi"},
};

// The first launcher whose variable of that kind is set: some set the rank only, and another above knows the rest.
const char* of_launcher(const char* Launcher::* variable) {
  for (const Launcher& launcher : kLaunchers)
    if (const char* value = number_of(launcher.*variable)) return value;
  return nullptr;
}

void parallel(Members* members) {
  for (const Launcher& launcher : kLaunchers) {
    if (number_of(launcher.rank) == nullptr) continue;
    const bool torchrun = launcher.rank[0] == 'R' && getenv("TORCHELASTIC_RUN_ID") != nullptr;
    members->text("launcher", torchrun ? "torchrun" : launcher.name);
    break;
  }
  members->text("rank", of_launcher(&Launcher::rank));
  members->text("local_rank", of_launcher(&Launcher::local_rank));
  members->text("world_size", of_launcher(&Launcher::ranks));
  members->text("local_world_size", of_launcher(&Launcher::local_ranks));
  members->text("node_rank", of_launcher(&Launcher::node));
  members->text("attempt", of_launcher(&Launcher::attempt));
  const char* job = getenv("MEGATRACE_JOB");
  constexpr const char* kOthers[] = {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"};
  for (const char* variable : kOthers)
    if (job == nullptr || job[0] == '\0') job = getenv(variable);
  members->text("job", job);
  members->text("parallel", getenv("MEGATRACE_PARALLEL"));  // "tp=2,pp=2,dp=2", as whoever started the job knows it
}

void nccl_version(Members* members) {
  using Ask = int (*)(int*);
  auto ask = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  constexpr const char* kLibraries[] = {"libnccl.so.2", "librccl.so.1"};
  for (const char* library : kLibraries) {
    void* handle = ask == nullptr ? dlopen(library, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    if (handle == nullptr) continue;
    ask = reinterpret_cast<Ask>(dlsym(handle, "ncclGetVersion"));
    dlclose(handle);  // whoever had loaded it still has it
  }
  int version = 0;
  if (ask == nullptr || ask(&version) != 0 || version <= 0) return;
  // 22907 is 2.29.7; up to 2.8 it was 2807.
  const int unit = version >= 10000 ? 10000 : 1000;
  char word[32];
  snprintf(word, sizeof word, "%d.%d.%d", version / unit, version % unit / 100, version % 100);
  members->text("nccl", word);
}

}  // namespace

const char* number_of(const char* variable) {
  const char* word = variable[0] != '\0' ? getenv(variable) : nullptr;
  if (word == nullptr || word[0] == '\0') return nullptr;
  for (const char* at = word; *at != '\0'; ++at)
    if (*at < '0' || *at > '9') return nullptr;
  return strlen(word) < 20 ? word : nullptr;
}

void host_name(char* into, size_t size) {
  if (gethostname(into, size) != 0) into[0] = '\0';
  into[size - 1] = '\0';
  for (char* at = into; *at != '\0'; ++at)
    if (*at == '"' || *at == '\\' || static_cast<unsigned char>(*at) < 32 || *at == '/') *at = '_';
}

size_t about(char* into, size_t size, const char* source, const char* host, const char* more) {
  Members members(into, size);
  members.text("source", source);
  members.text("host", host);
  members.number("pid", getpid());
  members.raw(more);
  parallel(&members);
  char words[kArguments];
  // Clocks of processes can be compared where this is the same: one boot of one machine.
  size_t got = read_file("/proc/sys/kernel/random/boot_id", words, 36);
  words[got] = '\0';
  members.text("boot", words);
  nccl_version(&members);
  const DeviceName device = device_name();
  members.text("device", device.pci);
  members.text("device_uuid", device.uuid);
  members.text("device_from", device.from);
  members.text("device_missing", device.missing);
  got = read_file("/proc/self/cmdline", words, sizeof words);
  if (got != 0) members.list("argv", words, got);
  return members.close();
}

}  // namespace megatrace
