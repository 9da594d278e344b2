// The keys of an entry, and limits that all ways through a dump share.
#ifndef MEGATRACE_FLIGHT_RECORDER_FIELDS_H
#define MEGATRACE_FLIGHT_RECORDER_FIELDS_H

#include "flight_recorder.h"
#include "flight_recorder_values.h"

namespace fr {

constexpr uint64_t kMaxText = 1u << 20;        // twin of flight_recorder_pickle.MAX_TEXT
constexpr uint64_t kMaxContainers = 4'000'000; // twin of MAX_CONTAINERS
constexpr int64_t kLimit = int64_t{1} << 62;   // twin of flight_recorder_raw.LIMIT

// What stands for a key that fills no column alone.
constexpr int kNoField = -1, kInDtypes = MEGATRACE_FR_WIDTH, kOutDtypes = MEGATRACE_FR_WIDTH + 1;

// The column of a key. GROUP_TEXT stands for "process_group" and PG_ID for "pg_id", which fill two columns each.
inline int field_of(const uint8_t *key, uint32_t size) {
  struct Name {
    const char *word;
    int field;
  };
  static const Name names[] = {
      {"state", MEGATRACE_FR_STATE_TEXT},
      {"pg_id", MEGATRACE_FR_PG_ID},
      {"seq_id", MEGATRACE_FR_SEQ},
      {"is_p2p", MEGATRACE_FR_IS_P2P},
      {"retired", MEGATRACE_FR_RETIRED},
      {"record_id", MEGATRACE_FR_RECORD_ID},
      {"p2p_seq_id", MEGATRACE_FR_P2P_SEQ},
      {"timeout_ms", MEGATRACE_FR_TIMEOUT_MS},
      {"input_sizes", MEGATRACE_FR_COUNT_IN},
      {"output_sizes", MEGATRACE_FR_COUNT_OUT},
      {"input_dtypes", kInDtypes},
      {"output_dtypes", kOutDtypes},
      {"process_group", MEGATRACE_FR_GROUP_TEXT},
      {"profiling_name", MEGATRACE_FR_NAME_TEXT},
      {"time_created_ns", MEGATRACE_FR_CREATED},
      {"collective_seq_id", MEGATRACE_FR_COLLECTIVE_SEQ},
      {"time_discovered_started_ns", MEGATRACE_FR_STARTED},
      {"time_discovered_completed_ns", MEGATRACE_FR_ENDED},
  };
  for (const Name &name : names)
    if (strlen(name.word) == size && !memcmp(name.word, key, size)) return name.field;
  return kNoField;
}

// A number of the recorder: an integer from -1 on, or one written as text.
inline int64_t number(const uint8_t *data, Type type, uint32_t size, int64_t value) {
  if (type == Type::kInt) return value >= -1 && value < kLimit ? value : kAbsent;
  if (type != Type::kText || !size || size > 18) return kAbsent;
  int64_t total = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const uint8_t digit = data[static_cast<uint64_t>(value) + i];
    if (digit < '0' || digit > '9') return kAbsent;
    total = total * 10 + (digit - '0');
  }
  return total < kLimit ? total : kAbsent;
}

} // namespace fr

#endif
