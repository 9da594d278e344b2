// Requests to the network as NCCL's proxy makes them, for each peer of a communicator: how many are on the way, how many
// bytes, and for how long there were any. What can be known of the network where RDMA work requests are not recorded:
// one request is a part of a message (some 0.5 MB), and NCCL says neither its NIC nor its queue pair.
//
// In a ring of its own, as samples like those of work requests. How a queue stands at every moment is in the record of
// its path, which is kept and written in place: the last sample of a queue that stands still is older than that.
#pragma once

#include <cstdint>

#include "nccl_recorder.h"

namespace megatrace {

struct StepQueue;

// The queue to a peer (its index within the communicator); opens the ring at the first. nullptr where it cannot be.
StepQueue* step_queue(const Communicator* communicator, int peer);

// A request was handed to the network.
void step_posted(StepQueue* queue, uint64_t bytes);

// So many requests with so many bytes are done, or will never be heard of again.
void steps_done(StepQueue* queue, uint64_t steps, uint64_t bytes);

// The communicator ends, and with it what was on the way.
void steps_forget(const Communicator* communicator);

void steps_forked();

}  // namespace megatrace
