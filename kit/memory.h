/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a fixture's tensors live: host memory from whoever builds it (the tests have guard pages around it), and,
 * for a device, memory there as well.
 */
#ifndef KIT_MEMORY_H
#define KIT_MEMORY_H

#include <stddef.h>

/* 'data' lies inside a larger piece that belongs to the buffer, too, and may be written. */
struct kit_buffer {
    unsigned char *data, *inside;
    size_t size, inside_size;
};

/* Memory of a device, and waiting for what was put into its default stream. Whoever cannot do it ends the program. */
struct kit_device {
    void *(*get)(size_t bytes);
    void (*put_back)(void *p);
    void (*send)(void *to, const void *from, size_t bytes);  /* host to device */
    void (*fetch)(void *to, const void *from, size_t bytes); /* device to host */
    void (*spoil)(void *p, size_t bytes);                    /* fills it with the canary */
    void (*wait)(void);
};

/* Where in its piece of memory a buffer lies, for those who have a choice. */
enum kit_place {
    KIT_AT_END,  /* the last byte is the piece's last */
    KIT_ALIGNED, /* the first byte is the piece's first: aligned to everything */
    KIT_ODD,     /* one element above that: aligned to nothing but the element */
    KIT_PLACES
};

struct kit_memory {
    /* Whoever has no memory ends the program. */
    struct kit_buffer (*get)(size_t size, size_t element, enum kit_place place);
    void (*put_back)(struct kit_buffer *b);
    const struct kit_device *device; /* NULL: everything runs on the CPU */
};

/* malloc, touched, so that it is resident. */
extern const struct kit_memory kit_heap;

/* A NaN in f32, bf16 and f16: what was not written shows. */
#define KIT_CANARY 0xFF
void kit_fill_canary(struct kit_buffer *b);
/* 1 if every byte inside is the canary, that is: nothing was written. */
int kit_is_canary(const struct kit_buffer *b);

/* n zeros; free() them. Ends the program when there is no memory. */
double *kit_doubles(size_t n);

/* calloc that ends the program when there is no memory. */
void *kit_zeros(size_t n, size_t size);

#endif
