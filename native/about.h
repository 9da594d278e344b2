// What the header of a ring tells of the process that wrote it, as a JSON object: which rank of which job, started by
// whom and how, on which device, over which NCCL.
//
// Asks libraries that are loaded already and loads none: a recorder that brought CUDA into a process would change what
// it records. What cannot be known is left out, and `device_missing` says why there is no device.
#pragma once

#include <cstddef>

namespace megatrace {

// The value of an environment variable that is a whole number, else nullptr.
const char* number_of(const char* variable);

// The host's name; letters that a file's name cannot have, or JSON only escaped, become '_'.
void host_name(char* into, size_t size);

// Writes the object, and returns its length. `more`: further members, each with a comma in front. Not for the hot path.
size_t about(char* into, size_t size, const char* source, const char* host, const char* more);

// The device that this thread works on. Each is "" where it is not known, and `missing` then says why.
struct DeviceName {
  char pci[32] = "", uuid[48] = "";
  const char* from = "";
  const char* missing = "";
};
DeviceName device_name();

}  // namespace megatrace
