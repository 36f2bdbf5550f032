/* What the CPU backend calls itself. */
#ifndef MLA_DAEMON_BACKEND_CPU_IDENTITY_H
#define MLA_DAEMON_BACKEND_CPU_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

/* "CPU-" and 32 hex digits: the same for every start on one machine (a hash of /etc/machine-id), random on a machine
 * without one. bytes >= 37. */
void cpu_identity_uuid(char *out, size_t bytes);

/* The model name of the first CPU, "CPU" when the kernel does not tell. */
void cpu_identity_name(char *out, size_t bytes);

/* CPUs that this process may run on, at least 1. */
uint32_t cpu_identity_count(void);

#endif
