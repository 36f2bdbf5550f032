/* A CUDA driver without a GPU, for tests: libmla_fake_cuda.so exports the symbols that kernels/host/cuda_driver.h
 * lists. Device memory is memfds, so that it crosses processes; a device pointer is a pointer of this process; streams
 * are threads that execute in order, asynchronous to the caller; decode kernels and reducers are run by the CPU
 * backend's executors from the struct mla_abi_launch they are given.
 *
 * Where the driver's behaviour is known it is followed: errors without a current context, one open per allocation and
 * process, a process cannot open its own handle (CUDA_ERROR_INVALID_CONTEXT), VMM memory has no legacy handle, an
 * importer's mapping outlives the exporter, capture refuses synchronous calls, a sticky error ends the context. Fresh
 * memory holds 0xff bytes (at most the first MiB), never zeros. Stricter than the driver: freeing or unmapping memory
 * while an unfinished copy, word or kernel of any stream names it aborts the process with a sentence on stderr.
 *
 * Modules: cubins and PTX are only searched for the names of entry points. Kernels: names with "decode" or "reduce",
 * which take a struct mla_abi_launch; and, for tests, fake_spin(uint64_t nanoseconds), fake_read(uint64_t address),
 * which is an illegal access unless a range covers the address; mla_bench_... does nothing. An address in a launch's
 * records that nothing covers, or that is written through read-only access, is CUDA_ERROR_ILLEGAL_ADDRESS. Kernels that
 * are called NAME_inline have the blob in their parameter, NAME_fetch its address, and copy it to its place. Records
 * that only the real kernels read, of units and of reducers in f16, must agree with jobs, sequences and plan.
 *
 * Configuration: $MLA_FAKE_CUDA, "key=value" pairs separated by ';' (also by newlines in the files). Keys:
 *   devices=1 memory=8G sms=132 capability=9.0 driver=13000 name=... uuid=<32 hex of device 0; the last byte counts up>
 *   mps=0 ipc=1 vmm=1 (0: not supported)   attribute.<number>=<value of that CUdevice_attribute>
 *   report=DIR   counters of this process in DIR/<pid>, live and kept after its end (mla_fake_report_read)
 *   faults=FILE  more rules, read anew when the file changes; to be seen whole, write beside it and rename
 * and fault rules, "selector=action". Selector: an entry point's name as in cuda_driver.h, * for any of them, or what
 * streams execute: kernel, copy, set, write, wait, event, wait_event; then @N for the Nth time since the rule was read,
 * @N+ for that and all later ones, nothing for every time. Action: fail NAME    the call returns it
 * (CUDA_ERROR_OUT_OF_MEMORY or OUT_OF_MEMORY); for what streams execute: as lose lose NAME    the context is lost: this
 * and every later call that needs one return it, nothing queued executes delay MS     goes on after that time hold FILE
 * goes on when the file exists kill         SIGKILL to this process A key or name that is not known aborts: a rule that
 * cannot match is a mistake in a test.
 *
 * Threads: all functions from any thread. fork(): as with the driver, a child of a process that has called cuInit gets
 * CUDA_ERROR_NOT_INITIALIZED.
 */
#ifndef MLA_TESTS_FAKE_CUDA_H
#define MLA_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/host/cuda_driver.h"

/* What is open now. Resources that a context's end freed stay counted: their owner leaked them. */
#define MLA_FAKE_RESOURCES(X)                                                                                          \
    X(contexts)         /* primary contexts retained */                                                                \
    X(allocations)      /* cuMemAlloc */                                                                               \
    X(allocated_bytes)  /* cuMemAlloc and cuMemCreate of this process */                                               \
    X(host_allocations) /* cuMemHostAlloc */                                                                           \
    X(host_registrations)                                                                                              \
    X(ipc_mappings) /* allocations of others, opened once or more */                                                   \
    X(ipc_opens)    /* cuIpcOpenMemHandle without its close */                                                         \
    X(vmm_handles)  /* references to physical allocations */                                                           \
    X(vmm_reservations)                                                                                                \
    X(vmm_mappings)                                                                                                    \
    X(streams)                                                                                                         \
    X(events)                                                                                                          \
    X(graphs)                                                                                                          \
    X(graph_execs)                                                                                                     \
    X(modules)                                                                                                         \
    X(queued) /* operations of all streams that have not ended */

enum mla_fake_call {
#define MLA_FAKE_CALL(name) MLA_FAKE_##name,
    CUDA_DRIVER_LIST(MLA_FAKE_CALL)
#undef MLA_FAKE_CALL
        MLA_FAKE_kernel, /* executed by streams, from here on */
    MLA_FAKE_copy,
    MLA_FAKE_set,
    MLA_FAKE_write,
    MLA_FAKE_wait,
    MLA_FAKE_event,
    MLA_FAKE_wait_event,
    MLA_FAKE_CALLS
};

struct mla_fake_report {
    uint64_t magic;
    uint64_t bytes;         /* of this struct */
    uint64_t lost;          /* CUresult that ended the context, or 0 */
    uint64_t programmatic;  /* launches that may begin before what is in front has ended; here none does */
    uint64_t inline_bytes;  /* parameters of launches that had their blob with them, as the kernels declare them */
    uint64_t fetched_bytes; /* of blobs that kernels brought from where they were written */
    uint64_t host_tables;   /* jobs of decode kernels that were executed, by where their page tables lie */
    uint64_t device_tables;
#define MLA_FAKE_MEMBER(name) uint64_t name;
    MLA_FAKE_RESOURCES(MLA_FAKE_MEMBER)
#undef MLA_FAKE_MEMBER
    uint64_t calls[MLA_FAKE_CALLS]; /* of what streams execute: begun, the rules for it are chosen */
};

/* Of the process itself (exported by the library). */
void mla_fake_report(struct mla_fake_report *out);

/* Replaces the rules of this process; text as in $MLA_FAKE_CUDA, "" for none. */
void mla_fake_rules(const char *text);

/* Of another process that has report=DIR (library mlad_fake_cuda_report). 0, -ENOENT while there is none, -EBADMSG when
 * the file is of another build. */
int mla_fake_report_read(const char *directory, pid_t pid, struct mla_fake_report *out);

/* "streams=1 queued=2 ...": the resources that are not 0, "" when all are. Returns the length it needs. */
size_t mla_fake_report_open(const struct mla_fake_report *report, char *out, size_t out_bytes);

/* By name ("cuMemAlloc", "kernel"); -1 for an unknown one. */
int mla_fake_call_find(const char *name);

#endif
