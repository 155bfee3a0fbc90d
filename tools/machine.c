/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *machine_cpu(void)
{
    static char name[128];
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && !*name && fgets(line, sizeof line, f)) sscanf(line, "model name : %127[^\n]", name);
    if (f)
        fclose(f);
    return *name ? name : "unknown CPU";
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *machine_compiler(void)
{
#if defined(__clang__)
    return "clang " TEXT(__clang_major__) "." TEXT(__clang_minor__) "." TEXT(__clang_patchlevel__);
#else
    return "gcc " __VERSION__;
#endif
}

long machine_cache(int level)
{
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    long size = sysconf(names[level - 1]);
    return size > 0 ? size : 0;
#else
    (void)level;
    return 0;
#endif
}
