/* Steps of three layers for the tests of the CUDA backend, on the fake driver. */
#ifndef MLA_TEST_BE_CUDA_STEP_H
#define MLA_TEST_BE_CUDA_STEP_H

#include "daemon/util/clock.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define LAYERS 3u
#define WORD   8u /* 64-bit words to the next cache line */

/* Events are taken meanwhile, as the loop would. */
#define WAIT_UNTIL(rig, condition)                                                                                     \
    do {                                                                                                               \
        uint64_t until_ = mla_now_ns() + 20 * MLA_NS_PER_S;                                                            \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(mla_now_ns() < until_, "not in time: %s", #condition);                                       \
            rig_poll(rig, 1);                                                                                          \
        }                                                                                                              \
    } while (0)

struct stepper {
    struct rig *rig;
    struct mem page;
    struct dc *layers[LAYERS];
    struct be_layer records[LAYERS];
    struct be_step step;
    struct ticket ticket;
};

/* Without graphs unless the environment says so. */
struct rig step_rig(void);

struct dc *step_case(struct rig *rig, uint64_t seed);
void step_make(struct stepper *s, struct rig *rig, uint64_t seed);
void step_make_of(struct stepper *s, struct rig *rig, uint64_t seed, const struct dc_shape *shape); /* q_len 2, 2 */
void step_drop(struct stepper *s);
uint64_t *step_word(const struct stepper *s, uint32_t layer, bool done);

/* Outputs are poison, words taken back. */
void step_clear(struct stepper *s);
/* That, and the step begins. */
void step_again(struct stepper *s);
/* The ready word, and the done word is waited for. */
void step_layer(struct stepper *s, uint32_t layer);
/* Waits for a step all of whose layers have run right. */
void step_ends_well(struct stepper *s);

/* From here on kernels are known to be loaded, those of launches whose records are copied, too; calls are counted. */
void step_warm_up(struct rig *rig);
uint64_t step_calls(enum mla_fake_call call); /* since then */

#endif
