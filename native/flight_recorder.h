/* A flight-recorder pickle -> columns: the compiled half of megatrace.readers.flight_recorder.
 *
 * A pickle is a program; this machine knows only the opcodes that build data and refuses all others, like its Python
 * twin (readers/flight_recorder_pickle.py), with which it must agree on every sequence of bytes
 * (tests/property/test_states_fuzz.py holds them together). Time and memory are linear in the length of the file,
 * nothing recurses but the writing of JSON, which is bounded, and only bytes inside [data, data + length) are read. Strings are places in the file: it has to
 * stay where it is until the next one is read.
 */
#ifndef MEGATRACE_FLIGHT_RECORDER_H
#define MEGATRACE_FLIGHT_RECORDER_H

#include <stddef.h>
#include <stdint.h>

#define MEGATRACE_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Columns of one entry, the twins of flight_recorder_raw.COLUMNS; INT64_MIN where a value is absent or of another type.
 * *_TEXT are indices of interned strings. */
enum {
  MEGATRACE_FR_RECORD_ID,
  MEGATRACE_FR_NAME_TEXT,
  MEGATRACE_FR_GROUP_TEXT,
  MEGATRACE_FR_DESC_TEXT,
  MEGATRACE_FR_PG_ID,
  MEGATRACE_FR_PG_ID_TEXT,
  MEGATRACE_FR_COLLECTIVE_SEQ,
  MEGATRACE_FR_P2P_SEQ,
  MEGATRACE_FR_SEQ,
  MEGATRACE_FR_IS_P2P,
  MEGATRACE_FR_COUNT_IN,
  MEGATRACE_FR_COUNT_OUT,
  MEGATRACE_FR_DTYPE_TEXT,
  MEGATRACE_FR_CREATED,
  MEGATRACE_FR_STARTED,
  MEGATRACE_FR_ENDED,
  MEGATRACE_FR_STATE_TEXT,
  MEGATRACE_FR_RETIRED,
  MEGATRACE_FR_TIMEOUT_MS,
  MEGATRACE_FR_WIDTH
};

/* Why a file was refused; the twin of flight_recorder_native.REASONS. */
enum {
  MEGATRACE_FR_OK,
  MEGATRACE_FR_CUT,
  MEGATRACE_FR_DAMAGED,
  MEGATRACE_FR_CALLS,  /* an opcode that imports or calls */
  MEGATRACE_FR_UNKNOWN, /* an opcode that no recorder writes */
  MEGATRACE_FR_TOO_LARGE, /* a text, number or list beyond any dump */
  MEGATRACE_FR_MEMORY,
  MEGATRACE_FR_NO_DUMP /* a value that is no dump */
};

typedef struct megatrace_fr megatrace_fr;

/* A reader, NULL where memory is short. It reads one dump after the other and keeps its memory between them. */
MEGATRACE_API megatrace_fr *megatrace_fr_new(void);
/* Reads a pickle and forgets the one before; the reason of a refusal, and below the byte at which it was met. */
MEGATRACE_API int32_t megatrace_fr_read(megatrace_fr *dump, const uint8_t *data, uint64_t length);
MEGATRACE_API uint64_t megatrace_fr_position(const megatrace_fr *dump);
/* Entries that are dictionaries, and those that are not. */
MEGATRACE_API uint64_t megatrace_fr_entries(const megatrace_fr *dump);
MEGATRACE_API uint64_t megatrace_fr_bad(const megatrace_fr *dump);
/* Fills MEGATRACE_FR_WIDTH columns of `entries` numbers, one after the other; false where memory is short. Strings are
 * interned by it. */
MEGATRACE_API int32_t megatrace_fr_fill(megatrace_fr *dump, int64_t *table);
MEGATRACE_API uint64_t megatrace_fr_texts(const megatrace_fr *dump);
/* The place of each interned string: offset and length in the file. */
MEGATRACE_API void megatrace_fr_places(const megatrace_fr *dump, uint64_t *offsets, uint64_t *lengths);
/* JSON of entry `which`, or of everything but the entries with -1. Returns the length that it has or would have. */
MEGATRACE_API uint64_t megatrace_fr_json(const megatrace_fr *dump, int64_t which, char *out, uint64_t room);
MEGATRACE_API void megatrace_fr_free(megatrace_fr *dump);

#ifdef __cplusplus
}
#endif

#endif
