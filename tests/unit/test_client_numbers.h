/* The numbers of <mla/mla.h>, seen by a source that includes nothing of the protocol. NULL, 0: no such name. */
#ifndef MLA_TESTS_CLIENT_NUMBERS_H
#define MLA_TESTS_CLIENT_NUMBERS_H

#include <stdint.h>

/* Name of a status of the public enum without MLA_, or NULL. */
const char *public_status_name(int number);

struct public_number {
    const char *name;
    uint64_t number;
};
/* Every other enumerator and constant that the protocol has too; ends with a NULL name. */
extern const struct public_number public_numbers[];

#endif
