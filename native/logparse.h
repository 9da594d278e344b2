/* Text call log -> columns: the compiled half of megatrace.readers.calllog.
 *
 * The grammar is the one of megatrace/readers/calllog_line.py, which is its readable form; both must agree on every
 * sequence of bytes (tests/property/test_calllog_fuzz.py holds them together). The parser keeps no state, allocates
 * nothing, takes no lock, and reads only bytes inside [text, text + length): any bytes are allowed.
 *
 * It does not classify what it rejects, join lines across calls, sort, or open files: Python does that, once for both
 * paths.
 */
#ifndef MEGATRACE_LOGPARSE_H
#define MEGATRACE_LOGPARSE_H

#include <stddef.h>
#include <stdint.h>

#define MEGATRACE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of the flags column; the twin of calllog_line.Flag. */
enum {
  MEGATRACE_LINE_HASH = 1,       /* group_hash is the whole hash */
  MEGATRACE_LINE_HASH_CUT = 2,   /* the line was cut at the writer's limit; group_hash holds what is left of it */
  MEGATRACE_LINE_SAVE_COUNT = 4, /* the line has a save_count */
  MEGATRACE_LINE_SEQ = 8,        /* the line has an opCount (else seq is -1) */
  MEGATRACE_LINE_BRACKETED = 16  /* the dialect with all fields in brackets */
};

/* Where the rows go. Every column has room for row_capacity rows; the two reject columns for reject_capacity. */
typedef struct megatrace_log_columns {
  int32_t *rank;
  uint8_t *op;
  int64_t *count;
  uint64_t *stream;
  int64_t *seq;
  uint64_t *group_hash;
  int64_t *enqueue;
  uint32_t *save_count; /* saturates at 2^32 - 1 */
  uint8_t *flags;
  uint64_t row_capacity;
  /* Lines that are no call: their number (0 = the first line of this text) and their offset in this text. */
  int64_t *reject_line;
  int64_t *reject_offset;
  uint64_t reject_capacity;
} megatrace_log_columns;

/* What one call did. */
typedef struct megatrace_log_result {
  uint64_t rows;
  uint64_t rejects;   /* rows + rejects lines were handled */
  uint64_t consumed;  /* bytes up to and including the last newline that was handled */
  uint64_t flags_or;  /* bits that some row has */
  uint64_t flags_and; /* bits that all rows have; 0xFF where there are none */
} megatrace_log_result;

/* Parses the complete lines of text (those that end in '\n'). Stops early, after a whole line, when a column is full;
 * the caller then empties the columns and calls again from `consumed`. */
MEGATRACE_API void megatrace_log_parse(const char *text, uint64_t length, const megatrace_log_columns *columns,
                                       megatrace_log_result *result);

/* Numbers for group hashes: rows look their code up in a direct-mapped table of 2 << bits slots, which the caller
 * fills (whole hashes in the first half, cut ones in the second; a slot is free while its code is negative and not
 * a cut hash's, that is -1). Rows without a hash get -1, rows that the table lacks INT32_MIN. Returns how many of
 * the latter there are. The twin of calllog_hash.Interner.codes. */
MEGATRACE_API uint64_t megatrace_log_codes(const uint64_t *group_hash, const uint8_t *flags, uint64_t rows,
                                           const uint64_t *keys, const int32_t *slot_codes, uint32_t bits,
                                           int32_t *codes);

/* The version of this interface; megatrace.native refuses a library with another one. */
MEGATRACE_API uint32_t megatrace_abi_version(void);

#ifdef __cplusplus
}
#endif
#endif
