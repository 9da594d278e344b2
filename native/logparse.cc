// The call log parser. Two readers of one grammar: `canonical_line` takes the exact layout that the writers emit and
// gives up on the first byte that differs; `any_line` then reads the line token by token and decides. See logparse.h for
// what this file promises.

#include "logparse.h"

#include <string.h>

#include "logparse_any.h"
#include "logparse_canonical.h"

namespace {

inline void store(const megatrace_log_columns &out, uint64_t i, const Row &row) {
  out.rank[i] = row.rank;
  out.op[i] = row.op;
  out.count[i] = row.count;
  out.stream[i] = row.stream;
  out.seq[i] = row.seq;
  out.group_hash[i] = row.group_hash;
  out.enqueue[i] = row.enqueue;
  out.save_count[i] = row.save_count;
  out.flags[i] = row.flags;
}

} // namespace

extern "C" {

void megatrace_log_parse(const char *text, uint64_t length, const megatrace_log_columns *columns,
                         megatrace_log_result *result) {
  const megatrace_log_columns out = *columns;
  const char *p = text;
  const char *const end = text + length;
  uint64_t rows = 0;
  uint64_t rejects = 0;
  Memos memos;
  unsigned flags_or = 0;
  unsigned flags_and = 0xFF;
  while (rows < out.row_capacity && rejects < out.reject_capacity) {
    if (static_cast<size_t>(end - p) >= kCanonicalMax) {
      Row row; // one of its own: its address is not passed on, so it stays in registers
      if (canonical_line(p, &memos, &row)) {
        flags_or |= row.flags;
        flags_and &= row.flags;
        store(out, rows++, row);
        continue;
      }
    }
    const char *newline = p == end ? nullptr : static_cast<const char *>(memchr(p, '\n', static_cast<size_t>(end - p)));
    if (newline == nullptr) break;
    Row row;
    if (any_line(p, static_cast<size_t>(newline - p), &row)) {
      flags_or |= row.flags;
      flags_and &= row.flags;
      store(out, rows++, row);
    } else {
      out.reject_line[rejects] = static_cast<int64_t>(rows + rejects);
      out.reject_offset[rejects] = static_cast<int64_t>(p - text);
      ++rejects;
    }
    p = newline + 1;
  }
  *result = {rows, rejects, static_cast<uint64_t>(p - text), flags_or, flags_and};
}

uint64_t megatrace_log_codes(const uint64_t *group_hash, const uint8_t *flags, uint64_t rows, const uint64_t *keys,
                             const int32_t *slot_codes, uint32_t bits, int32_t *codes) {
  uint64_t unknown = 0;
  for (uint64_t i = 0; i < rows; ++i) {
    if (!(flags[i] & (MEGATRACE_LINE_HASH | MEGATRACE_LINE_HASH_CUT))) {
      codes[i] = -1;
      continue;
    }
    const uint64_t cut = (flags[i] & MEGATRACE_LINE_HASH_CUT) != 0;
    const uint64_t slot = ((group_hash[i] * 0x9E3779B97F4A7C15u) >> (64 - bits)) | (cut << bits);
    const bool known = keys[slot] == group_hash[i] && slot_codes[slot] != -1;
    codes[i] = known ? slot_codes[slot] : INT32_MIN;
    unknown += !known;
  }
  return unknown;
}

uint32_t megatrace_abi_version(void) { return 3; }

} // extern "C"
