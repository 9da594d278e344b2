// Entries of a dump as columns, and the rest of it as JSON. See flight_recorder.h for what this file promises.

#include "flight_recorder.h"

#include "flight_recorder_machine.h"

using fr::Array;
using fr::kAbsent;
using fr::Store;
using fr::Type;
using fr::Value;

namespace {

constexpr int64_t kLimit = int64_t{1} << 62; // twin of flight_recorder_raw.LIMIT
constexpr int kDeepest = 32;                 // nested values of the rest of a dump: groups are three deep

struct Place {
  uint64_t offset;
  uint32_t length;
};

} // namespace

struct megatrace_fr {
  const uint8_t *data = nullptr;
  uint64_t length = 0, position = 0, bad = 0;
  Store store;
  Array<Value> stack, memo; // of the machine, between dumps
  Value root = {Type::kNone, 0, 0};
  Array<Value> entries;
  Array<Place> texts;
  Array<uint32_t> slots; // open addressing: index of a text + 1, 0 free
};

namespace {

bool is(const megatrace_fr &dump, const Value &text, const char *word, uint32_t size) {
  return text.type == Type::kText && text.extra == size && !memcmp(dump.data + text.number, word, size);
}
#define IS(value, word) is(dump, value, word, sizeof(word) - 1)

uint64_t hash(const uint8_t *text, uint64_t size) {
  uint64_t mixed = 0x9E3779B97F4A7C15ull ^ size;
  for (; size >= 8; text += 8, size -= 8) {
    uint64_t word;
    memcpy(&word, text, 8);
    mixed = (mixed ^ word) * 0xFF51AFD7ED558CCDull;
    mixed ^= mixed >> 32;
  }
  for (; size; ++text, --size) mixed = (mixed ^ *text) * 0xC4CEB9FE1A85EC53ull;
  return mixed ^ (mixed >> 29);
}

bool grow(megatrace_fr &dump) {
  Array<uint32_t> wider;
  const uint64_t room = dump.slots.size ? dump.slots.size * 2 : 512;
  if (!wider.reserve(room)) return false;
  memset(wider.at, 0, room * sizeof(uint32_t));
  wider.size = room;
  for (uint64_t i = 0; i < dump.texts.size; ++i) {
    uint64_t slot = hash(dump.data + dump.texts.at[i].offset, dump.texts.at[i].length) & (room - 1);
    while (wider.at[slot]) slot = (slot + 1) & (room - 1);
    wider.at[slot] = static_cast<uint32_t>(i + 1);
  }
  dump.slots.release();
  dump.slots = wider;
  return true;
}

// The index of a text, kAbsent for any other value; false where memory is short.
bool intern(megatrace_fr &dump, const Value &text, int64_t *out) {
  if (text.type != Type::kText) return true;
  if (2 * dump.texts.size >= dump.slots.size && !grow(dump)) return false;
  const uint8_t *begin = dump.data + text.number;
  uint64_t slot = hash(begin, text.extra) & (dump.slots.size - 1);
  for (; dump.slots.at[slot]; slot = (slot + 1) & (dump.slots.size - 1)) {
    const Place &known = dump.texts.at[dump.slots.at[slot] - 1];
    if (known.length == text.extra && !memcmp(dump.data + known.offset, begin, text.extra)) {
      *out = dump.slots.at[slot] - 1;
      return true;
    }
  }
  if (!dump.texts.add({static_cast<uint64_t>(text.number), text.extra})) return false;
  dump.slots.at[slot] = static_cast<uint32_t>(dump.texts.size);
  *out = static_cast<int64_t>(dump.texts.size - 1);
  return true;
}

// A number of the recorder: an integer from -1 on, or one written as text.
int64_t number(const megatrace_fr &dump, const Value &value) {
  if (value.type == Type::kInt) return value.number >= -1 && value.number < kLimit ? value.number : kAbsent;
  if (value.type != Type::kText || !value.extra || value.extra > 18) return kAbsent;
  int64_t total = 0;
  for (uint32_t i = 0; i < value.extra; ++i) {
    const uint8_t digit = dump.data[value.number + i];
    if (digit < '0' || digit > '9') return kAbsent;
    total = total * 10 + (digit - '0');
  }
  return total < kLimit ? total : kAbsent;
}

bool is_sequence(const Value &value) { return value.type == Type::kList || value.type == Type::kTuple; }

// Elements of all tensors together, kAbsent where that cannot be told.
int64_t elements(const megatrace_fr &dump, const Value &sizes) {
  if (!is_sequence(sizes)) return kAbsent;
  int64_t total = 0;
  bool good = true;
  each(dump.store, sizes, [&](const Value &shape) {
    int64_t product = 1;
    if (is_sequence(shape))
      each(dump.store, shape, [&](const Value &side) {
        if (side.type != Type::kInt || side.number < 0 || __builtin_mul_overflow(product, side.number, &product) ||
            product > kLimit) {
          good = false;
          product = 0;
        }
      });
    if (__builtin_add_overflow(total, product, &total) || total > kLimit) {
      good = false;
      total = 0;
    }
  });
  return good ? total : kAbsent;
}

// The nth item of a list or tuple, None where there is none.
Value item(const megatrace_fr &dump, const Value &sequence, uint64_t wanted) {
  Value found = {Type::kNone, 0, 0};
  if (!is_sequence(sequence)) return found;
  uint64_t i = 0;
  each(dump.store, sequence, [&](const Value &value) {
    if (i++ == wanted) found = value;
  });
  return found;
}

bool fill(megatrace_fr &dump, const Value &entry, int64_t *table, uint64_t at) {
  int64_t row[MEGATRACE_FR_WIDTH];
  for (int i = 0; i < MEGATRACE_FR_WIDTH; ++i) row[i] = kAbsent;
  bool good = true;
  Value in_dtypes = {Type::kNone, 0, 0}, out_dtypes = {Type::kNone, 0, 0};
  auto text = [&](int column, const Value &value) {
    row[column] = kAbsent;
    good = intern(dump, value, &row[column]) && good;
  };
  pairs(dump.store, entry, [&](const Value &key, const Value &value) {
    if (key.type != Type::kText) return;
    switch (key.extra) {
    case 5: if (IS(key, "state")) text(MEGATRACE_FR_STATE_TEXT, value); break;
    case 6:
      if (IS(key, "pg_id")) break;
      if (IS(key, "seq_id")) row[MEGATRACE_FR_SEQ] = number(dump, value);
      else if (IS(key, "is_p2p")) row[MEGATRACE_FR_IS_P2P] = value.type == Type::kBool ? value.number : kAbsent;
      break;
    case 7: if (IS(key, "retired")) row[MEGATRACE_FR_RETIRED] = value.type == Type::kBool ? value.number : kAbsent; break;
    case 9: if (IS(key, "record_id")) row[MEGATRACE_FR_RECORD_ID] = number(dump, value); break;
    case 10:
      if (IS(key, "p2p_seq_id")) row[MEGATRACE_FR_P2P_SEQ] = number(dump, value);
      else if (IS(key, "timeout_ms")) row[MEGATRACE_FR_TIMEOUT_MS] = number(dump, value);
      break;
    case 11: if (IS(key, "input_sizes")) row[MEGATRACE_FR_COUNT_IN] = elements(dump, value); break;
    case 12:
      if (IS(key, "output_sizes")) row[MEGATRACE_FR_COUNT_OUT] = elements(dump, value);
      else if (IS(key, "input_dtypes")) in_dtypes = item(dump, value, 0);
      break;
    case 13:
      if (IS(key, "output_dtypes")) out_dtypes = item(dump, value, 0);
      else if (IS(key, "process_group")) {
        text(MEGATRACE_FR_GROUP_TEXT, is_sequence(value) ? item(dump, value, 0) : value);
        text(MEGATRACE_FR_DESC_TEXT, item(dump, value, 1));
      }
      break;
    case 14: if (IS(key, "profiling_name")) text(MEGATRACE_FR_NAME_TEXT, value); break;
    case 15: if (IS(key, "time_created_ns")) row[MEGATRACE_FR_CREATED] = number(dump, value); break;
    case 17: if (IS(key, "collective_seq_id")) row[MEGATRACE_FR_COLLECTIVE_SEQ] = number(dump, value); break;
    case 26: if (IS(key, "time_discovered_started_ns")) row[MEGATRACE_FR_STARTED] = number(dump, value); break;
    case 28: if (IS(key, "time_discovered_completed_ns")) row[MEGATRACE_FR_ENDED] = number(dump, value); break;
    default: break;
    }
    if (IS(key, "pg_id")) {
      row[MEGATRACE_FR_PG_ID] = value.type == Type::kInt ? number(dump, value) : kAbsent;
      text(MEGATRACE_FR_PG_ID_TEXT, value);
    }
  });
  text(MEGATRACE_FR_DTYPE_TEXT, in_dtypes.type == Type::kText ? in_dtypes : out_dtypes);
  for (int i = 0; i < MEGATRACE_FR_WIDTH; ++i) table[static_cast<uint64_t>(i) * dump.entries.size + at] = row[i];
  return good;
}

// Writes JSON into a buffer that may be too small; counts what it would take.
struct Writer {
  const megatrace_fr &dump;
  char *out;
  uint64_t room, most, size = 0;

  void byte(char c) {
    if (size < room) out[size] = c;
    ++size;
  }
  void word(const char *text) {
    while (*text) byte(*text++);
  }
  void text(const Value &value) {
    static const char hex[] = "0123456789abcdef";
    byte('"');
    for (uint32_t i = 0; i < value.extra; ++i) {
      const uint8_t c = dump.data[value.number + i];
      if (c == '"' || c == '\\') {
        byte('\\');
        byte(static_cast<char>(c));
      } else if (c < 0x20) {
        word("\\u00");
        byte(hex[c >> 4]);
        byte(hex[c & 15]);
      } else {
        byte(static_cast<char>(c));
      }
    }
    byte('"');
  }
  void integer(int64_t value) {
    char digits[24];
    int count = 0;
    uint64_t left = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    do digits[count++] = static_cast<char>('0' + left % 10);
    while (left /= 10);
    if (value < 0) byte('-');
    while (count) byte(digits[--count]);
  }
  void any(const Value &value, int deep, bool is_root) {
    if (size > most) return; // lists that share lists could be written without end
    switch (value.type) {
    case Type::kBool: word(value.number ? "true" : "false"); return;
    case Type::kInt: integer(value.number); return;
    case Type::kText: text(value); return;
    case Type::kList:
    case Type::kTuple: list(value, deep); return;
    case Type::kDict: dict(value, deep, is_root); return;
    default: word("null"); return;
    }
  }
  void list(const Value &value, int deep) {
    if (deep >= kDeepest) return word("null");
    bool first = true;
    byte('[');
    each(dump.store, value, [&](const Value &one) {
      if (!first) byte(',');
      first = false;
      any(one, deep + 1, false);
    });
    byte(']');
  }
  void dict(const Value &value, int deep, bool is_root) {
    if (deep >= kDeepest) return word("null");
    bool first = true;
    byte('{');
    pairs(dump.store, value, [&](const Value &key, const Value &one) {
      if (is_root && IS(key, "entries")) return;
      if (key.type != Type::kText && key.type != Type::kInt) return;
      if (!first) byte(',');
      first = false;
      if (key.type == Type::kText) text(key);
      else {
        byte('"');
        integer(key.number);
        byte('"');
      }
      byte(':');
      any(one, deep + 1, false);
    });
    byte('}');
  }
};

// Finds the list of entries and checks that the value is a dump at all.
int32_t open_entries(megatrace_fr &dump) {
  Value entries = {Type::kNone, 0, 0};
  bool groups = false;
  if (dump.root.type == Type::kList) entries = dump.root; // versions before 2.0 dumped the list alone
  else if (dump.root.type == Type::kDict)
    pairs(dump.store, dump.root, [&](const Value &key, const Value &value) {
      if (IS(key, "entries")) entries = value;
      if (IS(key, "pg_config")) groups = value.type == Type::kDict;
    });
  if (entries.type != Type::kList) return groups ? MEGATRACE_FR_OK : MEGATRACE_FR_NO_DUMP;
  bool good = true;
  each(dump.store, entries, [&](const Value &entry) {
    if (entry.type == Type::kDict) good = dump.entries.add(entry) && good;
    else ++dump.bad;
  });
  return good ? MEGATRACE_FR_OK : MEGATRACE_FR_MEMORY;
}

} // namespace

extern "C" {

megatrace_fr *megatrace_fr_new(void) { return static_cast<megatrace_fr *>(calloc(1, sizeof(megatrace_fr))); }

int32_t megatrace_fr_read(megatrace_fr *dump, const uint8_t *data, uint64_t length) {
  dump->data = data;
  dump->length = length;
  dump->bad = dump->entries.size = dump->texts.size = 0;
  dump->root = {Type::kNone, 0, 0};
  dump->store.forget();
  if (dump->slots.size) memset(dump->slots.at, 0, dump->slots.size * sizeof(uint32_t));
  fr::Machine machine{};
  machine.data = data;
  machine.length = length;
  machine.store = &dump->store;
  machine.stack = dump->stack;
  machine.memo = dump->memo;
  int32_t reason = MEGATRACE_FR_OK;
  if (machine.run()) {
    dump->root = machine.result;
    reason = open_entries(*dump);
  } else {
    reason = machine.reason;
  }
  dump->position = machine.at;
  dump->stack = machine.stack;
  dump->memo = machine.memo;
  dump->stack.size = dump->memo.size = 0;
  return reason;
}

uint64_t megatrace_fr_position(const megatrace_fr *dump) { return dump->position; }
uint64_t megatrace_fr_entries(const megatrace_fr *dump) { return dump->entries.size; }
uint64_t megatrace_fr_bad(const megatrace_fr *dump) { return dump->bad; }

int32_t megatrace_fr_fill(megatrace_fr *dump, int64_t *table) {
  for (uint64_t i = 0; i < dump->entries.size; ++i)
    if (!fill(*dump, dump->entries.at[i], table, i)) return 0;
  return 1;
}

uint64_t megatrace_fr_texts(const megatrace_fr *dump) { return dump->texts.size; }

void megatrace_fr_places(const megatrace_fr *dump, uint64_t *offsets, uint64_t *lengths) {
  for (uint64_t i = 0; i < dump->texts.size; ++i) {
    offsets[i] = dump->texts.at[i].offset;
    lengths[i] = dump->texts.at[i].length;
  }
}

uint64_t megatrace_fr_json(const megatrace_fr *dump, int64_t which, char *out, uint64_t room) {
  Writer writer{*dump, out, room, 16 * dump->length + 4096};
  if (which < 0 && dump->root.type == Type::kDict) writer.any(dump->root, 0, true);
  else if (which >= 0 && static_cast<uint64_t>(which) < dump->entries.size)
    writer.any(dump->entries.at[which], 0, false);
  else writer.word("{}");
  return writer.size;
}

void megatrace_fr_free(megatrace_fr *dump) {
  dump->store.release();
  dump->stack.release();
  dump->memo.release();
  dump->entries.release();
  dump->texts.release();
  dump->slots.release();
  free(dump);
}

} // extern "C"
