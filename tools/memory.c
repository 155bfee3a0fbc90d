/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#ifdef __linux__
#include <malloc.h>
#endif

static atomic_llong in_use, peak;

#ifdef TOOL_COUNTS_ALLOCATIONS
/* The linker's --wrap sends every call in this program and the library it holds to __wrap_x, and __real_x is the C
 * library's (or a sanitizer's) x. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **p, size_t alignment, size_t size);
void __real_free(void *p);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);
void __wrap_free(void *p);

static void *counted(void *p)
{
    if (p) {
        long long size = (long long)malloc_usable_size(p);
        long long total = atomic_fetch_add(&in_use, size) + size, highest = atomic_load(&peak);
        while (total > highest && !atomic_compare_exchange_weak(&peak, &highest, total))
            ;
    }
    return p;
}

static void uncounted(void *p)
{
    if (p)
        atomic_fetch_sub(&in_use, (long long)malloc_usable_size(p));
}

void *__wrap_malloc(size_t size)
{
    return counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    uncounted(old);
    void *p = __real_realloc(old, size);
    counted(p ? p : old); /* a failed realloc leaves the old block */
    return p;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return counted(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    int failed = __real_posix_memalign(p, alignment, size);
    if (!failed)
        counted(*p);
    return failed;
}

void __wrap_free(void *p)
{
    uncounted(p);
    __real_free(p);
}
#endif

static double status_bytes(const char *format)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    double kib = -1;
    while (f && kib < 0 && fgets(line, sizeof line, f)) sscanf(line, format, &kib);
    if (f)
        fclose(f);
    return kib * 1024;
}

static double resident_peak(void)
{
    double bytes = status_bytes("VmHWM: %lf");
    struct rusage usage;
    if (bytes < 0 && !getrusage(RUSAGE_SELF, &usage)) {
#ifdef __APPLE__
        const double unit = 1;
#else
        const double unit = 1024;
#endif
        bytes = unit * (double)usage.ru_maxrss;
    }
    return bytes;
}

/* Linux forgets the peak of the resident set when 5 is written here; elsewhere the mark is the peak so far, and
 * growth below it goes unseen. */
static void forget_resident_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) {
        fputs("5", f);
        fclose(f);
    }
}

struct memory_mark memory_begin(void)
{
#ifdef __GLIBC__
    malloc_trim(0); /* memory that earlier work freed must not hide what this one takes */
#endif
    forget_resident_peak();
    struct memory_mark begin = {.resident = resident_peak()};
    begin.allocated = (double)atomic_load(&in_use);
    atomic_store(&peak, atomic_load(&in_use));
    return begin;
}

struct memory_mark memory_end(struct memory_mark begin)
{
    struct memory_mark growth = {-1, resident_peak() - begin.resident};
#ifdef TOOL_COUNTS_ALLOCATIONS
    growth.allocated = (double)atomic_load(&peak) - begin.allocated;
#else
    (void)begin;
#endif
    return growth;
}

double memory_extra(struct memory_mark growth)
{
    return growth.allocated >= 0 ? growth.allocated : growth.resident;
}
