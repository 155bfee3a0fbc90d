/* SPDX-License-Identifier: Apache-2.0
 *
 * streamkl: the divergence between two softmax distributions, and its gradient, without ever storing them.
 *
 *     z_t[i,j] = cap_t(scale_t (<a_t[i], b_t[j]> + bias_t[j])) / temperature      teacher logits
 *     z_s[i,j] = cap_s(scale_s (<a_s[i], b_s[j]> + bias_s[j])) / temperature      student logits
 *     p[i,:] = softmax(z_t[i, lo(i)..hi(i)-1]),   q[i,:] = softmax(z_s[i, lo(i)..hi(i)-1])
 *     loss[i] = KL(p || q), KL(q || p), JSD_beta(p, q) or another of enum skl_divergence
 *
 * Attention: a are queries [B, H, N, D], b are keys [B, Hkv, M, D], one problem per (batch, head).
 * Linear:    a are hidden states [..., D],   b is the unembedding [V, D], columns are the vocabulary.
 *
 * The shortest use is in README.md. Every call checks its arguments before it writes anything, returns a status
 * and leaves a sentence in skl_last_error(). The library never prints, exits or aborts; calls may run
 * at the same time from any number of threads.
 *
 * How this interface grows. A program that was compiled against an older header keeps working with a newer library:
 *   - skl_problem and skl_outputs begin with their size, and new fields are only ever added at their end. A field that
 *     a caller's header does not have yet is 0, and 0 always means its default ("not given", "not wanted").
 *   - A caller whose header is newer than the library works as long as the fields that the library does not know are 0;
 *     otherwise the call is refused with a sentence.
 *   - skl_tensor, skl_side, skl_grads and skl_state are frozen: they have no size of their own and never change.
 *   - A group of fields that belong together comes as a structure of its own that begins with its size, behind a
 *     pointer at the end of skl_problem.
 */
#ifndef STREAMKL_H
#define STREAMKL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SKL_API
#else
#define SKL_API __attribute__((visibility("default")))
#endif

#define SKL_VERSION_MAJOR 0
#define SKL_VERSION_MINOR 1
#define SKL_VERSION_PATCH 0

/* ---------------------------------------------------------------------------------------------- status --- */

enum skl_status {
    SKL_OK = 0,
    SKL_BAD_ARGUMENT = 1,  /* an argument breaks a rule; nothing was written */
    SKL_UNSUPPORTED = 2,   /* a device or instruction set that is not here, or a problem that CUDA does not do */
    SKL_OUT_OF_MEMORY = 3, /* the workspace could not be allocated; nothing was written */
    SKL_CANCELLED = 4,     /* a callback, of progress or of a shard, asked to stop; outputs are undefined */
    SKL_NO_DEVICE = 5,     /* CUDA tensors, and no CUDA device or driver; nothing was written */
    SKL_DEVICE_FAILED = 6, /* a CUDA call failed; outputs are undefined */
    SKL_NO_LIBRARY = 7     /* cuBLAS is needed and cannot be loaded; nothing was written */
};

/* "bad argument" and the like; never NULL. */
SKL_API const char *skl_status_string(enum skl_status status);

/* What went wrong in this thread's last failed call: "cannot use ARGUMENT = VALUE: RULE". "" if none failed. */
SKL_API const char *skl_last_error(void);

/* --------------------------------------------------------------------------------------------- tensors --- */

enum skl_dtype { SKL_F32 = 0, SKL_BF16 = 1, SKL_F16 = 2, SKL_I32 = 3, SKL_I64 = 4 };

/* SKL_CUDA: data is device memory. All tensors of a problem are on one device, and the call is put into the problem's
 * stream: it returns before the work is done and never waits for it. */
enum skl_device { SKL_CPU = 0, SKL_CUDA = 1 };

/* A view of the caller's memory: element (i0, i1, ..) is at data[i0 stride[0] + i1 stride[1] + ..], strides in
 * elements. The last dimension of an operand or gradient is contiguous (stride 1); others may have any stride,
 * a broadcast input even 0. data NULL means "not given" or "not wanted". */
struct skl_tensor {
    void *data;
    int32_t dtype;  /* enum skl_dtype */
    int32_t device; /* enum skl_device */
    int32_t ndim;
    int32_t device_index; /* SKL_CUDA: the device's number; 0 on the CPU */
    int64_t shape[4];
    int64_t stride[4];
};

/* Contiguous views: [n], [rows, cols] and [batch, heads, rows, dim]. */
static inline struct skl_tensor skl_heads(int32_t dtype, const void *data, int64_t batch, int64_t heads, int64_t rows,
                                          int64_t dim)
{
    struct skl_tensor t = {(void *)data, dtype, SKL_CPU, 4, 0, {batch, heads, rows, dim}, {0, 0, 0, 0}};
    t.stride[3] = 1, t.stride[2] = dim, t.stride[1] = rows * dim, t.stride[0] = heads * rows * dim;
    return t;
}

static inline struct skl_tensor skl_matrix(int32_t dtype, const void *data, int64_t rows, int64_t cols)
{
    struct skl_tensor t = {(void *)data, dtype, SKL_CPU, 2, 0, {rows, cols, 0, 0}, {0, 0, 0, 0}};
    t.stride[1] = 1, t.stride[0] = cols;
    return t;
}

static inline struct skl_tensor skl_vector(int32_t dtype, const void *data, int64_t n)
{
    struct skl_tensor t = {(void *)data, dtype, SKL_CPU, 1, 0, {n, 0, 0, 0}, {0, 0, 0, 0}};
    t.stride[0] = 1;
    return t;
}

/* The same view of memory of a CUDA device. */
static inline struct skl_tensor skl_on_cuda(struct skl_tensor t, int32_t index)
{
    t.device = SKL_CUDA, t.device_index = index;
    return t;
}

/* --------------------------------------------------------------------------------------------- problem --- */

enum skl_use {
    SKL_ATTENTION = 0,
    SKL_LINEAR = 1,
    /* The student is an indexer of sparse attention, z[i,j] = scale sum_h w[i,h] act(<a[h,i], b[j]>), the teacher the
     * mean of the softmaxes of all its heads (see mix_t): s.a [B, Hi, N, Di], s.b [B, 1, M, Di], s.bias w [B, N, Hi]; t
     * as in attention. Rows are (batch, query): tensors over the rows are [B, N]. act is ReLU, its derivative at 0 is
     * 0. Make it with skl_problem_of(SKL_INDEXER, ...). On CUDA 16-bit operands run on tensor cores; others are right,
     * and slow (docs/cuda.md). */
    SKL_INDEXER = 2
};

enum skl_divergence {
    SKL_FORWARD_KL = 0, /* KL(p || q), teacher first */
    SKL_REVERSE_KL = 1, /* KL(q || p), student first */
    SKL_JSD = 2, /* beta KL(p || m) + (1 - beta) KL(q || m),  m = beta p + (1 - beta) q,  0 < beta < 1. With beta 0 it
                           is SKL_FORWARD_KL, with beta 1 SKL_REVERSE_KL, as Liger and TRL have it */
    SKL_SKEW_FORWARD_KL = 3, /* KL(p || skew p + (1 - skew) q) */
    SKL_SKEW_REVERSE_KL = 4, /* KL(q || (1 - skew) p + skew q) */
    SKL_TOTAL_VARIATION = 5, /* 1/2 sum |p - q| */
    SKL_ALPHA_BETA = 6       /* (alpha/(alpha+beta) sum p^(alpha+beta) + beta/(alpha+beta) sum q^(alpha+beta)
                                - sum p^alpha q^beta) / (alpha beta); either 0: its limit. alpha + beta >= 0.001 */
};

enum skl_pool { SKL_POOL_MAX = 0, SKL_POOL_SUM = 1 };

enum skl_reduction {
    SKL_MEAN = 0, /* value = sum_i weight[i] loss[i] / sum_i weight[i]; 0 when every weight is 0 */
    SKL_SUM = 1   /* value = sum_i weight[i] loss[i] */
};

enum skl_isa {
    SKL_ISA_BEST = 0,
    SKL_ISA_BASELINE = 1,
    SKL_ISA_AVX2 = 2,
    SKL_ISA_AVX512 = 3,
    SKL_ISA_NEON = 4,
    /* The same with units that multiply bf16, for operands that are all bf16. */
    SKL_ISA_AMX = 5,        /* AVX-512 and the tiles of AMX */
    SKL_ISA_AVX512BF16 = 6, /* AVX-512 and VDPBF16PS */
    SKL_ISA_NEONBF16 = 7    /* NEON and BFDOT */
};

/* See skl_problem.split_f32. */
enum skl_split { SKL_SPLIT_WHERE_FASTER = 0, SKL_SPLIT_NEVER = 1, SKL_SPLIT_ALWAYS = 2 };

/* One of the two distributions. */
struct skl_side {
    /* With labels or a listed teacher, the teacher's a and b are left out. */
    struct skl_tensor a;    /* attention [B, H, N, D]; linear [..., D] with one to three leading dimensions */
    struct skl_tensor b;    /* attention [B, Hkv, M, D], Hkv divides H; linear [V, D] */
    struct skl_tensor bias; /* linear: [V], f32, bf16 or f16; optional. Of an indexer, the weights of its heads */
    double scale;           /* 0: the default, 1/sqrt(D) for attention, 1 for linear and for indexers */
    double softcap;         /* c > 0: z becomes c tanh(z / c), after the scale and before the temperature. 0: none */
};

/* Cross-entropy with labels beside the divergence, or alone; linear problems. On the student's logits at temperature 1,
 * z' = temperature z_s, whatever the temperature of the divergence:
 *     ce[i] = (1 - smoothing) (LSE' - z'[i, label]) + smoothing (LSE' - mean_j z'[i,j]) + z_loss LSE'^2
 *     loss[i] = kl_weight divergence[i] + weight ce[i] + lse_weight LSE'[i]
 * Without a teacher (t.a, t.b not given) there is no divergence. An ignored label takes ce and LSE' away. */
struct skl_labels {
    size_t struct_size;    /* sizeof(struct skl_labels) */
    struct skl_tensor ids; /* i32 or i64 over the rows: columns, or 'ignore'. CUDA does not look: other ids give NaN */
    double weight, kl_weight, lse_weight;
    /* A row with this label has no cross-entropy; if the problem has no row weights, it takes no part at all: as a row
     * of weight 0. */
    int64_t ignore;
    double smoothing, z_loss; /* 0 <= smoothing < 1, z_loss >= 0 */
};

/* What becomes of the columns that a listed teacher does not name. p: what is listed, S: its columns, q: the
 * student. */
enum skl_tail {
    SKL_TAIL_BUCKET = 0,      /* together they are one more column, of the mass that is missing to 1 */
    SKL_TAIL_RENORMALISE = 1, /* they do not exist: both sides on S. Needs dot products with the columns of S alone */
    SKL_TAIL_ZERO = 2,        /* p as it is: sum_S p log(p / q), which can be negative where p does not sum to 1 */
    SKL_TAIL_TEACHER = 3      /* the teacher has no mass there: p / sum_S p against q over all columns */
};

/* A teacher as lists of columns and their log-probabilities, in place of t.a and t.b; linear problems, forward KL,
 * and reverse KL with SKL_TAIL_BUCKET and SKL_TAIL_RENORMALISE. A row whose list is empty is as a row without columns.
 * CUDA does not look at the lists: an id that is neither a column nor -1 gives NaN in its row, a sum above 1 counts as
 * 1. */
struct skl_listed {
    size_t struct_size;         /* sizeof(struct skl_listed) */
    struct skl_tensor ids;      /* i32 or i64, [.., K] over the rows: columns in any order, -1: an empty slot */
    struct skl_tensor logprobs; /* f32, bf16 or f16, as ids. A column that is listed twice has the sum of its masses */
    struct skl_tensor tail_logprob; /* optional f32 over the rows: log of the mass that is not listed, if not 1 - sum */
    int32_t tail;                   /* enum skl_tail */
    int32_t reserved;               /* 0 */
    /* The temperature at which the lists were made; 0: 1. Where it is not the problem's, every mass, that of the rest
     * too, is raised to stored_temperature / temperature, and their sum made 1 again. */
    double stored_temperature;
};

/* Called on the calling thread between pieces of work, fraction in [0, 1]. Return nonzero to cancel the call. */
typedef int (*skl_progress)(void *data, double fraction);

/* Merges states with those of the other shards of the columns: into[i] becomes the state of all shards' i-th states
 * (skl_merge), the same bits on every shard. Called on the calling thread. Return nonzero to stop the call. */
struct skl_state;
typedef int (*skl_exchange)(void *data, struct skl_state *states, int64_t rows);

/* The problem's columns are one shard of many, of a vocabulary or of keys; the same rows are on every shard. skl_value
 * and skl_value_and_grad meet the other shards after each sweep over a block of rows: value and row results are those
 * of all columns and the same everywhere, gradients of b are those of this shard's columns, gradients of a this shard's
 * part of a sum. How many exchanges there are, and of how many rows, follows from the rows and the divergence alone,
 * whatever this shard holds (even no column), weights or sees: ceil(N / rows) for linear, for attention of each (batch,
 * head), times the sweeps. A call that is refused makes none of them: agree on the arguments before.
 * skl_backward on a shard needs this for labels alone, first and columns: it meets nobody, and exchange may be NULL. */
struct skl_shard {
    size_t struct_size; /* sizeof(struct skl_shard) */
    skl_exchange exchange;
    void *data;
    /* Of an exchange, at most 16384; the same on every shard. 0: 512. The logits of so many rows are kept, or computed
     * again where they pass the workspace limit. */
    int64_t rows;
    /* With labels, whose ids then count the columns of all shards: which of these the problem's first one is, and how
     * many there are. A row then has two states, with smoothing three. */
    int64_t first, columns;
};

/* The one description of the work. Make it with skl_attention() or skl_linear(), then change what you need. "Rows"
 * are the queries or tokens: a tensor over the rows has the shape of a without its last dimension. */
struct skl_problem {
    size_t struct_size; /* sizeof(struct skl_problem): see "How this interface grows" above */
    int32_t use;        /* enum skl_use */
    int32_t divergence; /* enum skl_divergence */
    int32_t reduction;  /* enum skl_reduction */
    int32_t causal;     /* attention: row i sees columns j <= i + M - N (aligned bottom right, as flash attention) */
    struct skl_side s;  /* student */
    struct skl_side t;  /* teacher */
    double beta;        /* for SKL_JSD and SKL_ALPHA_BETA */
    double temperature; /* > 0. No T^2 factor is applied to loss or gradient */

    /* Attention: row i sees columns i + M - N - window_left .. i + M - N + window_right; -1: no limit on that side. */
    int64_t window_left, window_right;
    /* Columns 0 .. columns-1 are used, later ones are padding with no mass and no gradient, as if they did not exist (M
     * above counts only the used ones). 0: all of them, and then both sides must have the same number. */
    int64_t columns;
    /* Optional i32 tensors over the rows: row i sees only columns begin[i] .. end[i]-1 (packed sequences, padding). */
    struct skl_tensor begin, end;

    /* Optional f32 tensor over the rows. A row with weight 0 costs nothing: it has loss 0, LSE -inf and gradient 0,
     * as has a row that sees no column. In skl_backward this is the upstream gradient of the rows. */
    struct skl_tensor weight;

    int32_t threads; /* 0: skl_max_threads(). Results are the same bits for any number */
    int32_t isa;     /* enum skl_isa; environment variable STREAMKL_ISA, a name as of skl_isa_name(), caps it too */
    /* Most bytes of extra memory a call may take. 0: 256 MiB, for linear on the CPU an eighth of both b and their
     * gradients if that is more, and on the CPU 2 MiB for each thread; or what the call needs at least. */
    size_t workspace_limit;
    skl_progress progress; /* optional */
    void *progress_data;

    /* Gradient products may leave out entries of dz that are at most this much of their row's upstream gradient: an
     * error of at most that in each of them. 0: nothing but exact zeros. dz itself is tested, so this holds for every
     * divergence. Pays where distributions are peaked: 2^-24 is below the rounding of f32 sums. */
    double skip_below;

    /* For CUDA tensors, which in turn have no use for threads, isa, progress and skip_below. */
    void *stream; /* the cudaStream_t; NULL: the default stream. Ignored on the CPU */
    /* Device memory for the call, aligned to 256 bytes, of at least skl_workspace_size() bytes; in use until the stream
     * has done the call's work. NULL: the call allocates and frees it in the stream's order. NULL on the CPU. */
    void *workspace;
    size_t workspace_bytes;
    /* 1: gradients may be summed in any order, with atomics: faster, but the last bits change from run to run.
     * 0: the same bits every time, as always on the CPU. */
    int32_t any_order;
    int32_t reserved; /* 0 */

    double skew;  /* for SKL_SKEW_FORWARD_KL and SKL_SKEW_REVERSE_KL, 0 < skew < 1. 0: 0.1 */
    double alpha; /* for SKL_ALPHA_BETA: the exponent of p; beta is that of q. From 0 to 16 */

    const struct skl_labels *labels; /* optional; not with skl_partial and skl_finish */
    double num_items;                /* > 0: the denominator of a mean, instead of the sum of the weights */

    /* Optional, i32 or i64, shaped as a: for each row the columns whose mass out.mass_s and mass_t tell. -1: an empty
     * slot; a column that is named twice counts twice, one that the row does not see has no mass. */
    struct skl_tensor mass_ids;

    /* Attention: the teacher as a mixture of its heads, without a gradient; on CUDA head_map not beside support. t.a
     * has Ht heads, t.b some number that divides Ht; student head h is compared with the mean of the softmaxes of the
     * teacher's heads
     *     h mix_t .. h mix_t + mix_t - 1 (Ht = H mix_t),    or head_map[h][0 .. mix_t-1].
     * 0: a head of the teacher for each of the student's. Not with SKL_REVERSE_KL and SKL_ALPHA_BETA, which divide by a
     * mixture that f32 may not hold; with partial rows only if lse_t is given. */
    int64_t mix_t;
    /* Optional i32 [H] or [H, mix_t] (mix_t may then be 0): heads of t.a. CUDA does not look before the call: others
     * give NaN. */
    struct skl_tensor head_map;
    /* Optional f32 [B, Ht, N]: log-denominators of the teacher's heads, of whatever they were summed over (more keys, a
     * sink). The target is t = mean of e^{z - lse}, and the heads are gone through once instead of twice. -inf: t = 0.
     * Of a single head that is divided by its sum it cancels, and is not read. */
    struct skl_tensor lse_t;
    /* 0: t is divided by its sum over the row. 1: it stays as it is, loss = sum_j t (log t - log q) and
     * dz_s = g (q sum t - t); SKL_FORWARD_KL and lse_t only. */
    int32_t raw_t;
    int32_t identity; /* SKL_INDEXER: 1: act is the identity instead of ReLU */

    /* Optional; of skl_value and skl_value_and_grad on the CPU. Not with lists, mixtures of heads, pooled keys, packed
     * sequences, progress, and details of rows but out.kl, ce, logprob_s and l1_s. */
    const struct skl_shard *shard;

    /* 1: where all operands are bf16 and SKL_ISA_AMX or SKL_ISA_AVX512BF16 multiplies them, dz may be rounded to bf16
     * too: gradients are faster, and off by some 1e-3 of their row (docs/math.md, section 10). 0: dz counts to 16 bits
     * or all of f32's, and they are as good as f32's. */
    int64_t round_dz;

    const struct skl_listed *listed; /* optional; not with skl_partial and skl_finish, begin and end */

    /* Attention, on the CPU: the student's keys are blocks of so many keys of the teacher, the last perhaps shorter:
     * s.b has ceil(M / pool_block) rows. The teacher's logit of a block is that of its largest key, or the LSE of its
     * keys; of those that the row sees. Masks count the teacher's keys, and a row sees the blocks that hold one that it
     * sees. No gradient of the teacher; not with columns, partial rows, mixtures and shards. 0: no blocks. */
    int64_t pool_block;
    int32_t pool;          /* enum skl_pool */
    int32_t reserved_pool; /* 0 */

    /* Packed sequences of attention and indexers, one after the other in the rows and in the columns of one batch (B =
     * 1): optional i32 [sequences + 1], both or none. Sequence k has rows cu_seqlens_q[k] .. cu_seqlens_q[k+1]-1, which
     * see columns cu_seqlens_k[k] .. cu_seqlens_k[k+1]-1 and no others; the first entry is 0, the last the number of
     * rows or columns. N and M of 'causal' and of the windows are those of the sequence, and begin, end, mass_ids and
     * top1 count from its first column. Not with pool_block and shards. CUDA does not look before the call: other
     * offsets give NaN. */
    struct skl_tensor cu_seqlens_q, cu_seqlens_k;

    /* Attention and indexers: optional i32 [B, N, K], a list of keys for each query and all its heads, in any order.
     * -1: an empty slot; a key that is listed twice counts once, and one that the masks hide is not seen. Both
     * softmaxes are over what is listed and seen; a query without such a key is a row without columns. With packed
     * sequences a list counts from the sequence's first column. Not with pool_block, mass_ids, shards and partial rows.
     * CUDA does not look before the call: an id that is neither a key nor -1 gives NaN in the rows of its query. */
    struct skl_tensor support;
    int64_t support_block; /* entries of 'support' are blocks of so many keys, the last perhaps shorter. 0: keys */

    /* Attention: sinks, a logit for each head of s.a and of t.a, f32, bf16 or f16 [heads]; both or none.
     * Every row has one more column, z = sink / temperature (neither scale nor softcap touch it): a category of the
     * divergence, in all LSEs and entropies, and all that a row sees which sees no key. Of a mixture it has the mean
     * of its heads' masses. To compare the keys alone, leave sinks out. SKL_INDEXER: sink_t alone, in the
     * denominators of the teacher's heads and no category: the target is the mean of e^{z - lse} over the keys,
     * divided by its sum unless raw_t. Not with support, pool_block,
     * partial rows and shards. */
    struct skl_tensor sink_s, sink_t;

    /* enum skl_split: where all operands are f32 and SKL_ISA_AMX is used, products may be made of three bf16 parts of
     * each number, with the error of f32 (docs/math.md, section 10). By default where that was measured to be faster
     * than FMAs: linear problems with 512 rows or more, of dim 1024 or more on both sides (docs/performance.md). */
    int64_t split_f32;
};

/* What is wanted: everything whose data (or pointer) is not NULL. */
struct skl_grads {
    struct skl_tensor a, b; /* shape of the operand; f32 or the operand's dtype. b in 16 bits takes an f32
                               accumulator of b's size (of one (batch, key head)) out of the workspace */
    struct skl_tensor bias; /* f32 or the bias's dtype */
};

struct skl_outputs {
    size_t struct_size;             /* sizeof(struct skl_outputs) */
    double *value;                  /* the reduced loss; for CUDA tensors in device memory, as everything here */
    struct skl_tensor loss;         /* f32 over the rows: divergence of each row, not weighted */
    struct skl_tensor lse_s, lse_t; /* f32 over the rows: log sum_j exp z[i,j] */
    /* f32 over the rows, for the backward of all but forward and reverse KL: what the gradient of that side subtracts.
     * Of SKL_JSD these are KL(q || m) and KL(p || m). */
    struct skl_tensor kl_s, kl_t;
    struct skl_grads s, t; /* gradients of the reduced loss */

    /* Optional f32 over the rows: the LSEs in two parts, LSE = unit m + log l with unit = |scale| / temperature (with a
     * softcap 1 / temperature). unit m is a reference near the row's largest logit z, l = sum e^{z - unit m}. An LSE is
     * rounded, its parts are not: a backward that gets all four of them in 'saved' is exact where one that gets only
     * the LSEs is off by the rounding of an LSE. */
    struct skl_tensor m_s, m_t, l_s, l_t;

    /* Optional, over the rows; f32, top1 and rank i32. What is not asked for costs nothing. Not of skl_partial and
     * skl_finish; on CUDA each of entropy, reverse, jsd, tv, top1 and rank is a sweep more. */
    struct skl_tensor kl;                   /* the divergence alone, not weighted */
    struct skl_tensor ce;                   /* the cross-entropy alone, not weighted; 0 for an ignored label */
    struct skl_tensor entropy_s, entropy_t; /* at the temperature of the divergence */
    struct skl_tensor logprob_s, logprob_t; /* of the label, at temperature 1; 0 for an ignored label */
    struct skl_tensor top1_s, top1_t;       /* the column with the largest logit, of equal ones the first */
    struct skl_tensor reverse, jsd, tv;     /* KL the other way, JSD with beta 0.5, total variation: a second sweep */
    struct skl_tensor l1_s;                 /* sum e^{z' - z'(m_s)}: for the backward of a problem with labels */
    struct skl_tensor mass_s, mass_t; /* the probability of problem.mass_ids, at the temperature of the divergence */
    /* Where one side's top1 stands in the other's order: how many logits of the student are larger than its logit of
     * the teacher's top1, and the reverse. 0: it is the top there too. A second sweep. */
    struct skl_tensor rank_s, rank_t;

    /* Optional f32 over the rows, of a problem with a listed teacher: the parts of the student's LSE over the columns
     * that are not listed, as m_s and l_s. Its backward needs them (and m_s with l1_s, not l_s or lse_s), but for
     * SKL_TAIL_RENORMALISE without labels. */
    struct skl_tensor m_rest, l_rest;

    /* Optional f32 over the rows, of a problem with both sinks: the probability of the sink. */
    struct skl_tensor sink_mass_s, sink_mass_t;
    struct skl_tensor grad_sink_s, grad_sink_t; /* gradients of the sinks: [heads], f32 or the sink's dtype */

    /* Of skl_topk: lists of K, [.., K] over the rows, ids i32, the other two f32; see there. */
    struct skl_tensor topk_ids, topk_logprobs;
    struct skl_tensor tail_logprob; /* over the rows: log of the mass that is not listed */
};

static inline struct skl_problem skl_problem_of(int32_t use, struct skl_tensor a_s, struct skl_tensor b_s,
                                                struct skl_tensor a_t, struct skl_tensor b_t)
{
    struct skl_problem p;
    memset(&p, 0, sizeof p);
    p.struct_size = sizeof p;
    p.use = use;
    p.s.a = a_s, p.s.b = b_s, p.t.a = a_t, p.t.b = b_t;
    p.beta = 0.5;
    p.temperature = 1;
    p.window_left = p.window_right = -1;
    return p;
}

/* Forward KL, mean over the rows, scale 1/sqrt(D), no mask. */
static inline struct skl_problem skl_attention(struct skl_tensor q_s, struct skl_tensor k_s, struct skl_tensor q_t,
                                               struct skl_tensor k_t)
{
    return skl_problem_of(SKL_ATTENTION, q_s, k_s, q_t, k_t);
}

/* Forward KL, mean over the rows, temperature 1. */
static inline struct skl_problem skl_linear(struct skl_tensor x_s, struct skl_tensor w_s, struct skl_tensor x_t,
                                            struct skl_tensor w_t)
{
    return skl_problem_of(SKL_LINEAR, x_s, w_s, x_t, w_t);
}

static inline struct skl_outputs skl_no_outputs(void)
{
    struct skl_outputs out;
    memset(&out, 0, sizeof out);
    out.struct_size = sizeof out;
    return out;
}

/* ----------------------------------------------------------------------------------------------- calls --- */

/* Value only: one pass over the columns, two products. Gradients in 'out' must not be given. Extra memory does not
 * grow with rows or columns (divergences other than forward and reverse KL, and results that take a second sweep, keep
 * a block of rows of logits, within the limit). */
SKL_API enum skl_status skl_value(const struct skl_problem *p, const struct skl_outputs *out);

/* Value and the gradients of the reduced loss: four products, keeping a block of rows; six when that block would
 * pass the workspace limit. */
SKL_API enum skl_status skl_value_and_grad(const struct skl_problem *p, const struct skl_outputs *out);

/* Gradients alone, recomputed tile by tile: four products. 'saved' holds what skl_value wrote: lse_s and lse_t (or,
 * better, m_s, m_t, l_s and l_t, which are used instead), and
 * loss (forward KL with teacher gradients, reverse KL with student gradients) or kl_s / kl_t (the other divergences,
 * for the side with gradients). With reduction SKL_SUM, weight is the upstream gradient of the rows. The LSEs may span
 * more columns than this problem holds: that is the backward of one shard of a vocabulary. */
SKL_API enum skl_status skl_backward(const struct skl_problem *p, const struct skl_outputs *saved,
                                     const struct skl_outputs *out);

/* Lists of the K largest logits of each row of one model, without storing the logits: one product, one pass. The model
 * is s, as it is in a linear problem, in attention or in an indexer; t is left out, so that a teacher's lists are made
 * with the teacher in the place of s. K is the last dimension of out.topk_ids, at least 1.
 *     topk_ids        columns, the largest logit first, of equal ones the lower; -1 where the row sees fewer than K
 *     topk_logprobs   z - LSE, at the problem's temperature; -inf where the id is -1
 *     tail_logprob    LSE of the logits that are not listed, less LSE: a sum of its own, and never 1 minus the others
 *     lse_s           LSE, over all columns that the row sees
 * topk_ids is always wanted, the others where they are given, and nothing else of 'out'; on the CPU ids alone cost no
 * exponentials. Masks, columns, packed sequences (ids count from the first column of the sequence), bias, scale,
 * softcap, temperature and weight (of a row without weight all ids are -1) are as in the other calls. A logit that is
 * NaN counts as +inf among the ids; a row with NaN, with +inf, or with nothing above -inf has log-probabilities of NaN.
 * Extra memory grows with K and with neither rows nor columns (on CUDA by 8 bytes a row). Not with labels, lists, mass_ids,
 * pool_block, support, sinks, shards and what only a teacher has. */
SKL_API enum skl_status skl_topk(const struct skl_problem *p, const struct skl_outputs *out);

/* Which call skl_workspace_size() is asked about. */
enum skl_call {
    SKL_CALL_VALUE = 0,
    SKL_CALL_VALUE_AND_GRAD = 1,
    SKL_CALL_BACKWARD = 2,
    SKL_CALL_PARTIAL = 3,
    SKL_CALL_TOPK = 4
};

/* Bytes of extra memory that the call would allocate, exactly; for CUDA tensors, of device memory. 'out' as it would be
 * given to the call. */
SKL_API enum skl_status skl_workspace_size(enum skl_call call, const struct skl_problem *p,
                                           const struct skl_outputs *out, size_t *bytes);

/* ---------------------------------------------------------------------------------------- partial rows --- */

/* What is known of a row from some of its columns. Natural logarithms. An array of states is aligned to 8 bytes.
 * m = a reference near the largest logit (-inf: no column with mass yet), l = sum e^{z - m};
 * forward KL: acc_t = sum e^{z_t - m_t} ((z_t - m_t) - (z_s - m_s)); reverse KL: acc_s, the same with t and s
 * exchanged; second sweep of the others: the two sums of docs/math.md, section 5b (SKL_JSD: acc_t = sum p log(p/m),
 * acc_s = sum q log(q/m)), with m, l empty. */
struct skl_state {
    double m_s, l_s, acc_s;
    double m_t, l_t, acc_t;
};

/* The states, state[rows] in row-major order, of the columns that this problem holds. Divergences other than forward
 * and reverse KL take two sweeps: finish the first one's states for the LSEs over all columns, then give those as
 * saved->lse_s and lse_t. NULL otherwise. With CUDA tensors the states are in device memory, here and in skl_finish. */
SKL_API enum skl_status skl_partial(const struct skl_problem *p, const struct skl_outputs *saved,
                                    struct skl_state *state);

/* into[i] = the state of both sets of columns. Associative and commutative to rounding. On the host only. */
SKL_API enum skl_status skl_merge(int64_t rows, struct skl_state *into, const struct skl_state *from);

/* value, loss, lse_s, lse_t, kl_s, kl_t from complete states. p as it was given to skl_partial (any of the slices): its
 * divergence, beta, weight, reduction and rows count, its operands are not read. */
SKL_API enum skl_status skl_finish(const struct skl_problem *p, const struct skl_state *state,
                                   const struct skl_outputs *out);

/* --------------------------------------------------------------------------------------- introspection --- */

SKL_API const char *skl_version(void);              /* "0.1.0" */
SKL_API int skl_isa_available(enum skl_isa isa);    /* 1 if compiled in and this CPU (and STREAMKL_ISA) has it */
SKL_API enum skl_isa skl_isa_best(void);            /* what SKL_ISA_BEST means here */
SKL_API const char *skl_isa_name(enum skl_isa isa); /* "avx2"; "unknown" for other numbers */
SKL_API int skl_max_threads(void);                  /* what threads = 0 means: CPUs, at most OMP_NUM_THREADS */
SKL_API int skl_cuda_built(void);                   /* 1 if this library was built with CUDA */
SKL_API int skl_cuda_devices(void);                 /* CUDA devices here; if 0, skl_last_error() says why */

#ifdef __cplusplus
}
#endif
#endif
