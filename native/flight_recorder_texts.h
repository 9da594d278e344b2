// Texts of dumps, each once: a job's dumps say the same few thousand words. Numbers stay valid from dump to dump.
#ifndef MEGATRACE_FLIGHT_RECORDER_TEXTS_H
#define MEGATRACE_FLIGHT_RECORDER_TEXTS_H

#include "flight_recorder_values.h"

namespace fr {

struct Place {
  uint64_t offset;
  uint32_t length;
};

inline uint64_t hash(const uint8_t *text, uint64_t size) {
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

struct Texts {
  Array<uint8_t> pool;
  Array<Place> places;
  Array<uint32_t> slots; // open addressing: number of a text + 1, 0 free

  bool grow() {
    Array<uint32_t> wider;
    const uint64_t room = slots.size ? slots.size * 2 : 512;
    if (!wider.reserve(room)) return false;
    memset(wider.at, 0, room * sizeof(uint32_t));
    wider.size = room;
    for (uint64_t i = 0; i < places.size; ++i) {
      uint64_t slot = hash(pool.at + places.at[i].offset, places.at[i].length) & (room - 1);
      while (wider.at[slot]) slot = (slot + 1) & (room - 1);
      wider.at[slot] = static_cast<uint32_t>(i + 1);
    }
    slots.release();
    slots = wider;
    return true;
  }
  // The number of a text; false where memory is short.
  bool number(const uint8_t *text, uint32_t size, int64_t *out) {
    if (2 * places.size >= slots.size && !grow()) return false;
    uint64_t slot = hash(text, size) & (slots.size - 1);
    for (; slots.at[slot]; slot = (slot + 1) & (slots.size - 1)) {
      const Place &known = places.at[slots.at[slot] - 1];
      if (known.length == size && !memcmp(pool.at + known.offset, text, size)) {
        *out = slots.at[slot] - 1;
        return true;
      }
    }
    if (places.size >= INT32_MAX || !pool.reserve(pool.size + size + 1) || !places.add({pool.size, size})) return false;
    memcpy(pool.at + pool.size, text, size);
    pool.size += size;
    slots.at[slot] = static_cast<uint32_t>(places.size);
    *out = static_cast<int64_t>(places.size - 1);
    return true;
  }
  void forget() {
    pool.size = places.size = 0;
    if (slots.size) memset(slots.at, 0, slots.size * sizeof(uint32_t));
  }
  void release() {
    pool.release();
    places.release();
    slots.release();
  }
};

} // namespace fr

#endif
