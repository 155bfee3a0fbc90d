/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void no_memory(size_t bytes)
{
    fprintf(stderr, "cannot get %zu bytes of memory for the data: use smaller sizes\n", bytes);
    exit(1);
}

/* Memory that the system can give without killing anybody; all of it where it does not tell. */
static size_t memory_left(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && !kib && fgets(line, sizeof line, f)) sscanf(line, "MemAvailable: %llu kB", &kib);
    if (f)
        fclose(f);
    return kib ? (size_t)kib << 10 : SIZE_MAX;
}

/* At the begin of a cache line, as torch's tensors are: what is timed here is what they meet. */
static struct kit_buffer heap_get(size_t size, size_t element, enum kit_place place)
{
    (void)element, (void)place;
    enum { LARGE = 256 << 20 };
    if (size > LARGE && size > memory_left())
        no_memory(size);
    struct kit_buffer b = {aligned_alloc(64, size / 64 * 64 + 64), NULL, size, size};
    if (!b.data)
        no_memory(size);
    b.inside = memset(b.data, 0, size);
    return b;
}

static void heap_put_back(struct kit_buffer *b)
{
    free(b->data);
    b->data = b->inside = NULL;
}

const struct kit_memory kit_heap = {heap_get, heap_put_back, NULL};

void kit_fill_canary(struct kit_buffer *b)
{
    memset(b->inside, KIT_CANARY, b->inside_size);
}

int kit_is_canary(const struct kit_buffer *b)
{
    /* The first byte is the canary and every byte equals its neighbour. */
    return b->inside_size == 0 ||
           (b->inside[0] == KIT_CANARY && memcmp(b->inside, b->inside + 1, b->inside_size - 1) == 0);
}

void *kit_zeros(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p)
        no_memory(n * size);
    return p;
}

double *kit_doubles(size_t n)
{
    return kit_zeros(n, sizeof(double));
}
