/* One message of every type with all of its fields set, and one with only what is required: for the codec's tests, the
 * seeds of the fuzz corpora, and whoever needs a legal body. */
#ifndef MLA_TESTS_MESSAGES_H
#define MLA_TESTS_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"

/* Every type of the protocol, requests, replies and notices. */
extern const uint16_t mla_all_types[];
extern const size_t mla_n_all_types;

/* Legal messages; what they point to is static. */
void mla_sample_full(uint16_t type, struct mla_message *msg);
void mla_sample_minimal(uint16_t type, struct mla_message *msg);

/* Same type and equal in every field, through all pointers (floats by their bits). */
bool mla_message_equal(const struct mla_message *a, const struct mla_message *b);

#endif
