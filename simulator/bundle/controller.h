/* The threshold controller: which variant of a compiled model runs next.
 *
 * C99, no heap, no floating point, no state outside what the caller holds; one call at the end of each inference.  Thresholds are in
 * 1/65536 of rho, the cycles with compute of an inference per cycle with loads or stores.
 */
#ifndef TILEFARM_CONTROLLER_H
#define TILEFARM_CONTROLLER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In place of a variant's number: a level for which no variant was made. */
#define TILEFARM_NONE UINT32_MAX

/* The table of a model: `tilefarm_thresholds` of table.h.
 * ladder: variants, from the one for light load to the one for heavy load.
 * t_min, t_max: in 1/65536, one per border, so `positions` - 1 of each.
 * slice_cycles: for how long inferences must agree before a switch; 0: one inference.
 */
typedef struct tilefarm_rule {
    uint32_t positions;
    const uint32_t *ladder;
    const uint32_t *t_min;
    const uint32_t *t_max;
    uint64_t slice_cycles;
} tilefarm_rule;

/* Counters of the inference that ended: it ran in cycles [start, end) of a counter that is never set back.
 * compute_cycles: in which CUBE or VECTOR worked; load_store_cycles: in which a DMA moved data of the DDR; both summed over cores.
 */
typedef struct tilefarm_seen {
    uint64_t start;
    uint64_t end;
    uint64_t compute_cycles;
    uint64_t load_store_cycles;
} tilefarm_seen;

/* variant: to run next.  The rest is the controller's. */
typedef struct tilefarm_state {
    uint32_t variant;
    uint32_t position;
    int32_t leaning;
    uint64_t since;
} tilefarm_state;

/* What of the memory and cores is granted, or needed: bytes of L1 on every core, bytes of the memory that all cores share, cores. */
typedef struct tilefarm_grant {
    uint64_t l1_bytes;
    uint64_t shared_bytes;
    uint32_t cores;
} tilefarm_grant;

/* The first of `rules` needs that fits what is granted, or `rules`: then nothing may run.
 * Before an inference, where another grant was announced: with another number than before, `tilefarm_start` with that rule.
 */
uint32_t tilefarm_fitting(const tilefarm_grant *needs, uint32_t rules, const tilefarm_grant *granted);

/* Before the first inference.  Returns the variant that it runs. */
uint32_t tilefarm_start(const tilefarm_rule *rule, tilefarm_state *state);

/* After an inference that ran `state->variant`.  Returns the variant of the next one. */
uint32_t tilefarm_step(const tilefarm_rule *rule, tilefarm_state *state, const tilefarm_seen *seen);

#ifdef __cplusplus
}
#endif

#endif
