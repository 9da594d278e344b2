// Work-request samples as records of a ring of their own, so that they never push out the calls of the job.
#pragma once

#include <cstdint>

#include "verbs_abi.h"
#include "work_requests.h"

namespace megatrace {

// Opens the ring at the first use; where that fails it says so once and the sink drops what it gets.
const Sink* wr_sink();

// A device was opened and is called `number` in the keys of queue pairs from now on.
void wr_device(uint32_t number, const char* name);

// A queue pair was connected: where from, where to.
void wr_path(uint64_t key, const char* device, const verbs::AddressHandle& to, uint32_t peer_qp);

}  // namespace megatrace
