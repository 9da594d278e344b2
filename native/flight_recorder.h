/* A flight-recorder pickle -> columns: the compiled half of megatrace.readers.flight_recorder.
 *
 * A pickle is a program; this machine knows only the opcodes that build data and refuses all others, like its Python
 * twin (readers/flight_recorder_pickle.py), with which it must agree on every sequence of bytes
 * (tests/property/test_states_fuzz.py holds them together). Time and memory are linear in the length of the file,
 * nothing recurses but what is bounded (the writing of JSON and the straight way, flight_recorder_quick.h), and only bytes
 * inside [data, data + length) are read. The file has to stay where it is until the next one is read.
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

/* What a text means, by its number; filled in by the caller, the twin of flight_recorder_names.WORD. */
enum {
  MEGATRACE_FR_WORD_CLOSES = 1,    /* a name: it closes a coalesced group */
  MEGATRACE_FR_WORD_STATELESS = 2, /* a name: its backend reports no states */
  MEGATRACE_FR_WORD_STARTED = 4,   /* a state */
  MEGATRACE_FR_WORD_COMPLETED = 8  /* a state */
};
typedef struct {
  int32_t own, peer; /* ranks within the group of a Send or Recv, -1 none */
  uint8_t op;        /* model.events.Op */
  uint8_t flags;
  int8_t width; /* bytes of an element of this type, -1 none */
  uint8_t unused;
} megatrace_fr_word;

/* Where the columns of calls go, the twins of those of flight_recorder_entries.Dump, in the order of
 * flight_recorder_native.OUT. */
typedef struct {
  uint8_t *op;
  int32_t *group;
  int64_t *seq;
  int32_t *peer;
  int64_t *count, *nbytes, *created, *started, *ended;
  uint8_t *coalesced;
} megatrace_fr_columns;

/* What a dump says as a whole, the twin of flight_recorder_native.FACTS. */
#define MEGATRACE_FR_MOST_GROUPS 256
#define MEGATRACE_FR_MOST_NOTES 8
typedef struct {
  int64_t timeout_ms; /* the shortest of open calls, 1 << 62 none */
  int64_t has_start, lost;
  int64_t own, own_group; /* the first rank within its group that a message names as its own, -1 none */
  int64_t groups, notes;
  int64_t note_row[MEGATRACE_FR_MOST_NOTES], note_entry[MEGATRACE_FR_MOST_NOTES]; /* the first open calls */
  int64_t version;            /* a text, -1 none */
  int64_t configs, statuses;  /* groups that are described and counted; -1: only to be had from the JSON */
  int64_t group[MEGATRACE_FR_MOST_GROUPS][4];  /* GROUP_TEXT, DESC_TEXT, PG_ID, PG_ID_TEXT of the first of each group */
  int64_t config[MEGATRACE_FR_MOST_GROUPS][3]; /* texts: name, description, ranks; -1 none */
  int64_t status[MEGATRACE_FR_MOST_GROUPS][4]; /* a text: local id; last enqueued, started, completed, -1 none */
} megatrace_fr_facts;

typedef struct megatrace_fr megatrace_fr;

/* A reader, NULL where memory is short. It reads one dump after the other and keeps its memory between them. */
MEGATRACE_API megatrace_fr *megatrace_fr_new(void);
/* Reads a pickle and forgets the one before; the reason of a refusal, and below the byte at which it was met. */
MEGATRACE_API int32_t megatrace_fr_read(megatrace_fr *dump, const uint8_t *data, uint64_t length);
MEGATRACE_API uint64_t megatrace_fr_position(const megatrace_fr *dump);
/* Whether it was read in the straight way, for tests. */
MEGATRACE_API int32_t megatrace_fr_straight(const megatrace_fr *dump);
/* Entries that are dictionaries, and those that are not. */
MEGATRACE_API uint64_t megatrace_fr_entries(const megatrace_fr *dump);
MEGATRACE_API uint64_t megatrace_fr_bad(const megatrace_fr *dump);
/* Fills MEGATRACE_FR_WIDTH columns of `entries` numbers, one after the other; false where memory is short. */
MEGATRACE_API int32_t megatrace_fr_fill(megatrace_fr *dump, int64_t *table);
/* Writes the calls from row `at` of the columns on, which have room for `entries` rows, and what is said of all of them.
 * `words` has one item for each text. Returns the rows written; -1 where this dump is only to be had from
 * megatrace_fr_fill. */
MEGATRACE_API int64_t megatrace_fr_calls(megatrace_fr *dump, const megatrace_fr_word *words,
                                         const megatrace_fr_columns *out, uint64_t at, megatrace_fr_facts *facts);
/* Texts are numbered through all dumps, until they are forgotten: their number, the bytes of those from `first` on (one
 * after the other), and their lengths. */
MEGATRACE_API uint64_t megatrace_fr_texts(const megatrace_fr *dump);
MEGATRACE_API const uint8_t *megatrace_fr_text_bytes(const megatrace_fr *dump, uint64_t first, uint32_t *lengths);
MEGATRACE_API void megatrace_fr_forget(megatrace_fr *dump);
/* JSON of entry `which`, or of everything but the entries with -1. Returns the length that it has or would have. */
MEGATRACE_API uint64_t megatrace_fr_json(megatrace_fr *dump, int64_t which, char *out, uint64_t room);
MEGATRACE_API void megatrace_fr_free(megatrace_fr *dump);

#ifdef __cplusplus
}
#endif

#endif
