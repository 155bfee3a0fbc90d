/* SPDX-License-Identifier: Apache-2.0 */
#include "result.h"

#include <math.h>

const char *const kit_column_names[KIT_COLUMNS] = {"loss", "LSE", "grad a", "grad b"};

const struct kit_result_info kit_results[KIT_RESULTS] = {
#define ROW(field, id, needs, column, bound) {#field, offsetof(struct skl_outputs, field), needs, column, bound},
#define GRADIENT(side, operand, id, field, column) \
    {"grad " #operand "_" #side, offsetof(struct skl_outputs, field), KIT_ALWAYS, column, NULL},
    KIT_ROW_RESULTS(ROW) KIT_GRADIENTS(GRADIENT)};

struct skl_tensor *kit_slot(struct skl_outputs *out, int result)
{
    return (struct skl_tensor *)(void *)((char *)out + kit_results[result].offset);
}

double kit_near(double want, double growth)
{
    (void)growth;
    return isfinite(want) ? KIT_ROW_RELATIVE * fabs(want) + KIT_ROW_ABSOLUTE : 0;
}

double kit_near_logits(double want, double growth)
{
    return isfinite(want) ? KIT_ROW_RELATIVE * fabs(want) + growth * KIT_ROW_ABSOLUTE : 0;
}

double kit_exact(double want, double growth)
{
    (void)want, (void)growth;
    return 0;
}

double kit_open(double want, double growth)
{
    (void)growth;
    return isfinite(want) ? INFINITY : 0;
}
