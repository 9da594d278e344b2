// Entries of a dump as columns, and the rest of it as JSON. See flight_recorder.h for what this file promises.

#include "flight_recorder.h"

#include "flight_recorder_columns.h"
#include "flight_recorder_machine.h"
#include "flight_recorder_quick_dump.h"

using fr::Array;
using fr::kAbsent;
using fr::kLimit;
using fr::Store;
using fr::Type;
using fr::Value;

struct megatrace_fr {
  const uint8_t *data;
  uint64_t length, position, bad;
  fr::Texts texts;
  fr::Quick quick;
  bool straight; // the way on which the last dump was read; if not, below
  Store store;
  Array<Value> stack, memo; // of the machine, between dumps
  Value root;
  Array<Value> entries;
  Array<int32_t> group_of; // of columns, between dumps
  Array<int64_t> entry_of;
};

namespace {

bool is(const megatrace_fr &dump, const Value &text, const char *word, uint32_t size) {
  return text.type == Type::kText && text.extra == size && !memcmp(dump.data + text.number, word, size);
}
#define IS(value, word) is(dump, value, word, sizeof(word) - 1)

// The number of a text, kAbsent for any other value; false where memory is short.
bool intern(megatrace_fr &dump, const Value &text, int64_t *out) {
  return text.type != Type::kText || dump.texts.number(dump.data + text.number, text.extra, out);
}

int64_t number(const megatrace_fr &dump, const Value &value) {
  return fr::number(dump.data, value.type, value.extra, value.number);
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
    const int field = key.type == Type::kText ? fr::field_of(dump.data + key.number, key.extra) : fr::kNoField;
    switch (field) {
    case fr::kNoField: break;
    case fr::kInDtypes: in_dtypes = item(dump, value, 0); break;
    case fr::kOutDtypes: out_dtypes = item(dump, value, 0); break;
    case MEGATRACE_FR_STATE_TEXT:
    case MEGATRACE_FR_NAME_TEXT: text(field, value); break;
    case MEGATRACE_FR_IS_P2P:
    case MEGATRACE_FR_RETIRED: row[field] = value.type == Type::kBool ? value.number : kAbsent; break;
    case MEGATRACE_FR_COUNT_IN:
    case MEGATRACE_FR_COUNT_OUT: row[field] = elements(dump, value); break;
    case MEGATRACE_FR_GROUP_TEXT:
      text(MEGATRACE_FR_GROUP_TEXT, is_sequence(value) ? item(dump, value, 0) : value);
      text(MEGATRACE_FR_DESC_TEXT, item(dump, value, 1));
      break;
    case MEGATRACE_FR_PG_ID:
      row[MEGATRACE_FR_PG_ID] = value.type == Type::kInt ? number(dump, value) : kAbsent;
      text(MEGATRACE_FR_PG_ID_TEXT, value);
      break;
    default: row[field] = number(dump, value); break;
    }
  });
  text(MEGATRACE_FR_DTYPE_TEXT, in_dtypes.type == Type::kText ? in_dtypes : out_dtypes);
  for (int i = 0; i < MEGATRACE_FR_WIDTH; ++i) table[static_cast<uint64_t>(i) * dump.entries.size + at] = row[i];
  return good;
}

// Writes values of the machine as JSON.
struct Tree : fr::Writer {
  const megatrace_fr &dump;

  void any(const Value &value, int deep, bool is_root) {
    if (full()) return;
    switch (value.type) {
    case Type::kBool: word(value.number ? "true" : "false"); return;
    case Type::kInt: integer(value.number); return;
    case Type::kText: text(static_cast<uint64_t>(value.number), value.extra); return;
    case Type::kList:
    case Type::kTuple: list(value, deep); return;
    case Type::kDict: dict(value, deep, is_root); return;
    default: word("null"); return;
    }
  }
  void list(const Value &value, int deep) {
    if (deep >= fr::kDeepest) return word("null");
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
    if (deep >= fr::kDeepest) return word("null");
    bool first = true;
    byte('{');
    pairs(dump.store, value, [&](const Value &key, const Value &one) {
      if (is_root && IS(key, "entries")) return;
      if (key.type != Type::kText && key.type != Type::kInt) return;
      if (!first) byte(',');
      first = false;
      if (key.type == Type::kText) text(static_cast<uint64_t>(key.number), key.extra);
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
  dump->bad = dump->entries.size = dump->position = 0;
  dump->quick.data = data;
  dump->quick.length = length;
  dump->quick.texts = &dump->texts;
  dump->straight = dump->quick.run();
  if (dump->straight) return MEGATRACE_FR_OK;
  dump->root = {Type::kNone, 0, 0};
  dump->store.forget();
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
int32_t megatrace_fr_straight(const megatrace_fr *dump) { return dump->straight; }
uint64_t megatrace_fr_bad(const megatrace_fr *dump) { return dump->straight ? dump->quick.bad : dump->bad; }
uint64_t megatrace_fr_entries(const megatrace_fr *dump) {
  return dump->straight ? dump->quick.begins.size : dump->entries.size;
}

int32_t megatrace_fr_fill(megatrace_fr *dump, int64_t *table) {
  const uint64_t count = megatrace_fr_entries(dump);
  for (uint64_t i = 0; i < count; ++i) {
    if (!dump->straight && !fill(*dump, dump->entries.at[i], table, i)) return 0;
    if (!dump->straight) continue;
    for (uint64_t column = 0; column < MEGATRACE_FR_WIDTH; ++column)
      table[column * count + i] = dump->quick.rows.at[i * MEGATRACE_FR_WIDTH + column];
  }
  return 1;
}

int64_t megatrace_fr_calls(megatrace_fr *dump, const megatrace_fr_word *words, const megatrace_fr_columns *out,
                           uint64_t at, megatrace_fr_facts *facts) {
  if (!dump->straight) return -1;
  fr::Calls calls = {dump->quick.rows.at,     dump->quick.begins.size, words, dump->texts.places.size, out, at, facts,
                     &dump->group_of, &dump->entry_of};
  const int64_t rows = calls.run();
  const fr::Quick &quick = dump->quick;
  facts->version = quick.version;
  facts->configs = quick.configs;
  facts->statuses = quick.statuses;
  for (int64_t i = 0; i < quick.configs; ++i) memcpy(facts->config[i], quick.config[i], sizeof quick.config[i]);
  for (int64_t i = 0; i < quick.statuses; ++i) memcpy(facts->status[i], quick.status[i], sizeof quick.status[i]);
  return rows;
}

uint64_t megatrace_fr_texts(const megatrace_fr *dump) { return dump->texts.places.size; }

const uint8_t *megatrace_fr_text_bytes(const megatrace_fr *dump, uint64_t first, uint32_t *lengths) {
  for (uint64_t i = first; i < dump->texts.places.size; ++i) *lengths++ = dump->texts.places.at[i].length;
  return dump->texts.pool.at + (first < dump->texts.places.size ? dump->texts.places.at[first].offset : 0);
}

void megatrace_fr_forget(megatrace_fr *dump) { dump->texts.forget(); }

uint64_t megatrace_fr_json(megatrace_fr *dump, int64_t which, char *out, uint64_t room) {
  Tree writer{{dump->data, out, room, 16 * dump->length + 4096, 0}, *dump};
  if (dump->straight) {
    dump->quick.writer = &writer;
    dump->quick.write(which);
  } else if (which < 0 && dump->root.type == Type::kDict) {
    writer.any(dump->root, 0, true);
  } else if (which >= 0 && static_cast<uint64_t>(which) < dump->entries.size) {
    writer.any(dump->entries.at[which], 0, false);
  } else {
    writer.word("{}");
  }
  return writer.size;
}

void megatrace_fr_free(megatrace_fr *dump) {
  dump->store.release();
  dump->stack.release();
  dump->memo.release();
  dump->entries.release();
  dump->texts.release();
  dump->quick.memo.release();
  dump->quick.sums.release();
  dump->quick.rows.release();
  dump->quick.begins.release();
  dump->group_of.release();
  dump->entry_of.release();
  free(dump);
}

} // extern "C"
