/* SPDX-License-Identifier: Apache-2.0
 *
 * What the executor asks of an instruction set. A kernel works on one panel: nr rows side by side in the SIMD lanes, so
 * that a row's maximum, sums and gradient never need a horizontal step.
 *
 *     score tile     [SKL_BK][nr]       x = <a, b> + bias; later e = 2^{unit (x - m)}, later dz
 *     packs                             the operands as the products want them: only struct skl_products reads them
 *
 * Scores become logits in base 2, z log2 e = unit x, only after the row's largest score m has been subtracted: the
 * difference is exact near m, so that no digit is lost to the size of the logits.
 *
 * Sides are numbered 0 = P, the distribution before the bars of KL(P || Q), and 1 = Q.
 */
#ifndef SKL_CPU_KERNELS_H
#define SKL_CPU_KERNELS_H

#include "../divergence.h"
#include "streamkl/streamkl.h"

enum {
    /* Columns in a tile, a multiple of every mr (4, 6, 8, 12, 16). More would push a panel's two logit tiles (48 KiB)
     * further out of L1; fewer would make grad_rows load and store da more often. */
    SKL_BK = 192,
    /* Scores of a panel that are made and pushed at a time, of each side, 6 KiB: they stay in L1. 48 columns of 32 rows,
     * 96 of 16, 192 of 8: divisors of SKL_BK, and multiples of the mr that such an nr has. */
    SKL_SLICE = 1536,
    SKL_NR_MAX = 32,             /* rows in the widest panel */
    SKL_STRIPS_MAX = SKL_BK / 4, /* strips of mr columns in a tile, for the smallest mr */
    SKL_ALIGN = 64               /* of every buffer */
};

/* What a panel knows of its rows from the columns pushed so far, in base 2; compare struct skl_row_state. */
struct skl_panel_state {
    float m[2][SKL_NR_MAX]; /* the reference: the largest score, or one near it */
    double l[2][SKL_NR_MAX];
    double acc[2][SKL_NR_MAX];
};

/* Per row numbers with which a tile of logits (or of exponentials) becomes a tile of dz; docs/math.md, section dz. */
struct skl_panel_factors {
    float m[2][SKL_NR_MAX];     /* exponentials are taken as e = 2^{unit (x - m)} */
    float prob[2][SKL_NR_MAX];  /* e prob = the probability: 1 / l */
    float g[2][SKL_NR_MAX];     /* upstream gradient of the row, times the side's scale and slope (divergence.h) */
    float own[2][SKL_NR_MAX];   /* labels: dz has this times the probability of the side more */
    float c[2][SKL_NR_MAX];     /* what the gradient subtracts; of a KL in base 2 */
    float gap[SKL_NR_MAX];      /* log2 l_Q - log2 l_P */
    float power[2][SKL_NR_MAX]; /* alpha-beta: l^-(alpha + beta) */
    float unit[2];
    float param[2]; /* the divergence's number of each side */
};

/* What a row can tell beyond its divergence, of one side; see kernels/details.h. */
enum skl_want {
    SKL_WANT_ENTROPY = 1, /* l, moment */
    SKL_WANT_L1 = 2,
    SKL_WANT_TOP1 = 4,
    SKL_WANT_SUM = 8,
    SKL_WANT_MASS = 16,  /* the executor sums it, under the reference m */
    SKL_WANT_LABEL = 32, /* the executor's own */
    SKL_WANT_RANK = 64   /* the executor's own: above, of the other side's top and there */
};
struct skl_panel_details {
    float m[SKL_NR_MAX]; /* the largest score */
    double l[SKL_NR_MAX], moment[SKL_NR_MAX], l1[SKL_NR_MAX], sum[SKL_NR_MAX], mass[SKL_NR_MAX];
    int64_t top[SKL_NR_MAX];  /* the column of m */
    float label[SKL_NR_MAX];  /* the label's score; -inf: not seen yet */
    float there[SKL_NR_MAX];  /* the other side's score in column 'top' */
    double above[SKL_NR_MAX]; /* the second sweep: how many scores are larger than the row's rival */
};

/* One head of a mixture, per row of a panel: the head's part of t is share 2^{unit (x - m)}. */
struct skl_panel_head {
    float m[SKL_NR_MAX], share[SKL_NR_MAX];
};

/* What a tile knows of a head's rows: the largest score, and the sum of 2^{unit (x - m)}. */
struct skl_head_sums {
    float m[SKL_NR_MAX], l[SKL_NR_MAX];
};

/* A column that may be among the largest of its row. */
struct skl_pick {
    float x; /* its score, +inf for NaN, and never -0 */
    int32_t column;
};

/* What push_kl leaves in the two logit tiles. */
enum skl_keep {
    SKL_KEEP_NOTHING, /* value only */
    SKL_KEEP_SCORES,  /* x_P, x_Q */
    SKL_KEEP_EXP_Q,   /* e_P, e_Q: all that the gradient of Q needs */
    SKL_KEEP_EXP_P    /* e_P, unit_P (x_P - m_P) - unit_Q (x_Q - m_Q): all that the gradient of P needs */
};

/* Memory that will be wanted next, rows of it: a product asks for it line by line as it goes. */
struct skl_soon {
    const char *at;
    int64_t stride;              /* bytes from row to row */
    const int64_t *keys;         /* which rows from 'at' on; NULL: one after the other */
    int rows, bytes;             /* rows still to be asked for, bytes of each */
    int byte;                    /* of the present row, where the asking has come to */
    const struct skl_soon *then; /* asked for after it; NULL: nothing */
    int stream; /* logits: not packed but used in place, and all of a tile for one panel: memory is the limit */
};

/* A tile's keys of one list, and whose they are: rows lane .. lane + lanes - 1 of a panel. */
struct skl_key_list {
    const int32_t *keys;
    int n, left; /* keys of this tile, and from its first one to the end of the list, which may be asked for */
    int lane, lanes;
};

/* A tile of columns, packed or the operand itself, from entry d0 of dim on; or listed keys where they lie. */
struct skl_columns {
    const void *at;
    int64_t ld; /* from column to column, in elements of the pack */
    /* For products of keys in place alone, which find all of the operand's columns at 'at': those of a panel's lists. */
    const struct skl_key_list *lists;
    int count, dtype;
};

/* What makes a side's scores of a panel's tile: columns, and rows, of all of dim; and what to ask for meanwhile. */
struct skl_factor {
    struct skl_columns columns;
    const void *panel;
    int dim;
    struct skl_soon soon;
};

/* What a unit of the processor held when a call began, and gets back when it ends: the tile configuration. */
struct skl_unit_state {
    unsigned char bytes[64];
};

/* One side's operands into packs, and the three products on them. The layout of a pack is known here alone, so that
 * another kind of multiplier (matrix units of bf16, say) is another such structure. Strides in elements; dtypes as in
 * enum skl_dtype; 'rows' is how many rows the block has room for. */
struct skl_products {
    const char *unit; /* which multipliers: "fma", "amx" ... */
    int kc;           /* most entries of dim in a tile of columns */
    int step;         /* columns of a tile that are multiplied at once; 0: strips of mr */

    /* A thread before its first product and after its last one. NULL: the unit has no state of its own. */
    void (*enter)(struct skl_unit_state *callers);
    void (*leave)(const struct skl_unit_state *callers);

    /* Bytes of a panel's rows for logits(), of a block's rows for grad_columns(), of a tile of columns. */
    int64_t (*panel_bytes)(int64_t dim);
    int64_t (*block_bytes)(int64_t dim, int rows);
    int64_t column_bytes;

    /* Row i of a panel, whose numbers are sign times 'line'; row r of a block, without what is not finite. */
    void (*pack_row)(int64_t dim, const float *line, float sign, int i, void *panel);
    void (*pack_block_row)(int64_t dim, const float *line, int r, int rows, void *block);
    /* The same of nr rows of pack_dtype as they lie, r being the first; they may be read again later. NULL: one by
     * one. */
    int pack_dtype;
    void (*pack_panel)(int64_t dim, const void *const *lines, float sign, void *panel);
    void (*pack_block_panel)(int64_t dim, const void *const *lines, int r, int rows, void *block);
    /* k entries of n columns, for logits() and add_columns(); and for grad_rows(), 'clean': NaN and inf become 0. The
     * operand itself may serve. */
    struct skl_columns (*columns)(int n, int k, const void *b, int dtype, int64_t stride, void *pack);
    struct skl_columns (*columns_back)(int n, int k, const void *b, int dtype, int64_t stride, int clean, void *pack);

    /* The columns first .. last - 1 of a panel's tile of dz, in place, as the two gradient products read them. NULL: in
     * f32 as they are. */
    void (*split)(int first, int last, float *dz);
    /* ... and for grad_columns() alone, whose 'dz' then are these parts: parts_bytes for each panel, one after the other,
     * made of dz, which stays. NULL: it reads dz itself, [SKL_BK][nr] for each panel. */
    void (*parts_of_dz)(int first, int last, const float *dz, void *parts);
    int64_t parts_bytes;

    /* The products on the columns first .. first + n - 1 of a tile, and on k or d entries of dim, from d0 on.
     *     logits         y (+)= b a^T         y [n][nr]
     *     grad_rows      da^T (+)= b^T dz     da [d up to whole strips][nr]
     *     grad_columns   db += dz^T a         of columns 0 .. n - 1, d0 a multiple of nr, d <= nr, over all panels */
    void (*logits)(int n, int k, struct skl_columns columns, int first, const void *panel, int64_t d0,
                   struct skl_soon soon, int add, float *y);
    void (*grad_rows)(int n, int d, const unsigned char *live, struct skl_columns columns, int first, const float *dz,
                      struct skl_soon soon, int add, float *da);
    void (*grad_columns)(int n, int panels, const unsigned char *live, const void *dz, const void *block, int rows,
                         int64_t d0, struct skl_soon soon, int d, float *db, int64_t stride);

    /* logits() and push_kl() in one, of n columns for some panels one after the other, n and 'first' whole strips of
     * 32; the scores do not stay, y is room for a tile of each side. NULL: nothing is gained by it. */
    void (*sweep_kl)(int n, int panels, const struct skl_factor side[2], int first, const float unit[2], float slack,
                     float *const y[2], struct skl_panel_state *states);

    /* logits(), dz of a KL and split() in one, of the side that 'want' says: f, dz and live are those of the first panel,
     * the strips' places in dz and live as in a tile; y is room for two strips of each side. */
    void (*sweep_dz)(int n, int panels, const struct skl_factor side[2], int first, int want,
                     const struct skl_panel_factors *f, float *const y[2], float *dz, unsigned char *live);

    /* Where rows list their keys, and these are used where they lie: columns() and grad_columns() are not there, but
     * db of each key of a panel's lists += dz^T a, for all of dim. 'panel' is which of the block's. */
    void (*grad_keys)(struct skl_columns keys, int64_t dim, const float *dz, const void *block, int panel, float *db,
                      int64_t stride);

    /* The same over lists of entries: sum over k of x[k] times row at[k] of a block, or column at[k] of a tile. */
    void (*add_rows)(int n, const uint16_t *at, const float *x, const void *block, int rows, int dim, float *sum);
    void (*add_columns)(int n, const uint16_t *at, const float *x, struct skl_columns columns, int dim, float *sum);

    /* For measuring the peak: 'steps' rounds of independent multiply-adds, enough in a round to hide their latency.
     * Returns the floating-point operations done. */
    double (*burst)(long steps, float *sink);
};

/* A divergence of two sweeps: its sums over a tile of scores, once the LSEs are known, and dz over the scores. 'apart':
 * both sums are asked for by themselves; without it they may be any two that close into the loss (divergence.h). want
 * has bit 0 for P, bit 1 for Q; a tile that is not wanted is left undefined. KL needs no second sweep: its sum is KL(Q
 * || P), for those who ask for the other way too. */
struct skl_form_kernels {
    void (*sum)(int n, const float *x_p, const float *x_q, int apart, const struct skl_panel_factors *f,
                struct skl_panel_state *state);
    void (*dz)(int n, float *x_p, float *x_q, int want, const struct skl_panel_factors *f);
};

struct skl_kernels {
    enum skl_isa isa;
    const struct skl_kernels *narrower; /* with fewer rows in a panel, for problems that have no more; NULL: none */
    int mr, nr;

    /* The products for operands of each dtype; for bf16 where dz may be rounded to bf16 too; and for f32 where
     * they may be made of bf16 parts (NULL: no others). */
    const struct skl_products *products[3], *rounded, *split;
    const struct skl_products *in_place; /* for rows that list their keys, whatever the dtypes; NULL: none */

    void (*convert)(int64_t n, const void *x, int dtype, float *y);               /* y = (f32) x */
    void (*convert_back)(int64_t n, const float *x, int dtype, void *y);          /* y = (dtype) x */
    void (*write_rows)(int64_t dim, const float *da, int n, float *const *lines); /* of da [dim][nr] the first n rows */

    /* Shaping scores. */
    void (*softcap)(int n, float *y, float inner, double cap);               /* y = cap tanh(inner y) */
    void (*softcap_back)(int n, const float *y, float cap, float *dz);       /* dz *= 1 - (y / cap)^2 */
    void (*mask)(int n, const int *lo, const int *hi, float with, float *y); /* where not lo <= j < hi */
    void (*mask_rows)(int n, const uint32_t *rows, float with, float *y);    /* where bit i of rows[j] is 0 */

    /* The first sweep: of a KL, and of everything else. m is a score, and the largest lies above it by no more than
     * 'slack' in base 2. */
    void (*push_kl)(int n, float *x_p, float *x_q, const float unit[2], float slack, enum skl_keep keep,
                    struct skl_panel_state *state);
    void (*push_lse)(int n, const float *x, float unit, float slack, int side, struct skl_panel_state *state);
    /* dz over what push_kl kept, and over scores. */
    void (*dz_kept)(int n, float *y_p, float *y_q, enum skl_keep kept, const struct skl_panel_factors *f);
    struct skl_form_kernels form[SKL_FORMS];

    /* Beyond the divergence: 'want' has bits of enum skl_want, 'first' is the number of the tile's first column. */
    void (*details)(int n, const float *x, int64_t first, int want, float unit, float unit1,
                    struct skl_panel_details *d);
    void (*count_above)(int n, const float *x, const float *limit, double *above); /* above += how many x > limit */
    void (*tempered)(int n, const float *x, const float *m, float unit1, const float *factor,
                     float *y);                        /* y = factor 2^{unit1 (x - m)} */
    void (*add_tile)(int n, const float *x, float *y); /* y += x */

    /* A mixture of heads: t (+)= share 2^{unit (x - m)}, of nr rows m and share; t = log2 t, -inf where t is 0. */
    void (*mix)(int n, const float *x, float unit, const float *m, const float *share, int add, float *t);
    void (*log2)(int n, float *t);
    /* In two parts: m = max x over the n columns, e = 2^{unit (x - m)} and l = sum e; t (+)= factor e. */
    void (*keep_head)(int n, const float *x, float unit, float *m, float *l, float *e);
    void (*mix_kept)(int n, const float *e, const float *factor, int add, float *t);
    /* One column's keys x[0 .. n-1] into its running maximum m and, unless it is NULL, the sum l of 2^{unit (x - m)},
     * of nr rows; then m += log2(l) / unit of n columns. */
    void (*pool)(int n, const float *x, float unit, float *m, float *l);
    void (*pooled)(int n, float unit, const float *l, float *m);
    /* An indexer's head, w of nr rows: y (+)= w act(x), act being ReLU or the identity; then dx = dy w act'(x) over x,
     * and dw += sum_j dy act(x). */
    void (*index)(int n, const float *x, const float *w, int identity, int add, float *y);
    void (*index_back)(int n, float *x, const float *dy, const float *w, int identity, double *dw);

    /* Vectors of n numbers: <x, y>, and y += a x. */
    float (*dot)(int64_t n, const float *x, const float *y);
    void (*add_scaled)(int64_t n, float a, const float *x, float *y);

    /* Which |dz| pass their row's limit: entries has a bit for each row, live says of each strip whether any. */
    int (*mark_live)(int n, const float *dz, const float *limit, unsigned char *live,
                     uint32_t *entries);                  /* returns how many */
    void (*sum_rows)(int n, const float *dz, float *sum); /* sum[j] += sum over rows of dz[j] */

    /* exp2 of nr numbers <= 0, for the factors. */
    void (*exp2)(const float *x, float *y);

    /* Of n columns from number 'first' on, the scores that are not <= their row's 'least' become -inf and go to the end
     * of the row's picks: row i, if bit i of 'rows' is set, has picked[i] of them from picks[i room] on. */
    void (*pick)(int n, float *x, const float *least, uint32_t rows, int32_t first, struct skl_pick *picks,
                 int64_t room, int32_t *picked);
};

extern const struct skl_kernels skl_kernels_baseline, skl_kernels_avx2, skl_kernels_avx2_narrow, skl_kernels_avx512,
    skl_kernels_avx512_narrow, skl_kernels_neon, skl_kernels_amx, skl_kernels_avx512bf16, skl_kernels_neonbf16,
    skl_kernels_emulated_amx, skl_kernels_emulated_avx512bf16;

/* The kernels for p.isa; NULL when this build or CPU lacks them. */
const struct skl_kernels *skl_kernels_for(enum skl_isa isa);

#endif
