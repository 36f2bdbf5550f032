/* What a thread does between two looks at memory that another writes: the other half of its core gets on faster. */
#ifndef MLA_DAEMON_UTIL_RELAX_H
#define MLA_DAEMON_UTIL_RELAX_H

static inline void mla_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
