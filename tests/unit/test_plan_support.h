/* Requests and plans for the planner's tests. */
#ifndef MLA_TESTS_PLAN_SUPPORT_H
#define MLA_TESTS_PLAN_SUPPORT_H

#include "kernels/plan/plan.h"

/* A plan with the memory it lives in: scratch, tiles, items, reduces. */
#define TEST_PLAN_ARRAYS 4
struct test_plan {
    struct plan plan;
    void *memory[TEST_PLAN_ARRAYS];
};

/* A batch of equal sequences in one causal job, on a preset. */
struct test_shape {
    struct plan_request request;
    struct plan_job job;
    struct plan_seq seqs[1024];
};

void test_shape_make(struct test_shape *shape, const char *preset, uint32_t heads, uint32_t batch, uint32_t q_len,
                     uint32_t kv_len, enum plan_policy policy);
/* The same device with another number of SMs. */
void test_shape_sms(struct test_shape *shape, uint32_t sms);

/* plan_bound, arrays of exactly that size, plan_build. Returns plan_build's result. */
int test_plan_try(const struct plan_request *request, struct test_plan *out);
/* The same; a failure of build, of plan_check or of predicted_ns == plan_predict_ns() fails the test. */
void test_plan_make(const struct plan_request *request, struct test_plan *out);
void test_plan_free(struct test_plan *plan);

/* Reproducible random numbers: 0 .. below - 1. */
struct test_random {
    uint64_t state;
};
uint32_t test_random_below(struct test_random *random, uint32_t below);

/* A random request of up to 64 ragged sequences in up to 5 jobs; arrays inside. */
struct test_ragged {
    struct plan_request request;
    struct plan_job jobs[5];
    struct plan_seq seqs[64];
};
void test_ragged_make(struct test_random *random, struct test_ragged *out);

#endif
